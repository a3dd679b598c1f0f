"""``healthd controller``, a sync at a time: it carries out what nodes ask for in their handoff records, once each.

It repairs by the same acts as a node's own engine (``repairs``), from elsewhere: everything is read again, the intent
is on disk and in the record, everything is read once more, then it acts; after that only evidence counts. It takes
nothing out, releases nothing, and holds no budget slot: that is left to the node's own daemon.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.errors import BackendError
from healthd.core.model import Mode, Refusal, Refused, Remedy, Step
from healthd.judge.clock import ClockWatch, was_set
from healthd.remediation.controller.act import (
    Fleet,
    FoundRequest,
    RequestedAct,
    RequestedNode,
    RequestJournal,
    RequestStore,
)
from healthd.remediation.controller.node_status import STATES, NodeStatus, RecentStatus, RepairState, RepairStats
from healthd.remediation.controller.requests import (
    WantedAct,
    is_moot,
    is_silent,
    needs_person,
    refusal,
    wanted,
    withdrawn,
)
from healthd.remediation.decide.fleet import DAY_WINDOW, RATE_WINDOW, day_limit, rate_held, replacements
from healthd.remediation.decide.paging import STUCK_AFTER_S
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import End, Phase, Remediation, shifted, with_act
from healthd.remediation.decide.rules import STEPS
from healthd.remediation.engine.dependencies import Timeouts
from healthd.remediation.engine.repairs import RepairPort
from healthd.remediation.engine.step_result import StepResult
from healthd.remediation.ports import FleetSnapshot, NodeRecord, NodeView, Provisioner, Slot
from healthd.remediation.records.handoff import (
    UNTAKEN_S,
    HandoffRecord,
    RequestAnswer,
    instance_of,
    launched_after,
    parse,
    plain,
    word,
)

_STEP = {Remedy.REBOOT_NODE: Step.REBOOT, Remedy.REPLACE_NODE: Step.REPLACE}
_REPEATED_S = 30.0  # how often a record is written only because its sentence changed
_PACED = frozenset({Refusal.MANAGED, Refusal.RATE, Refusal.UNREADABLE})
"""The platform of a request that waits for one of these is not asked in every sync."""


class _NodeMemory(Struct):
    """The memory of a node that has a handoff record; seconds are those of ``monotonic_s``."""

    seen: tuple[datetime | None, datetime, float] | None = None
    """When its record was first seen, by the time of the request: on both clocks."""
    silent_s: float | None = None
    """Since when it has not come back from its reboot."""
    written_s: float | None = None
    """When its record was last written."""
    acts: tuple[str, Provisioner] | None = None
    """The request that is acted on, and by what."""


class _RequestMemory(Struct):
    """The memory of a request; seconds are those of ``monotonic_s``."""

    status: NodeStatus | None = None
    asked: bool = False
    """Whether the platform has answered this process."""
    undecided_s: float | None = None
    """Since when it is not known whether the platform was asked."""
    unread_s: float | None = None
    """Since when the platform could not be read."""


class Controller:
    """The controller of one cluster. ``sync`` is called every few seconds; calls never overlap.

    ``node`` gives what reads and records one node, ``booted`` when slurmctld last heard of its boot, ``provisioner``
    who acts on it, by its name and the instance id that was asked for. ``silent_s``: see ``[controller]``.
    ``monotonic_s`` counts how long a node has been silent, ``clock`` stamps the trail. ``poll_s``: how often, at most,
    the platform is asked how far it is. ``platform_texts``: reasons that a provisioner leaves. ``boot_id``: a node's
    boot as the cluster names it; left out, ``booted`` tells it. ``sync_s``: how long a sync asks platforms; a silent
    one takes many seconds of each request, and those that are left come first in the next sync. ``stats``: where it is
    counted.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        node: Callable[[str], RepairPort],
        booted: Callable[[str], datetime | None],
        provisioner: Callable[[str, str], Provisioner],
        kept: RequestStore,
        rules: Callable[[], Rules],
        timeouts: Timeouts,
        silent_s: float,
        monotonic_s: Callable[[], float],
        clock: Callable[[], datetime],
        poll_s: float = 30.0,
        platform_texts: Collection[str] = (),
        boot_id: Callable[[str], str] | None = None,
        sync_s: float = 60.0,
        stats: RepairStats | None = None,
    ) -> None:
        self._sync_s = sync_s
        self._recent, self._boot_id = RecentStatus(poll_s, monotonic_s), boot_id
        self._fleet, self._node, self._booted, self._provisioner = fleet, node, booted, provisioner
        self._rules, self._silent_s = rules, silent_s
        self._timeouts, self._monotonic_s, self._clock = replace(timeouts, max_attempts=1), monotonic_s, clock
        self._platform_texts = platform_texts
        self._nodes: defaultdict[str, _NodeMemory] = defaultdict(_NodeMemory)
        self._requests: defaultdict[str, _RequestMemory] = defaultdict(_RequestMemory)
        self._watch = ClockWatch(clock(), monotonic_s())
        self._cut_after = ""
        self.stats = stats or RepairStats()
        self._journal = RequestJournal(kept, clock=clock, stats=self.stats)
        self._known = self._journal.known
        self.snapshot: FleetSnapshot | None = None
        """The nodes as the last sync read them."""
        self.slots: tuple[Slot, ...] = ()
        """The slots as the last sync read them."""

    def sync(self, now: datetime) -> tuple[NodeStatus, ...]:
        """Look at every node that wants something, and go on with each as far as it goes now.

        The status of a node that could not be read or written names that, and holds up no other. Raises BackendError
        where the cluster as a whole does not answer, StoreError where nothing can be written down.
        """
        if by := self._watch.was_set_by(now, self._monotonic_s()):
            self._moved(by, now)
        snapshot, slots = self._fleet.fleet(), self._fleet.slots()
        self.snapshot, self.slots = snapshot, slots
        named = {record.node for record in snapshot.records}
        _keep(self._nodes, named)
        self.stats.keep(named)
        holders = frozenset(slot.node for slot in slots)
        wants = [
            found for record in snapshot.records if (found := self._found(record, snapshot, holders, now)) is not None
        ]
        self._remember(wants)
        began_s, cut_after, self._cut_after = self._monotonic_s(), self._cut_after, ""
        for found in sorted(wants, key=lambda each: (each.want.node <= cut_after, each.want.node)):
            memory = self._requests[found.want.id]
            if self._monotonic_s() - began_s > self._sync_s:
                memory.status = memory.status or _status_of(found, "the next sync goes on with it", RepairState.WAITS)
                continue
            self._cut_after = found.want.node
            memory.status = self._status(found, snapshot, now)
            if memory.status.refusal is not Refusal.UNREADABLE:
                memory.unread_s = None
            self.stats.count(found.want.id, memory.status)
        shown = (self._requests[each.want.id].status for each in sorted(wants, key=lambda each: each.want.node))
        return tuple(status for status in shown if status is not None)

    def _remember(self, wants: Collection[FoundRequest]) -> None:
        """Forget what is wanted no more, and note which acts are undecided, since when."""
        names, ids = {found.want.node for found in wants}, {found.want.id for found in wants}
        self._recent.keep(ids)
        _keep(self._requests, ids)
        for name in self._nodes.keys() - names:
            self._nodes[name].silent_s = None
        for each in ids:
            memory = self._requests[each]
            if not self._may_be_sent(each):
                memory.undecided_s = None
            elif memory.undecided_s is None:
                memory.undecided_s = self._monotonic_s()

    def _status(self, found: FoundRequest, snapshot: FleetSnapshot, now: datetime) -> NodeStatus:
        try:
            return self._go_on(found, snapshot, now)
        except BackendError as error:
            return self._not_done(found, error)

    def _not_done(self, found: FoundRequest, error: BackendError) -> NodeStatus:
        state, page = self.stats.before(found.want.node, found.want.id)
        return _status_of(found, f"nothing was done: {error}", state, page=page, refusal=Refusal.UNREADABLE)

    def gone(self, node: str, why: str) -> None:
        """The node is no more, and its place and record with it: what was being done to it has come to its end."""
        for remediation in [
            each for each in self._known.values() if each.end is None and each.id.startswith(f"{node}/")
        ]:
            self._journal.write(replace(remediation, end=End.DONE, note=why), why)

    def _found(
        self, shown: NodeRecord, snapshot: FleetSnapshot, holders: Collection[str], now: datetime
    ) -> FoundRequest | None:
        """The act that is wanted of a node; of one that asked for nothing, only while it is out and holds a slot."""
        record = parse(shown.text)
        if record is None:
            return None
        at = self._by_its_age(shown.node, record, now)
        want = wanted(shown.node, record, at, reboot_timeout_s=self._timeouts.reboot_timeout_s)
        want = want or self._begun_before(shown.node, record)
        has_slot = shown.node in holders
        if want is None or (want.after_silence and not (has_slot and shown.node in snapshot.out)):
            return None
        known = self._known.get(want.id)
        if known is not None and known.end is End.DONE and record.message == plain(known.note):
            return None  # it is done, and the node was told
        return FoundRequest(want=want, record=record, text=shown.text, has_slot=has_slot)

    def _begun_before(self, node: str, record: HandoffRecord) -> WantedAct | None:
        """A request that its node has withdrawn and that was begun, or may have been: the node has to know."""
        want = withdrawn(node, record)
        remediation = self._known.get(want.id) if want is not None else None
        is_begun = remediation is not None and (self._may_be_sent(remediation.id) or remediation.end is End.DONE)
        return want if is_begun else None

    def _may_be_sent(self, remediation_id: str) -> bool:
        """Whether the platform may have been asked, and nothing shows what became of it."""
        remediation = self._known.get(remediation_id)
        return remediation is not None and remediation.end is None and remediation.phase is Phase.INTENDED

    # -- time ---------------------------------------------------------------------------------------------------------

    def _moved(self, by: timedelta, now: datetime) -> None:
        """The wall clock was set: what is waited for is waited for as long as before."""
        waiting = [shifted(remediation, by, now) for remediation in self._known.values() if remediation.end is None]
        self._known.update({remediation.id: remediation for remediation in waiting})
        for remediation in waiting:
            self._journal.write(remediation, f"{was_set(by)}: what is waited for is waited for as long as before")

    def _by_its_age(self, node: str, record: HandoffRecord, now: datetime) -> datetime:
        """The time to judge the age of a record by: the wall clock's when it was first seen, and from then on only what
        has really gone by. A clock that is set makes no request too old, and no reboot overdue."""
        known = self._nodes[node].seen
        if known is None or known[0] != record.asked:
            known = self._nodes[node].seen = (record.asked, now, self._monotonic_s())
        _, seen, seen_s = known
        return seen + timedelta(seconds=self._monotonic_s() - seen_s)

    # -- one node -----------------------------------------------------------------------------------------------------

    def _go_on(self, found: FoundRequest, snapshot: FleetSnapshot, now: datetime) -> NodeStatus:
        remediation = self._known.get(found.want.id)
        is_begun = remediation is not None and (remediation.end is not None or remediation.phase is Phase.INTENDED)
        if not is_begun and found.record.answer is RequestAnswer.TAKEN and not found.want.unanswered:
            remediation = self._adopted(found, now)  # also where this one only meant to begin it, and another one led
        if remediation is None and found.want.after_silence and found.record.is_refused:
            # by a controller whose store is not here: this one has not seen the node's silence, and asks for nothing
            return _status_of(found, found.record.message, RepairState.REFUSED, page=True)
        if remediation is None or (remediation.phase is Phase.PLANNED and remediation.end is None):
            return self._begin_unless_busy(found, snapshot, now)
        if remediation.end is None:
            return self._followed(found, remediation, now)
        self._answer(found, remediation)
        return _status_of(found, remediation.note, STATES[remediation.end], page=remediation.end is not End.DONE)

    def _followed(self, found: FoundRequest, remediation: Remediation, now: datetime) -> NodeStatus:
        """It was asked for, or may have been: only its evidence counts now, which AWS is not asked for all the time."""
        if found.record.is_withdrawn:
            self._answer(found, remediation)
        if (known := self._recent.lately(remediation.id)) is not None:
            return known
        act = self._act(found)
        result = act.go(remediation, now)
        if self._may_repeat(found, result):
            result = self._again(found, act, result, now)
        return self._recent.note(remediation.id, self._came_of(found, result))

    def _may_repeat(self, found: FoundRequest, result: StepResult) -> bool:
        """Whether nothing shows what became of it, its platform gave this controller no answer, and a second request is
        safe by now. A request that its node has withdrawn is not repeated."""
        want, remediation = found.want, result.remediation
        if remediation.end is not None or remediation.step is not _STEP[want.remedy]:
            return False
        memory = self._requests[want.id]
        if memory.asked or found.record.withdrawn is not None:
            return False
        after_s = self._provisioner_of(found).repeats_after_s(want.remedy)
        since_s = self._monotonic_s() if memory.undecided_s is None else memory.undecided_s
        return after_s is not None and self._monotonic_s() - since_s >= after_s

    def _again(self, found: FoundRequest, act: RequestedAct, result: StepResult, now: datetime) -> StepResult:
        """A controller before this one died in it, or its platform did not answer. Judged as before the first time."""
        try:
            view = self._node(found.want.node).view()
            if (why := self._refusal(found, view, now)) is not None:
                return replace(result, message=f"{result.message}; not asked for again: {why.reason}")
            if self._is_soon_repeated(found, now):
                soon = "its node soon gives this request up, and makes another"
                return replace(result, message=f"{result.message}; not asked for again: {soon}")
            return act.again(replace(result, remediation=replace(result.remediation, hold=view.hold)), now)
        except BackendError as error:
            return replace(result, message=f"{result.message}; not asked for again: {error}")

    def _is_soon_repeated(self, found: FoundRequest, now: datetime) -> bool:
        """Whether the node's next request would come before what is asked for now had to show: an act that is queued
        would then be queued twice."""
        want = found.want
        shows_s = self._provisioner_of(found).repeats_after_s(want.remedy)
        age = self._by_its_age(want.node, found.record, now) - want.asked
        return bool(shows_s) and age.total_seconds() + (shows_s or 0.0) > self._timeout_s(want.remedy)

    def _begin_unless_busy(self, found: FoundRequest, snapshot: FleetSnapshot, now: datetime) -> NodeStatus:
        """A platform that is at the machine, or has no time or no answer for us, is not asked again in every sync
        either."""
        known = self._recent.lately(found.want.id)
        if known is not None and known.refusal in _PACED:
            return known
        status = self._begin(found, snapshot, now)
        return self._recent.note(found.want.id, status) if status.refusal in _PACED else status

    def _begin(self, found: FoundRequest, snapshot: FleetSnapshot, now: datetime) -> NodeStatus:
        """Judge everything again, and act."""
        want = found.want
        view = self._node(want.node).view()
        if hands_off := self._rules().hands_off(view):
            self._nodes[want.node].silent_s = None
            message = f"opted out: {hands_off}; nothing is touched, nor its handoff record"
            return _status_of(found, message, RepairState.LEFT_ALONE, refusal=Refusal.OPTED_OUT)
        if view.powered_down:
            return self._powered_down(found)
        why = self._refusal(found, view, now)
        if want.unanswered and (why or not is_silent(view)):
            self._nodes[want.node].silent_s = None
            message = f"its reboot should be over: left to its own daemon, {why.reason if why else 'it is not DOWN'}"
            return _status_of(found, message, RepairState.LEFT_ALONE, refusal=why.kind if why else None)
        if why and why.kind is Refusal.LATE:  # a no would be an answer of the platform's: the node asks again by itself
            return self._waits(found, why)
        if why:
            return self._refused(found, why, now)
        if want.unanswered and (waiting := self._silence(found)) is not None:
            return waiting
        if (later := self._not_now(want)) is not None:
            return self._waits(found, later)
        act = self._act(found, too_many=self._too_many(want, snapshot))
        try:
            cannot = act.reason_against()
        except BackendError as error:
            return self._unreadable(found, error)
        if cannot:
            return self._refused(found, Refused(kind=Refusal.CANNOT, reason=cannot), now)
        return self._came_of(found, act.go(self._opened(found, view, now), now))

    def _unreadable(self, found: FoundRequest, error: BackendError) -> NodeStatus:
        """A platform that could not be read. One call without an answer is no news: the node hears of it when its page
        for a request that no controller takes is due, and this controller pages as for any back end."""
        memory, now_s = self._requests[found.want.id], self._monotonic_s()
        memory.unread_s = now_s if memory.unread_s is None else memory.unread_s
        lasts_s = now_s - memory.unread_s
        if lasts_s < (STUCK_AFTER_S if found.want.unanswered else UNTAKEN_S):
            return self._not_done(found, error)
        why = Refused(kind=Refusal.UNREADABLE, reason=str(error))
        return self._waits(found, why, page=lasts_s >= STUCK_AFTER_S)

    def _not_now(self, want: WantedAct) -> Refused | None:
        mode = self._rules().mode
        if not mode.repairs:
            kind = Refusal.OBSERVE if mode is Mode.OBSERVE else Refusal.LOWERED
            return Refused(kind=kind, reason=f"the controller is in {mode} mode")
        if is_moot(want, self._booted(want.node)):
            message = "it has booted since it asked: its daemon says what is still wrong"
            return Refused(kind=Refusal.MANAGED, reason=message)
        return None

    def _powered_down(self, found: FoundRequest) -> NodeStatus:
        """Nothing is there to act on. Its drain and slots are released (``absent``), and its daemon asks again."""
        self._nodes[found.want.node].silent_s = None
        why = Refused(kind=Refusal.MANAGED, reason="power saving has taken its machine away")
        if found.want.unanswered:
            return _status_of(found, why.reason, RepairState.LEFT_ALONE, refusal=why.kind)
        return self._waits(found, why)

    def _refusal(self, found: FoundRequest, view: NodeView, now: datetime) -> Refused | None:
        return refusal(
            found.want,
            found.record,
            view,
            has_slot=found.has_slot,
            platform_texts=self._platform_texts,
            now=self._by_its_age(found.want.node, found.record, now),
            timeout_s=self._timeout_s(found.want.remedy),
        )

    def _silence(self, found: FoundRequest) -> NodeStatus | None:
        """None once a node has been silent for so long, at every reading, that its machine may be given up."""
        node = found.want.node
        if why := needs_person(found.record, self._booted(node)):
            message = f"{why}: an operator has to look"
            return _status_of(found, message, RepairState.SILENT, page=True, refusal=Refusal.PERSON)
        memory = self._nodes[node]
        memory.silent_s = self._monotonic_s() if memory.silent_s is None else memory.silent_s
        if self._monotonic_s() - memory.silent_s >= self._silent_s:
            return None
        silent = f"its machine is replaced if it stays silent for {self._silent_s:g} s"
        return _status_of(found, f"it did not come back from its reboot; {silent}", RepairState.SILENT)

    def _adopted(self, found: FoundRequest, now: datetime) -> Remediation:
        """The remediation of a request that a controller took whose store is not this one: it may have been carried
        out. The record has the boot that a reboot was to end; the present one may be the one after, and so may the
        machine."""
        machine, record = self._provisioner_of(found).machine(), found.record
        is_it = word(instance_of(machine)) == record.machine and not launched_after(machine, record.answered)
        remediation = replace(
            self._opened(found, None, now),
            machine=machine if is_it else record.machine,
            boot_id=record.boot,
            since=record.answered or now,
            phase=Phase.INTENDED,
            attempts=1,
            acts=(found.want.remedy,),
        )
        self._journal.write(remediation, "taken by a controller whose store is not here: it is not asked for again")
        return remediation

    def _came_of(self, found: FoundRequest, result: StepResult) -> NodeStatus:
        """Write down the result of a step. An act that was not begun is taken out of the record first: the disk is
        believed."""
        want, remediation = found.want, replace(result.remediation, note=result.message)
        if result.asked:
            self._requests[want.id].asked = True
        if remediation.end is None and remediation.step is not _STEP[want.remedy]:
            remediation = replace(remediation, end=End.DONE)
        elif remediation.end is None and remediation.phase is Phase.PLANNED:
            why = Refused(kind=result.refusal or Refusal.REFUSED, reason=result.message)
            try:
                return self._waits(found, why, page=result.page)
            finally:  # also where the node could not be told: what was not begun must not be waited for
                if want.id in self._known:
                    self._journal.write(remediation, result.message)
        elif want.unanswered and remediation.end in (End.LOST, End.ABANDONED):
            self._put_back(found)
            if want.id in self._known:
                self._journal.write(replace(remediation, end=None), result.message)
            return _status_of(found, result.message, RepairState.LEFT_ALONE)
        elif remediation.end is End.ABANDONED and not remediation.acts:  # nothing was begun: the next sync judges again
            if want.id in self._known:
                self._journal.write(replace(remediation, end=None), result.message)
            return _status_of(found, result.message, RepairState.LEFT_ALONE)
        if remediation != self._known.get(remediation.id):
            self._journal.write(remediation, result.message)
        self._answer(found, remediation)
        failed = remediation.end is End.FAILED
        refusal = Refusal.EXHAUSTED if failed else result.refusal
        return _status_of(found, result.message, STATES[remediation.end], page=result.page or failed, refusal=refusal)

    # -- what the node is told ----------------------------------------------------------------------------------------

    def _refused(self, found: FoundRequest, why: Refused, now: datetime) -> NodeStatus:
        """For good: the node goes on from there, or an operator does."""
        if found.want.unanswered:
            message = f"it did not come back from its reboot, and is not replaced: {why.reason}"
            return _status_of(found, message, RepairState.SILENT, page=True, refusal=why.kind)
        remediation = replace(self._opened(found, None, now), end=End.FAILED, note=f"refused: {why.reason}")
        self._journal.write(remediation, remediation.note)
        self._answer(found, remediation)
        return _status_of(found, remediation.note, RepairState.REFUSED, page=True, refusal=why.kind)

    def _waits(self, found: FoundRequest, why: Refused, *, page: bool = False) -> NodeStatus:
        if found.want.unanswered:
            self._put_back(found)
            message = f"it did not come back from its reboot, and is not replaced yet: {why.reason}"
            return _status_of(found, message, RepairState.SILENT, page=True, refusal=why.kind)
        self._tell(found, replace(found.record, answer=RequestAnswer.WAITS, message=why.reason), begun=None)
        return _status_of(found, why.reason, RepairState.WAITS, page=page, refusal=why.kind)

    def _answer(self, found: FoundRequest, remediation: Remediation) -> None:
        """Have the record say what the disk says. One that says so already is left alone."""
        want, record = found.want, found.record
        updated = replace(record, asks=True, remedy=want.remedy, attempt=want.attempt)
        match remediation.end:
            case None:
                updated = replace(updated, answer=RequestAnswer.TAKEN, message=remediation.note.partition("; ")[2])
            case End.DONE:
                became = word(remediation.machine) if want.remedy is Remedy.REPLACE_NODE else record.became
                updated = replace(updated, answer=RequestAnswer.TAKEN, became=became, message=remediation.note)
            case _:
                answer = RequestAnswer.DENIED if remediation.denied else RequestAnswer.REFUSED
                updated = replace(updated, answer=answer, message=remediation.note)
        self._tell(found, updated, begun=remediation if remediation.acts else None)

    def _tell(self, found: FoundRequest, updated: HandoffRecord, *, begun: Remediation | None) -> None:
        """Rewrite the record, if the node has not moved on meanwhile and there is something new to say. Of an act that
        was not ``begun`` nothing is counted, and a request that is withdrawn stays so."""
        want, orchestrator = found.want, self._node(found.want.node)
        there = parse(orchestrator.read_record())
        mine = (want.remediation_id, found.record.machine, want.remedy, want.attempt, want.asked)
        if (
            there is None
            or (there.remediation_id, there.machine, _asked_for(there), there.attempt, there.asked) != mine
        ):
            return
        if there.is_withdrawn and updated.answer is not RequestAnswer.TAKEN:
            return
        is_new = (there.answer, there.became) != (updated.answer, updated.became)
        if not is_new and (there.message == plain(updated.message) or self._answered_lately(want.node)):
            return
        if begun is not None and there.answer is not RequestAnswer.TAKEN:
            there = with_act(there, want.remedy, begun.since, boot_id=begun.boot_id, after_silence=want.unanswered)
        orchestrator.write_record(
            replace(
                there,
                asks=True,
                remedy=want.remedy,
                attempt=want.attempt,
                answer=updated.answer,
                became=updated.became,
                message=updated.message,
                history=there.history if begun is not None else found.record.history,
                answered=there.answered if there.answer is updated.answer else self._clock(),
                boot=there.boot if updated.answer is RequestAnswer.TAKEN else "",
                replaced=there.replaced if begun is not None else found.record.replaced,
            ).text
        )
        self._nodes[want.node].written_s = self._monotonic_s()

    def _answered_lately(self, node: str) -> bool:
        written_s = self._nodes[node].written_s
        return written_s is not None and self._monotonic_s() - written_s < _REPEATED_S

    def _put_back(self, found: FoundRequest) -> None:
        """The record of a reboot, where nothing came of going on from it: the node may come back and be believed."""
        orchestrator, record = self._node(found.want.node), found.record
        there = parse(orchestrator.read_record())
        ours = (record.remediation_id, record.machine, found.want.remedy, record.asked)
        if there is not None and (there.remediation_id, there.machine, there.remedy, there.asked) == ours:
            orchestrator.write_record(found.text)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _act(self, found: FoundRequest, *, too_many: str = "") -> RequestedAct:
        """``too_many``: why no machine may be replaced now, or ""."""
        node = RequestedNode(
            orchestrator=self._node(found.want.node),
            provisioner=self._provisioner_of(found),
            found=found,
            fleet=self._fleet,
            booted=self._booted,
            boot_id=self._boot_id,
            rules=self._rules,
            journal=self._journal,
            too_many=too_many,
        )
        return RequestedAct(node, timeouts=self._timeouts)

    def _opened(self, found: FoundRequest, view: NodeView | None, now: datetime) -> Remediation:
        """The controller's own remediation: one act, no other remedy behind it."""
        want = found.want
        steps = STEPS[want.remedy]
        return Remediation(
            id=want.id,
            opened=now,
            since=now,
            mode=self._rules().mode,
            code="",
            component="",
            remedy=want.remedy,
            why="it did not come back from its reboot" if want.unanswered else "the node asked for it",
            text=view.hold.text if view is not None and view.hold is not None else "",
            steps=steps,
            index=steps.index(_STEP[want.remedy]),
            hold=view.hold if view is not None else None,
            machine=found.record.machine,
            ladder=(want.remedy,),
        )

    def _provisioner_of(self, found: FoundRequest) -> Provisioner:
        """The same one for as long as a remediation lasts: it remembers what it asked for."""
        want, memory = found.want, self._nodes[found.want.node]
        if memory.acts is None or memory.acts[0] != want.id:
            memory.acts = (want.id, self._provisioner(want.node, found.record.machine))
        return memory.acts[1]

    def _timeout_s(self, remedy: Remedy) -> float:
        timeouts = self._timeouts
        return timeouts.reboot_timeout_s if remedy is Remedy.REBOOT_NODE else timeouts.replace_timeout_s

    def _too_many(self, want: WantedAct, snapshot: FleetSnapshot) -> str:
        """The bounds over the records of all nodes, and over what this controller did since they were read.

        That of a day a node asks about itself, with the requests of all others, and an operator may command past it
        there: it holds here only what no node asked for.
        """
        now, rules = self._clock(), self._rules()
        return rate_held(
            want.node,
            self._replaced(snapshot, RATE_WINDOW, now),
            self._replaced(snapshot, DAY_WINDOW, now),
            per_hour=rules.replacements_per_hour,
            per_day=day_limit(rules.replacements_per_day, snapshot.total) if want.unanswered else None,
        )

    def _replaced(self, snapshot: FleetSnapshot, window: timedelta, now: datetime) -> Counter[str]:
        known = self._known.values()
        acts = [
            remediation
            for remediation in known
            if Remedy.REPLACE_NODE in remediation.acts and remediation.since > now - window
        ]
        return replacements(snapshot.records, window, now) | Counter(
            remediation.id.partition("/")[0] for remediation in acts
        )


def _keep(memory: dict[str, Any], names: Collection[str]) -> None:
    """Forget all but these."""
    for name in memory.keys() - names:
        del memory[name]


def _asked_for(record: HandoffRecord) -> Remedy | None:
    return record.withdrawn if record.is_withdrawn else record.remedy


def _status_of(
    found: FoundRequest, message: str, state: RepairState, *, page: bool = False, refusal: Refusal | None = None
) -> NodeStatus:
    want = found.want
    return NodeStatus(
        node=want.node,
        message=message,
        remedy=want.remedy,
        machine=found.record.machine,
        page=page,
        state=state,
        refusal=refusal,
    )
