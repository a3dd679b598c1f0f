"""When jobs are due, and what becomes of their runs, by the real scheduler. That the clock is set while it runs:
tests/daemon/test_clock_set.py."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from healthd.daemon.schedule import JitteredInterval, Schedule
from tests.support.limits import limit_s

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Failures(list[tuple[str, BaseException]]):
    """Hears of jobs that raised."""

    def __call__(self, job: str, error: BaseException) -> None:
        self.append((job, error))


def turned_until(schedule: Schedule, reached: Callable[[], bool]) -> bool:
    """Turn the schedule as the daemon's main thread does; whether that was reached within ten seconds."""
    until = time.monotonic() + limit_s(10.0)
    while not reached() and time.monotonic() < until:
        time.sleep(min(0.02, schedule.run_due()))
    return reached()


def test_every_check_is_due_at_once_and_again_when_the_clock_was_set() -> None:
    """Long before its interval is over, each once."""
    started, schedule = Counter[str](), Schedule(Failures())
    for name in ("slow", "slower"):
        schedule.check(name, 3600.0, lambda each: started.update([each]))
    assert 3590.0 < schedule.run_due() < 3970.0
    assert started == Counter(slow=1, slower=1)
    schedule.again()
    schedule.run_due()
    assert started == Counter(slow=2, slower=2)
    schedule.end()


def test_no_thread_is_left_after_the_end() -> None:
    """The thread of each duty ends with the schedule."""
    before, done, schedule = threading.active_count(), threading.Event(), Schedule(Failures())
    schedule.duty("one", 3600.0, done.set, first_s=0.0)
    assert turned_until(schedule, done.is_set)
    assert threading.active_count() == before + 1
    schedule.end()
    until = time.monotonic() + limit_s(10.0)
    while threading.active_count() > before:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_check_is_due_again_after_its_interval() -> None:
    """And goes on being due."""
    started, schedule = Counter[str](), Schedule(Failures())
    schedule.check("quick", 0.05, lambda each: started.update([each]))
    assert turned_until(schedule, lambda: started["quick"] >= 4)
    schedule.end()


@pytest.mark.parametrize("missed", [timedelta(), timedelta(hours=1), timedelta(days=20_000)])
def test_what_was_missed_is_not_caught_up_with(missed: timedelta) -> None:
    """However long ago the last run was by the clock: the next is an interval from now, and up to a tenth later."""
    for _ in range(50):
        due = JitteredInterval(12.0, jitter=0.1, first=NOW).get_next_fire_time(NOW - missed, NOW)
        assert timedelta(seconds=12) <= due - NOW <= timedelta(seconds=13.2)
    assert JitteredInterval(60.0, first=NOW).get_next_fire_time(NOW - missed, NOW) == NOW + timedelta(seconds=60)


@pytest.mark.parametrize("late_s", [0.0, 0.3, 2.4])
def test_long_intervals_end_on_one_grid(late_s: float) -> None:
    """A run of some lateness is followed by one on the grid again, as near to its interval as that has a point."""
    now = NOW + timedelta(days=3, seconds=late_s)
    for interval_s, steps in ((15.0, {1}), (30.0, {2}), (60.0, {4}), (3600.0, set(range(240, 265)))):
        for _ in range(50):
            due = JitteredInterval(interval_s, jitter=0.1, first=NOW).get_next_fire_time(now, now)
            step, rest = divmod(due - (NOW + timedelta(days=3)), timedelta(seconds=15))
            assert rest == timedelta()
            assert step in steps | ({max(steps) + 1} if late_s else set())


def test_two_daemons_that_start_in_one_second_have_each_its_own_grid() -> None:
    """Else a thousand nodes that a roll-out restarts would ask their servers in the same moments for ever."""
    waits = list[float]()
    for _ in range(20):
        schedule = Schedule(Failures())
        schedule.check("one", 60.0, lambda _: None)
        schedule.run_due()
        waits.append(schedule.run_due())
        schedule.end()
    assert max(waits) - min(waits) > 1.0
    assert all(52.0 < each < 74.0 for each in waits)


def test_a_duty_that_hangs_delays_no_other_and_its_missed_runs_are_counted() -> None:
    """Each run has a thread of its own: the other duty and the watchdog go on, and the end waits for neither."""
    schedule, hung, release = Schedule(Failures()), threading.Event(), threading.Event()

    def hang() -> None:
        hung.set()
        release.wait(30.0)

    schedule.duty("hangs", 0.02, hang)
    schedule.duty("goes on", 0.02, lambda: None)
    schedule.duty("watchdog", 0.02, lambda: None, waits=False)
    runs = schedule.runs
    assert turned_until(schedule, lambda: runs["goes on"].done >= 5 and runs["watchdog"].done >= 5)
    assert hung.is_set()
    assert runs["hangs"].missed >= 2
    assert (runs["hangs"].done, runs["goes on"].failed, runs["watchdog"].missed) == (0, 0, 0)
    assert 0.0 < schedule.under_way_s("hangs") < 30.0
    assert schedule.under_way_s("watchdog") == 0.0
    schedule.end()
    assert schedule.left(0.1) == ("hangs",)
    (thread,) = [each for each in threading.enumerate() if each.name == "hangs"]
    assert thread.daemon, "the process would not end before it"
    release.set()
    assert schedule.left(10.0) == ()
    until = time.monotonic() + limit_s(10.0)
    while not runs["hangs"].done and time.monotonic() < until:  # it is counted a moment after its end
        time.sleep(0.01)
    assert runs["hangs"].done == 1
    assert runs["hangs"].took_s > 0.0


def test_a_duty_that_raises_is_counted_and_told() -> None:
    """With the exception itself, for the log; it comes again, as the daemon decides what to do."""
    failures, wrong = Failures(), ZeroDivisionError("a defect")
    schedule = Schedule(failures)

    def fail() -> None:
        raise wrong

    schedule.duty("fails", 0.02, fail)
    assert turned_until(schedule, lambda: len(failures) >= 2)
    schedule.end()
    assert failures[0] == ("fails", wrong)
    assert schedule.runs["fails"].failed >= 2
    assert schedule.runs["fails"].done == 0


def test_silence_is_the_time_since_it_was_turned() -> None:
    """The liveness probe asks for it."""
    schedule = Schedule(Failures())
    time.sleep(0.05)
    assert schedule.silent_s() >= 0.05
    schedule.duty("far", 60.0, lambda: None)
    before_s = time.monotonic()
    schedule.run_due()
    assert schedule.silent_s() <= time.monotonic() - before_s
    schedule.end()
