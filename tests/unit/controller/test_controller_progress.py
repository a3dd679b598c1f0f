"""When a controller takes itself for stuck."""

from __future__ import annotations

from healthd.controller.progress import Progress
from healthd.testing import FakeClock


def test_only_what_is_under_way_can_be_stuck() -> None:
    """Between two syncs no timeout runs; half of the timeout is slow, all of it stuck."""
    clock = FakeClock()
    progress = Progress(600.0, clock=clock)
    clock.advance(3600.0)
    assert progress.slow() == progress.stuck() == ""
    with progress.at("a sync"):
        clock.advance(299.0)
        assert progress.slow() == ""
        clock.advance(1.0)
        assert progress.slow() == "a sync has not finished for over 300 s"
        clock.advance(299.0)
        assert (progress.slow(), progress.stuck()) == ("a sync has not finished for over 300 s", "")
        clock.advance(1.0)
        assert progress.stuck() == "a sync has not finished for over 600 s"
    assert progress.slow() == progress.stuck() == ""


def test_one_that_failed_is_over() -> None:
    """An error ends it as well."""
    clock = FakeClock()
    progress = Progress(5.0, clock=clock)
    try:
        with progress.at("taking the lead"):
            raise OSError
    except OSError:
        clock.advance(5.0)
    assert progress.stuck() == ""
