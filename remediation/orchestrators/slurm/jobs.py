"""The jobs of one node of Slurm: read, taken by one node, signalled, requeued.

A job is taken by a reservation without nodes, whose unique name is slurmctld's own test-and-set: ``healthd-job:12:0``
is the first run of job 12. It reserves nothing, and slurmctld ends it by itself. squeue prints no text that a user
chose, so that no job's name can pass for another field.

Texts and behaviour: Slurm 22.05.8, 24.11.5 and 26.05.5; tests/live/slurm/test_slurm_on_job.py repeats each.
"""

from __future__ import annotations

import math
import re

from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.core.hostlist import unfolded
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator, update_error
from healthd.remediation.orchestrators.slurm.slots import DUPLICATE, HEAD, freeze_creation, records
from healthd.remediation.ports import NodeJob

_FIELDS = "JobID:|,State:|,UserName:|,NodeList:|,RestartCnt:|,BatchFlag:|,Requeue:|,HetJobID:|,StartTime:|,EndTime:|"
_NUMBER = re.compile(r"[0-9]{1,11}")
_NONE = ("", "(null)", "N/A", "n/a")
_UNKNOWN_JOB = "Invalid job id specified"
_BEGIN_TIME = re.compile(r" StartTime=(\d{1,11}) ")
_LEFT = {
    _UNKNOWN_JOB: "slurmctld does not know the job any more",
    "Requested operation is presently disabled": "the job forbids requeue, or is no batch job",
    "Only batch jobs are accepted or processed": "the job is no batch job",
    "Job is pending execution": "it waits again already",
    "Job/step already completing or completed": "it has ended",
}
"""scontrol's texts when a requeue was refused before anything was changed."""


class SlurmJobs:
    """See ``JobControl``."""

    def __init__(self, orchestrator: SlurmOrchestrator) -> None:
        self._orchestrator = orchestrator

    def jobs(self) -> tuple[NodeJob, ...]:
        """All jobs whose nodes have this one among them; slurmctld forgets an ended one after MinJobAge (300 s)."""
        return self._squeue("-w", self._orchestrator.node)

    def job(self, job: str) -> NodeJob | None:
        """One job, by a request of its own."""
        return next(iter(self._squeue("-j", job)), None)

    def take_job(self, job: str, run: int, *, for_s: int) -> None:
        """Create the reservation. Raises SlotTaken, BackendRefused, BackendUnknown."""
        name = taken_name(job, run)
        result = self._orchestrator.client("scontrol", *freeze_creation(name, math.ceil(for_s / 60)))
        if result.code and DUPLICATE in result.stderr + result.stdout:
            raise SlotTaken(f"reservation {name} is there: {DUPLICATE}")
        if result.code:
            raise update_error(f"creation of reservation {name}", result.stderr + result.stdout)

    def taken_at(self, job: str, run: int) -> int | None:
        """By the start of the reservation."""
        head = f"{HEAD}{taken_name(job, run)} "
        found = (record for record in records(self._orchestrator.reservations()) if record.startswith(head))
        began = next((_BEGIN_TIME.search(record) for record in found), None)
        return int(began[1]) if began is not None else None

    def signal_job(self, job: str, signal: str) -> None:
        """As ``sbatch --signal``: the steps alone, or with ``B:`` the batch script alone."""
        batch, _, name = signal.rpartition(":")
        result = self._orchestrator.client("scancel", *(("--batch",) if batch else ()), f"--signal={name}", job)
        if result.code:
            raise _job_error(f"signal {signal} to job {job}", result.stderr + result.stdout)

    def requeue_job(self, job: str) -> None:
        """End the job on all of its nodes, and let it wait for its next run."""
        result = self._orchestrator.client("scontrol", "requeue", job)
        if result.code:
            raise _job_error(f"requeue of job {job}", result.stderr + result.stdout)

    def start_job(self, job: str) -> None:
        """End the delay of about two minutes that slurmctld puts before a requeued job."""
        self._orchestrator.scontrol("update", f"jobid={job}", "starttime=now")

    def _squeue(self, *which: str) -> tuple[NodeJob, ...]:
        result = self._orchestrator.client("squeue", "-h", "-a", "-t", "all", *which, "-O", _FIELDS)
        if result.code and _UNKNOWN_JOB in result.stderr:
            return ()
        if result.code:
            raise BackendUnknown(f"squeue {' '.join(which)}: exit status {result.code}: {result.stderr.strip()[-200:]}")
        return parse_node_jobs(result.stdout, self._orchestrator.node)


def taken_name(job: str, run: int) -> str:
    """The name of the reservation by which one run of a job is taken. It is no slot's: those have no colon."""
    return f"healthd-job:{job}:{run}"


def parse_node_jobs(answer: str, node: str) -> tuple[NodeJob, ...]:
    """The jobs in the output of ``squeue -h -O`` with these fields, as ``node`` sees them. A job of many partitions is
    printed once for each. Raises BackendUnknown for anything else."""
    found = {job.id: job for line in answer.splitlines() if line.strip() for job in [_job(line, node)]}
    return tuple(found.values())


def _job(line: str, node: str) -> NodeJob:
    cells = line.strip().split("|")
    if len(cells) != 11 or not _NUMBER.fullmatch(cells[0]):
        raise BackendUnknown(f"squeue's answer is no job: {line[:200]!r}")
    job, state, user, nodes, restarts, batch, requeue, part, began, ended = (
        "" if cell in _NONE else cell for cell in cells[:10]
    )
    return NodeJob(
        id=job,
        state=state.upper(),
        user=user,
        nodes=nodes,
        restarts=int(restarts) if _NUMBER.fullmatch(restarts) else 0,
        is_batch=batch == "1",
        may_requeue=requeue == "1",
        is_part=part not in ("", "0"),
        is_here=node in unfolded(nodes),
        began=_time(began),
        ended=_time(ended),
    )


def _time(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) and int(text) else None


def _job_error(what: str, output: str) -> BackendRefused | BackendUnknown:
    for text, advice in _LEFT.items():
        if text in output:
            return BackendRefused(f"{what}: {text}; {advice}")
    return update_error(what, output)
