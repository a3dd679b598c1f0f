"""What there is on this machine, for whoever sets healthd up: platform, cluster, devices, mounts.

Nothing is found out anew here: each fact is asked of the code that the daemon asks. Some of it looks at file systems
that may hang (Slurm's folder is often on NFS): ask for it by ``setup.apart``. It decides nothing and changes nothing;
one question may go to AWS, on an EC2 instance that nothing else explains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from healthd.agent.node_facts import runs_kubernetes, runs_slurm
from healthd.checklib.pci import efa_functions, pci_gpus
from healthd.config.schema.config import Config
from healthd.config.schema.provisioner import ProvisionerSection
from healthd.core.errors import SourceError
from healthd.core.node import Mount
from healthd.remediation.orchestrators.slurm.orchestrator import detect as detect_slurm
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.remediation.provisioners.opening import found_on
from healthd.remediation.provisioners.subject import Subject
from healthd.sources.identity import is_own
from healthd.sources.machine import Machine, open_machine

T = TypeVar("T")
NETWORK_TYPES = ("lustre", "nfs", "nfs4", "cifs", "smb3", "ceph", "beegfs", "gpfs", "wekafs")
"""Kinds of mount that a job is likely to need and that a server stands behind, as the mount table names them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What was found. Texts are empty, and numbers None, where it could not be told; ``problems`` says why.

    ``platform`` None: none of AWS's. ``fixed``: why nothing replaces this machine, or "". ``pod``: this process runs in
    a pod of Kubernetes. ``kubelet``: the kubelet's socket is here. ``automounts``: automount points that nothing has
    used yet.
    """

    node: str
    instance_type: str = ""
    instance_id: str = ""
    platform: Platform | None = None
    platform_why: str = ""
    cluster: str = ""
    fixed: str = ""
    slurm: bool = False
    slurm_why: str = ""
    pod: bool = False
    kubelet: bool = False
    gpus: int | None = None
    efa: int | None = None
    mounts: tuple[Mount, ...] = ()
    automounts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def survey(config: Config, environ: Mapping[str, str], *, root: str = "/") -> Survey:
    """Look. ``config``: where the machine is read and how Slurm and AWS are asked; its own choices are left out of
    account. ``root``: where the files of platforms and of Slurm are looked for, for tests."""
    machine = open_machine(config)
    try:
        return _surveyed(config, environ, machine, root)
    finally:
        machine.close()


def _surveyed(config: Config, environ: Mapping[str, str], machine: Machine, root: str) -> Survey:
    problems = [machine.identity.problem] if machine.identity.problem else []
    # The firmware tables of another machine than this one are no reason to ask AWS.
    is_asked = is_own(config.sources.sys_root) or bool(config.sources.imds_endpoint)
    instance_id = machine.identity.instance_id if is_asked else ""
    subject = Subject(node=machine.name, instance_id=instance_id, instance_type=machine.identity.instance_type)
    section = ProvisionerSection(kind="auto", aws=config.provisioner.aws, hyperpod=config.provisioner.hyperpod)
    platform = found_on(section, machine.imds.read, subject, root=root)
    slurm, slurm_why = detect_slurm(environ=environ, root=root, bin_dir=config.orchestrator.slurm.bin_dir)
    table = _told(problems, machine.mounts) or ()
    gpus, efa = _told(problems, lambda: len(pci_gpus(machine))), _told(problems, lambda: len(efa_functions(machine)))
    return Survey(
        node=machine.name,
        instance_type=machine.identity.instance_type,
        instance_id=machine.identity.instance_id,
        platform=platform.platform,
        platform_why=platform.why,
        cluster=platform.cluster,
        fixed=platform.fixed,
        slurm=slurm or runs_slurm(config, environ),
        slurm_why=slurm_why,
        pod=runs_kubernetes(config, environ),
        kubelet=Path(root, config.orchestrator.kubernetes.pod_resources.lstrip("/")).exists(),
        gpus=gpus,
        efa=efa,
        mounts=network_mounts(table),
        automounts=_waiting(table),
        problems=tuple(problems),
    )


def network_mounts(table: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """The mounts that need a server, of several on one point the one that is seen; by their points."""
    seen = {mount.point: mount for mount in table}
    return tuple(mount for _, mount in sorted(seen.items()) if mount.fstype in NETWORK_TYPES)


def _waiting(table: tuple[Mount, ...]) -> tuple[str, ...]:
    """Automounts with nothing on them yet, but for the kernel's own (``/proc/sys/fs/binfmt_misc``)."""
    seen = {mount.point: mount for mount in table}
    points = [point for point, mount in seen.items() if mount.fstype == "autofs"]
    return tuple(sorted(point for point in points if not point.startswith("/proc/")))


def _told(problems: list[str], ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except SourceError as error:
        problems.append(str(error))
        return None
