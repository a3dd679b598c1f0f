"""The figures of a replay: its longest silence, the most replacements at a time, and the faults that came back.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


@dataclass(kw_only=True)
class Silence:
    """The longest time without a message while a node was out or critical, in seconds."""

    longest_s: float = 0.0
    _since: datetime | None = None

    def note(self, now: datetime, *, wrong: bool, told: bool) -> None:
        """Note the state now. ``wrong``: the node is out, or critical; ``told``: a message is sent at this moment."""
        if self._since is not None:
            self.longest_s = max(self.longest_s, (now - self._since).total_seconds())
        if not wrong:
            self._since = None
        elif told or self._since is None:
            self._since = now


def most_within(times: Sequence[datetime], window: timedelta) -> int:
    """The largest number of these, in order, within any such time."""
    most = first = 0
    for last, at in enumerate(times):
        while at - times[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most


def flaps(returns: Sequence[tuple[datetime, str]], taken_out: Sequence[tuple[datetime, str]]) -> int:
    """How often a node that was back was taken out for the same code within a day. Both are (when, code)."""
    return sum(any(same == code and back <= at < back + DAY for at, same in taken_out) for back, code in returns)
