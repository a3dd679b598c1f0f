"""Somebody sets the clock of the controller's machine: what it waits for it waits for as long as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.remediation.records.handoff import RequestAnswer
from tests.engine.test_controller_repeats import ROUNDS, boundaries, is_done, name, settled, world_of
from tests.engine.test_controller_replay import reboot_asked
from tests.support.controller_rig import NODE, SILENT_S, STEP_S, TIMEOUTS, AskedWorld
from tests.support.engine_wire import disk_is_full

HOUR_S = 3600.0
__all__ = ["name"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_set_at_any_boundary_it_ends_in_the_same_way(name: str, by_s: float, tmp_path: Path) -> None:
    """An hour forward or back, anywhere: one act, and the request is done."""
    for number, label in enumerate(boundaries(name, tmp_path / "plain")):
        if number % 2:
            continue
        world = world_of(name, tmp_path / str(number))
        world.wire.at[number] = lambda world=world: world.clock.set_by(by_s)  # type: ignore[misc]
        settled(world, ROUNDS[name])
        assert (world.acts, is_done(world)) == (1, True), (number, label, world.message[-2:])
        world.close()


def rebooting(folder: Path) -> AskedWorld:
    """It was rebooted a minute ago, and is away."""
    world = reboot_asked(folder).run(3)
    assert (world.acts, world.record.answer) == (1, RequestAnswer.TAKEN)
    world.goes_silent()
    world.cluster.nodes[NODE].record = replace(world.record, following=()).text
    return world.run(3)


def test_a_clock_set_forward_gives_no_node_up_that_is_in_its_reboot(tmp_path: Path) -> None:
    """Half an hour for a reboot is half an hour; only then is its silence counted."""
    world = rebooting(tmp_path)
    began = world.clock()
    world.clock.set_by(HOUR_S)
    while not any("did not come back from its reboot" in message for message in world.message):
        world.run(1)
        assert world.clock() - began < TIMEOUTS.reboot_timeout_s + SILENT_S
    assert world.clock() - began > TIMEOUTS.reboot_timeout_s - 10 * STEP_S


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_a_replacement_is_waited_for_as_long_as_before(by_s: float, tmp_path: Path) -> None:
    """No machine comes: it is given up after its time, neither at once nor an hour later; a disk that is full at that
    moment changes nothing."""
    for full in (False, True):
        world = AskedWorld(tmp_path / f"{full}")
        world.provisioner._replaces = lambda: None
        world.run(3)
        world.clock.set_by(by_s)
        if full:
            world.wire.at[len(world.wire.passed)] = disk_is_full
        settled(world, int(TIMEOUTS.replace_timeout_s / STEP_S) - 10)
        before = world.record.answer
        settled(world, 20)
        assert (before, world.record.answer, world.acts) == (RequestAnswer.TAKEN, RequestAnswer.REFUSED, 1), (
            world.message[-1]
        )
