"""The platform behind a simulated Kubernetes fleet: AWS as its child process answers it, Karpenter's NodeClaims, and
what HyperPod's label and the condition of EKS node auto-repair bring about.

Production's provisioners call it. A call may be throttled, may be applied although it has no answer, and a leader may
die before or behind it. A successor comes late, after days without capacity, under the name of the machine before it
or under another; and instances end that no request named.

Answers: botocore's service models (sagemaker, autoscaling, ec2, 2026); the successor's name on HyperPod:
``hyperpod-<instance>``; in a group: that of its address, which may be the same again. Label and condition: see
``platform_signals``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from healthd.config.schema.provisioner import AutoscalingSection, Ec2Section, HyperpodSection, ProvisionerSection
from healthd.core.errors import SourceTimeout
from healthd.core.model import Remedy
from healthd.core.node import CommandResult
from healthd.remediation.orchestrators.kubernetes.api import ResourceKind
from healthd.remediation.orchestrators.kubernetes.objects.node import Condition, node_of
from healthd.remediation.orchestrators.kubernetes.objects.platform_signals import (
    EKS_CONDITION,
    EKS_REPLACES,
    EKS_WAITS,
    HYPERPOD_LABEL,
    SCHEDULABLE,
)
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from healthd.remediation.ports import Provisioner
from healthd.remediation.provisioners.aws_errors import trouble_of
from healthd.remediation.provisioners.delegated import DelegatedProvisioner
from healthd.remediation.provisioners.from_config import found_by_controller, open_for
from healthd.remediation.provisioners.kube_nodes import KarpenterProvisioner
from healthd.remediation.provisioners.own_node import OwnNodeProvisioner
from healthd.remediation.provisioners.target_node import TargetNode
from tests.simulation.kube_server import Server
from tests.simulation.timeline import Timeline, WallClock
from tests.support.engine_wire import Killed

Kind = Literal["hyperpod", "autoscaling", "ec2", "karpenter", "label", "eks"]
KINDS: tuple[Kind, ...] = ("hyperpod", "autoscaling", "ec2", "karpenter", "label", "eks")
OWN_NODE: Mapping[Kind, Literal["hyperpod", "eks"]] = {"label": "hyperpod", "eks": "eks"}
"""By kind that a node asks by its own Node: the kind of its provisioner."""
HOUR = 3600.0
EKS_LATEST_S = 1800.0
"""How long after a condition node auto-repair may act: 10 to 30 minutes."""
_ACTS = {
    "BatchRebootClusterNodes": Remedy.REBOOT_NODE,
    "BatchReplaceClusterNodes": Remedy.REPLACE_NODE,
    "RebootInstances": Remedy.REBOOT_NODE,
    "StopInstances": Remedy.REPLACE_NODE,
    "SetInstanceHealth": Remedy.REPLACE_NODE,
    "TerminateInstanceInAutoScalingGroup": Remedy.REPLACE_NODE,
}
_BY_LABEL = {
    "UnschedulablePendingReboot": Remedy.REBOOT_NODE,
    "UnschedulablePendingReplacement": Remedy.REPLACE_NODE,
}
_LIVE = frozenset({"pending", "running", "stopping", "stopped"})
_GROUP = "gpus"


class Instance(Struct, kw_only=True):
    """One machine. ``state``: EC2's word. ``asked``: what healthd asked for and the platform applied, in this boot."""

    id: str
    node: str
    launched: datetime
    state: str = "running"
    asked: list[Remedy] = field(default_factory=list)


class Refuses(Exception):
    """An error of AWS, by its code."""


class Room(Protocol):
    """The machines and their Nodes."""

    def act_begins(self, remedy: Remedy, instance: Instance) -> None:
        """Judge an act that healthd asked for and that is applied now."""

    def reboots(self, instance: Instance) -> None:
        """The machine reboots."""

    def goes_down(self, instance: Instance) -> None:
        """The machine ends or stops; its Node is there still."""

    def comes_up(self, instance: Instance) -> None:
        """A stopped machine runs again on other hardware, with its disk."""

    def leaves(self, instance: Instance) -> None:
        """Its Node is deleted."""

    def joins(self, instance: Instance) -> None:
        """A new machine registers."""

    def stands_still(self) -> None:
        """The process that called stands still, and others go on."""

    def has_node(self, name: str) -> bool:
        """Whether a Node has this name."""


