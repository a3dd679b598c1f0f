"""The pause after a number of failures in a row. Pure.

A retry that goes on for as long as a daemon lives fails a thousand times in a row some day: a receiver that is gone for
a week, a driver that hangs over a weekend. 2.0 ** 1024 is no float, and raises.
"""

from __future__ import annotations

_MOST_DOUBLINGS = 64
"""More than any pause needs to get from its first length to its longest."""


def pause_s(failures: int, *, first_s: float, longest_s: float) -> float:
    """``first_s`` after the first failure, twice as long after each further one, never longer than ``longest_s``."""
    return min(longest_s, first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
