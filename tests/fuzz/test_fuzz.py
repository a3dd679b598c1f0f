"""No parser of text from outside raises what it does not promise, or takes longer than its input is long."""

from __future__ import annotations

import gc
import time
from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from healthd.core.errors import SourceUnreadable
from tests.fuzz.growth import Growth, growths
from tests.fuzz.run import failure, smaller
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.support.sampling import examples

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::SyntaxWarning")

EACH = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@EACH
def test_what_is_kept_is_taken(target: Target) -> None:
    """Every seed, and every input of the corpus: what failed once, and what reaches the far corners."""
    for data in target.begins_with():
        target.takes(data)


@EACH
@given(chance=st.integers(0, 2**63))
@settings(max_examples=examples(60))
def test_changed_inputs_are_taken_or_refused(target: Target, chance: int) -> None:
    """Whatever a real input is changed to, the parser reads it or raises what it says it raises."""
    data = target.input(Random(chance), target.begins_with())
    note(repr(data))
    target.takes(data)


@EACH
def test_time_grows_with_size_alone(target: Target) -> None:
    """Eight times as much costs eight times as much, give or take the machine."""
    assert [str(each) for each in growths(target, seeds=1) if not each.is_linear] == []


# -- the instrument itself --------------------------------------------------------------------------------------------


def brittle(data: bytes) -> None:
    """A parser with a defect, a refusal and a promise."""
    if b"\xff7" in data:
        raise IndexError("a defect")
    if data.startswith(b"no"):
        raise SourceUnreadable("a refusal")


def test_a_defect_is_found_and_made_small() -> None:
    """An error that was not promised is named with its place, and its input loses what it does not need."""
    target = Target(name="brittle", parse=brittle, seeds=(b"no",))
    assert failure(target, b"no more") == ""
    found = failure(target, b"no, a long \xff7 story")
    assert found.startswith("IndexError at test_fuzz.py:")
    assert smaller(target, b"a long \xff7 story") == b"\xff7"


def test_a_parser_that_is_quadratic_is_found() -> None:
    """One that copies its rest for each byte is steeper than linear; one that sleeps, and takes no time, is not."""

    def steep(data: bytes) -> None:
        sum(len(data[at:].split(b"x")) for at in range(0, len(data), 64))

    assert not all(each.is_linear for each in growths(Target(name="steep", parse=steep, seeds=(b"x",))))
    assert all(each.is_linear for each in growths(Target(name="idle", parse=lambda _: time.sleep(0), seeds=(b"x",))))
    assert Growth(target="t", unit=b"x", small_s=0.1, large_s=0.8).is_linear


def test_one_slow_moment_decides_nothing() -> None:
    """The least of the tries counts: a slow one makes no parser steep; a slow small one makes no steep one linear."""
    calls: list[int] = []

    def busy(seconds: float) -> None:
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass

    def slow_once(data: bytes) -> None:
        calls.append(len(data))
        busy(0.07 * len(data) / (1 << 16) + (0.3 if len(calls) == 1 else 0.0))

    def steep_but_once(data: bytes) -> None:
        calls.append(len(data))
        first_small = len(data) < 1 << 15 and not any(each < 1 << 15 for each in calls[:-1])
        busy(0.05 if first_small else 0.07 * (len(data) / (1 << 16)) ** 3)

    for parse, is_linear in ((slow_once, True), (steep_but_once, False)):
        calls.clear()
        assert next(growths(Target(name="t", parse=parse, seeds=(b"x",)))).is_linear is is_linear


def test_the_collector_is_off_while_a_parser_is_measured() -> None:
    """Each call is made without it, and it is on again for everybody else."""
    assert gc.isenabled()
    seen: list[bool] = []
    for _ in growths(Target(name="t", parse=lambda _: seen.append(gc.isenabled()), seeds=(b"x",))):
        assert gc.isenabled()
    assert seen
    assert not any(seen)
