"""The runs of one of the daemon's own duties, counted for the metrics page."""

from __future__ import annotations

import time

from msgspec import Struct, field


class DutyRuns(Struct, kw_only=True):
    """Since the daemon began. ``missed``: due while the one before was under way. Times are monotonic seconds."""

    done: int = 0
    took_s: float = 0.0
    failed: int = 0
    missed: int = 0
    last_s: float = field(default_factory=time.monotonic)
    """When one last came to its end, or the daemon began."""

    def succeeded(self, took_s: float) -> None:
        """One came to its end, after so many seconds."""
        self.done, self.took_s, self.last_s = self.done + 1, self.took_s + took_s, time.monotonic()
