"""The configured provisioner, put together: for the node healthd runs on, or for another node.

It calls AWS only with ``kind = "auto"`` on a node without a known file or tag, for the node's Auto Scaling group.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from healthd.config.schema.config import Config
from healthd.config.schema.provisioner import ProvisionerSection
from healthd.core.errors import ConfigError
from healthd.core.node import CommandResult
from healthd.remediation.ports import Orchestrator, Provisioner, StateOwner
from healthd.remediation.provisioners.autoscaling import AutoScalingProvisioner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.remediation.provisioners.delegated import DelegatedProvisioner
from healthd.remediation.provisioners.detect import (
    DetectedPlatform,
    Metadata,
    detect,
    region_of,
    replaces_what_is_drained,
)
from healthd.remediation.provisioners.ec2 import Ec2Provisioner
from healthd.remediation.provisioners.kube_nodes import ByProviderId, KarpenterProvisioner, NodeClaims, launched
from healthd.remediation.provisioners.local import LocalProvisioner
from healthd.remediation.provisioners.platform_reads import Paced
from healthd.remediation.provisioners.registry import KINDS, PLATFORMS, PlatformInputs, RepairChannel
from healthd.remediation.provisioners.slurm_node import OUR_TEXTS, Scontrol
from healthd.remediation.provisioners.target_node import TargetNode
from healthd.remediation.request_stats import RequestStats
from healthd.sources.command import run_command
from healthd.sources.machine import Machine

if TYPE_CHECKING:  # a node of Slurm does not load objects of Kubernetes
    from healthd.remediation.orchestrators.kubernetes.gpu_clients import OwnNode


_NOT_BY_ITSELF = (
    "a node of Kubernetes cannot see HyperPod's actions: set [provisioner.hyperpod] how = label, or [provisioner]"
    " act_from = controller"
)


def open_provisioner(
    config: Config,
    machine: Machine,
    scontrol: Scontrol | None,
    *,
    root: str = "/",
    made_by_us: Callable[[str], bool] | None = None,
    run: Callable[..., CommandResult] = run_command,
    records: Orchestrator | None = None,
    own_node: OwnNode | None = None,
) -> Provisioner:
    """The provisioner of this node, by ``[provisioner]``. ``scontrol`` None: Slurm does not run the node.

    ``root``: the tree of the platforms' files, and ``run``: the runner of commands and of AWS's child; both for tests.
    ``made_by_us``: see HyperPodProvisioner. ``records``: where requests to ``healthd controller`` are written.
    ``own_node``: by which a node of Kubernetes asks its platform; None on any other cluster. Raises ConfigError for a
    kind that this node cannot have.
    """
    section = config.provisioner
    channel = channel_of(section)
    if channel is RepairChannel.COMMAND:
        command = section.local.reboot_command if section.kind == "local" else ()
        return LocalProvisioner(
            reboot_command=command,
            timeout_s=config.remediation.step_timeout_s,
            run=run,
            state_owner=StateOwner.PLATFORM if replaces_what_is_drained(root, machine.imds.read) else StateOwner.ENGINE,
        )
    subject = TargetNode(
        node=machine.name, instance_id=machine.identity.instance_id, instance_type=machine.identity.instance_type
    )
    if channel is RepairChannel.NODE_CLAIM:
        return _by_karpenter(section, subject, records)
    if channel is RepairChannel.OWN_NODE:
        return _by_own_node(section.kind, subject, records, own_node)
    found = found_on(section, machine.imds.read, subject, root=root)
    if found.platform is None:
        wrong = f"provisioner.kind = {section.kind}: {found.why}; name the platform, or set none or local"
        raise ConfigError((wrong,))
    if PLATFORMS[found.platform].channel_of(section) is RepairChannel.OWN_NODE:
        return _by_own_node(found.platform, subject, records, own_node)
    if delegates(section, found.platform, by_slurm=scontrol is not None):
        return _delegated(section, subject, found, scontrol, records)
    if found.platform is Platform.HYPERPOD and own_node is not None:
        found = replace(found, fixed=_NOT_BY_ITSELF)
    own = open_for(section, subject, found, scontrol, made_by_us=made_by_us, run=run)
    return Paced(own, every_s=section.aws.poll_s)


def channel_of(section: ProvisionerSection) -> RepairChannel | None:
    """How the configured kind is asked; None for ``auto``, where it is not known yet."""
    return KINDS[section.kind].channel_of(section) if section.kind in KINDS else None


def delegates(section: ProvisionerSection, platform: Platform, *, by_slurm: bool = True) -> bool:
    """Whether nodes of this platform ask the controller: where that is configured, and an API carries out the repairs.
    ``by_slurm``: whether Slurm runs the node, so that its commands are used where they can."""
    is_slurms = by_slurm and PLATFORMS[platform].channel_of(section) is RepairChannel.SLURM
    return section.act_from == "controller" and not is_slurms


def open_for_kubernetes(
    config: Config,
    node: str,
    instance_id: str,
    metadata: Metadata,
    *,
    machine: Callable[[], str],
    claims: NodeClaims,
    leads: Callable[[], None],
    label: Callable[[], str] | None = None,
    run: Callable[..., CommandResult] = run_command,
    calls: RequestStats | None = None,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Provisioner:
    """The provisioner of a node of Kubernetes, for the controller. ``machine``: the instance behind its Node now, by
    its providerID; raises BackendUnknown. ``claims``: Karpenter's. ``leads`` raises BackendRefused where
    this controller may not act any more. ``label``: HyperPod's on its Node. Raises ConfigError."""
    section = config.provisioner
    subject = TargetNode(node=node, here=False, instance_id=instance_id)
    if channel_of(section) is RepairChannel.NODE_CLAIM:
        return KarpenterProvisioner(subject=subject, machine=machine, claims=claims, monotonic_s=monotonic_s)
    found = found_by_controller(section, metadata)
    inner = open_for(section, subject, found, None, run=run, calls=calls, label=label, leads=leads)
    if isinstance(inner, Ec2Provisioner) and inner.moves:
        machine = launched(machine, inner.machine)
    by_group = inner.repaired_by if isinstance(inner, AutoScalingProvisioner) else str
    return ByProviderId(inner, machine=machine, repaired_by=by_group)


