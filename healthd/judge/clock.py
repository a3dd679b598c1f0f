"""Whether the wall clock was set since the last reading, and the correction of remembered times. Pure.

Code that remembers times of the wall clock corrects them here before it uses them. An age is then what it was, neither
negative nor an hour more, whatever chronyd (``makestep``), an administrator or a hypervisor did to the clock. A machine
that was suspended counts as one whose clock was set forward: no check ran meanwhile.
"""

from __future__ import annotations

from datetime import datetime, timedelta

JUMP = timedelta(seconds=5)
"""Less than this is no jump. No interval, limit or timeout here is as short, and a second may pass between the readings
of two clocks on a busy machine."""


class ClockWatch:
    """Compares the wall clock with the monotonic one, which cannot be set.

    Slewing moves both alike (clock_gettime(2), CLOCK_MONOTONIC: "affected by frequency adjustments"), so their
    difference stays for months, and small steps in one direction add up until they are noticed.
    """

    def __init__(self, wall: datetime, monotonic_s: float) -> None:
        self._began, self._began_s = wall, monotonic_s

    def was_set_by(self, wall: datetime, monotonic_s: float) -> timedelta:
        """By how much the wall clock was set since the last jump was returned, forward or (negative) back; zero, which
        is false, for less than ``JUMP``."""
        by = (wall - self._began) - timedelta(seconds=monotonic_s - self._began_s)
        if abs(by) < JUMP:
            return timedelta()
        self._began, self._began_s = wall, monotonic_s
        return by


def moved(at: datetime, by: timedelta, now: datetime) -> datetime:
    """A time of before the clock was set, as the clock would have shown it then; never later than ``now``."""
    return min(at + by, now)


def was_set(by: timedelta) -> str:
    """``the clock was set back by 3600 s``."""
    return f"the clock was set {'back' if by < timedelta() else 'forward'} by {abs(by).total_seconds():.0f} s"
