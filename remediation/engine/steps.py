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

from dataclasses import replace
from datetime import datetime, timedelta

from healthd.core.errors import BackendError, BackendRefused, BackendUnknown, HealthdError
from healthd.core.model import ClearsBy, Refusal, Refused, Step
from healthd.judge.clock import JUMP, ClockWatch, moved, was_set
from healthd.remediation.decide.drive import KnownFaults, heading_back, not_helped, only_out
from healthd.remediation.decide.fleet import Go, MayClaim, Settle, WaitForSlot
from healthd.remediation.decide.ledger import held_back, records_of, returns_of, settle_s
from healthd.remediation.decide.policy import many_at_once
from healthd.remediation.decide.remediation import ACTS, End, Phase, Remediation, shifted
from healthd.remediation.decide.rules import REPAIRS, roots_of
from healthd.remediation.engine.deciding import ClusterView, Decider, elsewhere
from healthd.remediation.engine.dependencies import Dependencies
from healthd.remediation.engine.gates import Gates, lost, seen
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
from healthd.remediation.ports import NodeView

_ACTS = {Step.RESET: "GPU reset", Step.REBOOT: "reboot", Step.REPLACE: "replacement"}


class Steps:
    """All steps of one node's remediations."""

    def __init__(self, parts: Dependencies, *, cluster: ClusterView, decider: Decider, journal: StepJournal) -> None:
        self._orchestrator, self._judgement = parts.orchestrator, parts.judgement
        self._cluster, self._journal, self._gates = cluster, journal, Gates(parts)
        self._repairs = Repairs(
            orchestrator=parts.orchestrator,
            provisioner=parts.provisioner,
            resetter=parts.resetter,
            judgement=parts.judgement,
            gates=self._gates,
            intents=OwnIntents(parts, journal),
            patience=parts.patience,
        )
        self._slot_gate = SlotGate(parts, cluster=cluster, gates=self._gates, decider=decider, journal=journal)
        self._collect, self._look_again, self._start = parts.collect, parts.look_again, parts.resetter.start
        self._rules = parts.rules
        self._patience, self._clock, self._monotonic_s = parts.patience, parts.clock, parts.monotonic_s
        self._clock_watch, self._unmoved = ClockWatch(parts.clock(), parts.monotonic_s()), timedelta()
        self._ends_by = parts.hindsight.ends_by
        self.hurry = False
        self._began: datetime | None = None
        self._inherited = False
        self._moved: datetime | None = None

    def take(self, case: Remediation, now: datetime) -> StepResult:
        """Do what the case stands at, as far as it goes now, and write down what came of it. Raises HealthdError."""
        if self._began is None:
            self._inherited = case.phase is Phase.INTENDED
        self._began, self._moved = self._began or now, self._moved or now
        case = self._repaid(StepResult(case=heading_back(case, now), said=case.note)).case
        if case.forced and not case.has_ended:
            self._judgement.acknowledge(now, f"released by force, {case.release_order}")
        if case.has_ended:
            turn = self._slot_gate.given_back(case)
        elif case.end is End.FAILED:
            turn = self._watch(case, now)
        elif (why := self._gates.at_rest(case)) is not None:
            turn = self._repairs.let_rest(self._gates.resting(case, why, now))
        elif case.settling and case.step not in (Step.DRAIN, Step.RELEASE):
            turn = self._slot_gate.settled(case, now)
        else:
            turn = self._kept_from_repair(case, now) or self._taken(case, now)
        self._inherited = False
        stays_given_up = case.end is turn.case.end is End.FAILED  # its note is why an operator is needed
        turn = replace(turn, case=replace(turn.case, note=case.note if stays_given_up else turn.said))
        if turn.case != self._journal.last:
            self._journal.write(turn.case, turn.said)
            self._moved = now
        turn = self._repaid(turn)
        if turn.case.is_open and turn.case.has_ended and not case.has_ended:
            return self.take(turn.case, now)  # the slot is given back last, when the end is on disk
        return turn

    def stood(self, now: datetime) -> timedelta:
        """For how long the open remediation has not moved; no time without one."""
        case = self._journal.last
        is_open = case is not None and case.is_open
        return now - self._moved if is_open and self._moved is not None else timedelta()

    @property
    def viewed(self) -> NodeView | None:
        """The last reading of the node for the case that is open, or None."""
        return None if self._journal.last is None else self._gates.viewed

    def _kept_from_repair(self, case: Remediation, now: datetime) -> StepResult | None:
        """The gates before a repair is begun, and no longer once it may have been: first whether it is needed. However
        long it waits, an operator who undoes the drain ends it."""
        if case.step not in REPAIRS or case.phase is not Phase.PLANNED:
            return None
        if over := self._gates.is_over(case):
            return StepResult(case=at_next(case, now), said=f"no {_ACTS[case.step]} is needed: {over}", go_on=True)
        turn = self._slot_gate.no_repair(case, now) or self._unapproved(case, now)
        if turn is None or case.hold is None:
            return turn
        return self._gates.watched(case, self._orchestrator.view(jobs=True), now) or turn

    def _unapproved(self, case: Remediation, now: datetime) -> StepResult | None:
        """The wait for an operator's approval, where the mode asks for one; what was asked is on disk first."""
        asked = self._gates.approval(case, now)
        if asked.remediation == case and asked.waits is None:
            return None
        if asked.news:
            self._journal.write(asked.remediation, asked.news)
        if asked.waits is None:
            return StepResult(case=asked.remediation, said=asked.news, go_on=True)
        return waits(asked.remediation, _ACTS[case.step], asked.waits, page=True)

    def seen(self, case: Remediation, now: datetime) -> KnownFaults:
        """The open faults as they are known now, for the question which of them drives the remediation."""
        since = max(case.since, self._began or now)
        return KnownFaults(
            now=now,
            open=self._gates.open_now(),
            looked=not self._judgement.not_looked(case.since),
            waited=self.stood(now) if only_out(case) else now - since,
            settle=timedelta(seconds=self._patience.settle_s),
            verify_timeout=timedelta(seconds=self._patience.verify_timeout_s),
        )

    def show(self, case: Remediation) -> str:
        """Let the other nodes see what the case is about now; why they cannot, or ""."""
        return self._slot_gate.show(case)

    def resume(self) -> Remediation | None:
        """The open remediation as the disk has it, or None; its times moved with the clock, where that was set. Raises
        StoreError.

        A step forward must not use up the timeout of a repair, nor one back keep a node out for as much longer.
        """
        case, now = self._journal.read(), self._clock()
        if by := self._clock_watch.look(now, self._monotonic_s()):
            self._unmoved += by
            self._began = self._began and moved(self._began, by, now)
            self._moved = self._moved and moved(self._moved, by, now)
        if case is not None and self._unmoved:
            said = f"{was_set(self._unmoved)}: what is waited for is waited for as long as before"
            self._journal.write(shifted(case, self._unmoved, now), said)
        elif case is not None and case.since - now > JUMP:
            self._journal.write(
                shifted(case, timedelta(), now), "the clock was set back since: what is waited for begins now"
            )
        self._unmoved = timedelta()
        return self._journal.last

    def _repaid(self, turn: StepResult) -> StepResult:
        """With everything started that a GPU reset stopped, once that is over, whatever it came to. Its end is on disk
        then: a kill in here, or a start that takes its time, is no reason for another reset."""
        case = turn.case
        is_under_way = case.step is Step.RESET and case.phase is Phase.INTENDED and case.end is None
        if not case.stopped or is_under_way:
            return turn
        wrong = self._start(case.stopped)
        said = f"{turn.said}; not started again: {wrong}" if wrong else turn.said
        case = replace(case, stopped=(), note=said)
        self._journal.write(
            case, f"not started again: {wrong}" if wrong else f"started again: {', '.join(turn.case.stopped)}"
        )
        return replace(turn, case=case, said=said)

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _taken(self, case: Remediation, now: datetime) -> StepResult:
        match case.step:
            case Step.SLOT:
                return self._slot_gate.take(case, now, hurry=self.hurry)
            case Step.DRAIN:
                return self._drain(case, now)
            case Step.WAIT_IDLE:
                return self._wait_idle(case, now)
            case Step.COLLECT:
                return self._collect_evidence(case, now)
            case Step.RESET:
                return self._repairs.reset(case, now)
            case Step.REBOOT:
                return self._repairs.reboot(case, now)
            case Step.REPLACE:
                return self._repairs.replace(case, now)
            case Step.STAY:
                return self._stay(case, now)
            case Step.VERIFY:
                return self._verify(case, now)
            case Step.RELEASE:
                return self._release(case, now)

    def _drain(self, case: Remediation, now: datetime) -> StepResult:
        """Take the node out, unless it is out already: by us (adopt it) or by others (leave it)."""
        view = self._orchestrator.view(jobs=True)
        is_adopted = self._gates.adopts(case, view)
        if not (view.standing or is_adopted):
            return self._adopted_or_lost(case, view, now)
        if self._inherited:  # whoever was killed may have sent it and had no answer
            case = replace(case, drain_unanswered=now)
        if over := self._gates.is_needless(case):
            return self._slot_gate.let_be(case, now, f"drain abandoned: {over}")
        if (why := self._gates.at_rest(case, view)) is not None:
            return waits(case, "drain", why)
        if (turn := self._slot_gate.no_drain(case, now)) is not None:
            return turn
        if is_adopted:
            return self._adopted_or_lost(case, view, now)
        case = self._intend_drain(case, now)
        view = self._orchestrator.view()
        if not view.standing:
            return self._adopted_or_lost(case, view, now)
        if (why := self._gates.at_rest(case, view)) is not None:
            return waits(case, "drain", why)
        return self._quarantine(case, now)

    def _quarantine(self, case: Remediation, now: datetime) -> StepResult:
        try:
            self._orchestrator.quarantine(case.text)
        except BackendRefused as error:
            said = f"drain refused, will be tried again: {error}"
            return StepResult(case=case, said=said, refusal=Refusal.REFUSED)
        except BackendUnknown as error:
            said = f"drain: no answer, will be read back: {error}"
            return StepResult(case=replace(case, drain_unanswered=now), said=said, refusal=Refusal.UNREADABLE)
        view = self._orchestrator.view(jobs=True)
        if view.standing:
            return StepResult(
                case=replace(case, drain_unanswered=now), said="drain: not to be seen yet, will be read back"
            )
        return self._adopted_or_lost(case, view, now, is_made=True)

    def _adopted_or_lost(
        self, case: Remediation, view: NodeView, now: datetime, *, is_made: bool = False
    ) -> StepResult:
        """``is_made``: the cluster acknowledged our drain just now, so that a text of its own stands over ours."""
        is_ours = (view.hold is not None and view.hold.text == case.text) or (is_made and view.drained_by_itself)
        is_adopted = not is_ours and self._gates.adopts(case, view)
        if view.hold is None or not (is_ours or is_adopted):
            return lost(case, view)
        said = f'drained: "{view.hold.shown}" by {view.hold.user}, {case.why}'
        if is_adopted:
            case = replace(case, adopted=True, drain_boot_id=self._judgement.boot_id)
            said = f'goes on with the cluster\'s own drain, "{view.hold.shown}" by {view.hold.user}, for {case.why}'
        if not case.order:  # it may have been let in by others while it was asleep, which is one return more
            case = replace(case, returns=returns_of(self._cluster.record().history, case.code, now))
        case = replace(is_out(case, now), hold=view.hold, controller=view.controller)
        return StepResult(case=case, said=said, go_on=True)

    def _wait_idle(self, case: Remediation, now: datetime) -> StepResult:
        view = self._orchestrator.view(jobs=True)
        if (turn := self._gates.stopped(case, view, now)) is not None:
            return turn
        case = seen(case, view)
        if not view.idle:
            said = f"drained; waiting for {', '.join(view.work or view.jobs) or 'completing work'} to end"
            return StepResult(case=case, said=said, refusal=Refusal.NOT_IDLE)
        return StepResult(case=at_next(case, now), said="idle: no job and no holder of a GPU is left", go_on=True)

    def _collect_evidence(self, case: Remediation, now: datetime) -> StepResult:
        """Save the evidence before anything changes it. The result names what cannot be saved, and the repair goes
        on."""
        try:
            said = f"evidence collected in {self._collect(case)}"
        except (HealthdError, OSError) as error:
            said = f"evidence could not be collected in full: {error}"
        return StepResult(case=at_next(case, now), said=said, go_on=True)

    def _stay(self, case: Remediation, now: datetime) -> StepResult:
        """Out by an operator's command, until the next. Nothing here releases the node by itself."""
        view = self._orchestrator.view(jobs=True)
        if (turn := self._gates.stopped(case, view, now)) is not None:
            return turn
        said = f"out by command, until `healthd release`: {case.order}"
        return StepResult(case=seen(case, view), said=said)

    def _verify(self, case: Remediation, now: datetime) -> StepResult:
        """Trust is earned back: nothing open, every check has run since, so for the settle time, and has run since
        then."""
        view = self._orchestrator.view(jobs=True)
        if (turn := self._gates.stopped(case, view, now)) is not None:
            return turn
        case = seen(case, view)
        self._look_again(case.good_since or case.since)
        if trouble := self._judgement.trouble(case.since):
            return self._not_well(replace(case, good_since=None), now, trouble)
        if self._is_unproven(case):
            said = (
                f"stays out, an operator is needed: {case.unproven}; see `healthd repair --step` and `healthd release`"
            )
            return StepResult(case=replace(case, good_since=None), said=said, page=True, refusal=Refusal.PERSON)
        good_since = case.good_since or now
        case = replace(case, good_since=good_since)
        returns, plain_s = 0 if case.release_order else case.returns, self._patience.settle_s
        long_s = settle_s(returns, plain_s, self._rules().bounds, is_repaired=bool(case.acts))
        if now - good_since < timedelta(seconds=long_s):
            after = f" for {long_s:g} s, after {returns} returns within a day" if long_s > plain_s else ""
            return StepResult(case=case, said=f"healthy again; settling{after}")
        if unseen := self._judgement.trouble(good_since):
            return StepResult(case=case, said=f"healthy again; settling: {unseen}")
        return StepResult(case=at_next(case, now), said=f"verified: healthy since {good_since:%H:%M:%S}", go_on=True)

    def _is_unproven(self, case: Remediation) -> bool:
        """Whether what the case found named in its drain may be there although it is not seen: nothing was done since,
        no boot has ended it, and no operator takes it on himself."""
        if not case.unproven or case.acts or case.release_order:
            return False
        return self._judgement.boot_id == case.boot_id or self._ends_by(case.code) is ClearsBy.REPLACE

    def _not_well(self, case: Remediation, now: datetime, trouble: str) -> StepResult:
        """Wait, or after a repair and long enough, try again. A daemon that was away has not been looking meanwhile.

        Only the fault of the case says that its repair did not help: what else is open is decided by its own rule. A
        fact that cannot be read (a tool is missing, a library does not answer) no further repair would show either: an
        operator has to know, and it is waited for.
        """
        since = max(case.since, self._began or now)
        repairs = bool(REPAIRS.intersection(case.steps)) and not case.release_order
        late = repairs and now - since > timedelta(seconds=self._patience.verify_timeout_s)
        failed = not_helped(case, self._gates.open_now()) if repairs else ""
        if failed and not case.attempts:
            return StepResult(case=before_the_act(case, now), said=f"{case.ladder[0]} is needed after all: {failed}")
        if failed and late:
            return self._repairs.again_or_fail(case, now, f"not healthy after the repair: {failed}")
        return StepResult(case=case, said=f"out until it is healthy: {trouble}", page=late, refusal=Refusal.NOT_WELL)

    def _release(self, case: Remediation, now: datetime) -> StepResult:
        view = self._orchestrator.view()
        if case.phase is Phase.INTENDED and (view.standing or view.hold is None):
            return self._undrained(case, view, now)
        if self._inherited and Step.DRAIN in case.steps:  # as of a drain: it may have been sent
            case = replace(case, unanswered=now)
        if (turn := self._gates.stopped(case, view, now)) is not None:
            return turn
        if Step.DRAIN not in case.steps:
            return self._released_by_slot(case, view)
        if not (case.settling or case.forced) and (trouble := self._judgement.trouble(case.opened)):
            verify = case.steps.index(Step.VERIFY)
            case = replace(case, index=verify, phase=Phase.PLANNED, since=now, good_since=None)
            return StepResult(case=case, said=f"release taken back: {trouble}")
        if self._is_clusters(case) and not (case.acts or case.earlier or case.release_order):
            return left_to_cluster(case, "nothing was repaired")
        if down := self._gates.down_unexplained(case, view):
            return waits(case, "release", Refused(kind=Refusal.DOWN, words=down))
        if case.phase is Phase.PLANNED:
            case = self._journal.intend(case, now, "release")
            view = self._orchestrator.view()
            if (turn := self._gates.not_ours_any_more(case, view, now)) is not None:
                return turn
        if down := self._gates.down_unexplained(case, view):
            return waits(case, "release", Refused(kind=Refusal.DOWN, words=down))
        if (why := self._gates.at_rest(case, view)) is not None:
            return waits(case, "release", why)
        try:
            self._orchestrator.release(resume="DOWN" in view.flags)
        except BackendRefused as error:
            said = f"release refused, will be tried again: {error}"
            return StepResult(case=case, said=said, refusal=Refusal.REFUSED)
        except BackendUnknown as error:
            said = f"release: no answer, will be read back: {error}"
            return StepResult(case=replace(case, unanswered=now), said=said, refusal=Refusal.UNREADABLE)
        view = self._orchestrator.view()
        if view.standing:
            return self._undrained(case, view, now)
        return StepResult(case=case, said="release: not to be seen yet, will be read back")

    def _is_clusters(self, case: Remediation) -> bool:
        """Whether what keeps the node out is the cluster's own word: it drained the node before us, or in this boot it
        wrote over our drain what it found (a process that does not end). The end of our fault says nothing of that."""
        is_written_over = case.hold is not None and case.hold.automatic
        return case.adopted or (is_written_over and self._judgement.boot_id == case.drain_boot_id)

    def _undrained(self, case: Remediation, view: NodeView, now: datetime) -> StepResult:
        """The end, unless a drain or an undrain is still on its way: a controller that slept applies what it finds when
        it wakes, and the one must find this case, the other no drain of the next. Until then the case, and with it the
        node's place, stays."""
        until = self._gates.comes_until(case, now)
        return ended(case, End.RELEASED, _released(view)) if until is None else lingers(case, "undrained", until)

    def _released_by_slot(self, case: Remediation, view: NodeView) -> StepResult:
        """Where the platform has the node's state there is nothing of ours to undo but the budget slot."""
        if not view.standing:
            said = f"release waits: the platform has not put the node back yet: {'/'.join(sorted(view.flags))}"
            return StepResult(case=case, said=said, refusal=Refusal.MANAGED)
        return ended(case, End.RELEASED, "verified, and put back by its platform")

    def _watch(self, case: Remediation, now: datetime) -> StepResult:
        """Given up: the node stays out by our drain, and what an operator does with that is respected as ever."""
        view = self._orchestrator.view(jobs=True)
        if (turn := self._gates.watched(case, view, now)) is not None:
            return turn
        self._slot_gate.given_up(case)
        return StepResult(case=seen(case, view), said=case.note)

    def _intend_drain(self, case: Remediation, now: datetime) -> Remediation:
        """Write the intent, unless it is written. A node that is DOWN later is judged by the boot it was drained in."""
        if case.phase is Phase.INTENDED and case.drain_boot_id == self._judgement.boot_id:
            return case
        return self._journal.intend(replace(case, drain_boot_id=self._judgement.boot_id), now, "drain")


