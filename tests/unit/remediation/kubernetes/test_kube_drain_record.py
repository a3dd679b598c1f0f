"""What is remembered of a drain, and how it is kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from healthd.remediation.orchestrators.kubernetes.objects.drain_record import (
    SKEW_S,
    DrainRecord,
    hold_digest,
    record_of,
    records_in,
    records_text,
    still_held,
)
from healthd.remediation.orchestrators.kubernetes.objects.node import OwnershipAnnotation

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
HELD = OwnershipAnnotation(text="healthd: gpu.xid.79 [k3v9]", by="healthd", stamp=1_763_719_200)


def test_a_drain_concerns_what_was_there_and_nothing_that_was_made_since() -> None:
    """Also where the API server's clock is a little behind the controller's, or before it."""
    record = record_of(HELD, {"old": NOW - timedelta(hours=1), "new": NOW, "ageless": None}, NOW)
    assert record.concerns("old", NOW - timedelta(hours=1))
    assert record.concerns("new", NOW)
    assert record.concerns("ageless", None)
    assert not record.concerns("again", NOW)
    assert not record.concerns("again", NOW - timedelta(seconds=SKEW_S))
    assert not record.concerns("again", NOW + timedelta(seconds=SKEW_S))
    assert record.concerns("bound late", NOW - timedelta(seconds=SKEW_S + 1))


def test_only_pods_whose_age_does_not_tell_are_written_down() -> None:
    """A record is some 50 bytes: a thousand of them are in one annotation."""
    record = record_of(HELD, {str(number): NOW - timedelta(minutes=1) for number in range(100)}, NOW)
    assert record.young == frozenset()
    assert len(records_text({"ip-10-1-2-3.ec2.internal": record})) < 100


def test_records_are_read_as_they_were_written() -> None:
    """Nothing is none; an annotation of somebody else's making is no record, and says so."""
    records = {"n2": record_of(HELD, {"u": NOW}, NOW), "n1": record_of(HELD, {}, NOW)}
    assert records_in(records_text(records)) == records
    assert records_in("") == {}


@pytest.mark.parametrize(
    "text", ["x", "[]", '{"n1":{}}', '{"n1":{"hold":"h","began":-1}}', '{"n1":{"hold":1,"began":1}}']
)
def test_what_is_no_record_of_drains_is_not_taken_for_an_empty_one(text: str) -> None:
    """Else every pod that came back would be evicted once more."""
    assert records_in(text) is None


def test_another_hold_is_another_drain_and_a_cordon_is_none() -> None:
    """By text, whom and when."""
    for other in (
        OwnershipAnnotation(text=HELD.text, by=HELD.by, stamp=HELD.stamp + 1),
        OwnershipAnnotation(text=f"{HELD.text}!", by=HELD.by, stamp=HELD.stamp),
        OwnershipAnnotation(text=HELD.text, by="person", stamp=HELD.stamp),
    ):
        assert hold_digest(other) != hold_digest(HELD)
    assert hold_digest(OwnershipAnnotation(text=HELD.text, by=HELD.by, stamp=HELD.stamp, cordoned=True)) == hold_digest(
        HELD
    )


def test_a_record_ends_with_its_claim() -> None:
    """Without one the hold is over."""
    record = DrainRecord(hold="h", began=1)
    assert still_held({"n1": record, "n2": record}, {"n2", "n3"}) == {"n2": record}
