"""The check ``host.filesystems``: the node's own disks, as file systems."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from healthd.checklib.disk_space import below, ext4_errors, held_by, shares
from healthd.core.check import FindingCode, check, judged, not_applicable
from healthd.core.errors import SourceError
from healthd.core.model import Component, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Mount, Node, Space
from healthd.core.setting_types import MountPoint, Ratio

_LOCAL_TYPES = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})
_STOPPED = frozenset({"emergency_ro", "shutdown"})  # ext4: the kernel sets them, never a mount option
_CRITICAL, _WARNING = Severity.CRITICAL, Severity.WARNING

READ_ONLY = FindingCode(
    code="host.filesystem.read_only", severity=_CRITICAL, remedy=Remedy.REBOOT_NODE, meaning="No writes after an error"
)
NOT_WRITABLE = FindingCode(
    code="host.filesystem.not_writable", severity=_WARNING, remedy=Remedy.ASK_HUMAN, meaning="Read-only, without error"
)
ERRORS = FindingCode(
    code="host.filesystem.errors",
    severity=_WARNING,
    remedy=Remedy.WATCH,
    meaning="A file system had errors since its last repair",
    symptom_of=("kernel.fs_error",),
)
FULL = FindingCode(
    code="host.filesystem.full", severity=_CRITICAL, remedy=Remedy.WATCH, meaning="A file system is full, for root too"
)
FULL_DATA = FindingCode(
    code="host.filesystem.full_data", severity=_WARNING, remedy=Remedy.WATCH, meaning="Full where only jobs write"
)
LOW = FindingCode(code="host.filesystem.low", severity=_WARNING, remedy=Remedy.WATCH, meaning="Little room left")


class FsSettings(Struct, frozen=True, kw_only=True):
    """The file systems that ``host.filesystems`` reads, and how much room they need."""

    writable: tuple[MountPoint, ...] = ("/",)
    """Mount points that must be writable. Empty it on systems with a read-only root, such as Bottlerocket."""

    ignore: tuple[MountPoint, ...] = ("/var/lib/kubelet", "/run/containerd", "/snap")
    """Mount points to skip, with all below them: volumes of pods are their owners' to fill."""

    must_have_room: tuple[MountPoint, ...] = ("/var", "/var/lib/healthd")
    """Paths whose file systems, like those of ``writable``, must have room: logs, job scripts and healthd's own state
    are written there, and nothing works without them. Any other full file system, such as a separate /tmp, is a
    warning: its users fill it and empty it. Add the scratch file system without which no job should start."""

    min_free_ratio: Ratio = 0.05
    """The share of space, or of inodes, that must be free for users, 0 to 1."""

    full_free_ratio: Ratio = 0.01
    """The share that root must have left, 0 to 1; below it a file system is full: logs and job scripts can no longer be
    written there. The reserve for root (5 % by default on ext4) is part of it: no user can fill that."""


