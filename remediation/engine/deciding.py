"""The cluster as the engine reads it for a decision, and the decision by it.

``ClusterView``: the node's own state is read for each question. The fleet is dear to read where many nodes ask at once,
so a question says how old its reading may be: an old one lets a node ask for a slot or wait, and is never enough to
take it out. It also writes what the node shows the others of itself, into its handoff record: one finding, the ends of
remediations, and that a daemon watches over a node that is out.

``Decider``: ``decide.policy`` says which readings it needs, and nothing else is read; while nothing is open, before an
act, and for an operator who asks. It writes nothing, and acts on nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime

from msgspec.structs import replace

from healthd.core.errors import BackendError, BackendRefused
from healthd.core.model import Decision, Diagnosis, Mode, Refusal, Refused, Remedy
from healthd.remediation.decide.drive import KnownFaults, is_untried
from healthd.remediation.decide.ledger import on_record
from healthd.remediation.decide.policy import (
    Considered,
    Needs,
    Question,
    Readings,
    Rules,
    SeenElsewhere,
    Situation,
    decide,
    decide_each,
    left_of,
    question,
)
from healthd.remediation.decide.remediation import Remediation, Repair, after, code_of
from healthd.remediation.decide.unwatched import WATCH_S
from healthd.remediation.engine.dependencies import Dependencies
from healthd.remediation.engine.slots import FIRST_PAUSE_S, LONGEST_PAUSE_S, SlotKeeper
from healthd.remediation.ports import FleetSnapshot, NodeView, Orchestrator
from healthd.remediation.records.handoff import HandoffRecord, Versions, by_now, is_ahead, parse, showing

OTHERS_AGE_S = 60.0
"""How old, in seconds, what other nodes show may be for a decision about a node that is out already."""
_LATELY_S = 10.0  # everybody may ask for the plan; the cluster is not read anew for each
_JUST_READ_S = 2.0  # in the same turn, that is
_WATCH_AGAIN_S = 600.0  # after a start, and after the record could not be written


class ClusterView:
    """One node in its cluster. Calls never overlap, but for ``lately``. ``versions``: what the node runs."""

    def __init__(
        self,
        *,
        orchestrator: Orchestrator,
        slots: SlotKeeper,
        versions: Callable[[], Versions] = Versions,
        clock: Callable[[], datetime],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._orchestrator, self._slots, self._versions, self._clock = orchestrator, slots, versions, clock
        self._monotonic_s, self._began_s = monotonic_s, monotonic_s()
        self._own: str | None = None
        self._asked: tuple[datetime, Situation] | None = None
        self._own_view: tuple[datetime, NodeView] | None = None
        self._refused: Situation | None = None
        self._pause_s, self._was_full = 0.0, False
        self._shown: tuple[str, datetime, bool] | None = None
        self._remembered = ""
        self._watch_due_s = self._began_s + _WATCH_AGAIN_S
        self.viewed: NodeView | None = None  # the last reading of the node for a decision

    # -- what is asked ------------------------------------------------------------------------------------------------

    def remembered(self) -> Situation:
        """As ``recalled``; while a refusal by the fleet is young, as it was read for that."""
        return self._refused if self._refused is not None and self._is_young() else self.recalled()

    def reread(self, decision: Decision, known: Situation | None) -> Situation | None:
        """The situation to decide by once more, where it is a refusal by what was ``known`` of the fleet; None where it
        stands. While it is one, the fleet is read ever more rarely."""
        if decision.steps or known is None or known.snapshot is None:
            self._refused, self._pause_s = None, 0.0
            return None
        if self._is_young():
            self._refused, self._pause_s = known, self._pause_s or FIRST_PAUSE_S
            return None
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        return self.looked()

    def remember_refusal(self, decision: Decision, fresh: Situation) -> None:
        """A second refusal, by this reading, is not read over again while it is young."""
        self._refused = None if decision.steps else fresh

    def looked(self) -> Situation:
        """The node and the fleet as they are read now."""
        return self._situation(self._slots.learn)

    def recalled(self) -> Situation:
        """The node as it is read now, and the fleet as it was read last, where that is of use; but not even the node
        where the slots alone say that no node could go out. After that the fleet is read: the nodes that went first
        show meanwhile what they have, and all that wait would take a slot for the settle time only to see it."""
        try:
            if full := self._slots.full():
                self._was_full = self._was_full or not full.passing
                return Situation(view=None, snapshot=None, full=full)
        except BackendError as error:
            return Situation(view=None, snapshot=None, problem=str(error))
        if self._was_full:
            self._was_full = False
            return self.just_read()
        return self._situation(lambda: self._slots.recalled() or self._slots.learn())

    def just_read(self) -> Situation:
        """The node as it is read now, and the fleet as it was read in this turn."""
        return self._situation(lambda: self._slots.recalled(max_age_s=_JUST_READ_S) or self._slots.learn())

    def lately(self) -> Situation:
        """As ``looked``, for an operator who asks: read once in a few seconds, and remembered for nothing else."""
        now = self._clock()
        if self._asked is None or not _is_young(self._asked[0], now):
            self._asked = (now, self._situation(self._orchestrator.snapshot))
        return self._asked[1]

    def own_lately(self) -> NodeView:
        """The same of this node alone. Raises BackendError."""
        now = self._clock()
        if self._asked is not None and self._asked[1].view is not None and _is_young(self._asked[0], now):
            return self._asked[1].view
        if self._own_view is None or not _is_young(self._own_view[0], now):
            self._own_view = (now, self._orchestrator.view())
        return self._own_view[1]

    def others(self) -> Situation:
        """This node as it is read now, and what other nodes showed of late. Raises BackendError."""
        view, fleet = self.around(max_age_s=OTHERS_AGE_S)
        return Situation(view=view, snapshot=fleet, fleet_findings=elsewhere(view.name, fleet, self._clock()))

    def around(self, *, max_age_s: float | None) -> tuple[NodeView, FleetSnapshot]:
        """This node as it is read now, and the fleet: as it is read now, or was so long ago. Raises BackendError."""
        fleet = None if max_age_s is None else self._slots.recalled(max_age_s=max_age_s)
        return self._orchestrator.view(), fleet or self._slots.learn()

    def record(self) -> HandoffRecord:
        """This node's own handoff record, as this daemon left it, read it with the fleet, or reads it now. Its store
        knows what it did itself since; entries of a time ahead are left out. Raises BackendError."""
        if self._own is None:
            name = self.viewed.name if self.viewed is not None else ""
            fleet = self._slots.recalled(max_age_s=self._monotonic_s() - self._began_s) if name else None
            own = self._orchestrator.read_record() if fleet is None else _own(name, fleet)
            if self._own is None:  # an answer for an operator reads it too, and must not undo what the engine wrote
                self._own = own
        return by_now(parse(self._own) or HandoffRecord(), self._clock())

    # -- what is shown ------------------------------------------------------------------------------------------------

    def show(self, code: str, since: datetime, *, holds: bool) -> str:
        """Let the others see this finding, by the handoff record; returns why they cannot, or "". Where healthd
        ``holds`` the node, this is the first word of its daemon that it watches over it.

        It is written once a slot is held, so that the nodes which re-read after the settle time see the findings of
        all that claimed with it; and once the node is held because many have the same, so that it counts meanwhile.
        Nodes that wait for a slot write nothing: a thousand that fail at once are not a thousand updates at once.
        """
        if self._shown == (code, since, holds):
            return ""
        watched = self._clock() if holds else None
        try:
            self._change(lambda before: showing(before, code, since, self._versions(), watched=watched))
        except BackendError as error:
            return f"other nodes cannot count this fault, its handoff record was not written: {error}"
        self._shown = (code, since, holds)
        return ""

    def withdraw(self, *, unless: Collection[str]) -> str:
        """While no remediation is open, take a finding out of the record, ``unless`` it is one of these. Returns why
        that cannot be done yet, or ""."""
        try:
            if (code := self.record().code) and code not in unless:
                self._change(lambda before: showing(before, "", None))
                self._shown = None
        except BackendRefused:
            self._own = ""  # somebody else's text is in its place
        except BackendError as error:
            return f"its finding may still stand in the handoff record, which other nodes read: {error}"
        return ""

    def hide(self, remediation: Remediation) -> None:
        """Take the finding out of the record, and leave there what came of the remediation. Raises BackendUnknown;
        where another text is in its place, nothing of ours is there to be taken out."""
        with contextlib.suppress(BackendRefused):
            self._change(lambda before: after(before, remediation))
        self._shown = None

    def remember(self, remediation: Remediation) -> None:
        """Leave in the record, once, that this remediation was given up. Raises BackendUnknown, see ``hide``."""
        if self._remembered != remediation.id:
            with contextlib.suppress(BackendRefused):
                self._change(lambda before: after(before, remediation))
            self._remembered = remediation.id

    def watch(self, *, holds: bool) -> None:
        """Write into the record, every WATCH_S while healthd ``holds`` the node, that its daemon watches over it. Where
        it cannot be written it is written later; others may page meanwhile."""
        now_s = self._monotonic_s()
        if not holds or now_s < self._watch_due_s:
            self._watch_due_s = self._watch_due_s if holds else now_s + WATCH_S
            return
        self._watch_due_s = now_s + _WATCH_AGAIN_S
        with contextlib.suppress(BackendError):
            self._change(lambda before: replace(parse(before) or HandoffRecord(), watched=self._clock()).text)
            self._watch_due_s = now_s + WATCH_S

    # -----------------------------------------------------------------------------------------------------------------

    def _change(self, change: Callable[[str], str]) -> None:
        """Read the node's own record, and write what ``change`` makes of it."""
        before = self._own = self._orchestrator.read_record()
        if (text := change(before)) != before:
            self._orchestrator.write_record(text)
            self._own = text

    def _is_young(self) -> bool:
        return self._slots.recalled(max_age_s=max(_JUST_READ_S, self._pause_s)) is not None

    def _situation(self, snapshot: Callable[[], FleetSnapshot]) -> Situation:
        try:
            view = self.viewed = self._orchestrator.view()
            if view.fenced and self._slots.held():
                view = replace(view, in_service=True)  # what keeps jobs off is our own place in the budget
        except BackendError as error:
            return Situation(view=None, snapshot=None, problem=str(error))
        if not view.in_service and (view.hold is None or not view.hold.automatic):
            return Situation(view=view, snapshot=None)
        try:
            fleet = snapshot()
        except BackendError as error:
            return Situation(view=view, snapshot=None, problem=str(error))
        return Situation(view=view, snapshot=fleet, fleet_findings=elsewhere(view.name, fleet, self._clock()))


