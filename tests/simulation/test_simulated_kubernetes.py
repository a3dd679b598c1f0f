"""A Kubernetes fleet on a simulated API server: what never happens, whatever its requests, processes and people do."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.remediation.ports import Slot
from tests.simulation.kube_fleet import KubeSimulation, SimNode, Violation
from tests.support.sampling import of_this_run

SEEDS, IN_A_SAMPLE, HOURS = range(1, 13), 1, 2.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", of_this_run().some("kubernetes fleets", tuple(SEEDS), IN_A_SAMPLE))
def test_no_kubernetes_fleet_breaks_an_invariant(seed: int) -> None:
    """The budget holds, no pod is evicted from a node in service, what people did stays, a faulty node is acted on, and
    in the end no taint, annotation, claim or remediation is left."""
    fleet = KubeSimulation(seed)
    fleet.live(HOURS)
    assert fleet.drains, "nothing happened in this fleet"


class KeepsItsClaim(SimNode):
    """It gives no slot back."""

    def give_back(self, slot: Slot) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [({"orchestrator": KeepsItsClaim}, "stays out|stays open|claims are left"), ({"granted": 4}, "hold claims, 2 may")],
    ids=["claims leak", "the limit is not kept"],
)
def test_a_fault_is_found(fault: dict[str, Any], message: str) -> None:
    """An invariant that no fault breaks proves nothing."""
    with pytest.raises(Violation, match=message):
        _live(fault)


def _live(fault: dict[str, Any]) -> None:
    for seed in SEEDS:
        KubeSimulation(seed, **fault).live(HOURS)


def test_a_seed_decides_everything() -> None:
    """Two fleets of one seed live the same life."""
    first, second = KubeSimulation(3), KubeSimulation(3)
    first.live(1.0, settles=False)
    second.live(1.0, settles=False)
    assert first.trail == second.trail
    assert first.server.version == second.server.version
