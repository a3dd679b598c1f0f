"""The windows of a configuration: from and to, and by cron."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healthd.agent.freezes import freezes_on
from healthd.config.load import load
from healthd.config.schema.config import FreezeWindow
from healthd.core.errors import ConfigError
from healthd.core.model import Step

FRIDAY = datetime(2026, 12, 18, 18, tzinfo=UTC)


def on(window: FreezeWindow, now: datetime) -> datetime | None:
    found = freezes_on((window,), now)
    return found[0].until if found else None


def test_from_and_to() -> None:
    """The begin is in it, the end is not; another offset is the same moment."""
    window = FreezeWindow(reason="holidays", start="2026-12-18T19:00:00+01:00", end="2026-12-19T18:00Z")
    assert on(window, FRIDAY - timedelta(seconds=1)) is None
    assert on(window, FRIDAY) == FRIDAY + timedelta(days=1)
    assert on(window, FRIDAY + timedelta(days=1)) is None


@pytest.mark.parametrize(
    ("after", "is_on"), [(-1, False), (0, True), (60, True), (58 * 3600 - 1, True), (58 * 3600, False)]
)
def test_by_cron_for_some_hours(after: int, is_on: bool) -> None:
    """Each weekend from Friday evening; no memory of when it began is needed."""
    window = FreezeWindow(reason="weekend", cron="0 18 * * fri", hours=58)
    until = on(window, FRIDAY + timedelta(seconds=after))
    assert until == (FRIDAY + timedelta(hours=58) if is_on else None)


def test_cron_is_in_its_time_zone() -> None:
    """18:00 in Berlin is 17:00 UTC in winter."""
    window = FreezeWindow(reason="evening", cron="0 18 * * *", hours=1, timezone="Europe/Berlin")
    assert on(window, FRIDAY) is None
    assert on(window, FRIDAY - timedelta(hours=1)) == FRIDAY


def test_what_is_still_allowed() -> None:
    """By the names of the remedies; the drain by default."""
    times: dict[str, Any] = {"reason": "x", "start": "2026-12-18T00:00Z", "end": "2026-12-19T00:00Z"}
    remediations: tuple[tuple[Any, set[Step]], ...] = (((), set()), (("drain", "reset_gpu"), {Step.DRAIN, Step.RESET}))
    for allow, steps in remediations:
        (freeze,) = freezes_on((FreezeWindow(**times, allow=allow),), FRIDAY)
        assert freeze.allow == steps
    assert freezes_on((FreezeWindow(**times),), FRIDAY)[0].allow == {Step.DRAIN}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('start = "2026-12-18T00:00Z"', "give start and a later end, or cron and hours"),
        ('start = "2026-12-18T00:00Z"\nend = "2026-12-17T00:00Z"', "give start and a later end"),
        ('start = "2026-13-18T00:00Z"\nend = "2026-12-17T00:00Z"', "freeze: start '2026-13-18T00:00Z', end"),
        ('cron = "0 18 * * fri"', "cron goes with hours"),
        ('cron = "0 18 * * 5"\nhours = 2', "expected days of the week by name"),
        ('cron = "0 18 * *"\nhours = 2', "Wrong number of fields"),
        ('cron = "0 18 * * fri"\nhours = 2\ntimezone = "Europe/Nowhere"', "Nowhere"),
        ('start = "tomorrow"', "a time with its offset"),
    ],
)
def test_a_window_that_cannot_be_understood_is_refused(lines: str, words: str, tmp_path: Path) -> None:
    """With its place in the file, before the daemon starts."""
    path = tmp_path / "config.toml"
    path.write_text(f'[[remediation.freeze]]\nreason = "x"\n{lines}\n')
    with pytest.raises(ConfigError, match="freeze") as refused:
        load(path, checks={}, environ={})
    assert words in str(refused.value)
