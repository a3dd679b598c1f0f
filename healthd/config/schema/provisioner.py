"""The settings of the provisioner, which reboots or replaces a machine: ``[provisioner]`` and the sections below it.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from healthd.config.value_types import MaybeUrl
from healthd.core.setting_types import AbsolutePath

CallSeconds = Annotated[float, Meta(ge=5, le=300, description="seconds, from 5 to 300")]
PollSeconds = Annotated[float, Meta(ge=0.1, le=300, description="seconds, from 0.1 to 300")]
Region = Annotated[str, Meta(pattern=r"^([a-z]{2}[a-z0-9-]*-[0-9])?\Z", description='such as us-west-2, or ""')]
Cluster = Annotated[
    str, Meta(pattern=r"^(arn:[a-z0-9-]+:sagemaker:\S+|[A-Za-z0-9-]*)\Z", description='a cluster\'s name or ARN, or ""')
]
GroupName = Annotated[str, Meta(pattern=r"^[^\n]{0,255}\Z", description='the name of an Auto Scaling group, or ""')]


class LocalProvisionerSection(Struct, frozen=True, kw_only=True):
    """Repair by commands of this machine."""

    reboot_command: tuple[str, ...] = ()
    """The command that reboots the machine, one list element per argument, run without a shell, such as
    ``["systemctl", "reboot"]``. Empty: healthd cannot reboot, so that installing it never does."""


class AwsSection(Struct, frozen=True, kw_only=True):
    """Access to AWS, for every kind that calls it. boto3 finds the credentials itself."""

    region: Region = ""
    """The region. Empty: from the platform's own files, else the instance metadata service, else boto3's own search."""

    endpoint_url: MaybeUrl = ""
    """The endpoint of all calls instead of AWS's own: a VPC endpoint or a test. Empty: AWS, or AWS_ENDPOINT_URL."""

    timeout_s: CallSeconds = 20.0
    """Deadline of one call, in seconds, with its retries. A call that is not answered by then may have been applied:
    healthd never repeats it, and polls for its effect."""

    poll_s: PollSeconds = 30.0
    """How often a node that waits for its platform polls AWS, in seconds. The calls of all nodes count against one
    limit of the account."""


class HyperpodSection(Struct, frozen=True, kw_only=True):
    """SageMaker HyperPod."""

    how: Literal["scontrol", "api", "label"] = "scontrol"
    """``scontrol``: the reasons ``Action:Reboot`` and ``Action:Replace``, which HyperPod acts upon; it needs no IAM
    right. ``api``: BatchRebootClusterNodes and BatchReplaceClusterNodes. Slurm's way by default, because IAM cannot
    limit a node's role to the node itself: a role that may replace one node may replace the whole cluster. healthd's
    controller always uses the API. ``label``: on Kubernetes, the label ``sagemaker.amazonaws.com/node-health-status``
    of the node itself, written by its own agent; it needs no IAM right, and HyperPod acts upon it only where the
    cluster's NodeRecovery is Automatic."""
    cluster: Cluster = ""
    """The cluster's name or ARN. Empty: the name in the file below."""

    resource_config: AbsolutePath = "/opt/ml/config/resource_config.json"
    """The file with the name of a node's cluster. healthd does not take the node's own identity from it: that is out of
    date after the first replacement."""


class AutoscalingSection(Struct, frozen=True, kw_only=True):
    """EC2 Auto Scaling."""

    replace: Literal["terminate", "unhealthy"] = "terminate"
    """``terminate``: TerminateInstanceInAutoScalingGroup, which launches another instance at once. ``unhealthy``:
    SetInstanceHealth; the group replaces the instance in its own time, with its own hooks and policies."""

    group: GroupName = ""
    """The group whose newest instance replaces one that is gone. Empty: the group of the old instance. Only healthd's
    controller needs it, and only after a restart in the middle of a replacement."""


class Ec2Section(Struct, frozen=True, kw_only=True):
    """An EC2 instance without a managing service."""

    stop_and_start: Literal["never", "reserved", "always"] = "never"
    """Whether healthd may replace the machine by a stop and start of the instance, which moves it to another host and
    loses all data on its instance store. ``reserved``: only where an On-Demand Capacity Reservation keeps the capacity;
    ``always``: also where EC2 may have no capacity for the start. Never by default: it loses data. Only healthd's
    controller can do it, since a stopped node cannot start itself; never for instances of a Capacity Block, of an Auto
    Scaling group, of Spot, or on a Dedicated Host."""


class ProvisionerSection(Struct, frozen=True, kw_only=True):
    """The provisioner, which reboots or replaces the machine of the node."""

    kind: Literal[
        "none", "local", "auto", "hyperpod", "parallelcluster", "pcs", "autoscaling", "ec2", "karpenter", "eks"
    ] = "none"
    """``none``: healthd cannot repair, and pages for a fault that needs it. ``local``: the commands below. ``auto``:
    the platform of AWS that healthd detects; the others name it. ``karpenter``, also for EKS Auto Mode: healthd's
    controller deletes the NodeClaim. ``eks``: node auto-repair, requested by the node's own condition
    ``AcceleratedHardwareReady``; for a managed node group where it is on, or Karpenter with its NodeRepair, and without
    eks-node-monitoring-agent. A node group replaces the machine for XID 64, 74, 79, 119, 120, 142 and 151, reboots it
    for some others, and ignores the rest. Karpenter replaces the machine for any finding, so healthd requests no reboot
    there. None by default: you must name the platform before healthd reboots a node."""

    act_from: Literal["node", "controller"] = "node"
    """The process that calls AWS. ``node``: healthd on the node itself, whose role then needs the rights in
    packaging/iam. ``controller``: the node leaves a request with the cluster, and ``healthd controller`` on the head
    node acts, so that nodes need no rights. Use it for kinds that act by an API: ``autoscaling``, ``ec2``, and
    ``hyperpod`` with ``how = "api"``. Kinds that act through Slurm (``parallelcluster``, ``pcs``, ``hyperpod`` with
    ``how = "scontrol"``) always act from the node, and so do those that use the node's own Kubernetes Node (``eks``,
    ``hyperpod`` with ``how = "label"``). From the node by default: it needs one daemon less."""

    local: LocalProvisionerSection = field(default_factory=LocalProvisionerSection)
    """Settings of the kind ``local``."""

    aws: AwsSection = field(default_factory=AwsSection)
    """Settings of every kind that is a platform of AWS, also by ``auto``."""

    hyperpod: HyperpodSection = field(default_factory=HyperpodSection)
    """Settings of the kind ``hyperpod``, also by ``auto``."""

    autoscaling: AutoscalingSection = field(default_factory=AutoscalingSection)
    """Settings of the kind ``autoscaling``, also by ``auto``."""

    ec2: Ec2Section = field(default_factory=Ec2Section)
    """Settings of the kind ``ec2``, also by ``auto``."""
