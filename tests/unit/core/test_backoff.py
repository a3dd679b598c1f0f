"""Pauses between tries double, and end at their longest however often it fails."""

from __future__ import annotations

from healthd.core.backoff import pause_s


def test_pauses_double_up_to_the_longest() -> None:
    """One, two, four times the first, and the longest from there on."""
    pauses = [pause_s(failures, first_s=30.0, longest_s=600.0) for failures in range(1, 8)]
    assert pauses == [30, 60, 120, 240, 480, 600, 600]


def test_thousands_of_failures_are_as_one_more() -> None:
    """The 1025th in a row, where doubling has no float any more, waits as the one before it."""
    assert {pause_s(failures, first_s=1.0, longest_s=60.0) for failures in range(7, 2000)} == {60.0}
