"""An NVLink domain whose own hardware is broken is fenced as one, within a budget of domains, and put back as one."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from healthd.fleet.causes import by_cause
from healthd.fleet.fences import SOON, FencePlan, FenceRules, fence_words, planned, with_fences
from healthd.fleet.incident_text import incidents_data, incidents_text
from healthd.fleet.incidents import ENDS_AFTER, IncidentMemory, IncidentRules, observed
from healthd.fleet.nodes import FleetNode, FleetPicture, FleetState, fleet_nodes
from healthd.fleet.text import why_text
from healthd.remediation.records.domain_fence import DomainFence
from healthd.remediation.records.summary import NodeState
from tests.support.fleet_readings import NOW, names, rack, reading

ONE = FenceRules(most=1)
IMEX = "gpu.imex.not_up"
STEP = timedelta(seconds=20)


class Cluster:
    """A fleet that is read again and again, and the fences that stand there."""

    def __init__(self, *racks: tuple[str, int], rules: FenceRules = ONE) -> None:
        self.racks, self.rules, self.now = racks, rules, NOW
        self.broken: dict[str, str] = {}
        self.more: list[FleetNode] = []
        self.silent: set[str] = set()
        self.fences: list[DomainFence] = []
        self.memory, self.plan = IncidentMemory(), FencePlan()

    def nodes(self) -> list[FleetNode]:
        found = list(self.more)
        for name, first in self.racks:
            for node in names(18, first):
                code = self.broken.get(node, "")
                silent = node in self.silent
                found += rack(name, int(node[-3:]), code, 1, since=NOW, now=self.now, silent=silent)
        return found

    def look(self, *, carry_out: bool = True) -> FencePlan:
        nodes, before = self.nodes(), self.memory
        self.memory = with_fences(observed(before, nodes, self.now, IncidentRules()), self.fences)
        self.plan = planned(self.memory, before, nodes, self.fences, self.rules)
        if carry_out:
            self.fences = [*(each for each in self.fences if each not in self.plan.lift), *self.plan.create]
        self.now += STEP
        return self.plan

    def breaks(self, first: int, count: int = 18, code: str = IMEX) -> None:
        self.broken.update(dict.fromkeys(names(count, first), code))

    @property
    def words(self) -> list[str]:
        return [fence_words(each, self.fences, self.plan) for each in self.memory.open]


def test_all_nodes_of_a_dead_domain_are_fenced_as_one_at_the_second_reading() -> None:
    """The healthy minority of it as well, and no other node."""
    cluster = Cluster(("rack-7", 1), ("rack-8", 101))
    cluster.breaks(1, 12)
    assert cluster.look() == FencePlan(held={cluster.memory.open[0].id: SOON})
    assert cluster.words == [SOON]
    (fence,) = cluster.look().create
    assert (fence.domain, fence.nodes) == ("rack-7", frozenset(names(18, 1)))
    assert fence.incident == cluster.memory.open[0].id
    assert cluster.words == ["new jobs are kept off all 18 nodes of it as one"]
    assert cluster.look() == FencePlan()
    assert cluster.memory.open[0].fenced


def test_a_single_root_a_fault_outside_and_silence_fence_nothing() -> None:
    """Nor does a half of a domain, or one of which most is unknown."""
    single = Cluster(("rack-7", 1))
    single.broken["gpu-001"] = "gpu.nvlink.dead"
    outside = Cluster(("rack-7", 1), ("rack-8", 101))
    outside.breaks(1)
    outside.broken["gpu-101"] = IMEX
    half = Cluster(("rack-7", 1))
    half.breaks(1, 9)
    silent = Cluster(("rack-7", 1))
    silent.breaks(1)
    silent.silent = set(names(10, 1))
    for cluster in (single, outside, half, silent):
        for _ in range(3):
            assert cluster.look().create == ()


def test_never_more_domains_than_the_budget_and_none_where_something_objects() -> None:
    """The second waits, and its incident says why; in observe mode none is fenced."""
    cluster = Cluster(("rack-7", 1))
    cluster.fences.append(DomainFence(domain="rack-1", incident="1123-000000", nodes=frozenset({"gpu-400"})))
    cluster.breaks(1)
    cluster.more = [reading("gpu-400", IMEX, group="rack-1", kind="p6e-gb200.36xlarge", since=NOW - timedelta(days=1))]
    for _ in range(3):
        assert cluster.look().create == ()
    assert cluster.words == ["not fenced: at the limit of fenced NVLink domains: 1 are, [budget] max_domains_out = 1"]
    observing = Cluster(("rack-7", 1), rules=FenceRules(most=1, objection="in observe mode"))
    observing.breaks(1)
    for _ in range(3):
        assert observing.look().create == ()
    assert observing.words == ["not fenced: in observe mode"]


def test_a_fence_that_an_operator_lifted_is_not_made_again() -> None:
    """One that was asked for and never seen is: nobody lifted it."""
    cluster = Cluster(("rack-7", 1))
    cluster.breaks(1)
    cluster.look()
    cluster.look(carry_out=False)
    assert cluster.look().create, "it got lost on its way"
    cluster.look()
    cluster.fences.clear()
    assert cluster.look().create == ()
    assert cluster.words == ["not fenced: an operator lifted its fence: that holds until the incident is over"]


def test_a_fence_is_lifted_as_one_after_the_incident_when_all_its_nodes_are_clean() -> None:
    """A node that is silent or still broken keeps it; one that is out by another hold does not."""
    cluster = Cluster(("rack-7", 1))
    cluster.breaks(1)
    for _ in range(3):
        cluster.look()
    cluster.broken = {"gpu-001": IMEX}
    while cluster.memory.open:
        assert cluster.look().lift == ()
    assert cluster.now - NOW > ENDS_AFTER
    assert cluster.plan.waits == {"rack-7": "not clean: gpu-001"}
    cluster.broken, cluster.silent = {}, {"gpu-002", *names(9, 4)}
    assert cluster.look().waits == {
        "rack-7": "not clean: gpu-002, gpu-004, gpu-005, gpu-006, gpu-007, gpu-008, gpu-009, gpu-010 and 2 more"
    }
    cluster.silent = set()
    (lifted,) = cluster.look().lift
    assert lifted.domain == "rack-7"
    assert cluster.look() == FencePlan()
    cluster.breaks(1)
    cluster.look()
    assert cluster.look().create, "it came back on that day, and is fenced again"


def test_a_broken_node_that_another_hold_keeps_out_keeps_no_fence() -> None:
    """Nor does a name without a machine; what is fenced for an incident that nobody remembers is put back as well."""
    fence = DomainFence(domain="rack-7", incident="1123-000000", nodes=frozenset({"gpu-001", "gpu-002", "gone"}))
    drained = reading("gpu-001", IMEX)
    drained = replace(drained, listed=replace(drained.listed, out=True))
    nodes = [drained, reading("gpu-002", asleep=True, silent=True)]
    assert planned(IncidentMemory(), IncidentMemory(), nodes, [fence], ONE).lift == (fence,)


def test_a_fenced_node_is_held_by_healthd_and_not_by_another_owner() -> None:
    """`healthd fleet` shows which domain and incident; the incidents list the fence."""
    fence = DomainFence(domain="rack-7", incident="1124-3f2a9c", nodes=frozenset(names(2)))
    listed = [
        replace(each.listed, flags=frozenset({"IDLE", "MAINTENANCE", "RESERVED"}))
        for each in rack("rack-7", 1, count=3)
    ]
    nodes = fleet_nodes(listed, (), {}, NOW, silent_after_s=1500, fences=[fence])
    assert [each.state for each in nodes] == [FleetState.HELD, FleetState.HELD, FleetState.DRAINED]
    group = next(each for each in by_cause(nodes) if each.state is FleetState.HELD)
    assert group.about == "fenced as one: NVLink domain rack-7, incident 1124-3f2a9c"
    fleet = FleetPicture(cluster="a", at=NOW, nodes=nodes, limit=None, taken=0, fences=(fence,))
    assert why_text(fleet, nodes).count("healthd  fenced as one: NVLink domain rack-7, incident 1124-3f2a9c") == 2
    assert fleet.out == 0, "the budget of nodes does not count them"
    broken = rack("rack-7", 1, IMEX)
    memory = observed(IncidentMemory(), broken, NOW, IncidentRules())
    of_it = replace(fence, incident=memory.open[0].id)
    assert "  fenced as one: gpu-[001-002]\n" in incidents_text(memory.incidents, NOW, "", [of_it])
    held = planned(memory, memory, broken, [], FenceRules(most=1, objection="in observe mode")).held
    assert "  not fenced: in observe mode\n" in incidents_text(memory.incidents, NOW, "", (), held)
    data = incidents_data(memory.incidents, NOW, remembered=True, fences=[of_it])
    assert data["fences"][0]["hosts"] == "gpu-[001-002]"


def test_a_warning_of_the_fabric_is_clean_enough() -> None:
    """Jobs run there as on any node that warns."""
    fence = DomainFence(domain="rack-7", incident="1123-000000", nodes=frozenset({"gpu-001"}))
    warns = reading("gpu-001", "gpu.fabric.unhealthy", state=NodeState.WARNING)
    assert planned(IncidentMemory(), IncidentMemory(), [warns], [fence], ONE).lift == (fence,)


def test_a_fence_that_stands_in_part_is_completed_and_what_an_operator_took_is_not() -> None:
    """On Kubernetes it is many taints. In a freeze nothing is completed; the incident says how far it is."""
    cluster = Cluster(("rack-7", 1))
    cluster.breaks(1)
    for _ in range(2):
        cluster.look()
    (whole,) = cluster.fences
    part = replace(whole, nodes=frozenset(names(10, 1)), missing=frozenset(names(8, 11)))
    cluster.fences = [part]
    cluster.rules = FenceRules(most=1, objection="a freeze")
    assert cluster.look(carry_out=False) == FencePlan()
    cluster.rules = ONE
    assert cluster.look(carry_out=False) == FencePlan(create=(part,))
    assert cluster.words == ["new jobs are kept off 10 of 18 nodes of it so far"]
    cluster.fences = [replace(whole, nodes=frozenset(names(17, 1)))]
    assert cluster.look(carry_out=False) == FencePlan()
    assert cluster.words == ["new jobs are kept off all 17 nodes of it as one"]


def test_a_fence_that_an_operator_lifted_is_remembered_by_the_cluster_too() -> None:
    """A controller that lost its memory makes it no second time, and forgets it with the end of the incident. It leaves
    room in the budget of domains."""
    fence = DomainFence(domain="rack-7", incident="1123-000000", nodes=frozenset())
    cluster = Cluster(("rack-7", 1), ("rack-8", 101))
    cluster.fences = [fence]
    cluster.breaks(1)
    for _ in range(3):
        plan = cluster.look()
        assert (plan.create, plan.lift) == ((), ())
    assert cluster.words == ["not fenced: an operator lifted its fence: that holds until the incident is over"]
    data = incidents_data(cluster.memory.incidents, NOW, remembered=True, fences=cluster.fences)
    assert data["fences"] == []
    cluster.broken = {}
    while cluster.memory.open:
        cluster.look()
    assert cluster.fences == []
    other = Cluster(("rack-8", 101))
    other.fences = [fence]
    other.breaks(101)
    other.look(carry_out=False)
    assert [each.domain for each in other.look(carry_out=False).create] == ["rack-8"]
