"""The check ``host.expect``: modules, processes and mounts that a site requires or forbids on its nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from healthd.checklib.host_text import processes, uptime_s
from healthd.core.check import FindingCode, check, judged, nothing_expected
from healthd.core.errors import SourceError
from healthd.core.model import NODE, Component, Finding, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import GraceSeconds, Word

_W, _ASK, _WATCH = Severity.WARNING, Remedy.ASK_HUMAN, Remedy.WATCH

MODULE = FindingCode(
    code="host.expect.module", severity=_W, remedy=_ASK, meaning="A kernel module that the site requires is not loaded"
)
PROCESS = FindingCode(
    code="host.expect.process", severity=_W, remedy=_ASK, meaning="A required process does not run", lasting_s=120.0
)
FORBIDDEN = FindingCode(
    code="host.expect.forbidden_process", severity=_W, remedy=_WATCH, meaning="A forbidden process runs"
)
MOUNT = FindingCode(
    code="host.expect.mount", severity=_W, remedy=_ASK, meaning="A mount is missing, or has another type or source"
)
YOUNG = FindingCode(
    code="host.expect.uptime", severity=_W, remedy=_WATCH, meaning="This node booted shortly ago, perhaps after a crash"
)
_CODES = (MODULE, PROCESS, FORBIDDEN, MOUNT, YOUNG)


class HostExpectSettings(Struct, frozen=True, kw_only=True):
    """The requirements of the site. Nothing is required unless you name it."""

    modules: tuple[Word, ...] = ()
    """Kernel modules that must be loaded or built in, as ``lsmod`` names them: ``["lustre", "nvidia_peermem"]``."""

    processes: tuple[Word, ...] = ()
    """Processes that must run, by the kernel's name of them (``ps -o comm``, 15 characters): ``["node_exporter"]``.
    Services of systemd are better named in ``host.services``, which also knows why one does not run."""

    forbidden_processes: tuple[Word, ...] = ()
    """Processes that must not run, by that name."""

    mounts: tuple[str, ...] = ()
    """Mounts that must exist: the mount point, and if you like its type and source, separated by spaces:
    ``["/home nfs4 fs-1:/home", "/scratch"]``. Lustre has ``lustre.mount``, which also knows automounts."""

    min_uptime_s: GraceSeconds = 0.0
    """A node that has been up for less than this, in seconds, is reported. 0: none is."""

    def __post_init__(self) -> None:
        """Refuse a line that names no mount point."""
        for line in self.mounts:
            point, *further = line.split() or [""]
            if not re.fullmatch(r"/(?:.*[^/])?", point) or len(further) > 2:
                words = "'POINT', 'POINT TYPE' or 'POINT TYPE SOURCE', the mount point without a / at its end"
                raise ValueError(f"mounts: {line!r}: expected {words}")


@check("host.expect", interval_s=120, settings=HostExpectSettings, codes=_CODES)
def host_expect(node: Node, settings: HostExpectSettings) -> Result:
    """The node has the modules, processes, mounts and uptime that the site requires.

    NHC's configurations ask for the same. Memory, processors and services have checks of their own, with settings for
    them. All findings are warnings.

    Sources: NHC 1.4.3 (check_fs_mount, check_ps_*); Linux, Documentation/ABI/stable/sysfs-module; proc_uptime(5),
    proc_pid_stat(5).
    """
    if settings == HostExpectSettings():
        return nothing_expected("no requirement is configured")
    findings, undecided = list[Finding](), list[str]()
    for part in (_modules, _processes, _mounts, _uptime):
        try:
            findings.extend(part(node, settings))
        except SourceError as error:
            undecided.append(str(error))
    return judged(findings, undecided=undecided)


def _modules(node: Node, settings: HostExpectSettings) -> Iterator[Finding]:
    for name in settings.modules:
        if not node.sys.exists(f"module/{name.replace('-', '_')}"):
            node.sys.names("module")  # without the host's /sys, nothing would be loaded
            yield MODULE.at(Component(kind="driver", id=name), f"module {name} is not loaded")


def _processes(node: Node, settings: HostExpectSettings) -> Iterator[Finding]:
    if not settings.processes and not settings.forbidden_processes:
        return
    running = frozenset(each.name for each in processes(node.proc))
    for name in settings.processes:
        if name[:15] not in running:
            yield PROCESS.at(Component(kind="process", id=name), f"process {name} does not run; it is required")
    for name in settings.forbidden_processes:
        if name[:15] in running:
            yield FORBIDDEN.at(Component(kind="process", id=name), f"process {name} runs; it is forbidden here")


def _mounts(node: Node, settings: HostExpectSettings) -> Iterator[Finding]:
    table = {mount.point: mount for mount in node.mounts()} if settings.mounts else {}
    for line in settings.mounts:
        point, *wanted = line.split()
        found = table.get(point)
        if found is None:
            yield MOUNT.at(_mount(point), f"nothing is mounted on {point}", expected=line)
        elif wanted != [found.fstype, found.source][: len(wanted)]:
            message = f"{point} is {found.fstype} of {found.source}; expected {' of '.join(wanted)}"
            yield MOUNT.at(_mount(point), message, expected=line, fstype=found.fstype, source=found.source)


def _mount(point: str) -> Component:
    return Component(kind="mount", id=point)


def _uptime(node: Node, settings: HostExpectSettings) -> Iterator[Finding]:
    if not settings.min_uptime_s:
        return
    up_s = uptime_s(node.proc.read("uptime"))
    if up_s < settings.min_uptime_s:
        message = f"the node booted {up_s:.0f} s ago; expected at least {settings.min_uptime_s:g} s"
        yield YOUNG.at(NODE, message, uptime_s=up_s, limit_s=settings.min_uptime_s)
