"""A Kubernetes fleet on a simulated API server: what never happens, whatever its requests, processes and people do."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.notify.notifier import NEWS, Notifier
from healthd.remediation.engine.engine import Engine
from healthd.remediation.ports import Slot
from healthd.state.monitor import Monitor
from healthd.state.store import Store
from tests.simulation.kube_fleet import KubeSimulation, SimNode, Violation
from tests.simulation.kube_messages import Pager, agent_notifier
from tests.support.sampling import of_this_run

SEEDS, IN_A_SAMPLE, HOURS = range(1, 13), 1, 2.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", of_this_run().some("kubernetes fleets", tuple(SEEDS), IN_A_SAMPLE))
def test_no_kubernetes_fleet_breaks_an_invariant(seed: int) -> None:
    """The budget holds, no pod is evicted from a node in service, what people did stays, a faulty node is acted on and
    reported, and in the end no taint, annotation, claim, remediation or message is left."""
    fleet = KubeSimulation(seed)
    fleet.live(HOURS)
    assert fleet.drains, "nothing happened in this fleet"


class KeepsItsClaim(SimNode):
    """It gives no slot back."""

    def give_back(self, slot: Slot) -> None:
        pass


def forgets(pager: Pager, node: str, monitor: Monitor, engine: Engine, store: Store) -> Notifier:
    """The notifier of an agent that does not know what the one before it has said."""
    store.keep(NEWS, "")
    return agent_notifier(pager, node, monitor, engine, store)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message", "seeds", "hours"),
    [
        ({"orchestrator": KeepsItsClaim}, "stays out|stays open|claims are left", SEEDS, HOURS),
        ({"granted": 4}, "hold claims, 2 may", SEEDS, HOURS),
        ({"notifier": forgets}, "messages are not over", SEEDS[4:], 0.5),  # 5 is the first in which an agent dies so
    ],
    ids=["claims leak", "the limit is not kept", "what was said is forgotten"],
)
def test_a_fault_is_found(fault: dict[str, Any], message: str, seeds: range, hours: float) -> None:
    """An invariant that no fault breaks proves nothing."""
    with pytest.raises(Violation, match=message):
        _live(fault, seeds, hours)


def _live(fault: dict[str, Any], seeds: range, hours: float) -> None:
    for seed in seeds:
        KubeSimulation(seed, **fault).live(hours)


def test_a_seed_decides_everything() -> None:
    """Two fleets of one seed live the same life."""
    first, second = KubeSimulation(3), KubeSimulation(3)
    first.live(1.0, settles=False)
    second.live(1.0, settles=False)
    assert first.trail == second.trail
    assert first.server.version == second.server.version
