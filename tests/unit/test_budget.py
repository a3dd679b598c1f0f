"""How many nodes may be out."""

from __future__ import annotations

import pytest

from healthd.remediation.budget import out_limit


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
    ],
)
def test_a_share_is_rounded_down_and_a_number_is_taken_as_it_is(max_out: str | int, total: int, limit: int) -> None:
    """A percentage of the fleet is exact and rounded down; a number of nodes does not depend on the fleet."""
    assert out_limit(max_out, total) == limit


@pytest.mark.parametrize(("max_out", "total"), [("5%", 8), ("5%", 1), ("5%", 0), ("0%", 1000), (0, 1000), (-4, 10)])
def test_one_node_may_always_be_out(max_out: str | int, total: int) -> None:
    """However small the share or the fleet, one node may be out: a cluster of two can still lose its sick one."""
    assert out_limit(max_out, total) == 1
