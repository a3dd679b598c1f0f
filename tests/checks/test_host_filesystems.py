"""host.filesystems: an error, a choice and a shortage are three different things."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.checks.host_filesystems import FsSettings, host_filesystems
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import Holders, Mount, Space
from healthd.testing import Entry, FakeLink, FakeNode
from healthd.testing import codes as codes_of


def mount(point: str = "/", *options: str, fstype: str = "ext4", source: str = "/dev/nvme0n1p1") -> Mount:
    return Mount(point=point, fstype=fstype, source=source, options=frozenset(options or ("rw",)), device="259:1")


def space(free: float = 0.5, inodes: float = 0.5, total_inodes: int = 10_000) -> Space:
    return Space(
        total_bytes=10_000,
        available_bytes=int(10_000 * free),
        total_inodes=total_inodes,
        available_inodes=int(total_inodes * inodes),
        read_only=False,
    )


def run(
    *table: Mount,
    spaces: dict[str, Space | SourceError] | None = None,
    errors: str | SourceError = "0",
    holders: Holders | SourceError | None = None,
    sys: dict[str, Entry] | None = None,
    **settings: Any,
) -> Result:
    tree: dict[str, Entry] = {
        "dev/block/259:1": FakeLink("../../devices/pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1/nvme0n1p1"),
        "fs/ext4/nvme0n1p1/errors_count": errors,
    }
    given = {each.point: space() for each in table} if spaces is None else spaces
    held = {point: holders for point in given if holders is not None}
    node = FakeNode(mount_table=table, sys=tree if sys is None else sys, spaces=given, space_holders=held)
    return host_filesystems(node, FsSettings(**settings))


codes = partial(codes_of, family="host.filesystem.")


def test_writable_with_room() -> None:
    """A writable disk with room is ok, and its free shares are readings."""
    result = run(mount())
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "space_free_ratio": 0.5,
        "inodes_free_ratio": 0.5,
    }


@pytest.mark.parametrize("word", ["emergency_ro", "shutdown"])
def test_a_newer_kernel_says_emergency(word: str) -> None:
    """The kernel's own word beside rw is an error, on any mount point; nothing is asked of its space."""
    (finding,) = run(mount("/scratch", "rw", "errors=remount-ro", word), spaces={}).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "host.filesystem.read_only",
        Severity.CRITICAL,
        Remedy.REBOOT_NODE,
    )


def test_an_older_kernel_shows_ro_and_counts_the_error() -> None:
    """Read-only where it must be writable, with an error counted, is an error."""
    assert codes(run(mount("/", "rw", "ro", "errors=remount-ro"), spaces={}, errors="1")) == ["read_only"]


def test_read_only_without_an_error_asks_a_person() -> None:
    """Read-only where it must be writable, and no error: a choice or a mistake, never a reboot."""
    (finding,) = run(mount("/", "ro"), spaces={}).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "host.filesystem.not_writable",
        Severity.WARNING,
        Remedy.ASK_HUMAN,
    )


def test_a_read_only_mount_elsewhere_is_a_choice() -> None:
    """Read-only where nobody said writable is ok, and is not asked for room that it does not need."""
    assert run(mount("/images", "ro"), spaces={}).status is Status.OK
    assert run(mount("/", "ro"), spaces={}, writable=()).status is Status.OK


def test_recorded_errors() -> None:
    """An error counted on a file system that still takes writes is a warning to watch."""
    (finding,) = run(mount(), errors="3").findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "host.filesystem.errors",
        Severity.WARNING,
        Remedy.WATCH,
    )
    assert finding.evidence["errors_count"] == 3


@pytest.mark.parametrize("fstype", ["xfs", "btrfs"])
def test_other_kinds_keep_no_count(fstype: str) -> None:
    """A kind without an error count is judged by its options and its room."""
    assert run(mount(fstype=fstype), sys={}).status is Status.OK


def test_a_disk_that_sysfs_does_not_show() -> None:
    """In a container without the device's sysfs the count is left out, and the room is still judged."""
    assert codes(run(mount(), spaces={"/": space(free=0.001)}, sys={})) == ["full"]


@pytest.mark.parametrize(
    ("free", "inodes", "found"),
    [
        (0.05, 0.05, []),
        (0.049, 0.5, ["low"]),
        (0.5, 0.049, ["low"]),
        (0.01, 0.5, ["low"]),
        (0.0099, 0.5, ["full"]),
        (0.5, 0.0, ["full"]),
        (0.04, 0.0, ["full"]),
    ],
)
def test_room(free: float, inodes: float, found: list[str]) -> None:
    """Below 5 % of space or inodes is low, below 1 % full; the worse one names the finding, and there is one."""
    result = run(mount(), spaces={"/": space(free=free, inodes=inodes)})
    assert codes(result) == found
    assert all(finding.remedy is Remedy.WATCH for finding in result.findings)


