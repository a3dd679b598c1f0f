"""What anybody can bring about is said once in a while, and how often it was not."""

from __future__ import annotations

from healthd.api.rate_limit import MOST, RateLimit
from healthd.testing import FakeClock


def test_a_thing_is_said_at_once_and_then_not_for_a_while() -> None:
    """Each thing by itself; when it is said again, with how often it came up in between."""
    clock = FakeClock()
    seldom = RateLimit(60.0, clock=clock)
    assert [seldom.due("a"), seldom.due("a"), seldom.due("b"), seldom.due("a")] == [0, None, 0, None]
    clock.advance(59.9)
    assert seldom.due("a") is None
    clock.advance(0.1)
    assert [seldom.due("a"), seldom.due("a")] == [3, None]
    clock.advance(60)
    assert seldom.due("a") == 1


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    """One thing too many is not said; once the others are old they are forgotten, and it is."""
    clock = FakeClock()
    seldom = RateLimit(60.0, clock=clock)
    assert [seldom.due(number) for number in range(MOST + 10)] == [0] * MOST + [None] * 10
    clock.advance(60)
    assert [seldom.due(f"new {number}") for number in range(MOST + 1)] == [0] * MOST + [None]
