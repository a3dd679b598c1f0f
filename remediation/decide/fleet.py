"""The fleet's budget as slots: what one node that wants to be out does next, from what the cluster shows. Pure.

The budget is a level: nodes that are out *now*, as the cluster lists them. A node takes a slot in every scope it is in
before it is touched, and holds them until it is back. Names of slots are unique in the cluster's controller, so that
two nodes never hold one; everything else here keeps the slots and the nodes that are out without one, together, at or
below the limit, although a reading is old by the time it is acted on.

Why it holds. With ``o`` nodes out that hold no slot, a claim takes one of the lowest free slots of ``L - o``, as many
as there is room: claims from old readings then still fit as long as ``o`` stays. A change of ``o`` meanwhile shows in
the reading at the end of the settle time, by which a node that finds the scope over its limit gives back, the places at
or above ``L - o`` first. Of two nodes the later reading sees the other's slot. No node settles over the limit; one that
an operator takes out later is no reason to put another back.

No clock, no randomness, no memory of the daemon's but the moment of its own last claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from functools import lru_cache

from msgspec import Struct

from healthd.core.model import CLUSTER, Remedy
from healthd.remediation.decide.remediation import has_entry
from healthd.remediation.ports import FleetSnapshot, NodeRecord, Slot
from healthd.remediation.records.handoff import AHEAD, CLOSE, HandoffRecord, PastAct, by_now, is_ahead, parse

RATE_WINDOW, DAY_WINDOW = timedelta(hours=1), timedelta(days=1)
"""Over how long replacements are counted."""

LEAST_PER_DAY = 4
"""How many replacements a day a share of a small fleet comes to at least."""

NAME_PER_HOUR, NAME_PER_DAY = 1, 2
"""How often one name counts against the others: the rate is the fleet's, and one node must not use it up."""

SETTLE_S = 10.0
"""How long after its last claim a node re-reads before it counts its slots as its own: longer than a reading may be
old, which is the deadline of a call (facts/slurm.md section 7)."""

LEARNING_S, LONGEST_LEARNING_S = 300.0, 21_600.0
_READING_S_PER_NODE = 2.2e-6  # of slurmctld's CPU, for a list of all nodes (22.05.8, measured: bench/README.md)
_LEARNING_SHARE = 0.002  # of one core of slurmctld's


class WaitForSlot(Struct, frozen=True, kw_only=True):
    """Nothing may be taken out now. Poll later; no slot is held, or the node is out already.

    ``passing``: only because the cluster is slow to answer; seconds later it is known. Else it pages.
    """

    reason: str
    passing: bool = False


class TakeSlot(Struct, frozen=True, kw_only=True):
    """Ask the controller for this slot."""

    scope: str
    index: int


class Settle(Struct, frozen=True, kw_only=True):
    """Every slot is held. Re-read at ``until_s`` (monotonic) before anything is done to the node. ``has_room``: every
    scope was within its limit at the last reading."""

    until_s: float
    reason: str = "the slot is held; re-reading after the settle time"
    has_room: bool = True


class GiveBack(Struct, frozen=True, kw_only=True):
    """Give these slots back, in this order, and poll later."""

    slots: tuple[Slot, ...]
    reason: str


class MayTakeSlot(Struct, frozen=True, kw_only=True):
    """A slot may be asked for, by the fleet as it was read last and by these ``slots``, those that are taken.

    ``is_holder``: this node holds one of them.
    """

    slots: tuple[Slot, ...]
    is_holder: bool = False


class HoldsSlots(Struct, frozen=True, kw_only=True):
    """The slots are this node's: it may be taken out, and stay out for as long as it holds them."""

    slots: tuple[Slot, ...]


Plan = WaitForSlot | TakeSlot | Settle | GiveBack | HoldsSlots


class Scope(Struct, frozen=True, kw_only=True):
    """One scope as it is read now: who is out, of how many, and how many may be."""

    name: str
    out: frozenset[str]
    total: int
    limit: int


