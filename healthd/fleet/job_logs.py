"""NCCL's own words in the logs of a job, where the site names their path: ``[orchestrator.slurm] nccl_log``."""

from __future__ import annotations

from healthd.core.errors import SourceBusy, SourceError
from healthd.job.nccl_words import NcclWords
from healthd.probe.supervise import Probe

_DEADLINE_S, _IDLE_S = 20.0, 60.0


class JobLogs:
    """Reads the logs of jobs in a worker: their owners write them, on a file system that may hang.

    ``pattern``: a glob, with ``%j`` for the job; "": the site names no path. ``deadline_s``: for all logs of a job.
    """

    def __init__(self, pattern: str, *, deadline_s: float = _DEADLINE_S) -> None:
        self._pattern, self._deadline_s = pattern, deadline_s
        self._probe = Probe("job logs", module="healthd.probe.log_ops", idle_s=_IDLE_S)

    def __call__(self, job: str) -> NcclWords:
        """The words in this job's logs. ``unread`` says where they did not answer in time."""
        if not self._pattern:
            return NcclWords(timeouts={})
        try:
            found = self._probe.request("words", {"pattern": self._pattern, "job": job}, deadline_s=self._deadline_s)
        except SourceBusy:
            return NcclWords(timeouts={}, unread="the logs of the job were not read: others do not answer")
        except SourceError as error:
            return NcclWords(timeouts={}, unread=f"the logs of the job were not read: {error}")
        few = f"{found['read']} of {found['of']} logs were read" if found["read"] < found["of"] else ""
        return NcclWords(
            timeouts={rank: (operation, number) for rank, operation, number in found["timeouts"]},
            dumps=found["dumps"],
            dump=found["dump"],
            unread=few,
        )

    def close(self) -> None:
        """End the worker."""
        self._probe.end()
