"""The check ``storage.xfs``: whether the free space of XFS is too fragmented for new files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from healthd.core.check import FindingCode, check, judged, not_applicable, nothing_expected
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import Component, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Mount, Node
from healthd.core.setting_types import Amount

_AVERAGE = r"(?m)^average free extent size (\d+(?:\.\d+)?(?:e\+\d+)?)$"
_NO_ROOM_AT_ALL = r"(?m)^total free extents 0$"

FRAGMENTED = FindingCode(
    code="storage.xfs.fragmented",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The free space of an XFS file system is in pieces so small that new files may find no room",
)


class StorageXfsSettings(Struct, frozen=True, kw_only=True):
    """When ``storage.xfs`` calls free space fragmented."""

    min_average_blocks: Amount = 16.0
    """The average size that free extents must have, in blocks of the file system. Sixteen is where the EKS node
    monitoring agent warns: inodes come in chunks that need such a piece."""


@check("storage.xfs", interval_s=3600, timeout_s=60, settings=StorageXfsSettings, codes=(FRAGMENTED,))
def storage_xfs(node: Node, settings: StorageXfsSettings) -> Result:
    """The free space of XFS file systems is in pieces that files fit into.

    XFS reports a full disk when no free piece is large enough, however many small ones it has; ``df`` shows room then.
    The check asks the file system itself, once an hour and with a deadline. ``host.filesystems`` reports one without
    any free extent as full. Without xfsprogs the check does not apply.

    Sources: xfs_spaceman(8) ``freesp -s``; xfsprogs, libfrog/histogram.c (the line that is read); EKS node monitoring
    agent (XFSSmallAverageClusterSize).
    """
    mounts = {mount.source: mount for mount in node.mounts() if mount.fstype == "xfs"}
    if not mounts:
        return nothing_expected("no XFS file system is mounted")
    findings, readings, undecided = list[Finding](), list[Reading](), []
    for mount in mounts.values():
        try:
            sizes = list(_average_blocks(node, mount))
        except SourceMissing as error:
            return not_applicable(f"xfs_spaceman is not installed: {error}")
        except SourceError as error:
            undecided.append(f"{mount.point}: {error}")
            continue
        where = Component(kind="mount", id=mount.point)
        readings += [Reading(component=where, name="xfs_free_extent_blocks", value=size) for size in sizes]
        findings += [_fragmented(where, mount, size, settings) for size in sizes if size < settings.min_average_blocks]
    return judged(findings, readings, undecided=undecided)


def _average_blocks(node: Node, mount: Mount) -> Iterator[float]:
    """The average size of a free extent; nothing where the file system has none."""
    answer = node.command("xfs_spaceman", "-c", "freesp -s", mount.point, timeout_s=15.0)
    if answer.code != 0:
        raise SourceUnreadable(f"xfs_spaceman: exit {answer.code}: {answer.stderr.strip()[:200]}; expected exit 0")
    if found := re.search(_AVERAGE, answer.stdout):
        yield float(found[1])
    elif not re.search(_NO_ROOM_AT_ALL, answer.stdout):
        raise SourceUnreadable(f"freesp -s: {answer.stdout[-120:]!r}: expected a line 'average free extent size N'")


def _fragmented(where: Component, mount: Mount, size: float, settings: StorageXfsSettings) -> Finding:
    limit = settings.min_average_blocks
    message = f"free extents of {mount.point} ({mount.source}) average {size:.3g} blocks; expected {limit:g} or more"
    return FRAGMENTED.at(where, message, average_blocks=size, limit_blocks=limit, device=mount.source)
