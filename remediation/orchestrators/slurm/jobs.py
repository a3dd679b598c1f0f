"""The jobs of Slurm: read, taken by one node, signalled, requeued.

A job is taken by a reservation without nodes, whose unique name is slurmctld's own test-and-set: ``healthd-job:12:0``
is the first run of job 12. It reserves nothing, and slurmctld ends it by itself.

squeue prints no text that a user chose, so that no job's name can pass for another field: scontrol prints the name as
it is, line breaks included. A task of an array has the id ``12_3`` here. Its number may be that of the whole array,
which is what every client takes it for: a requeue of it requeues all tasks. A part of a heterogeneous job is ``12+1``.

Texts and behaviour: Slurm 22.05.8, 24.11.5 and 26.05.5; tests/live/slurm/test_slurm_on_job.py repeats each.
"""

from __future__ import annotations

import math
import re
import zlib
from datetime import UTC, datetime

from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.core.hostlist import unfolded
from healthd.remediation.orchestrators.slurm.job_gpus import parse_job_gpus
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator, update_error
from healthd.remediation.orchestrators.slurm.slots import DUPLICATE, HEAD, freeze_creation, records
from healthd.remediation.ports import NodeJob

_FIELDS = (
    "JobArrayID:|,JobID:|,State:|,UserName:|,NodeList:|,RestartCnt:|,BatchFlag:|,Requeue:|,HetJobID:|,"
    "StartTime:|,EndTime:|,PriorityLong:|,PreemptTime:|,Reason:|"
)
_WAITS = frozenset({"PENDING", "REQUEUED", "EXPEDITING", "REQUEUE_HOLD", "SPECIAL_EXIT"})
"""A job that waits with priority 0 is held: by an administrator (JobHeldAdmin), its owner (JobHeldUser), or slurmctld
("launch failed requeued held"). One that runs with it, after a ``scontrol hold``, is held from its requeue on. Past
MaxBatchRequeue launches that failed its state is REQUEUE_HOLD ("launch failure limit exceeded requeued held"), and
stays so after the release, with a priority, until it runs (24.11.5, 26.05.5)."""
_ID = re.compile(r"[0-9]{1,11}(?:[_+][0-9]{1,11})?")
_TASKS_THAT_WAIT = re.compile(r"[0-9]{1,11}_\[.*\]")
_NUMBER = re.compile(r"[0-9]{1,11}")
_NONE = ("", "(null)", "N/A", "n/a")
_UNKNOWN_JOB = "Invalid job id specified"
_TAKERS = 0xFFFFFF
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
        return _squeue(self._orchestrator, "-w", self._orchestrator.node)

    def job(self, job: str) -> NodeJob | None:
        """One job, by a request of its own."""
        return find_job(self._orchestrator, job)

    def gpus(self, job: str) -> frozenset[int]:
        """By ``scontrol show job -d``, which has none of a job that has ended (22.05.8)."""
        places = parse_job_gpus(self._orchestrator.scontrol("show", "job", "-d", job))
        return places.get(self._orchestrator.node, frozenset())

    def take_job(self, job: str, run: int, *, by: str, for_s: int) -> None:
        """Create the reservation. Raises SlotTaken, BackendRefused, BackendUnknown."""
        name = taken_name(job, run)
        creation = freeze_creation(name, math.ceil(for_s / 60), units=_taker(self._orchestrator.node, by))
        result = self._orchestrator.client("scontrol", *creation)
        if result.code and DUPLICATE in result.stderr + result.stdout:
            raise SlotTaken(f"reservation {name} is there: {DUPLICATE}")
        if result.code:
            raise update_error(f"creation of reservation {name}", result.stderr + result.stdout)

    def has_taken(self, job: str, run: int, *, by: str) -> bool:
        """By the number that the reservation reserves."""
        head, own = f"{HEAD}{taken_name(job, run)} ", f" BurstBuffer={_taker(self._orchestrator.node, by)} "
        found = (record for record in records(self._orchestrator.reservations()) if record.startswith(head))
        return any(own in record for record in found)

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


