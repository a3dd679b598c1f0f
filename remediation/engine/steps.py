"""The steps of a remediation. Each reads first, writes its intent down, re-reads, acts, and reads the effect back.

An effect that is there already is adopted; another's act is respected; an act without an answer is *unknown* and is
read back later. The last reading before an act is a single one of the node, with nothing read after it but the
operator's own rules, and before a repair the controller's start: Slurm has no compare-and-swap, and what happens
between that reading and the act is not seen.

The slot is the first step and the last act (``SlotGate``). A node that waits for a slot asks ever more rarely, and by a
reading that costs the controller little while all slots are taken. One that holds a slot shows its finding: a node that
re-reads after the settle time then sees which others claimed for the same, and where that is many nodes, all of them
step back, before any of them was drained.

A step must not decide whether a node is to be taken out, and must not touch what its own remediation did not take out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from healthd.core.errors import BackendError, BackendRefused, BackendUnknown, HealthdError
from healthd.core.model import REPAIRS, ClearsBy, Refusal, Refused, Step
from healthd.judge.clock import JUMP, ClockWatch, moved, was_set
from healthd.judge.diagnose import roots_of
from healthd.remediation.decide.drive import KnownFaults, ending_job, heading_back, is_replaced, not_helped, only_out
from healthd.remediation.decide.fleet import HoldsSlots, MayTakeSlot, Settle, WaitForSlot
from healthd.remediation.decide.ledger import held_back, records_of, returns_of, settle_s
from healthd.remediation.decide.on_job import JobOutcome
from healthd.remediation.decide.policy import many_at_once
from healthd.remediation.decide.remediation import ACTS, End, Phase, Remediation, shifted
from healthd.remediation.engine.deciding import ClusterView, Decider, elsewhere
from healthd.remediation.engine.dependencies import Dependencies, TestsEndedEarly
from healthd.remediation.engine.gates import Gates, lost, seen
from healthd.remediation.engine.on_job import JobRestarts
from healthd.remediation.engine.repairs import OwnIntents, Repairs, before_the_act
from healthd.remediation.engine.step_result import (
    StepJournal,
    StepResult,
    at_next,
    ended,
    is_out,
    left_to_cluster,
    lingers,
    waits,
)
from healthd.remediation.ports import NodeView, StateOwner

_ACTS = {Step.RESET: "GPU reset", Step.REBOOT: "reboot", Step.REPLACE: "replacement"}


class Steps:
    """All steps of one node's remediations."""

    def __init__(
        self, dependencies: Dependencies, *, cluster: ClusterView, decider: Decider, journal: StepJournal
    ) -> None:
        self._orchestrator, self._judgement = dependencies.orchestrator, dependencies.judgement
        self._cluster, self._journal, self._gates = cluster, journal, Gates(dependencies)
        self._provisioner = dependencies.provisioner
        self._repairs = Repairs(
            orchestrator=dependencies.orchestrator,
            provisioner=dependencies.provisioner,
            resetter=dependencies.resetter,
            judgement=dependencies.judgement,
            gates=self._gates,
            intents=OwnIntents(dependencies, journal),
            timeouts=dependencies.timeouts,
        )
        self._jobs = JobRestarts(dependencies, self._gates, journal)
        self._slot_gate = SlotGate(dependencies, cluster=cluster, gates=self._gates, decider=decider, journal=journal)
        self._collect = dependencies.collect
        self._upload = dependencies.upload
        self._recheck = dependencies.recheck
        self._start = dependencies.resetter.start
        self._run_tests, self._tested = dependencies.run_tests, ("", "", 0.0)  # of which remediation, found, until when
        self._rules = dependencies.rules
        self._timeouts = dependencies.timeouts
        self._clock = dependencies.clock
        self._monotonic_s = dependencies.monotonic_s
        self._clock_watch, self._unmoved = ClockWatch(dependencies.clock(), dependencies.monotonic_s()), timedelta()
        self._ends_by = dependencies.hindsight.ends_by
        self.hurry = False
        self.tick: Callable[[], None] = dependencies.beat
        """Called every few seconds of a step that takes minutes; raises TestsEndedEarly where it is to end now."""
        self._began: datetime | None = None
        self._inherited = False
        self._moved: datetime | None = None

    def take(self, remediation: Remediation, now: datetime) -> StepResult:
        """Do what the remediation stands at, as far as it goes now, and write down what came of it. Raises
        HealthdError."""
        if self._began is None:
            self._inherited = remediation.phase is Phase.INTENDED
        self._began, self._moved = self._began or now, self._moved or now
        remediation = self._repaid(
            StepResult(remediation=heading_back(remediation, now), message=remediation.note)
        ).remediation
        remediation, of_job = self._jobs.go_on(remediation, now)
        if (forced_at := remediation.forced_at) is not None and not remediation.has_ended:
            reason = f"released by force, {remediation.release_command}"
            self._judgement.acknowledge(by=forced_at, now=now, why=reason)
        result = self._gone_on(remediation, now)
        if result.remediation.end is End.ACKNOWLEDGED and not remediation.has_ended:
            self._gates.acknowledge(result.remediation, now, result.message)
        self._inherited = False
        if of_job:
            result = replace(result, message=f"{result.message}; {of_job}")
        result = self._repaid(self._noted(remediation, result, now))
        if result.remediation.is_open and result.remediation.has_ended and not remediation.has_ended:
            return self.take(result.remediation, now)  # the slot is given back last, when the end is on disk
        return result

    def _gone_on(self, remediation: Remediation, now: datetime) -> StepResult:
        """Take its step, or where the remediation has ended, rests, failed or settles, what is left to do then."""
        if remediation.has_ended:
            return self._slot_gate.given_back(remediation)
        if (why := self._gates.at_rest(remediation)) is not None:
            return self._repairs.let_rest(self._gates.resting(remediation, why, now), now)
        if remediation.end is End.FAILED:
            return self._watch(remediation, now)
        if remediation.settling and remediation.step not in (Step.DRAIN, Step.RELEASE):
            return self._slot_gate.settled(remediation, now)
        return self._kept_from_repair(remediation, now) or self._taken(remediation, now)

    def _noted(self, before: Remediation, result: StepResult, now: datetime) -> StepResult:
        """Write down the result, with its message as the note, where that is news."""
        stays_given_up = before.end is result.remediation.end is End.FAILED  # its note is why an operator is needed
        note = before.note if stays_given_up else result.message
        if result.remediation.note != note:
            result = replace(result, remediation=replace(result.remediation, note=note))
        if result.remediation is not self._journal.last and result.remediation != self._journal.last:
            self._journal.write(result.remediation, result.message)
            self._moved = now
        return result

    def stood(self, now: datetime) -> timedelta:
        """For how long the open remediation has not moved; no time without one."""
        remediation = self._journal.last
        is_open = remediation is not None and remediation.is_open
        return now - self._moved if is_open and self._moved is not None else timedelta()

    @property
    def job_outcomes(self) -> Mapping[JobOutcome, int]:
        """The acts on jobs that cannot go on, since the process began."""
        return self._jobs.outcomes

    @property
    def job_due_in_s(self) -> float | None:
        """In how many seconds the next call is of use to the job that its fault ended; None for none."""
        return self._jobs.due_in_s()

    @property
    def viewed(self) -> NodeView | None:
        """The last reading of the node for the remediation that is open, or None."""
        return None if self._journal.last is None else self._gates.viewed

    def _kept_from_repair(self, remediation: Remediation, now: datetime) -> StepResult | None:
        """The gates before a repair is begun, and no longer once it may have been: first whether it is needed. However
        long it waits, an operator who undoes the drain ends it."""
        if remediation.step not in REPAIRS or remediation.phase is not Phase.PLANNED:
            return None
        if over := self._gates.is_over(remediation):
            return StepResult(
                remediation=at_next(remediation, now),
                message=f"no {_ACTS[remediation.step]} is needed: {over}",
                go_on=True,
            )
        result = self._slot_gate.no_repair(remediation, now) or self._unapproved(remediation, now)
        if result is None or remediation.hold is None:
            return result
        return self._gates.watched(remediation, self._orchestrator.view(jobs=True), now) or result

    def _unapproved(self, remediation: Remediation, now: datetime) -> StepResult | None:
        """The wait for an operator's approval, where the mode asks for one; what was asked is on disk first."""
        asked = self._gates.approval(remediation, now)
        if asked.remediation == remediation and asked.waits is None:
            return None
        if asked.news:
            self._journal.write(asked.remediation, asked.news)
        if asked.waits is None:
            return StepResult(remediation=asked.remediation, message=asked.news, go_on=True)
        return waits(asked.remediation, _ACTS[remediation.step], asked.waits, page=True)

    def seen(self, remediation: Remediation, now: datetime) -> KnownFaults:
        """The open faults as they are known now, for the question which of them drives the remediation."""
        since = max(remediation.since, self._began or now)
        return KnownFaults(
            now=now,
            open=self._gates.open_now(),
            looked=not self._judgement.not_checked(remediation.since),
            waited=self.stood(now) if only_out(remediation) else now - since,
            settle=timedelta(seconds=self._timeouts.settle_s),
            verify_timeout=timedelta(seconds=self._timeouts.verify_timeout_s),
        )

    def show(self, remediation: Remediation) -> str:
        """Let the other nodes see what the remediation is about now; why they cannot, or ""."""
        return self._slot_gate.show(remediation)

    def resume(self) -> Remediation | None:
        """The open remediation as the disk has it, or None; its times moved with the clock, where that was set. Raises
        StoreError.

        A step forward must not use up the timeout of a repair, nor one back keep a node out for as much longer.
        """
        remediation, now = self._journal.read(), self._clock()
        if by := self._clock_watch.was_set_by(now, self._monotonic_s()):
            self._unmoved += by
            self._began = self._began and moved(self._began, by, now)
            self._moved = self._moved and moved(self._moved, by, now)
        if remediation is not None and self._unmoved:
            message = f"{was_set(self._unmoved)}: what is waited for is waited for as long as before"
            self._journal.write(shifted(remediation, self._unmoved, now), message)
        elif remediation is not None and remediation.since - now > JUMP:
            self._journal.write(
                shifted(remediation, timedelta(), now), "the clock was set back since: what is waited for begins now"
            )
        self._unmoved = timedelta()
        return self._journal.last

    def _repaid(self, result: StepResult) -> StepResult:
        """With everything started that a GPU reset stopped, once that is over, whatever it came to. Its end is on disk
        then: a kill in here, or a start that takes its time, is no reason for another reset."""
        remediation = result.remediation
        is_under_way = (
            remediation.step is Step.RESET and remediation.phase is Phase.INTENDED and remediation.end is None
        )
        if not remediation.stopped or is_under_way:
            return result
        wrong = self._start(remediation.stopped)
        message = f"{result.message}; not started again: {wrong}" if wrong else result.message
        remediation = replace(remediation, stopped=(), note=message)
        self._journal.write(
            remediation,
            f"not started again: {wrong}" if wrong else f"started again: {', '.join(result.remediation.stopped)}",
        )
        return replace(result, remediation=remediation, message=message)

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _taken(self, remediation: Remediation, now: datetime) -> StepResult:
        match remediation.step:
            case Step.SLOT:
                return self._slot_gate.take(remediation, now, hurry=self.hurry)
            case Step.DRAIN:
                return self._drain(remediation, now)
            case Step.WAIT_IDLE:
                return self._wait_idle(remediation, now)
            case Step.COLLECT:
                return self._collect_evidence(remediation, now)
            case Step.RESET | Step.REBOOT | Step.REPLACE:
                return self._resting_request(remediation, now) or self._repairs.take(remediation, now)
            case Step.STAY:
                return self._stay(remediation, now)
            case Step.VERIFY:
                return self._verify(remediation, now)
            case Step.RELEASE:
                return self._release(remediation, now)

    def _resting_request(self, remediation: Remediation, now: datetime) -> StepResult | None:
        """The end of a request that its platform leaves alone for long, where the node was opted out meanwhile by what
        only a reading of it shows; else None, and its slot is kept."""
        if not self._repairs.stands(remediation):
            return None
        view = self._orchestrator.view(jobs=True)
        if (why := self._gates.at_rest(remediation, view)) is not None:
            return self._repairs.let_rest(self._gates.resting(remediation, why, now, view), now)
        self._slot_gate.keep(remediation, now)
        return None

    def _drain(self, remediation: Remediation, now: datetime) -> StepResult:
        """Take the node out, unless it is out already: by us (adopt it) or by others (leave it)."""
        view = self._orchestrator.view(jobs=True)
        is_adopted = self._gates.adopts(remediation, view)
        if not (view.undrained or is_adopted):
            return self._adopted_or_lost(remediation, view, now)
        if self._inherited:  # whoever was killed may have sent it and had no answer
            remediation = replace(remediation, drain_unanswered=now)
        if over := self._gates.is_needless(remediation):
            return self._slot_gate.let_be(remediation, now, f"drain abandoned: {over}")
        if (why := self._gates.at_rest(remediation, view)) is not None:
            return waits(remediation, "drain", why)
        if (result := self._slot_gate.no_drain(remediation, now)) is not None:
            return result
        if is_adopted:
            return self._adopted_or_lost(remediation, view, now)
        remediation = self._intend_drain(remediation, now)
        view = self._orchestrator.view()
        if not view.undrained:
            return self._adopted_or_lost(remediation, view, now)
        if (why := self._gates.at_rest(remediation, view)) is not None:
            return waits(remediation, "drain", why)
        return self._quarantine(remediation, now)

    def _quarantine(self, remediation: Remediation, now: datetime) -> StepResult:
        try:
            self._orchestrator.quarantine(remediation.text)
        except BackendRefused as error:
            message = f"drain refused, will be tried again: {error}"
            return StepResult(remediation=remediation, message=message, refusal=Refusal.REFUSED)
        except BackendUnknown as error:
            message = f"drain: no answer, will be read back: {error}"
            return StepResult(
                remediation=replace(remediation, drain_unanswered=now), message=message, refusal=Refusal.UNREADABLE
            )
        view = self._orchestrator.view(jobs=True)
        if view.undrained:
            return StepResult(
                remediation=replace(remediation, drain_unanswered=now),
                message="drain sent, not visible yet; is read again",
            )
        return self._adopted_or_lost(remediation, view, now, is_made=True)

    def _adopted_or_lost(
        self, remediation: Remediation, view: NodeView, now: datetime, *, is_made: bool = False
    ) -> StepResult:
        """``is_made``: the cluster acknowledged our drain just now, so that a text of its own stands over ours."""
        is_ours = (view.hold is not None and view.hold.text == remediation.text) or (is_made and view.drained_by_itself)
        is_adopted = not is_ours and self._gates.adopts(remediation, view)
        if view.hold is None or not (is_ours or is_adopted):
            return lost(remediation, view)
        message = f'drained: "{view.hold.shown}" by {view.hold.user}, {remediation.why}'
        if is_adopted:
            remediation = replace(remediation, adopted=True, drain_boot_id=self._judgement.boot_id)
            message = (
                f'goes on with the cluster\'s own drain, "{view.hold.shown}" by {view.hold.user}, for {remediation.why}'
            )
        if not remediation.command:  # it may have been let in by others while it was asleep, which is one return more
            remediation = replace(
                remediation, returns=returns_of(self._cluster.record().history, remediation.code, now)
            )
        remediation = replace(
            is_out(remediation, now),
            hold=view.hold,
            controller=view.controller,
            overwritten_boot_id=remediation.drain_boot_id if view.hold.automatic else "",
        )
        return StepResult(remediation=remediation, message=message, go_on=True)

    def _wait_idle(self, remediation: Remediation, now: datetime) -> StepResult:
        view = self._orchestrator.view(jobs=True)
        if (result := self._gates.stopped(remediation, view, now)) is not None:
            return result
        remediation = seen(remediation, view)
        if not view.idle:
            self._slot_gate.keep(remediation, now)
            message = f"drained; waiting for {', '.join(view.work or view.jobs) or 'completing work'} to end"
            return StepResult(remediation=remediation, message=message, refusal=Refusal.NOT_IDLE)
        return StepResult(
            remediation=at_next(remediation, now), message="idle: no job and no holder of a GPU is left", go_on=True
        )

    def _collect_evidence(self, remediation: Remediation, now: datetime) -> StepResult:
        """Save the evidence before anything changes it. The result names what cannot be saved, and the repair goes
        on."""
        try:
            message = f"evidence collected in {self._collect(remediation)}"
        except (HealthdError, OSError) as error:
            message = f"evidence could not be collected in full: {error}"
        if Step.REPLACE in remediation.steps:
            remediation, message = self._uploaded(remediation, message)
        return StepResult(remediation=at_next(remediation, now), message=message, go_on=True)

    def _uploaded(self, remediation: Remediation, message: str) -> tuple[Remediation, str]:
        """With the evidence where it outlives the machine, if the site has a place for it. One that refuses it holds no
        replacement back."""
        try:
            address = self._upload(remediation)
        except (HealthdError, OSError) as error:
            why = f"{message}; not uploaded, so the machine takes it away: {error}"
            return replace(remediation, evidence=""), why
        return replace(remediation, evidence=address), f"{message}; uploaded to {address}" if address else message

    def _stay(self, remediation: Remediation, now: datetime) -> StepResult:
        """Out by an operator's command, until the next. Nothing here releases the node by itself."""
        view = self._orchestrator.view(jobs=True)
        if (result := self._gates.stopped(remediation, view, now)) is not None:
            return result
        message = f"out by command, until `healthd release`: {remediation.command}"
        return StepResult(remediation=seen(remediation, view), message=message)

    def _verify(self, remediation: Remediation, now: datetime) -> StepResult:
        """Trust is earned back: nothing open, every check has run since, so for the settle time, and has run since
        then."""
        view = self._orchestrator.view(jobs=True)
        if (result := self._gates.stopped(remediation, view, now)) is not None:
            return result
        remediation = seen(remediation, view)
        self._recheck(remediation.good_since or remediation.since)
        try:
            remediation = self._retested(remediation, now)
        except TestsEndedEarly:
            return _tests_ended_early(remediation)
        if trouble := self._judgement.trouble(remediation.since):
            return self._not_healthy(_unsettled(remediation), now, trouble)
        if unproven := self._unproven(remediation):
            message = f"stays out, an operator is needed: {unproven}; see `healthd help repair` and `healthd release`"
            return StepResult(remediation=_unsettled(remediation), message=message, page=True, refusal=Refusal.PERSON)
        if remediation.good_since is None:
            began_s = self._monotonic_s()
            try:
                found = self._found_by_tests(remediation)
            except TestsEndedEarly:
                return _tests_ended_early(remediation)
            if found:
                message = f"stays out, an operator is needed: after the repair {found}; see `healthd release`"
                return StepResult(remediation=remediation, message=message, page=True, refusal=Refusal.PERSON)
            now += timedelta(seconds=self._monotonic_s() - began_s)
        good_since = remediation.good_since or now
        remediation = remediation if remediation.good_since else replace(remediation, good_since=good_since)
        returns, plain_s = 0 if remediation.release_command else remediation.returns, self._timeouts.settle_s
        long_s = settle_s(returns, plain_s, self._rules().bounds, is_repaired=bool(remediation.acts))
        if now - good_since < timedelta(seconds=long_s):
            after = f" for {long_s:g} s, after {returns} returns within a day" if long_s > plain_s else ""
            return StepResult(remediation=remediation, message=f"healthy again; settling{after}")
        if unseen := self._judgement.trouble(good_since):
            return StepResult(remediation=remediation, message=f"healthy again; settling: {unseen}")
        return StepResult(
            remediation=at_next(remediation, now), message=f"verified: healthy since {good_since:%H:%M:%S}", go_on=True
        )

    def _retested(self, remediation: Remediation, now: datetime) -> Remediation:
        """The remediation once the active tests have run again, where they found all that keeps its node out: nothing
        else ends that. Where they pass, it settles from then on. Raises TestsEndedEarly."""
        if not self._judgement.awaits_test() or self._judgement.not_checked(remediation.since):
            return remediation
        began_s = self._monotonic_s()
        if self._tests(remediation):
            return remediation
        return replace(remediation, good_since=now + timedelta(seconds=self._monotonic_s() - began_s))

    def _found_by_tests(self, remediation: Remediation) -> str:
        """The findings of the active tests on a node that was repaired, or "". A node that an operator releases is
        taken as it is. Raises TestsEndedEarly."""
        was_repaired = remediation.acts or remediation.earlier or is_replaced(remediation)
        return self._tests(remediation) if was_repaired and not remediation.release_command else ""

    def _tests(self, remediation: Remediation) -> str:
        """The findings of the active tests, or "". They load the node for minutes, so a finding counts for some time
        before they run again."""
        of, found, until_s = self._tested
        if of != remediation.id or not found or self._monotonic_s() >= until_s:
            found = self._run_tests(self.tick)
            self._tested = (remediation.id, found, self._monotonic_s() + _TESTED_AGAIN_S)
        return found

    def _unproven(self, remediation: Remediation) -> str:
        """Why the node may not be healthy although nothing shows that, or "": nothing was done since, no boot has ended
        what its drain names, or what the cluster wrote over that, and no operator takes it on himself."""
        if remediation.acts or remediation.release_command:
            return ""
        if self._is_written_over(remediation) and not (remediation.adopted or remediation.earlier):
            written = remediation.hold.shown if remediation.hold is not None else ""
            return f'the cluster wrote "{written}" over our drain, and nothing was repaired since'
        is_over = self._judgement.boot_id != remediation.boot_id
        return "" if is_over and self._ends_by(remediation.code) is not ClearsBy.REPLACE else remediation.unproven

    def _not_healthy(self, remediation: Remediation, now: datetime, trouble: str) -> StepResult:
        """Wait, or after a repair and long enough, try again. A daemon that was away has not been looking meanwhile.

        Only the fault of the remediation says that its repair did not help: what else is open is decided by its own
        rule. A fact that cannot be read (a tool is missing, a library does not answer) no further repair would show
        either: an operator has to know, and it is waited for. So it is where nothing has found the fault again since.
        """
        since = max(remediation.since, self._began or now)
        repairs = bool(REPAIRS.intersection(remediation.steps)) and not remediation.release_command
        late = repairs and now - since > timedelta(seconds=self._timeouts.verify_timeout_s)
        open_ = self._gates.open_now() if repairs else ()
        unseen = [
            self._judgement.not_seen_again(each.root.code, each.diagnosis.component, remediation.since)
            for each in open_
        ]
        failed = not_helped(remediation, [each for each, why in zip(open_, unseen, strict=True) if not why])
        if failed and not remediation.attempts:
            return StepResult(
                remediation=before_the_act(remediation, now),
                message=f"{remediation.ladder[0]} is needed after all: {failed}",
            )
        if failed and late:
            return self._repairs.again_or_fail(remediation, now, f"not healthy after the repair: {failed}")
        message = f"out until it is healthy: {'; '.join(filter(None, dict.fromkeys((trouble, *unseen))))}"
        return StepResult(remediation=remediation, message=message, page=late, refusal=Refusal.NOT_WELL)

    def _release(self, remediation: Remediation, now: datetime) -> StepResult:
        view = self._orchestrator.view()
        if remediation.phase is Phase.INTENDED and (view.undrained or view.hold is None):
            return self._undrained(remediation, view, now)
        if self._inherited and Step.DRAIN in remediation.steps:  # as of a drain: it may have been sent
            remediation = replace(remediation, unanswered=now)
        if (result := self._gates.stopped(remediation, view, now)) is not None:
            return result
        if not remediation.settling and (result := self._not_released(remediation, now)) is not None:
            return result
        if Step.DRAIN not in remediation.steps and not self._is_down_since(view):
            return self._released_by_slot(remediation, view)
        if self._is_clusters(remediation) and not (
            remediation.acts or remediation.earlier or remediation.release_command
        ):
            return left_to_cluster(remediation)
        if down := self._gates.down_unexplained(remediation, view):
            return waits(remediation, "release", Refused(kind=Refusal.DOWN, reason=down))
        if remediation.phase is Phase.PLANNED:
            remediation = self._journal.intend(remediation, now, "release")
            view = self._orchestrator.view()
            if (result := self._gates.not_ours_any_more(remediation, view, now)) is not None:
                return result
        return self._undrain(remediation, view, now)

    def _undrain(self, remediation: Remediation, view: NodeView, now: datetime) -> StepResult:
        """The release itself, by ``view``: the last reading before it."""
        if down := self._gates.down_unexplained(remediation, view):
            return waits(remediation, "release", Refused(kind=Refusal.DOWN, reason=down))
        if (why := self._gates.at_rest(remediation, view)) is not None:
            return waits(remediation, "release", why)
        try:
            self._orchestrator.release(resume="DOWN" in view.flags)
        except BackendRefused as error:
            message = f"release refused, will be tried again: {error}"
            return StepResult(remediation=remediation, message=message, refusal=Refusal.REFUSED)
        except BackendUnknown as error:
            message = f"release: no answer, will be read back: {error}"
            return StepResult(
                remediation=replace(remediation, unanswered=now), message=message, refusal=Refusal.UNREADABLE
            )
        view = self._orchestrator.view()
        if view.undrained:
            return self._undrained(remediation, view, now)
        return StepResult(remediation=remediation, message="release sent, not visible yet; is read again")

    def _not_released(self, remediation: Remediation, now: datetime) -> StepResult | None:
        """Why the release is taken back, or waits; None where nothing is against it.

        A forced one covers what was open when it was commanded, and no later fault: a remediation of the policy's goes
        on for that one, and one by command stays out until it is over. After an act that the release waited for, every
        check runs once more before the node is back, whatever it cannot tell.
        """
        forced_at = remediation.forced_at
        trouble = self._judgement.trouble(remediation.opened) if forced_at is None else self._judgement.still_open()
        if trouble:
            is_over = forced_at is not None and not remediation.command
            back = replace(
                remediation,
                index=remediation.steps.index(Step.VERIFY),
                phase=Phase.PLANNED,
                since=now,
                good_since=None,
                release_command="" if is_over else remediation.release_command,
                forced_at=None,
            )
            return StepResult(remediation=back, message=f"release taken back: {trouble}")
        if forced_at is None or remediation.since <= forced_at:
            return None
        self._recheck(remediation.since)
        why = self._judgement.not_checked(remediation.since, unknowns=False)
        return waits(remediation, "release", Refused(kind=Refusal.NOT_WELL, reason=why)) if why else None

    def _is_clusters(self, remediation: Remediation) -> bool:
        """Whether what keeps the node out is the cluster's own word. The end of our fault says nothing of that."""
        return remediation.adopted or self._is_written_over(remediation)

    def _is_written_over(self, remediation: Remediation) -> bool:
        """Whether the cluster wrote over our drain in this boot what it found: a process that does not end."""
        is_of_this_boot = remediation.overwritten_boot_id == self._judgement.boot_id
        return remediation.hold is not None and remediation.hold.automatic and is_of_this_boot

    def _undrained(self, remediation: Remediation, view: NodeView, now: datetime) -> StepResult:
        """The end, unless a drain or an undrain is still on its way: a controller that slept applies what it finds when
        it wakes, and the one must find this remediation, the other no drain of the next. Until then the remediation,
        and with it the node's place, stays."""
        until = self._gates.comes_until(remediation, now)
        return (
            ended(remediation, End.RELEASED, _released(view))
            if until is None
            else lingers(remediation, "undrained", until)
        )

    def _is_down_since(self, view: NodeView) -> bool:
        """Whether a platform that acts by our requests alone has put the node back, and the cluster took it out by
        itself since, for an unannounced boot: then only our release ends that."""
        is_automatic = view.hold is not None and view.hold.automatic
        return self._provisioner.state_owner is StateOwner.AFTER_ASKING and is_automatic and "DOWN" in view.flags

    def _released_by_slot(self, remediation: Remediation, view: NodeView) -> StepResult:
        """Where the platform has the node's state there is nothing of ours to undo but the budget slot."""
        if not view.undrained:
            shown = "/".join(sorted(view.flags)) + (f', "{view.hold.text}"' if view.hold is not None else "")
            message = f"release waits: the platform has not put the node back yet ({shown}); where it never does, do so"
            return StepResult(remediation=remediation, message=message, refusal=Refusal.MANAGED)
        return ended(remediation, End.RELEASED, "verified, and put back by its platform")

    def _watch(self, remediation: Remediation, now: datetime) -> StepResult:
        """Given up: the node stays out by our drain, and what an operator does with that is respected as ever."""
        view = self._orchestrator.view(jobs=True)
        if (result := self._gates.watched(remediation, view, now)) is not None:
            return result
        self._slot_gate.given_up(remediation)
        return StepResult(remediation=seen(remediation, view), message=remediation.note)

    def _intend_drain(self, remediation: Remediation, now: datetime) -> Remediation:
        """Write the intent, unless it is written. A node that is DOWN later is judged by the boot it was drained in."""
        if remediation.phase is Phase.INTENDED and remediation.drain_boot_id == self._judgement.boot_id:
            return remediation
        return self._journal.intend(replace(remediation, drain_boot_id=self._judgement.boot_id), now, "drain")


