"""A Kubernetes fleet on a simulated API server: what never happens, whatever its requests, processes and people do."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.notify.notifier import NEWS, Notifier
from healthd.remediation.engine.engine import Engine
from healthd.remediation.orchestrators.kubernetes.fleet import KubeFleet
from healthd.remediation.orchestrators.kubernetes.objects.drain_record import DrainRecord
from healthd.remediation.orchestrators.kubernetes.objects.eviction import GangMode
from healthd.remediation.ports import Provisioner, Slot
from healthd.remediation.provisioners.kube_nodes import ByProviderId
from healthd.state.monitor import Monitor
from healthd.state.store import Store
from tests.simulation.kube_fleet import KubeSimulation, SimNode, Violation
from tests.simulation.kube_messages import Pager, agent_notifier
from tests.simulation.kube_platform import KINDS, Kind
from tests.support.sampling import of_this_run

SEEDS, IN_A_SAMPLE, HOURS = range(1, 13), 1, 2.0
PLATFORM_SEEDS = (1, 2, 3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", of_this_run().some("kubernetes fleets", tuple(SEEDS), IN_A_SAMPLE))
def test_no_kubernetes_fleet_breaks_an_invariant(seed: int) -> None:
    """The budget holds, no pod is evicted from a node in service, what people did stays, a faulty node is acted on and
    reported, and in the end no taint, annotation, claim, remediation or message is left."""
    fleet = KubeSimulation(seed)
    fleet.live(HOURS)
    assert fleet.drains, "nothing happened in this fleet"


@pytest.mark.slow
@pytest.mark.parametrize("kind", of_this_run().some("kubernetes platforms", KINDS, 1))
@pytest.mark.parametrize("seed", of_this_run().some("kubernetes fleets of a platform", PLATFORM_SEEDS, IN_A_SAMPLE))
def test_no_platform_is_asked_for_more_than_a_fault_calls_for(kind: Kind, seed: int) -> None:
    """A machine is rebooted or replaced for its own fault, once, under no pod, while healthd holds its Node and within
    the bounds; a node that stays out pages; a gang loses its pods as its rule has it, once for each drain; a successor
    is in service, and no claim of the old Node is left."""
    fleet = KubeSimulation(seed, platform=kind)
    fleet.live(HOURS / 2)
    assert fleet.room is not None
    assert sum(fleet.room.platform.acts.values()), "the platform was asked for nothing"


class KeepsItsClaim(SimNode):
    """It gives no slot back."""

    def give_back(self, slot: Slot) -> None:
        pass


class KeepsClaimsOfTheGone(KubeFleet):
    """It never finds that a Node is gone."""

    def _is_gone(self, node: str) -> bool:
        return False


class AsksTwice(ByProviderId):
    """It does not wait for an answer."""

    def reboot(self) -> None:
        super().reboot()
        super().reboot()


def twice(opened: Provisioner) -> Provisioner:
    return AsksTwice(opened, machine=opened.machine)


def forgets(pager: Pager, node: str, monitor: Monitor, engine: Engine, store: Store) -> Notifier:
    """The notifier of an agent that does not know what the one before it has said."""
    store.keep(NEWS, "")
    return agent_notifier(pager, node, monitor, engine, store)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message", "seeds", "hours"),
    [
        ({"orchestrator": KeepsItsClaim}, "stays out|stays open|claims are left", SEEDS, 0.25),
        ({"granted": 4}, "hold claims in healthd-budget, 2 may", SEEDS, HOURS),
        ({"platform": "hyperpod", "counts": KeepsClaimsOfTheGone}, "still holds a claim", SEEDS[1:], 0.25),
        ({"platform": "ec2", "acts": twice}, "was asked for 0 s ago", SEEDS[4:], 0.25),
        (
            {"platform": "ec2", "evicts": GangMode.MEMBERS},
            "is to be left alone",
            SEEDS[3:],
            1.0,
        ),  # 4 leaves gangs alone
        ({"notifier": forgets}, "messages are not over", SEEDS[4:], 0.5),  # 5 is the first in which an agent dies so
    ],
    ids=[
        "claims leak",
        "the limit is not kept",
        "claims of the gone stay",
        "reboots are asked for twice",
        "gangs are torn",
        "what was said is forgotten",
    ],
)
def test_a_fault_is_found(fault: dict[str, Any], message: str, seeds: range, hours: float) -> None:
    """An invariant that no fault breaks proves nothing."""
    with pytest.raises(Violation, match=message):
        _live(fault, seeds, hours)


@pytest.mark.slow
def test_a_drain_that_evicts_a_gang_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not tell pods that were there when it began from those that their owner made after an eviction."""
    monkeypatch.setattr(DrainRecord, "concerns", lambda *_: True)
    with pytest.raises(Violation, match="came after its gang was evicted"):
        _live({"platform": "autoscaling"}, range(9, 13), 1.5)


def _live(fault: dict[str, Any], seeds: range, hours: float) -> None:
    for seed in seeds:
        KubeSimulation(seed, **fault).live(hours)


def test_a_seed_decides_everything() -> None:
    """Two fleets of one seed live the same life."""
    first, second = KubeSimulation(3), KubeSimulation(3)
    first.live(0.5, settles=False)
    second.live(0.5, settles=False)
    assert first.trail == second.trail
    assert first.server.version == second.server.version
