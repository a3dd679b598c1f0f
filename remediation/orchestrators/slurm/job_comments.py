"""A job as slurmctld keeps it, and healthd's writes to it: the AdminComment, and a notice to the owner.

An AdminComment is appended to and never overwritten. slurmctld takes it of a job that runs, waits or is held, and
refuses it from COMPLETING on ("Job has already finished": 22.05.8, 26.05.5). It lasts for as long as slurmctld
remembers the job (MinJobAge), and with slurmdbd for good; a requeue leaves it. Slurm has no compare-and-swap here
either: a text is read back after it was written, and written again where another node's came in between.

It is read by a request of its own: it may have line breaks, and beside a text that a user chose, such as the job's name
in `scontrol show job`, it would look the same as that. Texts: 22.05.8, 24.11.5 and 26.05.5.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from datetime import datetime

from msgspec import Struct

from healthd.core.errors import BackendError, BackendRefused, BackendUnknown
from healthd.job.ends import FAILED, end_words
from healthd.remediation.orchestrators.slurm.jobs import find_job
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.ports import NodeJob

PREFIX = "healthd: "
MOST_BYTES = 1000
"""Of an AdminComment that healthd adds to: readers print it in one line."""
_GAP = "; "
_SAID = re.compile(rf"(?:\A|{_GAP})(?={PREFIX})")
_EXPEDITES = re.compile(r"^SlurmctldParameters\s*=.*\benable_expedited_requeue\b", re.MULTILINE)
_TEXTS = "JobArrayID:|,exit_code:|,admin_comment:|"
_TEXTS_HEAD = re.compile(r"([0-9_+]{1,24})\|([0-9]{1,10})(?::([0-9]{1,3}))?\|")
_ATTEMPTS = 4
_PAUSE_S = 0.05


class SlurmJob(Struct, frozen=True, kw_only=True):
    """A job as slurmctld shows it now. ``id``: its number. ``acts_by``: the id by which slurmctld acts on it alone,
    ``12_3`` for a task of an array. ``nodes``: where it runs, or ran last. ``reason``: why it waits; ``held``: for a
    command that releases it. ``preempted``: Slurm preempts it, or has ended it so. Empty or None: not known."""

    id: str
    state: str
    acts_by: str = ""
    user: str = ""
    nodes: str = ""
    restarts: int = 0
    exit_code: int | None = None
    signal: int | None = None
    start: datetime | None = None
    end: datetime | None = None
    comment: str = ""
    reason: str = ""
    held: bool = False
    preempted: bool = False

    @property
    def has_finished(self) -> bool:
        """Whether slurmctld takes no change of it any more, and does not run it again."""
        return self.state in FAILED or end_words(self.state) != ""

    @property
    def said(self) -> tuple[str, ...]:
        """The sentences of healthd in its comment, oldest first, each without its beginning."""
        return tuple(each.removeprefix(PREFIX).strip() for each in _SAID.split(self.comment) if each.startswith(PREFIX))


class JobTexts(Struct, frozen=True, kw_only=True):
    """The end of a job as slurmctld knows it, and its AdminComment. One that slurmctld ends has it from COMPLETING on:
    15, SIGTERM, after a cancel or at a time limit (22.05.8)."""

    exit_code: int
    signal: int
    comment: str


def read_job(slurm: SlurmOrchestrator, job: str) -> SlurmJob:
    """The job now, by its id or its number. Raises BackendUnknown, and BackendRefused for a job that slurmctld does
    not know any more."""
    found = _found(slurm, job)
    texts = read_texts(slurm, found.id)
    return SlurmJob(
        id=found.number,
        acts_by=found.id,
        state=found.state,
        user=found.user,
        nodes=found.nodes,
        restarts=found.restarts,
        exit_code=texts.exit_code,
        signal=texts.signal,
        start=found.began,
        end=found.ended,
        comment=texts.comment,
        reason=found.reason,
        held=found.held,
        preempted=found.preempted,
    )


def _found(slurm: SlurmOrchestrator, job: str) -> NodeJob:
    found = find_job(slurm, job)
    if found is None:
        raise BackendRefused(f"slurmctld does not know job {job}, or has forgotten it")
    return found


def read_texts(slurm: SlurmOrchestrator, job: str) -> JobTexts:
    """These of one job, by the id that acts on it alone. Raises BackendUnknown."""
    result = slurm.client("squeue", "-h", "-a", "-t", "all", "-j", job, "-O", _TEXTS)
    if result.code:
        raise BackendUnknown(f"AdminComment of job {job}: exit status {result.code}: {result.stderr.strip()[-200:]}")
    return parse_texts(result.stdout, job)


def parse_texts(answer: str, job: str) -> JobTexts:
    """The end and the AdminComment of one job in the output of ``squeue -h -j JOB -O _TEXTS``. Its end is a wait status
    (22.05), or exit code and signal (26.05). Raises BackendUnknown for anything else."""
    answer = _of_part(answer, job)
    head, tail = _TEXTS_HEAD.match(answer), "|\n"
    if head is None or head[1] != job or not answer.endswith(tail):
        raise BackendUnknown(f"squeue's answer is no AdminComment of job {job}: {answer[:200]!r}")
    comment = answer.removeprefix(head[0]).removesuffix(tail).partition(f"{tail}{head[0]}")[0]
    status = int(head[2])
    exit_code, signal = (status >> 8 & 0xFF, status & 0x7F) if head[3] is None else (status, int(head[3]))
    return JobTexts(exit_code=exit_code, signal=signal, comment="" if comment == "(null)" else comment.strip())


def _of_part(answer: str, job: str) -> str:
    """The record of this job where it is a part of a heterogeneous one, ``4711+1``: squeue prints all parts."""
    whole, is_part, _ = job.partition("+")
    if not is_part:
        return answer
    records = re.split(rf"(?<=\|\n)(?={re.escape(whole)}\+[0-9]+\|[0-9])", answer)
    return "".join(each for each in records if each.startswith(f"{job}|"))


def append_comment(
    slurm: SlurmOrchestrator, job: str, sentence: str, *, sleep: Callable[[float], None] = time.sleep
) -> str:
    """Append a sentence to the job's AdminComment, once. Returns why it was not written, or "".

    Raises BackendRefused, BackendUnknown.
    """
    text, job = PREFIX + as_comment(sentence), _found(slurm, job).id
    for attempt in range(_ATTEMPTS):
        there = read_texts(slurm, job).comment
        if text in there:
            return ""
        if len(there) + len(text) > MOST_BYTES:
            return f"the AdminComment of job {job} has {len(there)} bytes already"
        slurm.scontrol("update", f"jobid={job}", f"admincomment={there}{_GAP if there else ''}{text}")
        sleep(_PAUSE_S * (attempt + 1))  # another node may have read the same text before
    if text in read_texts(slurm, job).comment:
        return ""
    return f"the AdminComment of job {job} is written by others at the same time"


def as_comment(sentence: str) -> str:
    """A sentence as a comment holds it: one line, without what readers of Slurm's output trip over."""
    return re.sub(r"[^ -~]|[|\"]", "?", " ".join(sentence.split()))