def scopes_of(snapshot: FleetSnapshot, quotas: Mapping[str, str | int]) -> tuple[Scope, ...]:
    """The scopes of this node that have a quota, in the order in which every node takes them.

    ``quotas``: scope to a number or a percentage of its nodes. A partition that is called
    ``cluster`` has no quota of its own: the name is the fleet's.
    """
    groups = {CLUSTER: (snapshot.out, snapshot.total)}
    for group in snapshot.scopes:
        groups.setdefault(group.scope, (group.out, group.total))
    order = sorted((name for name in groups if name in quotas), key=lambda name: (name != CLUSTER, name))
    return tuple(
        Scope(name=name, out=groups[name][0], total=groups[name][1], limit=out_limit(quotas[name], groups[name][1]))
        for name in order
    )


def learning_s(total: int) -> float:
    """How often a node reads the whole fleet in quiet times, in seconds.

    Every node does, and each reading costs the controller as much as there are nodes: so the pause grows with the
    square of the fleet, and all of them together cost at most 0.2 % of a core up to some 4,400 nodes, where it would be
    longer than a reading is of use.
    """
    return min(LONGEST_LEARNING_S, max(LEARNING_S, total * total * _READING_S_PER_NODE / _LEARNING_SHARE))


def quick_check(node: str, slots: Iterable[Slot], limits: Mapping[str, int]) -> WaitForSlot | None:
    """A hold that the slots alone call for, or None where the level has to be read.

    It saves reading all nodes when many fail at once, and is only ever a reason to wait, so that ``limits`` may be
    those of an earlier reading.
    """
    taken: dict[str, int] = {}
    for slot in slots:
        if slot.node == node:
            return None
        taken[slot.scope] = taken.get(slot.scope, 0) + 1
    full = next((name for name, limit in limits.items() if taken.get(name, 0) >= limit), None)
    if full is None:
        return None
    if limits[full] == 0:
        return WaitForSlot(reason=at_limit(_called(full), out=0, total=0, limit=0))
    return WaitForSlot(reason=f"at the {_called(full)} limit: all {limits[full]} slots are taken")


def plan(
    *,
    node: str,
    scopes: Sequence[Scope],
    slots: Collection[Slot],
    since_s: float | None,
    now_s: float,
    chance: float = 0.0,
    settle_s: float = SETTLE_S,
    committed: bool = False,
) -> Plan:
    """The next move of ``node``, which wants to be out.

    ``since_s``: the monotonic second of its last claim, or of when a slot of its own was found; None without either.
    ``committed``: it is out already by our own act, so that nothing settles and nothing is given back for want of
    room. ``chance``: a random number in [0, 1), which picks one of the free slots.
    """
    if not scopes:
        return WaitForSlot(reason="no budget says how many nodes may be out, so nothing is taken out")
    own = {slot.scope: slot for slot in sorted(slots, key=_highest_first) if slot.node == node and slot.index >= 0}
    kept = tuple(own[scope.name] for scope in scopes if scope.name in own)
    if surplus := tuple(slot for slot in slots if slot.node == node and slot not in kept):
        return GiveBack(slots=surplus, reason="one slot in each scope of this node is enough, one that is numbered")
    if len(kept) < len(scopes):
        return _take_next(node, scopes=scopes, slots=slots, kept=kept, chance=chance, committed=committed)
    if committed:
        return HoldsSlots(slots=kept)
    first_look_s = (now_s if since_s is None else since_s) + settle_s
    return _held(scopes, slots, kept, now_s=now_s, looks_s=(first_look_s, first_look_s + settle_s))


def replacements(records: Iterable[NodeRecord], window: timedelta, now: datetime) -> Counter[str]:
    """How many machines were given away under each name within ``window``, by the records. A record of no time, or of
    one that is ahead, counts as none, and one from before there were histories as one."""
    counted = {record.node: len(_replaced(record.text, window, now)) for record in records}
    return Counter({node: times for node, times in counted.items() if times})


