"""The check ``lustre.mount``: whether the node's Lustre file systems are mounted, and writable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from msgspec import Struct

from healthd.checklib.host_text import uptime_s
from healthd.core.check import FindingCode, check, judged, nothing_expected
from healthd.core.model import Component, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Mount, Node
from healthd.core.setting_types import GraceSeconds, MountPoint

MISSING = FindingCode(
    code="lustre.missing",
    severity=Severity.CRITICAL,
    remedy=Remedy.ASK_HUMAN,
    meaning="A Lustre file system that jobs need is not mounted",
)
READ_ONLY = FindingCode(
    code="lustre.read_only",
    severity=Severity.CRITICAL,
    remedy=Remedy.ASK_HUMAN,
    meaning="A Lustre file system that jobs write to is mounted read-only",
)
AUTOMOUNT_WAITING = FindingCode(
    code="lustre.automount_waiting",
    severity=Severity.INFO,
    remedy=Remedy.NONE,
    meaning="A Lustre file system will be mounted when something first uses it",
)


class LustreMountSettings(Struct, frozen=True, kw_only=True):
    """The mounts that ``lustre.mount`` requires."""

    mounts: tuple[MountPoint, ...] = ()
    """The mount points where a Lustre file system must be, such as ``["/fsx"]``. Empty: none is required, so the check
    counts the Lustre mounts that exist, and none can be missing."""

    read_only: tuple[MountPoint, ...] = ()
    """Those of ``mounts`` that are read-only on purpose, such as a shared data set."""

    startup_grace_s: GraceSeconds = 120.0
    """For how long after boot, in seconds, a missing mount is unknown and not yet a finding: the system mounts it once
    the network is up, while healthd starts."""


@check("lustre.mount", interval_s=30, settings=LustreMountSettings, codes=(MISSING, READ_ONLY, AUTOMOUNT_WAITING))
def lustre_mount(node: Node, settings: LustreMountSettings) -> Result:
    """The Lustre file systems that jobs need are mounted, and writable.

    The check reads only the mount table, which never blocks, while any request to a Lustre mount may, for ever. It does
    not touch an unused automount, because the access that mounts it can hang. A mount that is missing or read-only
    keeps jobs off and asks the operator, and never reboots or replaces the node: the client did not lose it by itself,
    and if the server or the network is at fault every node has the same finding. ``lustre.io`` tests whether a mount
    answers.

    Sources: AWS, FSx for Lustre user guide (mount options, systemd automount, weekly maintenance window);
    aws-parallelcluster-cookbook PR 3245 (a mount line as it is on a node).
    """
    table = node.mounts()
    there = [mount for mount in table if mount.fstype == "lustre"]
    if not there and not settings.mounts:
        return nothing_expected("no Lustre file system is mounted, and none is configured in 'mounts'")
    findings = [finding for point in settings.mounts for finding in _judge(point, table, settings)]
    missing = [finding for finding in findings if finding.code == MISSING.code]
    up_s = uptime_s(node.proc.read("uptime")) if missing else inf
    early = missing if up_s < settings.startup_grace_s else []
    gaps = [f"{each.message}; booted {up_s:.0f} s ago, so it may still come" for each in early]
    readings = [
        Reading(component=_component(mount.point), name="lustre_read_only_bool", value="ro" in mount.options)
        for mount in there
    ]
    return judged([each for each in findings if each not in early], readings, undecided=gaps)


def _judge(point: str, table: Sequence[Mount], settings: LustreMountSettings) -> Iterator[Finding]:
    """The last mount of a point covers the ones below it; an automount stays below the file system that it mounted."""
    layers = [mount for mount in table if mount.point == point]
    top = layers[-1] if layers else None
    match top:
        case None:
            yield MISSING.at(_component(point), f"nothing is mounted on {point}; expected a Lustre file system")
        case Mount(fstype="lustre"):
            if "ro" in top.options and point not in settings.read_only:
                yield READ_ONLY.at(_component(point), f"{point} ({top.source}) is mounted read-only", source=top.source)
        case Mount(fstype="autofs"):
            yield AUTOMOUNT_WAITING.at(_component(point), f"{point} is an automount that no process has used yet")
        case _:
            message = f"{point} has type {top.fstype} ({top.source}); expected a Lustre file system"
            yield MISSING.at(_component(point), message, fstype=top.fstype, source=top.source)


def _component(point: str) -> Component:
    return Component(kind="mount", id=point)
