"""A job as slurmctld keeps it, and healthd's writes to it: the AdminComment, and a notice to the owner.

An AdminComment is appended to and never overwritten. slurmctld takes it of a job that runs, waits or is held, and
refuses it from COMPLETING on ("Job has already finished": 22.05.8, 26.05.5). It lasts for as long as slurmctld
remembers the job (MinJobAge), and with slurmdbd for good; a requeue leaves it. Slurm has no compare-and-swap here
either: a text is read back after it was written, and written again where another node's came in between. Texts:
22.05.8, 24.11.5 and 26.05.5.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from healthd.core.errors import BackendUnknown
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator

PREFIX = "healthd: "
MOST_BYTES = 1000
"""Of an AdminComment that healthd adds to: readers print it in one line."""
_GAP = "; "
_SAID = re.compile(rf"(?:\A|{_GAP})(?={PREFIX})")
_FIELD = re.compile(r"(?:\A|[ \n])(JobState|Restarts|NodeList|UserId|ExitCode|StartTime|EndTime|JobId|Requeue)=(\S*)")
_COMMENT = re.compile(r"^ *AdminComment=(.*?) *$", re.MULTILINE)
_EXPEDITES = re.compile(r"^SlurmctldParameters\s*=.*\benable_expedited_requeue\b", re.MULTILINE)
_FINISHED = frozenset(
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "PREEMPTED"]
)
_ATTEMPTS = 4
_PAUSE_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJob:
    """A job as slurmctld shows it now. ``nodes``: where it runs, or ran last. Empty or None: not known."""

    id: str
    state: str
    user: str = ""
    nodes: str = ""
    restarts: int = 0
    exit_code: int | None = None
    signal: int | None = None
    start: datetime | None = None
    end: datetime | None = None
    comment: str = ""

    @property
    def has_finished(self) -> bool:
        """Whether slurmctld takes no change of it any more, and does not run it again."""
        return self.state in _FINISHED

    @property
    def said(self) -> tuple[str, ...]:
        """The sentences of healthd in its comment, oldest first, each without its beginning."""
        return tuple(each.removeprefix(PREFIX).strip() for each in _SAID.split(self.comment) if each.startswith(PREFIX))


def parse_job(answer: str) -> SlurmJob:
    """The first job in the output of ``scontrol show job ID``. Raises BackendUnknown for anything else."""
    record = answer.partition("\n\n")[0]
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(record):
        fields.setdefault(name, value)
    if not fields.get("JobId") or not fields.get("JobState"):
        raise BackendUnknown(f"scontrol show job printed no job: {answer[:200]!r}")
    exit_code, _, signal = fields.get("ExitCode", "").partition(":")
    comment = _COMMENT.search(record)
    return SlurmJob(
        id=fields["JobId"],
        state=fields["JobState"],
        user=fields.get("UserId", "").partition("(")[0],
        nodes="" if fields.get("NodeList") == "(null)" else fields.get("NodeList", ""),
        restarts=int(fields["Restarts"]) if fields.get("Restarts", "").isdecimal() else 0,
        exit_code=int(exit_code) if exit_code.isdecimal() else None,
        signal=int(signal) if signal.isdecimal() else None,
        start=_time(fields.get("StartTime", "")),
        end=_time(fields.get("EndTime", "")),
        comment=comment[1] if comment else "",
    )


def read_job(slurm: SlurmOrchestrator, job: str) -> SlurmJob:
    """The job now. Raises BackendUnknown, also for a job that slurmctld no longer knows."""
    return parse_job(slurm.scontrol("show", "job", job))


def append_comment(
    slurm: SlurmOrchestrator, job: str, sentence: str, *, sleep: Callable[[float], None] = time.sleep
) -> str:
    """Append a sentence to the job's AdminComment, once. Returns why it was not written, or "".

    Raises BackendRefused, BackendUnknown.
    """
    text = PREFIX + as_comment(sentence)
    for attempt in range(_ATTEMPTS):
        there = read_job(slurm, job).comment
        if text in there:
            return ""
        if len(there) + len(text) > MOST_BYTES:
            return f"the AdminComment of job {job} has {len(there)} bytes already"
        slurm.scontrol("update", f"jobid={job}", f"admincomment={there}{_GAP if there else ''}{text}")
        sleep(_PAUSE_S * (attempt + 1))  # another node may have read the same text before
    if text in read_job(slurm, job).comment:
        return ""
    return f"the AdminComment of job {job} is written by others at the same time"


def as_comment(sentence: str) -> str:
    """A sentence as a comment holds it: one line, without what readers of Slurm's output trip over."""
    return re.sub(r"[^ -~]|[|\"]", "?", " ".join(sentence.split()))


def notify_owner(slurm: SlurmOrchestrator, job: str, sentence: str) -> None:
    """Show a sentence to srun and salloc of the job, or in the output of its batch script. Raises BackendRefused,
    BackendUnknown."""
    slurm.scontrol("notify", job, PREFIX + as_comment(sentence))


def expedites(slurm: SlurmOrchestrator) -> bool:
    """Whether slurmctld decides by the exit code of an Epilog whether a failed job was the node's fault (25.11 and
    newer, ``SlurmctldParameters=enable_expedited_requeue``). Raises BackendUnknown."""
    return _EXPEDITES.search(slurm.scontrol("show", "config")) is not None


def _time(text: str) -> datetime | None:
    """A time with SLURM_TIME_FORMAT=%s; None for ``Unknown``."""
    return datetime.fromtimestamp(int(text), UTC) if re.fullmatch(r"[1-9][0-9]{0,10}", text) else None
