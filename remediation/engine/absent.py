"""Releases the drain and the slots of a name without a machine: Slurm powered the node down while its daemon held it.

No daemon runs there, so another one releases the drain and the slots: ``healthd controller``, or where there is none,
the agent that sees it first. It writes into the handoff record first that the node slept. A machine that wakes with its
old disk so knows that no operator undid its drain.

A name that is being replaced or rebooted is left to that act. The slots of any other name are released, for they count
a machine that is not there. Its drain is released where a slot or the handoff record shows that healthd made it, never
by its text alone. It stays where it is an operator's own, where healthd gave the node up, and where nothing can be
written into the record; an operator is then called, because no job wakes a drained node.

The same daemons page for a node that has its machine and that healthd holds, while its own daemon says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.errors import BackendError, BackendRefused
from healthd.core.model import Mode, Remedy
from healthd.remediation.decide.fleet import learning_s
from healthd.remediation.decide.ledger import Bounds, returns_of
from healthd.remediation.decide.paging import OUT_BY_COMMAND_S
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import QUARANTINE_CODE, code_of, is_begun, remediation_id_of
from healthd.remediation.decide.unwatched import SILENT_S, HeldOut, held_out
from healthd.remediation.engine.dependencies import Timeouts
from healthd.remediation.engine.gates import released
from healthd.remediation.ports import FleetSnapshot, HeldNode, Hold, NodeView, Orchestrator, Slot, is_drain
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, by_now, is_ahead, parse, remembering

SETTLE_S = 60.0
"""How long a name has to be without a machine before anything of it is released."""

DEAD_S = 14_400.0
"""How long a node that is DOWN and does not answer may hold a slot before that pages: as a replacement may take."""

_SEEN_ON_S = 3_600.0
"""A reading that comes longer than this after the one before, in seconds, or than two of a large fleet's pauses, says
nothing of the time between: an agent that has a remediation of its own does not look, and a node may have been in
meanwhile.
"""

_ASLEEP = "Slurm powered it down while healthd held it"
_BY_COMMAND = "an operator drained it"


class AbsentNode(Struct, frozen=True, kw_only=True):
    """The state of one name, in a sentence. ``page``: an operator has to act."""

    node: str
    message: str
    page: bool = False


class AbsentNodes:
    """The nodes of a cluster whose machines are gone, as one daemon sees them. Calls never overlap.

    ``node`` gives the orchestrator of a name. ``monotonic_s`` counts how long a name has been without a machine.
    ``settle_s``: SETTLE_S.
    """

    def __init__(
        self,
        *,
        node: Callable[[str], Orchestrator],
        rules: Callable[[], Rules],
        timeouts: Timeouts,
        monotonic_s: Callable[[], float],
        settle_s: float = SETTLE_S,
    ) -> None:
        self._node, self._rules, self._monotonic_s = node, rules, monotonic_s
        self._settle_s = settle_s
        self._takes = {Remedy.REBOOT_NODE: timeouts.reboot_timeout_s, Remedy.REPLACE_NODE: timeouts.replace_timeout_s}
        self._overdue_s = timeouts.overdue_s
        self._asleep: dict[str, float] = {}
        self._quiet: dict[str, float] = {}
        self._pages: dict[str, float] = {}
        self._dead: dict[str, float] = {}
        self._looked_s = monotonic_s()

    def release(self, snapshot: FleetSnapshot, slots: Sequence[Slot], now: datetime) -> tuple[AbsentNode, ...]:
        """Release what is held of names without a machine. Returns what was released and what pages; nothing in
        observe mode."""
        if self._rules().mode is Mode.OBSERVE:
            return ()
        self._forget_what_was_not_seen(snapshot.total)
        holders = {slot.node for slot in slots}
        bounds = self._rules().bounds
        ripe = self._since(self._asleep, without_machine(snapshot, slots, now, self._takes, bounds), self._settle_s)
        dead = self._dead_of(snapshot, holders, now)
        found = [found for name in ripe if (found := self._released(name, now)) is not None]
        known = {each.node for each in found}
        kept = (each for each in kept_drains(snapshot, holders, now, bounds) if each.node not in known)
        return (*found, *kept, *(_dead(name, slots) for name in dead), *self._unwatched(snapshot, slots, now))

    def _forget_what_was_not_seen(self, total: int) -> None:
        """A name that paged before a gap pages until a reading shows that its cause is over."""
        now_s, seen_s = self._monotonic_s(), self._looked_s
        if now_s - seen_s > max(_SEEN_ON_S, 2 * learning_s(total)):
            for known in (self._asleep, self._quiet, self._pages, self._dead):
                long_s = SILENT_S if known is self._quiet else DEAD_S
                for name in [name for name, since_s in known.items() if seen_s - since_s < long_s]:
                    del known[name]
        self._looked_s = now_s

    def _dead_of(self, snapshot: FleetSnapshot, holders: set[str], now: datetime) -> list[str]:
        """The holders of slots that are DOWN and do not answer: for as long as this daemon has seen, or, after a
        restart or another agent's turn to speak, since the last word in their record."""
        down = snapshot.down & holders
        records = {record.node: parse(record.text) for record in snapshot.records if record.node in down}
        quiet = (
            name
            for name, record in records.items()
            if not is_acted_on(record, now, self._takes) and _last_word_is_older(record, DEAD_S, now)
        )
        return sorted({*self._since(self._dead, down, DEAD_S), *quiet})

    def _unwatched(self, snapshot: FleetSnapshot, slots: Sequence[Slot], now: datetime) -> tuple[AbsentNode, ...]:
        """The nodes that healthd holds and whose own daemon says nothing. The times in the cluster tell it after a
        restart of this daemon; what it saw itself, where a clock was set or there is no time."""
        records = _records(snapshot)
        held = [each for each in held_out(snapshot, slots) if not is_acted_on(records.get(each.node), now, self._takes)]
        quiet = self._quiet_s(held)
        return tuple(
            AbsentNode(node=each.node, message=each.message, page=True)
            for each in held
            if each.is_silent(now, self._overdue_s) or quiet[each.seen] >= each.bound_s(self._overdue_s)
        )

    def _quiet_s(self, held: Iterable[HeldOut]) -> dict[str, float]:
        """For how long this daemon has seen each of them unchanged."""
        now_s = self._monotonic_s()
        self._quiet = {each.seen: self._quiet.get(each.seen, now_s) for each in held}
        return {seen: now_s - since_s for seen, since_s in self._quiet.items()}

    def lasting(self, pages: frozenset[str], long_s: float) -> list[str]:
        """Which of the names that page this daemon has found so for that long."""
        return self._since(self._pages, pages, long_s)

    def _since(self, known: dict[str, float], names: frozenset[str], long_s: float) -> list[str]:
        """The names that have been so for that long, each as ``known`` remembers it."""
        now_s = self._monotonic_s()
        for name in known.keys() - names:
            del known[name]
        return sorted(name for name in names if now_s - known.setdefault(name, now_s) >= long_s)

    def _released(self, name: str, now: datetime) -> AbsentNode | None:
        try:
            return self._release(self._node(name), name, now)
        except BackendError as error:
            return AbsentNode(node=name, message=f"{_ASLEEP}; not released yet: {error}")

    def _release(self, node: Orchestrator, name: str, now: datetime) -> AbsentNode | None:
        """Everything is read again right before."""
        view = node.view()
        if not view.asleep or self._rules().hands_off(view):
            return None
        own = [slot for slot in node.slots() if slot.node == name]
        record = parse(node.read_record())
        drain = _our_drain(view, record, now, self._rules().bounds, has_slot=bool(own))
        if not own and drain is None:
            return None
        code = "" if drain is None else (record.code if record is not None else "") or code_of(drain.text)
        is_kept = drain is None and is_drain(view.flags)  # a command undoes it: nothing says that the node slept
        released(node)
        problem = "" if is_kept else _note_sleep(node, now, code)
        if is_kept and own:
            _note_kept(node, view)
        if drain is not None and not problem:
            node.release(resume="DOWN" in view.flags)
        for slot in own:
            node.give_back(slot)
        slots = [f"slot {slot.scope} {slot.index}" for slot in own]
        if drain is None or not problem:
            what = [*([f'its drain "{drain.text}"'] if drain else []), *slots]
            return AbsentNode(node=name, message=f"{_ASLEEP}; released {', '.join(what)}")
        stays = _stays(name, drain.text, f"its record cannot say that it slept: {problem}")
        message = "".join(f"{each} was released; " for each in slots)
        return AbsentNode(node=name, message=f"{_ASLEEP}; {message}{stays}", page=True)


