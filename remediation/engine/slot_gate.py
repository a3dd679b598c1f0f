"""The place in the budget, as the first step of a case and its last act; and what the place tells the others.

A node that waits for a place asks ever more rarely, and by a reading that costs the controller little while all places
are taken. One that holds a place shows its finding: whoever looks after the settle time then sees who else claimed
for the same, and where that is many nodes, all of them step back, before any of them was drained.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from healthd.core.errors import BackendError, BackendRefused
from healthd.core.model import Refusal, Refused, Step
from healthd.remediation.decide.brakes import held_back, records_of
from healthd.remediation.decide.fleet import Go, MayClaim, Settle, WaitForSlot
from healthd.remediation.decide.policy import many_at_once
from healthd.remediation.decide.remediation import ACTS, End, Phase, Remediation
from healthd.remediation.decide.rules import roots_of
from healthd.remediation.engine.cluster_view import ClusterView, elsewhere
from healthd.remediation.engine.deciding import Decider
from healthd.remediation.engine.dependencies import Dependencies
from healthd.remediation.engine.gates import Gates, lost
from healthd.remediation.engine.journal import StepJournal
from healthd.remediation.engine.step_result import StepResult, at_next, ended, is_out, lingers, waits
from healthd.remediation.ports import NodeView

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
        """Take a place in the fleet's budget and see, after the settle time, that it is still ours.

        It keeps new jobs off from the first moment, and touches neither the node's state nor anybody's text.
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
        """Nothing calls for a drain any more. One that got no answer may come all the same, and must find its case."""
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
        """Why the node is not drained now although its place is: nobody would decide so any more, or the place is
        gone."""
        if (why := self._not_now(case, now)) is not None:
            is_let_go = why.kind is Refusal.CORRELATED and self._gates.comes_until(case, now) is None
            return self._stood_back(case, now, why) if is_let_go else _waits(case, "drain", why)
        if case.settling or case.since == now or isinstance(self._slots.take(), Go):
            return None
        return StepResult(case=_at_slot(case, now), said="its slot has to settle before the drain")

    def no_repair(self, case: Remediation, now: datetime) -> StepResult | None:
        """Why a drained node is not mended now: its place is gone and no other is free, or many have what it has."""
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
        """What other nodes have to do with it: many at once, or the story of days."""
        again, bounds = self._held_back == case.id, self._rules().bounds
        view, fleet = self._cluster.around(max_age_s=_REPAIR_LOOKS_EVERY_S if again else None)
        if words := many_at_once(case.code, self._began(case), view.name, elsewhere(view.name, fleet, now), bounds):
            return Refused(kind=Refusal.CORRELATED, words=words)
        words = held_back(ACTS[case.step], case.code, view.name, records_of(fleet, now), now=now, bounds=bounds)
        return Refused(kind=Refusal.HELD_BACK, words=words) if words else None

    def show(self, case: Remediation) -> str:
        """Show the finding of a case, or that it is an order: a daemon with an empty store must not end that. Returns
        why it cannot be shown, or ""."""
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
        """Whether what was decided then would be decided now. An order is its own decision, and stands; so does a
        repair that was made and is not proven yet, whose fault nobody decides about any more."""
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
    """Drained before our drain: by this case, before it was killed or lost its place; else by somebody."""
    if view.hold is not None and view.hold.text == case.text:
        return StepResult(case=at_next(case, now), said="drained by this case already", go_on=True)
    return lost(case, view)


def _named(move: Go) -> str:
    return "slot " + ", ".join(f"{slot.scope} {slot.index}" for slot in move.slots)


def _without_slot(case: Remediation) -> str:
    return case.note.partition("; its slot could not")[0]