def find_job(slurm: SlurmOrchestrator, job: str) -> NodeJob | None:
    """One job, by its id or its number; None where slurmctld does not know it. A client that is asked for the number of
    a task prints the whole array, where that has the same number. Raises BackendUnknown."""
    found = _squeue(slurm, "-j", job)
    return next((each for each in found if job == each.id), None) or next(
        (each for each in found if job == each.number), None
    )


def _squeue(slurm: SlurmOrchestrator, *which: str) -> tuple[NodeJob, ...]:
    result = slurm.client("squeue", "-h", "-a", "-t", "all", *which, "-O", _FIELDS)
    if result.code and _UNKNOWN_JOB in result.stderr:
        return ()
    if result.code:
        raise BackendUnknown(f"squeue {' '.join(which)}: exit status {result.code}: {result.stderr.strip()[-200:]}")
    return parse_node_jobs(result.stdout, slurm.node)


def taken_name(job: str, run: int) -> str:
    """The name of the reservation by which one run of a job is taken. It is no slot's: those have no colon."""
    return f"healthd-job:{job}:{run}"


def _taker(node: str, remediation_id: str) -> int:
    """The number by which a reservation tells who made it, as Comment= came with 23.02: so many units of a burst
    buffer, which nothing else of Slurm heeds where there is none. At least 2: 1 is any other reservation of ours."""
    return zlib.crc32(f"{node} {remediation_id}".encode()) % _TAKERS + 2


def parse_node_jobs(answer: str, node: str) -> tuple[NodeJob, ...]:
    """The jobs in the output of ``squeue -h -O`` with these fields, as ``node`` sees them. A job of many partitions is
    printed once for each. Tasks of an array that have not begun are one line, and no job yet. Raises BackendUnknown for
    anything else."""
    jobs = (_job(line, node) for line in answer.splitlines() if line.strip())
    found = {job.id: job for job in jobs if not _TASKS_THAT_WAIT.fullmatch(job.id)}
    return tuple(found.values())


def _job(line: str, node: str) -> NodeJob:
    cells = line.strip().split("|", 13)
    is_job = len(cells) == 14 and _NUMBER.fullmatch(cells[1])
    if not is_job or not (_ID.fullmatch(cells[0]) or _TASKS_THAT_WAIT.fullmatch(cells[0])):
        raise BackendUnknown(f"squeue's answer is no job: {line[:200]!r}")
    job, number, state, user, nodes, restarts, batch, requeue, part, began, ended = (
        "" if cell in _NONE else cell for cell in cells[:11]
    )
    priority, preempted, reason, state = cells[11], cells[12], cells[13].removesuffix("|"), state.upper()
    waits = state in _WAITS
    held = waits and priority == "0"
    return NodeJob(
        id=job,
        number=number,
        state=state,
        user=user,
        nodes=nodes,
        restarts=parse_count(restarts),
        is_batch=batch == "1",
        may_requeue=requeue == "1",
        is_part=part not in ("", "0"),
        is_here=node in unfolded(nodes),
        began=parse_time(began),
        ended=parse_time(ended),
        reason=reason if waits and reason != "None" else "",
        held=held,
        preempted=preempted not in _NONE,
    )


def parse_count(cell: str) -> int:
    """A number of squeue; 0 for what is none."""
    return int(cell) if _NUMBER.fullmatch(cell) else 0


def parse_time(cell: str) -> datetime | None:
    """A time of squeue, in seconds since the epoch; None for one that is not known."""
    seconds = parse_count(cell)
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _job_error(what: str, output: str) -> BackendRefused | BackendUnknown:
    for text, advice in _LEFT.items():
        if text in output:
            return BackendRefused(f"{what}: {text}; {advice}")
    return update_error(what, output)
