"""What healthd left under a name without a machine: Slurm powered the node down while its daemon held it.

No daemon runs there, so another one releases the drain and the slots: ``healthd controller``, or where there is none,
the agent that sees it first. It writes into the handoff record first that the node slept. A machine that wakes with its
old disk so knows that no operator undid its drain.

A name that is being replaced or rebooted is left to that act. A drain that is not healthd's is never touched, nor is
one that an operator ordered; the slot of either is released, for it counts a machine that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from healthd.errors import BackendError, BackendRefused
from healthd.model import Mode, Remedy
from healthd.remediation.awake import released
from healthd.remediation.case import QUARANTINE_CODE, parts_of
from healthd.remediation.marks import CaseMark, is_ahead, parse
from healthd.remediation.policy import Rules
from healthd.remediation.ports import FleetLevel, NodeView, Orchestrator, Slot, is_drain
from healthd.remediation.turns import Patience

SETTLE_S = 60.0
"""How long a name has to be without a machine before anything of it is released."""

DEAD_S = 14_400.0
"""How long a node that is DOWN may hold a slot before that pages: as long as a replacement may take."""

_ASLEEP = "Slurm powered it down while healthd held it"


@dataclass(frozen=True, kw_only=True, slots=True)
class AbsentNode:
    """What became of one name, in a sentence. ``page``: an operator has to act."""

    node: str
    message: str
    page: bool = False


class AbsentNodes:
    """The nodes of a cluster whose machines are gone, as one daemon sees them. Calls never overlap.

    ``node`` gives the orchestrator of a name. ``monotonic_s`` counts how long a name has been without a machine.
    ``settle_s`` and ``dead_s``: SETTLE_S and DEAD_S.
    """

    def __init__(
        self,
        *,
        node: Callable[[str], Orchestrator],
        rules: Callable[[], Rules],
        patience: Patience,
        monotonic_s: Callable[[], float],
        settle_s: float = SETTLE_S,
        dead_s: float = DEAD_S,
    ) -> None:
        self._node, self._rules, self._monotonic_s = node, rules, monotonic_s
        self._settle_s, self._dead_s = settle_s, dead_s
        self._takes = {Remedy.REBOOT_NODE: patience.reboot_timeout_s, Remedy.REPLACE_NODE: patience.replace_timeout_s}
        self._asleep: dict[str, float] = {}
        self._dead: dict[str, float] = {}

    def release(self, level: FleetLevel, slots: Sequence[Slot], now: datetime) -> tuple[AbsentNode, ...]:
        """Release what is held of names without a machine. Returns what was released and what pages; nothing in
        observe mode."""
        if self._rules().mode is Mode.OBSERVE:
            return ()
        holders = {slot.node for slot in slots}
        ripe = self._since(self._asleep, without_machine(level, slots, now, self._takes), self._settle_s)
        dead = self._since(self._dead, level.down & holders, self._dead_s)
        released = [found for name in ripe if (found := self._released(name, now)) is not None]
        return (*released, *(_dead(name, slots, self._dead_s) for name in dead))

    def _since(self, known: dict[str, float], names: frozenset[str], long_s: float) -> list[str]:
        """The names that have been so for that long, each as ``known`` remembers it."""
        now_s = self._monotonic_s()
        for name in known.keys() - names:
            del known[name]
        return sorted(name for name in names if now_s - known.setdefault(name, now_s) >= long_s)

    def _released(self, name: str, now: datetime) -> AbsentNode | None:
        try:
            what = self._release(self._node(name), name, now)
        except BackendError as error:
            return AbsentNode(node=name, message=f"{_ASLEEP}; not released yet: {error}")
        return AbsentNode(node=name, message=f"{_ASLEEP}; released {', '.join(what)}") if what else None

    def _release(self, node: Orchestrator, name: str, now: datetime) -> list[str]:
        """Everything is read again right before."""
        view = node.view()
        if not view.asleep or self._rules().hands_off(view):
            return []
        own = [slot for slot in node.slots() if slot.node == name]
        drain = _our_drain(view)
        if not own and not drain:
            return []
        _note_sleep(node, now)
        if drain:
            node.release(resume="DOWN" in view.flags)
        for slot in own:
            node.give_back(slot)
        return [*([f'its drain "{drain}"'] if drain else []), *(f"slot {slot.scope} {slot.index}" for slot in own)]


def without_machine(
    level: FleetLevel, slots: Iterable[Slot], now: datetime, takes_s: dict[Remedy, float]
) -> frozenset[str]:
    """The names without a machine that hold a slot or a drain of healthd's, and for which no act is under way.

    ``takes_s``: how long an act may take before its record is no reason to wait any more.
    """
    drained = {held.node for held in level.held if _is_released(held.text)}
    acting = {mark.node for mark in level.marks if _is_acted_on(parse(mark.text), now, takes_s)}
    return (level.asleep & ({slot.node for slot in slots} | drained)) - acting


def _is_acted_on(mark: CaseMark | None, now: datetime, takes_s: dict[Remedy, float]) -> bool:
    if mark is None or mark.remedy not in takes_s or mark.asked is None or is_ahead(mark.asked, now):
        return False
    return now - mark.asked < timedelta(seconds=takes_s[mark.remedy])


def _is_released(text: str) -> bool:
    """Whether a drain of this text is healthd's own decision: an operator's order stands until it is taken back."""
    parts = parts_of(text)
    return parts is not None and parts[0] != QUARANTINE_CODE


def _our_drain(view: NodeView) -> str:
    is_ours = view.hold is not None and is_drain(view.flags) and _is_released(view.hold.text)
    return view.hold.text if view.hold is not None and is_ours else ""


def _note_sleep(node: Orchestrator, now: datetime) -> None:
    """Leave it in the record. Where somebody else's comment is in its place, the release goes on without."""
    released(node)
    mark = parse(node.marked()) or CaseMark()
    try:
        node.mark(replace(mark, slept=now).text)
    except BackendRefused:
        return


def _dead(name: str, slots: Iterable[Slot], dead_s: float) -> AbsentNode:
    held = [f"{slot.scope} {slot.index}" for slot in slots if slot.node == name]
    long = f"it has been DOWN for {dead_s / 3600:g} h and holds slot {', '.join(held)}, which no daemon gives back"
    todo = "bring the machine back or have it replaced; `scontrol show reservation` lists its slots"
    return AbsentNode(node=name, message=f"{long}: {todo}", page=True)
