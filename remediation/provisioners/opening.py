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
from healthd.core.errors import BackendUnknown, ConfigError, SourceError
from healthd.core.node import CommandResult
from healthd.remediation.ports import Provisioner, StateOwner
from healthd.remediation.provisioners.autoscaling import AutoScalingProvisioner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.remediation.provisioners.delegated import DelegatedProvisioner
from healthd.remediation.provisioners.detect import (
    PARALLELCLUSTER_TAG,
    PCS_TAG,
    DetectedPlatform,
    Metadata,
    detect,
    hyperpod,
    parallelcluster,
    replaces_what_is_drained,
)
from healthd.remediation.provisioners.ec2 import Ec2Provisioner
from healthd.remediation.provisioners.hyperpod import HyperPodProvisioner
from healthd.remediation.provisioners.kube_nodes import ByProviderId, KarpenterProvisioner, NodeClaims, launched
from healthd.remediation.provisioners.kube_own import Asking, OwnNodeProvisioner
from healthd.remediation.provisioners.local import LocalProvisioner
from healthd.remediation.provisioners.looking import Paced
from healthd.remediation.provisioners.slurm_managed import SlurmManagedProvisioner
from healthd.remediation.provisioners.slurm_node import OUR_TEXTS, Scontrol, read_node
from healthd.remediation.provisioners.subject import Subject
from healthd.remediation.request_stats import Calls
from healthd.sources.command import run_command
from healthd.sources.machine import Machine


class Marks(Protocol):
    """This node's mark, as the orchestrator keeps it. Both raise BackendError."""

    def mark(self, text: str) -> None:
        """Leave it."""

    def marked(self) -> str:
        """Read it."""


_HINTS = {
    "eks": "is node auto-repair on for this node group, and is it below its own limits? See aws eks describe-nodegroup",
    "hyperpod": "is the cluster's NodeRecovery Automatic? See aws sagemaker describe-cluster",
}

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
    marks: Marks | None = None,
    asking: Callable[[str], Asking] | None = None,
) -> Provisioner:
    """The provisioner of this node, as ``[provisioner]`` says. ``scontrol`` None: Slurm does not run it.

    ``root``: where the platforms' files are, for tests; so is ``run``, how commands and AWS's child are run.
    ``made_by_us``: see HyperPodProvisioner. ``marks``: where requests are left for ``healthd controller``. ``asking``:
    by a kind, how a node of Kubernetes asks its platform by its own Node; None on any other cluster.
    Raises ConfigError for a kind that this node cannot have.
    """
    section = config.provisioner
    if section.kind in ("none", "local"):
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
    if section.kind == "karpenter":
        return _by_karpenter(section, subject, marks)
    if kind := asks_by_own_node(section):
        return _by_own_node(kind, subject, marks, asking)
    found = found_on(section, machine.imds.read, subject, root=root)
    if found.platform is None:
        wrong = f"provisioner.kind = {section.kind}: {found.why}; name the platform, or set none or local"
        raise ConfigError((wrong,))
    if found.platform is Platform.HYPERPOD and section.hyperpod.how == "label":
        return _by_own_node("hyperpod", subject, marks, asking)
    if delegates(section, found.platform, by_slurm=scontrol is not None):
        return _delegated(section, subject, found, scontrol, marks)
    if found.platform is Platform.HYPERPOD and asking is not None:
        found = replace(found, fixed=_NOT_BY_ITSELF)
    own = open_for(section, subject, found, scontrol, made_by_us=made_by_us, run=run)
    return Paced(own, every_s=section.aws.look_s)


def asks_by_own_node(section: ProvisionerSection) -> str:
    """The kind by which nodes of Kubernetes ask their platform themselves, or "": then somebody calls an API."""
    by_label = section.kind == "hyperpod" and section.hyperpod.how == "label"
    return section.kind if by_label or section.kind == "eks" else ""