def elsewhere(me: str, fleet: FleetSnapshot, now: datetime) -> tuple[SeenElsewhere, ...]:
    """The findings on other nodes, by their record; of one that is held and whose record does not show its finding, by
    its reason, to which Slurm gives a new time whenever it appends to it; and those from which they returned. An entry
    of a time that has not come is none."""
    found, shown_by = [], set[tuple[str, str]]()
    for record in fleet.records:
        shown = parse(record.text) or HandoffRecord()
        if shown.code and shown.since is not None:
            found.append(SeenElsewhere(node=record.node, code=shown.code, at=shown.since))
            shown_by.add((record.node, shown.code))
        found += [SeenElsewhere(node=record.node, code=past.code, at=past.at, returned=True) for past in shown.history]
    for held in fleet.held:
        if (code := code_of(held.text)) and (held.node, code) not in shown_by:
            found.append(SeenElsewhere(node=held.node, code=code, at=held.at))
    return tuple(each for each in found if each.node != me and not is_ahead(each.at, now))


def _is_young(at: datetime, now: datetime) -> bool:
    return 0 <= (now - at).total_seconds() <= _LATELY_S


def _own(name: str, fleet: FleetSnapshot) -> str:
    return next((record.text for record in fleet.records if record.node == name), "")


# ---------------------------------------------------------------------------------------------------------------------
# the decision by it


