"""A job that cannot go on after a fault of its node: what a rule says about it, and the next act, as plain data.

A job whose process is dead on one node waits on all others for a collective to time out. A rule may have it checkpoint
by a signal, and then requeue it, while the drain keeps the faulty node out of its next run. Pure: the engine carries
each act out, and records it first.

One node acts on a run of a job: the one that has the fault, and of several that have one, the first to take the job.
A job that has ended is requeued only where it failed; one that runs again, waits again, or that Slurm holds or preempts
is never requeued a second time. A job that forbids it is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from healthd.job.ends import FAILED, end_words
from healthd.job.held import release_words
from healthd.judge.clock import moved
from healthd.remediation.ports import NodeJob

_UNITS = {"s": 1, "m": 60, "h": 3600}
_TEXT = re.compile(r"(?:signal:((?:B:)?[A-Z0-9]+) then )?requeue after (\d+)([smh])")
_SLACK, _SECOND = timedelta(seconds=2), timedelta(seconds=1)
"""Times of a job are whole seconds of slurmctld's clock, that of a fault is the node's."""
_STARTS_AFTER = timedelta(seconds=3)
"""From the end of a requeued job on all of its nodes to its start. A slurmd refuses a start whose credential was made
in the second in which it ended the same job, or before, by two clocks; the job then FAILED (seen on Slurm 22.05.8:
"already killed, do not launch batch job"). slurmctld waits two minutes for that reason."""

_WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "EXPEDITING"})
"""Of a job that is not held: a released one keeps REQUEUE_HOLD until it runs."""
_ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
_SUSPENDED = "SUSPENDED"


class OnJob(Struct, frozen=True, kw_only=True):
    """The act that a rule names. ``after_s``: requeue the job so long after its signal, or after it was taken; None:
    leave it. ``signal``: of the checkpoint, as ``sbatch --signal`` writes it: ``USR1`` to the steps, ``B:USR1`` to the
    batch script; "" for none."""

    after_s: int | None = None
    signal: str = ""

    def __str__(self) -> str:
        if self.after_s is None:
            return "wait"
        return f"{f'signal:{self.signal} then ' if self.signal else ''}requeue after {self.after_s}s"


WAIT = OnJob()
"""The job is left alone, and healthd waits for its end."""


def parse(text: str) -> OnJob:
    """The act in the text of ``on_job``, whose form the configuration has checked."""
    match = _TEXT.fullmatch(text)
    return OnJob(after_s=int(match[2]) * _UNITS[match[3]], signal=match[1] or "") if match else WAIT


class JobStage(StrEnum):
    """How far the restart of a job is. Each is written down before its act, which may therefore have been done.

    CLAIMING: the job is being taken. CLAIMED: it is this node's to act on. SIGNALLED, REQUEUED. ENDED: requeued, and
    seen to have ended on all of its nodes. OVER: nothing more.
    """

    CLAIMING = "claiming"
    CLAIMED = "claimed"
    SIGNALLED = "signalled"
    REQUEUED = "requeued"
    ENDED = "ended"
    OVER = "over"


class JobRestart(Struct, frozen=True, kw_only=True):
    """The restart of one run of a job by one remediation. ``job``: its id, "" where there is none to act on; ``run``:
    how often it had been restarted before. ``title``: id, user and all nodes. ``at``: when the stage
    began. ``gpus``: those of the node that it has, where it was left alone for the fault of another; one of these may
    fail yet."""

    job: str
    run: int
    title: str
    stage: JobStage
    at: datetime
    note: str = ""
    gpus: tuple[int, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is done."""
        return self.stage is JobStage.OVER

    @property
    def is_asked(self) -> bool:
        """Whether the requeue was sent, or may have been."""
        return self.stage in (JobStage.REQUEUED, JobStage.ENDED)

    def at_stage(self, stage: JobStage, at: datetime, note: str = "") -> JobRestart:
        """The same, one stage further."""
        return replace(self, stage=stage, at=at, note=note)

    def shifted(self, by: timedelta, now: datetime) -> JobRestart:
        """The same after the clock was set."""
        return replace(self, at=moved(self.at, by, now))


