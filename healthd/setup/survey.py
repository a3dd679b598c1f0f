"""A survey of this machine for the setup of healthd: platform, cluster, devices, mounts.

Each fact comes from the code that the daemon uses. Some facts need file systems that may hang (Slurm's folder is often
on NFS): run the survey by ``setup.forked_calls``. It decides nothing and changes nothing. On an EC2 instance of an
unknown platform it sends one request to AWS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from healthd.agent.node_facts import runs_kubernetes, runs_slurm
from healthd.checklib.pci import efa_functions, pci_gpus
from healthd.config.schema.config import Config
from healthd.config.schema.provisioner import ProvisionerSection
from healthd.core.errors import SourceError
from healthd.core.node import Mount
from healthd.remediation.orchestrators.slurm.orchestrator import detect as detect_slurm
from healthd.remediation.provisioners.aws_calls import Platform
from healthd.remediation.provisioners.from_config import found_on
from healthd.remediation.provisioners.target_node import TargetNode
from healthd.sources.identity import is_own
from healthd.sources.machine import Machine, open_machine

T = TypeVar("T")
NETWORK_TYPES = ("lustre", "nfs", "nfs4", "cifs", "smb3", "ceph", "beegfs", "gpfs", "wekafs")
"""File system types of network mounts that a job is likely to need, as the mount table names them."""


class Survey(Struct, frozen=True, kw_only=True):
    """The facts. An unknown text is empty, and an unknown number None; ``problems`` has the reasons.

    ``platform`` None: none of AWS's. ``fixed``: why this machine cannot be replaced, or "". ``pod``: this process runs
    in a pod of Kubernetes. ``kubelet``: the kubelet's socket exists here. ``automounts``: automount points that are not
    used yet.
    """

    node: str
    instance_type: str = ""
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
    """Make the survey. ``config``: the sources of the machine, and the access to Slurm and AWS; its kinds are ignored.
    ``root``: the root of the files of platforms and of Slurm, for tests."""
    machine = open_machine(config)
    try:
        return _surveyed(config, environ, machine, root)
    finally:
        machine.close()


def _surveyed(config: Config, environ: Mapping[str, str], machine: Machine, root: str) -> Survey:
    problems = [machine.identity.problem] if machine.identity.problem else []
    # With firmware tables of another machine, AWS is not asked.
    is_asked = is_own(config.sources.sys_root) or bool(config.sources.imds_endpoint)
    instance_id = machine.identity.instance_id if is_asked else ""
    subject = TargetNode(node=machine.name, instance_id=instance_id, instance_type=machine.identity.instance_type)
    section = ProvisionerSection(kind="auto", aws=config.provisioner.aws, hyperpod=config.provisioner.hyperpod)
    platform = found_on(section, machine.imds.read, subject, root=root)
    slurm, slurm_why = detect_slurm(environ=environ, root=root, bin_dir=config.orchestrator.slurm.bin_dir)
    table = _told(problems, machine.mounts) or ()
    gpus, efa = _told(problems, lambda: len(pci_gpus(machine))), _told(problems, lambda: len(efa_functions(machine)))
    return Survey(
        node=machine.name,
        instance_type=machine.identity.instance_type,
        platform=platform.platform,
        platform_why=platform.why,
        cluster=platform.cluster,
        fixed=platform.fixed,
        slurm=slurm or runs_slurm(config, environ, root=root),
        slurm_why=slurm_why,
        pod=runs_kubernetes(config, environ, root=root),
        kubelet=Path(root, config.orchestrator.kubernetes.pod_resources.lstrip("/")).exists(),
        gpus=gpus,
        efa=efa,
        mounts=network_mounts(table),
        automounts=_waiting(table),
        problems=tuple(problems),
    )


def network_mounts(table: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """The network mounts, sorted by their points; of several on one point the topmost."""
    seen = {mount.point: mount for mount in table}
    return tuple(mount for _, mount in sorted(seen.items()) if mount.fstype in NETWORK_TYPES)


def _waiting(table: tuple[Mount, ...]) -> tuple[str, ...]:
    """Automounts that are not mounted yet, but for the kernel's own (``/proc/sys/fs/binfmt_misc``)."""
    seen = {mount.point: mount for mount in table}
    points = [point for point, mount in seen.items() if mount.fstype == "autofs"]
    return tuple(sorted(point for point in points if not point.startswith("/proc/")))


def _told(problems: list[str], ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except SourceError as error:
        problems.append(str(error))
        return None
