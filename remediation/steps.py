"""The steps of a case. Each looks first, writes its intent down, looks again, acts, and reads the effect back.

What is already so is adopted; what somebody else did is respected; an act without an answer is *unknown* and is read
back on a later turn. The last look before an act is one plain reading of the node, with nothing but the operator's own
rules read after it: Slurm has no compare-and-swap, and what happens between that reading and the act is not seen.

A step must not decide whether a node is to be taken out, and must not touch what its own case did not take out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from healthd.errors import BackendError, BackendRefused, BackendUnknown, HealthdError
from healthd.model import Remedy, Step
from healthd.remediation.case import Case, End, Phase
from healthd.remediation.fleet import Go, Hold, Settle
from healthd.remediation.guards import Guards, lost
from healthd.remediation.playbook import REPAIRS
from healthd.remediation.policy import Rules
from healthd.remediation.ports import NodeView, Orchestrator, Provisioner
from healthd.remediation.repairs import Repairs, Resetter
from healthd.remediation.turns import Cases, Judgement, Patience, Slots, Turn, at_next, ended
from healthd.store import Event


class Steps:
    """All steps of one node's cases.

    ``can``: whether a remedy can be carried out here. ``too_many``: why no machine of the fleet may be replaced now, or
    "". ``forbidden`` says why this node may not be drained now although it was decided, or "": the decision may be old.
    """

    def __init__(
        self,
        *,
        orchestrator: Orchestrator,
        provisioner: Provisioner,
        resetter: Resetter,
        slots: Slots,
        judgement: Judgement,
        cases: Cases,
        rules: Callable[[], Rules],
        can: Callable[[Remedy], bool],
        too_many: Callable[[], str],
        forbidden: Callable[[datetime], str],
        collect: Callable[[Case], str],
        look_again: Callable[[datetime], None],
        patience: Patience,
        clock: Callable[[], datetime],
        platform_texts: Collection[str] = (),
    ) -> None:
        self._orchestrator, self._judgement, self._cases = orchestrator, judgement, cases
        self._guards = Guards(
            orchestrator=orchestrator, slots=slots, judgement=judgement, rules=rules, platform_texts=platform_texts
        )
        self._repairs = Repairs(
            orchestrator=orchestrator,
            provisioner=provisioner,
            resetter=resetter,
            judgement=judgement,
            guards=self._guards,
            patience=patience,
            can=can,
            too_many=too_many,
            intend=self._intend,
        )
        self._slots, self._forbidden, self._collect, self._look_again = slots, forbidden, collect, look_again
        self._patience, self._clock = patience, clock
        self.hurry = False
        self._began: datetime | None = None
        self._written: Case | None = None
        self._take: Mapping[Step, Callable[[Case, datetime], Turn]] = {
            Step.SLOT: self._slot,
            Step.DRAIN: self._drain,
            Step.WAIT_IDLE: self._wait_idle,
            Step.COLLECT: self._collect_evidence,
            Step.RESET: self._repairs.reset,
            Step.REBOOT: self._repairs.reboot,
            Step.REPLACE: self._repairs.replace,
            Step.VERIFY: self._verify,
            Step.RELEASE: self._release,
        }

    def take(self, case: Case, now: datetime) -> Turn:
        """Do what the case stands at, as far as it goes now, and write down what came of it. Raises HealthdError."""
        self._began = self._began or now
        if case.has_ended:
            turn = self._given_back(case)
        elif case.end is End.FAILED:
            turn = self._watch(case, now)
        elif why := self._guards.at_rest():
            turn = Turn(case=case, said=f"case {case.id} rests at {case.step}: {why}, nothing is touched")
        elif case.settling and case.step not in (Step.DRAIN, Step.RELEASE):
            turn = self._settled(case, now)
        else:
            turn = self._take[case.step](case, now)
        moved = replace(turn.case, note=turn.said)
        if moved != self._written:
            self.write(moved, turn.said)
        if moved.is_open and moved.has_ended and not case.has_ended:
            return self.take(moved, now)  # the slot is given back last, when the end is on disk
        return replace(turn, case=moved)

    def write(self, case: Case, said: str) -> None:
        """Put a case and the sentence why it moved on disk. Raises StoreError."""
        data = {"case": case.id, "step": case.step, "phase": case.phase, "end": case.end, "code": case.code}
        self._cases.save_case(case, Event(at=self._clock(), kind="step", text=f"[{case.id}] {said}", data=data))
        self._written = case

    def resume(self) -> Case | None:
        """The open case as the disk has it, or None. Raises StoreError."""
        self._written = self._cases.open_case()
        return self._written

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _slot(self, case: Case, now: datetime) -> Turn:
        """Take a place in the fleet's budget and see, after the settle time, that it is still ours.

        It keeps new jobs off from the first moment, and touches neither the node's state nor anybody's text.
        """
        view = self._orchestrator.view()
        if not view.standing:
            return self._out_already(case, view, now)
        if case.since != now:
            if over := self._guards.is_over(case):
                return ended(case, End.ABANDONED, f"not taken out: {over}")
            if refusal := self._forbidden(now):
                return Turn(case=case, said=f"taking a slot waits: {refusal}")
        if why := self._guards.at_rest():
            return Turn(case=case, said=f"taking a slot waits: {why}")
        if not case.fenced:
            case = replace(case, fenced=True)
            self.write(case, "intends to take a slot")
        try:
            move = self._slots.take()
        except BackendRefused as error:
            return Turn(case=case, said=f"no slot can be taken: {error}", page=True)
        match move:
            case Go():
                return Turn(case=at_next(case, now), said=f"holds {_places(move)}", go_on=True)
            case Settle() if self.hurry and Step.DRAIN in case.steps:
                said = "holds a slot, and drains at once: a job is about to start"
                return Turn(case=replace(at_next(case, now), settling=True), said=said, go_on=True)
            case Settle():
                return Turn(case=case, said=f"fenced: {move.reason}")
            case Hold():
                return Turn(case=case, said=f"waits for a slot: {move.reason}", page=True)

    def _settled(self, case: Case, now: datetime) -> Turn:
        """Drained in a hurry: nothing further is done before its place has settled; without one it is let go."""
        match move := self._slots.take():
            case Go():
                return Turn(case=replace(case, settling=False), said=f"holds {_places(move)}", go_on=True)
            case Settle():
                return Turn(case=case, said=f"drained: {move.reason}")
            case Hold():
                release = replace(case, index=case.steps.index(Step.RELEASE), phase=Phase.PLANNED, since=now)
                return Turn(case=release, said=f"no place was left: {move.reason}", go_on=True)

    def _out_already(self, case: Case, view: NodeView, now: datetime) -> Turn:
        """Drained before our drain: by this case, before it was killed or lost its place; else by somebody."""
        if view.hold is not None and view.hold.text == case.text:
            return Turn(case=at_next(case, now), said="drained by this case already", go_on=True)
        return lost(case, view)

    def _given_back(self, case: Case) -> Turn:
        """The last act of a case. Until it is done, no other begins."""
        try:
            dropped = self._slots.give_back()
        except BackendError as error:
            return Turn(case=case, said=f"{_without_slot(case)}; its slot could not be given back yet: {error}")
        places = ", ".join(f"{slot.scope} {slot.index}" for slot in dropped)
        said = f"{_without_slot(case)}; slot {places} given back" if dropped else _without_slot(case)
        return Turn(case=replace(case, fenced=False), said=said)

    def _drain(self, case: Case, now: datetime) -> Turn:
        """Take the node out, unless it is out already: by us (adopt it) or by others (leave it)."""
        view = self._orchestrator.view(jobs=True)
        if not view.standing:
            return self._adopted_or_lost(case, view, now)
        if over := self._guards.is_over(case):
            return ended(case, End.ABANDONED, f"drain abandoned: {over}")
        if refusal := self._forbidden(now):
            return Turn(case=case, said=f"drain waits: {refusal}")
        case = self._intend_drain(case, now)
        view = self._orchestrator.view()
        if not view.standing:
            return self._adopted_or_lost(case, view, now)
        if why := self._guards.at_rest():
            return Turn(case=case, said=f"drain waits: {why}")
        return self._quarantine(case, now)

    def _quarantine(self, case: Case, now: datetime) -> Turn:
        try:
            self._orchestrator.quarantine(case.text)
        except BackendRefused as error:
            return Turn(case=case, said=f"drain refused, will be tried again: {error}")
        except BackendUnknown as error:
            return Turn(case=case, said=f"drain: no answer, will be read back: {error}")
        view = self._orchestrator.view(jobs=True)
        if view.standing:
            return Turn(case=case, said="drain: not to be seen yet, will be read back")
        return self._adopted_or_lost(case, view, now)

    def _adopted_or_lost(self, case: Case, view: NodeView, now: datetime) -> Turn:
        if view.hold is None or view.hold.text != case.text:
            return lost(case, view)
        said = f'drained: "{view.hold.text}" by {view.hold.user}, {case.why}'
        case = replace(at_next(case, now), hold=view.hold, controller=view.controller)
        return Turn(case=case, said=said, go_on=True)

    def _wait_idle(self, case: Case, now: datetime) -> Turn:
        view = self._orchestrator.view(jobs=True)
        if (turn := self._guards.not_ours_any_more(case, view, now)) is not None:
            return turn
        case = seen(case, view)
        if not view.idle:
            return Turn(case=case, said=f"drained; waiting for {', '.join(view.jobs) or 'completing work'} to end")
        return Turn(case=at_next(case, now), said="idle: no job and no holder of a GPU is left", go_on=True)

    def _collect_evidence(self, case: Case, now: datetime) -> Turn:
        """Save the evidence before anything changes it. What cannot be saved is said, and does not stop the repair."""
        try:
            said = f"evidence collected in {self._collect(case)}"
        except (HealthdError, OSError) as error:
            said = f"evidence could not be collected in full: {error}"
        return Turn(case=at_next(case, now), said=said, go_on=True)

    def _verify(self, case: Case, now: datetime) -> Turn:
        """Trust is earned back: nothing open, every check has looked anew, so for the settle time, and looked again."""
        view = self._orchestrator.view(jobs=True)
        if (turn := self._guards.not_ours_any_more(case, view, now)) is not None:
            return turn
        case = seen(case, view)
        self._look_again(case.good_since or case.since)
        if trouble := self._judgement.trouble(case.since):
            return self._not_well(replace(case, good_since=None), now, trouble)
        good_since = case.good_since or now
        case = replace(case, good_since=good_since)
        if now - good_since < timedelta(seconds=self._patience.settle_s):
            return Turn(case=case, said="well again; settling")
        if unseen := self._judgement.trouble(good_since):
            return Turn(case=case, said=f"well again; settling: {unseen}")
        return Turn(case=at_next(case, now), said=f"verified: well since {good_since:%H:%M:%S}", go_on=True)

    def _not_well(self, case: Case, now: datetime, trouble: str) -> Turn:
        """Wait, or after a repair and long enough, try again. A daemon that was away has not been looking meanwhile."""
        since = max(case.since, self._began or now)
        if REPAIRS.intersection(case.steps) and now - since > timedelta(seconds=self._patience.verify_timeout_s):
            return self._repairs.again_or_fail(case, now, f"not healthy after the repair: {trouble}")
        return Turn(case=case, said=f"out until it is well: {trouble}")

    def _release(self, case: Case, now: datetime) -> Turn:
        view = self._orchestrator.view()
        if case.phase is Phase.INTENDED and (view.standing or view.hold is None):
            return ended(case, End.RELEASED, _released(view))
        if (turn := self._guards.not_ours_any_more(case, view, now)) is not None:
            return turn
        if Step.DRAIN not in case.steps:
            return self._released_by_slot(case, view)
        if not case.settling and (trouble := self._judgement.trouble(case.opened)):
            verify = case.steps.index(Step.VERIFY)
            case = replace(case, index=verify, phase=Phase.PLANNED, since=now, good_since=None)
            return Turn(case=case, said=f"release taken back: {trouble}")
        if why := self._guards.down_unexplained(case, view):
            return Turn(case=case, said=f"release waits: {why}")
        if case.phase is Phase.PLANNED:
            case = self._intend(case, now, "release")
            view = self._orchestrator.view()
            if (turn := self._guards.not_ours_any_more(case, view, now)) is not None:
                return turn
        if why := self._guards.down_unexplained(case, view) or self._guards.at_rest():
            return Turn(case=case, said=f"release waits: {why}")
        try:
            self._orchestrator.release(resume="DOWN" in view.flags)
        except BackendRefused as error:
            return Turn(case=case, said=f"release refused, will be tried again: {error}")
        except BackendUnknown as error:
            return Turn(case=case, said=f"release: no answer, will be read back: {error}")
        view = self._orchestrator.view()
        if view.standing:
            return ended(case, End.RELEASED, _released(view))
        return Turn(case=case, said="release: not to be seen yet, will be read back")

    def _released_by_slot(self, case: Case, view: NodeView) -> Turn:
        """Where the platform has the node's state there is nothing of ours to undo but the place in the budget."""
        if not view.standing:
            said = f"release waits: the platform has not put the node back yet: {'/'.join(sorted(view.flags))}"
            return Turn(case=case, said=said)
        return ended(case, End.RELEASED, "verified, and put back by its platform")

    def _watch(self, case: Case, now: datetime) -> Turn:
        """Given up: the node stays out by our drain, and what a person does with that is respected as ever."""
        view = self._orchestrator.view(jobs=True)
        return self._guards.not_ours_any_more(case, view, now) or Turn(case=seen(case, view), said=case.note)

    # -- writing intents ----------------------------------------------------------------------------------------------

    def _intend(self, case: Case, now: datetime, act: str) -> Case:
        case = replace(case, phase=Phase.INTENDED, since=now)
        self.write(case, f"intends to {act}")
        return case

    def _intend_drain(self, case: Case, now: datetime) -> Case:
        """Write the intent, unless it is written. A node that is DOWN later is judged by the boot it was drained in."""
        if case.phase is Phase.INTENDED and case.drain_boot_id == self._judgement.boot_id:
            return case
        return self._intend(replace(case, drain_boot_id=self._judgement.boot_id), now, "drain")


def seen(case: Case, view: NodeView) -> Case:
    """Remember which run of the controller showed us our drain: only a later restart may have lost it."""
    return replace(case, controller=view.controller or case.controller)


def _places(move: Go) -> str:
    return "slot " + ", ".join(f"{slot.scope} {slot.index}" for slot in move.slots)


def _without_slot(case: Case) -> str:
    return case.note.partition("; its slot could not")[0]


def _released(view: NodeView) -> str:
    if view.standing:
        return "released: back in service"
    return f"released: our drain is gone, what is left is not ours: {'/'.join(sorted(view.flags))}"
