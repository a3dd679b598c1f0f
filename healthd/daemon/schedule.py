"""The one timer of the daemon: each duty that comes at an interval is a named job of APScheduler.

The main thread turns it. Short work runs there: a check is handed to its pool, the watchdog is kept. Every other duty
has a thread of its own, so that one that hangs delays neither another duty nor the end.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue

from apscheduler import events
from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.executors.debug import DebugExecutor
from apscheduler.job import Job
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.triggers.base import BaseTrigger

from healthd.agent.duty_runs import DutyRuns

_GRID_S = 15.0
_GRID = timedelta(seconds=_GRID_S)
_HERE, _APART = "default", "own thread"
_HEARD = events.EVENT_JOB_EXECUTED | events.EVENT_JOB_ERROR | events.EVENT_JOB_MAX_INSTANCES


class JitteredInterval(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """So many seconds after it was last due, and up to ``jitter`` of them more.

    Intervals of some length end on a grid of this process, so that one wake-up serves several jobs.

    The interval trigger of APScheduler goes from one missed run to the next: with a clock that is set from 1970 to
    today, millions of them for each job, in a list.
    """

    __slots__ = ("_first", "_interval_s", "_jitter")

    def __init__(self, interval_s: float, jitter: float = 0.0, *, first: datetime) -> None:
        self._interval_s, self._jitter, self._first = interval_s, jitter, first

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """The time of the next run."""
        later_s = random.uniform(0, self._interval_s * self._jitter)  # noqa: S311  it keeps checks apart, and no secret
        due = now + timedelta(seconds=self._interval_s + later_s)
        if self._interval_s < 3 * _GRID_S and self._interval_s % _GRID_S:
            return due
        return self._first + round((due - self._first) / _GRID) * _GRID


class _OwnThreads(BaseExecutor):  # type: ignore[misc]  # as above
    """Gives each job a thread, which has its name, waits for its runs, and does not keep the process from its end."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: dict[str, float] = {}
        """By job: when its run was handed over, in monotonic seconds."""
        self._runs: dict[str, SimpleQueue[tuple[Job, list[datetime]] | None]] = {}
        """By job: its runs, and None where no other comes."""

    def _do_submit_job(self, job: Job, run_times: list[datetime]) -> None:
        if job.id not in self._runs:
            runs: SimpleQueue[tuple[Job, list[datetime]] | None] = SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(runs,), name=job.id, daemon=True)
            thread.start()  # where no thread can be had, APScheduler logs it, and the job comes again
            self._runs[job.id] = runs
        self.under_way[job.id] = time.monotonic()
        self._runs[job.id].put((job, run_times))

    def shutdown(self, wait: bool = True) -> None:
        """Each thread ends after the run that it is at; none is waited for."""
        for runs in self._runs.values():
            runs.put(None)

    def _serve(self, runs: SimpleQueue[tuple[Job, list[datetime]] | None]) -> None:
        while (run := runs.get()) is not None:
            job, run_times = run
            ended = run_job(job, job._jobstore_alias, run_times, self._logger.name)
            del self.under_way[job.id]
            self._run_job_success(job.id, ended)  # the events tell of a run that failed


class _Scheduler(BaseScheduler):  # type: ignore[misc]  # as above
    """APScheduler without a thread: the thread that owns it calls :meth:`run_due`."""

    def run_due(self) -> float:
        """Start what is due. Returns the seconds until something is."""
        wait_s: float = self._process_jobs()
        return wait_s

    def wakeup(self) -> None:
        """Needed where another thread changes the jobs; here none does."""

    def shutdown(self, wait: bool = True) -> None:
        """Start nothing more."""
        super().shutdown(wait)


class Schedule:
    """The jobs of one daemon. All methods but ``silent_s`` and ``under_way_s`` are for the thread that turns it.

    ``failed`` hears the name of a job that raised, and the exception, in the thread of the job. ``runs``: of each duty,
    for the metrics; checks count their runs themselves.
    """

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed, self._apart = failed, _OwnThreads()
        self.runs: dict[str, DutyRuns] = {}
        self._turned_s = time.monotonic()
        # Of daemons that start in one second each has its own.
        self._grid = datetime.now(UTC) - timedelta(seconds=random.uniform(0, _GRID_S))  # noqa: S311  as above
        self._scheduler = _Scheduler(
            executors={_HERE: DebugExecutor(), _APART: self._apart},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )
        self._scheduler.add_listener(self._heard, _HEARD)
        self._scheduler.start()

    def check(self, name: str, interval_s: float, start: Callable[[str], None]) -> None:
        """``start`` is called with the name, at once and then at this interval, up to a tenth later. It must not
        wait."""
        first = datetime.now(UTC)
        self._scheduler.add_job(
            start,
            JitteredInterval(interval_s, jitter=0.1, first=self._grid),
            args=(name,),
            id=f"check {name}",
            next_run_time=first,
        )

    def duty(
        self, name: str, every_s: float, work: Callable[[], None], *, first_s: float | None = None, waits: bool = True
    ) -> None:
        """``work`` is done after ``first_s``, else ``every_s`` seconds, and then every ``every_s``. A run that is due
        while the one before is under way is missed. Not ``waits``: it takes no time, and has no thread."""
        self.runs[name] = DutyRuns()
        first = datetime.now(UTC) + timedelta(seconds=every_s if first_s is None else first_s)
        executor = _APART if waits else _HERE
        self._scheduler.add_job(
            _timed,
            JitteredInterval(every_s, first=self._grid),
            args=(work,),
            id=name,
            next_run_time=first,
            executor=executor,
        )

    def run_due(self) -> float:
        """Start what is due. Returns the seconds until something is, by the clock as it is now."""
        self._turned_s = time.monotonic()
        return self._scheduler.run_due()

    def again(self) -> None:
        """Everything is due now: the clock was set, and by what it shows a job may be due in an hour."""
        for job in self._scheduler.get_jobs():
            job.modify(next_run_time=datetime.now(UTC))

    def silent_s(self) -> float:
        """For how long nothing could have been started, in seconds."""
        return time.monotonic() - self._turned_s

    def under_way_s(self, name: str) -> float:
        """For how long a duty has been under way, in seconds; 0 where it is not."""
        began_s = self._apart.under_way.get(name)
        return 0.0 if began_s is None else time.monotonic() - began_s

    def end(self) -> None:
        """Start nothing more, and wait for nothing."""
        self._scheduler.shutdown(wait=False)

    def left(self, within_s: float) -> tuple[str, ...]:
        """Wait for the runs under way, at most so many seconds. Returns the names of duties that did not end."""
        until_s = time.monotonic() + within_s
        while self._apart.under_way and time.monotonic() < until_s:
            time.sleep(0.02)
        return tuple(self._apart.under_way)

    def _heard(self, event: events.JobEvent) -> None:
        """Count the end of a run, of which APScheduler tells its listener."""
        runs = self.runs.get(event.job_id, DutyRuns())
        match event.code:
            case events.EVENT_JOB_EXECUTED if event.job_id in self.runs:
                runs.succeeded(event.retval)
            case events.EVENT_JOB_MAX_INSTANCES:
                runs.missed += 1
            case events.EVENT_JOB_ERROR:
                runs.failed += 1
                self._failed(event.job_id, event.exception)


def _timed(work: Callable[[], None]) -> float:
    """Do it. Returns the seconds that it took, for the listener."""
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s
