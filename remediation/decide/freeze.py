"""A freeze: a time in which healthd begins no reset, reboot or replacement, or what else it forbids. Pure.

A freeze of the fleet stands in one place in the cluster, with its end, so that no daemon, reload or restart forgets it.
Putting a node back in service is always allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from healthd.core.model import Refusal, Refused, Step

DRAINS = frozenset({Step.DRAIN})
"""Allowed in a freeze unless it says otherwise: a faulty node is taken out, and no job fails on it."""


class Freeze(Struct, frozen=True, kw_only=True):
    """One freeze that is on. ``until`` None: until it is taken away. ``allow``: the steps that may still be begun."""

    reason: str
    until: datetime | None = None
    by: str = ""
    allow: frozenset[Step] = DRAINS

    @property
    def text(self) -> str:
        """``freeze until 2026-01-01 04:00 UTC: driver rollout (alice)``."""
        until = f" until {self.until:%Y-%m-%d %H:%M} UTC" if self.until is not None else ""
        return f"freeze{until}: {self.reason or 'no reason given'}{f' ({self.by})' if self.by else ''}"


def frozen(freezes: Iterable[Freeze], step: Step) -> Refused | None:
    """The objection of the freezes that are on to a step that is not begun."""
    against = [each.text for each in freezes if step not in each.allow]
    return Refused(kind=Refusal.FROZEN, reason="; ".join(against)) if against else None


def in_words(freezes: Iterable[Freeze]) -> str:
    """All freezes in one line, or ""."""
    return "; ".join(each.text for each in freezes)
