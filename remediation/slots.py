"""Takes, keeps and gives back the slots of one node: carries out what remediation.fleet plans, over an orchestrator.

It decides nothing itself and touches nothing but slots. All it remembers is when it last claimed and when to look
again; a daemon that starts anew finds its slots with the cluster, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from healthd.errors import SlotTaken
from healthd.remediation.fleet import (
    SETTLE_S,
    Claim,
    GiveBack,
    Go,
    Hold,
    Plan,
    Scope,
    Settle,
    glance,
    plan,
    scopes_of,
)
from healthd.remediation.ports import Orchestrator, Slot

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
REMEMBERED_S = 600.0
"""How old a reading of the nodes may be for a first claim. It may be wrong by what happened since, for as long as it
takes to read them again."""
_TRIES = 16  # claims in one call; each that fails was somebody else's success


class SlotKeeper:
    """The slots of ``node``. Calls never overlap.

    ``quotas``: scope to a number or a percentage; asked anew each time, because an operator may have changed it.
    ``monotonic_s`` gives seconds that no clock step changes, ``random`` a number in [0, 1). ``known``: the scopes as
    they were read a moment ago, if they were.
    """

    def __init__(
        self,
        *,
        orchestrator: Orchestrator,
        node: str,
        quotas: Callable[[], Mapping[str, str | int]],
        monotonic_s: Callable[[], float],
        random: Callable[[], float],
        settle_s: float = SETTLE_S,
        known: tuple[Scope, ...] = (),
    ) -> None:
        self._orchestrator, self._node, self._quotas = orchestrator, node, quotas
        self._monotonic_s, self._random, self._settle_s = monotonic_s, random, settle_s
        self._since_s: float | None = None
        self._settled: tuple[str, ...] = ()
        self._waiting: Hold | Settle | None = None
        self._look_s = self._pause_s = 0.0
        self._known, self._known_s = known, monotonic_s()

    def learn(self) -> tuple[Scope, ...]:
        """Read the fleet in quiet times, every few minutes: a storm then need not begin with all reading all nodes.

        What is remembered lets a node ask for a slot, or wait; it never lets one keep a slot. Raises BackendUnknown.
        """
        self._known = scopes_of(self._orchestrator.level(), self._quotas())
        self._known_s = self._monotonic_s()
        return self._known

    def is_due(self) -> bool:
        """Whether ``take`` would ask the cluster now, or only repeat what it said last."""
        return self._waiting is None or self._monotonic_s() >= self._look_s

    def take(self, *, committed: bool = False) -> Hold | Settle | Go:
        """Go on towards holding every slot that this node needs, as far as it goes without waiting.

        ``committed``: the node is out already by our own act, as a store or the cluster says. Asked again after a Go,
        this reads back that the slots are still there. Raises BackendUnknown where the cluster could not be read, or
        did not answer a claim, and BackendRefused where it will not have any of it.
        """
        if self._settled:
            own = self.held()
            if {slot.scope for slot in own} >= set(self._settled):
                return Go(slots=own)
            self._settled, self._since_s, self._waiting = (), None, None
        if self._waiting is not None and not self.is_due() and not committed:
            return self._waiting
        return self._look(committed)

    def held(self) -> tuple[Slot, ...]:
        """The slots that the cluster lists for this node now. Raises BackendUnknown."""
        return tuple(slot for slot in self._orchestrator.slots() if slot.node == self._node)

    def give_back(self) -> tuple[Slot, ...]:
        """Give back whatever this node holds, and say what that was: for when the node is back, or not ours."""
        own = tuple(sorted(self.held(), key=lambda slot: (slot.scope, slot.index), reverse=True))
        self._drop(own)
        self._pause_s = 0.0
        return own

    # -----------------------------------------------------------------------------------------------------------------

    def _look(self, committed: bool) -> Hold | Settle | Go:
        slots = self._orchestrator.slots()
        is_holder = any(slot.node == self._node for slot in slots)
        if not committed and (full := glance(self._node, slots, {scope.name: scope.limit for scope in self._known})):
            return self._pause(full)
        is_fresh = self._monotonic_s() - self._known_s <= REMEMBERED_S
        if is_holder or not self._known or not is_fresh or not isinstance(self._plan(slots, committed), Claim):
            slots = self._read(slots, is_holder=is_holder)
        for _ in range(_TRIES):
            move = self._plan(slots, committed)
            match move:
                case Claim():
                    slots = self._claim(move)
                case GiveBack():
                    self._drop(move.slots)
                    return self._pause(Hold(reason=f"{move.reason}; gave back {_named(move.slots)}"))
                case Hold():
                    return self._pause(move)
                case Settle():
                    self._waiting, self._look_s = move, move.until_s
                    return move
                case Go():
                    self._settled = tuple(slot.scope for slot in move.slots)
                    self._waiting, self._pause_s = None, 0.0
                    return move
        return self._pause(Hold(reason=f"{_TRIES} slots in a row were taken by others first"))

    def _read(self, slots: tuple[Slot, ...], *, is_holder: bool) -> tuple[Slot, ...]:
        """Read the nodes, and for a holder the slots after them: whoever goes from one list to the other meanwhile is
        counted, at worst twice.
        """
        self.learn()
        return self._orchestrator.slots() if is_holder else slots

    def _plan(self, slots: tuple[Slot, ...], committed: bool) -> Plan:
        now_s = self._monotonic_s()
        if not any(slot.node == self._node for slot in slots):
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s  # found, not claimed just now: adopted
        return plan(
            node=self._node,
            scopes=self._known,
            slots=slots,
            since_s=self._since_s,
            now_s=now_s,
            pick=lambda count: min(int(self._random() * count), count - 1),
            settle_s=self._settle_s,
            committed=committed,
        )

    def _claim(self, move: Claim) -> tuple[Slot, ...]:
        """Ask for a slot, and look right after: what was known may be old, and what is over goes back at once."""
        try:
            self._orchestrator.claim(move.scope, move.index)
        except SlotTaken:
            return self._orchestrator.slots()
        self._since_s = self._monotonic_s()
        mine, slots = Slot(scope=move.scope, index=move.index, node=self._node), self._read((), is_holder=True)
        return slots if mine in slots else (*slots, mine)  # it was acknowledged: the list is old

    def _drop(self, slots: tuple[Slot, ...]) -> None:
        self._settled, self._since_s, self._waiting = (), None, None
        for slot in slots:
            self._orchestrator.give_back(slot)

    def _pause(self, hold: Hold) -> Hold:
        """Look again after a while: longer each time, and not all at once."""
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))
        self._waiting, self._look_s = hold, self._monotonic_s() + self._pause_s * (0.5 + self._random())
        return hold


def _named(slots: tuple[Slot, ...]) -> str:
    return ", ".join(f"{slot.scope}-{slot.index}" for slot in slots)