def kept(users: float, root: float) -> Space:
    """A disk on which users have this share left, and root that share in all."""
    return replace(space(free=users, inodes=users), kept_bytes=int(10_000 * (root - users)), kept_inodes=5_000)


@pytest.mark.parametrize(("users", "root", "found"), [(0.0, 0.05, "low"), (0.0, 0.03, "low"), (0.0, 0.029, "full")])
def test_a_disk_is_full_when_root_has_nothing_left(users: float, root: float, found: str) -> None:
    """What ext4 keeps for root is out of any user's reach: a user who takes all the rest makes a warning. Of a small
    disk 2 % are the kernel's own, which root cannot take either."""
    assert codes(run(mount(), spaces={"/": kept(users, root)})) == [found]


def test_the_kernels_own_pool_of_ext4_is_small() -> None:
    """It has 16 MiB at most: of a large disk root may take all that is kept, and other kinds have no such pool."""
    large = replace(kept(0.0, 0.011), total_bytes=10**12, kept_bytes=11 * 10**9)
    assert codes(run(mount(), spaces={"/": large})) == ["low"]
    assert codes(run(mount(fstype="f2fs"), spaces={"/": kept(0.0, 0.011)})) == ["low"]


def test_btrfs_keeps_no_room_for_root() -> None:
    """Where it has no room for metadata it says so by f_bavail alone, and root cannot write either."""
    assert codes(run(mount(fstype="btrfs"), spaces={"/": kept(0.0, 0.5)})) == ["full"]


@pytest.mark.parametrize(
    ("holders", "words"),
    [
        (
            Holders(bytes_of={0: 10**9, 65534: 9 * 10**9}, files=3, whole=True),
            "used by uid 65534 9.0 GB, uid 0 1.0 GB",
        ),
        (Holders(bytes_of={7: 10**9}, files=3, whole=False), "uid 7 1.0 GB among the 3 files counted within a second"),
        (Holders(bytes_of={}, files=0, whole=True), "less than 1%"),
        (SourceTimeout("no answer"), "; the owners of its files were not counted: no answer"),
    ],
)
def test_a_full_disk_names_the_owners_of_its_files(holders: Holders | SourceError, words: str) -> None:
    """The uids that hold most stand in the finding, the largest first; without a count the disk is as full."""
    (finding,) = run(mount(), spaces={"/": space(free=0.0)}, holders=holders).findings
    assert words in finding.message


def test_a_file_system_that_counts_no_inodes() -> None:
    """No inodes in total means that they are not counted, not that none are left."""
    assert run(mount(fstype="btrfs"), spaces={"/": space(total_inodes=0)}).status is Status.OK


def test_limits_are_settings() -> None:
    """Both limits are the operator's."""
    spaces: dict[str, Space | SourceError] = {"/": space(free=0.2)}
    assert codes(run(mount(), spaces=spaces, min_free_ratio=0.3)) == ["low"]
    assert codes(run(mount(), spaces=spaces, min_free_ratio=0.3, full_free_ratio=0.25)) == ["full"]


def test_pseudo_and_network_file_systems_are_not_asked() -> None:
    """tmpfs, proc, NFS and Lustre are left alone: a question to the last two may hang."""
    table = [mount(f"/{kind}", fstype=kind, source=kind) for kind in ("tmpfs", "proc", "nfs4", "lustre", "overlay")]
    assert run(*table, spaces={}).status is Status.NOT_APPLICABLE


def test_one_disk_is_asked_once() -> None:
    """Bind mounts of one disk are one file system, asked at its shortest path, or where it must be writable."""
    result = run(mount("/data/bind"), mount("/data"), spaces={"/data": space(free=0.0)})
    assert [str(finding.component) for finding in result.findings] == ["mount:/data"]
    table = (mount("/a", "ro"), mount("/must/write", "ro"))
    assert codes(run(*table, spaces={}, writable=("/must/write",))) == ["not_writable"]


def test_a_covered_mount_is_not_there() -> None:
    """Of two mounts on one point the later is what programs see."""
    table = (mount("/", "ro", source="/dev/ram0"), mount("/", "rw"))
    assert run(*table).status is Status.OK


@pytest.mark.parametrize("point", ["/var/lib/kubelet/pods/x/volumes/y", "/snap", "/snap/core/1"])
def test_other_peoples_volumes_are_ignored(point: str) -> None:
    """Volumes of pods are their owners' to fill; a name that only begins alike is looked at."""
    assert run(mount(point), spaces={}).status is Status.NOT_APPLICABLE
    assert codes(run(mount("/snapshots"), spaces={"/snapshots": space(free=0.0)})) == ["full_data"]


