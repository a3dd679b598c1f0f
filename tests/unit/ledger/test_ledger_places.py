"""The place of a machine by EC2 is its rack where the cluster names none, and goes with the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.config.schema.controller import ControllerSection
from healthd.controller.fleet import topology_of
from healthd.controller.ledger import TOPOLOGY_AGAIN_S, TOPOLOGY_S, LedgerFile, LedgerKeeper, ledger_path
from healthd.core.errors import BackendBusy
from healthd.core.model import Mode
from healthd.fleet.nodes import FleetPicture
from healthd.ledger.changes import NodeReading, with_inventory
from healthd.ledger.database import Ledger
from healthd.ledger.entries import MachineIdentity, SpanState
from healthd.ledger.feed import LedgerFeed
from healthd.ledger.text import case_text
from healthd.remediation.provisioners.instance_topology import InstancePlace
from healthd.remediation.records.handoff import PastAct, PastRepair
from tests.support.fleet_readings import reading

T0 = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
ULTRA, P5 = "p6e-gb200.36xlarge", "p5.48xlarge"
PLACES = {
    "i-1": InstancePlace(network=("nn-1", "nn-2", "nn-3")),
    "i-2": InstancePlace(network=("nn-1", "nn-2", "nn-9")),
}


class Fleet:
    """One node, and the machine that it says it is."""

    def __init__(self, path: Path, machine: MachineIdentity, *, rack: str = "") -> None:
        self.machine, self.day = machine, 0
        self.node = NodeReading(node="n1", state=SpanState.SERVING, machine=MachineIdentity(rack=rack))
        self.ledger = Ledger(path / "ledger.db", now=T0)
        self.feed = self.opened()

    def opened(self) -> LedgerFeed:
        return LedgerFeed(
            self.ledger,
            lambda readings: {each.node: with_inventory(each, self.machine, ()) for each in readings},
            interval_s=86_400.0,
            keep_days=1000.0,
        )

    def read(self) -> MachineIdentity:
        self.feed.read({"n1": self.node}, T0 + self.day * DAY)
        self.day += 1
        return self.ledger.machines()["n1"]


def test_a_place_is_found_by_instance_and_kept(tmp_path: Path) -> None:
    """The node's next reading has it, also that of the next controller, which asks nobody."""
    fleet = Fleet(tmp_path, MachineIdentity(instance="i-1"))
    assert fleet.read().place == ""
    fleet.feed.places |= PLACES
    assert fleet.read().place == "nn-3"
    fleet.feed = fleet.opened()
    assert fleet.feed.places == {"i-1": PLACES["i-1"]}
    assert fleet.read().place == "nn-3"
    assert [each.rack for each in fleet.ledger.contents().spans] == ["", "nn-3"]


def test_another_machine_is_in_another_place(tmp_path: Path) -> None:
    """That of the old one goes with it, whether the new one's is known or not."""
    fleet = Fleet(tmp_path, MachineIdentity(instance="i-1"))
    fleet.feed.places |= PLACES
    fleet.read()
    assert fleet.read().place == "nn-3"
    fleet.machine = MachineIdentity(instance="i-7")
    fleet.day += 1  # asked once a day
    assert fleet.read() == MachineIdentity(instance="i-7")
    fleet.machine = MachineIdentity(instance="i-2")
    fleet.day += 1
    fleet.read()
    assert fleet.read().place == "nn-9"


def test_the_rack_of_the_cluster_comes_first(tmp_path: Path) -> None:
    """Then the Capacity Block of an UltraServer, then the network node that it is connected to."""
    fleet = Fleet(tmp_path, MachineIdentity(instance="i-1"), rack="r7")
    fleet.feed.places |= PLACES
    fleet.read()
    assert fleet.read().place == "r7"
    assert MachineIdentity(network=("a", "b"), capacity_block="cb-1").place == "cb-1"
    assert MachineIdentity(network=("a", "b")).place == "b"


def test_a_case_names_the_network_of_its_own_machine(tmp_path: Path) -> None:
    """Not that of the machine that came after it."""
    fleet = Fleet(tmp_path, MachineIdentity(instance="i-1"))
    fleet.feed.places |= PLACES
    fleet.read()
    act = PastRepair(act=PastAct.REBOOT, at=T0 + DAY, code="gpu.xid.79")
    fleet.node = replace(fleet.node, history=(act,))
    fleet.read()
    contents = fleet.ledger.contents()
    assert "EC2 network nodes: nn-1 / nn-2 / nn-3   Capacity Block: none" in case_text("n1", contents, T0)
    other = {"n1": MachineIdentity(instance="i-2", network=("nn-9",))}
    assert "EC2 network" not in case_text("n1", replace(contents, machines=other), T0)


