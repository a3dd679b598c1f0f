"""Carries out what a rule says about a job that cannot go on: takes the job, signals it, requeues it, once each.

Each act is written down before it is done, and the job and the node are read right before it. A daemon that was killed
between the two takes the act for done: a signal is never sent twice. A requeue is sent again only where the same run of
the job still stands on this drained node, after every request without an answer is void; a later run cannot be here.

Nothing of it holds the remediation up. It must not decide which job, or whether: ``decide.on_job`` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from healthd.core.errors import BackendError, BackendRefused, SlotTaken
from healthd.core.model import Step
from healthd.remediation.decide.drive import ending_jobs
from healthd.remediation.decide.on_job import (
    WAIT,
    JobAct,
    JobOutcome,
    JobRestart,
    JobStage,
    begun,
    next_move,
    none_to_act_on,
    on_its_gpu,
)
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.decide.rules import RuleAnswer
from healthd.remediation.engine.dependencies import Dependencies
from healthd.remediation.engine.gates import Gates
from healthd.remediation.engine.step_result import StepJournal
from healthd.remediation.ports import JobControl

_NO_JOBS = "on_job has no effect here: healthd requeues jobs of Slurm alone; see [[controller.drain]] for pods"
_REREAD_S = 0.5
"""A requeued job has ended within a second or two, and then waits for its delay to be taken away."""
_TAKEN_S = 86_400
"""How long a job stays taken beyond its grace: a request without an answer is void long before."""


class JobRestarts:
    """The restarts of the jobs of one node's remediations."""

    def __init__(self, dependencies: Dependencies, gates: Gates, journal: StepJournal) -> None:
        self._control, self._orchestrator = dependencies.jobs, dependencies.orchestrator
        self._gates, self._journal = gates, journal
        self.outcomes: Counter[JobOutcome] = Counter()
        """The acts since the process began. A request without an answer is not counted."""
        self._unanswered = timedelta(seconds=dependencies.timeouts.unanswered_s)

    def go_on(self, remediation: Remediation, now: datetime) -> tuple[Remediation, str]:
        """The remediation with the restart of its job as far as it goes now, and a sentence, "" for nothing new.

        Raises StoreError: then nothing was done.
        """
        restart = remediation.job
        if not _is_out(remediation) or (restart is not None and restart.is_over and not restart.gpus):
            return remediation, ""
        answers = [] if remediation.release_command else ending_jobs(self._gates.open_now())
        if restart is not None and restart.is_over:  # left alone for the fault of another GPU
            answers = [answer for answer in answers if answer.diagnosis.component.gpu_index in (None, *restart.gpus)]
            restart = None
        if (restart is None and not answers) or self._gates.at_rest(remediation) is not None:
            return remediation, ""
        if self._control is None:
            return self._written(remediation, none_to_act_on(_NO_JOBS, now), _NO_JOBS)
        try:
            if restart is not None:
                return self._continued(remediation, restart, self._control, next(iter(answers), None), now)
            return self._begun(remediation, self._control, answers, now)
        except BackendError as error:
            written = self._journal.last  # how far it came is on disk: what was taken stays taken
            restart = written.job if written is not None and written.id == remediation.id else restart
            message = restart.title if restart is not None else "of this node"
            return replace(remediation, job=restart), f"job {message}: not known, asked again: {error}"

    def due_in_s(self) -> float | None:
        """In how many seconds the next call is of use to a job that was asked to restart; None for none."""
        restart = self._journal.last.job if self._journal.last is not None else None
        return _REREAD_S if restart is not None and restart.is_asked else None

    def _begun(
        self, remediation: Remediation, control: JobControl, answers: Sequence[RuleAnswer], now: datetime
    ) -> tuple[Remediation, str]:
        """For the first of these faults that the job cannot go on after; else what was found of the first one."""
        jobs, left = control.jobs(), None
        for answer in answers:
            restart = begun(jobs, answer.root.since, now)
            if not restart.is_over:
                restart = on_its_gpu(restart, answer.diagnosis.component.gpu_index, control.gpus(restart.job), now)
            if not restart.is_over:
                after = f"which cannot go on after {answer.root.code}: {answer.on_job}"
                remediation, _ = self._written(remediation, restart, f"intends to act on job {restart.title}, {after}")
                return self._claimed(remediation, restart, control, answer, now)
            left = left or restart
        assert left is not None  # noqa: S101 - else there is nothing to begin
        return self._written(remediation, left, left.note)

    def _claimed(
        self,
        remediation: Remediation,
        restart: JobRestart,
        control: JobControl,
        answer: RuleAnswer | None,
        now: datetime,
    ) -> tuple[Remediation, str]:
        """Take the job, which another node of it may have done. This one may have as well, and got no answer, or was
        killed before it wrote that down."""
        on_job = answer.on_job if answer is not None else WAIT
        try:
            control.take_job(restart.job, restart.run, by=remediation.id, for_s=(on_job.after_s or 0) + _TAKEN_S)
        except SlotTaken:
            if not control.has_taken(restart.job, restart.run, by=remediation.id):
                note = f"job {restart.title} is left to another of its nodes, which has taken it"
                return self._written(remediation, restart.at_stage(JobStage.OVER, now, note), note)
        except BackendRefused as error:
            note = f"job {restart.title} is left alone: it could not be taken: {error}"
            return self._written(remediation, restart.at_stage(JobStage.OVER, now, note), note)
        restart = restart.at_stage(JobStage.CLAIMED, now)
        remediation, _ = self._written(remediation, restart, f"acts on job {restart.title}, alone of its nodes")
        return self._continued(remediation, restart, control, answer, now)

    def _continued(
        self,
        remediation: Remediation,
        restart: JobRestart,
        control: JobControl,
        answer: RuleAnswer | None,
        now: datetime,
    ) -> tuple[Remediation, str]:
        if restart.stage is JobStage.CLAIMING:
            return self._claimed(remediation, restart, control, answer, now)
        plan = answer.on_job if answer is not None else WAIT
        move = next_move(restart, plan, control.job(restart.job), now=now, unanswered=self._unanswered)
        match move.act:
            case JobAct.WAIT:
                return remediation, move.reason
            case JobAct.END:
                return self._written(remediation, restart.at_stage(JobStage.OVER, now, move.reason), move.reason)
            case JobAct.NOTE_END:
                return self._written(remediation, restart.at_stage(JobStage.ENDED, now), move.reason)
            case JobAct.START:
                control.start_job(restart.job)  # it may be asked for any number of times
                return self._written(remediation, restart.at_stage(JobStage.OVER, now, move.reason), move.reason)
            case JobAct.SIGNAL:
                return self._signalled(remediation, restart, control, plan.signal, now)
            case JobAct.REQUEUE:
                return self._requeued(remediation, restart, control, move.reason, now)

    def _signalled(
        self, remediation: Remediation, restart: JobRestart, control: JobControl, signal: str, now: datetime
    ) -> tuple[Remediation, str]:
        restart = restart.at_stage(JobStage.SIGNALLED, now)
        before = remediation
        remediation, _ = self._written(remediation, restart, f"intends to send {signal} to job {restart.title}")
        if why := self._objection(remediation, now):
            return self._written(before, restart.at_stage(JobStage.CLAIMED, now), why)
        try:
            control.signal_job(restart.job, signal)
        except BackendRefused as error:
            return self._written(
                remediation, restart, f"job {restart.title}: signal {signal} refused, its grace runs: {error}"
            )
        except BackendError as error:
            return self._written(
                remediation, restart, f"job {restart.title}: signal {signal}: no answer, not sent again: {error}"
            )
        self.outcomes[JobOutcome.SIGNALLED] += 1
        return self._written(remediation, restart, f"job {restart.title}: signal {signal} sent")

    def _requeued(
        self, remediation: Remediation, restart: JobRestart, control: JobControl, message: str, now: datetime
    ) -> tuple[Remediation, str]:
        planned = restart
        restart = restart.at_stage(JobStage.REQUEUED, now)
        before = remediation
        remediation, _ = self._written(remediation, restart, f"intends the {message}")
        if why := self._objection(remediation, now):
            return self._written(before, planned, why)
        try:
            control.requeue_job(restart.job)
        except BackendRefused as error:
            self.outcomes[JobOutcome.LEFT] += 1
            note = f"job {restart.title} is left alone: requeue refused: {error}"
            return self._written(remediation, restart.at_stage(JobStage.OVER, now, note), note)
        except BackendError as error:
            return self._written(
                remediation, restart, f"job {restart.title}: requeue: no answer, will be read back: {error}"
            )
        self.outcomes[JobOutcome.REQUEUED] += 1
        return self._written(remediation, restart, f"job {restart.title}: requeue sent")

    def _objection(self, remediation: Remediation, now: datetime) -> str:
        """Why nothing is done by the last reading: the drain, which keeps the job off this node, is not ours any more,
        or the operator wants nothing done, or that cannot be read now."""
        try:
            view = self._orchestrator.view(jobs=True)
        except BackendError as error:
            return f"the job waits: the node is not known, asked again: {error}"
        stopped = self._gates.stopped(remediation, view, now)
        return "" if stopped is None else f"the job waits: {stopped.message}"

    def _written(self, remediation: Remediation, restart: JobRestart, message: str) -> tuple[Remediation, str]:
        before = remediation.job
        remediation = replace(remediation, job=restart)
        self._journal.write(remediation, message)
        if restart.is_over and restart.job and (before is None or not before.is_asked):
            self.outcomes[JobOutcome.LEFT] += 1
        return remediation, message


def _is_out(remediation: Remediation) -> bool:
    """Whether the node is out by our hand, and no repair of it was begun: the job is gone by then. The drain keeps its
    next run off the node also while the slot settles."""
    if remediation.end is not None or remediation.step in (Step.SLOT, Step.DRAIN):
        return False
    return remediation.hold is not None or Step.DRAIN not in remediation.steps
