"""Reads the fleet of a Kubernetes cluster for the ledger: Nodes and NodeHealth objects, from the server's cache."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime

from healthd.fleet.nodes import fleet_nodes
from healthd.fleet.readings import readings_of
from healthd.ledger.changes import NodeReading
from healthd.remediation.decide.summary import NodeState, NodeSummary
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, ResourceKind
from healthd.remediation.orchestrators.kubernetes.labels import CODE, STATE
from healthd.remediation.orchestrators.kubernetes.node import KubeNode, away_by, hold_of, instance_id_of, nodes_in
from healthd.remediation.orchestrators.kubernetes.node_health import HealthStatus, NodeHealth
from healthd.remediation.orchestrators.kubernetes.node_health_api import NodeHealths
from healthd.remediation.orchestrators.kubernetes.silent_nodes import beat_of
from healthd.remediation.ports import ListedNode

SILENT_AFTER_S = 900.0
"""An agent writes every 330 s at the latest, and may take 450 s more after trouble with the API server."""
_TYPE = "node.kubernetes.io/instance-type"
_RACKS = ("topology.k8s.aws/capacity-block-id", "topology.k8s.aws/network-node-layer-3")
"""The labels of EKS for a node's place: the capacity block's id, else its lowest network node."""


class KubeLedger:
    """``selector``: of the nodes that count, "" for all. Nodes without an agent do not count. ``tolerated``: taints
    that do not take a node out."""

    def __init__(self, api: KubeApi, *, selector: str, tolerated: Collection[str]) -> None:
        self._api, self._selector, self._tolerated = api, selector, tuple(tolerated)
        self._healths = NodeHealths(api)

    def readings(self, now: datetime) -> dict[str, NodeReading]:
        """Every node with an agent. Raises BackendError."""
        pages = self._api.pages(ResourceKind.NODE, nodes_in, resourceVersion="0", labelSelector=self._selector)
        nodes = {node.name: node for page in pages for node in page}
        healths = self._healths.all()
        there = [node for name, node in nodes.items() if beat_of(node) or name in healths]
        listed = [listed_node(node, healths.get(node.name), self._tolerated) for node in there]
        found = readings_of(fleet_nodes(listed, (), {}, now, silent_after_s=SILENT_AFTER_S))
        return {name: _on_machine(each, nodes[name]) for name, each in found.items()}


def listed_node(node: KubeNode, health: NodeHealth | None, tolerated: Collection[str]) -> ListedNode:
    """A Node and its NodeHealth as one node of a list."""
    away, held = away_by(node, tolerated), hold_of(node)
    return ListedNode(
        name=node.name,
        state=" ".join(sorted(away)) or "Ready",
        flags=frozenset({"DRAIN"} if held is not None else {"DOWN"} if "NOTREADY" in away else set()),
        out=bool(away),
        dead="NOTREADY" in away,
        hold=held.as_hold if held is not None else None,
        record=health.text if health is not None else "",
        summary=_summary(node, health).text,
        group=next((value for label in _RACKS if (value := node.labels.get(label, ""))), ""),
    )


def _summary(node: KubeNode, health: NodeHealth | None) -> NodeSummary:
    """The state of the node, by labels and NodeHealth. One without a state label is critical with a code, else a check
    cannot tell."""
    status = (health.status if health is not None else None) or HealthStatus()
    code, label = node.labels.get(CODE, ""), node.labels.get(STATE, "")
    without = NodeState.CRITICAL if code else NodeState.UNKNOWN
    state = NodeState(label) if label in set(NodeState) else without
    return NodeSummary(
        state=state,
        at=_time(beat_of(node)),
        code=code or status.code,
        since=_time(status.since),
        step=status.step,
        instance_type=node.labels.get(_TYPE, ""),
    )


def _on_machine(reading: NodeReading, node: KubeNode) -> NodeReading:
    """The reading with the instance of the Node's providerID. NodeHealth names one fault: there may be others."""
    machine = replace(reading.machine, instance=instance_id_of(node))
    return replace(reading, machine=machine)


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.astimezone(UTC) if at.tzinfo is not None else None
