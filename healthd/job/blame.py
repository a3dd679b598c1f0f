"""The blame for the end of a job on one node: node, job or unknown, from the faults that it met. Pure.

*Node*: a hardware fault opened or grew while the job ran. *Job*: it ended with an error of its own (a job-level XID,
its own memory limit), or with none on this node. *Unknown*: a check could not tell, or what was found may have ended
the job and does not say by whose fault. Which code speaks for whom is a table, see ``speakers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from healthd.core.model import Severity
from healthd.job.job import Job, Stop
from healthd.job.speakers import BlameTable, SpeaksFor
from healthd.judge.history import Fault

_SLACK = timedelta(seconds=2)
"""Of two clocks with whole seconds, and of a kernel record whose time counts from the boot."""
JOB_EVENT = "job"
"""The kind of the audit trail's lines about jobs."""
_FEWER = "gpu.count.off_bus"
"""The finding that counts GPUs, and does not say which one is gone."""
CASCADE = timedelta(minutes=10)
"""A job's own error that precedes a fault of the node by no more than this may have ended the job first."""


class Blame(StrEnum):
    """Whose fault the end of a job was, as far as one node can tell. NONE: it completed, or Slurm ended it."""

    NODE = "node"
    JOB = "job"
    UNKNOWN = "unknown"
    NONE = "none"


class BlameEvidence(Struct, frozen=True, kw_only=True):
    """One finding of the time of the job. ``before``: it was open when the job began, and did not grow."""

    speaks_for: SpeaksFor
    code: str
    component: str
    at: datetime
    message: str
    is_critical: bool = False
    before: bool = False


class JobVerdict(Struct, frozen=True, kw_only=True):
    """The blame, why in a sentence, and its evidence: the deciding first."""

    blame: Blame
    why: str
    evidence: tuple[BlameEvidence, ...] = ()

    @property
    def root(self) -> BlameEvidence | None:
        """The finding that decides; None where none does."""
        return self.evidence[0] if self.evidence else None

    @property
    def is_critical(self) -> bool:
        """Whether the node is to blame by a critical fault."""
        return self.blame is Blame.NODE and any(
            each.is_critical and each.speaks_for is SpeaksFor.NODE for each in self.evidence
        )


def blame(job: Job, faults: Iterable[Fault], classes: BlameTable, blind: Sequence[str] = ()) -> JobVerdict:
    """The blame for the end of this run of the job.

    ``faults``: all that were open on this node at any time of it. ``blind``: why a check could not tell, a
    sentence for each.
    """
    if job.completed:
        return JobVerdict(blame=Blame.NONE, why="the job completed")
    if job.stop is Stop.PREEMPTED:
        return JobVerdict(blame=Blame.NONE, why="Slurm preempted the job")
    seen = sorted(filter(None, (_evidence(job, fault, classes) for fault in faults)), key=lambda each: each.at)
    of = {who: tuple(each for each in seen if each.speaks_for is who) for who in SpeaksFor}
    at_fault, own, unclear = of[SpeaksFor.NODE], of[SpeaksFor.JOB], of[SpeaksFor.UNCLEAR]
    if at_fault:
        if first := _own_error_before(own, at_fault[0]):
            why = f"{first.code} of the job came before {at_fault[0].code} on this node"
            return JobVerdict(blame=Blame.UNKNOWN, why=why, evidence=(first, *at_fault))
        return JobVerdict(blame=Blame.NODE, why=at_fault[0].message, evidence=at_fault + unclear + own)
    return _without_node_fault(job, own, unclear, blind)


