"""A node of the fleet as the ledger reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from healthd.core.model import Remedy
from healthd.fleet.nodes import FleetNode
from healthd.fleet.readings import reading_of, readings_of
from healthd.ledger.entries import SpanState
from healthd.remediation.decide.remediation import ORDERED
from healthd.remediation.ports import Hold, ListedNode, Slot
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair
from healthd.remediation.records.summary import NodeState, NodeSummary

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OURS = Hold(text="healthd: gpu.xid.79 GPU 3 [k1]", user="root", stamp=1)
ALICE = Hold(text="fan swap", user="alice", stamp=1)
SLURM = Hold(text="Kill task failed", user="root", stamp=1, automatic=True)
NOBODY = Hold(text="spare", user="", stamp=0)


def node(
    state: NodeState | None,
    *,
    hold: Hold | None = None,
    code: str = "",
    step: str = "",
    record: str = "",
    old_s: float = 0.0,
    down: bool = False,
    asleep: bool = False,
) -> FleetNode:
    at, since = NOW - timedelta(seconds=old_s), NOW - timedelta(hours=2)
    summary = None if state is None else NodeSummary(state=state, at=at, code=code, since=since, step=step)
    flags = {"IDLE"} | ({"DRAIN"} if hold is not None else set()) | ({"DOWN"} if down else set())
    listed = ListedNode(
        name="n1",
        state="IDLE",
        flags=frozenset(flags),
        out=hold is not None or down,
        asleep=asleep,
        hold=hold,
        record=record,
        summary=summary.text if summary is not None else "",
    )
    return FleetNode(listed=listed, now=NOW, silent_after_s=1500.0)


def reserved(given: FleetNode, *, slot: bool = False) -> FleetNode:
    """The node in a maintenance reservation, which may be a budget slot: no flag of its state says that it is out."""
    listed = replace(given.listed, flags=frozenset({"IDLE", "MAINTENANCE", "RESERVED"}))
    return replace(given, listed=listed, slot=Slot(scope="cluster", index=0, node="n1") if slot else None)


@pytest.mark.parametrize(
    ("given", "state", "cause"),
    [
        (node(NodeState.OK), SpanState.SERVING, ""),
        (node(NodeState.WARNING, code="efa.slow"), SpanState.SERVING, ""),
        (node(NodeState.CRITICAL, code="gpu.xid.79"), SpanState.FAULTY, "gpu.xid.79"),
        (node(NodeState.UNKNOWN, code="gpu.count"), SpanState.UNKNOWN, "gpu.count"),
        (node(NodeState.OK, old_s=2000.0), SpanState.SILENT, "no report"),
        (node(None), SpanState.SILENT, "no report"),
        (node(NodeState.REPAIRING, hold=OURS, code="gpu.xid.79"), SpanState.OUT, "gpu.xid.79"),
        (node(NodeState.OK, hold=ALICE), SpanState.OUT, "alice: fan swap"),
        (node(NodeState.OK, hold=SLURM), SpanState.OUT, "the cluster: Kill task failed"),
        (node(NodeState.OK, hold=NOBODY), SpanState.OUT, "the configuration: spare"),
        (node(NodeState.OK, down=True), SpanState.OUT, "down"),
        (node(None, asleep=True), SpanState.ASLEEP, ""),
        (reserved(node(NodeState.OK)), SpanState.OUT, "a maintenance reservation"),
        (reserved(node(NodeState.CRITICAL, code="gpu.xid.79")), SpanState.OUT, "a maintenance reservation"),
        (reserved(node(NodeState.HELD, code="gpu.xid.79"), slot=True), SpanState.OUT, "gpu.xid.79"),
        (reserved(node(NodeState.OK, old_s=2000.0), slot=True), SpanState.OUT, "a budget slot"),
        (
            replace(node(NodeState.OK), fence="NVLink domain r7, incident 1"),
            SpanState.OUT,
            "the fence of its NVLink domain",
        ),
        (node(NodeState.DRAINING, code="gpu.xid.79"), SpanState.FAULTY, "gpu.xid.79"),  # waits for a slot
    ],
)
def test_every_state_of_the_fleet_is_one_of_the_ledger(given: FleetNode, state: SpanState, cause: str) -> None:
    """With its cause, by whom a node is held."""
    found = readings_of([given])["n1"]
    assert (found.state, found.cause) == (state, cause)


def test_a_node_without_healthd_is_not_in_the_ledger() -> None:
    """Nothing is known of it, and it counts in no report."""
    agentless = node(None)
    agentless = replace(agentless, listed=replace(agentless.listed, agentless=True))
    assert readings_of([agentless]) == {}


def test_a_check_that_cannot_tell_is_no_fault() -> None:
    """Nor is anything known of a silent node, and its reading ends no fault."""
    assert reading_of(node(NodeState.UNKNOWN, code="gpu.count")).faults == ()
    silent = reading_of(node(NodeState.CRITICAL, code="gpu.xid.79", old_s=2000.0))
    assert (silent.faults, silent.is_whole) == ((), False)


@pytest.mark.parametrize("code", ORDERED)
def test_a_command_is_no_fault(code: str) -> None:
    """It takes the node out, counts in no failure rate, and hides a fault that may still be open."""
    found = reading_of(node(NodeState.HELD, hold=OURS, code=code))
    assert (found.state, found.cause, found.faults, found.is_whole) == (SpanState.OUT, code, (), False)


def test_a_warning_is_a_fault_that_takes_no_node_out() -> None:
    """It is in the history, and in no rate."""
    (warning,) = reading_of(node(NodeState.WARNING, code="efa.slow")).faults
    (critical,) = reading_of(node(NodeState.CRITICAL, code="gpu.xid.79")).faults
    assert (warning.critical, critical.critical) == (False, True)


def test_a_fault_is_as_old_as_its_finding_and_not_as_its_step() -> None:
    """The handoff record has its time; without it that of a node under repair is not known."""
    since = NOW - timedelta(hours=5)
    record = HandoffRecord(code="gpu.xid.79", since=since).text
    repairing = NodeState.REPAIRING
    (told,) = reading_of(node(repairing, hold=OURS, code="gpu.xid.79", step="reboot", record=record)).faults
    (not_reported,) = reading_of(node(repairing, hold=OURS, code="gpu.xid.79", step="reboot")).faults
    (plain,) = reading_of(node(NodeState.CRITICAL, code="gpu.xid.79")).faults
    assert (told.since, not_reported.since, plain.since) == (since, None, NOW - timedelta(hours=2))


@pytest.mark.parametrize(
    ("remedy", "begun_h", "told"),
    [
        (Remedy.REPLACE_NODE, 0.0, True),
        (Remedy.REPLACE_NODE, 5.0, False),  # that of an earlier machine: this request is not begun
        (Remedy.REPLACE_NODE, None, False),
        (Remedy.REBOOT_NODE, 0.0, False),
        (None, 0.0, False),  # withdrawn
    ],
)
def test_an_address_is_of_the_replacement_that_it_was_uploaded_for(
    remedy: Remedy | None, begun_h: float | None, told: bool
) -> None:
    """No other entry of the history gets it."""
    history = () if begun_h is None else (PastRepair(act=PastAct.REPLACE, at=NOW - timedelta(hours=begun_h)),)
    record = HandoffRecord(remedy=remedy, asked=NOW, evidence="s3://site/n1/k1.tar.gz", history=history)
    found = reading_of(node(NodeState.OK, record=record.text))
    assert found.evidence == ("s3://site/n1/k1.tar.gz" if told else "")
