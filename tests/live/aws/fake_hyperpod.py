"""A HyperPod cluster as its API shows it: nodes, replacements that take their time, and what can go wrong with them.

Behaviour as the SageMaker API Reference and the Developer Guide describe it (2026); nothing was recorded from AWS.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

NO_CAPACITY = "We currently do not have sufficient capacity to launch new ml.p5.48xlarge instances. Please try again."
CLUSTER = "arn:aws:sagemaker:us-east-1:123456789012:cluster/abcdefghijkl"


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


class FakeNode(Struct):
    """``host``: the name in Slurm. ``launched``: seconds since the epoch."""

    id: str
    host: str
    launched: float
    status: str = "Running"
    message: str = ""


class FakeHyperPod(Struct):
    """``delay_s``: how long each stage of a replacement takes. ``node_failures``: the ErrorCode that a batch has
    for an instance. ``node_recovery``: whether its agent acts by itself, "Automatic" or "None". ``became`` is told
    of each instance that comes behind a name, ``rebooted`` of each reboot. ``plans``: the UltraServers of each reserved
    capacity of each active training plan.
    """

    cluster: str = CLUSTER
    delay_s: float = 0.0
    capacity: bool = True
    fails_with: str = ""
    node_failures: dict[str, str] = field(default_factory=dict)
    nodes: list[FakeNode] = field(default_factory=list)
    became: Callable[[str, str], None] = lambda host, instance: None
    rebooted: Callable[[str], None] = lambda host: None
    clock: Callable[[], float] = time.monotonic
    page: int = 100
    node_recovery: str = "Automatic"
    plans: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    _due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _one_at_a_time: Any = field(default_factory=threading.RLock)
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    def add(self, host: str, *, status: str = "Running") -> str:
        """Another node; returns its instance id."""
        number = next(self._ids)
        self.nodes.append(FakeNode(id=f"i-{number:017x}", host=host, launched=1_700_000_000.0 + number, status=status))
        return self.nodes[-1].id

    def answer(self, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request that the service model allows. Raises ApiError."""
        if operation == "ListTrainingPlans":
            return self._training_plans(asked)
        if operation == "ListUltraServersByReservedCapacity":
            return self._ultraservers(asked)
        if asked["ClusterName"] not in (self.cluster, "demo"):
            raise ApiError("ResourceNotFound", f"Cluster {asked['ClusterName']} not found")
        with self._one_at_a_time:
            return self._answer(operation, asked)

    def _training_plans(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A page of the active plans; each has a capacity of plain instances as well."""
        assert asked["Filters"] == [{"Name": "Status", "Value": "Active"}]
        arn = "arn:aws:sagemaker:us-east-1:123456789012:reserved-capacity"
        shown = [
            {
                "TrainingPlanArn": f"arn:aws:sagemaker:us-east-1:123456789012:training-plan/{name}",
                "TrainingPlanName": name,
                "Status": "Active",
                "ReservedCapacitySummaries": [
                    _capacity(f"{arn}/{name}-plain", "Instance", "Active"),
                    *(_capacity(f"{arn}/{each}", "UltraServer", "Active") for each in capacities),
                    _capacity(f"{arn}/{name}-over", "UltraServer", "Expired"),
                ],
            }
            for name, capacities in self.plans.items()
        ]
        return self._page(asked, "TrainingPlanSummaries", shown)

    def _ultraservers(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = asked["ReservedCapacityArn"].rpartition("/")[2]
        found = next((each[name] for each in self.plans.values() if name in each), None)
        if found is None:
            raise ApiError("ResourceNotFound", f"Reserved capacity {asked['ReservedCapacityArn']} not found")
        return self._page(asked, "UltraServers", found)

    def _page(self, asked: dict[str, Any], name: str, shown: list[dict[str, Any]]) -> dict[str, Any]:
        start, most = int(asked.get("NextToken", "0")), min(int(asked.get("MaxResults", 10)), self.page)
        more = {"NextToken": str(start + most)} if start + most < len(shown) else {}
        return {name: shown[start : start + most], **more}

    def go_on(self) -> None:
        """What is due happens also where nobody asks."""
        with self._one_at_a_time:
            self._advance()

    def _answer(self, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
        self._advance()
        match operation:
            case "BatchReplaceClusterNodes":
                return self._batch(asked["NodeIds"], self._replace)
            case "BatchRebootClusterNodes":
                return self._batch(asked["NodeIds"], lambda node: self.rebooted(node.host))
            case "DescribeCluster":
                shown = {"ClusterArn": self.cluster, "ClusterStatus": "InService", "InstanceGroups": []}
                return {**shown, "NodeRecovery": self.node_recovery}
            case "DescribeClusterNode":
                return {"NodeDetails": _shown(self._node(asked["NodeId"]))}
            case "ListClusterNodes":
                return self._listed(int(asked.get("NextToken", "0")), int(asked.get("MaxResults", 10)))
        raise ApiError("UnknownOperationException", operation)

    def _batch(self, ids: list[str], act: Callable[[FakeNode], None]) -> dict[str, Any]:
        done: list[str] = []
        failed = []
        for each in ids:
            node = next((node for node in self.nodes if node.id == each), None)
            busy = node is not None and node.status in ("ShuttingDown", "Pending")
            code = "InstanceIdNotFound" if node is None else self.node_failures.get(each, "InstanceIdInUse" * busy)
            if code or node is None:
                failed.append({"NodeId": each, "ErrorCode": code, "Message": f"{code} for {each}"})
                continue
            act(node)
            done.append(each)
        return {name: each for name, each in (("Successful", done), ("Failed", failed)) if each}

    def _replace(self, node: FakeNode) -> None:
        node.status = "ShuttingDown"
        self._later(lambda: self._launch(node))

    def _launch(self, old: FakeNode) -> None:
        self.nodes.remove(old)
        self.add(old.host, status="Pending")
        self._settle(self.nodes[-1])

    def _settle(self, node: FakeNode) -> None:
        if self.fails_with:
            node.status, node.message = "Failure", self.fails_with
        elif self.capacity:
            node.message = ""
            self._later(lambda: self._run(node))
        else:
            node.message = NO_CAPACITY
            self._later(lambda: self._settle(node), at_least_s=0.001)

    def _run(self, node: FakeNode) -> None:
        node.status = "Running"
        self.became(node.host, node.id)

    def _later(self, act: Callable[[], None], *, at_least_s: float = 0.0) -> None:
        self._due.append((self.clock() + max(self.delay_s, at_least_s), act))

    def _advance(self) -> None:
        """One stage of what is due at each request: an instance does not come in no time."""
        now = self.clock()
        due, self._due = [each for each in self._due if each[0] <= now], [each for each in self._due if each[0] > now]
        for _, act in due:
            act()

    def _node(self, instance: str) -> FakeNode:
        for node in self.nodes:
            if node.id == instance:
                return node
        raise ApiError("ValidationException", f"Instance with instance id {instance} does not exist")

    def _listed(self, start: int, most: int) -> dict[str, Any]:
        end = start + min(self.page, most)
        shown = [_shown(node) for node in self.nodes[start:end]]
        return {"ClusterNodeSummaries": shown, **({"NextToken": str(end)} if end < len(self.nodes) else {})}


def _shown(node: FakeNode) -> dict[str, Any]:
    return {
        "InstanceGroupName": "workers",
        "InstanceId": node.id,
        "InstanceType": "ml.p5.48xlarge",
        "LaunchTime": node.launched,
        "InstanceStatus": {"Status": node.status, "Message": node.message},
        "PrivateDnsHostname": f"{node.host}.ec2.internal",
    }


def _capacity(arn: str, kind: str, status: str) -> dict[str, Any]:
    shape = {"InstanceType": "ml.p6e-gb200.36xlarge", "TotalInstanceCount": 18}
    return {"ReservedCapacityArn": arn, "ReservedCapacityType": kind, "Status": status, **shape}