class Decider:
    """Decides about one node. Calls never overlap, but for ``considered``."""

    def __init__(self, dependencies: Dependencies, cluster: ClusterView) -> None:
        self._dependencies, self._judgement, self._cluster = dependencies, dependencies.judgement, cluster

    def by_memory(self, now: datetime) -> Decision:
        """Decide by what is remembered of the fleet. After a refusal by that the fleet is read, ever more rarely while
        it stays one: a thousand nodes that may not go out must not read a thousand nodes each, every few seconds.
        """
        decision, known = self._decided(self._question(now), self._cluster.remembered)
        if (fresh := self._cluster.reread(decision, known)) is None:
            return decision
        decision = self.given(fresh, now)
        self._cluster.remember_refusal(decision, fresh)
        return decision

    def given(self, situation: Situation, now: datetime) -> Decision:
        """Decide by this situation."""
        return self._decided(self._question(now), self._cluster.looked, known=situation)[0]

    def forbidden(self, now: datetime) -> Refused | None:
        """Why what was decided would not be decided now: that decision may be old, and so may what it knew of the
        fleet. None where it would."""
        decision, _ = self._decided(self._question(now), self._cluster.just_read)
        if decision.steps:
            return None
        return Refused(kind=decision.refusal or Refusal.NOT_NEEDED, reason=decision.reason)

    def by_command(self, remediation: Remediation | None, now: datetime) -> Decision:
        """Decide as if the mode were repair, about a node that no remediation holds, or this one does."""
        rules = replace(self._dependencies.rules(), mode=Mode.REPAIR)
        asked = self._question(now, rules, is_held=remediation is not None, by_command=True)
        return self._decided(asked, self._cluster.looked)[0]

    def about_held(self, remediation: Remediation, seen: KnownFaults) -> Decision:
        """Decide about the node that this remediation holds. Counted from when it was taken out: waiting for an
        operator repairs no lemon."""
        decision, _ = self._decided(self._question(remediation.opened, is_held=True), self._cluster.others)
        return decision if is_untried(remediation, decision, seen.open) else left_of(decision, remediation)

    def considered(
        self, diagnoses: Sequence[Diagnosis], acknowledged: frozenset[Diagnosis], rules: Rules, unknown: str
    ) -> tuple[Considered, ...]:
        """Decide about each of these by itself. ``unknown``: why nothing may be begun, or ""; else the
        cluster is read. A cluster that does not answer leaves the repairs that the store knows."""
        now, readings = self._dependencies.clock(), Readings()
        situation = unsearched(unknown) if unknown else None
        while isinstance(answer := decide_each(diagnoses, acknowledged, rules, now, readings), Needs):
            if answer.situation:
                readings = replace(readings, situation=situation or self._cluster.lately())
            elif answer.repairs:
                readings = replace(readings, repairs=self._repairs_known())
            else:
                readings = self._tried(readings, answer.remedies)
        return answer

    def acknowledged(self, diagnoses: Iterable[Diagnosis]) -> frozenset[Diagnosis]:
        """Those which an operator has seen, who wants the node in service all the same."""
        return frozenset(each for each in diagnoses if self._judgement.is_acknowledged(each))

    # -----------------------------------------------------------------------------------------------------------------

    def _question(
        self, now: datetime, rules: Rules | None = None, *, is_held: bool = False, by_command: bool = False
    ) -> Decision | Question:
        diagnoses = self._judgement.diagnoses()
        seen, rules = self.acknowledged(diagnoses), rules or self._dependencies.rules()
        return question(diagnoses, seen, rules, now, is_held=is_held, by_command=by_command)

    def _decided(
        self, asked: Decision | Question, read: Callable[[], Situation], known: Situation | None = None
    ) -> tuple[Decision, Situation | None]:
        """The decision, and the situation where it is ``known`` or was ``read``. Raises StoreError, BackendError."""
        readings = Readings(situation=known)
        while isinstance(asked, Question):
            answer = decide(asked, readings)
            if isinstance(answer, Decision):
                return answer, readings.situation
            if answer.situation:
                readings = replace(readings, situation=read())
            elif answer.repairs:
                readings = replace(readings, repairs=self._repairs())
            else:
                readings = self._tried(readings, answer.remedies)
        return asked, None

    def _tried(self, readings: Readings, remedies: Iterable[Remedy]) -> Readings:
        """With whether these remedies can be carried out."""
        cannot = {remedy: self._dependencies.reason_against(remedy) for remedy in remedies}
        return replace(readings, cannot={**readings.cannot, **cannot})

    def _repairs(self) -> tuple[Repair, ...]:
        """The repairs of this node by the store and by the record. Raises StoreError, BackendError."""
        return on_record(
            self._dependencies.ledger(), self._dependencies.remediations.open_remediation(), self._cluster.record()
        )

    def _repairs_known(self) -> tuple[Repair, ...]:
        """The same for a question: of a cluster that does not answer, by the store alone."""
        try:
            return self._repairs()
        except BackendError:
            return tuple(self._dependencies.ledger())


def unsearched(unknown: str) -> Situation:
    """Where a slot, a drain or a command of an earlier daemon's may stand unseen, nothing is begun."""
    return Situation(view=None, snapshot=None, problem=unknown)
