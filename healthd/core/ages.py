"""Ages and lengths of time, as an operator reads them: one unit, rounded down. Pure."""

from __future__ import annotations

from datetime import datetime


def age(since: datetime | None, now: datetime) -> str:
    """``40 s``, ``12 min``, ``5 h``, ``3 d``; "" where it is not known."""
    return "" if since is None else lasting((now - since).total_seconds())


def lasting(seconds: float) -> str:
    """A length of time with one unit, rounded down."""
    seconds = max(seconds, 0.0)
    for most, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < most:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds // 86_400)} d"
