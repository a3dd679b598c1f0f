"""Who may be out, and how many. Pure.

The budget is a level, not a rate: it counts nodes that are out *now*, for any cause, as the cluster reports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

_SHOWN_NODES = 8


def out_limit(max_out: str | int, total: int) -> int:
    """How many nodes may be out: a number as it is; a percentage is rounded down, and lets one node out always.

    Nobody can configure a 0; a Lease that nobody counts says it, until somebody gives a limit.
    """
    if isinstance(max_out, int):
        return max(0, max_out)
    return max(1, int(total * Fraction(max_out.removesuffix("%")) / 100))


def at_limit(scope: str, *, out: int, total: int, limit: int) -> str:
    """Why no more nodes of a scope may go out, in words."""
    if limit == 0:
        return f"the {scope} limit is 0: nothing is taken out until somebody allows it"
    return f"at the {scope} limit: {out} of {total} nodes are out, {limit} may be"


def listed(nodes: Sequence[str]) -> str:
    """The names of nodes in a sentence: the first eight, and how many more there are."""
    more = f" and {len(nodes) - _SHOWN_NODES} more" if len(nodes) > _SHOWN_NODES else ""
    return ", ".join(nodes[:_SHOWN_NODES]) + more