def requested(records: Iterable[NodeRecord], node: str, now: datetime, within: timedelta) -> Counter[str]:
    """The other nodes that have asked ``within`` this time for another machine, or are about to, which no controller
    has begun: it may begin them at any time, and counts no day. An act that was begun stands in their histories, and a
    request that is older than a node waits for it is begun by none."""
    asked = (each.node for each in records if each.node != node and _asks_for_machine(each.text, now, within))
    return Counter(asked)


def that_counts(text: str, now: datetime) -> str:
    """The part of the record of a node that is gone which must be kept, or "": a machine of it was given away within
    the day. Its replacement has another name, so that the bounds of the fleet know of it by this record alone. It asks
    for nothing."""
    if not _replaced(text, DAY_WINDOW, now):
        return ""
    record = by_now(parse(text) or HandoffRecord(), now)
    return HandoffRecord(
        replaced=record.replaced, driver=record.driver, kernel=record.kernel, image=record.image, history=record.history
    ).text


def rate_held(node: str, hour: Mapping[str, int], day: Mapping[str, int], *, per_hour: int, per_day: int | None) -> str:
    """Why no machine may be replaced now, or "". ``hour`` and ``day``: how many were, under each name, within the hour
    and the day. ``per_day`` None: an operator commands it.

    What is counted are machines that were given away, not names, this node's own included: an image that breaks every
    new machine has to end in a page, not in a loop, and be it under one name. Another name counts once an hour and
    twice a day at most: one node that is replaced again and again must not keep all others from it.
    """
    hour, day = _counted(node, hour, NAME_PER_HOUR), _counted(node, day, NAME_PER_DAY)
    if sum(hour.values()) >= per_hour:
        return f"{_were('replaced', node, hour)} within an hour, {per_hour} may be: an operator has to look"
    if per_day is not None and sum(day.values()) >= per_day:
        message = f"{_were('replaced or requested', node, day)} within a day, {per_day} may be"
        help_ = "`healthd repair --step replace --reason TEXT` on the node gives this one away"
        return f"{message} before an operator has to look: {help_}"
    return ""


def day_limit(setting: str | int, total: int) -> int:
    """How many machines of the fleet may be given away within a day without an operator: a number as it is, a
    percentage rounded down, and then at least four."""
    return setting if isinstance(setting, int) else max(LEAST_PER_DAY, out_limit(setting, total))


def _counted(node: str, times: Mapping[str, int], most: int) -> dict[str, int]:
    return {name: count if name == node else min(count, most) for name, count in times.items()}


def _replaced(text: str, window: timedelta, now: datetime) -> tuple[datetime, ...]:
    record = parse(text)
    if record is None:
        return ()
    times = [each.at for each in record.history if each.act is PastAct.REPLACE]
    if record.replaced is not None and not any(abs(record.replaced - at) <= CLOSE for at in times):
        times.append(record.replaced)  # of a healthd that wrote no history
    return tuple(at for at in times if at > now - window and not is_ahead(at, now))


def _asks_for_machine(text: str, now: datetime, within: timedelta) -> bool:
    record = parse(text)
    if record is None or record.remedy is not Remedy.REPLACE_NODE or record.asked is None:
        return False
    is_in_time = now - within < record.asked <= now + AHEAD
    return is_in_time and not record.is_refused and not has_entry(record, Remedy.REPLACE_NODE, record.asked)


def _were(done: str, node: str, counted: Mapping[str, int]) -> str:
    own = counted.get(node, 0)
    among = f", {own} of them under the name {node}" if own else ""
    return f"{sum(counted.values())} machines were {done}{among}"


# ---------------------------------------------------------------------------------------------------------------------


