"""When a controller takes itself for stuck."""

from __future__ import annotations

from healthd.controller.progress import Progress
from healthd.testing import FakeClock


def test_only_what_is_under_way_can_be_stuck() -> None:
    """Between two rounds it waits for as long as it is told; half of the patience is slow, all of it stuck."""
    clock = FakeClock()
    progress = Progress(600.0, clock=clock)
    clock.advance(3600.0)
    assert progress.slow() == progress.stuck() == ""
    with progress.at("a round"):
        clock.advance(299.0)
        assert progress.slow() == ""
        clock.advance(1.0)
        assert progress.slow() == "a round has been under way for over 300 s"
        clock.advance(299.0)
        assert (progress.slow(), progress.stuck()) == ("a round has been under way for over 300 s", "")
        clock.advance(1.0)
        assert progress.stuck() == "a round has been under way for over 600 s"
    assert progress.slow() == progress.stuck() == ""


def test_one_that_failed_is_over() -> None:
    """An error ends it as well."""
    clock = FakeClock()
    progress = Progress(5.0, clock=clock)
    try:
        with progress.at("a try for the lead"):
            raise OSError
    except OSError:
        clock.advance(5.0)
    assert progress.stuck() == ""
