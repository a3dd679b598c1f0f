"""Everybody else who writes to a fleet's Nodes, each as the real one does it, with a ledger of what they wrote.

A writer looks, in the answer to each of its own writes, for all that it ever wrote to that Node: what somebody took
away or changed is told in ``lost``. Each has a share of the nodes and one thread, so that a ledger has one order.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from healthd.remediation.orchestrators.kubernetes.objects.node import KEEPS
from tests.live.kubernetes.api_client import Answer
from tests.live.kubernetes.control_plane import ControlPlane

OURS = "healthd.io/"
KUBELET_TYPES = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
AGENT_TYPES = ("KernelDeadlock", "NicHealthy", "example.com/FabricReady")
TAINTS = ("node.kubernetes.io/unreachable", "node.kubernetes.io/disk-pressure", "example.com/maintenance")
Node = dict[str, Any]
Change = tuple[Any, Callable[[], Answer]]


def owned(node: Node) -> dict[str, Any]:
    """A Node by who owns what of it, without what the server itself keeps there. Of all writers here healthd alone
    writes the annotations for autoscalers."""
    meta, spec, status = node["metadata"], node["spec"], node["status"]
    taints = spec.get("taints", [])
    conditions = {each["type"]: each for each in status["conditions"]}
    assert len(conditions) == len(status["conditions"]), f"a type is there twice: {status['conditions']}"

    def is_ours(key: str) -> bool:
        return key.startswith(OURS) or key in KEEPS

    def notes(*, ours: bool) -> dict[str, dict[str, str]]:
        return {
            of: {key: value for key, value in meta.get(of, {}).items() if is_ours(key) is ours}
            for of in ("labels", "annotations")
        }

    def told(whose: Callable[[str], bool]) -> dict[str, Any]:
        return {kind: each for kind, each in conditions.items() if whose(kind)}

    def is_of_others(kind: str) -> bool:
        return kind not in KUBELET_TYPES and not kind.startswith("Healthd")

    return {
        "healthd": {
            "taints": [each for each in taints if each["key"].startswith(OURS)],
            "conditions": told(lambda kind: kind.startswith("Healthd")),
            **notes(ours=True),
        },
        "kubelet": {
            "conditions": told(lambda kind: kind in KUBELET_TYPES),
            "status": {key: value for key, value in status.items() if key != "conditions"},
            "spec": {key: value for key, value in spec.items() if key not in ("taints", "unschedulable")},
        },
        "lifecycle controller": [each for each in taints if not each["key"].startswith(OURS)],
        "health agents": told(is_of_others),
        "administrators": notes(ours=False),
        "cordon": spec.get("unschedulable", False),
    }


class Writer(ABC):
    """One kind of writer with its share of the nodes. ``wrote`` counts what was applied, ``late`` what was refused
    because the Node was another than was read."""

    part = ""

    def __init__(self, plane: ControlPlane, nodes: Sequence[str], seed: str) -> None:
        self.plane, self.client, self.nodes = plane, plane.client(plane.admin_token), tuple(nodes)
        self.dice = random.Random(f"{seed} {self.part} {nodes[0]}")  # noqa: S311 - no secret
        self.ledger = {name: self.mine(self.read(name)) for name in nodes}
        self.lost: list[str] = []
        self.wrote = self.late = 0

    def read(self, name: str) -> Node:
        return self.client.get(f"/api/v1/nodes/{name}").must()

    def mine(self, node: Node) -> Any:
        """What of the Node is this writer's."""
        return owned(node)[self.part]

    @abstractmethod
    def change(self, name: str, before: Any) -> Change | None:
        """What is this writer's after its next write, and how to send that; None for nothing to write."""

    def burst(self) -> None:
        """Some writes in a row to one Node: who read it before comes too late."""
        name = self.dice.choice(self.nodes)
        for _ in range(self.dice.randrange(1, 8)):
            if (change := self.change(name, self.ledger[name])) is None:
                return
            expected, send = change
            answer = send()
            if answer.status == 409:
                self.late += 1
                continue
            self.wrote += 1
            self.ledger[name] = expected
            self.compare(answer.must())

    def compare(self, node: Node) -> None:
        """Tell what of the ledger is not there."""
        name = node["metadata"]["name"]
        if name in self.ledger and (found := self.mine(node)) != self.ledger[name]:
            self.lost.append(f"{self.part} of {name}: expected {self.ledger[name]}, found {found}")

    def node_patch(self, name: str, body: Any, *, status: bool = False) -> Callable[[], Answer]:
        path = f"/api/v1/nodes/{name}{'/status' if status else ''}"
        return lambda: self.client.patch(path, body)


