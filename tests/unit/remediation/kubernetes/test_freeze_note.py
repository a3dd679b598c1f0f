"""The freeze of a fleet in the annotation of its Lease: plain calls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from healthd.remediation.decide.freeze import Freeze
from healthd.remediation.orchestrators.kubernetes.objects.budget import FREEZE, freeze_in, freeze_patch

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNTIL = NOW + timedelta(hours=2)
SET = Freeze(reason='rollout "B"', until=UNTIL, by="alice")


def notes(freeze: Freeze | None) -> dict[str, str]:
    found = freeze_patch(freeze)["metadata"]["annotations"]
    return {key: text for key, text in found.items() if text is not None}


def test_what_is_written_is_read_until_its_end() -> None:
    """A node's clock ends it: nothing has to take it away."""
    assert freeze_in(notes(SET), NOW) == SET
    assert freeze_in(notes(SET), UNTIL - timedelta(seconds=1)) == SET
    assert freeze_in(notes(SET), UNTIL) is None
    assert freeze_in(notes(None), NOW) is None
    assert freeze_patch(None) == {"metadata": {"annotations": {FREEZE: None}}}


def test_a_text_that_cannot_be_read_is_a_freeze_without_an_end() -> None:
    """An administrator wrote it by hand; unknown is no permission."""
    for text in ("until tomorrow", "{}", '{"until": "later", "reason": "x"}'):
        found = freeze_in({FREEZE: text}, NOW)
        assert found is not None
        assert found.until is None
        assert "is not readable" in found.reason


def test_a_time_without_an_offset_is_utc() -> None:
    """As the rest of healthd's times."""
    found = freeze_in({FREEZE: '{"until": "2026-01-01T02:00:00", "reason": "x"}'}, NOW)
    assert found is not None
    assert found.until == UNTIL
