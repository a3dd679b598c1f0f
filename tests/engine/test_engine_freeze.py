"""A freeze of the fleet, or of the configuration: nothing irreversible is begun in it. From every boundary."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Mode, Refusal, Step
from healthd.remediation.decide.freeze import Freeze
from tests.support.engine_replay import WELL, Replay
from tests.support.engine_rig import NODE, STORIES, XID_95, World

ACTS = {"repair": "before reboot", "reset": "before reset", "replace": "before replace"}
FREEZE = Freeze(reason="driver rollout", by="alice")


@pytest.fixture(params=ACTS)
def name(request: pytest.FixtureRequest) -> str:
    """Which story."""
    return str(request.param)


def freezes(world: World) -> None:
    world.cluster.freeze = FREEZE.text


def acts_in(world: World) -> list[int]:
    return [number for number, label in enumerate(world.wire.passed) if label in ACTS.values()]


@pytest.mark.sampled(1)
def test_nothing_irreversible_is_begun_in_a_freeze_of_the_fleet(name: str, tmp_path: Path) -> None:
    """From whatever moment it is on: no act but in the milliseconds between the last reading and the act; the node is
    taken out and waits; what was repaired before is put back; the rest goes on after its end."""
    replay = Replay(STORIES[name], tmp_path)
    (act,) = replay.numbers(ACTS[name])
    for number, world in replay.at_every_boundary(freezes):
        world.run(80)
        crossed = {act - number for begun in acts_in(world) if begun >= number}
        assert crossed <= {0, 1}, (number, replay.passed[number])
        if acts_in(world):
            assert world.cluster.nodes[NODE].hold is None, (number, replay.passed[number], world.message[-1])
        else:
            assert world.cluster.nodes[NODE].hold is not None, "a faulty node is out all the same"
        world.cluster.freeze = ""
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])


def test_the_wait_is_said_and_counted_once(tmp_path: Path) -> None:
    """With the reason and the user of the freeze; it pages no operator, who knows of it."""
    world = STORIES["repair"](tmp_path)
    freezes(world)
    world.run(60)
    words = "reboot waits: freeze: driver rollout (alice); no reset, reboot or replacement before its end"
    assert world.message[-1] == words
    assert world.engine.stats.refused[Refusal.FROZEN] == 1
    assert world.engine.decision.refusal is not Refusal.FROZEN


def test_a_freeze_of_the_configuration_may_forbid_the_drain_too(tmp_path: Path) -> None:
    """The node stays in service with its fault, and the decision says why; after it the node goes out."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True)
    world.rules = replace(world.rules, freezes=(replace(FREEZE, allow=frozenset()),))
    world.at(3, lambda: world.log_line(XID_95)).run(20)
    assert (world.ours, world.cluster.slots) == ([], {})
    decision = world.engine.decision
    assert decision.refusal is Refusal.FROZEN
    assert "would take the node out for gpu.xid.95" in decision.reason
    world.rules = replace(world.rules, freezes=())
    assert world.run_to_end().ending() == WELL


def test_it_forbids_what_it_does_not_allow_and_no_more(tmp_path: Path) -> None:
    """Resets are allowed: the story of a reset passes, the one of a reboot waits."""
    allows = replace(FREEZE, allow=frozenset({Step.DRAIN, Step.RESET}))
    for name, waits in (("reset", False), ("repair", True)):
        world = STORIES[name](tmp_path / name)
        world.rules = replace(world.rules, freezes=(allows,))
        world.run(100)
        assert bool(acts_in(world)) is not waits
        assert (world.store.open_remediation() is not None) is waits
        world.close()


def test_a_node_that_is_out_already_is_put_back_in_a_freeze(tmp_path: Path) -> None:
    """Recoveries are always allowed, also where the drain is forbidden."""
    world = STORIES["quarantine"](tmp_path).run(6)
    world.rules = replace(world.rules, freezes=(replace(FREEZE, allow=frozenset()),))
    freezes(world)
    assert world.run_to_end().ending() == WELL
