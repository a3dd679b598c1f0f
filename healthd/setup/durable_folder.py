"""Whether a folder outlives a boot and a stop of the machine. It decides nothing.

A daemon keeps the history of its repairs in its state directory. Its handoff record keeps the last eight of them with
the cluster, but neither faults nor learned values nor the audit trail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from healthd.core.errors import SourceError
from healthd.core.node import Mount, Tree

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "rootfs", "overlay", "aufs"})
# EC2 user guide, "Identify instance store volumes"; a stop empties it, a reboot does not.
_INSTANCE_STORE = "Amazon EC2 NVMe Instance Storage"
_NVME = re.compile(r"(nvme\d+)n\d+(?:p\d+)?")
_DEEP = 8  # a RAID of logical volumes of partitions has three


def not_lasting(path: str, mounts: Iterable[Mount], sys: Tree) -> str:
    """Why a boot or a stop empties ``path``, in words, or "". ``sys``: the tree of sysfs."""
    found = [mount for mount in mounts if PurePath(path).is_relative_to(mount.point)]
    if not found:
        return ""
    mount = max(enumerate(found), key=lambda each: (len(PurePath(each[1].point).parts), each[0]))[1]
    if mount.fstype in _IN_MEMORY:
        return f"{path} is on {mount.fstype}, which a boot empties"
    stores = [name for name in _disks(mount, sys) if _is_instance_store(name, sys)]
    if not stores:
        return ""
    return f"{path} is on the instance store ({', '.join(sorted(set(stores)))}), which a stop empties"


def _disks(mount: Mount, sys: Tree) -> Iterator[str]:
    """The block devices below a mounted one: a RAID or a logical volume names its members."""
    wanted = [_named(mount, sys)]
    for _ in range(_DEEP):
        below = [slave for name in wanted for slave in _slaves(name, sys)]
        yield from (name for name in wanted if name)
        wanted = below


def _named(mount: Mount, sys: Tree) -> str:
    try:
        return sys.target(f"dev/block/{mount.device}")
    except SourceError:
        return PurePath(mount.source).name


def _slaves(name: str, sys: Tree) -> tuple[str, ...]:
    try:
        return sys.names(f"class/block/{name}/slaves") if name else ()
    except SourceError:
        return ()


def _is_instance_store(name: str, sys: Tree) -> bool:
    found = _NVME.fullmatch(name)
    try:
        return found is not None and sys.read(f"class/nvme/{found[1]}/model").strip() == _INSTANCE_STORE
    except SourceError:
        return False
