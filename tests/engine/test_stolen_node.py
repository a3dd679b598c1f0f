"""What root on a node of a Slurm cluster can have ``healthd controller`` do, as SECURITY.md says it.

To Slurm root of one node is root of all, so the thief writes whatever healthd would write, at every node: places of the
budget, drains in healthd's words, requests, and over what the controller wrote there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Mode, Remedy, Step
from healthd.remediation.decide.remediation import Phase
from healthd.remediation.ports import Provisioner
from healthd.remediation.records.handoff import HandoffRecord
from tests.support.controller_rig import STEP_S, AskedWorld
from tests.support.fake_repairs import FakeProvisioner

AN_HOUR = int(3600 / STEP_S)
PER_HOUR = 4


class StolenWorld(AskedWorld):
    """Eight nodes, of each of which another machine is asked for, again and again, in the right words."""

    def __init__(self, folder: Path) -> None:
        self.platforms = {f"n{number}": FakeProvisioner(lambda: None, lambda: None) for number in range(1, 9)}
        super().__init__(folder)
        self.rules = replace(self.rules, replacements_per_hour=PER_HOUR)

    def acts_on(self, node: str, instance: str) -> Provisioner:
        return self.platforms[node]

    def forge(self, remedy: Remedy = Remedy.REPLACE_NODE, most: int = 8) -> None:
        """Everything that healthd's own agent would have written, over everything that stands there."""
        for number, (name, node) in enumerate(list(self.cluster.nodes.items())[:most]):
            remediation = f"f{int(self.seconds())}"
            self.cluster.update(name, "drain", f"healthd: gpu.xid.79 gpu:0 [{remediation}]", user="healthd")
            self.cluster.slots["cluster", number] = name
            asks = HandoffRecord(
                remediation_id=remediation, machine=self.platforms[name].instance, remedy=remedy, asks=True, attempt=1
            )
            node.record = replace(asks, asked=self.clock.now()).text

    def steal(self, steps: int, most: int = 8) -> None:
        """A thief who rewrites so many nodes before each round of the controller."""
        for _ in range(steps):
            self.forge(most=most)
            self.run(1)

    @property
    def given_away(self) -> int:
        return sum(each.replacements for each in self.platforms.values())

    def _acts(self, step: Step) -> None:
        assert any(remediation.phase is Phase.INTENDED for remediation in self.store.remediations())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StolenWorld]:
    made = StolenWorld(tmp_path)
    yield made
    made.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("nodes", range(1, 8))
def test_few_names_again_and_again_give_six_where_four_may_be(nodes: int, world: StolenWorld) -> None:
    """Another node's replacements count once an hour, so that it keeps nobody from theirs."""
    world.steal(AN_HOUR // 3, nodes)
    assert PER_HOUR <= world.given_away <= (PER_HOUR + 1) ** 2 // 4 == 6


def test_no_more_machines_go_than_the_rate_of_an_hour(world: StolenWorld) -> None:
    """The controller counts in its own store: records that were wiped, and a restart, give no further ones."""
    world.steal(AN_HOUR // 2)
    assert world.given_away == PER_HOUR
    world.restart()
    world.steal(AN_HOUR // 4)
    assert world.given_away == PER_HOUR
    assert any("within an hour, 4 may be: an operator has to look" in each.message for each in world.standings)
    world.steal(AN_HOUR // 2)
    assert PER_HOUR < world.given_away <= 2 * PER_HOUR


def test_no_machine_goes_under_a_job(world: StolenWorld) -> None:
    """Nor inside an administrator's window, nor where the node's feature opts it out: what the cluster shows counts."""
    nodes = list(world.cluster.nodes.values())
    for node in nodes[:3]:
        node.jobs = ["4711"]
    world.cluster.maintenance |= {"n4", "n5", "n6"}
    world.rules = replace(world.rules, opt_out_feature="healthd-opt-out")
    for node in nodes[6:]:
        node.features = {"healthd-opt-out"}
    world.steal(30)
    assert world.given_away == 0
    world.forge(Remedy.REBOOT_NODE)
    world.run(3)
    assert sum(each.requests for each in world.platforms.values()) == 0


def test_a_controller_that_only_looks_does_nothing(world: StolenWorld) -> None:
    """One setting on the head node ends it."""
    world.rules = replace(world.rules, mode=Mode.OBSERVE)
    world.steal(30)
    assert world.given_away == 0
