"""The objection of the records of all nodes to one more repair: the story of days, which no node sees by itself. Pure.

A node whose repair is held stays out. Which nodes have a code, what was done for it and what came of it, the handoff
records say; an operator's command passes every brake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from healthd.core.model import Remedy
from healthd.remediation.decide.fleet import listed, out_limit
from healthd.remediation.decide.handoff import HandoffRecord, Helped, PastAct, PastRepair, by_now, is_ahead, parse
from healthd.remediation.decide.ledger import Bounds
from healthd.remediation.decide.remediation import code_of
from healthd.remediation.ports import FleetSnapshot

_LARGE = (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)
_VERSIONS: Mapping[str, Callable[[HandoffRecord], str]] = {
    "driver": lambda mark: mark.driver,
    "kernel": lambda mark: mark.kernel,
    "image": lambda mark: mark.image,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetRecords:
    """The handoff records of a fleet of ``total`` nodes, and the codes by which nodes are held and since when, by
    name."""

    marks: Mapping[str, HandoffRecord]
    held: Mapping[str, tuple[str, datetime]]
    total: int


def records_of(level: FleetSnapshot, now: datetime) -> FleetRecords:
    """The records in one reading of the fleet. A text that is none of healthd's says nothing, nor one of a time
    ahead."""
    marks = {each.node: by_now(mark, now) for each in level.marks if (mark := parse(each.text)) is not None}
    drains = ((each.node, code_of(each.text), datetime.fromtimestamp(each.stamp, UTC)) for each in level.held)
    held = {node: (code, at) for node, code, at in drains if code and not is_ahead(at, now)}
    return FleetRecords(marks=marks, held=held, total=level.total)


def held_back(remedy: Remedy, code: str, me: str, records: FleetRecords, *, now: datetime, bounds: Bounds) -> str:
    """Why this repair of this code is not made on node ``me``, or "". The words are the same on every node."""
    if remedy is Remedy.REPLACE_NODE and (why := _replaced_in_vain(code, records, now, bounds)):
        return why
    if why := _repaired_in_vain(code, records, now, bounds):
        return why
    return _slow_storm(code, me, records, now, bounds) if remedy in _LARGE else ""


def returns_of(history: Sequence[PastRepair], code: str, now: datetime) -> int:
    """How often the node was released after it was out for this code, within the last day: by itself, or after a
    repair that helped. It counts from the release, which may be a day after the repair."""
    since = now - timedelta(days=1)
    came = (each for each in history if each.act is PastAct.RETURN or each.outcome is Helped.HELPED)
    return sum(each.code == code and (each.back or each.at) > since for each in came)


def settle_s(returns: int, plain_s: float, bounds: Bounds, *, is_repaired: bool) -> float:
    """For how long a node must be healthy before it is released, in seconds: after a repair as long as ever, else twice
    as long after each return of the same code within a day; and past the bound a day, whatever was done."""
    if returns >= bounds.returns_per_day:
        return 86_400.0
    return plain_s if is_repaired else min(86_400.0, plain_s * 2.0**returns)


def many_returns(returns: int, code: str, bounds: Bounds) -> str:
    """The page for a node that comes and goes, or ""."""
    if returns < bounds.returns_per_day:
        return ""
    came = f"{code} came and went {returns} times within a day, and each time the node was released"
    return f"an operator is needed: {came}; it stays out until it is healthy for a day, or `healthd release`"


# ---------------------------------------------------------------------------------------------------------------------


def _slow_storm(code: str, me: str, records: FleetRecords, now: datetime, bounds: Bounds) -> str:
    having = _storm(code, me, records, now, bounds)
    if not having:
        return ""
    where = f"{code} on {len(having)} nodes within {bounds.storm_hours:g} h ({listed(sorted(having))})"
    told = "; ".join([where, *_versions(having, records)])
    why = "so many are not worn out by themselves, so none is rebooted or replaced for it"
    return f"{told}: {why}: an operator has to look"


def _storm(code: str, me: str, records: FleetRecords, now: datetime, bounds: Bounds) -> set[str]:
    """The nodes of a slow storm, or none: those that got the code within the window that ends now, or that ended when
    a node got it which is still out for it. A storm that no operator has seen yet is not over because a day went by."""
    many = max(bounds.storm_nodes, out_limit(bounds.storm_share, records.total))
    out, returned = _out_for(code, records, now), _returned_from(code, records, now)
    seen, window = {*out, *returned, (me, now)}, timedelta(hours=bounds.storm_hours)
    for end in sorted({now, *(at for _, at in out)}, reverse=True):
        having = {node for node, at in seen if end - window < at <= end}
        if len(having) >= many:
            return having
    return set()


def _out_for(code: str, records: FleetRecords, now: datetime) -> set[tuple[str, datetime]]:
    """The nodes that are out for a code, or show it, each with since when."""
    drained = {(node, min(at, now)) for node, (held, at) in records.held.items() if held == code}
    shows = {(node, mark.since or now) for node, mark in records.marks.items() if mark.code == code}
    return drained | {(node, min(at, now)) for node, at in shows}


def _returned_from(code: str, records: FleetRecords, now: datetime) -> set[tuple[str, datetime]]:
    """The nodes that were repaired for a code, or came back from it, each with when."""
    past = ((node, each) for node, mark in records.marks.items() for each in mark.history if each.code == code)
    return {(node, min(each.at, now)) for node, each in past}


def _repaired_in_vain(code: str, records: FleetRecords, now: datetime, bounds: Bounds) -> str:
    since = now - timedelta(days=bounds.relapse_days)
    ends = [end for node in records.marks.values() for end in _ends(node, code) if end[0] > since]
    last = sorted(ends)[-bounds.repairs_in_vain :]
    if len(last) < bounds.repairs_in_vain or any(helped for _, helped in last):
        return ""
    words = f"the last {len(last)} repairs of {code}, on whichever node, did not end it"
    return f"{words}, so none is made any more: an operator has to look"


def _replaced_in_vain(code: str, records: FleetRecords, now: datetime, bounds: Bounds) -> str:
    since = now - timedelta(days=bounds.relapse_days)
    nodes = sorted(node for node, mark in records.marks.items() if _in_vain(mark, code, since))
    if len(nodes) < bounds.replacements_in_vain:
        return ""
    return (
        f"another machine did not end {code} on {listed(nodes)}, so none is given away for it: an operator has to look"
    )


def _in_vain(mark: HandoffRecord, code: str, since: datetime) -> bool:
    """Whether a machine was given away for this code, and the code was there again after it."""
    replaced = [each for each in mark.history if each.act is PastAct.REPLACE and each.code == code and each.at > since]
    return any(each.outcome is Helped.FAILED or _came_back(mark, each) for each in replaced)


def _ends(mark: HandoffRecord, code: str) -> list[tuple[datetime, bool]]:
    """When each repair of this code came to its end, and whether it helped for good. An act that failed and is followed
    by the next is one repair with it; what is under way is none yet."""
    acts = [each for each in mark.history if each.code == code and each.act is not PastAct.RETURN]
    ends = []
    for number, each in enumerate(acts):
        goes_on = each.outcome is Helped.FAILED and number + 1 < len(acts)
        if each.outcome is not Helped.NOT_KNOWN and not goes_on:
            ends.append((each.at, each.outcome is Helped.HELPED and not _came_back(mark, each)))
    return ends


def _came_back(mark: HandoffRecord, repair: PastRepair) -> bool:
    """Whether the code was there again after this repair: a later act for it, or the finding that the node shows."""
    again = any(each.code == repair.code and each.at > repair.at for each in mark.history)
    return again or (mark.code == repair.code and mark.since is not None and mark.since > repair.at)


def _versions(having: set[str], records: FleetRecords) -> list[str]:
    """The versions that those nodes have in common and others have not: ``all 9 have driver 580.95, the other 491 have
    570``."""
    told = []
    for what, of in _VERSIONS.items():
        here = Counter(of(mark) for node, mark in records.marks.items() if node in having and of(mark))
        others = Counter(of(mark) for node, mark in records.marks.items() if node not in having and of(mark))
        if len(here) != 1 or set(others) == set(here):
            continue
        ((version, count),) = here.items()
        all_ = f"all {count}" if count == len(having) else f"all {count} that tell it"
        told.append(f"{all_} have {what} {version}{_of_others(others)}")
    return told


def _of_others(others: Counter[str]) -> str:
    listed = ", ".join(f"{count} have {other}" for other, count in others.most_common(3))
    return f", of the others {listed}" if listed else ""
