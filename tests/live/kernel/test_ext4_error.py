"""A real ext4 file system that meets a real error, on the kernel that runs here.

An image in a file, a loop device, and the kernel's own trigger for an error: what it then shows in the mount table and
in sysfs is what host.filesystems must recognise.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from healthd.checks.host_filesystems import FsSettings, host_filesystems
from healthd.core.errors import SourceUnreadable
from healthd.core.model import Result, Severity, Status
from healthd.probe.fs_ops import FsFamily
from healthd.sources.mounts import parse_mountinfo
from healthd.sources.trees import FileTree
from healthd.testing import FakeNode
from tests.support.kernel_objects import Ext4Disk, NotHere, command, ext4_disk, statvfs

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount"),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Ext4Disk]:
    """A mounted ext4 file system on a loop device."""
    with ExitStack() as cleanup:
        try:
            made = cleanup.enter_context(ext4_disk(tmp_path))
        except NotHere as missing:
            pytest.skip(str(missing))
        yield made


def run_check(disk: Ext4Disk, *, writable: tuple[str, ...] = (), must_have_room: tuple[str, ...] = ()) -> Result:
    """host.filesystems on this disk alone, as the kernel shows it now."""
    table = parse_mountinfo(FileTree("/proc").read("self/mountinfo"))
    mine = [mount for mount in table if mount.point == str(disk.point)]
    assert len(mine) == 1
    node = FakeNode(mount_table=mine, sys=FileTree("/sys"), spaces={str(disk.point): statvfs(disk.point)})
    return host_filesystems(node, FsSettings(writable=writable, must_have_room=must_have_room))


def trigger_error(disk: Ext4Disk) -> None:
    try:
        disk.meets_an_error()
    except NotHere as missing:
        pytest.skip(str(missing))
    with pytest.raises(OSError, match="Read-only file system"):
        (disk.point / "new").touch()


def test_a_fresh_disk_is_ok(disk: Ext4Disk) -> None:
    """A new file system is ok, and must-be-writable is satisfied."""
    assert run_check(disk, writable=(str(disk.point),)).status is Status.OK


def test_a_real_error_is_found(disk: Ext4Disk) -> None:
    """After a real error, when writes fail, the check says read-only by error where the disk must be writable."""
    trigger_error(disk)
    (finding,) = run_check(disk, writable=(str(disk.point),)).findings
    assert finding.code == "host.filesystem.read_only"


def test_a_real_error_is_found_without_a_setting(disk: Ext4Disk) -> None:
    """Where the kernel marks the error in the options, nobody need have said that the disk must be writable."""
    trigger_error(disk)
    options = parse_mountinfo(FileTree("/proc").read("self/mountinfo"))
    if not any("emergency_ro" in mount.options for mount in options if mount.point == str(disk.point)):
        pytest.skip("needs a kernel that shows emergency_ro (Linux 6.15)")
    assert [finding.code for finding in run_check(disk).findings] == ["host.filesystem.read_only"]


def test_an_error_outlives_a_remount(disk: Ext4Disk) -> None:
    """Mounted again, the disk takes writes, and its recorded error is a warning until it is repaired."""
    trigger_error(disk)
    disk.is_remounted()
    (disk.point / "new").touch()
    (finding,) = run_check(disk, writable=(str(disk.point),)).findings
    assert finding.code == "host.filesystem.errors"
    assert int(disk.sysfs("errors_count").read_text()) >= 1


def test_a_disk_mounted_read_only_shows_no_error(disk: Ext4Disk) -> None:
    """Read-only by choice is told from read-only by error."""
    command("mount", "-o", "remount,ro", str(disk.point))
    assert run_check(disk).status is Status.OK
    (finding,) = run_check(disk, writable=(str(disk.point),)).findings
    assert finding.code == "host.filesystem.not_writable"


def test_a_full_disk(disk: Ext4Disk) -> None:
    """A disk filled to the brim is full: a warning, unless it must have room."""
    disk.is_filled()
    assert [finding.code for finding in run_check(disk).findings] == ["host.filesystem.full_data"]
    needed = run_check(disk, must_have_room=(f"{disk.point}/jobs",))
    assert [finding.code for finding in needed.findings] == ["host.filesystem.full"]


def test_a_user_who_takes_all_that_users_may_fills_no_disk_of_roots(disk: Ext4Disk) -> None:
    """ext4 keeps 5 % for root: what a user can fill is low, and root still writes."""
    disk.point.chmod(0o1777)
    writer = subprocess.run(
        ["dd", "if=/dev/zero", "of=mine", "bs=1k"],
        cwd=disk.point,  # its parents are not the user's to enter
        user=65534,
        group=65534,
        extra_groups=(),
        capture_output=True,
        check=False,
    )
    assert b"No space left" in writer.stderr
    found = run_check(disk, must_have_room=(str(disk.point),)).findings
    assert [(each.code, each.severity) for each in found] == [("host.filesystem.low", Severity.WARNING)]
    (disk.point / "root").write_bytes(bytes(1 << 16))


def test_a_shut_down_disk(disk: Ext4Disk) -> None:
    """A file system that was shut down under its users is found by the kernel's word for it."""
    disk.is_shut_down()
    options = parse_mountinfo(FileTree("/proc").read("self/mountinfo"))
    if not any("shutdown" in mount.options for mount in options if mount.point == str(disk.point)):
        pytest.skip("needs a kernel that shows shutdown in the options (Linux 6.15)")
    assert [finding.code for finding in run_check(disk).findings] == ["host.filesystem.read_only"]


def test_xfs_that_was_shut_down(tmp_path: Path) -> None:
    """Its options and its statvfs are those of a good one: the worker asks for its folder too."""
    with ExitStack() as cleanup:
        try:
            xfs = cleanup.enter_context(ext4_disk(tmp_path, make=("mkfs.xfs", "-q", "-f"), size_bytes=400 << 20))
        except NotHere as missing:
            pytest.skip(str(missing))
        question = {"path": str(xfs.point)}
        before = FsFamily().answer("statvfs", question)
        xfs.is_shut_down()
        assert statvfs(xfs.point).total_bytes == before["total_bytes"]
        with pytest.raises(SourceUnreadable, match=r"Input/output error \(EIO\)$"):
            FsFamily().answer("statvfs", question)
