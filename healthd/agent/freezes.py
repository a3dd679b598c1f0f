"""The freezes of a configuration that are on at a moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from healthd.config.schema.config import FreezeWindow
from healthd.core.model import Step
from healthd.remediation.decide.freeze import Freeze
from healthd.remediation.decide.remediation import ACTS

_ALLOWED = {"drain": Step.DRAIN, **{str(remedy): step for step, remedy in ACTS.items()}}


def freezes_on(windows: Iterable[FreezeWindow], now: datetime) -> tuple[Freeze, ...]:
    """The windows that ``now`` is in, with their ends."""
    return tuple(_freezes(windows, now))


def _freezes(windows: Iterable[FreezeWindow], now: datetime) -> Iterator[Freeze]:
    for window in windows:
        if (until := _until(window, now)) is not None:
            yield Freeze(reason=window.reason, until=until, allow=frozenset(_ALLOWED[each] for each in window.allow))


def _until(window: FreezeWindow, now: datetime) -> datetime | None:
    """The end of the window that is on; None for none."""
    if not window.cron:
        start, end = datetime.fromisoformat(window.start), datetime.fromisoformat(window.end)
        return end.astimezone(now.tzinfo) if start <= now < end else None
    from apscheduler.triggers.cron import CronTrigger  # no configuration without a cron needs it

    length, trigger = timedelta(hours=window.hours), CronTrigger.from_crontab(window.cron, timezone=window.timezone)
    begun = trigger.get_next_fire_time(None, now - length + timedelta(microseconds=1))
    return begun.astimezone(now.tzinfo) + length if begun is not None and begun <= now else None
