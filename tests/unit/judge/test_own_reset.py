"""What healthd's own GPU reset brings about is no fault: the links go down, and the switches say so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.core.model import Status
from healthd.judge.findings import OwnResets
from tests.support.judgement import at, finding, looked


def after_reset(*, began: float = 100, ended: float | None = 130) -> OwnResets:
    resets = OwnResets()
    resets.begin(at(began))
    if ended is not None:
        resets.end(at(ended))
    return resets


@pytest.mark.parametrize("code", ["nvswitch.sxid.20034", "gpu.xid.74", "gpu.xid.149", "gpu.nvlink.discovery_failed"])
@pytest.mark.parametrize(("second", "is_own"), [(50, False), (99, True), (110, True), (131, True), (133, False)])
def test_lines_about_links_belong_to_the_reset_that_they_fall_into(code: str, second: float, is_own: bool) -> None:
    """Between its start and its end, two seconds of doubt about the clock included."""
    outcome, dropped = after_reset().without(looked(finding(code, time=at(second)), seconds=140))
    assert (dropped, outcome.result.status) == ((1, Status.OK) if is_own else (0, Status.FINDINGS))


@pytest.mark.parametrize("drift_s", [-60, 60])
def test_lines_that_are_read_within_the_reset_are_its_own_whatever_they_are_dated(drift_s: float) -> None:
    """The clock of the kernel log runs free: after weeks it is seconds away from the time of day."""
    line = finding("nvswitch.sxid.20034", time=at(110 + drift_s))
    assert after_reset(ended=None).without(looked(line, seconds=110))[1] == 1
    assert after_reset().without(looked(line, seconds=131))[1] == 1
    assert after_reset().without(looked(line, seconds=140))[1] == 0


def test_one_that_is_under_way_has_no_end_yet() -> None:
    """Its lines are read while it lasts."""
    assert after_reset(ended=None).without(looked(finding("gpu.xid.74", time=at(500)), seconds=500))[1] == 1


@pytest.mark.parametrize("code", ["gpu.xid.79", "gpu.xid.95", "gpu.xid.140", "kernel.pcie_fatal"])
def test_other_lines_are_news_in_a_reset_too(code: str) -> None:
    """A GPU that falls off the bus while it is reset is found."""
    assert after_reset().without(looked(finding(code, time=at(110)), seconds=140))[1] == 0


def test_what_could_not_be_told_stays_unknown() -> None:
    """A gap is no less of one because the findings beside it are dropped; a finding without a time is never dropped."""
    outcome, dropped = after_reset().without(
        looked(finding("gpu.xid.74", time=at(110)), undecided=("torn",), seconds=140)
    )
    assert (dropped, outcome.result.status) == (1, Status.UNKNOWN)
    assert after_reset().without(looked(finding("gpu.xid.74"), seconds=140))[1] == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=9), st.integers(0, 1000))
def test_only_the_last_few_resets_are_remembered(spans: list[tuple[int, int]], second: int) -> None:
    """However many there were, what is dropped falls into one of the last four."""
    resets, times, now = OwnResets(), list[tuple[int, int]](), 0
    for pause, length in spans:
        began, now = now + pause, now + pause + length
        resets.begin(at(began))
        resets.end(at(now))
        times.append((began, now))
    _, dropped = resets.without(looked(finding("gpu.xid.74", time=at(second)), seconds=second))
    assert dropped == any(began - 2 <= second <= ended + 2 for began, ended in times[-4:])
