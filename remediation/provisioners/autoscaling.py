"""An instance of an EC2 Auto Scaling group: the group launches a substitute for what is taken from it.

healthd never changes the group's size (ShouldDecrementDesiredCapacity is always false). It must not act where the group
could launch no substitute, or acts on the instance already, nor where the group is an EKS managed node group whose own
node auto-repair is on: two programs that repair one node undo each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from healthd.core.errors import BackendDenied, BackendError, BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.instances import REBOOT_SHOWS_S, NoInstance, at_address, id_of
from healthd.remediation.provisioners.platform_reads import before_acting
from healthd.remediation.provisioners.target_node import TargetNode

# The tags by which EKS marks the Auto Scaling group of a managed node group as its own.
_EKS_TAGS = ("eks:cluster-name", "eks:nodegroup-name")
# Suspended, one of these leaves the group without a substitute (EC2 Auto Scaling User Guide, "Suspend and resume
# processes", 2026).
_NEEDED = {"terminate": ("Launch",), "unhealthy": ("Launch", "Terminate", "HealthCheck", "ReplaceUnhealthy")}


class AutoScalingProvisioner:
    """One instance of a group. ``group`` "": the group that Auto Scaling names for the instance.

    ``address``: the node's address, for the controller, which looks the instance up by it; raises BackendUnknown.
    """

    kind = "autoscaling"
    state_owner = StateOwner.ENGINE
    delegates = acts_late = False

    def __init__(
        self,
        *,
        subject: TargetNode,
        aws: Aws,
        how: Literal["terminate", "unhealthy"] = "terminate",
        group: str = "",
        address: Callable[[], str] | None = None,
    ) -> None:
        self._subject, self._aws, self._how, self._group = subject, aws, how, group
        self._address = address or (lambda: subject.node)
        self._ended = ""

    def reason_against(self, remedy: Remedy) -> str:
        return self._subject.reason_against(remedy)

    def stands_down(self) -> str:
        """Why the group acts already or could launch no substitute: an instance that comes or goes, is unhealthy, or a
        suspended process."""
        try:
            member = self._member(self._target())
            described = self._described(member["AutoScalingGroupName"])
            suspended = {each["ProcessName"] for each in described["Suspended"]}
            repairer = self._repairer(described["Tags"])
        except BackendError as error:
            return f"unknown whether the Auto Scaling group acts on this instance: {error}"
        group, state, health = (member[key] for key in ("AutoScalingGroupName", "LifecycleState", "HealthStatus"))
        if state != "InService" or health.lower() != "healthy":
            return f"Auto Scaling group {group} acts on {member['InstanceId']} already: {state}, {health}"
        if repairer:
            return repairer
        bound = [name for name in _NEEDED[self._how] if name in suspended]
        return f"Auto Scaling group {group} would launch no substitute: {bound[0]} is suspended" if bound else ""

    def repaired_by(self) -> str:
        """The service that repairs the nodes of this group itself, or "". Raises BackendError where that is unknown."""
        return self._repairer(self._described(self._member(self._target())["AutoScalingGroupName"])["Tags"])

    def machine(self) -> str:
        """On the node: its own id. For the controller: the instance at the node's address; once that is gone, the
        newest of a group that has all its instances in service again."""
        if self._subject.here:
            return self._subject.instance_id
        try:
            return id_of(at_address(self._aws, self._address()))
        except NoInstance:  # EC2's answer; a reading without an answer tells of no other machine
            if not self._group:
                raise
        return self._substitute()

    def reboot(self) -> None:
        """EC2's reboot: the instance stays running. The group's grace period is no part of it: that is for instances
        that are launched, attached or back from standby (Auto Scaling user guide, "Set the health check grace period",
        2026-11)."""
        self._aws.call("ec2", "RebootInstances", InstanceIds=[self._target()])

    def replace(self) -> None:
        """Terminate the instance, or report it unhealthy. Either way the group launches another."""
        with before_acting():
            instance = self._target()
            self._group = self._group or self._member(instance)["AutoScalingGroupName"]
        self._ended = instance
        if self._how == "terminate":
            self._aws.call(
                "autoscaling",
                "TerminateInstanceInAutoScalingGroup",
                InstanceId=instance,
                ShouldDecrementDesiredCapacity=False,
            )
        else:
            self._aws.call(
                "autoscaling",
                "SetInstanceHealth",
                InstanceId=instance,
                HealthStatus="Unhealthy",
                ShouldRespectGracePeriod=False,
            )

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """A replacement at once: the call names the instance, and a group that acts on it refuses. A reboot is EC2's:
        see ``REBOOT_SHOWS_S``."""
        return REBOOT_SHOWS_S if remedy is Remedy.REBOOT_NODE else 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        """A call to AWS cannot be taken back."""
        return False

    def progress(self) -> str:
        """The group's instances in service, and the error of the last launch if it failed. An instance that Auto
        Scaling no longer knows has ended; its Node may stay a while longer."""
        try:
            if not (group := self._group):
                if not (members := self._members(self._target())):
                    return f"no Auto Scaling group has {self._target()} any more"
                group = members[0]["AutoScalingGroupName"]
            described = self._described(group)
            failed = self._failed_launch(group)
        except BackendDenied:
            return ""
        serving, wanted = len(described["Serving"]), described["DesiredCapacity"]
        message = f"Auto Scaling group {group}: {serving} of {wanted} in service"
        return f"{message}; the last launch failed: {failed}" if failed and serving < wanted else message

    def dry_run(self, remedy: Remedy) -> str:
        """EC2's answer to a dry run of the reboot; Auto Scaling has no dry run. Raises as the act would."""
        if why := self.reason_against(remedy):
            raise BackendRefused(why)
        if remedy is Remedy.REBOOT_NODE:
            return self._aws.would("ec2", "RebootInstances", InstanceIds=[self._target()])
        operation = "TerminateInstanceInAutoScalingGroup" if self._how == "terminate" else "SetInstanceHealth"
        return f"autoscaling:{operation} {self._target()}; Auto Scaling has no dry run"

    def _target(self) -> str:
        return self._subject.instance_id or id_of(at_address(self._aws, self._address()))

    def _member(self, instance: str) -> Mapping[str, Any]:
        """Auto Scaling's record of an instance. Raises BackendRefused where it has none."""
        if not (found := self._members(instance)):
            raise BackendRefused(f"{instance} is in no Auto Scaling group: check [provisioner] kind")
        return found[0]

    def _members(self, instance: str) -> list[Mapping[str, Any]]:
        """Auto Scaling's answer lacks an instance that it does not know."""
        answer = self._aws.call("autoscaling", "DescribeAutoScalingInstances", InstanceIds=[instance])
        found: list[Mapping[str, Any]] = answer.get("AutoScalingInstances", [])
        return found

    def _described(self, group: str) -> Mapping[str, Any]:
        answer = self._aws.call("autoscaling", "DescribeAutoScalingGroups", AutoScalingGroupNames=[group])
        found = answer.get("AutoScalingGroups", [])
        if not found:
            raise BackendRefused(f"there is no Auto Scaling group {group!r}: check [provisioner.autoscaling] group")
        serving = [each["InstanceId"] for each in found[0]["Instances"] if each["LifecycleState"] == "InService"]
        return {
            "Suspended": found[0].get("SuspendedProcesses", []),
            "Serving": [each for each in serving if each != self._ended],
            "DesiredCapacity": found[0]["DesiredCapacity"],
            "Tags": {tag["Key"]: tag["Value"] for tag in found[0].get("Tags", [])},
        }

    def _repairer(self, tags: Mapping[str, str]) -> str:
        """EKS node auto-repair, where it is on, or "". EKS is asked only for a group that it tagged; an answer without
        nodeRepairConfig means off."""
        cluster, node_group = (tags.get(key, "") for key in _EKS_TAGS)
        if not cluster or not node_group:
            return ""
        answer = self._aws.call("eks", "DescribeNodegroup", clusterName=cluster, nodegroupName=node_group)
        if not ((answer.get("nodegroup") or {}).get("nodeRepairConfig") or {}).get("enabled"):
            return ""
        return (
            f"EKS node auto-repair is on for node group {node_group} of {cluster}: it repairs these nodes itself; "
            'set [provisioner] kind = "eks" to request repairs from it'
        )

    def _substitute(self) -> str:
        described = self._described(self._group)
        serving, wanted = described["Serving"], described["DesiredCapacity"]
        if not serving or len(serving) < wanted:
            missing = f"{len(serving)} of {wanted} in service"
            raise BackendUnknown(
                f"no instance is behind {self._subject.node}; Auto Scaling group {self._group}: {missing}"
            )
        answer = self._aws.call("ec2", "DescribeInstances", InstanceIds=serving)
        instances = [instance for each in answer["Reservations"] for instance in each["Instances"]]
        return id_of(max(instances, key=lambda each: str(each["LaunchTime"])))

    def _failed_launch(self, group: str) -> str:
        """The error of the newest launch, or "". Activities come newest first."""
        answer = self._aws.call("autoscaling", "DescribeScalingActivities", AutoScalingGroupName=group, MaxRecords=20)
        launches = [each for each in answer.get("Activities", []) if each["Description"].startswith("Launching")]
        if not launches or launches[0]["StatusCode"] != "Failed":
            return ""
        return str(launches[0].get("StatusMessage") or "no reason given")