def _released(view: NodeView) -> str:
    if view.standing:
        return "released: back in service"
    return f"released: our drain is gone, what is left is not ours: {'/'.join(sorted(view.flags))}"


_REPAIR_LOOKS_EVERY_S = 30.0
_PAGES = frozenset({Refusal.BUDGET, Refusal.CORRELATED, Refusal.HELD_BACK, Refusal.UNREADABLE})


class SlotGate:
    """The slots of one node's remediations."""

    def __init__(
        self, parts: Dependencies, *, cluster: ClusterView, gates: Gates, decider: Decider, journal: StepJournal
    ) -> None:
        self._orchestrator, self._slots = parts.orchestrator, parts.slots
        self._judgement, self._rules = parts.judgement, parts.rules
        self._cluster, self._gates, self._decider, self._journal = cluster, gates, decider, journal
        self._objected: Refused | None = None
        self._held_back = ""

    def take(self, case: Remediation, now: datetime, *, hurry: bool) -> StepResult:
        """Take a slot of the fleet's budget and see, after the settle time, that it is still ours.

        It keeps new jobs off from the first moment, and touches neither the node's state nor a reason.
        """
        is_new = case.since == now
        over = "" if is_new else self._gates.is_needless(case)
        if not is_new and not over and self._slots.due_in_s():
            return self._answered(case, self._slots.take(), now, hurry=hurry)  # as it was: nobody is asked
        if not is_new or case.order:  # else the decision has just read what an intent must be read from
            view = self._orchestrator.view()
            if not view.standing and not self._gates.adopts(case, view):
                return _out_already(case, view, now)
            if over:
                return self.let_be(case, now, f"not taken out: {over}")
            if (why := self._gates.at_rest(case, view)) is not None:
                return waits(case, "taking a slot", why)
        if not case.fenced:
            case = replace(case, fenced=True)
            self._journal.write(case, "intends to take a slot")
        self._objected = None
        try:
            move = self._slots.take() if is_new else self._taken(case, now)
        except BackendRefused as error:
            return StepResult(case=case, said=f"no slot can be taken: {error}", page=True, refusal=Refusal.REFUSED)
        return self._answered(case, move, now, hurry=hurry)

    def let_be(self, case: Remediation, now: datetime, why: str) -> StepResult:
        """Nothing calls for a drain any more. One that got no answer may come all the same, and must find the
        remediation."""
        until = self._gates.comes_until(case, now)
        return ended(case, End.ABANDONED, why) if until is None else lingers(case, why, until)

    def settled(self, case: Remediation, now: datetime) -> StepResult:
        """Drained in a hurry: nothing further is done before its place has settled; without one it is let go."""
        match move := self._slots.take():
            case Go():
                return StepResult(case=replace(case, settling=False), said=f"holds {_named(move)}", go_on=True)
            case Settle():
                return StepResult(case=case, said=f"drained: {move.reason}")
            case WaitForSlot():
                release = replace(case, index=case.steps.index(Step.RELEASE), phase=Phase.PLANNED, since=now)
                return StepResult(case=release, said=f"no place was left: {move.reason}", go_on=True)

    def no_drain(self, case: Remediation, now: datetime) -> StepResult | None:
        """Why the node is not drained now although its slot is held: it would not be decided any more, or the slot is
        gone."""
        if (why := self._not_now(case, now)) is not None:
            is_let_go = why.kind is Refusal.CORRELATED and self._gates.comes_until(case, now) is None
            return self._stood_back(case, now, why) if is_let_go else _waits(case, "drain", why)
        if case.settling or case.since == now or isinstance(self._slots.take(), Go):
            return None
        return StepResult(case=_at_slot(case, now), said="its slot has to settle before the drain")

    def no_repair(self, case: Remediation, now: datetime) -> StepResult | None:
        """Why a drained node is not repaired now: its slot is gone and no other is free, or many have what it has."""
        act = str(case.step).replace("_", " ")
        is_ours = Step.DRAIN in case.steps or bool(self._slots.held())  # else it was taken away: an order, not a gap
        if is_ours and isinstance(move := self._slots.take(committed=True), WaitForSlot):
            why = Refused(kind=Refusal.BUDGET, words=f"its slot is gone, and {move.reason}")
            return _waits(case, act, why)
        if case.order:
            return None
        against = self._against_repair(case, now)
        self._held_back = "" if against is None else case.id
        return None if against is None else _waits(case, act, against)

    def _against_repair(self, case: Remediation, now: datetime) -> Refused | None:
        """The part of other nodes in it: many at once, or the story of days."""
        again, bounds = self._held_back == case.id, self._rules().bounds
        view, fleet = self._cluster.around(max_age_s=_REPAIR_LOOKS_EVERY_S if again else None)
        if words := many_at_once(case.code, self._began(case), view.name, elsewhere(view.name, fleet, now), bounds):
            return Refused(kind=Refusal.CORRELATED, words=words)
        words = held_back(ACTS[case.step], case.code, view.name, records_of(fleet, now), now=now, bounds=bounds)
        return Refused(kind=Refusal.HELD_BACK, words=words) if words else None

    def show(self, case: Remediation) -> str:
        """Show the finding of a remediation, or that a command began it: a daemon with an empty store must not end
        that. Returns why it cannot be shown, or ""."""
        return self._cluster.show(case.code, self._began(case))

    def given_up(self, case: Remediation) -> None:
        """Leave with the cluster that what was done for this case did not help. Raises BackendError."""
        self._cluster.remember(case)

    def given_back(self, case: Remediation) -> StepResult:
        """The last act of a case. Until it is done, no other begins."""
        try:
            self._gates.let_sleep()
            self._cluster.hide(case)
            dropped = self._slots.give_back()
        except BackendError as error:
            return StepResult(case=case, said=f"{_without_slot(case)}; its slot could not be given back yet: {error}")
        places = ", ".join(f"{slot.scope} {slot.index}" for slot in dropped)
        said = f"{_without_slot(case)}; slot {places} given back" if dropped else _without_slot(case)
        return StepResult(case=replace(case, fenced=False), said=said)

    # -----------------------------------------------------------------------------------------------------------------

    def _answered(
        self, case: Remediation, move: WaitForSlot | Settle | Go, now: datetime, *, hurry: bool
    ) -> StepResult:
        match move:
            case Go():
                if Step.DRAIN in case.steps or (why := self._not_now(case, now)) is None:  # a drain asks for itself
                    out = at_next(case, now) if Step.DRAIN in case.steps else is_out(case, now)
                    return StepResult(case=out, said=f"holds {_named(move)}", go_on=True)
                if why.kind is Refusal.CORRELATED:
                    return self._stood_back(case, now, why)
                return _waits(case, "taking a slot", why)
            case Settle():
                unseen = self.show(case)
                if hurry and Step.DRAIN in case.steps:
                    said = "holds a slot, and drains at once: a job is about to start"
                    return StepResult(case=replace(at_next(case, now), settling=True), said=said, go_on=True)
                return StepResult(case=case, said="; ".join(filter(None, (f"fenced: {move.reason}", unseen))))
            case WaitForSlot():
                objected = self._objected is not None and self._objected.words == move.reason
                kind = self._objected.kind if self._objected is not None and objected else Refusal.BUDGET
                unseen = self.show(case) if kind is Refusal.CORRELATED else ""
                said = "; ".join(filter(None, (f"waits for a slot: {move.reason}", unseen)))
                return StepResult(case=case, said=said, page=True, refusal=kind)

    def _not_now(self, case: Remediation, now: datetime) -> Refused | None:
        """Whether what was decided then would be decided now. A command is its own decision, and stands; so does a
        repair that was made and is not proven yet, whose fault is not decided about any more."""
        stands = case.order or (case.attempts and self._gates.is_over(case))
        return None if stands else self._decider.forbidden(now)

    def _taken(self, case: Remediation, now: datetime) -> WaitForSlot | Settle | Go:
        """Go on towards the slots, and ask for one only where a fresh reading of the fleet has nothing against it."""
        move = self._slots.take_unless_new()
        if not isinstance(move, MayClaim):
            return move
        self._objected = self._not_now(case, now)
        return self._slots.claim(move) if self._objected is None else self._slots.wait(self._objected.words)

    def _stood_back(self, case: Remediation, now: datetime, why: Refused) -> StepResult:
        """Let the node go and wait: what it shows stays, so that the others see it too. Written before it is done, so
        that a case at its drain always has its place.
        """
        self._objected, case = why, _at_slot(case, now)
        self._journal.write(case, f"intends to give its slot back: {why.words}")
        move = self._slots.stand_back(why.words)
        return StepResult(case=case, said=f"waits for a slot: {move.reason}", page=True, refusal=why.kind)

    def _began(self, case: Remediation) -> datetime:
        """When what the case is about was first seen, if that is open still."""
        roots = [root for diagnosis in self._judgement.diagnoses() for root in roots_of(diagnosis)]
        return min((root.since for root in roots if root.code == case.code), default=case.opened)


def _at_slot(case: Remediation, now: datetime) -> Remediation:
    return replace(case, index=0, phase=Phase.PLANNED, settling=False, since=now)


def _waits(case: Remediation, act: str, why: Refused) -> StepResult:
    return waits(case, act, why, page=why.kind in _PAGES)


def _out_already(case: Remediation, view: NodeView, now: datetime) -> StepResult:
    """Drained before our drain: by this case, before it was killed or lost its slot; else by another."""
    if view.hold is not None and view.hold.text == case.text:
        return StepResult(case=at_next(case, now), said="drained by this case already", go_on=True)
    return lost(case, view)


def _named(move: Go) -> str:
    return "slot " + ", ".join(f"{slot.scope} {slot.index}" for slot in move.slots)


def _without_slot(case: Remediation) -> str:
    return case.note.partition("; its slot could not")[0]
