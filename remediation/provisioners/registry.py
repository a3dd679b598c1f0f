"""The kinds of provisioners: one row each, by the names that ``[provisioner] kind`` has for them.

A row says what a kind is and how it is built; ``from_config`` opens it on the node or for the controller. A new kind is
a row here, and its name in ``[provisioner] kind``. ``auto`` is no kind: healthd finds out the kind of each node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from healthd.config.schema.provisioner import ProvisionerSection
from healthd.core.errors import ConfigError
from healthd.remediation.ports import Provisioner
from healthd.remediation.provisioners.autoscaling import AutoScalingProvisioner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.remediation.provisioners.detect import (
    PARALLELCLUSTER_TAG,
    PCS_TAG,
    DetectedPlatform,
    hyperpod,
    parallelcluster,
)
from healthd.remediation.provisioners.ec2 import Ec2Provisioner
from healthd.remediation.provisioners.hyperpod import HyperPodProvisioner
from healthd.remediation.provisioners.slurm_managed import SlurmManagedProvisioner
from healthd.remediation.provisioners.slurm_node import Scontrol, read_node
from healthd.remediation.provisioners.target_node import TargetNode


class RepairChannel(Enum):
    """How healthd asks the owner of a machine for a repair."""

    COMMAND = "by a command of the machine itself"
    SLURM = "by a state and reason that scontrol sets, which the platform acts upon"
    API = "by an API of AWS"
    OWN_NODE = "by a label or condition that a node of Kubernetes sets on its own Node"
    NODE_CLAIM = "by deleting the node's NodeClaim"


class PlatformInputs(Struct, frozen=True, kw_only=True):
    """The inputs of a provisioner of AWS. ``made_by_us``, ``label``: see HyperPodProvisioner."""

    section: ProvisionerSection
    subject: TargetNode
    found: DetectedPlatform
    aws: Aws
    scontrol: Scontrol | None
    made_by_us: Callable[[str], bool] | None = None
    label: Callable[[], str] | None = None


class ProvisionerKind(Struct, frozen=True, kw_only=True):
    """One kind. ``title``: its name in sentences. ``channel``: how its owner is asked; ``by_how``: the channel for each
    value of ``[provisioner.hyperpod] how``.

    ``build``: makes the provisioner of a platform of AWS; None for another kind. ``files``: detects the platform by its
    files on a node, from the root and resource_config's path. ``drain_replaces``: any drain is a replacement there.
    ``hint``: the operator's next step where a Node's request has no result.
    """

    title: str
    channel: RepairChannel
    by_how: Mapping[str, RepairChannel] = field(default_factory=dict)
    build: Callable[[PlatformInputs], Provisioner] | None = None
    files: Callable[[Path, str], DetectedPlatform | None] | None = None
    drain_replaces: bool = False
    hint: str = ""

    @property
    def needs_slurm(self) -> bool:
        """Whether only Slurm clusters can have it."""
        return self.channel is RepairChannel.SLURM and not self.by_how

    def channel_of(self, section: ProvisionerSection) -> RepairChannel:
        """How its owner is asked under this configuration."""
        return self.by_how.get(section.hyperpod.how, self.channel)

    def orchestrator_of(self, section: ProvisionerSection) -> str:
        """The one kind of orchestrator whose nodes can have it under this configuration; "" where several can."""
        if self.needs_slurm:
            return "slurm"
        on_kubernetes = self.channel_of(section) in (RepairChannel.OWN_NODE, RepairChannel.NODE_CLAIM)
        return "kubernetes" if on_kubernetes else ""


def _hyperpod(wanted: PlatformInputs) -> Provisioner:
    by_api = wanted.section.hyperpod.how == "api" or not wanted.subject.here or wanted.scontrol is None
    return HyperPodProvisioner(
        subject=wanted.subject,
        aws=wanted.aws,
        cluster=wanted.section.hyperpod.cluster or wanted.found.cluster,
        scontrol=wanted.scontrol,
        by_api=by_api,
        made_by_us=wanted.made_by_us,
        label=wanted.label,
        fixed=wanted.found.fixed,
    )


def _slurm_managed(wanted: PlatformInputs, *, kind: str, manager: str, tag: str) -> Provisioner:
    if wanted.scontrol is None:
        raise ConfigError((f"provisioner.kind = {kind} needs Slurm: set [orchestrator] kind = slurm",))
    return SlurmManagedProvisioner(
        kind=kind,
        manager=manager,
        subject=wanted.subject,
        aws=wanted.aws,
        scontrol=wanted.scontrol,
        tag=(tag, wanted.found.cluster) if wanted.found.cluster else None,
        fixed=wanted.found.fixed,
    )


def _autoscaling(wanted: PlatformInputs) -> Provisioner:
    return AutoScalingProvisioner(
        subject=wanted.subject,
        aws=wanted.aws,
        how=wanted.section.autoscaling.replace,
        group=wanted.section.autoscaling.group or wanted.found.group,
        address=_address(wanted.subject.node, wanted.scontrol),
    )


def _ec2(wanted: PlatformInputs) -> Provisioner:
    return Ec2Provisioner(
        subject=wanted.subject,
        aws=wanted.aws,
        stop_and_start=wanted.section.ec2.stop_and_start,
        address=_address(wanted.subject.node, wanted.scontrol),
    )


def _address(node: str, scontrol: Scontrol | None) -> Callable[[], str] | None:
    """The node's address in Slurm, where Slurm runs it; else None: the node's name must contain it."""
    return None if scontrol is None else partial(_address_of, node, scontrol)


def _address_of(node: str, scontrol: Scontrol) -> str:
    return read_node(scontrol, node).address or node


KINDS: Mapping[str, ProvisionerKind] = {
    "none": ProvisionerKind(title="nobody", channel=RepairChannel.COMMAND),
    "local": ProvisionerKind(title="the machine itself", channel=RepairChannel.COMMAND),
    "hyperpod": ProvisionerKind(
        title="SageMaker HyperPod",
        channel=RepairChannel.SLURM,
        by_how={"api": RepairChannel.API, "label": RepairChannel.OWN_NODE},
        build=_hyperpod,
        files=lambda root, resource_config: hyperpod(root / resource_config.lstrip("/")),
        hint="check that the cluster's NodeRecovery is Automatic (aws sagemaker describe-cluster)",
    ),
    "parallelcluster": ProvisionerKind(
        title="AWS ParallelCluster",
        channel=RepairChannel.SLURM,
        build=partial(_slurm_managed, kind="parallelcluster", manager="clustermgtd", tag=PARALLELCLUSTER_TAG),
        files=lambda root, _: parallelcluster(root),
        drain_replaces=True,
    ),
    "pcs": ProvisionerKind(
        title="AWS Parallel Computing Service (PCS)",
        channel=RepairChannel.SLURM,
        build=partial(_slurm_managed, kind="pcs", manager="PCS", tag=PCS_TAG),
        drain_replaces=True,
    ),
    "autoscaling": ProvisionerKind(title="EC2 Auto Scaling", channel=RepairChannel.API, build=_autoscaling),
    "ec2": ProvisionerKind(title="EC2", channel=RepairChannel.API, build=_ec2),
    "karpenter": ProvisionerKind(title="Karpenter", channel=RepairChannel.NODE_CLAIM),
    "eks": ProvisionerKind(
        title="EKS",
        channel=RepairChannel.OWN_NODE,
        hint="check that node auto-repair is on for this node group, and below its own limits"
        " (aws eks describe-nodegroup)",
    ),
}
PLATFORMS: Mapping[Platform, ProvisionerKind] = {platform: KINDS[platform] for platform in Platform}
"""The kinds that are platforms of AWS, which ``auto`` can find."""
