"""How many nodes may be out."""

from __future__ import annotations

import pytest

from healthd.remediation.decide.fleet import at_limit, out_limit


@pytest.mark.parametrize(
    ("max_out", "total", "limit"),
    [
        ("5%", 100, 5),
        ("5%", 1000, 50),
        ("5%", 119, 5),
        ("2.5%", 1000, 25),
        ("9.2%", 750, 69),  # in binary fractions 750 x 9.2 is less than 6900
        ("100%", 8, 8),
        (3, 1000, 3),
        (3, 2, 3),
        (0, 1000, 0),
        (-4, 10, 0),
    ],
)
def test_a_share_is_rounded_down_and_a_number_is_taken_as_it_is(max_out: str | int, total: int, limit: int) -> None:
    """A percentage of the fleet is exact and rounded down; a number of nodes does not depend on the fleet."""
    assert out_limit(max_out, total) == limit


@pytest.mark.parametrize(("max_out", "total"), [("5%", 8), ("5%", 1), ("5%", 0), ("0%", 1000)])
def test_a_share_lets_one_node_out_always(max_out: str, total: int) -> None:
    """However small the share or the fleet, one node may be out: a cluster of two can still lose its sick one."""
    assert out_limit(max_out, total) == 1


def test_a_limit_of_nobody_says_what_it_waits_for() -> None:
    """`0 of 64 nodes are out, 0 may be` tells the person on call nothing."""
    assert at_limit("fleet", out=3, total=60, limit=3) == "at the fleet limit: 3 of 60 nodes are out, 3 may be"
    words = "the p5 limit is 0: nothing is taken out until an operator allows it"
    assert at_limit("p5", out=0, total=64, limit=0) == words
