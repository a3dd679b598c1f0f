"""What the controller counts of its own acts: each once, by words that cannot grow."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Mode, Refusal, Step
from healthd.remediation.controller.node_status import RepairState
from healthd.remediation.decide.policy import Rules
from tests.support.controller_rig import NODE, STEP_S, TAKES_S, AskedWorld


@pytest.fixture
def world(tmp_path: Path) -> AskedWorld:
    return AskedWorld(tmp_path)


def test_a_replacement_is_counted_and_timed_once(world: AskedWorld) -> None:
    """However many rounds look at it: repair, done, and one step of about the time that the machine took."""
    world.run(12)
    stats = world.controller.stats
    assert dict(stats.answered) == {RepairState.REPAIR: 1, RepairState.DONE: 1}
    assert stats.stats.steps == {Step.REPLACE: 1}
    assert TAKES_S - STEP_S <= stats.stats.steps_s[Step.REPLACE] <= TAKES_S + 2 * STEP_S
    assert +stats.stats.refused == {}
    world.close()


def test_an_answer_that_the_node_wrote_over_is_given_again_and_counted_once(world: AskedWorld) -> None:
    """The node's own write and the controller's answer meet: Slurm has no compare-and-swap."""
    world.run(10)
    answer = world.record.message
    assert answer.startswith("replaced")
    for _ in range(2):
        world.run(2)
        world.cluster.nodes[NODE].record = replace(world.record, message="").text
        world.run(2)
        assert world.record.message == answer
    assert dict(world.controller.stats.answered) == {RepairState.REPAIR: 1, RepairState.DONE: 1}
    world.close()


def test_a_refusal_has_its_reason_beside_it(world: AskedWorld) -> None:
    """A request that our place does not stand for: refused, once, as what it is."""
    world.cluster.give_back("cluster", 0)
    world.run(5)
    assert dict(world.controller.stats.answered) == {RepairState.REFUSED: 1}
    assert +world.controller.stats.stats.refused == {Refusal.NOT_PERMITTED: 1}
    world.close()


def test_what_waits_says_for_what_and_is_counted_once(world: AskedWorld) -> None:
    """In observe mode, and then under a job: two reasons of one wait, then the repair."""
    world.rules = Rules(mode=Mode.OBSERVE, replacements_per_hour=4)
    world.run(4)
    assert +world.controller.stats.stats.refused == {Refusal.OBSERVE: 1}
    world.rules = Rules(mode=Mode.REPAIR, replacements_per_hour=4)
    world.cluster.nodes[NODE].jobs.append("7")
    world.run(4)
    assert +world.controller.stats.stats.refused == {Refusal.OBSERVE: 1, Refusal.NOT_IDLE: 1}
    assert dict(world.controller.stats.answered) == {RepairState.WAITS: 1}
    world.close()
