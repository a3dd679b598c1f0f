"""The pods that should have left a drained node by now, and have not: they need an operator. Pure.

A PodDisruptionBudget without room, a missing right, a finalizer, a volume or an owner that the rule does not allow, a
Slurm node that Slurm has not drained: every sync would request each eviction again, for ever, and silently.
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
    """The plans of the pods that should have gone ``patience_s`` ago. ``done``: the uids of those whose eviction was
    just granted. A pod whose rule sets no deadline is never overdue."""
    late = timedelta(seconds=patience_s)
    return tuple(
        plan
        for plan in plans
        if plan.pod.metadata.uid not in done and (due := _due(plan, rules, drain)) is not None and now - due >= late
    )


def _due(plan: Plan, rules: Sequence[EvictionRule], drain: Drain) -> datetime | None:
    """The time from which the pod should be gone, or None. The API's deletionTimestamp is the end of the grace."""
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
