"""What a replay says of its own conduct."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from healthd.replay.story import DAY, HOUR, Silence, flaps, most_within

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def at(hours: float) -> datetime:
    return BEGIN + timedelta(hours=hours)


@pytest.mark.parametrize(
    ("seen", "longest_h"),
    [
        ([], 0),
        ([(0, False, False), (9, False, False)], 0),
        ([(0, True, False), (3, True, True), (5, False, False)], 3),
        ([(0, True, True), (2, True, False), (7, False, False), (20, True, False)], 7),
        ([(0, True, False), (4, True, False)], 4),
        ([(0, True, False), (1, False, True), (9, True, False), (11, False, False)], 2),
    ],
)
def test_silence_lasts_from_a_fault_or_a_message_to_the_next(
    seen: list[tuple[float, bool, bool]], longest_h: float
) -> None:
    """Each is (hour, wrong, told). A node that is well breaks a silence as a message does."""
    silence = Silence()
    for hours, wrong, reported in seen:
        silence.note(at(hours), wrong=wrong, reported=reported)
    assert silence.longest_s == longest_h * 3600


@pytest.mark.parametrize(
    ("hours", "in_an_hour", "in_a_day"),
    [((), 0, 0), ((0,), 1, 1), ((0, 0.5, 1, 1.4), 3, 4), ((0, 23, 24, 30), 1, 3), ((0, 0, 0), 3, 3)],
)
def test_the_most_within_a_time(hours: tuple[float, ...], in_an_hour: int, in_a_day: int) -> None:
    """An hour after the first is not within its hour."""
    times = [at(each) for each in hours]
    assert (most_within(times, HOUR), most_within(times, DAY)) == (in_an_hour, in_a_day)


def test_a_flap_is_the_same_code_within_a_day_of_a_return() -> None:
    """Another code, a later day, or the outage itself is none."""
    returns = [(at(2), "a"), (at(10), "a"), (at(50), "a"), (at(60), "b")]
    assert flaps(returns, [(at(1), "a"), (at(9), "a"), (at(49), "a"), (at(59), "b"), (at(61), "a")]) == 2
