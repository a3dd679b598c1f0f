"""Lustre and NFS mounts, the Lustre client, local NVMe disks and file systems, as files and answers are constructed.

What real file systems do is in ``cases_real``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from healthd.checks import host_filesystems, lustre_mount, storage_nvme
from healthd.core.errors import SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Status
from healthd.core.node import ProbeState, Space
from healthd.sim.host import IMPORTS_IN, lustre_files
from tests.faults.case import Case, Made
from tests.faults.cases_fabric import built, tool
from tests.faults.rig import Rig
from tests.support.healthy_node import QUICK, ROOM, SMART, smart_log

FSX = {"lustre.mount": lustre_mount.LustreMountSettings(mounts=("/fsx",))}
_ROOT = "26 1 259:1 / / {} - ext4 /dev/nvme0n1p1 {}"
_OSC = "osc/6cz4zbev-OST0000-osc-ffff8f1c0a5b8800/import"
_AUTOFS = "90 26 0:50 / /fsx rw,relatime shared:40 - autofs systemd-1 rw,fd=55,pgrp=1,timeout=0,direct"
_LUSTRE = "91 90 0:51 / /fsx {} shared:41 - lustre 192.168.50.246@tcp:/6cz4zbev {},flock,lazystatfs"


def faked(check: str, state: str, arrange: Callable[[Rig], Any], diagnosis: str = "", **more: Any) -> Case:
    """A case of what a source answers."""
    return built(check, state, arrange, diagnosis, **{"made": Made.FAKE, **more})


# -- lustre.mount -----------------------------------------------------------------------------------------------------


def remounted(*lines: str) -> Callable[[Rig], None]:
    """/fsx is mounted like this, and no other way."""

    def arrange(rig: Rig) -> None:
        rig.mounted(without="/fsx")
        for line in lines:
            rig.mounted(line)

    return arrange


MOUNT = (
    built(
        "lustre.mount",
        "missing",
        remounted(),
        "lustre.missing@mount:/fsx critical ask_human",
        settings=FSX,
    ),
    built(
        "lustre.mount",
        "another file system in its place",
        remounted("91 26 0:51 / /fsx rw shared:41 - ext4 /dev/nvme1n1 rw"),
        "lustre.missing@mount:/fsx critical ask_human",
        settings=FSX,
    ),
    built(
        "lustre.mount",
        "read-only",
        remounted(_AUTOFS, _LUSTRE.format("ro,noatime", "ro")),
        "lustre.read_only@mount:/fsx critical ask_human",
        settings=FSX,
    ),
    built(
        "lustre.mount",
        "an automount that nothing has used",
        remounted(_AUTOFS),
        "lustre.automount_waiting@mount:/fsx info none",
        settings=FSX,
    ),
    built("lustre.mount", "there, as configured", lambda rig: None, settings=FSX),
    built(
        "lustre.mount",
        "missing, and not configured",
        lambda rig: rig.mounted(without="/fsx"),
        status=Status.NOT_APPLICABLE,
    ),
)

# -- lustre.client ----------------------------------------------------------------------------------------------------


def says_of_itself(word: str) -> Callable[[Rig], None]:
    """What the client calls itself."""
    return lambda rig: rig.put("sys/fs/lustre/health_check", word)


def connection(state: str, release: str = "") -> Callable[[Rig], None]:
    """The state of the connection to one object server; ``release``: of a client that writes it where this one does."""

    def arrange(rig: Rig) -> None:
        if release:
            rig.take("sys/kernel/debug/lustre", "proc/fs/lustre", "sys/fs/lustre")
            for path, text in lustre_files(release).items():
                rig.put(path, text)
        path = f"{IMPORTS_IN[release or '2.15']}/{_OSC}"
        name, _, below = path.partition("/")
        rig.put(path, getattr(rig.node, name).read(below).replace("state: IDLE", f"state: {state}"))

    return arrange


_OST = "lustre:6cz4zbev-OST0000-osc"
CLIENT = (
    built("lustre.client", "LBUG", says_of_itself("healthy\nLBUG"), "lustre.lbug@node critical reboot_node"),
    built(
        "lustre.client",
        "NOT HEALTHY",
        says_of_itself("NOT HEALTHY"),
        "lustre.not_healthy@node warning ask_human",
    ),
    built("lustre.client", "an idle connection", connection("IDLE"), lasts_s=600.0),
    *(
        built(
            "lustre.client",
            f"a connection down for minutes, Lustre {release}",
            connection("DISCONN", release),
            f"lustre.disconnected@{_OST} warning watch",
            lasts_s=300.0,
        )
        for release in IMPORTS_IN
    ),
    built(
        "lustre.client",
        "evicted, and it lasts",
        connection("EVICTED"),
        f"lustre.disconnected@{_OST} warning watch",
        lasts_s=300.0,
    ),
    built("lustre.client", "a connection in recovery for a minute", connection("RECOVER"), lasts_s=60.0),
    built(
        "lustre.client",
        "a state that is not known",
        connection("NONSENSE"),
        status=Status.UNKNOWN,
        unknown=frozenset({"lustre.client"}),
    ),
    built(
        "lustre.client",
        "the states of the connections cannot be seen",
        lambda rig: rig.take("proc/fs/lustre"),
        status=Status.UNKNOWN,
        unknown=frozenset({"lustre.client"}),
    ),
)

# -- lustre.io --------------------------------------------------------------------------------------------------------


def probe(**answer: Any) -> Callable[[Rig], None]:
    """How long the small file took, or what came back."""

    def arrange(rig: Rig) -> None:
        rig.node.file_probes = {"/fsx": replace(QUICK, **answer)}

    return arrange


def refused(error: str) -> Callable[[Rig], None]:
    """The write ends with this error."""

    def arrange(rig: Rig) -> None:
        rig.node.file_probes = {"/fsx": SourceUnreadable(f"/fsx/.healthd-probe-node-1: write ({error})")}

    return arrange


def silent(stalled_s: float) -> Callable[[Rig], None]:
    """No answer, for so long."""

    def arrange(rig: Rig) -> None:
        rig.node.file_probes = {"/fsx": SourceTimeout("/fsx: no answer within 5 s")}
        rig.node.mount_states = {"/fsx": ProbeState(stalled_s=stalled_s, abandoned=1)}

    return arrange


def nfs(arrange: Callable[[Rig], None]) -> Callable[[Rig], None]:
    """The same on an NFS mount beside the Lustre one."""

    def both(rig: Rig) -> None:
        arrange(rig)
        rig.mounted("95 26 0:60 / /home rw,relatime shared:50 - nfs4 10.0.3.7:/home rw,vers=4.1,hard")
        rig.node.spaces = {**rig.node.spaces, "/home": ROOM}
        rig.node.file_probes = {"/fsx": QUICK, "/home": rig.node.file_probes["/fsx"]}
        rig.node.mount_states = {"/home": rig.node.mount_states.get("/fsx", ProbeState())}

    return both


IO = (
    faked("lustre.io", "hung", silent(75.0), "lustre.io.hung@mount:/fsx warning ask_human"),
    faked(
        "lustre.io",
        "no answer yet",
        silent(10.0),
        status=Status.UNKNOWN,
        unknown=frozenset({"lustre.io"}),
    ),
    faked("lustre.io", "error", refused("EIO"), "lustre.io.error@mount:/fsx warning ask_human"),
    faked("lustre.io", "no room", refused("ENOSPC"), "lustre.io.full@mount:/fsx warning ask_human"),
    faked("lustre.io", "over quota", refused("EDQUOT"), "lustre.io.full@mount:/fsx warning ask_human"),
    faked(
        "lustre.io",
        "other bytes than were written",
        probe(same=False),
        "lustre.io.corrupt@mount:/fsx warning ask_human",
    ),
    faked("lustre.io", "slow", probe(write_s=3.5), "lustre.io.slow@mount:/fsx warning watch", lasts_s=300.0),
    faked("lustre.io", "slow for a minute", probe(write_s=3.5), lasts_s=60.0),
    faked("lustre.io", "refused by root squash", probe(refused="EACCES")),
    faked("lustre.io", "NFS hung", nfs(silent(75.0)), "lustre.io.hung@mount:/home warning ask_human"),
    faked("lustre.io", "NFS error", nfs(refused("ESTALE")), "lustre.io.error@mount:/home warning ask_human"),
)

# -- storage.nvme -----------------------------------------------------------------------------------------------------


def disk_gone(rig: Rig) -> None:
    """The last local disk is not there."""
    rig.take("sys/class/nvme/nvme8")


def media(rig: Rig) -> Iterator[float]:
    """A media error more, and none after it."""
    rig.answers(smart_log("nvme1"), SMART.replace('"media_errors": 0', '"media_errors": 1'))
    yield 300.0
    yield 300.0


def uninstalled(rig: Rig) -> Iterator[float]:
    """A warning, and then nobody who could ask whether it is over."""
    rig.answers(smart_log("nvme1"), SMART.replace('"critical_warning": 0', '"critical_warning": 4'))
    yield 300.0
    rig.tools[smart_log("nvme1")] = SourceMissing("nvme: no such command")


NVME = (
    built("storage.nvme", "a disk is missing", disk_gone, "storage.nvme.missing@node warning ask_human"),
    built(
        "storage.nvme",
        "a disk fewer, as configured",
        disk_gone,
        settings={"storage.nvme": storage_nvme.StorageNvmeSettings(count=7)},
    ),
    built(
        "storage.nvme",
        "a controller is dead",
        lambda rig: rig.put("sys/class/nvme/nvme1/state", "dead"),
        "storage.nvme.not_live@nvme:nvme1 warning ask_human",
        lasts_s=60.0,
    ),
    tool(
        "storage.nvme",
        "SMART critical warning",
        lambda rig: rig.answers(smart_log("nvme1"), SMART.replace('"critical_warning": 0', '"critical_warning": 4')),
        "storage.nvme.smart@nvme:nvme1 warning ask_human",
    ),
    tool("storage.nvme", "a media error more", media, "storage.nvme.media@nvme:nvme1 warning watch"),
    tool(
        "storage.nvme",
        "nvme-cli is missing",
        lambda rig: rig.tools.update({smart_log("nvme1"): SourceMissing("nvme: no such command")}),
    ),
    tool(
        "storage.nvme",
        "a disk warns, then nvme-cli is removed",
        uninstalled,
        "storage.nvme.smart@nvme:nvme1 warning ask_human",
    ),
)

# -- host.filesystems -------------------------------------------------------------------------------------------------

_ERRORS = "sys/fs/ext4/nvme0n1p1/errors_count"


def root(mount: str, super_block: str, *, errors: int = 0) -> Callable[[Rig], None]:
    """The root file system with these options, and so many recorded errors."""

    def arrange(rig: Rig) -> None:
        rig.mounted(_ROOT.format(mount, super_block), without="/")
        rig.put(_ERRORS, str(errors))

    return arrange


def room(**numbers: int) -> Callable[[Rig], None]:
    """How much room the root has."""
    space = {"total_bytes": 1000, "available_bytes": 500, "total_inodes": 1000, "available_inodes": 500}

    def arrange(rig: Rig) -> None:
        rig.node.spaces = {**rig.node.spaces, "/": Space(**{**space, **numbers}, read_only=False)}

    return arrange


def scratch(rig: Rig) -> None:
    """A local disk for the files of jobs, and one of them has filled it."""
    rig.mounted("97 26 259:9 / /scratch rw,relatime - xfs /dev/md0 rw")
    full = Space(total_bytes=1000, available_bytes=0, total_inodes=1000, available_inodes=500, read_only=False)
    rig.node.spaces = {**rig.node.spaces, "/scratch": full}
    rig.tools[("xfs_spaceman", "-c", "freesp -s", "/scratch")] = SourceMissing("xfs_spaceman: no such command")


FILESYSTEMS = (
    built(
        "host.filesystems",
        "read-only by error: emergency_ro",
        root("rw,relatime", "rw,errors=remount-ro,emergency_ro", errors=1),
        "host.filesystem.read_only@mount:/ critical reboot_node",
    ),
    built(
        "host.filesystems",
        "read-only by error: ro, and errors counted",
        root("ro,relatime", "ro,errors=remount-ro", errors=3),
        "host.filesystem.read_only@mount:/ critical reboot_node",
    ),
    built(
        "host.filesystems",
        "read-only without an error",
        root("ro,relatime", "ro"),
        "host.filesystem.not_writable@mount:/ warning ask_human",
    ),
    built(
        "host.filesystems",
        "read-only, as configured",
        root("ro,relatime", "ro"),
        settings={"host.filesystems": host_filesystems.FsSettings(writable=())},
    ),
    built(
        "host.filesystems",
        "errors counted, writable",
        root("rw,relatime", "rw", errors=3),
        "host.filesystem.errors@mount:/ warning watch",
    ),
    faked("host.filesystems", "full", room(available_bytes=5), "host.filesystem.full@mount:/ critical watch"),
    faked(
        "host.filesystems",
        "no inodes",
        room(available_inodes=5),
        "host.filesystem.full@mount:/ critical watch",
    ),
    faked(
        "host.filesystems", "a user fills scratch", scratch, "host.filesystem.full_data@mount:/scratch warning watch"
    ),
    faked(
        "host.filesystems",
        "scratch is full, and must have room",
        scratch,
        "host.filesystem.full@mount:/scratch critical watch",
        settings={"host.filesystems": host_filesystems.FsSettings(must_have_room=("/scratch",))},
    ),
    faked("host.filesystems", "little room", room(available_bytes=30), "host.filesystem.low@mount:/ warning watch"),
)

CASES: tuple[Case, ...] = (*MOUNT, *CLIENT, *IO, *NVME, *FILESYSTEMS)
