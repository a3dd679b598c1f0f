"""What was tried on a node, and what that leaves to try. Pure.

The ledger counts repairs that were carried out, never lines of a log: fault, repair, the same fault again on the same
component is one cycle. It grows only, and a longer one never leaves a smaller remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from healthd.model import REMEDY_RANK, Remedy
from healthd.remediation.case import Case
from healthd.remediation.playbook import REPAIRS, STEPS


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """One repair of this node: of what, by what, since when, and how it ended ("" where that is not known)."""

    code: str
    component: str
    remedy: Remedy
    began: datetime
    ended: datetime | None = None
    outcome: str = ""

    @property
    def at(self) -> datetime:
        """When it was over, or else begun: what a relapse is counted from."""
        return self.ended or self.began


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How often, and over how many nodes, something may happen before a person is needed.

    The settings of ``[policy]`` explain each and say why it is what it is.
    """

    relapse_days: float = 7.0
    repairs_per_remedy: int = 2
    repairs_per_fault: int = 4
    lemon_repairs: int = 4
    lemon_days: float = 7.0
    same_fault_nodes: int = 4
    same_fault_minutes: float = 10.0


def same_fault(repairs: Iterable[Repair], code: str, names: Collection[str], since: datetime) -> tuple[Repair, ...]:
    """The repairs of this code on a component, by any of its names, that ended since then."""
    return tuple(each for each in repairs if each.code == code and each.component in names and each.at >= since)


def rungs_left(ladder: Sequence[Remedy], tried: Sequence[Repair], bounds: Bounds) -> tuple[Remedy, ...]:
    """What of a ladder is left after these repairs of the same fault did not last.

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


def left_after(case: Case, ladder: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """What of a ladder is left for a case whose last repair did not help: nothing smaller, and nothing after another
    machine."""
    if not case.attempts:
        return tuple(ladder)
    tried = _tried(case)
    if tried is Remedy.REPLACE_NODE:
        return ()
    return tuple(remedy for remedy in ladder if REMEDY_RANK[remedy] >= REMEDY_RANK[tried])


def recent(repairs: Iterable[Repair], now: datetime, days: float) -> tuple[Repair, ...]:
    """The repairs that ended within so many days."""
    since = now - timedelta(days=days)
    return tuple(each for each in repairs if each.at >= since)


def repairs_of(cases: Iterable[Case]) -> tuple[Repair, ...]:
    """The repairs that these cases came to: one for each whose present remedy was attempted.

    A case that went up its ladder counts by the largest that it tried, which is what the next one is judged by. One
    that was lowered after its repair counts once it has ended; until then ``left_after`` judges it by itself.
    """
    return tuple(
        Repair(
            code=case.code,
            component=case.component,
            remedy=_tried(case),
            began=case.opened,
            ended=case.since,
            outcome=case.end or "",
        )
        for case in cases
        if case.attempts and (case.has_ended or REPAIRS.intersection(case.steps))
    )


def _tried(case: Case) -> Remedy:
    if case.ladder:
        return case.ladder[0]
    return case.remedy if case.remedy in STEPS else Remedy.REPLACE_NODE  # a successor knows only that it is one
