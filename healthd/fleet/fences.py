"""Which NVLink domains are fenced as one, and which fences are lifted. Pure: incidents and nodes in, a plan out.

A domain is fenced for an incident of its own hardware: most of it is broken, no node outside is, and two readings say
so. A fence that stands in part is completed; what an operator took from it is not. It is lifted as one: after the
incident, when no node of it is broken, unknown or silent in service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.core.name_lists import listed
from healthd.fleet.incidents import Incident, IncidentMemory
from healthd.fleet.nodes import FleetNode
from healthd.remediation.records.domain_fence import DomainFence
from healthd.remediation.records.incident_notices import is_fabric
from healthd.remediation.records.summary import NodeState

SOON = "new jobs are kept off all of it as soon as a second reading says the same"
_LIFTED = "an operator lifted its fence: that holds until the incident is over"
_USABLE = frozenset({NodeState.OK, NodeState.WARNING})


class FenceRules(Struct, frozen=True, kw_only=True):
    """``most``: how many domains may be fenced at once. ``objection``: why none may be fenced now, or ""."""

    most: int
    objection: str = ""


NO_FENCES = FenceRules(most=0, objection="this controller fences no NVLink domain")


class FencePlan(Struct, frozen=True, kw_only=True):
    """The fences to ``create`` or complete, and to ``lift``. ``held``: why the domain of an incident is not fenced, by
    the id of the incident. ``waits``: why a fence stays whose incident is over, by its domain."""

    create: tuple[DomainFence, ...] = ()
    lift: tuple[DomainFence, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    waits: Mapping[str, str] = field(default_factory=dict)


def with_fences(memory: IncidentMemory, fences: Iterable[DomainFence]) -> IncidentMemory:
    """The memory, in which each incident whose fence stands in the cluster knows that it was fenced."""
    there = {each.incident for each in fences}
    return replace(
        memory, incidents=tuple(replace(each, fenced=True) if each.id in there else each for each in memory.incidents)
    )


def planned(
    memory: IncidentMemory,
    before: IncidentMemory,
    nodes: Iterable[FleetNode],
    fences: Sequence[DomainFence],
    rules: FenceRules,
) -> FencePlan:
    """The plan by this reading of the fleet. ``before``: the memory before it. ``fences``: those that stand in the
    cluster."""
    of = {each.name: each for each in nodes}
    waits = {each.domain: why for each in fences if (why := _not_lifted(each, memory, of))}
    still_open = {each.id for each in memory.open}
    broken = {each.broken_domain for each in memory.open}  # by an incident of another id, once a memory was lost
    lift = tuple(
        each
        for each in fences
        if each.incident not in still_open and each.domain not in waits and each.domain not in broken
    )
    known = {each.id: each.broken_domain for each in before.open}
    create: list[DomainFence] = []
    held: dict[str, str] = {}
    for incident in memory.open:
        domain = incident.broken_domain
        if not domain:
            continue
        if (there := next((each for each in fences if domain == each.domain), None)) is not None:
            if not there.stands:
                held[incident.id] = _LIFTED
            elif there.missing and not rules.objection:
                create.append(there)
            continue
        new = sum(each not in fences for each in create)
        why = _not_fenced(incident, known, rules, sum(each.stands for each in fences) + new)
        if why:
            held[incident.id] = why
            continue
        members = frozenset(name for name, of_node in memory.domains.items() if of_node == domain)
        create.append(DomainFence(domain=domain, incident=incident.id, nodes=members))
    return FencePlan(create=tuple(create), lift=lift, held=held, waits=waits)


def with_failures(plan: FencePlan, failures: FencePlan) -> FencePlan:
    """The plan after it was carried out: without the fences that could not be created, and with the reasons, as in
    ``held`` and ``waits`` of ``failures``."""
    return FencePlan(
        create=tuple(each for each in plan.create if each.incident not in failures.held),
        lift=plan.lift,
        held={**plan.held, **failures.held},
        waits={**plan.waits, **failures.waits},
    )


def _not_fenced(incident: Incident, known: Mapping[str, str], rules: FenceRules, taken: int) -> str:
    """Why the broken domain of an incident is not fenced, or ""."""
    if rules.objection:
        return rules.objection
    if incident.fenced:
        return _LIFTED
    if taken >= rules.most:
        return f"at the limit of fenced NVLink domains: {taken} are, [budget] max_domains_out = {rules.most}"
    return "" if known.get(incident.id) == incident.broken_domain else SOON


def _not_lifted(fence: DomainFence, memory: IncidentMemory, nodes: Mapping[str, FleetNode]) -> str:
    """Why a fence whose incident is over stays, or ""."""
    if any(each.id == fence.incident for each in memory.open):
        return ""
    bad = sorted(name for name in fence.nodes if name in nodes and _is_broken(nodes[name]))
    return f"not clean: {listed(bad)}" if bad else ""


def _is_broken(node: FleetNode) -> bool:
    """Whether a node would come back into service broken or unproven. One that is out by another hold would not."""
    if node.listed.out or node.listed.asleep:
        return False
    summary = node.summary
    if summary is None or node.is_silent or summary.state is NodeState.UNKNOWN:
        return True
    return is_fabric(summary.code) and summary.state not in _USABLE


def fence_words(incident: Incident, fences: Iterable[DomainFence], plan: FencePlan) -> str:
    """A clause about the broken domain of an incident: fenced, or why not; "" where none is broken."""
    fence = next((each for each in (*fences, *plan.create) if each.incident == incident.id and each.stands), None)
    if fence is not None and fence.missing:
        return f"new jobs are kept off {len(fence.nodes)} of {len(fence.nodes | fence.missing)} nodes of it so far"
    if fence is not None:
        return f"new jobs are kept off all {len(fence.nodes)} nodes of it as one"
    why = plan.held.get(incident.id, "")
    return why if why in ("", SOON) else f"not fenced: {why}"
