"""Whether the clock was set, and what is remembered after that: a fault lasts as long as it does, by any clock."""

from __future__ import annotations

from datetime import timedelta

import pytest

from healthd.core.check import FindingCode, Rate, Stall, judged
from healthd.core.model import Clearance, ClearsBy, Finding, Remedy, Repeats, Severity
from healthd.judge.clock import JUMP, ClockWatch, moved, was_set
from healthd.judge.history import History, clear, observe, shifted
from healthd.judge.trends import Days
from tests.support.judgement import GPU, answered, at, counter, fault, finding, fold, history, looked

HOUR = timedelta(hours=1)


def test_both_clocks_going_on_are_no_jump() -> None:
    """However long nobody looked, and whatever lies between two readings on a busy machine."""
    watch = ClockWatch(at(0), 100.0)
    assert not watch.was_set_by(at(86_400), 86_500.0)
    assert not watch.was_set_by(at(86_404), 86_500.0)


def test_a_jump_is_told_once() -> None:
    """Forward and back, by how much."""
    watch = ClockWatch(at(0), 0.0)
    assert watch.was_set_by(at(3610), 10.0) == HOUR
    assert not watch.was_set_by(at(3620), 20.0)
    assert watch.was_set_by(at(30), 30.0) == -HOUR


def test_small_steps_in_one_direction_add_up() -> None:
    """ntpd steps by less than we notice: what is remembered is never off by more than that."""
    watch = ClockWatch(at(0), 0.0)
    told = [watch.was_set_by(at(10 * turn + 2 * turn), 10.0 * turn) for turn in range(1, 7)]
    assert [each.total_seconds() for each in told] == [0, 0, 6, 0, 0, 6]
    assert timedelta(seconds=6) > JUMP


def test_words() -> None:
    """For the trail and the log."""
    assert was_set(HOUR) == "the clock was set forward by 3600 s"
    assert was_set(-HOUR) == "the clock was set back by 3600 s"


def test_no_time_is_moved_beyond_now() -> None:
    """What was noted by the new clock already, before the jump was noticed, must not lie an hour ahead."""
    assert moved(at(10), HOUR, at(3620)) == at(3610)
    assert moved(at(3615), HOUR, at(3620)) == at(3620)
    assert moved(at(3615), -HOUR, at(30)) == at(15)


# ---------------------------------------------------------------------------------------------------------------------
# what is remembered


def test_evidence_after_a_fault_ends_it_also_where_the_clock_went_back() -> None:
    """A line of the log that says that it is over is an hour earlier than the fault, by what the clock showed."""
    broken = finding(clears_by=ClearsBy.GPU_RESET, time=at(7200))
    opened = fold(history(), [looked(broken, seconds=7200)])
    over = Clearance(by=ClearsBy.GPU_RESET, component=GPU[0], time=at(3660))
    assert clear(opened, over)[0].faults
    assert not clear(shifted(opened, -HOUR, at(3650)), over)[0].faults


def test_a_fault_of_an_earlier_boot_keeps_its_time() -> None:
    """The clock that was wrong is this boot's. What a person said of the days to come was said by the right one."""
    old = fault("gpu.old", boot_id="boot-0", first=at(0), last=at(5))
    new = fault("gpu.new", first=at(10), last=at(20), acknowledged=True, acknowledged_until=at(9e6))
    after = shifted(history(old, new), HOUR, at(3630)).faults
    assert after[old.key] == old
    assert (after[new.key].first, after[new.key].last) == (at(3610), at(3620))
    assert after[new.key].acknowledged_until == at(9e6)


@pytest.mark.parametrize("by_s", [3600, -3600])
def test_what_must_last_lasts_as_long_as_it_does(by_s: int) -> None:
    """Ten minutes are neither over at once nor an hour away."""
    wrong, by = finding("host.clock.unsynchronised", lasting_s=600.0), timedelta(seconds=by_s)
    before = fold(history(), [looked(wrong, seconds=7200)])
    after = shifted(before, by, at(7260 + by_s))
    after, changes = observe(after, looked(wrong, seconds=7260 + by_s), (), at(7260 + by_s))
    assert not changes
    _, changes = observe(after, looked(wrong, seconds=7810 + by_s), (), at(7810 + by_s))
    assert [change.opened for change in changes] == [True]


@pytest.mark.parametrize("by_s", [3600, -3600])
def test_what_must_repeat_repeats_within_its_window(by_s: int) -> None:
    """Three times in a minute, with the clock set between the second and the third."""
    rule = Repeats(times=3, window_s=60.0)

    def flap(seconds: float) -> Finding:
        return finding("efa.flap", repeats=rule, clears_by=ClearsBy.REBOOT, time=at(seconds))

    before = fold(history(), [looked(flap(each), seconds=each) for each in (7200, 7210)])
    assert not before.faults
    after = shifted(before, timedelta(seconds=by_s), at(7220 + by_s))
    assert fold(after, [looked(flap(7220 + by_s), seconds=7220 + by_s)]).faults


def test_a_counter_that_stands_still_does_so_for_the_time_that_went_by() -> None:
    """Not for an hour because somebody set the clock; and what grows in ten minutes grew in those."""
    still = FindingCode(code="efa.still", severity=Severity.WARNING, remedy=Remedy.WATCH, meaning="It stands still")
    fast = FindingCode(code="efa.fast", severity=Severity.WARNING, remedy=Remedy.WATCH, meaning="It grows")
    limits = (
        Stall(code=still, reading="errors_total", for_s=600.0, source="here"),
        Rate(code=fast, reading="errors_total", window_s=600.0, max_increase=1e9, source="here"),
    )

    def look(before: History, seconds: float) -> tuple[History, bool]:
        after, _ = observe(before, answered(judged((), [counter(5.0)]), seconds=seconds), limits, at(seconds))
        return after, bool(after.faults)

    before = history()
    for seconds in (0.0, 30.0, 60.0):
        before, _ = look(before, seconds)
    assert look(before, 3690.0)[1], "an hour of standstill that nobody saw"
    after, found = look(shifted(before, HOUR, at(3690)), 3690.0)
    assert not found
    (window,) = after.rates.values()
    assert window.marks[0][0] == at(3600).timestamp()


def test_a_day_that_is_counted_goes_on() -> None:
    """Corrected errors by the day: four days forward are no days without a look."""
    key = ("gpu:GPU-0", "ecc")
    before = History(days={key: Days(epoch="e", opened=at(0), base=1.0, last=2.0)})
    assert shifted(before, 96 * HOUR, at(96 * 3600 + 50)).days[key].opened == at(96 * 3600)
