"""Takes, keeps and gives back the slots of one node: carries out what ``decide.fleet`` plans, over an orchestrator.

It decides nothing itself and touches nothing but slots. All it remembers is when it last claimed, when to poll next,
and how the fleet was when it was last read; a daemon that starts finds its slots with the cluster, and goes on
from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from healthd.core.errors import SlotTaken
from healthd.remediation.decide.fleet import (
    LEARNING_S,
    SETTLE_S,
    GiveBack,
    HoldsSlots,
    MayTakeSlot,
    Plan,
    Scope,
    Settle,
    TakeSlot,
    WaitForSlot,
    learning_s,
    plan,
    quick_check,
    scopes_of,
)
from healthd.remediation.ports import FleetSnapshot, Orchestrator, Slot

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
LOOKS_PER_S = 20.0
"""How often a whole fleet that waits may look, in looks a second: those that have to wait must not keep those from
their answer who have none yet. A poll costs one client process here and 0.6 ms of slurmctld's time (22.05.8), so that
a fleet that waits costs it 1.2 % of a core."""
SLOW_S, TURNS_PER_S, TURNS = 0.5, 150.0, 3
"""Where a list takes longer than this, others ask too. Nodes that were answered sooner go on, and the others poll
after half to the whole of the time in which the fleet is through at so many nodes a second, three times at most: for
the price of one list most of them see that all places are taken. All at once they would read nodes and claim what is
taken already, five calls each, and keep those waiting who have a place to take."""
FIRST_LEARNING_S = 60.0
"""Within how long a daemon that remembers nothing reads the fleet: not all at once after a rollout."""
_YOUNG_S = SETTLE_S / 2
"""So old a list may be for asking: a claim is test-and-set, and its holder re-reads after the settle time."""
_TRIES = 16  # claims in one call; each that fails was somebody else's success


class _Listed(Struct, frozen=True, kw_only=True):
    """A list of the slots: when it came (monotonic), and how long it took, in seconds."""

    at_s: float
    took_s: float
    slots: tuple[Slot, ...]


class SlotKeeper:
    """The slots of ``node``. Calls never overlap.

    ``quotas``: scope to a number or a percentage; asked each time, because an operator may have changed it.
    ``monotonic_s`` gives seconds that no clock step changes, ``random`` a number in [0, 1). ``known``: the fleet as a
    daemon before this one read it, ``known_age_s`` ago.
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
        known: FleetSnapshot | None = None,
        known_age_s: float = 0.0,
    ) -> None:
        self._orchestrator, self._node, self._quotas = orchestrator, node, quotas
        self._monotonic_s, self._random, self._settle_s = monotonic_s, random, settle_s
        self._since_s: float | None = None
        self._settled: tuple[str, ...] = ()
        self._waiting: WaitForSlot | Settle | None = None
        self._look_s = self._pause_s = 0.0
        self._turns, self._is_fenced = 0, False
        self._listed: _Listed | None = None
        now_s = monotonic_s()
        self._snapshot, self._snapshot_s, self._scopes = known, now_s - known_age_s, self._scopes_of(known)
        self._learn_s = now_s + FIRST_LEARNING_S * random() if known is None else self._next_learning_s(known)

    # -- what is known of the fleet -----------------------------------------------------------------------------------

    def learn(self) -> FleetSnapshot:
        """Read the fleet. Raises BackendUnknown.

        What is remembered lets a node ask for a slot, or wait; it never lets one keep a slot, or be taken out.
        """
        asked_s = self._monotonic_s()
        self._learn_s = asked_s + LEARNING_S * (0.5 + self._random())  # if it does not answer
        self._snapshot = self._orchestrator.snapshot()
        self._scopes, self._snapshot_s = self._scopes_of(self._snapshot), asked_s  # it is no younger than the question
        self._learn_s = self._next_learning_s(self._snapshot)
        return self._snapshot

    def wants_to_learn(self) -> bool:
        """Whether it is time to read the fleet in quiet: then a storm need not begin with all reading all nodes."""
        return self._monotonic_s() >= self._learn_s

    def recalled(self, *, max_age_s: float | None = None) -> FleetSnapshot | None:
        """The fleet as it was read last, unless that is older than ``max_age_s``, or than is of any use."""
        if self._snapshot is None:
            return None
        most_s = 2 * learning_s(self._snapshot.total) if max_age_s is None else max_age_s
        return self._snapshot if self._monotonic_s() - self._snapshot_s <= most_s else None

    def budget(self) -> tuple[Scope, ...]:
        """The nodes that are out in each scope of this node, and how many may be, as the fleet was read last; nothing
        where that is too old to be of use. The cluster is not asked."""
        return self._scopes if self.recalled() is not None else ()

    # -- slots --------------------------------------------------------------------------------------------------------

    def due_in_s(self) -> float:
        """In how many seconds ``take`` would ask the cluster, and not only repeat what it said last; 0 for now."""
        if self._waiting is None or (isinstance(self._waiting, Settle) and not self._is_fenced):
            return 0.0
        return max(0.0, self._look_s - self._monotonic_s())

    def reread(self) -> None:
        """Have the next ``take`` ask the cluster, whatever it said last: what comes next does not wait for the settle
        time, and the cluster may have lost the slot since."""
        self._waiting = self._listed = None

    def take(self, *, committed: bool = False) -> WaitForSlot | Settle | HoldsSlots:
        """Go on towards holding every slot that this node needs, as far as it goes without waiting.

        ``committed``: the node is out already by our own act, as a store or the cluster says. Asked again after a Go,
        this reads back that the slots are still there. A slot that was found, or whose claim failed half-way, is fenced
        first, and tried again each time until it is. Raises BackendUnknown where the cluster could not be read, or did
        not answer a claim, and BackendRefused where it will not have any of it.
        """
        if (move := self._as_before(committed)) is None:
            seen = self._looked(committed, asks_first=False)
            move = seen if isinstance(seen, WaitForSlot) else self._planned(seen.slots, committed)
        return self._fenced(move, committed)

    def take_unless_new(self) -> WaitForSlot | Settle | HoldsSlots | MayTakeSlot:
        """The same, but a node that holds no slot asks for none: the fleet is read, so that ``recalled`` is of this
        moment, and ``claim`` goes on from there, or ``wait`` does not. Raises as ``take``."""
        if (move := self._as_before(committed=False)) is None:
            seen = self._looked(committed=False, asks_first=True)
            if isinstance(seen, MayTakeSlot) and not seen.is_holder:
                return seen
            move = seen if isinstance(seen, WaitForSlot) else self._planned(seen.slots, committed=False)
        return self._fenced(move, committed=False)

    def claim(self, seen: MayTakeSlot) -> WaitForSlot | Settle | HoldsSlots:
        """Go on from there, as ``take`` does. Raises as that."""
        return self._fenced(self._planned(seen.slots, committed=False), committed=False)

    def wait(self, reason: str) -> WaitForSlot:
        """Ask for no slot for this reason, and wait as at the limit."""
        return self._pause(WaitForSlot(reason=reason))

    def full(self) -> WaitForSlot | None:
        """Why not to ask for a slot now, as far as the slots alone and what is remembered of the fleet tell, or None.

        One cheap question, and asked as rarely as ``take`` would ask. Raises BackendUnknown.
        """
        if isinstance(self._waiting, WaitForSlot) and self.due_in_s():
            return self._waiting
        if not (limits := self._limits()):
            return None
        listed = self._lately()
        if hold := quick_check(self._node, listed.slots, limits):
            return self._pause(hold)
        if listed.took_s <= SLOW_S or self._turns == TURNS or any(slot.node == self._node for slot in listed.slots):
            return None
        return self._wait_for_turn(listed.took_s)

    def stand_back(self, reason: str) -> WaitForSlot:
        """Give back what this node holds, and wait as at the limit. Raises BackendError."""
        self.give_back()
        return self.wait(reason)

    def no_room(self) -> str:
        """Why this node could not ask for a slot now, or "". Nothing is claimed. Raises BackendUnknown."""
        scopes, slots = self._scopes_of(self._orchestrator.snapshot()), self._list()
        move = plan(node=self._node, scopes=scopes, slots=slots, since_s=None, now_s=0.0)
        return move.reason if isinstance(move, WaitForSlot | GiveBack) else ""

    def held(self) -> tuple[Slot, ...]:
        """The slots that the cluster lists for this node now. Raises BackendUnknown."""
        return tuple(slot for slot in self._list() if slot.node == self._node)

    def give_back(self) -> tuple[Slot, ...]:
        """Give back whatever this node holds, and say what that was: for when the node is back, or not ours."""
        own = tuple(sorted(self.held(), key=lambda slot: (slot.scope, slot.index), reverse=True))
        self._drop(own)
        self._pause_s = 0.0
        return own

    # -----------------------------------------------------------------------------------------------------------------

    def _fenced(self, move: WaitForSlot | Settle | HoldsSlots, committed: bool) -> WaitForSlot | Settle | HoldsSlots:
        if not (isinstance(move, WaitForSlot) or committed or self._is_fenced):
            self._orchestrator.fence()
            self._is_fenced = True
        return move

    def _as_before(self, committed: bool) -> WaitForSlot | Settle | HoldsSlots | None:
        """Go while every slot is read back; what it waited for while it is not time to look; else None."""
        if self._settled:
            own = self.held()
            if sorted(slot.scope for slot in own) == sorted(self._settled):  # one in each: a second keeps others out
                return HoldsSlots(slots=own)
            self._settled, self._since_s, self._waiting = (), None, None
        is_awaited = isinstance(self._waiting, WaitForSlot) or not committed  # a node that is out settles nothing
        return self._waiting if is_awaited and self._look_s > self._monotonic_s() else None

    def _looked(self, committed: bool, *, asks_first: bool) -> WaitForSlot | MayTakeSlot:
        slots = self._lately().slots
        is_holder = any(slot.node == self._node for slot in slots)
        is_known = self.recalled() is not None
        if not committed and (full := quick_check(self._node, slots, self._limits())):
            return self._pause(full)
        if is_holder or asks_first or not is_known or not isinstance(self._plan(slots, committed), TakeSlot):
            slots = self._read(slots, is_holder=is_holder)
        return MayTakeSlot(slots=slots, is_holder=is_holder)

    def _planned(self, slots: tuple[Slot, ...], committed: bool) -> WaitForSlot | Settle | HoldsSlots:
        for _ in range(_TRIES):
            move = self._plan(slots, committed)
            match move:
                case TakeSlot():
                    slots = self._claim(move, [slot for slot in slots if slot.node == self._node])
                case GiveBack():
                    self._drop(move.slots)
                    if not committed:
                        return self._pause(WaitForSlot(reason=f"{move.reason}; gave back {_named(move.slots)}"))
                    slots = self._list()
                case WaitForSlot():
                    return self._pause(move)
                case Settle():
                    self._waiting, self._look_s = move, move.until_s
                    return move
                case HoldsSlots():
                    self._settled = tuple(slot.scope for slot in move.slots)
                    self._waiting, self._pause_s, self._turns = None, 0.0, 0
                    return move
        return self._pause(WaitForSlot(reason=f"{_TRIES} slots in a row were taken by others first"))

    def _read(self, slots: tuple[Slot, ...], *, is_holder: bool) -> tuple[Slot, ...]:
        """Read the nodes, and for a holder the slots after them: a node that goes from one list to the other meanwhile
        is counted, at worst twice.
        """
        self.learn()
        return self._list() if is_holder else slots

    def _plan(self, slots: tuple[Slot, ...], committed: bool) -> Plan:
        if not any(slot.node == self._node for slot in slots):
            self._since_s, self._is_fenced = None, False
        elif self._since_s is None:
            self._since_s = self._monotonic_s()  # found, not claimed just now: adopted
        return plan(
            node=self._node,
            scopes=self._scopes,
            slots=slots,
            since_s=self._since_s,
            now_s=self._snapshot_s,  # whatever time has passed: only a later reading shows what was done meanwhile
            chance=self._random(),
            settle_s=self._settle_s,
            committed=committed,
        )

    def _claim(self, move: TakeSlot, own: Sequence[Slot]) -> tuple[Slot, ...]:
        """Ask for a slot, and look right after: what was known may be old, and what is over goes back at once, with the
        slots of other scopes that are ``own``."""
        self._listed = None  # whatever comes of it: one without an answer may have been made
        try:
            self._orchestrator.claim(move.scope, move.index)
        except SlotTaken:
            return self._list()
        self._since_s, self._is_fenced = self._monotonic_s(), True
        mine, slots = Slot(scope=move.scope, index=move.index, node=self._node), self._read((), is_holder=True)
        return (*slots, *({*own, mine} - {*slots}))  # they were acknowledged: a list without them is old

    def _drop(self, slots: tuple[Slot, ...]) -> None:
        self._settled, self._since_s, self._waiting, self._listed = (), None, None, None
        self._is_fenced = False
        for slot in slots:
            self._orchestrator.give_back(slot)

    def _list(self) -> tuple[Slot, ...]:
        return self._relisted().slots

    def _lately(self) -> _Listed:
        """The last list while it is young: enough to wait by, or to ask for a place."""
        if self._listed is not None and self._monotonic_s() - self._listed.at_s <= _YOUNG_S:
            return self._listed
        return self._relisted()

    def _relisted(self) -> _Listed:
        began_s = self._monotonic_s()
        slots = self._orchestrator.slots()
        at_s = self._monotonic_s()
        self._listed = _Listed(at_s=at_s, took_s=at_s - began_s, slots=slots)
        return self._listed

    def _limits(self) -> Mapping[str, int]:
        """How many may be out in each scope, as the fleet was read last; nothing where that is of no use."""
        return {scope.name: scope.limit for scope in self._scopes} if self.recalled() is not None else {}

    def _pause(self, hold: WaitForSlot) -> WaitForSlot:
        """Poll after a while: longer each time, longer in a large fleet, and not all at once."""
        self._turns, self._listed = 0, None
        first_s = max(FIRST_PAUSE_S, max((scope.total for scope in self._scopes), default=0) / LOOKS_PER_S)
        self._pause_s = min(max(LONGEST_PAUSE_S, first_s), max(first_s, 2 * self._pause_s))
        self._waiting, self._look_s = hold, self._monotonic_s() + self._pause_s * (0.5 + self._random())
        return hold

    def _wait_for_turn(self, took_s: float) -> WaitForSlot:
        self._turns, self._listed = self._turns + 1, None
        most_s = max(scope.total for scope in self._scopes) / TURNS_PER_S
        after_s = most_s * (0.5 + 0.5 * self._random())
        reason = f"the cluster is slow, listing the slots took {took_s:.1f} s; asks again in {after_s:.0f} s"
        self._waiting = WaitForSlot(reason=reason, passing=True)
        self._look_s = self._monotonic_s() + after_s
        return self._waiting

    def _scopes_of(self, snapshot: FleetSnapshot | None) -> tuple[Scope, ...]:
        return () if snapshot is None else scopes_of(snapshot, self._quotas())

    def _next_learning_s(self, snapshot: FleetSnapshot) -> float:
        return self._snapshot_s + learning_s(snapshot.total) * (0.75 + 0.5 * self._random())


def _named(slots: tuple[Slot, ...]) -> str:
    return ", ".join(f"{slot.scope}-{slot.index}" for slot in slots)
