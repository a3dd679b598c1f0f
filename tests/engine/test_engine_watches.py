"""A daemon whose node is out says in the handoff record that it watches over it: with its finding, and later."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from healthd.core.model import Mode
from healthd.remediation.decide.unwatched import SILENT_S, WATCH_S
from healthd.remediation.records.handoff import parse
from tests.support.engine_rig import XID_79, World

_STEP_S = 600.0


def held(folder: Path) -> World:
    """A node that is out while its job runs on."""
    world = World(folder, mode=Mode.REPAIR)
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79)).run(10)
    assert world.hold_text
    return world


def watched(world: World) -> datetime | None:
    record = parse(world.orchestrator.read_record())
    return record.watched if record is not None else None


def words(world: World, seconds: float) -> list[datetime]:
    """The words that the record shows within that time, each once."""
    seen = []
    for _ in range(int(seconds / _STEP_S)):
        world.clock.advance(_STEP_S)
        world.step()
        if (word := watched(world)) is not None and word not in seen:
            seen.append(word)
    return seen


def test_a_daemon_says_its_word_every_two_hours_and_takes_it_back_at_the_end(tmp_path: Path) -> None:
    """The first comes with the finding, before the drain; the record of a node that is back has none."""
    world = held(tmp_path)
    first = watched(world)
    assert first is not None
    assert words(world, WATCH_S - 2 * _STEP_S) == [first]
    message = words(world, 5 * WATCH_S)
    assert 5 <= len(message) <= 6
    assert all((later - before).total_seconds() < SILENT_S for before, later in pairwise(message))
    world.end_jobs()
    assert world.run_to_end().ending().ends == ("released",)
    assert watched(world) is None


def test_a_daemon_that_came_back_says_so_within_a_quarter_of_an_hour(tmp_path: Path) -> None:
    """Others page until they hear of it."""
    world = held(tmp_path)
    world.clock.advance(10 * WATCH_S)
    world.restart_daemon()
    assert words(world, 2 * _STEP_S)


def test_in_observe_mode_nothing_is_written(tmp_path: Path) -> None:
    """It touches nothing, not even the record."""
    world = held(tmp_path)
    first = watched(world)
    world.rules = replace(world.rules, mode=Mode.OBSERVE)
    assert words(world, 2 * WATCH_S) == [first]
