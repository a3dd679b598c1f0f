"""The laws of incidents over any fleet: what is never an incident, never a fence, and never too many."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.fleet.incidents import IncidentMemory, IncidentRules, observed
from healthd.fleet.nodes import FleetNode, fleet_nodes
from healthd.remediation.ports import ListedNode
from healthd.remediation.records.incident_notices import is_fabric
from healthd.remediation.records.summary import NodeState, NodeSummary
from tests.support.sampling import examples

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
RULES = IncidentRules()
CODES = ("", "gpu.imex.not_up", "gpu.nvlink.dead", "gpu.xid.79", "gpu.xid.149", "lustre.missing", "gpu.count")


@st.composite
def fleets(draw: st.DrawFn) -> tuple[FleetNode, ...]:
    """Up to 24 nodes in three racks, of which two are NVLink domains. Half of them have one code, as a rule."""
    found, common = [], draw(st.sampled_from(CODES))
    for number in range(draw(st.integers(1, 24))):
        rack = draw(st.sampled_from(("nvl-1", "nvl-2", "leaf")))
        code = draw(st.sampled_from((common,) * len(CODES) + CODES))
        state = draw(st.sampled_from(NodeState))
        since = NOW - timedelta(minutes=draw(st.integers(0, 30)))
        kind = "p5.48xlarge" if rack == "leaf" else "p6e-gb200.36xlarge"
        on = "mount:/fsx" if code.startswith("lustre") else ""
        summary = NodeSummary(state=state, at=NOW, since=since, code=code, component=on, instance_type=kind).text
        silent = draw(st.booleans()) and draw(st.booleans())
        found.append(ListedNode(name=f"n{number}", state="IDLE", group=rack, summary="" if silent else summary))
    return fleet_nodes(found, (), {}, NOW, silent_after_s=1500)


def knows_a_fault(node: FleetNode) -> bool:
    summary = node.summary
    return summary is not None and summary.state not in (NodeState.OK, NodeState.UNKNOWN) and bool(summary.code)


@given(fleets())
def test_only_nodes_that_say_that_they_are_faulty_count(nodes: tuple[FleetNode, ...]) -> None:
    """A node that is silent, unknown or healthy is in no incident that was just opened."""
    faulty = {each.name for each in nodes if knows_a_fault(each)}
    for incident in observed(IncidentMemory(), nodes, NOW, RULES).incidents:
        assert set(incident.nodes) <= faulty
        assert len(incident.active) >= 2


@given(fleets())
def test_a_domain_is_fenced_only_for_its_own_hardware_in_most_of_it(nodes: tuple[FleetNode, ...]) -> None:
    """More than half of its nodes have a grave fault of the fabric, and no node outside has one of that time."""
    for incident in observed(IncidentMemory(), nodes, NOW, RULES).incidents:
        if not incident.broken_domain:
            continue
        members = [each for each in nodes if each.listed.group == incident.broken_domain]
        fabric = [each for each in nodes if knows_a_fault(each) and each.summary and is_fabric(each.summary.code)]
        grave = [each for each in fabric if each.summary and each.summary.state is not NodeState.WARNING]
        inside = [each for each in grave if each.listed.group == incident.broken_domain]
        assert len(inside) * 2 > len(members)
        assert incident.broken_domain.startswith("nvl")
        window = timedelta(minutes=RULES.minutes)
        for each in grave:
            if each.listed.group != incident.broken_domain and each.summary and each.summary.since:
                assert abs(each.summary.since - incident.began) > window


@given(st.lists(fleets(), max_size=3), fleets())
def test_what_nodes_had_and_lost_days_ago_changes_no_incident_of_today(
    past: list[tuple[FleetNode, ...]], nodes: tuple[FleetNode, ...]
) -> None:
    """Whatever each had before, this too: a reader that remembers finds the incidents that a new one finds."""
    memory, past = IncidentMemory(), [*past, nodes]
    for days, before in zip(range(2 * len(past), 0, -2), past, strict=True):
        at = NOW - timedelta(days=days)
        memory = observed(memory, _moved(before, at - NOW), at, RULES)
        for hours in (24, 25):  # without it, and long enough for the end of an incident
            memory = observed(memory, (), at + timedelta(hours=hours), RULES)
    found = observed(memory, nodes, NOW, RULES).open
    assert [(each.id, each.began, each.nodes, each.first) for each in found] == [
        (each.id, each.began, each.nodes, each.first)
        for each in observed(IncidentMemory(), nodes, NOW, RULES).incidents
    ]


@given(fleets())
def test_what_is_over_stays_over(nodes: tuple[FleetNode, ...]) -> None:
    """However long the fleet has been watched: once all nodes are healthy, no incident opens a second time. A story of
    days goes on for as long as its days do."""
    memory = observed(IncidentMemory(watched=NOW - timedelta(days=30)), nodes, NOW, RULES)
    was_open = {each.id for each in memory.open}
    healthy = NodeSummary(state=NodeState.OK, at=NOW)
    for minutes in range(1, 121, 7):
        now = NOW + timedelta(minutes=minutes)
        listed = [replace(each.listed, summary=replace(healthy, at=now).text) for each in nodes]
        memory = observed(memory, fleet_nodes(listed, (), {}, now, silent_after_s=1500), now, RULES)
        is_open = {each.id for each in memory.open}
        assert is_open <= was_open
        was_open = is_open
    assert all(each.slow for each in memory.open)


@given(
    st.lists(st.tuples(st.integers(24, 120), st.integers(1, 12), st.integers(1, 24)), min_size=1, max_size=9),
    st.randoms(),
)
@settings(max_examples=examples(25))
def test_months_of_a_fleet(events: list[tuple[int, int, int]], random: Random) -> None:
    """One event after the other, on days of their own: so many of 30 nodes have the finding at once, for some hours.
    Many are one incident of that moment from the first reading on, few are none, and ten minutes after the end nothing
    of it is open."""
    memory, names = IncidentMemory(watched=NOW - timedelta(days=30)), [f"n{number}" for number in range(30)]
    start = NOW
    for pause_h, size, hours in events:
        start += timedelta(hours=pause_h)
        end, faulty = start + timedelta(hours=hours), frozenset(random.sample(names, size))
        for now in (start, end - timedelta(minutes=1)):
            memory = observed(memory, _fleet(names, faulty, start, now), now, RULES)
            many = [(each.began, frozenset(each.active)) for each in memory.open if not each.slow]
            assert many == ([(start, faulty)] if size >= RULES.nodes else [])
        for minutes in (0, 11, 22, 300):
            now = end + timedelta(minutes=minutes)
            memory = observed(memory, _fleet(names, frozenset(), start, now), now, RULES)
            assert minutes < 11 or all(each.slow for each in memory.open)
        start = now


def _fleet(names: list[str], faulty: frozenset[str], since: datetime, now: datetime) -> tuple[FleetNode, ...]:
    well, sick = (
        NodeSummary(state=NodeState.OK, at=now).text,
        NodeSummary(state=NodeState.CRITICAL, at=now, since=since, code="gpu.xid.79").text,
    )
    listed = [ListedNode(name=name, state="IDLE", summary=sick if name in faulty else well) for name in names]
    return fleet_nodes(listed, (), {}, now, silent_after_s=1500)


def _moved(nodes: tuple[FleetNode, ...], by: timedelta) -> tuple[FleetNode, ...]:
    found = []
    for each in nodes:
        summary = each.summary
        text = "" if summary is None else replace(summary, at=NOW + by, since=(summary.since or NOW) + by).text
        found.append(replace(each.listed, summary=text))
    return fleet_nodes(found, (), {}, NOW + by, silent_after_s=1500)


@given(fleets(), st.randoms())
def test_two_readers_of_one_fleet_find_the_same(nodes: tuple[FleetNode, ...], random: object) -> None:
    """In any order of nodes, and a second reading of the same changes no id and opens nothing."""
    once = observed(IncidentMemory(), nodes, NOW, RULES)
    shuffled = list(nodes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert observed(IncidentMemory(), shuffled, NOW, RULES) == once
    again = observed(once, nodes, NOW, RULES)
    assert [each.id for each in again.incidents] == [each.id for each in once.incidents]
