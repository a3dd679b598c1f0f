"""Stats of check runs and of faults that opened, since the daemon started, for the metrics page.

In bounded memory: a kernel log may name any number of codes, and those past the bound are counted together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from healthd.core.model import Outcome
from healthd.judge.clock import moved
from healthd.judge.history import Fault

COUNTED_APART = 1_000
"""The number of pairs of check and code that are counted by name; further ones are counted as OTHER."""
OTHER = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """Stats of the runs of one check. ``told``: the time of the last one that was not unknown; None where all were."""

    total: int = 0
    unknown: int = 0
    took_s: float = 0.0
    told: datetime | None = None


class CheckStats:
    """The counts of one monitor, under its lock."""

    def __init__(self) -> None:
        self.runs: dict[str, Runs] = {}
        self.opened: Counter[tuple[str, str]] = Counter()
        """Faults that opened, by check and code."""

    def ran(self, outcome: Outcome) -> None:
        """Count one run. A partial outcome counts as unknown."""
        before = self.runs.get(outcome.check, Runs())
        could_tell = outcome.result.is_whole
        self.runs[outcome.check] = Runs(
            total=before.total + 1,
            unknown=before.unknown + (not could_tell),
            took_s=before.took_s + outcome.duration_s,
            told=outcome.at if could_tell else before.told,
        )

    def clock_was_set(self, by: timedelta, now: datetime) -> None:
        """Move the times with the clock, so that an age stays what it was."""
        for name, runs in self.runs.items():
            if runs.told is not None:
                self.runs[name] = replace(runs, told=moved(runs.told, by, now))

    def has_opened(self, fault: Fault) -> None:
        """Count a fault that was not open before."""
        key = (fault.check, fault.code)
        if key not in self.opened and len(self.opened) >= COUNTED_APART:
            key = (OTHER, OTHER)
        self.opened[key] += 1
