"""What a remediation does inside somebody else's maintenance window, and under a job that allocates no CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.core.model import Refusal, Remedy
from healthd.remediation.decide.commands import Command, Verb
from tests.support.engine_replay import WELL, Replay
from tests.support.engine_rig import NODE, OUT, STORIES, World

ACTS = {"repair": "before reboot", "reset": "before reset", "replace": "before replace"}
AFTER_S = 400  # longer than any of the stories takes


@pytest.fixture(params=ACTS)
def name(request: pytest.FixtureRequest) -> str:
    """Which story."""
    return str(request.param)


def window_opens(world: World) -> None:
    world.cluster.maintenance.add(NODE)


def acts_in(world: World) -> list[int]:
    return [number for number, label in enumerate(world.wire.passed) if label in ACTS.values()]


@pytest.mark.sampled(1)
def test_nothing_irreversible_is_begun_inside_a_maintenance_window(name: str, tmp_path: Path) -> None:
    """From whatever moment an administrator's window is there: no reset, reboot or replacement but in the milliseconds
    between the last look and the act. What was repaired before is verified and let go; the rest goes on afterwards."""
    replay = Replay(STORIES[name], tmp_path)
    (act,) = replay.numbers(ACTS[name])
    crossed = set()
    for number, world in replay.at_every_boundary(window_opens):
        world.run(AFTER_S // 5)
        crossed |= {act - number for begun in acts_in(world) if begun >= number}
        if acts_in(world):
            assert world.cluster.nodes[NODE].hold is None, (number, replay.passed[number], world.message[-1])
        world.cluster.maintenance.clear()
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])
    assert crossed == {0, 1}, "the window is there, and no wider"


def test_it_is_said_what_a_repair_waits_for(tmp_path: Path) -> None:
    """The sentence of the remediation and the word for the metric, once."""
    world = STORIES["repair"](tmp_path)
    world.at(30, lambda: window_opens(world)).run(40)
    message = "reboot waits: maintenance window maintenance is on the node: no reset, reboot or replacement inside it"
    assert world.message[-1] == message
    assert world.engine.stats.refused[Refusal.MAINTENANCE] == 1
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert remediation.note == message


def test_an_ordered_repair_waits_for_the_end_of_the_window(tmp_path: Path) -> None:
    """Its dry run says so. Who made the window can end it, and then the command is carried out."""
    world = World(tmp_path)
    world.at(10, lambda: world.execute(OUT)).run(8)
    window_opens(world)
    command = Command(verb=Verb.REPAIR, who="uid 0", why="bad", remedy=Remedy.REBOOT_NODE)
    lines = world.engine.rehearse(command, world.clock.now()).lines
    assert any("waits for the end of maintenance window maintenance; then" in line for line in lines), lines
    assert world.execute(command).done
    world.run(20)
    assert world.provisioner.requests == 0
    assert "maintenance window maintenance is on the node" in world.message[-1]
    world.cluster.maintenance.clear()
    world.run(20)
    assert world.provisioner.requests == 1


@pytest.mark.sampled(1)
def test_a_suspended_job_is_work(name: str, tmp_path: Path) -> None:
    """Suspended at any moment, it allocates no CPU, and no repair is begun before it has ended."""
    replay = Replay(STORIES[name], tmp_path)
    (act,) = replay.numbers(ACTS[name])
    crossed = set()
    for number, world in replay.at_every_boundary(lambda world: world.cluster.nodes[NODE].suspended.append("9")):
        if number > act:
            break
        world.run(AFTER_S // 5)
        crossed |= {act - number for begun in acts_in(world) if begun >= number}
        world.cluster.nodes[NODE].suspended.clear()
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])
    assert crossed == {0, 1}, "the window is there, and no wider"