@check("host.filesystems", settings=FsSettings, codes=(READ_ONLY, NOT_WRITABLE, ERRORS, FULL, FULL_DATA, LOW))
def host_filesystems(node: Node, settings: FsSettings) -> Result:
    """The node's own disks take writes and have room.

    After an error, newer kernels keep ``rw`` in the options and add ``emergency_ro``; older ones show ``ro`` and count
    the error in sysfs. XFS shows neither, and answers stat with EIO. A reboot checks and remounts. Read-only without an
    error is a choice or a mistake, so healthd asks the operator. When root itself has no room left where the system
    writes, the node is critical. It takes no slot, since any user could cause that: the finding names the uids that
    hold most. One job can fill a disk that only jobs write to: that warns.

    Sources: Linux 6.18 (a real error left ``rw,…,emergency_ro`` and EROFS on write; XFS that was shut down: EIO of
    stat, with ``rw`` in the options and a statvfs as before); sysfs-fs-ext4 (errors_count);
    statvfs(3) (f_bfree, f_bavail); btrfs super.c, btrfs_statfs: no room for metadata is f_bavail 0, also for root; ext4
    super.c, ext4_calculate_resv_clusters: a pool that f_bfree counts and no user can write to.
    """
    table = node.mounts()
    mounts, needed = _local(table, settings), _needed(table, settings)
    if not mounts:
        return not_applicable("no file system of a local disk is mounted")
    findings, readings, undecided = list[Finding](), list[Reading](), list[str]()
    for mount in mounts:
        try:
            findings += _state(node, mount, settings)
            space = None if mount.options & {"ro", *_STOPPED} else node.space(mount.point)
        except SourceError as error:
            if mount.fstype == "xfs" and str(error).endswith("(EIO)"):
                findings.append(READ_ONLY.at(_component(mount), f"{_name(mount)} has stopped after an error: {error}"))
            else:
                undecided.append(f"{mount.point}: {error}")
            continue
        if space is not None:
            findings += _room(node, mount, space, settings, is_needed=mount.source in needed)
            free = shares(space)
            readings += [Reading(component=_component(mount), name=f"{k}_free_ratio", value=free[k]) for k in free]
    return judged(findings, readings, undecided=undecided)


def _local(table: tuple[Mount, ...], settings: FsSettings) -> tuple[Mount, ...]:
    """One mount for each disk: the one that must be writable, else the shortest path. A later mount covers an earlier
    one."""
    visible = {mount.point: mount for mount in table}.values()
    ours = [mount for mount in visible if mount.fstype in _LOCAL_TYPES and not _below(mount.point, settings.ignore)]
    ours.sort(key=lambda mount: (mount.point not in settings.writable, len(mount.point)), reverse=True)
    return tuple({mount.source: mount for mount in ours}.values())


def _needed(table: tuple[Mount, ...], settings: FsSettings) -> frozenset[str]:
    """The disks that must have room: of each path, that of the deepest mount above it."""
    visible = {mount.point: mount for mount in table}
    paths = (*settings.writable, *settings.must_have_room)
    above = ([point for point in visible if point == "/" or _below(path, (point,))] for path in paths)
    return frozenset(visible[max(points, key=len)].source for points in above if points)


def _below(point: str, folders: tuple[str, ...]) -> bool:
    return any(point == folder or point.startswith(f"{folder}/") for folder in folders)


def _state(node: Node, mount: Mount, settings: FsSettings) -> Iterator[Finding]:
    where, errors = _name(mount), ext4_errors(node, mount)
    must_write = "ro" in mount.options and mount.point in settings.writable
    if mount.options & _STOPPED or (must_write and errors):
        yield READ_ONLY.at(_component(mount), f"{where} takes no writes after an error", options=sorted(mount.options))
    elif must_write:
        yield NOT_WRITABLE.at(_component(mount), f"{where} is mounted read-only, without an error; remount it")
    elif errors:
        yield ERRORS.at(_component(mount), f"{where} has recorded {errors} errors; run e2fsck", errors_count=errors)


def _room(node: Node, mount: Mount, space: Space, settings: FsSettings, *, is_needed: bool) -> Iterator[Finding]:
    roots = below(shares(space, mount.fstype), settings.full_free_ratio)
    users = below(shares(space), settings.min_free_ratio)
    if roots:
        code = FULL if is_needed else FULL_DATA
        yield _short(code, mount, roots, settings.full_free_ratio, held_by(node, mount.point))
    elif users:
        yield _short(LOW, mount, users, settings.min_free_ratio)


def _short(code: FindingCode, mount: Mount, short: dict[str, float], limit: float, holders: str = "") -> Finding:
    amounts = ", ".join(f"{ratio:.1%} of {kind}" for kind, ratio in short.items())
    message = f"{mount.point} has {amounts} free, less than {limit:.0%}{holders}"
    return code.at(_component(mount), message, free=short, limit_ratio=limit)


def _name(mount: Mount) -> str:
    return f"{mount.point} ({mount.source})"


def _component(mount: Mount) -> Component:
    return Component(kind="mount", id=mount.point)
