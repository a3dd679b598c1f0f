"""The news of the last hour: what each node came into, what was repaired, what is over, and the incidents."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from healthd.fleet.events import MOST, FleetEvent, FleetEventKind, entered, recent_events
from healthd.fleet.incidents import CauseKind, Incident, SharedCause
from healthd.fleet.nodes import FleetNode, fleet_nodes
from healthd.ledger.entries import EntryKind, LedgerEntry
from healthd.remediation.ports import Hold, ListedNode
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult
from healthd.remediation.records.summary import NodeState, NodeSummary

NOW = datetime(2026, 11, 24, 12, 0, 30, tzinfo=UTC)
SILENT_AFTER_S = 1500.0


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def listed(
    name: str, state: NodeState = NodeState.OK, since: float = 600, code: str = "", **more: object
) -> ListedNode:
    text = NodeSummary(state=state, at=ago(1), since=ago(since), code=code).text
    return ListedNode(**{"name": name, "state": "IDLE", "summary": text, **more})  # type: ignore[arg-type]


def nodes(*given: ListedNode) -> tuple[FleetNode, ...]:
    return fleet_nodes(given, (), {}, NOW, silent_after_s=SILENT_AFTER_S)


def lines(events: tuple[FleetEvent, ...]) -> list[tuple[str, str, str]]:
    return [(f"{each.at:%H:%M}", each.text, each.hosts) for each in events]


def test_many_nodes_with_one_cause_in_one_minute_are_one_line() -> None:
    """The newest first; a node that is as it was two hours ago is no news."""
    lost = [listed(f"gpu-{number}", NodeState.CRITICAL, 5, "lustre.missing") for number in (1, 2, 3)]
    fleet = nodes(*lost, listed("gpu-4", NodeState.OK, 2), listed("gpu-5", NodeState.WARNING, 120, "x.y"))
    events = recent_events(fleet, NOW)
    assert lines(events) == [("11:58", "ok", "gpu-4"), ("11:55", "critical: lustre.missing", "gpu-[1-3]")]
    assert [(each.kind, each.state) for each in events] == [
        (FleetEventKind.STATE, "ok"),
        (FleetEventKind.STATE, "critical"),
    ]


def test_silence_begins_when_the_report_is_too_old() -> None:
    """Not when its last state began; a machine that is dead with a fresh report: when the cluster said so."""
    last = NOW - timedelta(seconds=SILENT_AFTER_S + 600)
    gone = ListedNode(name="a", state="IDLE", summary=NodeSummary(state=NodeState.OK, at=last, since=ago(600)).text)
    hold = Hold(text="Not responding", user="root", stamp=int(ago(3).timestamp()), automatic=True)
    dead = listed("b", flags=frozenset({"DOWN"}), dead=True, out=True, hold=hold)
    never = ListedNode(name="c", state="IDLE")
    assert [entered(each) for each in nodes(gone, dead, never)] == [NOW - timedelta(minutes=10), ago(3), None]
    assert [each.hosts for each in recent_events(nodes(gone, dead, never), NOW)] == ["b", "a"]


def test_a_stop_on_purpose_is_news_of_its_own_time() -> None:
    """From when the daemon ended, not from when it would be silent."""
    at = NOW - timedelta(seconds=SILENT_AFTER_S + 600)
    last = NodeSummary(state=NodeState.OK, at=at, stopped=True, since=ago(600))
    stopped = nodes(ListedNode(name="a", state="IDLE", summary=last.text))
    assert [entered(each) for each in stopped] == [at]
    assert [each.text for each in recent_events(stopped, NOW)] == ["stopped: stopped on purpose"]


def test_repairs_are_read_from_the_handoff_records() -> None:
    """With what came of them; two nodes with the same act in a minute are one line, and an older act is none."""
    record = HandoffRecord(
        history=(
            PastRepair(act=PastAct.REBOOT, at=ago(90), code="gpu.xid.79", outcome=RepairResult.FAILED),
            PastRepair(act=PastAct.RESET, at=ago(20), code="gpu.xid.79", outcome=RepairResult.FAILED),
            PastRepair(act=PastAct.RETURN, at=ago(10)),
        )
    ).text
    events = recent_events(nodes(listed("a", record=record), listed("b", record=record)), NOW)
    assert lines(events) == [("11:50", "return for no code", "a,b"), ("11:40", "reset for gpu.xid.79: failed", "a,b")]
    assert {each.kind for each in events} == {FleetEventKind.REPAIR}


def test_the_ledger_tells_what_is_over_again() -> None:
    """A fault's begin and end; one that its node still shows is not said twice, and what is no fault is not said."""
    fault = {"kind": EntryKind.FAULT, "code": "lustre.missing", "component": "mount:/fsx"}
    entries = [
        LedgerEntry(node="a", at=ago(30), until=ago(20), **fault),  # type: ignore[arg-type]
        LedgerEntry(node="b", at=ago(300), until=ago(20), **fault),  # type: ignore[arg-type]
        LedgerEntry(node="c", at=ago(5), **fault),  # type: ignore[arg-type]
        LedgerEntry(node="d", at=ago(5), **fault),  # type: ignore[arg-type]
        LedgerEntry(kind=EntryKind.REPAIR, node="a", at=ago(25), act="reset"),
    ]
    fleet = nodes(listed("a"), listed("b"), listed("c", NodeState.CRITICAL, 5, "lustre.missing"), listed("d"))
    assert lines(recent_events(fleet, NOW, entries=entries)) == [
        ("11:55", "fault: lustre.missing mount:/fsx", "d"),
        ("11:55", "critical: lustre.missing", "c"),
        ("11:40", "over: lustre.missing mount:/fsx, lasted 4 h", "b"),
        ("11:40", "over: lustre.missing mount:/fsx, lasted 10 min", "a"),
        ("11:30", "fault: lustre.missing mount:/fsx", "a"),
    ]


def test_incidents_begin_and_end() -> None:
    """Each with its id, finding and likely cause; one that is older and still open is no news of this hour."""
    cause = SharedCause(kind=CauseKind.FILE_SYSTEM, value="/fsx")
    both = Incident(
        id="1", root="r", began=ago(50), ended=ago(3), codes=("lustre.missing",), nodes=("a", "b"), cause=cause
    )
    still = Incident(id="2", root="mount:/fsx", began=ago(500), nodes=("c",))
    fresh = Incident(id="3", root="mount:/data", began=ago(1), nodes=("d",))
    assert lines(recent_events((), NOW, incidents=(both, still, fresh))) == [
        ("11:59", "incident 3 began: mount:/data, no shared cause known", "d"),
        ("11:57", "incident 1 ended: lustre.missing, file system /fsx", "a,b"),
        ("11:10", "incident 1 began: lustre.missing, file system /fsx", "a,b"),
    ]


def test_a_stormy_hour_keeps_its_newest_lines() -> None:
    """No more than a page shows."""
    fleet = nodes(*(listed(f"n{number}", NodeState.CRITICAL, 5, f"c.{number}") for number in range(MOST + 20)))
    assert len(recent_events(fleet, NOW)) == MOST
