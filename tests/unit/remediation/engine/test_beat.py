"""The engine's sign of life: silence beyond what was announced, and from nobody but whoever takes the turn."""

from __future__ import annotations

import threading

import pytest

from healthd.core.errors import SourceTimeout
from healthd.core.node import CommandResult
from healthd.remediation.engine.dependencies import Heartbeat
from healthd.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def beat(clock: FakeClock) -> Heartbeat:
    made = Heartbeat(clock)
    made.begin()
    return made


def test_what_is_announced_is_no_silence(beat: Heartbeat, clock: FakeClock) -> None:
    """A reset of five minutes is one until it is over; after that every second counts."""
    beat(300.0)
    clock.advance(299)
    assert beat.silent_s() == 0
    clock.advance(61)
    assert beat.silent_s() == 60


def test_the_next_step_takes_the_announcement_back(beat: Heartbeat, clock: FakeClock) -> None:
    """What ended early gives nothing of its time to what follows."""
    beat(300.0)
    beat()
    clock.advance(10)
    assert beat.silent_s() == 10


def test_a_command_is_announced_however_it_ends(beat: Heartbeat, clock: FakeClock) -> None:
    """With its own deadline before, and as over after."""

    def run(argv: tuple[str, ...], *, timeout_s: float) -> CommandResult:
        clock.advance(timeout_s)
        assert beat.silent_s() == 0
        raise SourceTimeout(f"{argv[0]}: no end within {timeout_s:g} s")

    with pytest.raises(SourceTimeout):
        beat.announcing(run)(("nvidia-smi", "--gpu-reset"), timeout_s=300.0)
    clock.advance(7)
    assert beat.silent_s() == 7


def test_what_others_do_is_no_sign_of_life(beat: Heartbeat, clock: FakeClock) -> None:
    """`healthd plan` asks nvidia-smi too, and must not hide an engine that is stuck; nor may anybody between turns."""
    clock.advance(400)
    other = threading.Thread(target=beat, args=(1000.0,))
    other.start()
    other.join()
    assert beat.silent_s() == 400
    beat.end()
    clock.advance(5)
    beat(1000.0)
    assert beat.silent_s() == 5