def _without_node_fault(
    job: Job, own: tuple[BlameEvidence, ...], unclear: tuple[BlameEvidence, ...], blind: Sequence[str]
) -> JobVerdict:
    if job.stop is Stop.REQUEUED:
        return JobVerdict(blame=Blame.NONE, why="the job was requeued; no node fault seen")
    if blind:
        return JobVerdict(blame=Blame.UNKNOWN, why=f"not everything is known: {blind[0]}", evidence=unclear + own)
    if own and (not unclear or own[0].at < unclear[0].at):
        return JobVerdict(blame=Blame.JOB, why=own[0].message, evidence=own + unclear)
    if unclear:
        why = f"what ended the job is not clear: {unclear[0].message}"
        return JobVerdict(blame=Blame.UNKNOWN, why=why, evidence=unclear + own)
    if job.stop is Stop.ENDED:
        return JobVerdict(blame=Blame.NONE, why="Slurm ended the job; no node fault seen")
    if job.exit_code is None:
        return JobVerdict(blame=Blame.UNKNOWN, why="how the job ended is not known; no node fault seen")
    return JobVerdict(blame=Blame.JOB, why="no node fault seen")


def _own_error_before(own: Sequence[BlameEvidence], fault: BlameEvidence) -> BlameEvidence | None:
    """An error of the job shortly before the fault. On the same part it is the first sign of the fault itself."""
    return next(
        (each for each in own if each.component != fault.component and timedelta() < fault.at - each.at <= CASCADE),
        None,
    )


def _evidence(job: Job, fault: Fault, classes: BlameTable) -> BlameEvidence | None:
    """The fault as evidence about this job; None where it says nothing about it."""
    speaks_for = classes.speaks_for(fault.code, fault.severity)
    at, before = _moment(job, fault)
    if speaks_for is SpeaksFor.NEITHER or at is None:
        return None
    if speaks_for is not SpeaksFor.NODE and _is_of_another(job, fault):
        return None
    if speaks_for is SpeaksFor.NODE and (before or not _may_be_its_own(job, fault)):
        speaks_for = SpeaksFor.UNCLEAR
    if before and (speaks_for is SpeaksFor.JOB or fault.severity is not Severity.CRITICAL):
        return None  # as `job_summaries` has it for the fleet: the job began with that warning, and ran
    return BlameEvidence(
        speaks_for=speaks_for,
        code=fault.code,
        component=str(fault.component),
        at=at,
        message=fault.message,
        is_critical=fault.severity is Severity.CRITICAL,
        before=before,
    )


def _moment(job: Job, fault: Fault) -> tuple[datetime | None, bool]:
    """When the fault opened or grew while the job ran, and whether it was open before and did neither.

    A level that was open before is seen again by each run of its check, and so did not grow. None: it is of no time of
    the job.
    """
    if job.end is not None and fault.first > job.end + _SLACK:
        return None, False
    if job.start is None or fault.first >= job.start - _SLACK:
        return fault.first, False
    if fault.clears_by is not None:  # each finding of the log is a new line
        is_new = fault.last >= job.start - _SLACK and (job.end is None or fault.last <= job.end + _SLACK)
        return (fault.last, False) if is_new else (job.start, True)
    return job.start, True


def _is_of_another(job: Job, fault: Fault) -> bool:
    """Whether the evidence names other jobs, and not this one: by numbers, or as ``job:42`` among owners of each
    kind."""
    named = {str(each) for each in (fault.evidence.get("jobs") or [fault.evidence.get("job")]) if each}
    return bool(named) and named.isdisjoint((job.id, f"job:{job.id}"))


def _may_be_its_own(job: Job, fault: Fault) -> bool:
    """Whether the part was the job's, or every job's: on a shared node a GPU may be another's, also one that is only
    missing from their number."""
    if not job.gpus:
        return True
    if fault.component.kind == "gpu":
        return not job.gpus.isdisjoint(fault.component.aliases)
    if (index := str(fault.evidence.get("gpu", ""))).isdecimal():  # of a line that names its GPU by number alone
        return index in job.gpus
    number = fault.evidence.get("expected", fault.evidence.get("limit"))
    return fault.code != _FEWER or not isinstance(number, int | float) or len(job.gpus) >= number
