"""A held node is idle: where the cluster can be told to leave it awake it is, and what was told is taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.core.model import Mode, Remedy
from healthd.remediation.records.handoff import parse
from healthd.sim.cluster import FakeOrchestrator
from tests.support.engine_replay import WELL, Replay
from tests.support.engine_rig import NODE, STORIES, XID_79, Trouble, World
from tests.support.engine_wire import kill

WORN = Trouble(code="gpu.remap.failure", remedy=Remedy.REPLACE_NODE, clears_by=None)


def saving(folder: Path, version: str = "23.02") -> World:
    """A node with a fault that does not end, out, on a cluster that powers idle nodes down."""
    world = World(folder, mode=Mode.QUARANTINE)
    world.cluster.power_saving = version
    world.at(10, lambda: world.levels.add(WORN)).run(30)
    assert world.hold_text
    return world


def told(world: World) -> int:
    return world.wire.passed.count("before keep_awake")


def test_a_held_node_is_kept_awake_until_it_is_back(tmp_path: Path) -> None:
    """Told once, recorded in the handoff record, taken back with the slot."""
    world = saving(tmp_path)
    assert world.cluster.awake == {NODE}
    record = parse(world.orchestrator.read_record())
    assert record is not None
    assert record.awake is not None
    world.run(20)
    assert told(world) == 1
    assert sum("kept awake" in text for text in world.audit("step")) == 1
    world.levels.clear()
    assert world.run_to_end().ending().ends == ("released",)
    assert (world.cluster.awake, world.cluster.slots) == (set(), {})
    after = parse(world.orchestrator.read_record())
    assert after is None or after.awake is None


def test_what_a_restart_of_the_controller_forgot_is_told_again(tmp_path: Path) -> None:
    """A reconfiguration empties the list, and the next reading shows it."""
    world = saving(tmp_path)
    world.cluster.awake.clear()
    world.run(2)
    assert (world.cluster.awake, told(world)) == ({NODE}, 2)


def test_a_repair_that_waits_for_a_window_tells_it_again_too(tmp_path: Path) -> None:
    """A node that waits to be rebooted is read, and kept awake, as long as it waits."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.cluster.power_saving = "23.02"
    world.cluster.nodes[NODE].jobs = ["12"]
    world.at(10, lambda: world.log_line(XID_79)).run(15)
    world.cluster.maintenance.add(NODE)
    world.cluster.nodes[NODE].jobs = []
    world.run(10)
    assert world.message[-1].startswith("reboot waits: maintenance window")
    world.cluster.restart()
    world.run(10)
    assert world.cluster.awake == {NODE}


def test_what_an_operator_excepted_is_left_as_it_is(tmp_path: Path) -> None:
    """It is not told, and not taken back."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.cluster.power_saving = "23.02"
    world.cluster.awake.add(NODE)
    world.at(10, lambda: world.log_line(XID_79))
    assert world.run_to_end().ending() == WELL
    assert (world.cluster.awake, told(world)) == ({NODE}, 0)


def test_a_slurm_that_cannot_be_told_is_asked_once_and_said(tmp_path: Path) -> None:
    """22.05: the remediation goes on, the record keeps nothing of it, and another slurmctld is asked once more."""
    world = saving(tmp_path, "22.05")
    messages = [text for text in world.audit("step") if "may power it down while it is held" in text]
    assert len(messages) == told(world) == 1
    record = parse(world.orchestrator.read_record())
    assert record is not None
    assert record.awake is None
    world.cluster.restart()
    world.run(5)
    assert told(world) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STORIES)
def test_killed_at_any_boundary_nothing_is_left_excepted(name: str, tmp_path: Path) -> None:
    """Whatever the moment of the kill, and whether its disk or another machine goes on: at the end power saving has the
    node back."""

    def story(folder: Path) -> World:
        world = STORIES[name](folder)
        world.cluster.power_saving = "23.02"
        return world

    replay = Replay(story, tmp_path)
    assert replay.numbers("before keep_awake")
    for number, world in replay.at_every_boundary(lambda _: kill(), half=True):
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])
        assert world.cluster.awake == set(), (number, replay.passed[number])
        assert FakeOrchestrator(world.cluster, NODE).view().in_service
