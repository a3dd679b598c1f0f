"""One fault on many nodes, which comes to one after another: the first few are repaired, and no return frees others."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from healthd.config.schema.config import PolicySection
from healthd.core.model import Remedy
from tests.simulation.ailments import Act, Kind
from tests.simulation.fleet import Fleet
from tests.simulation.law import Rates
from tests.support.sampling import examples

NODES, QUIET_S, HOURS = 18, 3600.0, 6.0
FABRIC = Kind(
    name="the fabric stalls: each node sees it again some hours after its reboot",
    code="fabric.down",
    remedy=Remedy.REBOOT_NODE,
    clears_by=None,
    cured_by=frozenset({Act.OUTSIDE}),
    hidden_by=frozenset({Act.REBOOT, Act.REPLACE}),
    returns_s=(7200.0, 14_400.0),
    on="node",
    of_the_name=True,
)


def repaired(seed: int, gap_s: float, max_out: str | int) -> tuple[int, PolicySection]:
    """How many nodes were repaired in the hours after, where no operator comes, one that did not come back from its
    reboot and was replaced once; and the bounds that hold them."""
    fleet = Fleet(seed, nodes=NODES, rates=Rates(people_come=False), max_out=max_out)
    for number, node in enumerate(fleet.nodes.values()):
        fleet.timeline.after(QUIET_S + number * gap_s, lambda node=node: node.falls_ill(FABRIC))  # type: ignore[misc]
    fleet.timeline.run(HOURS * 3600.0)
    return len({each.node for each in fleet.watch.done}), fleet.ground.config.policy


@settings(max_examples=examples(9), deadline=None)
@given(seed=st.integers(1, 50), gap_s=st.floats(0.0, 150.0))
def test_a_hold_for_many_at_once_does_not_erode(seed: int, gap_s: float) -> None:
    """Of eighteen nodes with one fault fewer are repaired than make it nobody's own, whatever lies between two."""
    repairs, policy = repaired(seed, gap_s, "50%")
    assert repairs < policy.same_fault_nodes


@settings(max_examples=examples(6), deadline=None)
@given(seed=st.integers(1, 50), gap_s=st.floats(0.0, 150.0))
def test_where_one_may_be_out_at_a_time_the_storm_ends_it(seed: int, gap_s: float) -> None:
    """Nodes that wait for the one slot show no finding, so what holds the rest is that one code had so many nodes."""
    repairs, policy = repaired(seed, gap_s, 1)
    assert 0 < repairs <= policy.storm_nodes