class AbsentWatch:
    """The same as the agent of ``node`` looks to it: each agent releases, and the first in service calls an operator.
    The daemon of that one may be away too, so the second calls as well what stands DEAD_S later. Where another one is
    first by now, it says so as well, and this one goes on: the page is over when its cause is.

    ``paged``: what this agent has to call an operator for although it is another node's. ``pages``: the names for which
    any agent does; None before the first reading.
    """

    def __init__(self, absent: AbsentNodes, orchestrator: Orchestrator, node: str) -> None:
        self._absent, self._orchestrator, self._node = absent, orchestrator, node
        self.paged: tuple[AbsentNode, ...] = ()
        self.pages: frozenset[str] | None = None

    def reconcile(self, fleet: FleetSnapshot, now: datetime) -> tuple[str, ...]:
        """Release what the fleet shows. Returns the sentences for the trail. Raises BackendUnknown."""
        before, speaks = self.paged, self._node in fleet.speakers
        slots = self._orchestrator.slots() if fleet.asleep or fleet.down or speaks or before else ()
        found = self._absent.release(fleet, slots, now)
        self.pages = frozenset(each.node for each in found if each.page)
        lasting = self._absent.lasting(self.pages, 0.0 if fleet.speakers[:1] == (self._node,) else DEAD_S)
        reported = {each.node for each in before}.union(lasting if speaks else ())
        self.paged = tuple(each for each in found if each.page and each.node in reported)
        news = (each for each in found if not each.page or (each in self.paged and each not in before))
        return tuple(f"{each.node}: {each.message}" for each in news)


