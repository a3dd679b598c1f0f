"""SageMaker HyperPod with Slurm: a node keeps its name, and another instance takes it.

It asks by Slurm's reasons or by the API, as configured, and never by both. It must not wait, and must never call
BatchDeleteClusterNodes, which shrinks the group. UpdateClusterSoftware must have been run once on older clusters, and
controller nodes cannot be replaced (SageMaker API Reference, BatchReplaceClusterNodes, 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from healthd.core.errors import BackendBusy, BackendDenied, BackendError, BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.instances import REBOOT_SHOWS_S
from healthd.remediation.provisioners.platform_reads import before_acting
from healthd.remediation.provisioners.slurm_node import ACTION_REBOOT, ACTION_REPLACE, Scontrol, read_node
from healthd.remediation.provisioners.target_node import TargetNode

# InstanceStatus.Status (botocore, sagemaker 2017-07-24, ClusterInstanceStatus): what HyperPod is at by itself.
_IN_WORK = frozenset({"ShuttingDown", "SystemUpdating", "DeepHealthCheckInProgress", "Pending"})
_GOING = frozenset({"ShuttingDown", "NotFound"})
_DEEP_CHECK = "SageMakerDeepHealthCheck:InProgress"
_NO_CAPACITY = "capacity"
_SCHEDULABLE = "Schedulable"


class HyperPodProvisioner:
    """One node of a HyperPod cluster. ``cluster``: name or ARN. ``scontrol`` None: always by the API.

    ``made_by_us``: whether a reason ``Action:…`` on the node belongs to the current remediation, which the engine
    knows; without it only reasons that this object wrote count. ``label``: on EKS, the label by which HyperPod's agent
    and operators ask HyperPod for repairs, as the Node has it now, or ""; raises BackendError. ``fixed``: why no remedy
    is possible for this node, or "".
    """

    kind = "hyperpod"
    delegates = acts_late = False

    def __init__(
        self,
        *,
        subject: TargetNode,
        aws: Aws,
        cluster: str,
        scontrol: Scontrol | None = None,
        by_api: bool = True,
        made_by_us: Callable[[str], bool] | None = None,
        label: Callable[[], str] | None = None,
        fixed: str = "",
    ) -> None:
        self._subject, self._aws, self._cluster, self._scontrol = subject, aws, cluster, scontrol
        self._by_scontrol = None if by_api else scontrol
        # The API does not change Slurm's state: there our drain stays until we undo it.
        self.state_owner = StateOwner.ENGINE if self._by_scontrol is None else StateOwner.AFTER_ASKING
        self._written: set[str] = set()
        self._made_by_us = made_by_us or self._written.__contains__
        self._replaced, self._label, self._fixed = "", label, fixed

    def reason_against(self, remedy: Remedy) -> str:
        if self._fixed:
            return self._fixed
        if not self._cluster and self._by_scontrol is None:
            return "the cluster's name is unknown: set [provisioner.hyperpod] cluster"
        return self._subject.reason_against(remedy)

    def stands_down(self) -> str:
        """Why HyperPod acts already, or "": by Slurm's reason or a Node's label, a deep check, or its own status."""
        try:
            return self._at_it_in_slurm() or self._at_it_by_label() or self._at_it_by_status()
        except BackendError as error:
            return f"unknown whether HyperPod acts on this node already: {error}"

    def machine(self) -> str:
        """This node's own id where HyperPod agrees, or grants no rights; else the instance that has the node's name."""
        own = self._subject.instance_id if self._subject.here else ""
        if own:
            try:
                details = self._details(own)
            except BackendDenied:
                return own  # this very machine runs under the name, and no other source knows
            except BackendRefused:
                details = {}  # the cluster no longer knows it
            if details and self._has_our_name(details) and _status(details) not in _GOING:
                return own
        return str(self._behind_the_name()["InstanceId"])

    def reboot(self) -> None:
        """EC2's graceful reboot, by reason and by API alike; the instance stays."""
        if self._by_scontrol is not None:
            self._set_reason(self._by_scontrol, ACTION_REBOOT)
        else:
            self._ask("BatchRebootClusterNodes")

    def replace(self) -> None:
        """Replace the instance, which ends first: until there is capacity the cluster has one node less."""
        if self._by_scontrol is not None:
            self._set_reason(self._by_scontrol, ACTION_REPLACE)
        else:
            self._replaced = self._ask("BatchReplaceClusterNodes")

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """By Slurm's reason at once: it stays until HyperPod has acted. By the API a replacement at once: it names the
        instance, which is InstanceIdInUse while HyperPod acts, and then InstanceIdNotFound (botocore, sagemaker
        2017-07-24, BatchReplaceClusterNodesError). A reboot calls EC2's RebootInstances: see ``REBOOT_SHOWS_S``."""
        is_queued = remedy is Remedy.REBOOT_NODE and self._by_scontrol is None
        return REBOOT_SHOWS_S if is_queued else 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        """A request to HyperPod cannot be withdrawn."""
        return False

    def progress(self) -> str:
        """The status of each instance with the node's name. A new one that failed for another cause than capacity
        raises BackendRefused. On EKS the replacement has another name: only this instance's own status is known."""
        try:
            if self._label is not None:
                return self._of_this_instance()
            found = self._with_our_name()
        except BackendDenied:
            return ""
        if not found:
            return f"HyperPod has no instance behind {self._subject.node} at the moment"
        newest = found[0]
        failed = _status(newest) == "Failure" and self._replaced not in ("", newest["InstanceId"])
        if failed and _NO_CAPACITY not in _message(newest).lower():
            raise BackendRefused(f"HyperPod: {newest['InstanceId']}: Failure: {_message(newest)}")
        return "HyperPod: " + ", ".join(_shown(each) for each in found)

    def dry_run(self, remedy: Remedy) -> str:
        """The request that would be made. HyperPod has no dry run of its own."""
        action, operation = {
            Remedy.REBOOT_NODE: (ACTION_REBOOT, "BatchRebootClusterNodes"),
            Remedy.REPLACE_NODE: (ACTION_REPLACE, "BatchReplaceClusterNodes"),
        }[remedy]
        if self._by_scontrol is not None:
            return f"scontrol update nodename={self._subject.node} state=fail reason={action}; Slurm has no dry run"
        return f"sagemaker:{operation} {self._cluster} {self._target()}; HyperPod has no dry run"

    # -- requests -----------------------------------------------------------------------------------------------------

    def _set_reason(self, scontrol: Scontrol, action: str) -> None:
        """Set the reason once: a node in progress must not be updated again, and one that is replaced needs no
        reboot."""
        with before_acting():
            node = read_node(scontrol, self._subject.node)
        if node.reason == action and node.flags & {"FAIL", "FAILING", "DOWN"}:
            return
        if node.reason == ACTION_REPLACE:
            raise BackendRefused(
                f"{self._subject.node}: HyperPod is already replacing it ({node.state}, {node.reason})"
            )
        self._written.add(action)
        scontrol("update", f"nodename={self._subject.node}", "state=fail", f"reason={action}")

    def _ask(self, operation: str) -> str:
        """Request the operation for one node by the API; returns the instance."""
        with before_acting():
            instance = self._target()
        answer = self._aws.call("sagemaker", operation, ClusterName=self._cluster, NodeIds=[instance])
        judge_batch(operation, instance, answer)
        return instance

    def _target(self) -> str:
        return self._subject.instance_id or self.machine()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _at_it_in_slurm(self) -> str:
        if self._scontrol is None:
            return ""
        node = read_node(self._scontrol, self._subject.node)
        if _DEEP_CHECK in node.features:
            return "HyperPod runs a deep health check here"
        if node.reason in (ACTION_REBOOT, ACTION_REPLACE) and not self._made_by_us(node.reason):
            return f"HyperPod acts on {self._subject.node} already: its reason is {node.reason}"
        return ""

    def _at_it_by_label(self) -> str:
        """HyperPod acts on a label unless NodeRecovery is None."""
        label = self._label() if self._label is not None else ""
        if label in ("", _SCHEDULABLE):
            return ""
        cluster = self._aws.call("sagemaker", "DescribeCluster", ClusterName=self._cluster)
        if cluster.get("NodeRecovery") == "None":
            return ""
        return f"HyperPod acts on {self._subject.node} already: its label is {label}"

    def _at_it_by_status(self) -> str:
        try:
            details = self._details(self._target())
        except BackendDenied:
            return ""  # requests by scontrol need no rights, and without them the status is unknown
        status = _status(details)
        return f"HyperPod acts on {details['InstanceId']} already: {_shown(details)}" if status in _IN_WORK else ""

    def _details(self, instance: str) -> Mapping[str, Any]:
        answer = self._aws.call("sagemaker", "DescribeClusterNode", ClusterName=self._cluster, NodeId=instance)
        return {"InstanceId": instance, **answer.get("NodeDetails", {})}

    def _of_this_instance(self) -> str:
        """The status of this instance. One that the cluster no longer knows has ended; its Node may stay a while
        longer."""
        instance = self._subject.instance_id
        try:
            return f"HyperPod: {_shown(self._details(instance))}"
        except (BackendBusy, BackendDenied):
            raise
        except BackendRefused as error:
            return f"HyperPod no longer has {instance} ({error}); its Node is still there"

    def _has_our_name(self, details: Mapping[str, Any]) -> bool:
        host = str(details.get("PrivateDnsHostname") or "")
        return not host or host.partition(".")[0] == self._subject.node

    def _with_our_name(self) -> Sequence[Mapping[str, Any]]:
        """Every instance of the cluster with the node's name, the newest first."""
        answer = self._aws.call("sagemaker", "ListClusterNodes", ClusterName=self._cluster)
        nodes = answer.get("ClusterNodeSummaries", [])
        named = [each for each in nodes if each.get("PrivateDnsHostname") and self._has_our_name(each)]
        return sorted(named, key=lambda each: (_status(each) not in _GOING, str(each.get("LaunchTime"))), reverse=True)

    def _behind_the_name(self) -> Mapping[str, Any]:
        found = [each for each in self._with_our_name() if _status(each) not in _GOING]
        if not found:
            raise BackendUnknown(f"HyperPod cluster {self._cluster} has no instance behind {self._subject.node} now")
        return found[0]


