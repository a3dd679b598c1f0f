"""The limit of blamed nodes within an hour, by what the cluster itself shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from healthd.remediation.decide.blame_limit import drained_before
from healthd.remediation.ports import FleetSnapshot, HeldNode, NodeRecord
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


def held(node: str, minutes: float) -> HeldNode:
    return HeldNode(
        node=node, text="healthd: gpu.xid.79 gpu:a [1]", stamp=int((NOW - timedelta(minutes=minutes)).timestamp())
    )


def record(node: str, minutes: float, back: float | None = None) -> NodeRecord:
    past = PastRepair(
        act=PastAct.REBOOT,
        at=NOW - timedelta(minutes=minutes),
        back=None if back is None else NOW - timedelta(minutes=back),
    )
    return NodeRecord(node=node, text=HandoffRecord(history=(past,)).text)


def fleet(*nodes: HeldNode, records: tuple[NodeRecord, ...] = ()) -> FleetSnapshot:
    return FleetSnapshot(out=frozenset(), total=100, held=nodes, records=records)


def test_nodes_that_fail_at_once_take_their_places_by_stamp_and_name() -> None:
    """All read the same list, and each counts those before it: the first so many are blamed, and no others."""
    everybody = fleet(held("n3", 1), held("n1", 1), held("n2", 2))
    assert [drained_before(everybody, node, NOW) for node in ("n2", "n1", "n3")] == [0, 1, 2]


def test_a_drain_of_more_than_an_hour_ago_does_not_count() -> None:
    """The window is an hour."""
    assert drained_before(fleet(held("n1", 61), held("n2", 1)), "n2", NOW) == 0


def test_a_node_that_was_repaired_within_the_hour_counts() -> None:
    """It may have been blamed, and is back; by the end of its repair, else by its beginning. Each node counts once."""
    records = (
        record("n1", 30),
        record("n2", 90, back=50),
        record("n3", 90),
        NodeRecord(node="n4", text="healthd case=1"),
    )
    assert drained_before(fleet(held("n9", 1), held("n1", 2), records=records), "n9", NOW) == 2


def test_a_record_that_is_none_or_the_nodes_own_does_not_count() -> None:
    """A comment of another, and what was done to this node."""
    records = (record("n9", 10), NodeRecord(node="n1", text="ticket 12"))
    assert drained_before(fleet(held("n9", 1), records=records), "n9", NOW) == 0


def test_a_node_that_is_not_listed_as_drained_comes_last() -> None:
    """Its own stamp is not there: it stands behind all."""
    assert drained_before(fleet(held("n1", 1)), "n9", NOW) == 1
