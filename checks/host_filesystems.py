"""The check ``host.filesystems``: the node's own disks, as file systems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from healthd.check import FindingCode, check, judged, not_applicable
from healthd.errors import SourceError, SourceMissing
from healthd.model import Component, Finding, Reading, Remedy, Result, Severity
from healthd.node import Mount, Node, Space

_LOCAL_TYPES = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})
_EMERGENCY = frozenset({"emergency_ro", "shutdown"})  # ext4 super.c, since Linux 6.12 and 6.14

READ_ONLY = FindingCode(
    code="host.filesystem.read_only",
    severity=Severity.CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    meaning="A file system stopped taking writes after an error",
)
NOT_WRITABLE = FindingCode(
    code="host.filesystem.not_writable",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="A file system that must be writable is mounted read-only, and shows no error",
)
ERRORS = FindingCode(
    code="host.filesystem.errors",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="A file system has recorded errors since it was last checked",
)
FULL = FindingCode(
    code="host.filesystem.full",
    severity=Severity.CRITICAL,
    remedy=Remedy.ASK_HUMAN,
    meaning="A file system has next to no space or inodes left",
)
LOW = FindingCode(
    code="host.filesystem.low",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="A file system is short of space or inodes",
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Which file systems ``host.filesystems`` looks at, and when they are short of space."""

    writable: tuple[str, ...] = ("/",)
    """Mount points that must be writable. Empty it on systems with a read-only root, such as Bottlerocket."""

    ignore: tuple[str, ...] = ("/var/lib/kubelet", "/run/containerd", "/snap")
    """Mount points, with all below them, that are not looked at: volumes of pods are their owners' to fill."""

    low_free_ratio: float = 0.05
    """The share of space, or of inodes, below which a warning is given. ext4 keeps back as much for root."""

    full_free_ratio: float = 0.01
    """The share of space, or of inodes, below which no job should start: logs and job scripts fail to be written."""


@check("host.filesystems", interval_s=60, settings=Settings, codes=(READ_ONLY, NOT_WRITABLE, ERRORS, FULL, LOW))
def host_filesystems(node: Node, settings: Settings) -> Result:
    """The node's own disks take writes and have room.

    A file system that met an error says so in one of two ways: newer kernels keep ``rw`` in its options and add
    ``emergency_ro``, older ones show ``ro`` and count the error in sysfs. A reboot checks and remounts it. Read-only
    without an error is somebody's choice, or mistake: a person is asked. Shortage of space keeps jobs off when little is
    left, and no repair of the machine makes room. Only disks are asked for their space, each in a probe with a deadline.

    Sources: Linux 6.18, ext4 (seen on a real error: ``rw,…,emergency_ro``, EROFS on write);
    Documentation/ABI/testing/sysfs-fs-ext4 (errors_count).
    """
    mounts = _local(node.mounts(), settings)
    if not mounts:
        return not_applicable("no local disk file system is mounted")
    findings, readings, gaps = [], [], []
    for mount in mounts:
        try:
            findings += _state(node, mount, settings)
            if not mount.options & {"ro", *_EMERGENCY}:
                space = node.space(mount.point)
                findings += _room(mount, space, settings)
                readings += _readings(mount, space)
        except SourceError as error:
            gaps.append(f"{mount.point}: {error}")
    return judged(findings, readings, gaps=gaps)


def _local(table: tuple[Mount, ...], settings: Settings) -> tuple[Mount, ...]:
    """One mount for each disk: a point that must be writable, else the shortest. A later mount covers an earlier one."""
    visible = {mount.point: mount for mount in table}.values()
    ours = [m for m in visible if m.fstype in _LOCAL_TYPES and not _below(m.point, settings.ignore)]
    ours.sort(key=lambda mount: (mount.point not in settings.writable, len(mount.point)))
    return tuple({mount.source: mount for mount in reversed(ours)}.values())


def _below(point: str, folders: tuple[str, ...]) -> bool:
    return any(point == folder or point.startswith(f"{folder}/") for folder in folders)


def _state(node: Node, mount: Mount, settings: Settings) -> Iterator[Finding]:
    errors = _errors_count(node, mount)
    must_write = "ro" in mount.options and mount.point in settings.writable
    seen = {"options": sorted(mount.options), "source": mount.source, "errors": errors}
    if mount.options & _EMERGENCY or (must_write and errors):
        yield READ_ONLY.at(_component(mount), f"{mount.point} ({mount.source}) takes no writes after an error", **seen)
        return
    if must_write:
        yield NOT_WRITABLE.at(_component(mount), f"{mount.point} ({mount.source}) is mounted read-only", **seen)
    if errors:
        yield ERRORS.at(_component(mount), f"{errors} errors recorded on {mount.source} ({mount.point})", **seen)
