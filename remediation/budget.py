"""Who may be out, and how many. Pure.

The budget is a level, not a rate: it counts nodes that are out *now*, for any cause, as the cluster reports them.
"""

from __future__ import annotations

from fractions import Fraction


def out_limit(max_out: str | int, total: int) -> int:
    """How many nodes may be out: a percentage is rounded down, and one node may always be."""
    if isinstance(max_out, int):
        return max(1, max_out)
    return max(1, int(total * Fraction(max_out.removesuffix("%")) / 100))
