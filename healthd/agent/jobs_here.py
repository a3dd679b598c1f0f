"""The mode of a node by the job that is on it now: reads the jobs while a fault is open, and keeps them for seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from healthd.config.job_match import ModeByJob, mode_by_job
from healthd.config.match import Match
from healthd.core.errors import BackendError
from healthd.core.model import Mode, RunningJob

_AGE_S = 10.0
"""How old a reading may be: a fault is decided about within seconds, and slurmctld is not asked at each step."""


class JobsHere:
    """The matches by job of one node. ``read`` raises BackendError; ``monotonic_s`` counts the age of a reading."""

    def __init__(
        self, matches: Sequence[Match], read: Callable[[], Sequence[RunningJob]], monotonic_s: Callable[[], float]
    ) -> None:
        self._matches, self._read, self._monotonic_s = matches, read, monotonic_s
        self._jobs: Sequence[RunningJob] | str = ()
        self._read_at: float | None = None
        self._lock = threading.Lock()

    def mode(self, base: Mode, *, is_calling: bool) -> ModeByJob:
        """The mode now. ``is_calling``: a fault is open; else nothing is read, and no job has a part in it."""
        if not (self._matches and is_calling):
            return ModeByJob(mode=base)
        return mode_by_job(self._matches, base, self._now())

    def _now(self) -> Sequence[RunningJob] | str:
        with self._lock:
            now_s = self._monotonic_s()
            if self._read_at is None or now_s - self._read_at >= _AGE_S:
                try:
                    self._jobs = tuple(self._read())
                except BackendError as error:
                    self._jobs = f"the job on this node is not known ({error})"
                self._read_at = now_s
            return self._jobs