def test_a_node_without_a_rack_of_the_clusters_gets_the_known_one() -> None:
    """And where there is none to get, the fleet is the one that was read."""
    nodes = (reading("n1"), reading("n2", group="r2"), reading("n3"))
    fleet = FleetPicture(cluster="a", at=T0, nodes=nodes, limit=None, taken=0)
    found = fleet.with_racks({"n1": "nn-3", "n2": "nn-3"})
    assert [each.listed.group for each in found.nodes] == ["nn-3", "r2", ""]
    assert fleet.with_racks({"n2": "nn-3"}) is fleet


class Head:
    """A controller's ledger of two nodes, an hour a step, and EC2, which counts how often it is asked."""

    def __init__(self, folder: Path, answer: Callable[[], Mapping[str, InstancePlace]]) -> None:
        self.answer, self.asked, self.hour, self.types = answer, 0, 0, (P5, P5)
        self.lines = structlog.testing.CapturingLogger()
        log = structlog.wrap_logger(self.lines, processors=[], wrapper_class=structlog.make_filtering_bound_logger(0))
        config = Config(controller=ControllerSection(state_dir=str(folder)))
        stats = ControllerStats(orchestrator="slurm", provisioner="ec2", mode=Mode.OBSERVE)
        file = LedgerFile(ledger_path(config), log)
        self.keeper = LedgerKeeper(config, file, self._read, stats, log, topology=self._ask)
        seed = Ledger(folder / "ledger.db", now=T0)
        feed = LedgerFeed(seed, self._known, interval_s=3600.0, keep_days=100.0)
        feed.read({name: NodeReading(node=name, state=SpanState.SERVING) for name in ("n1", "n2")}, T0)
        seed.close()

    def _known(self, readings: object) -> dict[str, NodeReading]:
        return {
            f"n{number}": with_inventory(
                NodeReading(node=f"n{number}", state=SpanState.SERVING), MachineIdentity(instance=f"i-{number}"), ()
            )
            for number in (1, 2)
        }

    def _ask(self) -> Mapping[str, InstancePlace]:
        self.asked += 1
        return self.answer()

    def _read(self) -> FleetPicture:
        now = T0 + timedelta(hours=self.hour)
        nodes = tuple(reading(f"n{number}", now=now, kind=kind) for number, kind in enumerate(self.types, 1))
        return FleetPicture(cluster="a", at=now, nodes=nodes, limit=None, taken=0)

    def hours(self, count: int) -> None:
        for _ in range(count):
            self.hour += 1
            self.keeper()


def test_ec2_is_asked_when_an_instance_is_new_and_seldom_after_that(tmp_path: Path) -> None:
    """Of one that it does not describe once a day."""
    assert TOPOLOGY_S < TOPOLOGY_AGAIN_S
    head = Head(tmp_path, lambda: {"i-1": PLACES["i-1"]})
    head.hours(20)
    assert head.asked == 1
    assert head.keeper.racks == {"n1": "nn-3"}
    head.hours(24)
    assert head.asked == 2
    head.answer = lambda: PLACES
    head.hours(30)
    assert head.asked == 3
    assert head.keeper.racks == {"n1": "nn-3", "n2": "nn-9"}
    head.hours(48)
    assert head.asked == 3


def test_an_ultraserver_is_asked_for_until_its_block_is_told(tmp_path: Path) -> None:
    """EC2 tells it some time after the launch."""
    head = Head(tmp_path, lambda: PLACES)
    head.types = (ULTRA, P5)
    head.hours(2)
    assert head.keeper.racks["n1"] == "nn-3"
    head.answer = lambda: {**PLACES, "i-1": replace(PLACES["i-1"], capacity_block="cb-7")}
    head.hours(30)
    assert head.keeper.racks["n1"] == "cb-7"
    asked = head.asked
    head.hours(48)
    assert head.asked == asked


def test_a_call_that_fails_is_said_once_and_made_each_hour(tmp_path: Path) -> None:
    """The ledger itself goes on."""

    def busy() -> Mapping[str, InstancePlace]:
        raise BackendBusy("ec2:DescribeInstanceTopology: RequestLimitExceeded")

    head = Head(tmp_path, busy)
    head.hours(5)
    assert head.asked == 5
    assert str(head.lines.calls).count("RequestLimitExceeded") == 1
    head.answer = lambda: PLACES
    head.hours(2)
    assert head.keeper.racks == {"n1": "nn-3", "n2": "nn-9"}


@pytest.mark.parametrize("wanted", [False, True])
def test_ec2_is_asked_only_where_the_site_wants_it(wanted: bool) -> None:
    """Its controller needs a right for that."""
    config = Config()
    config = replace(config, ledger=replace(config.ledger, aws_topology=wanted))
    assert (topology_of(config) is not None) == wanted
