"""The check ``lustre.io``: whether a network file system answers, and writes and reads a small file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from healthd.core.check import FindingCode, check, judged, nothing_expected
from healthd.core.errors import SourceBusy, SourceError, SourceTimeout
from healthd.core.model import Component, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import FileProbe, Mount, Node
from healthd.core.setting_types import AbsolutePath, AtLeastOne, MountPoint, Seconds, Words

_ERRNO = re.compile(r"\((E[A-Z0-9]+)\)$")  # how a source ends what a file system answered
_NO_ROOM = frozenset({"ENOSPC", "EDQUOT"})
_WARNING, _ASK, _WATCH = Severity.WARNING, Remedy.ASK_HUMAN, Remedy.WATCH
_LONG = "A mount is slow to write, read or remove a small file"

HUNG = FindingCode(
    code="lustre.io.hung",
    severity=_WARNING,
    remedy=_ASK,
    meaning="A mount has not answered for a long time",
    symptom_of=("lustre.lbug", "lustre.assertion", "host.network.link_down"),
)
ERROR = FindingCode(code="lustre.io.error", severity=_WARNING, remedy=_ASK, meaning="A mount answers with errors")
FULL = FindingCode(
    code="lustre.io.full", severity=_WARNING, remedy=_ASK, meaning="A mount has no room for a small file"
)
CORRUPT = FindingCode(
    code="lustre.io.corrupt", severity=_WARNING, remedy=_ASK, meaning="A mount reads back other bytes than were written"
)
SLOW = FindingCode(code="lustre.io.slow", severity=_WARNING, remedy=_WATCH, meaning=_LONG, lasting_s=300.0)


class LustreIoSettings(Struct, frozen=True, kw_only=True):
    """The mounts that ``lustre.io`` asks, and when it calls them slow or hung."""

    fstypes: Words = ("lustre", "nfs", "nfs4")
    """The types of file system to ask, as the mount table names them."""

    ignore: tuple[MountPoint, ...] = ("/var/lib/kubelet",)
    """Mount points to skip, with everything below them: volumes of pods are their owners'."""

    folders: Mapping[MountPoint, AbsolutePath] = field(default_factory=dict)
    """Where the file is written, by mount point, such as ``{"/home" = "/home/healthd"}``. Default: the mount point
    itself, where an NFS server that squashes root refuses; a refusal is an answer, and no fault."""

    write: bool = True
    """Whether the check writes a file. Without it the check only calls statfs, which with Lustre's ``lazystatfs`` tests
    the metadata server and no object server."""

    size_bytes: AtLeastOne = 1 << 18
    """Size of the file. 256 KiB every two minutes from 1,000 nodes is 2 MB/s on the servers."""

    slow_after_s: Seconds = 2.0
    """A write, read or removal that takes longer is slow; it is a finding once that has lasted five minutes. FSx for
    Lustre answers small requests in milliseconds; a client that flushes a checkpoint at the same time may need a
    second."""

    hung_after_s: Seconds = 60.0
    """For how long a mount may leave requests unanswered before that is a finding. A fail-over of FSx for Lustre within
    its weekly window takes minutes and ends by itself; until this time has passed the mount is unknown."""


@check("lustre.io", interval_s=120, timeout_s=60, settings=LustreIoSettings, codes=(HUNG, ERROR, FULL, CORRUPT, SLOW))
def lustre_io(node: Node, settings: LustreIoSettings) -> Result:
    """Lustre and NFS mounts answer, and read back the small file that the check writes.

    Slow, hung and error are three findings. A worker of its own asks each mount, with a deadline; while one request is
    out no second one goes to that mount, and the other mounts are asked all the same. None of these is critical: a
    server or a network in trouble looks the same from every node, and no node can know that it is alone. The file is
    this node's own (``.healthd-probe-<node>``), removed at once, and never opened if it existed before. For a read-only
    mount the check only calls statfs; ``lustre.mount`` judges whether it should be read-only.

    Sources: pcluster-diag ("hang is a first-class failure"); Lustre manual, ``lazystatfs``; lustre-release
    ``import.c`` (a client waits for recovery without a limit); nfs(5), ``hard``.
    """
    asked = [mount for mount in _tops(node.mounts()) if _is_wanted(mount, settings)]
    if not asked:
        return nothing_expected(f"no file system of type {', '.join(settings.fstypes)} is mounted")
    results = [_ask(node, mount, settings) for mount in asked]
    findings = [finding for result in results for finding in result.findings]
    readings = [reading for result in results for reading in result.readings]
    return judged(findings, readings, undecided=[gap for result in results for gap in result.undecided])


