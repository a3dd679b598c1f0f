"""The repairs that were tried, on this node and on all others; those that are left, and what holds one back. Pure.

The ledger counts repairs that were begun, never lines of a log: fault, repair, the same fault again on the same
component is one cycle. It grows only, and a longer one never leaves a smaller remedy.

The store knows the repairs of this disk, with their components. The handoff record knows those of this name, whatever
disk or machine was behind it then: of those the component is not known, and the code alone tells a relapse. The records
of all nodes tell the story of days, which no node sees by itself: which nodes have a code, what was done for it and
what came of it. A node whose repair they hold back stays out; an operator's command passes every brake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from healthd.core.model import REMEDY_RANK, REPAIRS, Remedy
from healthd.core.name_lists import listed
from healthd.remediation.decide.fleet import out_limit
from healthd.remediation.decide.remediation import PAST_OF, Remediation, Repair, code_of
from healthd.remediation.decide.rules import STEPS
from healthd.remediation.ports import FleetSnapshot
from healthd.remediation.records.handoff import (
    CLOSE,
    HandoffRecord,
    PastAct,
    PastRepair,
    RepairResult,
    by_now,
    is_ahead,
    parse,
)

_REMEDY_OF = {act: remedy for remedy, act in PAST_OF.items()}


class Bounds(Struct, frozen=True, kw_only=True):
    """How often, and over how many nodes, something may happen before an operator is needed.

    The settings of ``[policy]`` explain each and say why it is what it is.
    """

    relapse_days: float = 7.0
    repairs_per_remedy: int = 2
    repairs_per_fault: int = 4
    lemon_repairs: int = 4
    lemon_days: float = 7.0
    same_fault_nodes: int = 4
    same_fault_minutes: float = 10.0
    returns_per_day: int = 4
    storm_nodes: int = 8
    storm_share: str = "2%"
    storm_hours: float = 24.0
    repairs_in_vain: int = 5
    replacements_in_vain: int = 2
    repairs_judged: int = 20
    canary_repairs: int = 3


def same_fault(repairs: Iterable[Repair], code: str, names: Collection[str], since: datetime) -> tuple[Repair, ...]:
    """The repairs of this code on a component, by any of its names or on one that is not known, that ended since
    then."""
    where = {*names, ""}
    return tuple(each for each in repairs if each.code == code and each.component in where and each.at >= since)


def rungs_left(ladder: Sequence[Remedy], tried: Sequence[Repair], bounds: Bounds) -> tuple[Remedy, ...]:
    """The rest of a ladder, after these repairs of the same fault did not last.

    What is smaller than the largest that was tried is over; of equal rungs as many as were tried are.
    """
    if len(tried) >= bounds.repairs_per_fault:
        return ()
    largest = max((REMEDY_RANK[each.remedy] for each in tried), default=0)
    times = {remedy: sum(each.remedy is remedy for each in tried) for remedy in ladder}
    left: list[Remedy] = []
    for rung, remedy in enumerate(ladder):
        earlier = sum(each is remedy for each in ladder[:rung])
        is_over = REMEDY_RANK[remedy] < largest or earlier < times[remedy]
        if not is_over and times[remedy] < bounds.repairs_per_remedy:
            left.append(remedy)
    return tuple(left)


def left_after(remediation: Remediation, ladder: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """The rest of a ladder for a remediation whose last repair did not help: nothing smaller, and nothing after another
    machine. A daemon without a memory knows only that it is one."""
    if not remediation.attempts:
        return tuple(ladder)
    tried = _tried(remediation)
    if tried is Remedy.REPLACE_NODE or tried not in STEPS:
        return ()
    return tuple(remedy for remedy in ladder if REMEDY_RANK[remedy] >= REMEDY_RANK[tried])


def recent(repairs: Iterable[Repair], now: datetime, days: float) -> tuple[Repair, ...]:
    """The repairs that ended within so many days."""
    since = now - timedelta(days=days)
    return tuple(each for each in repairs if each.at >= since)


def repairs_of(remediations: Iterable[Remediation]) -> tuple[Repair, ...]:
    """The repairs that these remediations came to: one for each fault that they were about and began an act for.

    A remediation that went up its ladder counts by the largest that it tried, which is what the next one is judged by.
    One that was lowered after its repair counts once it has ended; until then ``left_after`` judges it by itself. The
    remediation by which adoption went on is none: what another daemon began, the record tells.
    """
    return tuple(repair for remediation in remediations for repair in (*remediation.earlier, *_present(remediation)))


def closed(remediation: Remediation) -> tuple[Repair, ...]:
    """The repairs of a remediation that another fault takes over: what it did until now is over."""
    return (*remediation.earlier, _repair(remediation)) if _is_repair(remediation) else remediation.earlier


def _present(remediation: Remediation) -> tuple[Repair, ...]:
    counts = _is_repair(remediation) and (remediation.has_ended or REPAIRS.intersection(remediation.steps))
    return (_repair(remediation),) if counts else ()


def _repair(remediation: Remediation) -> Repair:
    return Repair(
        code=remediation.code,
        component=remediation.component,
        remedy=_tried(remediation),
        began=remediation.opened,
        ended=remediation.since,
        outcome=remediation.end or "",
    )


def on_record(
    repairs: Sequence[Repair], open_remediation: Remediation | None, record: HandoffRecord
) -> tuple[Repair, ...]:
    """These repairs, which the store knows, and those that only the handoff record knows, oldest first.

    The acts of one remediation are one repair: an act that failed and the one that followed for the same code. A repair
    that the store knows by the same code and time is the same, and the open one is judged by itself.
    """
    unknown = [each for each in _entries(record) if not _is_known(each, repairs, open_remediation)]
    cycles: list[list[PastRepair]] = []
    for each in unknown:
        goes_on = bool(cycles) and cycles[-1][-1].outcome is RepairResult.FAILED and cycles[-1][-1].code == each.code
        cycles[-1].append(each) if goes_on else cycles.append([each])
    found = [_cycle(entries) for entries in cycles]
    return tuple(sorted((*repairs, *found), key=lambda each: each.began))


def _entries(record: HandoffRecord) -> tuple[PastRepair, ...]:
    """The repairs of a history. A record of before there was one says only when a machine was replaced."""
    repairs = tuple(each for each in record.history if each.act is not PastAct.RETURN)
    if record.replaced is None or any(each.act is PastAct.REPLACE for each in repairs):
        return repairs
    return (PastRepair(act=PastAct.REPLACE, at=record.replaced, code=record.code), *repairs)


def _is_known(entry: PastRepair, repairs: Iterable[Repair], open_remediation: Remediation | None) -> bool:
    spans = [(each.code, each.began, each.at) for each in repairs if each.component]
    if open_remediation is not None:
        spans.append((open_remediation.code, open_remediation.opened, entry.at))
    return any(code == entry.code and began - CLOSE <= entry.at <= over + CLOSE for code, began, over in spans)


def _cycle(entries: Sequence[PastRepair]) -> Repair:
    largest = max((_REMEDY_OF[each.act] for each in entries), key=REMEDY_RANK.__getitem__)
    last = entries[-1]
    return Repair(
        code=last.code, component="", remedy=largest, began=entries[0].at, ended=last.at, outcome=str(last.outcome)
    )


def _is_repair(remediation: Remediation) -> bool:
    """Whether an act was begun: an attempt that was refused, or that no controller took, is none."""
    return bool(remediation.acts)


def _tried(remediation: Remediation) -> Remedy:
    if remediation.acts:
        return max(remediation.acts, key=REMEDY_RANK.__getitem__)
    return remediation.ladder[0] if remediation.ladder else remediation.remedy


# ---------------------------------------------------------------------------------------------------------------------
# the brakes: the records of all nodes against one more repair


_LARGE = (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)
_VERSIONS: Mapping[str, Callable[[HandoffRecord], str]] = {
    "driver": lambda record: record.driver,
    "kernel": lambda record: record.kernel,
    "image": lambda record: record.image,
}


class FleetRecords(Struct, frozen=True, kw_only=True):
    """The handoff records of a fleet of ``total`` nodes, and the codes by which nodes are held and since when, by
    name."""

    records: Mapping[str, HandoffRecord]
    held: Mapping[str, tuple[str, datetime]]
    total: int


def records_of(snapshot: FleetSnapshot, now: datetime) -> FleetRecords:
    """The records in one reading of the fleet. A text that is none of healthd's says nothing, nor one of a time
    ahead."""
    records = {each.node: by_now(record, now) for each in snapshot.records if (record := parse(each.text)) is not None}
    drains = ((each, code_of(each.text)) for each in snapshot.held)
    held = {each.node: (code, each.at) for each, code in drains if code and not is_ahead(each.at, now)}
    return FleetRecords(records=records, held=held, total=snapshot.total)


def held_back(remedy: Remedy, code: str, me: str, records: FleetRecords, *, now: datetime, bounds: Bounds) -> str:
    """Why this repair of this code is not made on node ``me``, or "". The words are the same on every node."""
    if remedy is Remedy.REPLACE_NODE and (why := _replaced_in_vain(code, records, now, bounds)):
        return why
    if why := _repaired_in_vain(code, records, now, bounds) or _few_worked(records, now, bounds):
        return why
    return _slow_storm(code, me, records, now, bounds) if remedy in _LARGE else ""


def returns_of(history: Sequence[PastRepair], code: str, now: datetime) -> int:
    """How often the node was released after it was out for this code, within the last day: by itself, or after a
    repair that helped. It counts from the release, which may be a day after the repair."""
    since = now - timedelta(days=1)
    came = (each for each in history if each.act is PastAct.RETURN or each.outcome is RepairResult.HELPED)
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
    reported = "; ".join([where, *_versions(having, records)])
    why = "a shared cause is likely, so none is rebooted or replaced for it"
    return f"{reported}: {why}: an operator has to look"


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
    shows = {(node, record.since or now) for node, record in records.records.items() if record.code == code}
    return drained | {(node, min(at, now)) for node, at in shows}


def _returned_from(code: str, records: FleetRecords, now: datetime) -> set[tuple[str, datetime]]:
    """The nodes that were repaired for a code, or came back from it, each with when."""
    past = ((node, each) for node, record in records.records.items() for each in record.history if each.code == code)
    return {(node, min(each.at, now)) for node, each in past}


def _repaired_in_vain(code: str, records: FleetRecords, now: datetime, bounds: Bounds) -> str:
    since = now - timedelta(days=bounds.relapse_days)
    ends = [end for node in records.records.values() for end in _ends(node, code) if end[0] > since]
    last = sorted(ends)[-bounds.repairs_in_vain :]
    if len(last) < bounds.repairs_in_vain or any(helped for _, helped in last):
        return ""
    message = f"the last {len(last)} repairs of {code}, on whichever node, did not end it"
    return f"{message}, so none is made any more: an operator has to look"


def _few_worked(records: FleetRecords, now: datetime, bounds: Bounds) -> str:
    """Of all codes: fewer than half of the last repairs of the fleet worked, so that its nodes are only taken out."""
    since = now - timedelta(days=bounds.relapse_days)
    codes = {(node, each.code) for node, record in records.records.items() for each in record.history}
    ends = (end for node, code in codes for end in _ends(records.records[node], code))
    last = sorted(end for end in ends if end[0] > since)[-bounds.repairs_judged :]
    worked = sum(helped for _, helped in last)
    if not bounds.repairs_judged or len(last) < bounds.repairs_judged or 2 * worked >= len(last):
        return ""
    message = f"only {worked} of the last {len(last)} repairs of the fleet worked"
    return f"{message}, so nodes are only taken out and none is repaired: an operator has to look"


def _replaced_in_vain(code: str, records: FleetRecords, now: datetime, bounds: Bounds) -> str:
    since = now - timedelta(days=bounds.relapse_days)
    nodes = sorted(node for node, record in records.records.items() if _in_vain(record, code, since))
    if len(nodes) < bounds.replacements_in_vain:
        return ""
    return (
        f"another machine did not end {code} on {listed(nodes)}, so none is given away for it: an operator has to look"
    )


def _in_vain(record: HandoffRecord, code: str, since: datetime) -> bool:
    """Whether a machine was given away for this code, and the code was there again after it."""
    replaced = [
        each for each in record.history if each.act is PastAct.REPLACE and each.code == code and each.at > since
    ]
    return any(each.outcome is RepairResult.FAILED or _came_back(record, each) for each in replaced)


def _ends(record: HandoffRecord, code: str) -> list[tuple[datetime, bool]]:
    """When each repair of this code came to its end, and whether it helped for good. An act that failed and is followed
    by the next is one repair with it; what is under way is none yet."""
    acts = [each for each in record.history if each.code == code and each.act is not PastAct.RETURN]
    ends = []
    for number, each in enumerate(acts):
        goes_on = each.outcome is RepairResult.FAILED and number + 1 < len(acts)
        if each.outcome is not RepairResult.NOT_KNOWN and not goes_on:
            ends.append((each.at, each.outcome is RepairResult.HELPED and not _came_back(record, each)))
    return ends


def _came_back(record: HandoffRecord, repair: PastRepair) -> bool:
    """Whether the code was there again after this repair: a later act for it, or the finding that the node shows."""
    again = any(each.code == repair.code and each.at > repair.at for each in record.history)
    return again or (record.code == repair.code and record.since is not None and record.since > repair.at)


def _versions(having: set[str], records: FleetRecords) -> list[str]:
    """The versions that those nodes have in common and others have not: ``all 9 have driver 580.95, the other 491 have
    570``."""
    reported = []
    for what, of in _VERSIONS.items():
        here = Counter(of(record) for node, record in records.records.items() if node in having and of(record))
        others = Counter(of(record) for node, record in records.records.items() if node not in having and of(record))
        if len(here) != 1 or set(others) == set(here):
            continue
        ((version, count),) = here.items()
        all_ = f"all {count}" if count == len(having) else f"all {count} that tell it"
        reported.append(f"{all_} have {what} {version}{_of_others(others)}")
    return reported


def _of_others(others: Counter[str]) -> str:
    listed = ", ".join(f"{count} have {other}" for other, count in others.most_common(3))
    return f", of the others {listed}" if listed else ""
