"""Which pods a drain should be rid of by now, and is not: what a person has to see to. Pure.

A PodDisruptionBudget without room, a right that is missing, a finalizer, a volume or an owner that the rule does not
allow for, a Slurm node that Slurm has not drained: each is asked for again every round, for ever, and would be silent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from healthd.remediation.orchestrators.kubernetes.eviction import Drain, EvictionRule, Fate, GangMode, Plan, rule_of


def overdue(
    plans: Iterable[Plan],
    rules: Sequence[EvictionRule],
    drain: Drain,
    *,
    done: Collection[str],
    patience_s: float,
    now: datetime,
) -> tuple[Plan, ...]:
    """The plans of those that should have gone ``patience_s`` ago. ``done``: the uids of those whose eviction was just
    granted. What a rule awaits for as long as it takes is never overdue."""
    late = timedelta(seconds=patience_s)
    return tuple(
        plan
        for plan in plans
        if plan.pod.metadata.uid not in done and (due := _due(plan, rules, drain)) is not None and now - due >= late
    )


def _due(plan: Plan, rules: Sequence[EvictionRule], drain: Drain) -> datetime | None:
    """From when on it should be gone, or None. The API's deletionTimestamp is the end of the grace."""
    if plan.fate in (Fate.STAYS, Fate.CAME):
        return None
    if plan.fate is Fate.LEAVES:
        gone = plan.pod.metadata.deletionTimestamp
        return max(gone, drain.record.began_at) if gone is not None else None
    rule, began = rule_of(plan.pod, rules), drain.record.began_at
    due = rule.due(drain.since) if rule is not None else None
    if plan.fate is Fate.FORBIDDEN:
        return max(due or began, began)
    if rule is None or due is None or (plan.fate is Fate.WAITS and rule.gang is not GangMode.WHOLE):
        return None
    return max(due, began)