def delegates(section: ProvisionerSection, platform: Platform, *, by_slurm: bool = True) -> bool:
    """Whether nodes of this platform ask the controller: where it is configured, and an API does what is asked for.
    ``by_slurm``: whether Slurm runs the node, so that what can be done by its commands is."""
    is_slurms = platform in (Platform.PARALLELCLUSTER, Platform.PCS) or (
        platform is Platform.HYPERPOD and section.hyperpod.how == "scontrol"
    )
    return section.act_from == "controller" and not (by_slurm and is_slurms)


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
    calls: Calls | None = None,
) -> Provisioner:
    """The provisioner of a node of Kubernetes, for the controller. ``machine``: the instance behind its Node now, by
    its providerID; raises BackendUnknown. ``claims``: Karpenter's. ``leads`` raises BackendRefused where
    this controller may not act any more. ``label``: HyperPod's on its Node. Raises ConfigError."""
    section = config.provisioner
    subject = Subject(node=node, here=False, instance_id=instance_id)
    if section.kind == "karpenter":
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
    calls: Calls | None = None,
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
    if section.kind in ("none", "local"):
        wrong = f"provisioner.kind = {section.kind}: the controller acts by a platform; name that of the nodes"
        raise ConfigError((wrong,))
    if section.kind in ("karpenter", "eks"):
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
    calls: Calls | None = None,
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
    match found.platform:
        case Platform.HYPERPOD:
            return HyperPodProvisioner(
                subject=subject,
                aws=aws,
                cluster=section.hyperpod.cluster or found.cluster,
                scontrol=scontrol,
                by_api=section.hyperpod.how == "api" or not subject.here or scontrol is None,
                made_by_us=made_by_us,
                label=label,
                fixed=found.fixed,
            )
        case Platform.PARALLELCLUSTER | Platform.PCS:
            return _slurm_managed(found, subject, aws, scontrol)
        case Platform.AUTOSCALING:
            return AutoScalingProvisioner(
                subject=subject,
                aws=aws,
                how=section.autoscaling.replace,
                group=section.autoscaling.group or found.group,
                address=_address(subject.node, scontrol),
            )
        case Platform.EC2:
            return Ec2Provisioner(
                subject=subject,
                aws=aws,
                stop_and_start=section.ec2.stop_and_start,
                address=_address(subject.node, scontrol),
            )
        case None:
            raise ConfigError((f"provisioner.kind: {found.why}",))


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
    marks: Marks | None,
) -> Provisioner:
    if marks is None:
        raise ConfigError(("provisioner.act_from = controller needs a cluster: set [orchestrator] kind",))
    return DelegatedProvisioner(
        inner=open_for(section, replace(subject, here=False), found, scontrol),
        instance_id=subject.instance_id,
        read=marks.marked,
        write=marks.mark,
    )


def _by_karpenter(section: ProvisionerSection, subject: Subject, marks: Marks | None) -> Provisioner:
    if marks is None or section.act_from != "controller":
        wrong = (
            "provisioner.kind = karpenter: a node may not delete NodeClaims; set act_from = controller, on Kubernetes"
        )
        raise ConfigError((wrong,))
    inner = KarpenterProvisioner(subject=replace(subject, here=False), machine=str, claims=None)
    return DelegatedProvisioner(inner=inner, instance_id=subject.instance_id, read=marks.marked, write=marks.mark)


def _by_own_node(
    kind: str, subject: Subject, marks: Marks | None, asking: Callable[[str], Asking] | None
) -> Provisioner:
    if marks is None or asking is None:
        how = 'provisioner.hyperpod.how = "label"' if kind == "hyperpod" else f"provisioner.kind = {kind}"
        raise ConfigError((f"{how} writes the node's own Node: set [orchestrator] kind = kubernetes, or another way",))
    return OwnNodeProvisioner(
        kind=kind,
        subject=replace(subject, here=False),  # which instance this is, the Node says
        asking=asking(kind),
        read=marks.marked,
        hint=_HINTS[kind],
    )


def _named(platform: Platform, files: str, root: str) -> DetectedPlatform:
    plain = DetectedPlatform(platform=platform, why="as configured")
    if platform is Platform.HYPERPOD:
        return hyperpod(Path(root) / files.lstrip("/")) or plain
    if platform is Platform.PARALLELCLUSTER:
        return parallelcluster(Path(root)) or plain
    return plain


def _slurm_managed(found: DetectedPlatform, subject: Subject, aws: Aws, scontrol: Scontrol | None) -> Provisioner:
    kind = str(found.platform)
    if scontrol is None:
        raise ConfigError((f"provisioner.kind = {kind} needs Slurm: set [orchestrator] kind = slurm",))
    is_pcs = found.platform is Platform.PCS
    key = PCS_TAG if is_pcs else PARALLELCLUSTER_TAG
    return SlurmManagedProvisioner(
        kind=kind,
        manager="PCS" if is_pcs else "clustermgtd",
        subject=subject,
        aws=aws,
        scontrol=scontrol,
        tag=(key, found.cluster) if found.cluster else None,
        fixed=found.fixed,
    )


def _address(node: str, scontrol: Scontrol | None) -> Callable[[], str] | None:
    """Where Slurm has the node, where Slurm runs it; else its name must say."""

    def asked() -> str:
        if scontrol is None:
            raise BackendUnknown(f"nobody knows where {node} is")
        return read_node(scontrol, node).address or node

    return asked if scontrol is not None else None


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
