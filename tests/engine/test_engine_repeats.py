"""A replacement whose request may be lost is asked for again, where asked twice it comes to what it does asked once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendBusy, BackendDenied
from healthd.core.model import Action, Mode
from healthd.remediation.decide.freeze import Freeze
from healthd.remediation.ports import StateOwner
from tests.support.engine_replay import ADMIN, WELL
from tests.support.engine_rig import MACHINE_TAKES_S, NODE, TIMEOUTS, World, lowered, opted_out, replace_story
from tests.support.engine_wire import kill, no_answer

SOON_S = 120.0 + MACHINE_TAKES_S + 240.0


def until_asked(
    folder: Path, label: str, happen: Callable[[], None] = no_answer, owner: StateOwner = StateOwner.ENGINE
) -> World:
    """Up to the request, which ``happen`` cuts off ``before replace`` or ``after replace``."""
    world = replace_story(folder)
    world.provisioner.repeats_s, world.provisioner.state_owner = 0.0, owner

    def look() -> None:
        if world.wire.passed[-1] == label:
            world.wire.at.clear()
            happen()

    world.wire.at = dict.fromkeys(range(10_000), look)
    while world.wire.at:
        world.step()
    return world


@pytest.mark.parametrize("owner", [StateOwner.ENGINE, StateOwner.AFTER_ASKING])
@pytest.mark.parametrize("happen", [no_answer, kill])
@pytest.mark.parametrize("label", ["before replace", "after replace"])
def test_it_costs_minutes(label: str, happen: Callable[[], None], owner: StateOwner, tmp_path: Path) -> None:
    """Without an answer, or with a daemon that was killed, before the platform had it or after: one more request, and
    the node is back long before its time is up."""
    world = until_asked(tmp_path, label, happen, owner)
    begun_s = world.clock()
    assert world.run_to_end().ending() == WELL
    assert world.clock() < begun_s + SOON_S < begun_s + TIMEOUTS.replace_timeout_s
    assert world.provisioner.replacements == 1 + (label == "after replace")


def test_a_platform_that_cannot_be_asked_twice_is_waited_for(tmp_path: Path) -> None:
    """Its time runs out, and the next attempt is another request."""
    world = until_asked(tmp_path, "before replace")
    world.provisioner.repeats_s = None
    begun_s = world.clock()
    assert world.run_to_end().ending() == WELL
    assert world.clock() > begun_s + TIMEOUTS.replace_timeout_s


def test_one_that_was_answered_is_not_repeated(tmp_path: Path) -> None:
    """The platform has it, and only its evidence counts."""
    world = until_asked(tmp_path, "after replace", lambda: None)
    world.replaced_at_s = 10_000.0
    world.run(round(TIMEOUTS.replace_timeout_s / 5) - 5)
    assert world.provisioner.replacements == 1


def test_it_is_repeated_a_minute_apart_until_it_is_answered(tmp_path: Path) -> None:
    """A platform without an answer, or without time, is asked every minute, and is left alone once it has taken it."""
    world = until_asked(tmp_path, "before replace")

    def busy() -> None:
        raise BackendBusy("throttled")

    answers: list[Callable[[], None]] = [lambda: None, busy, no_answer, busy, no_answer, no_answer]
    asked_s: list[float] = []

    def asked() -> None:
        asked_s.append(world.clock())
        answers.pop()()

    world.provisioner._replaces = asked
    world.run(round(TIMEOUTS.replace_timeout_s / 5) - 5)
    assert len(asked_s) == 6
    assert all(later - before >= 60.0 for before, later in pairwise(asked_s))
    assert "asked for again: throttled" in " ".join(world.message)
    assert sum("asks again for the replacement" in line for line in world.audit("step")) == 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda world: world.cluster.update(NODE, "drain", ADMIN, user="admin"), "held by admin"),
        (lambda world: world.cluster.nodes[NODE].jobs.append("7"), "no longer idle"),
        (opted_out, "exists"),
        (lambda world: lowered(world, Mode.OBSERVE), "observe"),
        (lambda world: setattr(world.provisioner, "others", "ShuttingDown"), "ShuttingDown"),
        (lambda world: setattr(world, "rules", replace(world.rules, freezes=(Freeze(reason="rollout"),))), "freeze"),
    ],
    ids=["admin", "job", "opt-out", "mode", "platform", "freeze"],
)
def test_everything_has_to_be_as_it_was(change: Callable[[World], object], words: str, tmp_path: Path) -> None:
    """An objection that would have kept the first request back keeps back the second, and says so."""
    world = until_asked(tmp_path, "before replace")
    change(world)
    world.run(40)
    assert world.provisioner.replacements == 0
    assert words in " ".join(world.message[-20:])
    assert len(set(world.message[-20:])) == 1, "one sentence, which is written down once"


def test_a_text_that_the_cluster_writes_over_the_drain_delays_no_second_request(tmp_path: Path) -> None:
    """A process that does not end: the drain stays ours, and the lost request is made again a minute after it."""
    world = until_asked(tmp_path, "before replace")
    world.cluster.drains_by_itself(NODE)
    begun_s = world.clock()
    world.run(15)
    assert world.provisioner.replacements == 1
    assert any("over our drain: the drain stays ours" in text for text in world.audit("step"))
    assert world.run_to_end().ending().in_service
    assert world.clock() < begun_s + SOON_S


def test_a_reading_that_is_refused_is_no_replacement_that_failed(tmp_path: Path) -> None:
    """The platform has the request, and the role loses the right to read: an operator is called, and nothing is
    requested again."""
    world = until_asked(tmp_path, "before replace", lambda: None)
    machine = world.provisioner.machine

    def refuses() -> str:
        raise BackendDenied("ec2:DescribeInstances is missing")

    world.provisioner.machine = refuses  # type: ignore[method-assign]
    world.run(10)
    assert "it is not known how far it is: ec2:DescribeInstances is missing" in world.message[-1]
    assert world.engine.decision.action is Action.PAGE
    world.provisioner.machine = machine  # type: ignore[method-assign]
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.replacements == 1


def test_a_right_that_was_lost_meanwhile_gives_up(tmp_path: Path) -> None:
    """As at the first request."""
    world = until_asked(tmp_path, "before replace")

    def denied() -> None:
        raise BackendDenied("ec2:TerminateInstances is missing")

    world.provisioner._replaces = denied
    world.run(100)
    assert world.engine.decision.action is Action.PAGE
    assert "the replacement is not permitted: ec2:TerminateInstances is missing" in world.message[-1]