def notify_owner(slurm: SlurmOrchestrator, job: str, sentence: str) -> None:
    """Show a sentence to srun and salloc of the job, or in the output of its batch script. Raises BackendRefused,
    BackendUnknown."""
    slurm.scontrol("notify", _found(slurm, job).id, PREFIX + as_comment(sentence))


def tell_owners(
    slurm: SlurmOrchestrator,
    sentence: str,
    stopping: Callable[[], bool] = lambda: False,
    *,
    runs: Callable[[str], bool] = lambda _: True,
) -> tuple[str, ...]:
    """Notify srun and salloc of each job on this node, and leave the sentence in its AdminComment: slurmctld takes none
    later of a job that fails and is not run again. A job that has it there was notified, maybe by the daemon before
    this one. ``runs``: whether the job of this number goes on here; another gets no notice. Returns why a job has it
    not, a sentence each; one that ends just now keeps it from no other. Raises BackendUnknown where slurmctld does not
    answer."""
    text, problems = PREFIX + as_comment(sentence), []
    for job in slurm.running():
        if stopping():
            break
        try:
            found = _found(slurm, job.id)
            if not runs(found.number) or text in read_texts(slurm, found.id).comment:
                continue
            problem = append_comment(slurm, job.id, sentence)
            with contextlib.suppress(BackendError):  # "Requested operation is presently disabled": no step of it runs
                notify_owner(slurm, job.id, sentence)
        except BackendRefused as error:
            problem = str(error)
        problems += [f"job {job.id}: no notice of the drain: {problem}"] if problem else []
    return tuple(problems)


def expedites(slurm: SlurmOrchestrator) -> bool:
    """Whether slurmctld decides by the exit code of an Epilog whether a failed job was the node's fault (25.11 and
    newer, ``SlurmctldParameters=enable_expedited_requeue``). Raises BackendUnknown."""
    return _EXPEDITES.search(slurm.scontrol("show", "config")) is not None