def judge_batch(operation: str, instance: str, answer: Mapping[str, Any]) -> None:
    """Read the answer of a batch of one: HTTP 200 says nothing of the node.

    InstanceIdInUse: another operation is in progress on it, which need not be ours, and this one was not applied
    (botocore, BatchReplaceClusterNodesError). Raises BackendBusy, BackendRefused or BackendUnknown.
    """
    if instance in answer.get("Successful", []):
        return
    failed = [each for each in answer.get("Failed", []) if each.get("NodeId") == instance]
    if not failed:
        raise BackendUnknown(
            f"sagemaker:{operation}: {instance} is in neither list of the answer, successful or failed"
        )
    code = failed[0].get("ErrorCode", "")
    text = f"sagemaker:{operation}: {instance}: {code}: {failed[0].get('Message', '')}"
    match code:
        case "InstanceIdInUse" | "InvalidInstanceStatus":
            raise BackendBusy(f"{text}; HyperPod applied nothing, healthd tries again")
        case "InternalServerError":
            raise BackendUnknown(f"{text}; HyperPod may have applied it")
        case _:
            raise BackendRefused(text)


def _status(details: Mapping[str, Any]) -> str:
    return str((details.get("InstanceStatus") or {}).get("Status", ""))


def _message(details: Mapping[str, Any]) -> str:
    return str((details.get("InstanceStatus") or {}).get("Message") or "")


def _shown(details: Mapping[str, Any]) -> str:
    message = _message(details)
    return f"{details['InstanceId']} {_status(details)}" + (f" ({message})" if message else "")
