"""What reboots or replaces a machine, as it is configured: ``[provisioner]`` and the sections below it.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from healthd.config.kinds import AbsolutePath, MaybeUrl

CallSeconds = Annotated[float, Meta(ge=5, le=300, description="seconds, from 5 to 300")]
LookSeconds = Annotated[float, Meta(ge=0.1, le=300, description="seconds, from 0.1 to 300")]
Region = Annotated[str, Meta(pattern=r"^([a-z]{2}[a-z0-9-]*-[0-9])?\Z", description='such as us-west-2, or ""')]
Cluster = Annotated[
    str, Meta(pattern=r"^(arn:[a-z0-9-]+:sagemaker:\S+|[A-Za-z0-9-]*)\Z", description='a cluster\'s name or ARN, or ""')
]
GroupName = Annotated[str, Meta(pattern=r"^[^\n]{0,255}\Z", description='the name of an Auto Scaling group, or ""')]


@dataclass(frozen=True, kw_only=True)
class LocalProvisionerSection:
    """Repair by commands of this machine."""

    reboot_command: tuple[str, ...] = ()
    """The command that reboots the machine, one list element per argument, run without a shell, such as
    ``["systemctl", "reboot"]``. Empty: no reboot can be carried out, so that installing healthd never reboots."""


@dataclass(frozen=True, kw_only=True)
class AwsSection:
    """How AWS is reached, by every kind that calls it. Credentials are boto3's own business."""

    region: Region = ""
    """The region. Empty: from the platform's own files, else the instance metadata service, else boto3's own search."""

    endpoint_url: MaybeUrl = ""
    """Where all calls go instead of AWS's own addresses: a VPC endpoint or a test. Empty: AWS, or what AWS_ENDPOINT_URL
    says."""

    timeout_s: CallSeconds = 20.0
    """Deadline of one call, in seconds, with its retries. What has not been answered by then may have been applied: it
    is never asked a second time, its effect is looked for."""

    look_s: LookSeconds = 30.0
    """How often a node that waits for its platform asks AWS how far that is, in seconds. The calls of all nodes count
    against one limit of the account."""


@dataclass(frozen=True, kw_only=True)
class HyperpodSection:
    """SageMaker HyperPod."""

    how: Literal["scontrol", "api", "label"] = "scontrol"
    """``scontrol``: the reasons ``Action:Reboot`` and ``Action:Replace``, which HyperPod acts upon; no IAM right is
    needed. ``api``: BatchRebootClusterNodes and BatchReplaceClusterNodes. Slurm's way by default, because IAM cannot
    limit a node's role to the node itself: a role that may replace one node may replace the whole cluster. healthd's
    controller always uses the API. ``label``: on Kubernetes, the label
    ``sagemaker.amazonaws.com/node-health-status`` of the node itself, written by its own agent; no IAM right is needed,
    and HyperPod acts upon it only where the cluster's NodeRecovery is Automatic."""

    cluster: Cluster = ""
    """The cluster's name or ARN. Empty: as the file below says."""

    resource_config: AbsolutePath = "/opt/ml/config/resource_config.json"
    """The file that tells a node its cluster. It is not trusted for who the node is: it goes stale with the first
    replacement."""


@dataclass(frozen=True, kw_only=True)
class AutoscalingSection:
    """EC2 Auto Scaling."""

    replace: Literal["terminate", "unhealthy"] = "terminate"
    """``terminate``: TerminateInstanceInAutoScalingGroup, which launches a substitute at once. ``unhealthy``: the soft
    way, SetInstanceHealth; the group replaces it in its own time, with its own hooks and policies."""

    group: GroupName = ""
    """The group whose newest instance takes the place of one that is gone. Empty: the group that the instance was in.
    Only healthd's controller needs it, and only where it was restarted in the middle of a replacement."""


@dataclass(frozen=True, kw_only=True)
class Ec2Section:
    """An instance that nobody manages."""

    stop_and_start: Literal["never", "reserved", "always"] = "never"
    """Whether a replacement may be made by stopping the instance and starting it again, which moves it to another host
    and loses all data on its instance store. ``reserved``: only where an On-Demand Capacity Reservation keeps its
    place; ``always``: also where EC2 may have no capacity when it is to start again. Never by default: it loses data.
    Only healthd's controller can do it, since a stopped node cannot start itself; never for instances of a Capacity
    Block, of an Auto Scaling group, of Spot, or on a Dedicated Host."""


@dataclass(frozen=True, kw_only=True)
class ProvisionerSection:
    """What reboots or replaces the machine behind the node."""

    kind: Literal[
        "none", "local", "auto", "hyperpod", "parallelcluster", "pcs", "autoscaling", "ec2", "karpenter", "eks"
    ] = "none"
    """``none``: no repair can be carried out, and a fault that needs one pages. ``local``: the commands below.
    ``auto``: the platform of AWS that this node turns out to be of; the others name it. ``karpenter``, also for EKS
    Auto Mode: healthd's controller deletes the NodeClaim. ``eks``: node auto-repair, asked by the node's own condition
    ``AcceleratedHardwareReady``; for a managed node group where it is on, or Karpenter with its NodeRepair, and
    eks-node-monitoring-agent is not installed. A node group's answer depends on the finding: another machine for XID
    64, 74, 79, 119, 120, 142 and 151, a reboot for some others, nothing for the rest. Karpenter's answer is another
    machine, whatever was found, and no reboot is asked for there. None by default, because a reboot must be asked for
    by name."""

    act_from: Literal["node", "controller"] = "node"
    """Who calls AWS. ``node``: healthd on the node itself, whose role then needs the rights in packaging/iam.
    ``controller``: the node leaves a request with the cluster, and ``healthd controller`` on the head node acts, so
    that nodes need no right at all. It is for what is done by an API: ``autoscaling``, ``ec2``, and ``hyperpod`` with
    ``how = "api"``. What is done through Slurm (``parallelcluster``, ``pcs``, ``hyperpod`` with ``how = "scontrol"``)
    is done on the node either way, and so is what a node of Kubernetes asks by its own Node (``eks``, ``hyperpod`` with
    ``how = "label"``). From the node by default: it needs one daemon less."""

    local: LocalProvisionerSection = field(default_factory=LocalProvisionerSection)
    """Read where the kind is ``local``."""

    aws: AwsSection = field(default_factory=AwsSection)
    """Read where the kind is, or turns out to be, a platform of AWS."""

    hyperpod: HyperpodSection = field(default_factory=HyperpodSection)
    """Read where the kind is, or turns out to be, ``hyperpod``."""

    autoscaling: AutoscalingSection = field(default_factory=AutoscalingSection)
    """Read where the kind is, or turns out to be, ``autoscaling``."""

    ec2: Ec2Section = field(default_factory=Ec2Section)
    """Read where the kind is, or turns out to be, ``ec2``."""
