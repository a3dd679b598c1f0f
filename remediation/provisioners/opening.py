"""The provisioner that a configuration asks for, put together: for the node healthd runs on, or for another one.

Nothing is asked of AWS here but, with ``kind = "auto"`` on a node that no file or tag explains, which group it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from healthd.config.schema.config import Config
from healthd.config.schema.provisioner import ProvisionerSection
from healthd.core.errors import ConfigError, SourceError
from healthd.core.node import CommandResult
from healthd.remediation.ports import Provisioner, StateOwner
from healthd.remediation.provisioners.autoscaling import AutoScalingProvisioner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.remediation.provisioners.delegated import DelegatedProvisioner
from healthd.remediation.provisioners.detect import DetectedPlatform, Metadata, detect, replaces_what_is_drained
from healthd.remediation.provisioners.ec2 import Ec2Provisioner
from healthd.remediation.provisioners.kube_nodes import ByProviderId, KarpenterProvisioner, NodeClaims, launched
from healthd.remediation.provisioners.kube_own import Asking, OwnNodeProvisioner
from healthd.remediation.provisioners.local import LocalProvisioner
from healthd.remediation.provisioners.looking import Paced
from healthd.remediation.provisioners.registry import KINDS, PLATFORMS, PlatformInputs, RepairChannel
from healthd.remediation.provisioners.slurm_node import OUR_TEXTS, Scontrol
from healthd.remediation.provisioners.subject import Subject
from healthd.remediation.request_stats import RequestStats
from healthd.sources.command import run_command
from healthd.sources.machine import Machine


class RecordPort(Protocol):
    """This node's mark, as the orchestrator keeps it. Both raise BackendError."""

    def mark(self, text: str) -> None:
        """Leave it."""

    def marked(self) -> str:
        """Read it."""


_NOT_BY_ITSELF = (
    "a node of Kubernetes does not see what HyperPod is at: set [provisioner.hyperpod] how = label, or [provisioner]"
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
    marks: RecordPort | None = None,
    asking: Callable[[str], Asking] | None = None,
) -> Provisioner:
    """The provisioner of this node, as ``[provisioner]`` says. ``scontrol`` None: Slurm does not run it.

    ``root``: where the platforms' files are, for tests; so is ``run``, how commands and AWS's child are run.
    ``made_by_us``: see HyperPodProvisioner. ``marks``: where requests are left for ``healthd controller``. ``asking``:
    by a kind, how a node of Kubernetes asks its platform by its own Node; None on any other cluster.
    Raises ConfigError for a kind that this node cannot have.
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
    subject = Subject(
        node=machine.name, instance_id=machine.identity.instance_id, instance_type=machine.identity.instance_type
    )
    if channel is RepairChannel.NODE_CLAIM:
        return _by_karpenter(section, subject, marks)
    if channel is RepairChannel.OWN_NODE:
        return _by_own_node(section.kind, subject, marks, asking)
    found = found_on(section, machine.imds.read, subject, root=root)
    if found.platform is None:
        wrong = f"provisioner.kind = {section.kind}: {found.why}; name the platform, or set none or local"
        raise ConfigError((wrong,))
    if PLATFORMS[found.platform].channel_of(section) is RepairChannel.OWN_NODE:
        return _by_own_node(found.platform, subject, marks, asking)
    if delegates(section, found.platform, by_slurm=scontrol is not None):
        return _delegated(section, subject, found, scontrol, marks)
    if found.platform is Platform.HYPERPOD and asking is not None:
        found = replace(found, fixed=_NOT_BY_ITSELF)
    own = open_for(section, subject, found, scontrol, made_by_us=made_by_us, run=run)
    return Paced(own, every_s=section.aws.look_s)


def channel_of(section: ProvisionerSection) -> RepairChannel | None:
    """How the configured kind is asked; None for ``auto``, where that is to be found out."""
    return KINDS[section.kind].channel_of(section) if section.kind in KINDS else None


def delegates(section: ProvisionerSection, platform: Platform, *, by_slurm: bool = True) -> bool:
    """Whether nodes of this platform ask the controller: where it is configured, and an API does what is asked for.
    ``by_slurm``: whether Slurm runs the node, so that what can be done by its commands is."""
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
) -> Provisioner:
    """The provisioner of a node of Kubernetes, for the controller. ``machine``: the instance behind its Node now, by
    its providerID; raises BackendUnknown. ``claims``: Karpenter's. ``leads`` raises BackendRefused where
    this controller may not act any more. ``label``: HyperPod's on its Node. Raises ConfigError."""
    section = config.provisioner
    subject = Subject(node=node, here=False, instance_id=instance_id)
    if channel_of(section) is RepairChannel.NODE_CLAIM:
        return KarpenterProvisioner(subject=subject, machine=machine, claims=claims)
    found = found_by_controller(section, metadata)
    inner = open_for(section, subject, found, None, run=run, calls=calls, label=label)
    if isinstance(inner, Ec2Provisioner) and inner.moves:
        machine = launched(machine, inner.machine)
    by_group = inner.repaired_by if isinstance(inner, AutoScalingProvisioner) else str
    return ByProviderId(inner, machine=machine, leads=leads, repaired_by=by_group)


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
    """The provisioner of another node, for the controller: ``instance_id`` is what its mark says is to be acted upon.

    ``metadata``: of the machine that the controller runs on, for the region. ``calls`` counts what AWS is asked. Raises
    ConfigError.
    """
    section = config.provisioner
    found = found_by_controller(section, metadata, root=root)
    subject = Subject(node=node, here=False, instance_id=instance_id)
    # A reason of a provisioner's, on a node with our place and our mark, is of the case in hand.
    return open_for(section, subject, found, scontrol, made_by_us=OUR_TEXTS.__contains__, calls=calls)


