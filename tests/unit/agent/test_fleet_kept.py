"""What a daemon keeps of the fleet for the next one, and what the next one makes of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from healthd.agent.wiring import fleet_of, kept_of
from healthd.remediation.ports import FleetSnapshot, HeldNode, NodeRecord, ScopeSnapshot
from healthd.remediation.records.handoff import showing

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FLEET = FleetSnapshot(
    out=frozenset({"n2"}),
    total=3,
    scopes=(ScopeSnapshot(scope="gpu", out=frozenset(), total=2),),
    records=(NodeRecord(node="n1", text="healthd replaced=1795226977"),),
    held=(HeldNode(node="n2", text="healthd: gpu.xid.79 gpu:0 [k1]", stamp=1795226977),),
)


def test_what_was_kept_reads_back_with_its_age() -> None:
    """All of it."""
    assert fleet_of(kept_of(FLEET, NOW), NOW + timedelta(seconds=90)) == (FLEET, 90.0)


@pytest.mark.parametrize(
    "kept",
    ["", "yesterday {}", f"{NOW.isoformat()} ", f'{NOW.isoformat()} {{"total": "many"}}', "2026-11-21T12:00:00 {}"],
)
def test_what_makes_no_sense_is_worth_one_reading_of_the_fleet(kept: str) -> None:
    """Nothing kept, a time that is none or has no zone, half a text, another version's form."""
    assert fleet_of(kept, NOW) == (None, 0.0)


def test_a_clock_that_was_set_back_makes_it_worthless() -> None:
    """How old it is cannot be told."""
    assert fleet_of(kept_of(FLEET, NOW), NOW - timedelta(seconds=1)) == (None, 0.0)


def test_a_finding_is_shown_in_a_record_and_taken_out_of_it() -> None:
    """What else the record says stays; a record that says nothing is none."""
    shown = showing("", "gpu.xid.79", NOW)
    assert shown == f"healthd code=gpu.xid.79 since={int(NOW.timestamp())}"
    assert showing(shown, "", None) == ""
    beside = showing("healthd replaced=1795226977", "gpu.xid.79", NOW)
    assert beside == f"healthd replaced=1795226977 code=gpu.xid.79 since={int(NOW.timestamp())}"
    assert showing(beside, "", None) == "healthd replaced=1795226977"
    assert showing("somebody's comment", "", None) == ""
