"""The repairs that were tried on a node, and those that are left to try. Pure.

The ledger counts repairs that were begun, never lines of a log: fault, repair, the same fault again on the same
component is one cycle. It grows only, and a longer one never leaves a smaller remedy.

The store knows the repairs of this disk, with their components. The handoff record knows those of this name, whatever
disk or machine was behind it then: of those the component is not known, and the code alone tells a relapse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from healthd.core.model import REMEDY_RANK, Remedy
from healthd.remediation.decide.handoff import CLOSE, HandoffRecord, Helped, PastAct, PastRepair
from healthd.remediation.decide.remediation import PAST_OF, Remediation, Repair
from healthd.remediation.decide.rules import REPAIRS, STEPS

_REMEDY_OF = {act: remedy for remedy, act in PAST_OF.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
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


def left_after(case: Remediation, ladder: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """The rest of a ladder for a remediation whose last repair did not help: nothing smaller, and nothing after another
    machine. A daemon without a memory knows only that it is one."""
    if not case.attempts:
        return tuple(ladder)
    tried = _tried(case)
    if tried is Remedy.REPLACE_NODE or tried not in STEPS:
        return ()
    return tuple(remedy for remedy in ladder if REMEDY_RANK[remedy] >= REMEDY_RANK[tried])


def recent(repairs: Iterable[Repair], now: datetime, days: float) -> tuple[Repair, ...]:
    """The repairs that ended within so many days."""
    since = now - timedelta(days=days)
    return tuple(each for each in repairs if each.at >= since)


def repairs_of(cases: Iterable[Remediation]) -> tuple[Repair, ...]:
    """The repairs that these cases came to: one for each fault that they were about and began an act for.

    A case that went up its ladder counts by the largest that it tried, which is what the next one is judged by. One
    that was lowered after its repair counts once it has ended; until then ``left_after`` judges it by itself. The case
    by which adoption went on is none: what another daemon began, the record tells.
    """
    return tuple(repair for case in cases for repair in (*case.earlier, *_present(case)))


def closed(case: Remediation) -> tuple[Repair, ...]:
    """The repairs of a case that another fault takes over: what it did until now is over."""
    return (*case.earlier, _repair(case)) if _is_repair(case) else case.earlier


def _present(case: Remediation) -> tuple[Repair, ...]:
    counts = _is_repair(case) and (case.has_ended or REPAIRS.intersection(case.steps))
    return (_repair(case),) if counts else ()


def _repair(case: Remediation) -> Repair:
    return Repair(
        code=case.code,
        component=case.component,
        remedy=_tried(case),
        began=case.opened,
        ended=case.since,
        outcome=case.end or "",
    )


def on_record(repairs: Sequence[Repair], open_case: Remediation | None, mark: HandoffRecord) -> tuple[Repair, ...]:
    """These repairs, which the store knows, and those that only the handoff record knows, oldest first.

    The acts of one case are one repair: an act that failed and the one that followed for the same code. A repair
    that the store knows by the same code and time is the same, and the open one is judged by itself.
    """
    unknown = [each for each in _entries(mark) if not _is_known(each, repairs, open_case)]
    cycles: list[list[PastRepair]] = []
    for each in unknown:
        goes_on = bool(cycles) and cycles[-1][-1].outcome is Helped.FAILED and cycles[-1][-1].code == each.code
        cycles[-1].append(each) if goes_on else cycles.append([each])
    found = [_cycle(entries) for entries in cycles]
    return tuple(sorted((*repairs, *found), key=lambda each: each.began))


def _entries(mark: HandoffRecord) -> tuple[PastRepair, ...]:
    """The repairs of a history. A record of before there was one says only when a machine was replaced."""
    repairs = tuple(each for each in mark.history if each.act is not PastAct.RETURN)
    if mark.replaced is None or any(each.act is PastAct.REPLACE for each in repairs):
        return repairs
    return (PastRepair(act=PastAct.REPLACE, at=mark.replaced, code=mark.code), *repairs)


def _is_known(entry: PastRepair, repairs: Iterable[Repair], open_case: Remediation | None) -> bool:
    spans = [(each.code, each.began, each.at) for each in repairs if each.component]
    if open_case is not None:
        spans.append((open_case.code, open_case.opened, entry.at))
    return any(code == entry.code and began - CLOSE <= entry.at <= over + CLOSE for code, began, over in spans)


def _cycle(entries: Sequence[PastRepair]) -> Repair:
    largest = max((_REMEDY_OF[each.act] for each in entries), key=REMEDY_RANK.__getitem__)
    last = entries[-1]
    return Repair(
        code=last.code, component="", remedy=largest, began=entries[0].at, ended=last.at, outcome=str(last.outcome)
    )


def _is_repair(case: Remediation) -> bool:
    """Whether an act was begun: an attempt that was refused, or that no controller took, is none."""
    return bool(case.acts)


def _tried(case: Remediation) -> Remedy:
    if case.acts:
        return max(case.acts, key=REMEDY_RANK.__getitem__)
    return case.ladder[0] if case.ladder else case.remedy