def found_by_controller(section: ProvisionerSection, metadata: Metadata, *, root: str = "/") -> DetectedPlatform:
    """The platform of the nodes, by the configuration or by the files of the head node. Raises ConfigError.

    What a head node is itself, alone or in a group of its own, says nothing of its nodes.
    """
    kind = KINDS.get(section.kind)
    if kind is not None and kind.channel is RepairChannel.COMMAND:
        wrong = f"provisioner.kind = {section.kind}: the controller acts by a platform; name that of the nodes"
        raise ConfigError((wrong,))
    if kind is not None and kind.build is None:
        wrong = f"provisioner.kind = {section.kind} is Kubernetes's: set [orchestrator] kind = kubernetes"
        raise ConfigError((wrong,))
    found = found_on(section, metadata, Subject(node="", here=False), root=root)
    if found.platform is None:
        raise ConfigError((f"provisioner.kind = auto: {found.why}; name the platform of the nodes",))
    return replace(found, fixed="")


def open_for(
    section: ProvisionerSection,
    subject: Subject,
    found: DetectedPlatform,
    scontrol: Scontrol | None,
    *,
    made_by_us: Callable[[str], bool] | None = None,
    run: Callable[..., CommandResult] = run_command,
    calls: RequestStats | None = None,
    label: Callable[[], str] | None = None,
) -> Provisioner:
    """The provisioner of any node of a platform: from elsewhere with ``subject.here`` false."""
    aws = Aws(
        region=section.aws.region or found.region,
        endpoint_url=section.aws.endpoint_url,
        timeout_s=section.aws.timeout_s,
        run=run,
        calls=calls,
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


def found_on(section: ProvisionerSection, metadata: Metadata, subject: Subject, *, root: str = "/") -> DetectedPlatform:
    """The platform, as configured or as this machine shows; and what its files tell of it, either way."""
    files = section.hyperpod.resource_config
    if section.kind == "auto":
        found = detect(
            root=root,
            resource_config=files,
            metadata=metadata,
            on_ec2=bool(subject.instance_id),
            group_of=lambda: _group_of(section, subject, _region(metadata)),
        )
    else:
        found = _named(Platform(section.kind), files, root)
    return found if found.region or found.platform is None else replace(found, region=_region(metadata))


def _delegated(
    section: ProvisionerSection,
    subject: Subject,
    found: DetectedPlatform,
    scontrol: Scontrol | None,
    marks: RecordPort | None,
) -> Provisioner:
    if marks is None:
        raise ConfigError(("provisioner.act_from = controller needs a cluster: set [orchestrator] kind",))
    return DelegatedProvisioner(
        inner=open_for(section, replace(subject, here=False), found, scontrol),
        instance_id=subject.instance_id,
        read=marks.marked,
        write=marks.mark,
    )


def _by_karpenter(section: ProvisionerSection, subject: Subject, marks: RecordPort | None) -> Provisioner:
    if marks is None or section.act_from != "controller":
        wrong = (
            "provisioner.kind = karpenter: a node may not delete NodeClaims; set act_from = controller, on Kubernetes"
        )
        raise ConfigError((wrong,))
    inner = KarpenterProvisioner(subject=replace(subject, here=False), machine=str, claims=None)
    return DelegatedProvisioner(inner=inner, instance_id=subject.instance_id, read=marks.marked, write=marks.mark)


def _by_own_node(
    kind: str, subject: Subject, marks: RecordPort | None, asking: Callable[[str], Asking] | None
) -> Provisioner:
    if marks is None or asking is None:
        how = 'provisioner.hyperpod.how = "label"' if kind == "hyperpod" else f"provisioner.kind = {kind}"
        raise ConfigError((f"{how} writes the node's own Node: set [orchestrator] kind = kubernetes, or another way",))
    return OwnNodeProvisioner(
        kind=kind,
        subject=replace(subject, here=False),  # which instance this is, the Node says
        asking=asking(kind),
        read=marks.marked,
        hint=KINDS[kind].hint,
    )


def _named(platform: Platform, resource_config: str, root: str) -> DetectedPlatform:
    files = PLATFORMS[platform].files
    found = None if files is None else files(Path(root), resource_config)
    return found or DetectedPlatform(platform=platform, why="as configured")


def _group_of(section: ProvisionerSection, subject: Subject, region: str) -> str:
    aws = Aws(region=section.aws.region or region, endpoint_url=section.aws.endpoint_url, timeout_s=5.0)
    answer = aws.call("autoscaling", "DescribeAutoScalingInstances", InstanceIds=[subject.instance_id])
    found = answer.get("AutoScalingInstances", [])
    return str(found[0]["AutoScalingGroupName"]) if found else ""


def _region(metadata: Metadata) -> str:
    try:
        return metadata("placement/region") or ""
    except SourceError:
        return ""  # boto3 looks for it in its own places
