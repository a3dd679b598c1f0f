"""A node of the fleet as the ledger reads it: its state, its cause, its open faults, and what was done to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from healthd.core.model import Remedy
from healthd.fleet.nodes import RESERVED, FleetNode, FleetState
from healthd.ledger.changes import NodeReading, SeenFault
from healthd.ledger.entries import MachineIdentity, SpanState
from healthd.remediation.decide.remediation import ORDERED
from healthd.remediation.records.handoff import CLOSE, HandoffRecord, PastAct, by_now
from healthd.remediation.records.summary import NodeState, NodeSummary

_HARMLESS = frozenset({NodeState.OK, NodeState.WARNING})
_NO_FAULT = frozenset({NodeState.OK, NodeState.UNKNOWN})
_NO_FINDING = frozenset({"", *ORDERED})


def readings_of(nodes: Iterable[FleetNode]) -> dict[str, NodeReading]:
    """One reading for each node on which healthd has ever run, by name."""
    return {each.name: reading_of(each) for each in nodes if each.state is not FleetState.NO_AGENT}


def reading_of(node: FleetNode) -> NodeReading:
    """The reading of one node. A node without a report has no fault that is known, and none of its faults is over; the
    same holds for one that a command took out, whose report names the command in the place of a fault."""
    state, record = _state(node), by_now(node.record, node.now)
    summary = None if node.is_silent else node.summary
    return NodeReading(
        node=node.name,
        state=state,
        cause=_cause(node, state),
        faults=tuple(_faults(node)),
        is_whole=summary is not None and not summary.more and summary.code not in ORDERED,
        history=record.history,
        evidence=_evidence(record),
        machine=MachineIdentity(
            instance_type=node.instance_type, rack=node.listed.group, image=record.image, driver=record.driver
        ),
    )


def _state(node: FleetNode) -> SpanState:
    match node.state:
        case FleetState.ASLEEP:
            return SpanState.ASLEEP
        case _ if node.listed.out or node.is_kept_off or node.fence:  # a reservation alone keeps jobs off as well
            return SpanState.OUT
        case FleetState.OK | FleetState.WARNING:
            return SpanState.SERVING
        case FleetState.UNKNOWN:
            return SpanState.UNKNOWN
        case FleetState.SILENT | FleetState.STOPPED:
            return SpanState.SILENT
        case _:
            return SpanState.FAULTY


def _evidence(record: HandoffRecord) -> str:
    """The address of the bundle that was uploaded before the newest replacement in the history; "" while the request
    that it was uploaded for is not begun, and after that was withdrawn."""
    begun = max((each.at for each in record.history if each.act is PastAct.REPLACE), default=None)
    if record.remedy is not Remedy.REPLACE_NODE or record.asked is None or begun is None:
        return ""
    return record.evidence if begun >= record.asked - CLOSE else ""


def _cause(node: FleetNode, state: SpanState) -> str:
    """Why a node does not serve: the finding, where healthd holds it; else the owner of the hold."""
    if state in (SpanState.SERVING, SpanState.ASLEEP):
        return ""
    if state is SpanState.SILENT:
        return "no report"
    hold = node.listed.hold
    if state is SpanState.OUT and hold is not None and not node.is_ours:
        return f"{hold.user or 'the configuration'}: {hold.text}" if not hold.automatic else f"the cluster: {hold.text}"
    if state is SpanState.OUT and not node.listed.out:
        return _kept_off_by(node)
    return node.code or ("down" if state is SpanState.OUT else "")


def _kept_off_by(node: FleetNode) -> str:
    """The thing that keeps jobs off a node of which no flag says that it is out."""
    if node.fence:
        return "the fence of its NVLink domain"
    return (node.code or "a budget slot") if node.is_ours else RESERVED


def _faults(node: FleetNode) -> Iterable[SeenFault]:
    """The worst open fault, as far as the cluster shows it. A check that cannot tell is none, nor is a command."""
    summary = node.summary
    if summary is None or node.is_silent or summary.state in _NO_FAULT or summary.code in _NO_FINDING:
        return
    yield SeenFault(
        code=summary.code,
        component=summary.component,
        since=_since(node, summary),
        critical=summary.state not in _HARMLESS,
    )


def _since(node: FleetNode, summary: NodeSummary) -> datetime | None:
    """Since when it is there. The summary of a node that is being repaired has the time of the step instead."""
    record = by_now(node.record, node.now)
    if record.code == summary.code and record.since is not None:
        return record.since
    return None if summary.step else summary.since