def begun(jobs: Sequence[NodeJob], since: datetime, now: datetime) -> JobRestart:
    """The restart of the job that ran here when the fault began at ``since``, or why there is none to restart.

    A node that several jobs share does not tell which of them the fault ended; one that ended in order is none of them.
    """
    all_ran = [job for job in jobs if _ran_at(job, since)]
    ran = [job for job in all_ran if not end_words(job.state)] or all_ran
    if not ran:
        return none_to_act_on("no job ran here when the fault began", now)
    if len(ran) > 1:
        names = ", ".join(job.title for job in sorted(ran, key=lambda job: (len(job.id), job.id)))
        return none_to_act_on(
            f"left alone: {names} share this node, and which of them the fault ended is not known", now
        )
    job = ran[0]
    restart = JobRestart(job=job.id, run=job.restarts, title=job.title, stage=JobStage.CLAIMING, at=now)
    why = _objection(job)
    return restart.at_stage(JobStage.OVER, now, f"job {job.title} is left alone: {why}") if why else restart


def on_its_gpu(restart: JobRestart, index: int | None, gpus: Collection[int], now: datetime) -> JobRestart:
    """The same, unless the fault is on a GPU that the job does not have: it goes on. ``index``: of the GPU with the
    fault, None where it is not known or no GPU's. ``gpus``: those of the node that the job has, none where it may have
    all of them."""
    if index is None or not gpus or index in gpus:
        return restart
    why = f"GPU {index} is none of its GPUs here, which are {', '.join(map(str, sorted(gpus)))}"
    return replace(
        restart.at_stage(JobStage.OVER, now, f"job {restart.title} is left alone: {why}"), gpus=tuple(sorted(gpus))
    )


def none_to_act_on(why: str, now: datetime) -> JobRestart:
    """That there is no job to act on, and why."""
    return JobRestart(job="", run=0, title="", stage=JobStage.OVER, at=now, note=why)


def _ran_at(job: NodeJob, since: datetime) -> bool:
    """A job that runs has no end yet, or a planned one. The start of one that is requeued moves with the clock."""
    if job.is_requeued and job.is_here:
        return True
    is_begun = job.began is not None and job.began <= since + _SLACK
    return is_begun and (job.ended is None or job.ended + _SECOND > since)


def _objection(job: NodeJob) -> str:
    if not job.is_batch:
        return "it is no batch job, which alone can be requeued"
    if not job.may_requeue:
        return "it forbids requeue (Requeue=0)"
    if job.is_part:
        return "it is a part of a heterogeneous job"
    return "Slurm requeues it already" if job.is_requeued and not job.preempted else _no_more(job)


def _no_more(job: NodeJob) -> str:
    """That it is over, or held, in words; "" for neither. One that Slurm preempts is Slurm's to end or to requeue, by
    the mode that its partition or QOS has for that."""
    if message := end_words(job.state):
        return f"{message} ({job.state})"
    if job.preempted:
        return f"Slurm preempts it ({job.state})"
    return f"Slurm holds it ({job.reason}): {release_words(job.id, job.reason)}" if job.held else ""


class JobOutcome(StrEnum):
    """The act on a job that cannot go on, for the metrics: signal or requeue was sent, or the job was LEFT to end or go
    on by itself."""

    SIGNALLED = "signalled"
    REQUEUED = "requeued"
    LEFT = "left"


def stands(restart: JobRestart) -> str:
    """How far the restart of a job is, in words."""
    if restart.is_over:
        return restart.note
    return f"job {restart.title}: {restart.stage} at {restart.at:%H:%M:%S} UTC"


class JobAct(StrEnum):
    """The next act. NOTE_END: write down that the job has ended. START: end Slurm's delay before its next run."""

    WAIT = "wait"
    SIGNAL = "signal"
    REQUEUE = "requeue"
    NOTE_END = "note end"
    START = "start"
    END = "end"


class JobMove(Struct, frozen=True, kw_only=True):
    """The next act, and why in a sentence."""

    act: JobAct
    reason: str


