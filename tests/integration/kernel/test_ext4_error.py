"""A real ext4 file system that meets a real error, on the kernel that runs here.

An image in a file, a loop device, and the kernel's own trigger for an error: what it then shows in the mount table and
in sysfs is what host.filesystems must recognise.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from healthd.checks.host_filesystems import Settings, host_filesystems
from healthd.model import Result, Status
from healthd.node import Space
from healthd.sources.mounts import parse_mountinfo
from healthd.sources.trees import FileTree
from healthd.testing import FakeNode

TOOLS = ("losetup", "mkfs.ext4", "mount", "umount")
IMAGE_BYTES = 8 << 20
EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), fs/ext4/ext4.h
GOING_FLAGS_NOLOGFLUSH = b"\x02\x00\x00\x00"

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount"),
    pytest.mark.skipif(
        not all(shutil.which(tool) for tool in TOOLS), reason=f"needs {', '.join(TOOLS)} (mount, e2fsprogs)"
    ),
]


@dataclass
class Disk:
    """A mounted ext4 file system on a loop device."""

    point: Path
    device: str

    def run_check(self, *, writable: tuple[str, ...] = ()) -> Result:
        """host.filesystems on this disk alone, as the kernel shows it now."""
        table = parse_mountinfo(FileTree("/proc").read("self/mountinfo"))
        mine = [mount for mount in table if mount.point == str(self.point)]
        assert len(mine) == 1
        node = FakeNode(mount_table=mine, sys=FileTree("/sys"), spaces={str(self.point): statvfs(self.point)})
        return host_filesystems(node, Settings(writable=writable))

    def sysfs(self, name: str) -> Path:
        """A file of this file system's folder in sysfs."""
        return Path("/sys/fs/ext4", Path(self.device).name, name)


def statvfs(point: Path) -> Space:
    answer = os.statvfs(point)
    return Space(
        total_bytes=answer.f_blocks * answer.f_frsize,
        available_bytes=answer.f_bavail * answer.f_frsize,
        total_inodes=answer.f_files,
        available_inodes=answer.f_favail,
        read_only=bool(answer.f_flag & os.ST_RDONLY),
    )


def command(*argv: str) -> str:
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if ran.returncode:
        raise OSError(f"{' '.join(argv)}: exit {ran.returncode}: {ran.stderr.strip()}")
    return ran.stdout.strip()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    image, point = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    point.mkdir()
    command("mkfs.ext4", "-q", "-F", str(image))
    with ExitStack() as cleanup:
        try:
            device = command("losetup", "--find", "--show", str(image))
        except OSError as error:
            pytest.skip(f"needs a loop device: {error}")
        cleanup.callback(command, "losetup", "--detach", device)
        command("mount", "-t", "ext4", "-o", "errors=remount-ro", device, str(point))
        cleanup.callback(command, "umount", str(point))
        yield Disk(point=point, device=device)


def trigger_error(disk: Disk) -> None:
    trigger = disk.sysfs("trigger_fs_error")
    if not trigger.exists():
        pytest.skip(f"needs {trigger}, which this kernel does not have")
    trigger.write_text("1")
    with pytest.raises(OSError, match="Read-only file system"):
        (disk.point / "new").touch()


def test_a_fresh_disk_is_ok(disk: Disk) -> None:
    """A new file system is ok, and must-be-writable is satisfied."""
    assert disk.run_check(writable=(str(disk.point),)).status is Status.OK


def test_a_real_error_is_found(disk: Disk) -> None:
    """After a real error, when writes fail, the check says read-only by error where the disk must be writable."""
    trigger_error(disk)
    (finding,) = disk.run_check(writable=(str(disk.point),)).findings
    assert finding.code == "host.filesystem.read_only"


def test_a_real_error_is_found_without_a_setting(disk: Disk) -> None:
    """Where the kernel marks the error in the options, nobody need have said that the disk must be writable."""
    trigger_error(disk)
    options = parse_mountinfo(FileTree("/proc").read("self/mountinfo"))
    if not any("emergency_ro" in mount.options for mount in options if mount.point == str(disk.point)):
        pytest.skip("needs a kernel that shows emergency_ro (Linux 6.15)")
    assert [finding.code for finding in disk.run_check().findings] == ["host.filesystem.read_only"]


def test_an_error_outlives_a_remount(disk: Disk) -> None:
    """Mounted again, the disk takes writes, and its recorded error is a warning until it is repaired."""
    trigger_error(disk)
    command("umount", str(disk.point))
    command("mount", "-t", "ext4", disk.device, str(disk.point))
    (disk.point / "new").touch()
    (finding,) = disk.run_check(writable=(str(disk.point),)).findings
    assert finding.code == "host.filesystem.errors"
    assert int(disk.sysfs("errors_count").read_text()) >= 1


def test_a_disk_mounted_read_only_shows_no_error(disk: Disk) -> None:
    """Read-only by choice is told from read-only by error."""
    command("mount", "-o", "remount,ro", str(disk.point))
    assert disk.run_check().status is Status.OK
    (finding,) = disk.run_check(writable=(str(disk.point),)).findings
    assert finding.code == "host.filesystem.not_writable"


def test_a_full_disk(disk: Disk) -> None:
    """A disk filled to the brim is full."""
    with pytest.raises(OSError, match="No space left on device"):
        (disk.point / "big").write_bytes(b"x" * 2 * IMAGE_BYTES)
    assert [finding.code for finding in disk.run_check().findings] == ["host.filesystem.full"]


def test_a_shut_down_disk(disk: Disk) -> None:
    """A file system that was shut down under its users is found by the kernel's word for it."""
    folder = os.open(disk.point, os.O_RDONLY)
    try:
        fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, GOING_FLAGS_NOLOGFLUSH)
    finally:
        os.close(folder)
    options = parse_mountinfo(FileTree("/proc").read("self/mountinfo"))
    if not any("shutdown" in mount.options for mount in options if mount.point == str(disk.point)):
        pytest.skip("needs a kernel that shows shutdown in the options (Linux 6.15)")
    assert [finding.code for finding in disk.run_check().findings] == ["host.filesystem.read_only"]
