"""Real objects of the kernel that runs here: the check that is meant looks through the real Machine, the others at the
simulated node. ``tests/live/kernel`` goes deeper into each of them.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

from msgspec.structs import replace

from healthd.checks import host_filesystems, lustre_io
from healthd.config.schema.config import Config
from healthd.core.check import discover, judged
from healthd.core.model import Component, Status
from healthd.core.node import KernelLogState
from healthd.sources.filesystem import FilesystemSource
from healthd.sources.kmsg import KernelLog
from healthd.sources.machine import Machine, open_machine
from tests.faults.case import Case, Made
from tests.faults.rig import Rig
from tests.support.kernel_objects import (
    KMSG,
    LINK,
    ROUTE,
    UP,
    Ext4Disk,
    FuseDisk,
    NotHere,
    ext4_disk,
    fuse_disk,
    host_network_after,
    others,
    tmpfs,
    write_kmsg,
)
from tests.support.limits import limit_s

# Of what hangs; and of what answers in the end, however busy the machine is.
_DEADLINE_S, _ANSWERS_IN_S = 0.5, 60.0


def machine(rig: Rig, *, deadline_s: float = _ANSWERS_IN_S) -> Machine:
    """The machine that this runs on, as a daemon sees it; its workers end with the case."""
    log = KernelLogState(source=KMSG, alive=True)
    opened = open_machine(Config(), lambda: log)
    opened = replace(opened, file_systems=FilesystemSource(deadline_s=deadline_s))
    rig.cleanup.callback(_close, opened)
    return opened


def _close(opened: Machine) -> None:
    """The mounts are gone by now, so whoever hung on them ends, and is reaped by being seen."""
    opened.close()
    until = time.monotonic() + limit_s(5)
    while any(state.abandoned for state in opened.file_systems.states().values()) and time.monotonic() < until:
        time.sleep(0.02)


def folder(rig: Rig) -> Path:
    """An empty folder."""
    return Path(mkdtemp(dir=rig.root))


# -- FUSE: lustre.io --------------------------------------------------------------------------------------------------


def on_fuse(
    *words: str,
    hung_after_s: float = 60.0,
    slow_after_s: float = _ANSWERS_IN_S,
    then: Callable[[FuseDisk], None] | None = None,
) -> Any:
    """A FUSE mount whose server does as it is told: ``hang:write``, ``fail:statfs:EIO``."""
    hangs = any(word.startswith("hang:") for word in words)

    def arrange(rig: Rig) -> None:
        opened = machine(rig, deadline_s=_DEADLINE_S if hangs else _ANSWERS_IN_S)
        disk = rig.cleanup.enter_context(fuse_disk(folder(rig)))
        rig.has_real("lustre.io", opened, {str(disk.point): "/fsx"})
        settings = lustre_io.LustreIoSettings(
            fstypes=("fuse.healthd",),
            ignore=others(opened.mounts(), disk.point),
            slow_after_s=slow_after_s,
            hung_after_s=hung_after_s,
            size_bytes=1 << 16,
        )
        rig.set("lustre.io", settings)
        disk.becomes(*words)
        if then is not None:
            then(disk)

    return arrange


def hanging(operation: str) -> Callable[[Rig], Iterator[float]]:
    """It does not answer, for longer than it may."""

    def arrange(rig: Rig) -> Iterator[float]:
        on_fuse(f"hang:{operation}", hung_after_s=0.1)(rig)
        yield 120.0

    return arrange


def server_ends(disk: FuseDisk) -> None:
    """Its connection is aborted."""
    disk.server.kill()
    disk.server.wait(limit_s(10))


def fuse(state: str, arrange: Any, diagnosis: str = "", **more: Any) -> Case:
    """A case of a FUSE mount."""
    return Case(check="lustre.io", state=f"FUSE: {state}", made=Made.FUSE, arrange=arrange, diagnosis=diagnosis, **more)


_HUNG, _ERROR = "lustre.io.hung@mount:/fsx warning ask_human", "lustre.io.error@mount:/fsx warning ask_human"
_BLIND: dict[str, Any] = {"status": Status.UNKNOWN, "unknown": frozenset({"lustre.io"})}
FUSE = (
    fuse("answers", on_fuse()),
    *(fuse(f"{act} hangs", hanging(act), _HUNG) for act in ("statfs", "write", "unlink")),
    fuse("write has just begun to hang", on_fuse("hang:write"), **_BLIND),
    fuse("statfs fails with EIO", on_fuse("fail:statfs:EIO"), _ERROR),
    fuse("fsync fails with EIO", on_fuse("fail:fsync:EIO"), _ERROR),
    fuse("create fails with ESTALE", on_fuse("fail:create:ESTALE"), _ERROR),
    fuse("its server has ended", on_fuse(then=server_ends), _ERROR),
    fuse("write fails with ENOSPC", on_fuse("fail:write:ENOSPC"), "lustre.io.full@mount:/fsx warning ask_human"),
    fuse("other bytes come back", on_fuse("corrupt:read"), "lustre.io.corrupt@mount:/fsx warning ask_human"),
    fuse("create is refused with EACCES", on_fuse("fail:create:EACCES")),
    fuse(
        "fsync is slow",
        on_fuse("slow:fsync:0.2", slow_after_s=0.1),
        "lustre.io.slow@mount:/fsx warning watch",
        lasts_s=300.0,
        every_s=150.0,
    ),
)


def on_tmpfs(rig: Rig) -> None:
    """A tmpfs with less room than the file needs."""
    opened = machine(rig)
    point = rig.cleanup.enter_context(tmpfs(folder(rig)))
    rig.has_real("lustre.io", opened, {str(point): "/fsx"})
    rig.set("lustre.io", lustre_io.LustreIoSettings(fstypes=("tmpfs",), ignore=others(opened.mounts(), point)))


# -- ext4: host.filesystems -------------------------------------------------------------------------------------------


def on_ext4(*happens: Callable[[Ext4Disk], None], writable: bool = True) -> Callable[[Rig], None]:
    """A fresh ext4 file system to which this happens."""

    def arrange(rig: Rig) -> None:
        opened = machine(rig)
        disk = rig.cleanup.enter_context(ext4_disk(folder(rig)))
        rig.has_real("host.filesystems", opened, {str(disk.point): "/scratch"})
        must = (str(disk.point),) if writable else ()
        settings = host_filesystems.FsSettings(writable=must, ignore=others(opened.mounts(), disk.point))
        rig.set("host.filesystems", settings)
        for each in happens:
            each(disk)

    return arrange


def shown_as(word: str) -> Callable[[Ext4Disk], None]:
    """Only where the kernel has this word for it."""

    def look(disk: Ext4Disk) -> None:
        with open("/proc/self/mountinfo", encoding="utf-8") as table:
            if not any(str(disk.point) in line and word in line for line in table):
                raise NotHere(f"needs a kernel that shows {word} in the mount options (Linux 6.15)")

    return look


def ext4(state: str, arrange: Any, diagnosis: str = "", **more: Any) -> Case:
    """A case of a loop-mounted ext4."""
    name = f"ext4: {state}"
    return Case(check="host.filesystems", state=name, made=Made.EXT4, arrange=arrange, diagnosis=diagnosis, **more)


_READ_ONLY = "host.filesystem.read_only@mount:/scratch critical reboot_node"
EXT4 = (
    ext4("fresh", on_ext4()),
    ext4("an error that the kernel was made to meet", on_ext4(Ext4Disk.meets_an_error), _READ_ONLY),
    ext4(
        "an error, and nobody said that it must be writable",
        on_ext4(Ext4Disk.meets_an_error, shown_as("emergency_ro"), writable=False),
        _READ_ONLY,
    ),
    ext4(
        "an error, and mounted again",
        on_ext4(Ext4Disk.meets_an_error, Ext4Disk.is_remounted),
        "host.filesystem.errors@mount:/scratch warning watch",
    ),
    ext4(
        "mounted read-only",
        on_ext4(lambda disk: disk.is_remounted("-o", "ro")),
        "host.filesystem.not_writable@mount:/scratch warning ask_human",
    ),
    ext4("filled", on_ext4(Ext4Disk.is_filled), "host.filesystem.full@mount:/scratch critical watch"),
    ext4("shut down", on_ext4(Ext4Disk.is_shut_down, shown_as("shutdown")), _READ_ONLY),
)

# -- network namespaces: host.network ---------------------------------------------------------------------------------


def in_namespace(*commands: str) -> Callable[[Rig], None]:
    """What host.network finds in a namespace of its own, after these commands."""

    def arrange(rig: Rig) -> None:
        seen = host_network_after(*commands)
        codes = {code.code: code for code in discover()["host.network"].codes}
        found = cast("Sequence[tuple[str, str, str]]", seen["findings"])
        parts = [(codes[code], Component(kind=kind, id=name)) for code, kind, name in found]
        findings = [code.at(part, "seen in the namespace") for code, part in parts]
        rig.results["host.network"] = judged(findings)

    return arrange


def namespace(state: str, commands: Sequence[str], diagnosis: str = "", *symptoms: str) -> Case:
    """A case of a namespace with a veth pair."""
    arrange, name = in_namespace(LINK, *UP, *commands), f"namespace: {state}"
    made = Made.NAMESPACE
    return Case(check="host.network", state=name, made=made, arrange=arrange, diagnosis=diagnosis, symptoms=symptoms)


NAMESPACES = (
    namespace("up, with a route", ROUTE),
    namespace(
        "the other end is down",
        (*ROUTE, "ip link set two down"),
        "host.network.link_down@interface:one warning ask_human",
    ),
    namespace("no default route", ROUTE[:1], "host.network.no_route@node warning ask_human"),
    namespace(
        "the interface is gone, and the route with it",
        (*ROUTE, "ip link del one"),
        "host.network.missing@interface:one warning ask_human",
        "host.network.no_route@node",
    ),
)

# -- /dev/kmsg --------------------------------------------------------------------------------------------------------


def through_kmsg(*, trust: bool) -> Callable[[Rig], None]:
    """A record that a user writes, as the real reader of the real device lets it in or not."""

    def arrange(rig: Rig) -> None:
        if not os.access(KMSG, os.R_OK | os.W_OK):
            raise NotHere(f"needs a {KMSG} that can be read and written")
        tag = uuid.uuid4().hex
        uptime_s = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        log = KernelLog(
            KMSG,
            boot_id=rig.node.boot_id,
            boot_time=datetime.now(UTC) - timedelta(seconds=uptime_s),
            needles=(tag.encode(),),
            trust_user_kmsg=trust,
        )
        rig.cleanup.callback(log.close)
        while not log.read_batch(0.0).caught_up:
            continue
        write_kmsg(f"NVRM: Xid (PCI:0000:75:00): 43, pid=7194, name=a.out, Ch 00000009 {tag}")
        rig.records = tuple(log.read_batch(0.3).records)

    return arrange


def kmsg(state: str, diagnosis: str = "", *, trust: bool) -> Case:
    """A case of the real device."""
    arrange = through_kmsg(trust=trust)
    return Case(check="kernel.xid", state=f"/dev/kmsg: {state}", made=Made.KMSG, arrange=arrange, diagnosis=diagnosis)


REST = (
    Case(
        check="lustre.io",
        state="tmpfs: no room for the file",
        made=Made.TMPFS,
        arrange=on_tmpfs,
        diagnosis="lustre.io.full@mount:/fsx warning ask_human",
    ),
    kmsg("a user's record, in a drill that admits them", "gpu.xid.43@gpu:2 info none", trust=True),
    kmsg("a user's record", trust=False),
)

CASES: tuple[Case, ...] = (*FUSE, *EXT4, *NAMESPACES, *REST)
