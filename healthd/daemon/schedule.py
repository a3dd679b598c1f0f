"""When each check is to look: once at the beginning, then at its interval, and at once after the clock was set.

APScheduler keeps the time of the next run by the wall clock. It must not run a check itself: it says that it is time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

_JITTER = 0.1


class Every(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """So many seconds after it was last due, and up to a tenth more.

    The interval trigger of APScheduler goes from one missed run to the next: with a clock that is set from 1970 to
    today, millions of them for each check, in a list.
    """

    __slots__ = ("_interval_s",)

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """The time of the next run."""
        jitter_s = random.uniform(0, self._interval_s * _JITTER)  # noqa: S311  it keeps checks apart, and no secret
        return now + timedelta(seconds=self._interval_s + jitter_s)


class CheckSchedule:
    """The rounds of one daemon's interval checks. ``look`` is told the name of each check that is due, in a thread of
    this, and must not take long."""

    def __init__(self, intervals_s: Mapping[str, float], look: Callable[[str], None]) -> None:
        self._intervals_s, self._look = intervals_s, look
        self._scheduler = BackgroundScheduler(
            executors={"default": DebugExecutor()},  # in its own thread: a job only hands its check to our pool
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )

    def begin(self) -> None:
        """Every check is due now.

        Back to back they would cost a fifth less, and stand in a queue before NVML: a driver that answers slowly would
        then make good nodes unknown.
        """
        for name, interval_s in self._intervals_s.items():
            trigger, first = Every(interval_s), datetime.now(UTC) + timedelta(milliseconds=1)
            self._scheduler.add_job(self._look, trigger, args=(name,), id=f"check {name}", next_run_time=first)
        self._scheduler.start()

    def anew(self) -> None:
        """The same once more: the clock was set, and by what it shows now a check may be due in an hour."""
        for job in self._scheduler.get_jobs():
            job.modify(next_run_time=datetime.now(UTC))

    def end(self) -> None:
        """No check is due any more. Waits for nothing."""
        self._scheduler.shutdown(wait=False)
