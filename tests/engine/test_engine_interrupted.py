"""A GPU reset that takes long, or that the daemon does not live to see the end of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Mode
from healthd.core.node import CommandResult
from healthd.daemon.daemon import _ENGINE_IS_STUCK_AFTER_S
from healthd.remediation.engine.gpu_reset import GpuReset
from tests.support.engine_replay import WELL, Replay, when
from tests.support.engine_rig import XID_95, World, reset_story
from tests.support.engine_wire import disk_is_full, kill

SERVICES = ("nvidia-persistenced", "nvidia-dcgm", "nvidia-fabricmanager")


def on_a_slow_machine(world: World) -> tuple[float, list[float]]:
    """Every command of a reset takes nearly as long as it may: how long the longest turn was, and for how long nothing
    was heard at the end of each command, beyond what was announced."""
    heard: list[float] = []

    def run(argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        world.clock.advance(timeout_s - 1.0)
        heard.append(world.beat.silent_s())
        return CommandResult(argv=tuple(argv), code=0, stdout="active", stderr="", duration_s=timeout_s - 1.0)

    world.resetter = GpuReset(  # type: ignore[assignment]  # the real one in the place of the fake
        services=SERVICES,
        run=world.beat.announcing(run),
        let_go=lambda: None,
        own_pids=tuple,
        proc_root=world.folder / "proc",
        dev_root=world.folder / "dev",
    )
    (world.folder / "proc").mkdir()
    (world.folder / "dev").mkdir()
    world.restart_daemon()
    world.at(10, lambda: world.log_line(XID_95))
    longest_s = 0.0
    while not any("GPUs reset" in text for text in world.audit("step")):
        began_s = world.clock()
        world.step()
        longest_s = max(longest_s, world.clock() - began_s)
    return longest_s, heard


def test_a_turn_as_long_as_a_reset_may_take_is_no_silence(tmp_path: Path) -> None:
    """Three services, each a minute to stop and a minute to start, and five minutes of reset: one turn of over ten
    minutes, in which the watchdog never has a reason to end the daemon."""
    turn_s, silences_s = on_a_slow_machine(World(tmp_path, mode=Mode.REPAIR, can_reset=True))
    assert turn_s > 2 * _ENGINE_IS_STUCK_AFTER_S
    assert len(silences_s) > 2 * len(SERVICES)
    assert max(silences_s) < 10.0


def test_each_step_is_a_sign_of_life(tmp_path: Path) -> None:
    """Whatever the one before it took: evidence of four minutes is over when the reset begins."""
    world = reset_story(tmp_path)
    reset, silences = world.resetter.reset, []

    def noted(stop: tuple[str, ...]) -> str:
        silences.append(world.beat.silent_s())
        return reset(stop)

    when(world, "after collect", lambda: world.clock.advance(240.0))
    world.resetter.reset = noted  # type: ignore[method-assign]
    assert world.run_to_end().ending() == WELL
    assert silences == [0.0]


def test_a_reset_that_kills_the_daemon_each_time_comes_to_an_end(tmp_path: Path) -> None:
    """By the watchdog, by the OOM killer, by a driver that panics: after two attempts the reboot is next, every service
    that was stopped runs again, and a person can read why."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True)
    world.at(10, lambda: world.log_line(XID_95))
    when(world, "after reset", kill)
    assert world.run_to_end().ending() == WELL
    assert (world.resetter.requests, world.provisioner.requests) == (2, 1)
    assert world.resetter.stopped == []
    messages = world.audit("step")
    assert any(
        "intends to reset the GPUs once more: a reset was begun, and its end is not known" in text for text in messages
    )
    assert any("reboot_node is next: the GPU reset was interrupted" in text for text in messages)


def test_without_a_next_remedy_it_pages(tmp_path: Path) -> None:
    """A repair that was ordered has one rung: the node stays out, and an operator is needed."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True)
    world.at(10, lambda: world.log_line(XID_95))
    world.provisioner.reason_against = lambda remedy: "no right to"  # type: ignore[method-assign]
    when(world, "before reset", kill)
    world.run(60)
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert "given up after 2 attempts, an operator is needed: the GPU reset was interrupted" in remediation.note
    assert (world.resetter.requests, world.resetter.stopped, remediation.stopped) == (0, [], ())


@pytest.mark.parametrize("label", ["before start", "after start"])
def test_killed_among_the_starts_nothing_is_reset_again(tmp_path: Path, label: str) -> None:
    """The end of the reset is on disk before the first service is started."""
    replay = Replay(reset_story, tmp_path)
    (number,) = replay.numbers(label)
    world = replay.play()
    world.wire.at[number] = kill
    assert world.run_to_end().ending() == WELL
    assert (world.resetter.requests, world.resetter.stopped, world.kills) == (1, [], 1)


@pytest.mark.parametrize("happens", [kill, disk_is_full])
def test_whatever_interrupts_it_all_that_was_stopped_runs_in_the_end(
    tmp_path: Path, happens: Callable[[], None]
) -> None:
    """At every boundary: nothing is owed a start any more, and there is one reset more at most."""
    replay = Replay(reset_story, tmp_path)
    for number, world in replay.at_every_boundary(lambda _: happens(), half=True):
        if happens is disk_is_full and not replay.passed[number].endswith("save"):
            continue
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])
        assert (world.resetter.stopped, world.resetter.requests <= 2) == ([], True), (number, replay.passed[number])


def test_a_mode_that_is_lowered_in_the_middle_leaves_no_service_stopped(tmp_path: Path) -> None:
    """The reset is not made any more; what it had stopped is started all the same."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True)
    world.resetter.held_by = "4711 nvidia-device-p"
    world.at(10, lambda: world.log_line(XID_95))
    while not world.resetter.stopped:
        world.step()
    world.rules = replace(world.rules, mode=Mode.QUARANTINE)
    world.run(3)
    assert (world.resetter.stopped, world.resetter.requests) == ([], 0)