def _tops(table: Sequence[Mount]) -> Sequence[Mount]:
    """The mounts that programs see: the last one of each point."""
    return tuple({mount.point: mount for mount in table}.values())


def _is_wanted(mount: Mount, settings: LustreIoSettings) -> bool:
    below = any(mount.point == point or mount.point.startswith(f"{point}/") for point in settings.ignore)
    return mount.fstype in settings.fstypes and not below


def _ask(node: Node, mount: Mount, settings: LustreIoSettings) -> Result:
    where = Component(kind="mount", id=mount.point)
    try:
        node.space(mount.point)
        if not settings.write or "ro" in mount.options:
            return judged([])
        probe = node.file_probe(mount.point, settings.folders.get(mount.point, ""), size_bytes=settings.size_bytes)
    except (SourceTimeout, SourceBusy) as error:
        return _silent(node, mount, where, str(error), settings)
    except SourceError as error:
        return _refused(mount, where, str(error))
    return judged(_findings(where, probe, settings), _readings(where, probe))


def _silent(node: Node, mount: Mount, where: Component, error: str, settings: LustreIoSettings) -> Result:
    """No answer in time: unknown at first, a finding once it has lasted."""
    state = node.mount_state(mount.point)
    if state.stalled_s < settings.hung_after_s:
        return judged([], undecided=[f"{mount.point}: {error}"])
    finding = HUNG.at(
        where,
        f"{mount.point} ({mount.source}) has not answered for {state.stalled_s:.0f} s",
        stalled_s=state.stalled_s,
        limit_s=settings.hung_after_s,
        last_error=error,
        abandoned_workers=state.abandoned,
    )
    return judged([finding])


def _refused(mount: Mount, where: Component, error: str) -> Result:
    """An error number is the file system's answer. Without one the worker failed, or the path cannot be seen."""
    answer = _ERRNO.search(error)
    if answer is None:
        return judged([], undecided=[f"{mount.point}: {error}"])
    code = FULL if answer[1] in _NO_ROOM else ERROR
    return judged([code.at(where, f"{mount.point}: {error}", source=mount.source, error=answer[1])])


def _findings(where: Component, probe: FileProbe, settings: LustreIoSettings) -> Iterator[Finding]:
    if not probe.same:
        yield CORRUPT.at(where, f"a test file of {probe.size_bytes} bytes came back with other bytes than were written")
    acts = {"write": probe.write_s, "read": probe.read_s, "unlink": probe.unlink_s}
    slow = {act: round(took_s, 3) for act, took_s in acts.items() if took_s > settings.slow_after_s}
    if slow:
        times = ", ".join(f"{act} {took_s:.1f} s" for act, took_s in slow.items())
        message = f"slow with a file of {probe.size_bytes} bytes: {times}; expected {settings.slow_after_s:g} s at most"
        yield SLOW.at(where, message, took_s=slow, limit_s=settings.slow_after_s, limit_source="settings.slow_after_s")


def _readings(where: Component, probe: FileProbe) -> Iterator[Reading]:
    yield Reading(component=where, name="file_probe_refused_bool", value=bool(probe.refused))
    if probe.refused:
        return
    for act, took_s in (("write", probe.write_s), ("read", probe.read_s), ("unlink", probe.unlink_s)):
        yield Reading(component=where, name=f"file_{act}_s", value=took_s)
        if act != "unlink" and took_s > 0:
            yield Reading(component=where, name=f"file_{act}_bytes_per_s", value=probe.size_bytes / took_s)
