"""A node's own memory in the shape of the ledger: what a support case is written from where no ledger knows it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from healthd.fleet.asking import NodeAnswer
from healthd.fleet.node_case import contents_of
from healthd.fleet.node_detail import READS_HISTORY, NodeHistory
from healthd.ledger.entries import EntryKind, LedgerGpu, MachineIdentity
from healthd.ledger.text import case_text

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
MACHINE = MachineIdentity(
    instance="i-0abc",
    instance_type="p5.48xlarge",
    driver="580.1",
    gpus=(LedgerGpu(uuid="GPU-3", serial="165", index="3"),),
)


def line(minutes: int, code: str, *, opened: bool | None, component: str = "gpu:GPU-3") -> dict[str, object]:
    data = {"code": code, "component": component, "severity": "critical"}
    change = {} if opened is None else {"opened": opened}
    at = (NOW - timedelta(minutes=minutes)).isoformat()
    return {"at": at, "kind": "fault", "text": f"{code} on {component}", "data": {**data, **change}}


def remediation(minutes: int, remedy: str, end: str | None) -> dict[str, object]:
    at = (NOW - timedelta(minutes=minutes)).isoformat()
    about = {"id": "b7", "code": "gpu.xid.79", "component": "gpu:GPU-3", "remedy": remedy, "opened": at, "since": at}
    return {**about, "steps": ["slot", "drain", "reboot"], "step": "reboot", "end": end, "note": ""}


def history(events: list[dict[str, object]], remediations: list[dict[str, object]]) -> NodeHistory:
    shape = {"schema": "healthd.history/v1", "node": "gpu-213", "cut": "", "newest": 9}
    body = json.dumps({**shape, "events": events, "remediations": remediations}).encode()
    return NodeAnswer(node="gpu-213", asked="http://gpu-213", body=body).document(READS_HISTORY, "healthd.history/v1")


def test_faults_have_their_begin_their_end_and_their_gpu() -> None:
    """An end whose begin is not in the history, and a line that is neither, are no faults."""
    events = [
        line(90, "efa.missing", opened=False, component="efa:rdmap0s6"),
        line(60, "gpu.xid.79", opened=True),
        line(55, "gpu.xid.79", opened=None),
        line(50, "gpu.xid.79", opened=False),
        line(40, "gpu.xid.79", opened=True),
        line(30, "host.memory", opened=True, component="node"),
    ]
    found = contents_of(MACHINE, history(events, []), NOW).entries
    assert [(each.code, each.at, each.until, each.serial) for each in found] == [
        ("gpu.xid.79", NOW - timedelta(minutes=60), NOW - timedelta(minutes=50), "165"),
        ("gpu.xid.79", NOW - timedelta(minutes=40), None, "165"),
        ("host.memory", NOW - timedelta(minutes=30), None, ""),
    ]
    assert all(each.critical and each.instance == "i-0abc" for each in found)


def test_the_case_has_serials_faults_and_what_was_tried() -> None:
    """A replacement is told from a repair, and one under way has its step."""
    tried = [remediation(20, "reboot_node", "failed"), remediation(10, "replace_node", None)]
    contents = contents_of(MACHINE, history([line(60, "gpu.xid.79", opened=True)], tried), NOW)
    assert [each.kind for each in contents.entries] == [EntryKind.FAULT, EntryKind.REPAIR, EntryKind.REPLACEMENT]
    text = case_text("gpu-213", contents, NOW - timedelta(days=1))
    assert "  GPU-3  165\n" in text
    assert "2026-11-24 11:00:00  gpu.xid.79  gpu:GPU-3  GPU GPU-3 serial 165  i-0abc" in text
    assert "reboot_node   failed" in text
    assert "replace_node  at reboot" in text