def _take_next(
    node: str,
    *,
    scopes: Sequence[Scope],
    slots: Collection[Slot],
    kept: tuple[Slot, ...],
    chance: float,
    committed: bool,
) -> Plan:
    """The first slot that is missing, if there is room in every scope; else none of them."""
    missing = [scope for scope in scopes if scope.name not in {slot.scope for slot in kept}]
    places = [_claimable(node, scope, slots) for scope in missing]
    full = next((scope for scope, free in zip(missing, places, strict=True) if not free), None)
    if full is None:
        free = places[0]
        return TakeSlot(scope=missing[0].name, index=free[min(int(chance * len(free)), len(free) - 1)])
    reason = _over(full, len(_all_out(full, slots)))
    return GiveBack(slots=kept[::-1], reason=reason) if kept and not committed else WaitForSlot(reason=reason)


def _claimable(node: str, scope: Scope, slots: Collection[Slot]) -> list[int]:
    """The places that may be asked for: as many as there is room, from the lowest free ones.

    Slots at or above ``L - o`` were taken before ``o`` grew. As many of the highest free slots stay empty for them.
    """
    taken = {slot.index for slot in slots if slot.scope == scope.name}
    places = scope.limit - len(scope.out - _holders(scope, slots) - {node})
    return [index for index in range(places) if index not in taken][: max(0, places - len(taken))]


def _held(
    scopes: Sequence[Scope],
    slots: Collection[Slot],
    kept: tuple[Slot, ...],
    *,
    now_s: float,
    looks_s: tuple[float, float],
) -> Plan:
    """With every slot: stay, unless a scope is over its limit; then give everything back.

    Places at or above ``L - o`` go as soon as it is seen. Those below have until the second reading, in which the
    others may make room.
    """
    first_s, second_s = looks_s
    pairs = list(zip(scopes, kept, strict=True))
    crowded = [(scope, slot) for scope, slot in pairs if len(_all_out(scope, slots)) > scope.limit]
    if not crowded:
        return HoldsSlots(slots=kept) if now_s >= first_s else Settle(until_s=first_s)
    reason = _over(crowded[0][0], len(_all_out(crowded[0][0], slots)))
    is_below = all(slot.index < scope.limit - len(scope.out - _holders(scope, slots)) for scope, slot in crowded)
    if is_below and now_s < second_s:
        until_s = first_s if now_s < first_s else second_s
        return Settle(until_s=until_s, reason=f"{reason}; waiting for others to give back", has_room=False)
    return GiveBack(slots=kept[::-1], reason=reason)


def _holders(scope: Scope, slots: Collection[Slot]) -> frozenset[str]:
    return frozenset(slot.node for slot in slots if slot.scope == scope.name)


def _all_out(scope: Scope, slots: Collection[Slot]) -> frozenset[str]:
    return scope.out | _holders(scope, slots)


def _over(scope: Scope, out: int) -> str:
    return at_limit(_called(scope.name), out=out, total=scope.total, limit=scope.limit)


def _called(scope: str) -> str:
    return "fleet" if scope == CLUSTER else scope


def _highest_first(slot: Slot) -> int:
    """Of two own slots in a scope the lower one is kept: dict() keeps the last."""
    return -slot.index


@lru_cache(maxsize=256)
def out_limit(max_out: str | int, total: int) -> int:
    """How many nodes may be out: a number as it is; a percentage is rounded down, and lets one node out always.

    No setting can be 0; a Lease that no controller counts says it, until it is given a limit.
    """
    if isinstance(max_out, int):
        return max(0, max_out)
    return max(1, int(total * Fraction(max_out.removesuffix("%")) / 100))


def at_limit(scope: str, *, out: int, total: int, limit: int) -> str:
    """Why no more nodes of a scope may go out, in words."""
    if limit == 0:
        return f"the {scope} limit is 0: nothing is taken out until an operator allows it"
    return f"at the {scope} limit: {out} of {total} nodes are out, {limit} may be"
