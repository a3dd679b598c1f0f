"""When checks are due, by the real scheduler. That the clock is set while it runs: tests/scenario/test_clock_set.py."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from healthd.daemon.schedule import CheckSchedule, Every

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Looks:
    """Counts who was due, and waits for it."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self._changed = threading.Condition()

    def __call__(self, name: str) -> None:
        with self._changed:
            self.count[name] += 1
            self._changed.notify_all()

    def reach(self, **expected: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.count == Counter(expected), timeout=10.0)


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def rounds(looks: Looks) -> Iterator[CheckSchedule]:
    made = CheckSchedule({"slow": 3600.0, "slower": 7200.0}, looks)
    made.begin()
    yield made
    made.end()


def test_every_check_is_due_at_once_and_again_when_the_clock_was_set(rounds: CheckSchedule, looks: Looks) -> None:
    """Long before its interval is over, each once."""
    assert looks.reach(slow=1, slower=1)
    rounds.anew()
    assert looks.reach(slow=2, slower=2)


def test_a_check_is_due_again_after_its_interval(looks: Looks) -> None:
    """And goes on being due."""
    rounds = CheckSchedule({"quick": 0.05}, looks)
    rounds.begin()
    assert looks.reach(quick=4)
    rounds.end()


@pytest.mark.parametrize("missed", [timedelta(), timedelta(hours=1), timedelta(days=20_000)])
def test_what_was_missed_is_not_caught_up_with(missed: timedelta) -> None:
    """However long ago the last run was by the clock: the next is an interval from now, and up to a tenth later."""
    for _ in range(50):
        due = Every(60.0).get_next_fire_time(NOW - missed, NOW)
        assert timedelta(seconds=60) <= due - NOW <= timedelta(seconds=66)