def next_move(
    restart: JobRestart, plan: OnJob, job: NodeJob | None, *, now: datetime, unanswered: timedelta
) -> JobMove:
    """The next act on a job that this node has taken. ``job``: as the cluster shows it now, None where it forgot it.
    ``unanswered``: how long a request without an answer may still be applied; after that a job that runs on as before
    is requeued again."""
    if job is None:
        return _end(restart, "the cluster does not know it any more")
    is_asked = restart.is_asked
    if job.preempted and not is_asked:  # before its requeue by Slurm, which leaves no trace of it
        return _end(restart, f"{_no_more(job)}; not requeued")
    if job.state in _ENDING:  # also between our requeue and its end, when its next run is counted already
        return _wait(restart, "its processes end")
    if why := _no_more(job):
        return _end(restart, f"{why}; not requeued" if not is_asked else why)
    if job.restarts > restart.run or job.state in _WAITS:
        return _requeued(restart, job, now)
    if plan.after_s is None and not is_asked:
        return _end(restart, "no open fault has a rule for it any more")
    if not job.is_here:  # an ended one keeps its nodes: elsewhere it is another job of that number
        return _end(restart, "it does not run on this node any more")
    if is_asked:
        why = f"it is {job.state} still" if job.state in FAILED else "it still runs"
        return _again(restart, why, now, unanswered)
    return _first(restart, plan, job, now)


def _first(restart: JobRestart, plan: OnJob, job: NodeJob, now: datetime) -> JobMove:
    """The next act on a job that is on this node, before its first requeue by healthd."""
    if job.state in FAILED:
        return _requeue(restart, job)
    if job.state == _SUSPENDED:  # its processes are stopped: none waits for another, and none handles a signal
        return _wait(restart, "it is suspended; acts once it runs again")
    if plan.signal and restart.stage is JobStage.CLAIMED:
        return JobMove(act=JobAct.SIGNAL, reason=f"signal {plan.signal} to job {restart.title}")
    due = restart.at + timedelta(seconds=plan.after_s or 0)
    if now < due:
        return _wait(restart, f"requeued at {due:%H:%M:%S} UTC unless it ends before")
    return _requeue(restart, job)


def _requeued(restart: JobRestart, job: NodeJob, now: datetime) -> JobMove:
    if not restart.is_asked:
        return _end(restart, "it was requeued by itself or by others; not requeued again")
    if job.state not in _WAITS:
        is_over = job.state in FAILED
        return _end(
            restart, f"requeued, and ended again ({job.state})" if is_over else f"requeued, runs on {job.nodes}"
        )
    if restart.stage is not JobStage.ENDED:
        return JobMove(act=JobAct.NOTE_END, reason=f"job {restart.title}: requeued, has ended on all of its nodes")
    if now < restart.at + _STARTS_AFTER:
        return _wait(restart, f"requeued; may start {_STARTS_AFTER.total_seconds():g} s after its end")
    return JobMove(
        act=JobAct.START, reason=f"job {restart.title}: requeued, may start; `healthd job {job.id}` shows it"
    )


def _requeue(restart: JobRestart, job: NodeJob) -> JobMove:
    state = "" if job.state not in FAILED else f", which failed ({job.state})"
    return JobMove(act=JobAct.REQUEUE, reason=f"requeue of job {restart.title}{state}")


def _again(restart: JobRestart, why: str, now: datetime, unanswered: timedelta) -> JobMove:
    if now < restart.at + unanswered:
        return _wait(restart, f"requeue sent, not visible yet; re-reading: {why}")
    return JobMove(act=JobAct.REQUEUE, reason=f"requeue of job {restart.title} again: the first had no effect, {why}")


def _wait(restart: JobRestart, why: str) -> JobMove:
    return JobMove(act=JobAct.WAIT, reason=f"job {restart.title}: {why}")


def _end(restart: JobRestart, why: str) -> JobMove:
    return JobMove(act=JobAct.END, reason=f"job {restart.title}: {why}")
