"""kmsg.reader: not seeing the kernel log is unknown, and what was lost is said."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import pytest
from msgspec.structs import replace

from healthd.checks.kmsg_reader import KmsgReaderSettings, kmsg_reader
from healthd.core.check import discover
from healthd.core.model import ClearsBy, Outcome, ReadingKind, Result, Severity, Status
from healthd.core.node import KernelLogState, Node
from healthd.judge.history import History, observe

GOOD = KernelLogState(source="/dev/kmsg", alive=True, idle_s=0.4)
NOW = datetime(2026, 1, 2, tzinfo=UTC)


class ReaderNode:
    boot_id = "boot"

    def __init__(self, state: KernelLogState) -> None:
        self.kernel_log = state


def judge(state: KernelLogState) -> Result:
    return kmsg_reader(cast(Node, ReaderNode(state)), KmsgReaderSettings())


def test_reader_at_work_is_ok() -> None:
    """A reader that comes round is fine, however quiet the log is, and its counters are readings."""
    result = judge(replace(GOOD, malformed=2, untrusted=3))
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "kernel_log_gaps_total": 0,
        "kernel_log_malformed_total": 2,
        "kernel_log_untrusted_total": 3,
    }
    assert {(reading.kind, reading.epoch) for reading in result.readings} == {(ReadingKind.COUNTER, "boot")}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (replace(GOOD, alive=False), "has ended"),
        (replace(GOOD, alive=False, error="/dev/kmsg: Operation not permitted"), "Operation not permitted"),
        (replace(GOOD, idle_s=31.0), "stands still for 31 s (limit 30 s)"),
        (replace(GOOD, error="/dev/kmsg: Permission denied"), "Permission denied"),
    ],
)
def test_blind_is_unknown(state: KernelLogState, words: str) -> None:
    """A reader that ended, stalls or cannot read makes the answer unknown, with the reason."""
    result = judge(state)
    assert result.status is Status.UNKNOWN
    assert words in result.reason


def test_idle_up_to_the_limit_is_ok() -> None:
    """The limit itself is not over the limit."""
    assert judge(replace(GOOD, idle_s=30.0)).status is Status.OK


def outcome(state: KernelLogState) -> Outcome:
    return Outcome(check="kmsg.reader", result=judge(state), at=NOW, duration_s=0.0)


def test_growing_gaps_stay_open_until_a_reboot() -> None:
    """A gap is a warning that outlives the reader that met it: only a reboot ends what was lost with it."""
    limits = discover()["kmsg.reader"].limits
    history = History(boot_id="boot")
    for state in (GOOD, replace(GOOD, gaps=1), replace(GOOD, gaps=1), GOOD):
        history, _ = observe(history, outcome(state), limits, NOW)
    (fault,) = history.faults.values()
    assert (fault.code, fault.severity, fault.clears_by) == ("kmsg.gap", Severity.WARNING, ClearsBy.REBOOT)


def test_gap_before_the_first_look_is_not_silent() -> None:
    """A count that is above zero when it is first read has no growth to show, and is a finding all the same."""
    result = judge(replace(GOOD, gaps=2))
    assert [finding.code for finding in result.findings] == ["kmsg.incomplete"]
    assert result.findings[0].evidence["gaps"] == 2
