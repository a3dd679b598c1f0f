"""A drain evicts a gang whole, or waits: a gang is a set of pods that only work together (``gang_kinds``). Pure.

The eviction of one member ends the work of all the others, which then hold their GPUs until a collective times out. So
a gang that has members on other nodes is left alone unless its rule says ``whole`` or ``members``; and whole means
every member, wherever it runs, or none: the rules must allow each eviction now. Its owner or its scheduler starts a
gang again: Kueue by waitForPodsReady or the job itself, Volcano by the job's ``policies``, KAI by its action
stalegangeviction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from healthd.remediation.orchestrators.kubernetes.eviction import (
    Drain,
    EvictionRule,
    Fate,
    GangMode,
    Plan,
    Pod,
    came_after,
    planned,
    rule_of,
)
from healthd.remediation.orchestrators.kubernetes.gang_kinds import Gang, GangLabels, gang_of


def gangs_to_see(plans: Sequence[Plan], rules: Sequence[EvictionRule], marks: GangLabels) -> tuple[Gang, ...]:
    """The gangs whose members must be known before these plans are carried out."""
    leaving = [plan for plan in plans if plan.fate is Fate.EVICT and _mode(plan, rules) is not GangMode.MEMBERS]
    found = dict.fromkeys(gang_of(plan.pod, marks) for plan in leaving)
    return tuple(gang for gang in found if gang is not None)


def with_gangs(
    plans: Sequence[Plan],
    members: Mapping[Gang, Collection[Pod]],
    rules: Sequence[EvictionRule],
    marks: GangLabels,
    *,
    drain: Drain,
    now: datetime,
) -> tuple[Plan, ...]:
    """The plans of a drain's node with each of these gangs evicted whole or not at all. Members on other nodes come
    first: should one of those evictions be refused, the members here are requested again."""
    elsewhere: list[Plan] = []
    here = list(plans)
    for gang, pods in members.items():
        part = [number for number, plan in enumerate(here) if plan.fate is not Fate.STAYS]
        ours = [number for number in part if gang_of(here[number].pod, marks) == gang]
        others = [pod for pod in pods if pod.spec.nodeName not in ("", drain.node)]
        there = [plan for plan in planned(others, rules, drain, now) if plan.fate is not Fate.STAYS]
        away = [plan for plan in there if not came_after(plan.pod, drain)]
        running = sum(plan.fate is not Fate.LEAVES for plan in there)
        blocked = _blocked(gang, [here[number] for number in ours], away, rules, running)
        for number in ours:
            here[number] = _in_gang(here[number], gang, blocked)
        elsewhere += [] if blocked else [_in_gang(plan, gang, None) for plan in away if plan.fate is Fate.EVICT]
    return (*elsewhere, *here)


def _blocked(
    gang: Gang, ours: Sequence[Plan], away: Sequence[Plan], rules: Sequence[EvictionRule], running: int
) -> tuple[Fate, str] | None:
    """Why no member is evicted now, or None. A member that is being deleted blocks no other; a member that runs
    elsewhere blocks a gang that is to be left alone, however young it is."""
    alone = [plan for plan in ours if plan.fate is Fate.EVICT and _mode(plan, rules) is GangMode.WAIT]
    if running and alone:
        wants = 'it needs gang = "whole", or "members" where its job goes on without some'
        return Fate.WAITS, f"{alone[0].why}: {gang.words} has {running} members on other nodes, so {wants}"
    stuck = next((plan for plan in (*ours, *away) if plan.fate in (Fate.WAITS, Fate.FORBIDDEN)), None)
    if stuck is None:
        return None
    return Fate.WAITS, f"{gang.words} is evicted whole or not at all, and {stuck.pod.name} {stuck.fate}: {stuck.why}"


def _in_gang(plan: Plan, gang: Gang, blocked: tuple[Fate, str] | None) -> Plan:
    if plan.fate is not Fate.EVICT:
        return plan
    if blocked is not None:
        return replace(plan, fate=blocked[0], why=blocked[1])
    return replace(plan, why=f"{plan.why}, with {gang.words}")


def _mode(plan: Plan, rules: Sequence[EvictionRule]) -> GangMode:
    rule = rule_of(plan.pod, rules)
    return rule.gang if rule is not None else GangMode.WAIT
