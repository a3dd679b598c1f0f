"""The identity of this machine: boot id, boot time, instance type and id, from the cheapest honest source first."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct

from healthd.core.errors import SourceError, SourceUnreadable
from healthd.core.node import Tree
from healthd.sources.imds import DEFAULT_ENDPOINT, MetadataSource

OWN_SYS = "/sys"
"""The /sys of the kernel that this process runs on."""
_DMI = "devices/virtual/dmi/id"
_BTIME = r"btime ([0-9]{1,11})\s*"


class Identity(Struct, frozen=True, kw_only=True):
    """The instance behind this node. Empty strings where it is unknown; ``problem`` says why."""

    instance_type: str = ""
    instance_id: str = ""
    problem: str = ""


def boot_id(proc: Tree) -> str:
    """The kernel's random id of this boot (``/proc/sys/kernel/random/boot_id``). Raises SourceError."""
    return proc.read("sys/kernel/random/boot_id")


def boot_time(proc: Tree) -> datetime:
    """When this boot began (``btime`` in ``/proc/stat``, whole seconds). Raises SourceError."""
    for line in proc.read("stat").splitlines():
        if (found := re.fullmatch(_BTIME, line)) is not None:
            return datetime.fromtimestamp(int(found[1]), UTC)
    raise SourceUnreadable("/proc/stat has no line like `btime 1764000000`; without it kernel times cannot be placed")


def node_name(environ: Mapping[str, str]) -> str:
    """The node's name in its cluster: SLURMD_NODENAME in Slurm's hooks, else the host's first label.

    Slurm names a node by that label unless slurm.conf gives it another NodeName; ``[node] name`` is for those.
    """
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]


def find_identity(sys: Tree, imds: MetadataSource, *, configured_type: str) -> Identity:
    """Instance type and id: configuration, then firmware tables, then IMDS where there is one; ``ml.`` is stripped.

    On Nitro, DMI's product_name is the instance type and board_asset_tag the instance id (aws-ofi-nccl reads it so).
    """
    product, asset = _dmi(sys, "product_name"), _dmi(sys, "board_asset_tag")
    on_ec2 = _on_ec2(sys)
    found_type = configured_type or (product if on_ec2 else "")
    found_id = asset if on_ec2 and asset.startswith("i-") else ""
    problem = ""
    if imds.endpoint and not (found_type and found_id):
        try:
            found_type = found_type or imds.read("instance-type") or ""
            found_id = found_id or imds.read("instance-id") or ""
        except SourceError as error:
            problem = str(error)
    return Identity(instance_type=found_type.removeprefix("ml."), instance_id=found_id, problem=problem)


def metadata_endpoint(sys: Tree, configured: str, *, sys_root: str = OWN_SYS) -> str:
    """The address of the instance metadata service: as configured, its own on EC2, else "" for none.

    Firmware tables of another tree (a simulated machine, a recording) do not describe the machine that would answer:
    they cause no request.
    """
    if _imds_disabled():
        return ""
    return configured or (DEFAULT_ENDPOINT if is_own(sys_root) and _on_ec2(sys) else "")


def is_own(sys_root: str) -> bool:
    """Whether the tree is of the machine that this process runs on."""
    return os.path.normpath(sys_root) == OWN_SYS


def _on_ec2(sys: Tree) -> bool:
    return _dmi(sys, "sys_vendor") == "Amazon EC2"


def _dmi(sys: Tree, name: str) -> str:
    try:
        return sys.read(f"{_DMI}/{name}")
    except SourceError:
        return ""  # no firmware tables (a container, another cloud): the caller tries the next source


def _imds_disabled() -> bool:
    return os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