DISKS = (mount("/"), mount("/scratch", source="/dev/nvme1n1"), mount("/var", source="/dev/nvme2n1"))


@pytest.mark.parametrize(
    ("point", "settings", "found"),
    [
        ("/", {}, "full"),
        ("/var", {}, "full"),
        ("/scratch", {}, "full_data"),
        ("/scratch", {"must_have_room": ("/scratch/home",)}, "full"),
        ("/scratch", {"writable": ("/", "/scratch")}, "full"),
        ("/var", {"must_have_room": ()}, "full_data"),
        ("/", {"writable": (), "must_have_room": ("/opt/healthd",)}, "full"),
    ],
)
def test_a_full_disk_keeps_jobs_off_where_the_system_writes(point: str, settings: dict[str, Any], found: str) -> None:
    """On the disk of a path that must have room it is critical, elsewhere a warning: a job's user fills scratch."""
    full: dict[str, Space | SourceError] = {
        each.point: space(free=0.0 if each.point == point else 0.5) for each in DISKS
    }
    (finding,) = run(*DISKS, spaces=full, **settings).findings
    assert (finding.code, finding.component.id) == (f"host.filesystem.{found}", point)
    assert finding.severity is (Severity.CRITICAL if found == "full" else Severity.WARNING)


def test_a_disk_that_is_mounted_twice_is_needed_by_either() -> None:
    """Scratch that holds /tmp by a bind mount must have room, whichever of its points is looked at."""
    table = (mount("/"), mount("/nv", source="/dev/nvme1n1"), mount("/tmp", source="/dev/nvme1n1"))
    spaces: dict[str, Space | SourceError] = {"/": space(), "/nv": space(free=0.0), "/tmp": space(free=0.0)}
    assert codes(run(*table, spaces=spaces, must_have_room=("/tmp",))) == ["full"]


def test_users_fill_their_tmp_and_only_that() -> None:
    """A /tmp of its own is its users' to fill: by default a warning, never a node that takes no job."""
    table = (mount("/"), mount("/tmp", source="/dev/nvme1n1"))
    assert codes(run(*table, spaces={"/": space(), "/tmp": space(free=0.0)})) == ["full_data"]


def test_a_mount_that_begins_alike_holds_nothing() -> None:
    """/variable is not above /var."""
    table = (mount("/"), mount("/variable", source="/dev/nvme1n1"))
    assert codes(run(*table, spaces={"/": space(), "/variable": space(free=0.0)})) == ["full_data"]


@pytest.mark.parametrize("error", [SourceTimeout("statvfs /: no answer in 5 s"), SourceUnreadable("statvfs /: EIO")])
def test_a_disk_that_does_not_answer_is_a_gap(error: SourceError) -> None:
    """A disk that does not answer is unknown and hides no other."""
    assert run(mount(), spaces={"/": error}).status is Status.UNKNOWN
    table = (mount("/"), mount("/scratch", source="/dev/nvme1n1"))
    result = run(*table, spaces={"/": error, "/scratch": space(free=0.0)})
    assert codes(result) == ["full_data"]
    assert result.undecided == (f"/: {error}",)


def test_xfs_that_has_stopped() -> None:
    """EIO for its own folder is its answer after an error; of another kind of file system it may be the disk's."""
    answer = SourceUnreadable("statvfs /: Input/output error (EIO)")
    (finding,) = run(mount(fstype="xfs"), spaces={"/": answer}).findings
    assert (finding.code, finding.severity) == ("host.filesystem.read_only", Severity.CRITICAL)
    assert finding.message == f"/ (/dev/nvme0n1p1) has stopped after an error: {answer}"
    assert run(mount(fstype="btrfs"), spaces={"/": answer}).status is Status.UNKNOWN


def test_an_unreadable_error_count_is_a_gap() -> None:
    """An error count that cannot be read is unknown, not zero."""
    assert run(mount(), errors=SourceUnreadable("errors_count: EIO")).status is Status.UNKNOWN
    odd = run(mount(), mount("/data", "rw", "emergency_ro", fstype="xfs", source="/dev/b"), errors="many", spaces={})
    assert (codes(odd), [gap.partition(":")[0] for gap in map(str, odd.undecided)]) == (["read_only"], ["/"])


@pytest.mark.parametrize("error", [SourceMissing("/proc: ENOENT"), SourceUnreadable("mountinfo line 3: …")])
def test_an_unreadable_table_is_unknown(error: SourceError) -> None:
    """A mount table that cannot be read is unknown."""
    with pytest.raises(type(error)):
        host_filesystems(FakeNode(mount_table=error), FsSettings())
