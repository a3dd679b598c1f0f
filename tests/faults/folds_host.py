"""One fault of EFA, a disk, a mount or the host that several checks see at once: one diagnosis, with its symptoms."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.case import Case, Made
from tests.faults.cases_fabric import efa_gone, silent
from tests.faults.cases_host import edac, kernel_clock, put, replaced, tainted
from tests.faults.cases_kernel import LOST
from tests.faults.cases_storage import connection, nfs, root, says_of_itself
from tests.faults.cases_storage import silent as io_silent
from tests.faults.rig import Rig
from tests.faults.together import example, failed, fold, says, together

# -- EFA --------------------------------------------------------------------------------------------------------------

_LAST = "rdmap201s0"
_QUEUE = f"efa 0000:c9:00.0 {_LAST}: Admin queue is closed"
_ON_LAST = f"sys/bus/pci/devices/0000:c9:00.0/infiniband/{_LAST}/hw_counters"


def efa_dies(rig: Rig) -> Iterator[float]:
    """The driver gives up on its device."""
    rig.says(_QUEUE)
    rig.put(f"{_ON_LAST}/no_completion_cmds", "3")
    rig.put(f"{_ON_LAST}/cmds_err", "300")
    yield from silent(rig)


FABRIC = (
    fold(
        "kernel.efa",
        "admin queue closed, commands unanswered, no sign of life",
        efa_dies,
        f"efa.admin_queue@efa:{_LAST} critical reboot_node",
        f"efa.counters.no_completion@efa:{_LAST}",
        f"efa.counters.command_error@efa:{_LAST}",
        f"efa.counters.keep_alive@efa:{_LAST}",
        made=Made.TREE,
    ),
    fold(
        "efa.devices",
        "admin queue closed, then off the bus",
        together(says(_QUEUE), efa_gone),
        "efa.missing@node critical reboot_node",
        "efa.below_usual@node",
        f"efa.admin_queue@efa:{_LAST}",
        made=Made.TREE,
    ),
)

# -- storage ----------------------------------------------------------------------------------------------------------


def dead_disk(rig: Rig) -> None:
    """A controller that could not be reset."""
    codes = ("kernel.nvme_timeout", "kernel.nvme_reset", "kernel.nvme_lost", "kernel.io_error")
    rig.says(*map(example, codes))


_DEAD = tuple(f"kernel.{word}@disk:nvme1" for word in ("nvme_timeout", "nvme_reset", "nvme_lost", "io_error"))
_EXT4 = "EXT4-fs error (device nvme0n1p1): ext4_journal_check_start:84: comm systemd-journal: Detected aborted journal"
_OSC = "lustre:6cz4zbev-OST0000-osc"
STORAGE = (
    fold(
        "kernel.host",
        "an NVMe disk is lost, and what waited for it fails",
        dead_disk,
        "kernel.nvme_lost@disk:nvme1 warning ask_human",
        *(name for name in _DEAD if "lost" not in name),
        made=Made.LINE,
    ),
    fold(
        "storage.nvme",
        "lines of a disk, and its dead controller",
        together(dead_disk, put("sys/class/nvme/nvme1/state", "dead")),
        "storage.nvme.not_live@nvme:nvme1 warning ask_human",
        *_DEAD,
        made=Made.TREE,
        lasts_s=60.0,
    ),
    fold(
        "storage.nvme",
        "lines of a disk, and the disk is gone",
        together(dead_disk, lambda rig: rig.take("sys/class/nvme/nvme1")),
        "storage.nvme.missing@node warning ask_human",
        *_DEAD,
        made=Made.TREE,
    ),
    fold(
        "host.filesystems",
        "an ext4 error in the log, and no writes after it",
        together(says(_EXT4, "EXT4-fs (nvme0n1p1): Remounting filesystem read-only"), root("ro", "ro", errors=1)),
        "host.filesystem.read_only@mount:/ critical reboot_node",
        "kernel.fs_error@disk:nvme0",
        made=Made.TREE,
    ),
    fold(
        "host.filesystems",
        "an ext4 error in the log, and writes go on",
        together(says(_EXT4), root("rw", "rw", errors=1)),
        "kernel.fs_error@disk:nvme0 warning ask_human",
        "host.filesystem.errors@mount:/",
        made=Made.TREE,
    ),
    fold(
        "lustre.io",
        "a server is gone: hung, disconnected, lost connections, hung tasks",
        together(
            says(LOST, example("lustre.request_timeout"), example("kernel.hung_task")),
            connection("DISCONN"),
            io_silent(400.0),
        ),
        "lustre.io.hung@mount:/fsx warning ask_human",
        f"lustre.connection_lost@{_OSC}",
        f"lustre.disconnected@{_OSC}",
        "lustre.request_timeout@node",
        "kernel.hung_task@node",
        made=Made.FAKE,
        lasts_s=300.0,
    ),
    fold(
        "lustre.client",
        "LBUG in the log, by its own word, and the mount hangs",
        together(says(example("lustre.assertion")), says_of_itself("healthy\nLBUG"), io_silent(400.0)),
        "lustre.assertion@node critical reboot_node",
        "lustre.lbug@node",
        "lustre.io.hung@mount:/fsx",
        made=Made.TREE,
    ),
    fold(
        "lustre.io",
        "an NFS server does not answer, and the mount hangs",
        together(says(example("kernel.nfs_not_responding")), nfs(io_silent(75.0))),
        "lustre.io.hung@mount:/home warning ask_human",
        "kernel.nfs_not_responding@nfs:10.0.3.7",
        made=Made.FAKE,
    ),
)

# -- host -------------------------------------------------------------------------------------------------------------

HOST = (
    fold(
        "host.kernel",
        "soft lockup, in the log and as taint",
        together(says(example("kernel.soft_lockup")), tainted(14)),
        "kernel.soft_lockup@node warning watch",
        "host.kernel.soft_lockup@node",
        made=Made.TREE,
    ),
    fold(
        "host.kernel",
        "oops, in the log and as taint",
        together(says(example("kernel.bug"), example("kernel.bug", 2)), tainted(7)),
        "kernel.bug@node warning ask_human",
        "host.kernel.oops@node",
        made=Made.TREE,
    ),
    fold(
        "host.memory",
        "an uncorrected error: EDAC, machine check, lines and taint",
        together(says(example("kernel.hardware_error"), example("kernel.memory_uncorrected")), tainted(4), edac(0, 1)),
        "host.memory.uncorrected@memory:mc0 warning ask_human",
        "kernel.hardware_error@node",
        "kernel.memory_uncorrected@node",
        "host.kernel.machine_check@node",
        made=Made.TREE,
    ),
    fold(
        "host.memory",
        "out of memory, counted and in the log",
        together(says(example("kernel.oom")), replaced("proc/vmstat", "oom_kill 0", "oom_kill 1")),
        "kernel.oom@node warning watch",
        "host.memory.out_of_memory@node",
        made=Made.TREE,
    ),
    fold(
        "host.network",
        "a link is down: no route, and the file server does not answer",
        together(
            put("sys/class/net/eth0/operstate", "down"),
            put("proc/net/route", "Iface\tDestination\tGateway\tFlags"),
            says(LOST),
            connection("DISCONN"),
            io_silent(75.0),
        ),
        "host.network.link_down@interface:eth0 warning ask_human",
        "host.network.no_route@node",
        f"lustre.connection_lost@{_OSC}",
        "lustre.io.hung@mount:/fsx",
        made=Made.TREE,
    ),
    fold(
        "host.clock",
        "chronyd has failed, and nothing keeps the time",
        together(failed("chronyd.service"), kernel_clock(synchronised=False)),
        "host.clock.unsynchronised@node warning ask_human",
        "host.service.failed@service:chronyd.service",
        made=Made.FAKE,
        lasts_s=600.0,
    ),
)

CASES: tuple[Case, ...] = (*FABRIC, *STORAGE, *HOST)
