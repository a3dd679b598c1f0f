"""Every call to AWS that healthd can make: the one table, and the only door. What is not in it, the child refuses.

packaging/iam/*.json and docs/reference/aws-calls.md are made from it (see ``iam``). A call that shrinks a group of
nodes has no row here, and must never get one: BatchDeleteClusterNodes, TerminateInstances.

Operations and their shapes: botocore's service models, which a test compares. What IAM can limit each to follows the
example policies in the user guides of HyperPod, EC2 and EC2 Auto Scaling (2026); none of it was tried on AWS.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class Way(StrEnum):
    """Who makes the call: the agent on the node itself, or ``healthd controller`` for all nodes."""

    NODE = "node"
    CONTROLLER = "controller"


class Platform(StrEnum):
    """The platforms of AWS, by the names that ``[provisioner] kind`` has for them."""

    HYPERPOD = "hyperpod"
    PARALLELCLUSTER = "parallelcluster"
    PCS = "pcs"
    AUTOSCALING = "autoscaling"
    EC2 = "ec2"


class IamScope(Enum):
    """What IAM can limit a call to."""

    CLUSTER = "the HyperPod cluster"
    INSTANCE = "instances tagged healthd:managed=true; on a node, itself alone"
    GROUP = "Auto Scaling groups tagged healthd:managed=true"
    NODE_GROUP = "EKS managed node groups"
    ANY = "nothing: IAM knows no narrower resource for it"


@dataclass(frozen=True, kw_only=True, slots=True)
class AwsCall:
    """One operation. ``acts``: it changes something. ``dry_run``: EC2 can be asked whether it would do it.

    ``whole``: its answer is wanted with all its pages; else the first page is enough. ``page``: how many are asked for
    at once, 0 for as many as the service likes.
    """

    service: str
    operation: str
    why: str
    scope: IamScope
    uses: frozenset[tuple[Platform, Way]]
    acts: bool = False
    dry_run: bool = False
    whole: bool = False
    page: int = 0

    @property
    def action(self) -> str:
        """The IAM action that allows it. For all calls here it has the operation's own name."""
        return f"{self.service}:{self.operation}"


def _everywhere(*platforms: Platform) -> frozenset[tuple[Platform, Way]]:
    return frozenset((platform, way) for platform in platforms for way in Way)


_HYPERPOD = _everywhere(Platform.HYPERPOD)
_GROUP = _everywhere(Platform.AUTOSCALING)
_GROUP_FROM_ELSEWHERE = (Platform.AUTOSCALING, Way.CONTROLLER)
_STOP_AND_START = frozenset({(Platform.EC2, Way.CONTROLLER)})

CALLS: tuple[AwsCall, ...] = (
    AwsCall(
        service="sagemaker",
        operation="BatchRebootClusterNodes",
        why="reboot a node of HyperPod, with how = api",
        scope=IamScope.CLUSTER,
        uses=_HYPERPOD,
        acts=True,
    ),
    AwsCall(
        service="sagemaker",
        operation="BatchReplaceClusterNodes",
        why="replace a node of HyperPod, with how = api",
        scope=IamScope.CLUSTER,
        uses=_HYPERPOD,
        acts=True,
    ),
    AwsCall(
        service="sagemaker",
        operation="DescribeCluster",
        why="on EKS, whether HyperPod acts on a node that its label calls unhealthy (NodeRecovery)",
        scope=IamScope.CLUSTER,
        uses=frozenset({(Platform.HYPERPOD, Way.CONTROLLER)}),
    ),
    AwsCall(
        service="sagemaker",
        operation="DescribeClusterNode",
        why="whether our own instance is still the one behind the node's name, and what HyperPod does with it",
        scope=IamScope.CLUSTER,
        uses=_HYPERPOD,
    ),
    AwsCall(
        service="sagemaker",
        operation="ListClusterNodes",
        why="the instance behind a node's name, and its status while it is replaced",
        scope=IamScope.CLUSTER,
        uses=_HYPERPOD,
        whole=True,
        page=100,
    ),
    AwsCall(
        service="ec2",
        operation="DescribeInstances",
        why="the instance behind a node's name, its state, and who manages it",
        scope=IamScope.ANY,
        uses=_everywhere(Platform.PARALLELCLUSTER, Platform.PCS, Platform.EC2) | {_GROUP_FROM_ELSEWHERE},
        whole=True,
    ),
    AwsCall(
        service="ec2",
        operation="DescribeInstanceStatus",
        why="what EC2's own checks say of an instance that was rebooted or started",
        scope=IamScope.ANY,
        uses=_everywhere(Platform.EC2),
    ),
    AwsCall(
        service="ec2",
        operation="RebootInstances",
        why="reboot: same host, same id, instance store kept",
        scope=IamScope.INSTANCE,
        uses=_everywhere(Platform.AUTOSCALING, Platform.EC2),
        acts=True,
        dry_run=True,
    ),
    AwsCall(
        service="ec2",
        operation="StopInstances",
        why="first half of a move to another host, with stop_and_start",
        scope=IamScope.INSTANCE,
        uses=_STOP_AND_START,
        acts=True,
        dry_run=True,
    ),
    AwsCall(
        service="ec2",
        operation="StartInstances",
        why="second half of a move to another host, with stop_and_start",
        scope=IamScope.INSTANCE,
        uses=_STOP_AND_START,
        acts=True,
        dry_run=True,
    ),
    AwsCall(
        service="ec2",
        operation="DescribeCapacityReservations",
        why="whether a place is kept for an instance that is to be stopped",
        scope=IamScope.ANY,
        uses=_STOP_AND_START,
    ),
    AwsCall(
        service="autoscaling",
        operation="DescribeAutoScalingInstances",
        why="whether an instance belongs to a group, and what the group does with it",
        scope=IamScope.ANY,
        uses=_GROUP | {(Platform.EC2, Way.NODE)},
    ),
    AwsCall(
        service="autoscaling",
        operation="DescribeAutoScalingGroups",
        why="whether the group could launch a substitute, and whether it has",
        scope=IamScope.ANY,
        uses=_GROUP,
    ),
    AwsCall(
        service="autoscaling",
        operation="DescribeScalingActivities",
        why="why a substitute has not come yet, such as no capacity",
        scope=IamScope.ANY,
        uses=_GROUP,
    ),
    AwsCall(
        service="eks",
        operation="DescribeNodegroup",
        why="whether EKS repairs the nodes of this group itself; asked of groups that EKS tagged as its own",
        scope=IamScope.NODE_GROUP,
        uses=_GROUP,
    ),
    AwsCall(
        service="autoscaling",
        operation="TerminateInstanceInAutoScalingGroup",
        why="replace, without taking away from the group's size",
        scope=IamScope.GROUP,
        uses=_GROUP,
        acts=True,
    ),
    AwsCall(
        service="autoscaling",
        operation="SetInstanceHealth",
        why="replace in the group's own time, with replace = unhealthy",
        scope=IamScope.GROUP,
        uses=_GROUP,
        acts=True,
    ),
)


def find_call(service: str, operation: str) -> AwsCall | None:
    """The row of an operation, or None where healthd must not make that call."""
    return next((call for call in CALLS if (call.service, call.operation) == (service, operation)), None)
