"""All jobs of a cluster as slurmctld lists them, for the controller: those that ended badly, and those that run.

One squeue without a filter of nodes or users: slurmctld sends the same for it as for a filtered one. It prints no text
that a user chose. Texts: Slurm 22.05.8, 24.11.5 and 26.05.5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from msgspec import Struct

from healthd.core.errors import BackendUnknown
from healthd.remediation.orchestrators.slurm.job_comments import SlurmJob, read_job
from healthd.remediation.orchestrators.slurm.job_gpus import parse_job_gpus
from healthd.remediation.orchestrators.slurm.jobs import parse_count, parse_time
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator

_FIELDS = "JobID:|,State:|,RestartCnt:|,NumNodes:|,StartTime:|,EndTime:|,Reason:|"
_WAITS = ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT")
_STATES = ",".join(("FAILED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL", *_WAITS, "RUNNING"))
_ENDED = re.compile(r"job.requeued.in.held.state", re.IGNORECASE)
_NOT_STARTED = re.compile(r"launch.failed.requeued.held|launch.failure.limit.exceeded.requeued.held", re.IGNORECASE)
"""The second past MaxBatchRequeue launches that failed: 24.11.5, 26.05.5. Such a job has had no end."""
_NUMBER = re.compile(r"[0-9]{1,11}")
_LIMIT_BYTES = 256 * 1024 * 1024
"""Of the list. Each job that waits has its reason in it, which may name all nodes that are drained."""


class ListedJob(Struct, frozen=True, kw_only=True):
    """One job in the list. ``run``: how often it was started again before the run that ended, or runs now. ``ended``:
    None where it runs, or is held after its end, of which slurmctld keeps no time. ``not_started``: it is held because
    its launch failed. ``nodes``: how many it has."""

    id: str
    run: int
    runs: bool = False
    held: bool = False
    not_started: bool = False
    nodes: int = 0
    began: datetime | None = None
    ended: datetime | None = None


class SlurmJobList:
    """The jobs of one cluster. Each call raises BackendUnknown."""

    def __init__(self, slurm: SlurmOrchestrator) -> None:
        self._slurm = slurm

    def jobs(self) -> tuple[ListedJob, ...]:
        """Those that run, that ended badly and are not forgotten (MinJobAge, 300 s), and that slurmctld holds after
        their end."""
        result = self._slurm.client("squeue", "-h", "-a", "-t", _STATES, "-O", _FIELDS, limit_bytes=_LIMIT_BYTES)
        if result.code:
            raise BackendUnknown(f"squeue: exit status {result.code}: {result.stderr.strip()[-200:]}")
        return tuple(parse_listed_jobs(result.stdout))

    def job(self, job: str) -> SlurmJob:
        """One job with all that slurmctld has of it."""
        return read_job(self._slurm, job)

    def running(self, job: str) -> tuple[SlurmJob, dict[str, frozenset[int]]]:
        """A running job, and the indices of its GPUs by node."""
        found = read_job(self._slurm, job)
        return found, parse_job_gpus(self._slurm.scontrol("show", "job", "-d", found.acts_by))


def parse_listed_jobs(answer: str) -> Iterator[ListedJob]:
    """The jobs in the output of squeue with these fields; a waiting one only where it is held after its end. A job of
    many partitions is printed once for each. Raises BackendUnknown for anything else."""
    seen: set[str] = set()
    for line in answer.splitlines():
        if not line.strip():
            continue
        cells = line.strip().split("|", 6)
        if len(cells) != 7 or not _NUMBER.fullmatch(cells[0]):
            raise BackendUnknown(f"squeue's answer is no job: {line[:200]!r}")
        job, state, restarts, nodes, began, ended, reason = cells
        not_started = state in _WAITS and _NOT_STARTED.search(reason) is not None
        held = not_started or (state in _WAITS and _ENDED.search(reason) is not None)
        if job in seen or (state in _WAITS and not held):
            continue
        seen.add(job)
        run = parse_count(restarts)
        yield ListedJob(
            id=job,
            run=max(run - 1, 0) if held else run,
            runs=state == "RUNNING",
            held=held,
            not_started=not_started,
            nodes=parse_count(nodes),
            began=None if held else parse_time(began),
            ended=parse_time(ended) if not held and state != "RUNNING" else None,
        )