class CloudPlatform:
    """``calm``: no call fails, and there is capacity. ``tried``: the instances whose reboot was called for, heard or
    not."""

    def __init__(
        self, kind: Kind, room: Room, *, server: Server, timeline: Timeline, wall: WallClock, random: Random
    ) -> None:
        self.kind, self._room, self._server, self._timeline, self._wall = kind, room, server, timeline, wall
        self._random, self.calm, self.instances = random, True, dict[str, Instance]()
        self.tried, self._unheard = set[str](), dict[str, Remedy]()
        self.acts = {Remedy.REBOOT_NODE: 0, Remedy.REPLACE_NODE: 0}
        self.outage_until_s, self.others, self._awaited = 0.0, 0, dict[str, str]()
        self.section = ProvisionerSection(
            kind="hyperpod" if kind == "label" else kind,
            act_from="controller",
            hyperpod=HyperpodSection(how="label" if kind == "label" else "api", cluster="c1"),
            autoscaling=AutoscalingSection(replace=random.choice(("terminate", "unhealthy"))),
            ec2=Ec2Section(stop_and_start="always"),
        )

    @property
    def summary(self) -> str:
        """What healthd asked for and was applied."""
        reboots, replaced = self.acts[Remedy.REBOOT_NODE], self.acts[Remedy.REPLACE_NODE]
        return f"{self.kind}: reboots {reboots}, replacements {replaced}, ended by others {self.others}"

    # -- what the fleet has of it -------------------------------------------------------------------------------------

    @property
    def labels(self) -> dict[str, str]:
        """Of a Node that registers."""
        return {HYPERPOD_LABEL: SCHEDULABLE} if self.kind == "label" else {}

    def launch(self, name: str = "") -> Instance:
        """A machine that is there from the beginning, or a successor; "": a name of its own."""
        number = f"i-{self._random.getrandbits(64):017x}"
        own = f"hyperpod-{number}" if self.kind in ("hyperpod", "label") else f"ip-10-0-0-{len(self.instances)}"
        made = Instance(id=number, node=name or own, launched=self._wall.now())
        self.instances[number] = made
        if self.kind == "karpenter":
            status = {"providerID": provider_id(made), "nodeName": made.node}
            meta = {"name": f"gpus-{number}", "finalizers": ["karpenter.sh/termination"]}
            self._server.put(ResourceKind.NODE_CLAIM, {"metadata": meta, "status": status}, by="karpenter")
        return made

    def of_node(self, name: str, instance: str, records: KubernetesOrchestrator) -> Provisioner:
        """The provisioner of a node's own agent: it asks the controller, or the platform by its own Node."""
        subject = TargetNode(node=name, here=False, instance_id=instance)
        if (own := OWN_NODE.get(self.kind)) is not None:
            return OwnNodeProvisioner(
                kind=own,
                subject=subject,
                node=records,
                read=records.read_record,
                hint="an operator",
                clock=self._wall.now,
            )
        inner = (
            KarpenterProvisioner(subject=subject, machine=str, claims=None)
            if self.kind == "karpenter"
            else open_for(self.section, subject, found_by_controller(self.section, lambda _: None), None, run=self.run)
        )
        return DelegatedProvisioner(
            inner=inner,
            instance_id=instance,
            read=records.read_record,
            write=records.write_record,
            clock=self._wall.now,
            monotonic_s=self._timeline,
        )

    def run(self, argv: Sequence[str], *, timeout_s: float, input: str, **_: Any) -> CommandResult:  # noqa: A002
        """One call, as the child process of production answers it."""
        question = json.loads(input)
        operation = question["operation"]
        is_act = operation in _ACTS and "DryRun" not in question["parameters"]
        if not is_act:  # the lead is checked right before an act
            self._stands_still()
        if _ACTS.get(operation) is Remedy.REBOOT_NODE:
            self.tried.update(question["parameters"].get("InstanceIds", ()) or question["parameters"]["NodeIds"])
        self._meets(operation, 8 if is_act else 1)
        try:
            reply: dict[str, Any] = {"answer": getattr(self, f"_{operation}")(question["parameters"])}
        except Refuses as error:
            reply = {"trouble": trouble_of(str(error), 400), "code": str(error), "message": "simulated"}
        self._meets(operation, 8 if is_act else 1)
        self._stands_still()
        return CommandResult(argv=tuple(argv), code=0, stdout=json.dumps(reply), stderr="", duration_s=timeout_s / 100)

    def claim_deleted(self, claim: Mapping[str, Any]) -> None:
        """A NodeClaim gets its deletionTimestamp: Karpenter drains the machine and ends it."""
        instance = self.instances[claim["metadata"]["name"].removeprefix("gpus-")]
        self._ends(instance, by_healthd=True)

    def node_written(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """A Node has another label or condition, which the platform reads."""
        was, now = node_of(before), node_of(after)
        if self.kind == "label" and now.labels.get(HYPERPOD_LABEL) != was.labels.get(HYPERPOD_LABEL):
            remedy = _BY_LABEL.get(now.labels.get(HYPERPOD_LABEL, ""))
            if remedy is not None:
                self._acts_by_node(self._behind(now.name), remedy, self._random.uniform(20.0, 300.0))
        shown, shown_before = now.condition(EKS_CONDITION), was.condition(EKS_CONDITION)
        if self.kind == "eks" and shown is not None and shown.status == "False" and shown != shown_before:
            wait_s = self._random.uniform(EKS_WAITS.total_seconds(), EKS_LATEST_S)
            self._timeline.after(wait_s, lambda: self._condition_lasted(self._behind(now.name), shown))

    def _condition_lasted(self, instance: Instance | None, shown: Condition) -> None:
        if instance is None or not self._room.has_node(instance.node):
            return
        node = node_of(self._server.objects[ResourceKind.NODE, instance.node])
        if node.condition(EKS_CONDITION) != shown:
            return
        number = int(shown.reason.removeprefix("NvidiaXID").removesuffix("Error"))
        self._acts_by_node(instance, Remedy.REPLACE_NODE if number in EKS_REPLACES else Remedy.REBOOT_NODE, 1.0)

    def _behind(self, name: str) -> Instance | None:
        return next((each for each in self.instances.values() if each.node == name and each.state == "running"), None)

    def _acts_by_node(self, instance: Instance | None, remedy: Remedy, after_s: float) -> None:
        """It answers no call, and throttles none; a few requests it never carries out."""
        if instance is None:
            return
        self._room.act_begins(remedy, instance)
        self.acts[remedy] += 1
        instance.asked.append(remedy)
        if remedy is Remedy.REBOOT_NODE:
            self.tried.add(instance.id)
        if not self.calm and self._random.random() < 0.03:
            self._unheard[instance.id] = remedy
        else:
            self._carries_out(instance, remedy, after_s)

    def _carries_out(self, instance: Instance, remedy: Remedy, after_s: float) -> None:
        if remedy is Remedy.REPLACE_NODE:
            self._ends(instance, by_healthd=False)
            return
        self._timeline.after(after_s, lambda: self._room.reboots(instance))
        self._timeline.after(after_s + self._random.uniform(400.0, 700.0), lambda: self._schedulable(instance))

    def _schedulable(self, instance: Instance) -> None:
        """HyperPod sets its label back after the reboot."""
        if self.kind == "label" and instance.state == "running" and self._room.has_node(instance.node):
            body = {"metadata": {"labels": self.labels}}
            self._server.change(ResourceKind.NODE, instance.node, body, by="hyperpod")

    def someone_else_ends(self, name: str) -> None:
        """An instance ends that healthd did not ask for."""
        for instance in self.instances.values():
            if instance.node == name and instance.state == "running" and self.kind != "ec2":
                self.others += 1
                self._ends(instance, by_healthd=False)

    def settle(self) -> None:
        """There is capacity again, and every call is answered."""
        self.calm = True
        for ended in tuple(self._awaited):
            self._arrives(ended)
        for number, remedy in self._unheard.items():
            if self.instances[number].state == "running":
                self._carries_out(self.instances[number], remedy, 1.0)

    # -- what happens to machines -------------------------------------------------------------------------------------

    def _meets(self, operation: str, times: int) -> None:
        if self.calm:
            return
        chance = self._random.random() / times
        if self._timeline.s < self.outage_until_s or chance < 0.015:
            raise SourceTimeout(f"{operation}: no answer within 20 s")
        if chance < 0.0165:
            raise Killed

    def _stands_still(self) -> None:
        if not self.calm and self._random.random() < 0.01:
            self._room.stands_still()

    def _asked(self, remedy: Remedy, number: str) -> Instance:
        if not self.calm and self._random.random() < 0.05:
            raise Refuses("ThrottlingException")
        instance = self._known(number)
        self._room.act_begins(remedy, instance)
        self.acts[remedy] += 1
        instance.asked.append(remedy)
        return instance

    def _known(self, number: str) -> Instance:
        if number not in self.instances or self.instances[number].state not in _LIVE:
            raise Refuses("InvalidInstanceID.NotFound")
        return self.instances[number]

    def _reboot(self, number: str) -> None:
        instance = self._asked(Remedy.REBOOT_NODE, number)
        if self.calm or self._random.random() > 0.03:  # else it is acknowledged and never carried out
            self._timeline.after(self._random.uniform(1.0, 90.0), lambda: self._room.reboots(instance))

    def _ends(self, instance: Instance, *, by_healthd: bool) -> None:
        if by_healthd and self.kind == "karpenter":
            self._room.act_begins(Remedy.REPLACE_NODE, instance)
            self.acts[Remedy.REPLACE_NODE] += 1
        instance.state = "shutting-down"
        self._timeline.after(self._random.uniform(5.0, 60.0), lambda: self._ended(instance))

    def _ended(self, instance: Instance) -> None:
        instance.state = "terminated"
        self._room.goes_down(instance)
        self._timeline.after(self._random.uniform(40.0, 400.0), lambda: self._left(instance))

    def _left(self, instance: Instance) -> None:
        """The node controller of the cloud deletes the Node, and a successor is launched."""
        self._room.leaves(instance)
        if self.kind == "karpenter":
            self._server.drop(ResourceKind.NODE_CLAIM, f"gpus-{instance.id}", by="karpenter")
        same = self.kind == "autoscaling" and self._random.random() < 0.4
        self._awaited[instance.id], chance = instance.node if same else "", self._random.random()
        if chance < 0.1 and not self.calm:
            return  # there is no capacity until the fleet settles
        long = chance < 0.25 and not self.calm
        wait_s = self._random.uniform(HOUR, 3 * HOUR) if long else self._random.uniform(10.0, 900.0)
        self._timeline.after(wait_s, lambda: self._arrives(instance.id))

    def _arrives(self, ended: str) -> None:
        if ended not in self._awaited:
            return
        name = self._awaited.pop(ended)
        self._room.joins(self.launch(name if name and not self._room.has_node(name) else ""))

    # -- SageMaker ----------------------------------------------------------------------------------------------------

    def _BatchRebootClusterNodes(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802 - AWS's own words
        return self._batch(asked, self._reboot)

    def _BatchReplaceClusterNodes(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        return self._batch(asked, lambda number: self._ends(self._asked(Remedy.REPLACE_NODE, number), by_healthd=True))

    def _batch(self, asked: Mapping[str, Any], act: Callable[[str], None]) -> Mapping[str, Any]:
        (number,) = asked["NodeIds"]
        known = self.instances.get(number)
        if known is None or known.state not in ("running", "shutting-down"):
            return {"Failed": [{"NodeId": number, "ErrorCode": "InstanceIdNotFound", "Message": ""}]}
        if known.state == "shutting-down":
            return {"Failed": [{"NodeId": number, "ErrorCode": "InstanceIdInUse", "Message": ""}]}
        act(number)
        if not self.calm and self._random.random() < 0.05:
            return {"Failed": [{"NodeId": number, "ErrorCode": "InternalServerError", "Message": ""}]}
        return {"Successful": [number]}

    def _DescribeClusterNode(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        known = self.instances.get(asked["NodeId"])
        if known is None or known.state == "terminated":
            raise Refuses("ResourceNotFound")
        status = "Running" if known.state == "running" else "ShuttingDown"
        return {"NodeDetails": {"InstanceStatus": {"Status": status}, "PrivateDnsHostname": known.node}}

    # -- EC2 ----------------------------------------------------------------------------------------------------------

    def _RebootInstances(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        self._reboot(asked["InstanceIds"][0])
        return {}

    def _DescribeInstances(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        (number,) = asked["InstanceIds"]
        if number not in self.instances:
            raise Refuses("InvalidInstanceID.NotFound")
        known = self.instances[number]
        shown = {"InstanceId": number, "State": {"Name": known.state}, "LaunchTime": f"{known.launched:%FT%T+00:00}"}
        return {"Reservations": [{"Instances": [shown]}]}

    def _DescribeInstanceStatus(self, _: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        return {"InstanceStatuses": []}

    def _StopInstances(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        instance = self._asked(Remedy.REPLACE_NODE, asked["InstanceIds"][0])
        instance.state = "stopping"
        self._timeline.after(self._random.uniform(5.0, 30.0), lambda: self._room.goes_down(instance))
        self._timeline.after(self._random.uniform(30.0, 200.0), lambda: _turn(instance, "stopped"))
        return {}

    def _StartInstances(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        if asked.get("DryRun"):
            raise Refuses("DryRunOperation")
        instance = self._known(asked["InstanceIds"][0])
        if instance.state in ("running", "pending"):
            return {}
        if instance.state != "stopped":
            raise Refuses("IncorrectInstanceState")
        if not self.calm and self._random.random() < 0.3:
            raise Refuses("InsufficientInstanceCapacity")
        instance.state, instance.launched = "pending", self._wall.now()
        instance.asked.clear()
        self._timeline.after(self._random.uniform(60.0, 300.0), lambda: self._started(instance))
        return {}

    def _started(self, instance: Instance) -> None:
        instance.state = "running"
        self._room.comes_up(instance)

    # -- Auto Scaling -------------------------------------------------------------------------------------------------

    def _TerminateInstanceInAutoScalingGroup(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        if asked["ShouldDecrementDesiredCapacity"]:
            raise Refuses("ValidationError")
        self._of_group(asked["InstanceId"])
        return {}

    def _SetInstanceHealth(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        self._of_group(asked["InstanceId"])
        return {}

    def _of_group(self, number: str) -> None:
        if self._known(number).state != "running":
            raise Refuses("ScalingActivityInProgress")
        self._ends(self._asked(Remedy.REPLACE_NODE, number), by_healthd=True)

    def _DescribeAutoScalingInstances(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        known = [self.instances[each] for each in asked["InstanceIds"] if each in self.instances]
        return {"AutoScalingInstances": [_member(each) for each in known if each.state != "terminated"]}

    def _DescribeAutoScalingGroups(self, _: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        known = [_member(each) for each in self.instances.values() if each.state != "terminated"]
        return {"AutoScalingGroups": [{"Instances": known, "DesiredCapacity": len(known), "SuspendedProcesses": []}]}

    def _DescribeScalingActivities(self, _: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: N802
        failed = {"Description": "Launching a new EC2 instance", "StatusCode": "Failed", "StatusMessage": "no capacity"}
        return {"Activities": [failed] if self._awaited else []}


def provider_id(instance: Instance) -> str:
    """As the cloud's node controller writes it."""
    return f"aws:///us-west-2a/{instance.id}"


def _turn(instance: Instance, state: str) -> None:
    instance.state = state


def _member(instance: Instance) -> dict[str, str]:
    state = "InService" if instance.state == "running" else "Terminating"
    health = "Healthy" if instance.state == "running" else "Unhealthy"
    return {
        "InstanceId": instance.id,
        "AutoScalingGroupName": _GROUP,
        "LifecycleState": state,
        "HealthStatus": health,
    }