def without_machine(
    snapshot: FleetSnapshot, slots: Iterable[Slot], now: datetime, takes_s: dict[Remedy, float], bounds: Bounds
) -> frozenset[str]:
    """The names without a machine that hold a slot or a drain that is healthd's to release, and for which no act is
    under way.

    ``takes_s``: how long an act may take before its record is no reason to wait any more.
    """
    if not snapshot.asleep:
        return frozenset()
    records = _records(snapshot)
    holders = {slot.node for slot in slots}
    drained = {
        held.node
        for held in snapshot.held
        if held.node in snapshot.asleep
        and not why_it_stays(held.text, records.get(held.node), now, bounds, has_slot=held.node in holders)
    }
    acting = {name for name, record in records.items() if is_acted_on(record, now, takes_s)}
    return (snapshot.asleep & (holders | drained)) - acting


def why_it_stays(text: str, record: HandoffRecord | None, now: datetime, bounds: Bounds, *, has_slot: bool) -> str:
    """Why a drain of this text under a name without a machine is not released, or "". ``record``: the node's own.

    A text alone proves nothing, since every user can write it. An operator's own drain stands until it is released, and
    a node that was given up stays out until an operator says otherwise. One that went out for the same code each time
    that it woke costs a job each time: as with any other return, it stays out past the bound of a day.
    """
    for code in (
        code_of(text),
        record.code if record is not None else "",
    ):  # a remediation that goes on keeps its first text
        if bar := _bar(code, record, now, bounds):
            return bar
    recorded = (
        record is not None
        and bool(remediation_id_of(text))
        and (record.remediation_id == remediation_id_of(text) or record.code == code_of(text))
    )
    return "" if has_slot or recorded else "neither a slot nor the node's record shows that healthd made it"


def _bar(code: str, record: HandoffRecord | None, now: datetime, bounds: Bounds) -> str:
    """Why a node that is out for this code stays out, whosever text its drain has, or ""."""
    if code == QUARANTINE_CODE:
        return _BY_COMMAND
    if record is not None and record.given_up:
        return f"healthd gave the node up [{record.given_up}]"
    many = 0 if record is None or not code else returns_of(by_now(record, now).history, code, now)
    if many >= bounds.returns_per_day:
        return f"the node went out for {code} again after each of {many} returns within a day"
    return ""


def kept_drains(snapshot: FleetSnapshot, holders: set[str], now: datetime, bounds: Bounds) -> tuple[AbsentNode, ...]:
    """The names without a machine whose drain stays: no daemon runs there to call an operator. Of a drain by command
    the operator knows for a day. A name with a slot is heard of once that is released."""
    records, without_slot = _records(snapshot), snapshot.asleep - holders
    kept = []
    for held in (*snapshot.held, *_written_over(snapshot, records)):
        if held.node not in without_slot:
            continue
        why = why_it_stays(held.text, records.get(held.node), now, bounds, has_slot=False)
        is_known = why == _BY_COMMAND and now - held.at < timedelta(seconds=OUT_BY_COMMAND_S)
        if why and not is_known:
            message = f"Slurm powered it down; {_stays(held.node, held.text, why)}"
            kept.append(AbsentNode(node=held.node, message=message, page=True))
    return tuple(kept)


