"""SageMaker HyperPod with Slurm: a node keeps its name, and another instance comes behind it.

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
from healthd.remediation.provisioners.looking import before_acting
from healthd.remediation.provisioners.slurm_node import ACTION_REBOOT, ACTION_REPLACE, Scontrol, read_node
from healthd.remediation.provisioners.subject import Subject

# InstanceStatus.Status (botocore, sagemaker 2017-07-24, ClusterInstanceStatus): what HyperPod is at by itself.
_IN_WORK = frozenset({"ShuttingDown", "SystemUpdating", "DeepHealthCheckInProgress", "Pending"})
_GOING = frozenset({"ShuttingDown", "NotFound"})
_DEEP_CHECK = "SageMakerDeepHealthCheck:InProgress"
_NO_CAPACITY = "capacity"
_SCHEDULABLE = "Schedulable"


class HyperPodProvisioner:
    """One node of a HyperPod cluster. ``cluster``: name or ARN. ``scontrol`` None: by the API, whoever asks.

    ``made_by_us`` tells whether a reason ``Action:…`` that stands on the node is of the case in hand, which whoever
    keeps cases knows; by itself this remembers only what it wrote since it was made. ``label``: on EKS, that
    by which HyperPod's agent and people speak to HyperPod, as the Node has it now, or ""; raises BackendError.
    ``fixed``: why nothing can be done for this node at all, or "".
    """

    kind = "hyperpod"
    delegates = False

    def __init__(
        self,
        *,
        subject: Subject,
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
        # The API says nothing of Slurm's state: there our drain stands until we undo it.
        self.state_owner = StateOwner.ENGINE if self._by_scontrol is None else StateOwner.AFTER_ASKING
        self._written: set[str] = set()
        self._made_by_us = made_by_us or self._written.__contains__
        self._replaced, self._label, self._fixed = "", label, fixed

    def why_not(self, remedy: Remedy) -> str:
        """Why this remedy cannot be carried out here, or ""."""
        if self._fixed:
            return self._fixed
        if not self._cluster and self._by_scontrol is None:
            return "the cluster's name is not known: set [provisioner.hyperpod] cluster"
        return self._subject.why_not(remedy)

    def stands_down(self) -> str:
        """HyperPod's own agent may be at it: by Slurm's reason or a Node's label, a deep check, or its own status."""
        try:
            return self._at_it_in_slurm() or self._at_it_by_label() or self._at_it_by_status()
        except BackendError as error:
            return f"it cannot be told whether HyperPod acts on this node already: {error}"

    def machine(self) -> str:
        """Our own id where HyperPod agrees, or may not be asked; else whichever instance has the node's name."""
        own = self._subject.instance_id if self._subject.here else ""
        if own:
            try:
                details = self._details(own)
            except BackendDenied:
                return own  # this very machine runs under the name, and there is nobody else to ask
            except BackendRefused:
                details = {}  # the cluster does not know it any more
            if details and self._has_our_name(details) and _status(details) not in _GOING:
                return own
        return str(self._behind_the_name()["InstanceId"])

    def reboot(self) -> None:
        """EC2's graceful reboot in either way; the instance stays."""
        if self._by_scontrol is not None:
            self._set_reason(self._by_scontrol, ACTION_REBOOT)
        else:
            self._ask("BatchRebootClusterNodes")

    def replace(self) -> None:
        """The instance is ended first: until there is capacity the cluster has a node less."""
        if self._by_scontrol is not None:
            self._set_reason(self._by_scontrol, ACTION_REPLACE)
        else:
            self._replaced = self._ask("BatchReplaceClusterNodes")

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """By Slurm's reason at once: it stands until HyperPod has acted. By the API a replacement at once: it names the
        instance, which is InstanceIdInUse while HyperPod is at it, and then InstanceIdNotFound (botocore, sagemaker
        2017-07-24, BatchReplaceClusterNodesError). A reboot calls EC2's RebootInstances: see ``REBOOT_SHOWS_S``."""
        is_queued = remedy is Remedy.REBOOT_NODE and self._by_scontrol is None
        return REBOOT_SHOWS_S if is_queued else 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        """What HyperPod was asked for cannot be taken back."""
        return False

    def progress(self) -> str:
        """The status of each instance with the node's name. A new one that failed for another cause than capacity is
        the end of it. On EKS the successor has another name: only this instance's own status can be told."""
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
        """What would be asked. HyperPod has no dry run of its own."""
        action, operation = {
            Remedy.REBOOT_NODE: (ACTION_REBOOT, "BatchRebootClusterNodes"),
            Remedy.REPLACE_NODE: (ACTION_REPLACE, "BatchReplaceClusterNodes"),
        }[remedy]
        if self._by_scontrol is not None:
            return (
                f"scontrol update nodename={self._subject.node} state=fail reason={action}; there is no dry run of it"
            )
        return f"sagemaker:{operation} {self._cluster} {self._target()}; HyperPod has no dry run"

    # -- asking -------------------------------------------------------------------------------------------------------

    def _set_reason(self, scontrol: Scontrol, action: str) -> None:
        """Once: a node in progress must not be updated again, and one that is replaced needs no reboot."""
        with before_acting():
            node = read_node(scontrol, self._subject.node)
        if node.reason == action and node.flags & {"FAIL", "FAILING", "DOWN"}:
            return
        if node.reason == ACTION_REPLACE:
            raise BackendRefused(f"{self._subject.node}: HyperPod replaces it already ({node.state}, {node.reason})")
        self._written.add(action)
        scontrol("update", f"nodename={self._subject.node}", "state=fail", f"reason={action}")

    def _ask(self, operation: str) -> str:
        """Ask for one node, by the API; returns which instance that was."""
        with before_acting():
            instance = self._target()
        answer = self._aws.call("sagemaker", operation, ClusterName=self._cluster, NodeIds=[instance])
        judge_batch(operation, instance, answer)
        return instance

    def _target(self) -> str:
        return self._subject.instance_id or self.machine()

    # -- looking ------------------------------------------------------------------------------------------------------

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
        """What is labelled HyperPod acts on, unless it is told to act on nothing (NodeRecovery None)."""
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
            return ""  # the way by scontrol needs no rights, and then this cannot be known
        status = _status(details)
        return f"HyperPod acts on {details['InstanceId']} already: {_shown(details)}" if status in _IN_WORK else ""

    def _details(self, instance: str) -> Mapping[str, Any]:
        answer = self._aws.call("sagemaker", "DescribeClusterNode", ClusterName=self._cluster, NodeId=instance)
        return {"InstanceId": instance, **answer.get("NodeDetails", {})}

    def _of_this_instance(self) -> str:
        """How it is. One that the cluster does not know any more has been ended; its Node may stand a while longer."""
        instance = self._subject.instance_id
        try:
            return f"HyperPod: {_shown(self._details(instance))}"
        except (BackendBusy, BackendDenied):
            raise
        except BackendRefused as error:
            return f"HyperPod has no {instance} any more ({error}); its Node is still there"

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
        raise BackendUnknown(f"sagemaker:{operation}: {instance} is neither among the successful nor among the failed")
    code = failed[0].get("ErrorCode", "")
    text = f"sagemaker:{operation}: {instance}: {code}: {failed[0].get('Message', '')}"
    match code:
        case "InstanceIdInUse" | "InvalidInstanceStatus":
            raise BackendBusy(f"{text}; nothing was applied, it can be asked again")
        case "InternalServerError":
            raise BackendUnknown(f"{text}; it may have been applied all the same")
        case _:
            raise BackendRefused(text)


def _status(details: Mapping[str, Any]) -> str:
    return str((details.get("InstanceStatus") or {}).get("Status", ""))


def _message(details: Mapping[str, Any]) -> str:
    return str((details.get("InstanceStatus") or {}).get("Message") or "")


def _shown(details: Mapping[str, Any]) -> str:
    message = _message(details)
    return f"{details['InstanceId']} {_status(details)}" + (f" ({message})" if message else "")