def open_elsewhere(
    config: Config,
    node: str,
    instance_id: str,
    metadata: Metadata,
    scontrol: Scontrol | None,
    *,
    root: str = "/",
    calls: RequestStats | None = None,
) -> Provisioner:
    """The provisioner of another node, for the controller: ``instance_id``: the instance that its handoff record names.

    ``metadata``: of the machine that the controller runs on, for the region. ``calls`` counts calls to AWS. Raises
    ConfigError.
    """
    section = config.provisioner
    found = found_by_controller(section, metadata, root=root)
    subject = TargetNode(node=node, here=False, instance_id=instance_id)
    # A reason of a provisioner's, on a node with our slot and our handoff record, belongs to the current remediation.
    return open_for(section, subject, found, scontrol, made_by_us=OUR_TEXTS.__contains__, calls=calls)


def found_by_controller(section: ProvisionerSection, metadata: Metadata, *, root: str = "/") -> DetectedPlatform:
    """The platform of the nodes, by the configuration or by the files of the head node. Raises ConfigError.

    The head node's own kind, alone or in a group of its own, proves nothing about its nodes.
    """
    kind = KINDS.get(section.kind)
    if kind is not None and kind.channel is RepairChannel.COMMAND:
        wrong = (
            f"provisioner.kind = {section.kind}: the controller needs the platform of the nodes; name it, such as "
            '"ec2" or "hyperpod": in mode observe or quarantine the controller requests no act there'
        )
        raise ConfigError((wrong,))
    if kind is not None and kind.build is None:
        wrong = f"provisioner.kind = {section.kind} needs Kubernetes: set [orchestrator] kind = kubernetes"
        raise ConfigError((wrong,))
    found = found_on(section, metadata, TargetNode(node="", here=False), root=root)
    if found.platform is None:
        raise ConfigError((f"provisioner.kind = auto: {found.why}; name the platform of the nodes",))
    return replace(found, fixed="")


