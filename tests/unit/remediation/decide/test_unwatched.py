"""Which held nodes have a daemon that says nothing, by what the cluster shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.remediation.decide.paging import OUT_BY_COMMAND_S
from healthd.remediation.decide.remediation import QUARANTINE_CODE
from healthd.remediation.decide.unwatched import SILENT_S, WATCH_S, HeldOut, held_out
from healthd.remediation.ports import FleetSnapshot, HeldNode, NodeRecord, Slot
from healthd.remediation.records.handoff import AHEAD, HandoffRecord

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TEXT = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"
OVERDUE_S = 14_400.0


def snapshot(
    *, asleep: str = "", down: str = "", watched: datetime | None = None, drained: bool = True
) -> FleetSnapshot:
    held = (HeldNode(node="n1", text=TEXT, stamp=int(NOW.timestamp())),) if drained else ()
    record = HandoffRecord(remediation_id="k3v9", code="gpu.xid.79", watched=watched)
    return FleetSnapshot(
        out=frozenset({"n1"}),
        total=3,
        records=(NodeRecord(node="n1", text=record.text), NodeRecord(node="n2", text="ask bob")),
        held=held,
        asleep=frozenset(asleep.split()),
        down=frozenset(down.split()),
    )


SLOT = Slot(scope="cluster", index=3, node="n1")


def test_a_drain_of_healthd_is_held_with_its_time_and_its_last_word() -> None:
    """The words say all that an operator needs."""
    (found,) = held_out(snapshot(watched=NOW + timedelta(hours=2)), [SLOT])
    assert (found.since, found.watched) == (NOW, NOW + timedelta(hours=2))
    (before,) = held_out(snapshot(), [SLOT])
    assert found.seen != before.seen
    assert found.message.startswith(
        f'held since 2026-03-01 12:00 UTC by "{TEXT}" for gpu.xid.79 [k3v9], and its own healthd has said nothing since'
        " 2026-03-01 14:00 UTC: see on the node whether `healthd run` runs"
    )


def test_a_slot_without_a_drain_of_healthd_is_held_without_a_time() -> None:
    """It fences alone, or Slurm wrote its own text over the drain. A slot that was taken by hand names no node."""
    by_hand = Slot(scope="cluster", index=4, node="nodes n[1-9], flags MAINT, users bob: not made by healthd")
    (found,) = held_out(snapshot(drained=False), [SLOT, by_hand])
    assert (found.node, found.text, found.remediation_id) == ("n1", "slot cluster 3", "k3v9")
    assert not found.is_silent(NOW + timedelta(days=9), OVERDUE_S)
    assert replace(found, code=QUARANTINE_CODE).bound_s(OVERDUE_S) == SILENT_S
    assert 'held by "slot cluster 3" for gpu.xid.79 [k3v9], and its own healthd has said nothing of it' in found.message


def test_a_slot_without_a_drain_is_held_since_the_last_word_of_its_daemon() -> None:
    """ParallelCluster and PCS: another daemon that begins to look counts no hours again."""
    held = HeldOut(node="n1", text="slot cluster 3", code="gpu.xid.79", watched=NOW)
    assert not held.is_silent(NOW + timedelta(seconds=SILENT_S - 1), OVERDUE_S)
    assert held.is_silent(NOW + timedelta(seconds=SILENT_S), OVERDUE_S)
    assert not replace(held, watched=NOW + timedelta(days=9)).is_silent(NOW, OVERDUE_S)


def test_a_node_that_somebody_else_pages_for_is_left_to_that() -> None:
    """A name without a machine, and a slot of a node that is DOWN; one that is DOWN without a slot is none of them."""
    assert held_out(snapshot(asleep="n1"), [SLOT]) == ()
    assert held_out(snapshot(down="n1"), [SLOT]) == ()
    assert [each.node for each in held_out(snapshot(down="n1"), [])] == ["n1"]


@pytest.mark.parametrize(("code", "bound_s"), [("gpu.xid.79", SILENT_S), (QUARANTINE_CODE, OUT_BY_COMMAND_S)])
def test_a_node_is_silent_once_it_is_out_and_unheard_of_for_long(code: str, bound_s: float) -> None:
    """An operator knows for a day of what was ordered."""
    held = HeldOut(node="n1", text=TEXT, code=code, since=NOW)
    assert not held.is_silent(NOW + timedelta(seconds=bound_s - 1), OVERDUE_S)
    assert held.is_silent(NOW + timedelta(seconds=bound_s), OVERDUE_S)
    assert held.bound_s(90_000.0) == max(bound_s, OUT_BY_COMMAND_S if code == QUARANTINE_CODE else 90_000.0)


def test_a_word_of_a_time_ahead_leaves_it_to_what_is_seen() -> None:
    """The clock of the node was set: nothing is said by these times, in either direction."""
    late = NOW + timedelta(days=1)
    held = HeldOut(node="n1", text=TEXT, since=NOW, watched=late + AHEAD + timedelta(seconds=1))
    assert not held.is_silent(late, OVERDUE_S)


@given(words=st.lists(st.floats(WATCH_S / 2, WATCH_S + 600.0), max_size=12), then_s=st.floats(0, SILENT_S - 1))
def test_a_daemon_that_says_its_word_is_never_silent_and_one_that_stops_is_in_time(
    words: list[float], then_s: float
) -> None:
    """However long the node is out, and also where one word gets lost on its way."""
    at = NOW + timedelta(seconds=sum(words))
    held = HeldOut(node="n1", text=TEXT, since=NOW, watched=at if words else None)
    assert not held.is_silent(at + timedelta(seconds=then_s), OVERDUE_S)
    assert held.is_silent(at + timedelta(seconds=SILENT_S), OVERDUE_S)
