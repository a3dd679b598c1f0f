"""Somebody sets the clock while a remediation is open: what is waited for is waited for as long as before."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from healthd.core.model import Mode
from tests.support.engine_replay import WELL, Replay, when
from tests.support.engine_rig import STORIES, TIMEOUTS, XID_79, World, repair_story
from tests.support.engine_wire import disk_is_full

HOUR_S = 3600.0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
@pytest.mark.parametrize("name", list(STORIES))
def test_set_at_any_boundary_it_ends_in_the_same_place(tmp_path: Path, name: str, by_s: float) -> None:
    """An hour forward or back: one drain, one release, no request more than undisturbed, and no later than by a few
    looks."""
    replay = Replay(STORIES[name], tmp_path)
    for number, world in replay.at_every_boundary(lambda world: world.clock.set_by(by_s), half=True):
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])
        made = (world.provisioner.requests, world.provisioner.replacements, world.resetter.requests)
        plain = replay.plain
        expected = (plain.provisioner.requests, plain.provisioner.replacements, plain.resetter.requests)
        assert made == expected, (number, replay.passed[number])
        assert world.clock() <= plain.clock() + 60.0, (number, replay.passed[number])


def verifying(folder: Path) -> World:
    """A node that was rebooted, and whose check has not looked since."""
    world = repair_story(folder)
    world.reboot_heals = False
    world.levels.add(XID_79)
    while not world.message or not world.message[-1].startswith("out until it is healthy"):
        world.step()
    return world


def test_a_step_forward_does_not_use_up_the_timeout_of_a_repair(tmp_path: Path) -> None:
    """Ten minutes to become well after a reboot are ten minutes, and no failed attempt at once: chronyd's makestep
    comes just then, minutes after the boot."""
    world = verifying(tmp_path)
    world.clock.set_by(HOUR_S)
    world.run(round(TIMEOUTS.verify_timeout_s / 5) - 10)
    assert world.provisioner.requests == 1
    assert any("the clock was set forward by 3600 s: what is waited for" in text for text in world.audit("step"))
    world.run(20)
    assert world.provisioner.requests == 2, "after its time it is tried again"


def test_a_step_back_does_not_keep_a_node_out_for_as_long(tmp_path: Path) -> None:
    """A repair that does not help is known for that after its ten minutes, by a clock that was set back an hour."""
    world = verifying(tmp_path)
    world.clock.set_by(-HOUR_S)
    world.run(round(TIMEOUTS.verify_timeout_s / 5) + 10)
    assert world.provisioner.requests == 2


def test_a_daemon_that_starts_by_a_clock_behind_its_case_waits_from_now(tmp_path: Path) -> None:
    """The battery of the machine's own clock is empty: after a reboot it is a day earlier than before."""
    world = verifying(tmp_path)
    world.clock.set_by(-24 * HOUR_S)
    world.restart_daemon()
    world.run(5)
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert timedelta() <= world.clock.now() - remediation.since < timedelta(seconds=60)
    assert any("the clock was set back since: what is waited for begins now" in text for text in world.audit("step"))
    world.levels.clear()
    assert world.run_to_end().ending() == WELL


def test_the_jump_is_not_lost_where_it_cannot_be_written_down(tmp_path: Path) -> None:
    """A disk that is full at that moment: nothing is done until the moved times are on it."""
    world = verifying(tmp_path)
    world.clock.set_by(HOUR_S)
    when(world, "before save", disk_is_full)
    world.run(3)
    assert world.message[-1].startswith("nothing was done: the state was not written")
    world.wire.at = {}
    world.run(10)
    assert world.provisioner.requests == 1


def test_nothing_open_nothing_moves(tmp_path: Path) -> None:
    """Without a remediation there is nothing to write; the next one begins by the new clock."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.run(2)
    world.clock.set_by(-HOUR_S)
    world.run(2)
    assert world.audit("step") == []
    world.log_line(XID_79)
    assert world.run_to_end().ending() == WELL