def _written_over(snapshot: FleetSnapshot, records: dict[str, HandoffRecord | None]) -> Iterator[HeldNode]:
    """The names without a machine that healthd gave up, and over whose drain the cluster wrote its own text."""
    for name in sorted(snapshot.drained):
        if (record := records.get(name)) is not None and record.given_up:
            yield HeldNode(node=name, text=f"the cluster's own, over that for {record.code}", stamp=0)


def _records(snapshot: FleetSnapshot) -> dict[str, HandoffRecord | None]:
    return {record.node: parse(record.text) for record in snapshot.records}


def _stays(name: str, text: str, why: str) -> str:
    todo = f"`scontrol update nodename={name} state=resume` undoes it"
    return f'its drain "{text}" stays, because {why}. No job can wake the node: {todo}'


def is_acted_on(record: HandoffRecord | None, now: datetime, takes_s: dict[Remedy, float]) -> bool:
    """Whether the act that a record tells of is begun, and may be under way. ``takes_s``: how long each may take."""
    if record is None or record.remedy not in takes_s or record.asked is None or is_ahead(record.asked, now):
        return False
    return is_begun(record) and now - record.asked < timedelta(seconds=takes_s[record.remedy])


def _last_word_is_older(record: HandoffRecord | None, seconds: float, now: datetime) -> bool:
    """Whether the daemon of this record last said so long ago that it watches. A time ahead is no time."""
    watched = record.watched if record is not None else None
    return watched is not None and not is_ahead(watched, now) and now - watched >= timedelta(seconds=seconds)


def _our_drain(
    view: NodeView, record: HandoffRecord | None, now: datetime, bounds: Bounds, *, has_slot: bool
) -> Hold | None:
    """The drain that is healthd's to undo, or None: also where only the DOWN is left that the node went through under
    it, since slurmctld lost the drain in a restart. No job wakes such a node either. A node that is back keeps its old
    reason on 24.11, so that a slot, or what it is out for, has to be there as well."""
    hold = view.hold
    is_down = "DOWN" in view.flags and (has_slot or bool(record is not None and record.code))
    if hold is None or not (is_drain(view.flags) or is_down):
        return None
    if (
        view.drained_by_itself and has_slot and record is not None
    ):  # the cluster wrote its own text over that of a remediation
        is_ours = bool(record.remediation_id or record.code) and not _bar(record.code, record, now, bounds)
    else:
        is_ours = bool(remediation_id_of(hold.text)) and not why_it_stays(
            hold.text, record, now, bounds, has_slot=has_slot
        )
    return hold if is_ours else None


def _note_kept(node: Orchestrator, view: NodeView) -> None:
    """Where the cluster wrote its own text over a drain that stays: leave in the record that the node was given up.
    Without its slot nothing else shows it. Raises BackendError."""
    record = parse(node.read_record())
    if (
        view.drained_by_itself
        and record is not None
        and not record.given_up
        and record.code not in ("", QUARANTINE_CODE)
    ):
        node.write_record(replace(record, given_up=record.remediation_id or record.code).text)


def _note_sleep(node: Orchestrator, now: datetime, code: str) -> str:
    """Leave it in the record, and that the node returns after it was out for ``code``. Returns why that cannot be, or
    "": another comment is in its place."""
    record = parse(node.read_record()) or HandoffRecord()
    returned = PastRepair(act=PastAct.RETURN, at=now.replace(microsecond=0), code=code)
    history = remembering(record.history, returned) if code else record.history
    try:
        node.write_record(replace(record, slept=now, history=history).text)
    except BackendRefused as error:
        return str(error)
    return ""


def _dead(name: str, slots: Iterable[Slot]) -> AbsentNode:
    held = [f"{slot.scope} {slot.index}" for slot in slots if slot.node == name]
    long = f"it is DOWN, its daemon has said nothing for {DEAD_S / 3600:g} h, and it holds slot {', '.join(held)}"
    todo = "bring the machine back or have it replaced; `scontrol show reservation` lists its slots"
    return AbsentNode(node=name, message=f"{long}: {todo}", page=True)