def open_for(
    section: ProvisionerSection,
    subject: TargetNode,
    found: DetectedPlatform,
    scontrol: Scontrol | None,
    *,
    made_by_us: Callable[[str], bool] | None = None,
    run: Callable[..., CommandResult] = run_command,
    calls: RequestStats | None = None,
    label: Callable[[], str] | None = None,
    leads: Callable[[], None] = lambda: None,
) -> Provisioner:
    """The provisioner of any node of a platform: for the controller with ``subject.here`` false. ``leads``: see Aws."""
    aws = Aws(
        region=section.aws.region or found.region,
        endpoint_url=section.aws.endpoint_url,
        timeout_s=section.aws.timeout_s,
        run=run,
        calls=calls,
        leads=leads,
    )
    build = None if found.platform is None else PLATFORMS[found.platform].build
    if build is None:
        raise ConfigError((f"provisioner.kind: {found.why}",))
    return build(
        PlatformInputs(
            section=section,
            subject=subject,
            found=found,
            aws=aws,
            scontrol=scontrol,
            made_by_us=made_by_us,
            label=label,
        )
    )


def found_on(
    section: ProvisionerSection, metadata: Metadata, subject: TargetNode, *, root: str = "/"
) -> DetectedPlatform:
    """The platform, as configured or as this machine shows; with the content of its files, either way."""
    files = section.hyperpod.resource_config
    if section.kind == "auto":
        found = detect(
            root=root,
            resource_config=files,
            metadata=metadata,
            on_ec2=bool(subject.instance_id),
            group_of=lambda: _group_of(section, subject, region_of(metadata)),
        )
    else:
        found = _named(Platform(section.kind), files, root)
    return found if found.region or found.platform is None else replace(found, region=region_of(metadata))


def _delegated(
    section: ProvisionerSection,
    subject: TargetNode,
    found: DetectedPlatform,
    scontrol: Scontrol | None,
    records: Orchestrator | None,
) -> Provisioner:
    if records is None:
        raise ConfigError(("provisioner.act_from = controller needs a cluster: set [orchestrator] kind",))
    return DelegatedProvisioner(
        inner=open_for(section, replace(subject, here=False), found, scontrol),
        instance_id=subject.instance_id,
        read=records.read_record,
        write=records.write_record,
    )


def _by_karpenter(section: ProvisionerSection, subject: TargetNode, records: Orchestrator | None) -> Provisioner:
    if records is None or section.act_from != "controller":
        wrong = (
            "provisioner.kind = karpenter: a node may not delete NodeClaims; set act_from = controller, on Kubernetes"
        )
        raise ConfigError((wrong,))
    inner = KarpenterProvisioner(subject=replace(subject, here=False), machine=str, claims=None)
    return DelegatedProvisioner(
        inner=inner, instance_id=subject.instance_id, read=records.read_record, write=records.write_record
    )


def _by_own_node(kind: str, subject: TargetNode, records: Orchestrator | None, own_node: OwnNode | None) -> Provisioner:
    if records is None or own_node is None:
        how = 'provisioner.hyperpod.how = "label"' if kind == "hyperpod" else f"provisioner.kind = {kind}"
        raise ConfigError(
            (f"{how} writes to the node's own Node: set [orchestrator] kind = kubernetes, or another kind",)
        )
    from healthd.remediation.provisioners.own_node import OwnNodeProvisioner  # it reads objects of Kubernetes

    return OwnNodeProvisioner(
        kind=kind,
        subject=replace(subject, here=False),  # the Node names the instance
        node=own_node,
        read=records.read_record,
        hint=KINDS[kind].hint,
    )


def _named(platform: Platform, resource_config: str, root: str) -> DetectedPlatform:
    files = PLATFORMS[platform].files
    found = None if files is None else files(Path(root), resource_config)
    return found or DetectedPlatform(platform=platform, why="as configured")


def _group_of(section: ProvisionerSection, subject: TargetNode, region: str) -> str:
    aws = Aws(region=section.aws.region or region, endpoint_url=section.aws.endpoint_url, timeout_s=5.0)
    answer = aws.call("autoscaling", "DescribeAutoScalingInstances", InstanceIds=[subject.instance_id])
    found = answer.get("AutoScalingInstances", [])
    return str(found[0]["AutoScalingGroupName"]) if found else ""