def _unsettled(remediation: Remediation) -> Remediation:
    """The remediation whose settle time has not begun, or begins again."""
    return remediation if remediation.good_since is None else replace(remediation, good_since=None)


def _tests_ended_early(remediation: Remediation) -> StepResult:
    message = "not verified yet; the active tests run later, they were ended"
    return StepResult(remediation=remediation, message=message, refusal=Refusal.NOT_WELL)


def _released(view: NodeView) -> str:
    if view.undrained:
        return "released: back in service"
    return f"released: our drain is gone, what is left is not ours: {'/'.join(sorted(view.flags))}"


_REPAIR_LOOKS_EVERY_S = 30.0
_SLOT_LOOKS_EVERY = timedelta(minutes=5)
_TESTED_AGAIN_S = 900.0
_PAGES = frozenset({Refusal.BUDGET, Refusal.CORRELATED, Refusal.HELD_BACK, Refusal.UNREADABLE})


class SlotGate:
    """The slots of one node's remediations."""

    def __init__(
        self, dependencies: Dependencies, *, cluster: ClusterView, gates: Gates, decider: Decider, journal: StepJournal
    ) -> None:
        self._orchestrator, self._slots = dependencies.orchestrator, dependencies.slots
        self._judgement, self._rules = dependencies.judgement, dependencies.rules
        self._cluster, self._gates, self._decider, self._journal = cluster, gates, decider, journal
        self._restarts_jobs = dependencies.jobs is not None
        self._objected: Refused | None = None
        self._asked_for = ""
        self._kept: datetime | None = None

    def take(self, remediation: Remediation, now: datetime, *, hurry: bool) -> StepResult:
        """Take a slot of the fleet's budget and see, after the settle time, that it is still ours.

        It keeps new jobs off from the first moment, and touches neither the node's state nor a reason.
        """
        is_new = remediation.since == now
        over = "" if is_new else self._gates.is_needless(remediation)
        if not is_new and not over and self._slots.due_in_s():
            move = self._slots.take()  # as it was: no backend is asked
            if not (isinstance(move, Settle) and self._haste(remediation, move, hurry=hurry)):
                return self._answered(remediation, move, now, hurry=hurry)
            self._slots.reread()
        if not is_new or remediation.command:  # else the decision has just read what an intent must be read from
            view = self._orchestrator.view()
            if not view.undrained and not self._gates.adopts(remediation, view):
                return _out_already(remediation, view, now)
            if over:
                return self.let_be(remediation, now, f"not taken out: {over}")
            if (why := self._gates.at_rest(remediation, view)) is not None:
                return waits(remediation, "taking a slot", why)
        if not remediation.fenced:
            remediation = replace(remediation, fenced=True)
            self._journal.write(remediation, "intends to take a slot")
        self._objected = None
        try:
            move = self._slots.take() if is_new else self._taken(remediation, now)
        except BackendRefused as error:
            return StepResult(
                remediation=remediation, message=f"no slot can be taken: {error}", page=True, refusal=Refusal.REFUSED
            )
        return self._answered(remediation, move, now, hurry=hurry)

    def let_be(self, remediation: Remediation, now: datetime, why: str) -> StepResult:
        """Nothing calls for a drain any more. One that got no answer may come all the same, and must find the
        remediation."""
        until = self._gates.comes_until(remediation, now)
        return ended(remediation, End.ABANDONED, why) if until is None else lingers(remediation, why, until)

    def settled(self, remediation: Remediation, now: datetime) -> StepResult:
        """Drained in a hurry: nothing further is done before its place has settled; without one it is let go."""
        match move := self._slots.take():
            case HoldsSlots():
                return StepResult(
                    remediation=replace(remediation, settling=False), message=f"holds {_named(move)}", go_on=True
                )
            case Settle():
                return StepResult(remediation=remediation, message=f"drained: {move.reason}")
            case WaitForSlot():
                release = replace(
                    remediation, index=remediation.steps.index(Step.RELEASE), phase=Phase.PLANNED, since=now
                )
                return StepResult(
                    remediation=release, message=f"no slot was free, the drain is undone: {move.reason}", go_on=True
                )

    def no_drain(self, remediation: Remediation, now: datetime) -> StepResult | None:
        """Why the node is not drained now although its slot is held: it would not be decided any more, or the slot is
        gone."""
        if (why := self._not_now(remediation, now)) is not None:
            is_let_go = why.kind is Refusal.CORRELATED and self._gates.comes_until(remediation, now) is None
            return self._stood_back(remediation, now, why) if is_let_go else _waits(remediation, "drain", why)
        if remediation.settling or remediation.since == now or isinstance(self._slots.take(), HoldsSlots):
            return None
        return StepResult(remediation=_at_slot(remediation, now), message="its slot has to settle before the drain")

    def keep(self, remediation: Remediation, now: datetime) -> None:
        """Take the slot of a node that waits for its jobs, or for a platform that acts late, again where it is gone: on
        Kubernetes no pod is evicted from a Node without a claim. It is looked for every five minutes."""
        self._kept = self._kept or now
        if abs(now - self._kept) < _SLOT_LOOKS_EVERY:
            return
        self._kept = now
        if self._gates.has_lost_slot(remediation):
            self._slots.take(committed=True)

    def no_repair(self, remediation: Remediation, now: datetime) -> StepResult | None:
        """Why a drained node is not repaired now: its slot is gone and no other is free, or many have what it has."""
        act = str(remediation.step).replace("_", " ")
        is_ours = Step.DRAIN in remediation.steps or bool(
            self._slots.held()
        )  # else it was taken away: a command, not a gap
        if is_ours and isinstance(move := self._slots.take(committed=True), WaitForSlot):
            why = Refused(kind=Refusal.BUDGET, reason=f"its slot is gone, and {move.reason}")
            return _waits(remediation, act, why)
        if remediation.command:
            return None
        against = self._against_repair(remediation, now)
        self._asked_for = remediation.id
        return None if against is None else _waits(remediation, act, against)

    def _against_repair(self, remediation: Remediation, now: datetime) -> Refused | None:
        """The part of other nodes in it: many at once, or the story of days. Of a repair that waits, for them or for an
        operator, the fleet is not read by each reconcile."""
        again, bounds = self._asked_for == remediation.id, self._rules().bounds
        view, fleet = self._cluster.around(max_age_s=_REPAIR_LOOKS_EVERY_S if again else None)
        if message := many_at_once(
            remediation.code, self._began(remediation), view.name, elsewhere(view.name, fleet, now), bounds
        ):
            return Refused(kind=Refusal.CORRELATED, reason=message)
        message = held_back(
            ACTS[remediation.step], remediation.code, view.name, records_of(fleet, now), now=now, bounds=bounds
        )
        return Refused(kind=Refusal.HELD_BACK, reason=message) if message else None

    def show(self, remediation: Remediation, *, holds: bool = True) -> str:
        """Show the finding of a remediation, or that a command began it: a daemon with an empty store must not end
        that. Returns why it cannot be shown, or ""."""
        return self._cluster.show(remediation.code, self._began(remediation), holds=holds)

    def given_up(self, remediation: Remediation) -> None:
        """Leave with the cluster that what was done for this remediation did not help. Raises BackendError."""
        self._cluster.remember(remediation)

    def given_back(self, remediation: Remediation) -> StepResult:
        """The last act of a remediation. Until it is done, no other begins."""
        try:
            self._gates.let_sleep()
            self._cluster.hide(remediation)
            dropped = self._slots.give_back()
        except BackendError as error:
            return StepResult(
                remediation=remediation,
                message=f"{_without_slot(remediation)}; its slot could not be given back yet: {error}",
            )
        slots = ", ".join(f"{slot.scope} {slot.index}" for slot in dropped)
        message = f"{_without_slot(remediation)}; slot {slots} given back" if dropped else _without_slot(remediation)
        return StepResult(remediation=replace(remediation, fenced=False), message=message)

    # -----------------------------------------------------------------------------------------------------------------

    def _answered(
        self, remediation: Remediation, move: WaitForSlot | Settle | HoldsSlots, now: datetime, *, hurry: bool
    ) -> StepResult:
        match move:
            case HoldsSlots():
                if (
                    Step.DRAIN in remediation.steps or (why := self._not_now(remediation, now)) is None
                ):  # a drain asks for itself
                    out = at_next(remediation, now) if Step.DRAIN in remediation.steps else is_out(remediation, now)
                    return StepResult(remediation=out, message=f"holds {_named(move)}", go_on=True)
                if why.kind is Refusal.CORRELATED:
                    return self._stood_back(remediation, now, why)
                return _waits(remediation, "taking a slot", why)
            case Settle():
                unseen = self.show(remediation)
                if haste := self._haste(remediation, move, hurry=hurry):
                    message = f"holds a slot, and drains at once: {haste}"
                    return StepResult(
                        remediation=replace(at_next(remediation, now), settling=True), message=message, go_on=True
                    )
                return StepResult(
                    remediation=remediation, message="; ".join(filter(None, (f"fenced: {move.reason}", unseen)))
                )
            case WaitForSlot():
                objected = self._objected is not None and self._objected.reason == move.reason
                kind = self._objected.kind if self._objected is not None and objected else Refusal.BUDGET
                unseen = self.show(remediation, holds=False) if kind is Refusal.CORRELATED else ""
                message = "; ".join(filter(None, (f"waits for a slot: {move.reason}", unseen)))
                return StepResult(remediation=remediation, message=message, page=True, refusal=kind)

    def _haste(self, remediation: Remediation, move: Settle, *, hurry: bool) -> str:
        """Why the node is drained before its slot has settled, or "". All nodes of a job that cannot go on wait for
        that; as many nodes as there are slots are drained so, and one whose slot is lost is undrained. A fleet that is
        over its limit already, as it was read just now, has none of it: others may have to make room, or this node."""
        if Step.DRAIN not in remediation.steps or not move.has_room:
            return ""
        if hurry:
            return "a job is about to start"
        ends_job = self._restarts_jobs and ending_job(self._gates.open_now()) is not None
        return "a job that cannot go on waits for it" if ends_job else ""

    def _not_now(self, remediation: Remediation, now: datetime) -> Refused | None:
        """Whether what was decided then would be decided now. A command is its own decision, and stands; so does a
        repair that was made and is not proven yet, whose fault is not decided about any more."""
        stands = remediation.command or (remediation.attempts and self._gates.is_over(remediation))
        return None if stands else self._decider.forbidden(now)

    def _taken(self, remediation: Remediation, now: datetime) -> WaitForSlot | Settle | HoldsSlots:
        """Go on towards the slots, and ask for one only where a fresh reading of the fleet has nothing against it."""
        move = self._slots.take_unless_new()
        if not isinstance(move, MayTakeSlot):
            return move
        self._objected = self._not_now(remediation, now)
        return self._slots.claim(move) if self._objected is None else self._slots.wait(self._objected.reason)

    def _stood_back(self, remediation: Remediation, now: datetime, why: Refused) -> StepResult:
        """Let the node go and wait: what it shows stays, so that the others see it too. Written before it is done, so
        that a remediation at its drain always has its place.
        """
        self._objected, remediation = why, _at_slot(remediation, now)
        self._journal.write(remediation, f"intends to give its slot back: {why.reason}")
        move = self._slots.stand_back(why.reason)
        return StepResult(
            remediation=remediation, message=f"waits for a slot: {move.reason}", page=True, refusal=why.kind
        )

    def _began(self, remediation: Remediation) -> datetime:
        """When what the remediation is about was first seen, if that is open still."""
        roots = [root for diagnosis in self._judgement.diagnoses() for root in roots_of(diagnosis)]
        return min((root.since for root in roots if root.code == remediation.code), default=remediation.opened)


def _at_slot(remediation: Remediation, now: datetime) -> Remediation:
    return replace(remediation, index=0, phase=Phase.PLANNED, settling=False, since=now)


def _waits(remediation: Remediation, act: str, why: Refused) -> StepResult:
    return waits(remediation, act, why, page=why.kind in _PAGES)


def _out_already(remediation: Remediation, view: NodeView, now: datetime) -> StepResult:
    """Drained before our drain: by this remediation, before it was killed or lost its slot; else by another."""
    if view.hold is not None and view.hold.text == remediation.text:
        return StepResult(
            remediation=at_next(remediation, now), message="drained by this remediation already", go_on=True
        )
    return lost(remediation, view)


def _named(move: HoldsSlots) -> str:
    return "slot " + ", ".join(f"{slot.scope} {slot.index}" for slot in move.slots)


def _without_slot(remediation: Remediation) -> str:
    return remediation.note.partition("; its slot could not")[0]
