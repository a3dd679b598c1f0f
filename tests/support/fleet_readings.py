"""Nodes of a fleet as a reading shows them: in service, each with the summary that its agent left."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from healthd.core.model import Mode
from healthd.fleet.nodes import FleetNode, fleet_nodes
from healthd.remediation.ports import ListedNode
from healthd.remediation.records.summary import NodeState, NodeSummary

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
P5, GB200 = "p5.48xlarge", "p6e-gb200.36xlarge"


def reading(
    name: str,
    code: str = "",
    on: str = "",
    *,
    since: datetime = NOW,
    now: datetime = NOW,
    state: NodeState | None = None,
    group: str = "",
    kind: str = P5,
    driver: str = "580.95.05",
    silent: bool = False,
    asleep: bool = False,
) -> FleetNode:
    state = state or (NodeState.CRITICAL if code else NodeState.OK)
    summary = NodeSummary(
        state=state, at=now, code=code, component=on, since=since, mode=Mode.OBSERVE, instance_type=kind, driver=driver
    )
    listed = ListedNode(
        name=name,
        state="IDLE",
        partitions=("train",),
        summary="" if silent else summary.text,
        group=group,
        asleep=asleep,
    )
    return fleet_nodes([listed], (), {}, now, silent_after_s=1500)[0]


def names(count: int, first: int = 1) -> list[str]:
    return [f"gpu-{number:03}" for number in range(first, first + count)]


def rack(name: str, first: int, code: str = "", count: int = 18, **more: Any) -> list[FleetNode]:
    given: dict[str, Any] = {"group": name, "kind": GB200, **more}
    return [reading(each, code, **given) for each in names(count, first)]
