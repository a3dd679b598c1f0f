"""Notices of incidents in the annotation of a Lease: written by the controller, read by agents."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from healthd.core.hostlist import folded
from healthd.remediation.orchestrators.kubernetes.objects.incident_notes import (
    MOST_HOSTS,
    MOST_TEXT,
    notices_in,
    notices_text,
)
from healthd.remediation.records.incident_notices import LASTS, IncidentNotice, IncidentNotices

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
LOST = IncidentNotice(
    id="1124-3f2a9c",
    root="lustre mount:/fsx",
    began=NOW - timedelta(minutes=5),
    nodes=frozenset({"ip-10-0-1-7.ec2.internal", "gpu-1", "gpu-2"}),
    critical=True,
)


def test_notices_are_read_as_they_were_written() -> None:
    """Each holds for as long as the write does, and says which faults of which nodes it covers."""
    read = notices_in(notices_text([LOST], NOW))
    assert read == IncidentNotices(watched_until=NOW + LASTS, open=(replace(LOST, until=NOW + LASTS),))
    for now, covers in ((NOW, True), (NOW + LASTS, False)):
        found = read.covering("gpu-1", "lustre.missing", "mount:/fsx", critical=True, now=now)
        assert (found is not None) is covers
        assert read.is_watched(now) is covers
    assert read.covering("gpu-3", "lustre.missing", "mount:/fsx", critical=True, now=NOW) is None


def test_without_an_incident_a_controller_watches_all_the_same() -> None:
    """So that a new message waits for one."""
    assert notices_in(notices_text([], NOW)) == IncidentNotices(watched_until=NOW + LASTS)


@pytest.mark.parametrize("text", ["", "no", "{}", "[]", '{"until": 7}', '{"until": "2026-11-24T12:00:00", "open": []}'])
def test_another_text_holds_no_message(text: str) -> None:
    """Nodes then send what they have."""
    assert notices_in(text) == IncidentNotices()


def test_what_has_no_room_is_not_covered() -> None:
    """Of 30,000 scattered nodes some, of ten such incidents the first ones; the API server takes the annotation."""
    apart = ((each * 40_503) % 2**16 for each in range(30_000))
    names = frozenset(f"ip-10-{each >> 8}-{each & 255}.ec2.internal" for each in apart)
    many = [replace(LOST, id=f"1124-{number}", nodes=names) for number in range(10)]
    text = notices_text(many, NOW)
    assert len(text.encode()) <= MOST_TEXT + 200
    read = notices_in(text)
    assert [each.id for each in read.open] == [f"1124-{number}" for number in range(len(read.open))] != []
    assert read.open[0].nodes < names
    assert MOST_HOSTS * 0.8 < len(folded(sorted(read.open[0].nodes))) <= MOST_HOSTS