class Kubelets(Writer):
    """Each under its own identity: heartbeats, Ready, how many GPUs the device plugin offers."""

    part = "kubelet"

    def __init__(self, plane: ControlPlane, nodes: Sequence[str], seed: str) -> None:
        self._of = {name: plane.acting_as(f"system:node:{name}", "system:nodes") for name in nodes}
        super().__init__(plane, nodes, seed)

    def change(self, name: str, before: Any) -> Change:
        self.client, now = self._of[name], _stamp()
        ready = "True" if self.dice.random() < 0.9 else "False"
        conditions = {kind: {**each, "lastHeartbeatTime": now} for kind, each in before["conditions"].items()}
        conditions["Ready"] |= {"status": ready, "message": f"posted for the {self.wrote}th time"}
        gpus = {"nvidia.com/gpu": str(self.dice.randrange(6, 9))}
        room = {of: {**before["status"][of], **gpus} for of in ("capacity", "allocatable")}
        expected = {**before, "conditions": conditions, "status": {**before["status"], **room}}
        body = {"status": {"conditions": list(conditions.values()), "capacity": gpus, "allocatable": gpus}}
        return expected, self.node_patch(name, body, status=True)


class LifecycleController(Writer):
    """Adds and removes taints as the node lifecycle controller does: read, and patched as it was read."""

    part = "lifecycle controller"

    def change(self, name: str, before: Any) -> Change:
        node, key = self.read(name), self.dice.choice(TAINTS)
        effect = "NoExecute" if self.dice.random() < 0.2 else "PreferNoSchedule"
        added = {"key": key, "value": str(self.wrote), "effect": effect}
        if effect == "NoExecute":
            added["timeAdded"] = _stamp()
        is_there = any(each["key"] == key for each in before)

        def made(taints: list[Any]) -> list[Any]:
            return [each for each in taints if each["key"] != key] if is_there else [*taints, added]

        version = node["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": {"taints": made(node["spec"].get("taints", []))}}
        return made(before), lambda: self.client.patch(f"/api/v1/nodes/{name}", body, kind="merge")


class HealthAgents(Writer):
    """Others that watch the hardware, as node-problem-detector does: all of their conditions in one patch."""

    part = "health agents"

    def change(self, name: str, before: Any) -> Change:
        now = _stamp()
        conditions = {
            kind: {
                "type": kind,
                "status": self.dice.choice(("True", "False", "Unknown")),
                "reason": "Looked",
                "message": f"looked {self.wrote} times",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }
            for kind in AGENT_TYPES
        }
        return conditions, self.node_patch(name, {"status": {"conditions": list(conditions.values())}}, status=True)


class Administrators(Writer):
    """Labels and annotations come and go."""

    part = "administrators"

    def change(self, name: str, before: Any) -> Change:
        of, key = self.dice.choice(("labels", "annotations")), f"example.com/n{self.dice.randrange(4)}"
        value = None if key in before[of] and self.dice.random() < 0.4 else f"v{self.wrote}"
        after = {each: text for each, text in {**before[of], key: value}.items() if text is not None}
        return {**before, of: after}, self.node_patch(name, {"metadata": {of: {key: value}}})


class Cordons(Writer):
    """People who cordon and uncordon: only what nobody has cordoned, and only what they cordoned themselves."""

    part = "cordon"

    def mine(self, node: Node) -> Any:
        """Whether it is cordoned, where a person did that; else it may be so or not."""
        return bool(owned(node)["cordon"]) if self.holds(node["metadata"]["name"]) else None

    def holds(self, name: str) -> bool:
        """Whether a person cordoned it."""
        return hasattr(self, "ledger") and self.ledger[name] is True

    def change(self, name: str, before: Any) -> Change | None:
        node = self.read(name)
        if before is None and owned(node)["cordon"]:
            return None
        metadata = {"resourceVersion": node["metadata"]["resourceVersion"]}
        body = {"metadata": metadata, "spec": {"unschedulable": None if before else True}}
        return None if before else True, self.node_patch(name, body)


ALL = (Kubelets, LifecycleController, HealthAgents, Administrators, Cordons)


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
