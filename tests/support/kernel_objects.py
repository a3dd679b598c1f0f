"""Real objects of the kernel that runs here, made to break: FUSE mounts, ext4 on a loop device, tmpfs, network
namespaces, /dev/kmsg.

Values and context managers; nothing here asserts or skips. Where this machine cannot make one, NotHere says why.
Everything that is made is gone when its context ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from healthd.core.node import Mount, Space
from tests.support.limits import limit_s

ROOT = Path(__file__).parents[2]
FUSE_SERVER = ROOT / "tests/live/kernel/fuse_disk.py"
KMSG = "/dev/kmsg"
DISK_TOOLS = ("losetup", "mount", "umount")
EXT4_TOOLS = ("mkfs.ext4", *DISK_TOOLS)
NETWORK_TOOLS = ("unshare", "mount", "ip")
IMAGE_BYTES = 8 << 20
_EXT4 = ("mkfs.ext4", "-q", "-F")
_EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), fs/ext4/ext4.h
_GOING_FLAGS_NOLOGFLUSH = b"\x02\x00\x00\x00"


class NotHere(Exception):
    """This machine cannot make such an object; the text says what is missing."""


def command(*argv: str) -> str:
    """What a tool prints. Raises OSError for one that fails."""
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s(30), check=False)
    if ran.returncode:
        raise OSError(f"{' '.join(argv)}: exit {ran.returncode}: {ran.stderr.strip()}")
    return ran.stdout.strip()


def require(*tools: str, root: bool = True) -> None:
    """Raise NotHere without these tools, or without root."""
    if root and os.geteuid() != 0:
        raise NotHere("needs root")
    if missing := [tool for tool in tools if not shutil.which(tool)]:
        raise NotHere(f"needs {', '.join(missing)}")


# -- FUSE -------------------------------------------------------------------------------------------------------------


class FuseDisk(Struct):
    """A mounted FUSE file system; what its server does is what the control file says."""

    point: Path
    control: Path
    server: subprocess.Popen[str]

    def becomes(self, *words: str) -> None:
        """From the next request on, and for the ones that are held."""
        fresh = self.control.with_suffix(".new")
        fresh.write_text(" ".join(words))
        fresh.replace(self.control)


@contextmanager
def fuse_disk(folder: Path, name: str = "fsx") -> Iterator[FuseDisk]:
    """A FUSE file system on ``folder/name``. Ending its server aborts its connection, and frees whoever hangs on it."""
    require()
    if not os.path.exists("/dev/fuse"):
        raise NotHere("needs /dev/fuse")
    point, control = folder / name, folder / f"{name}.control"
    point.mkdir()
    control.write_text("")
    argv = [sys.executable, str(FUSE_SERVER), str(point), str(control)]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stderr is not None
        if server.stdout.readline() != "ready\n":
            raise NotHere(f"FUSE cannot be mounted here: {server.stderr.read()[-300:]}")
        yield FuseDisk(point=point, control=control, server=server)
    finally:
        server.kill()
        server.communicate(timeout=limit_s(10))
        subprocess.run(["umount", "--lazy", str(point)], check=False, capture_output=True, timeout=limit_s(10))


# -- ext4 and tmpfs ---------------------------------------------------------------------------------------------------


class Ext4Disk(Struct):
    """A mounted ext4 file system on a loop device."""

    point: Path
    device: str

    def sysfs(self, name: str) -> Path:
        """A file of this file system's folder in sysfs."""
        return Path("/sys/fs/ext4", Path(self.device).name, name)

    def meets_an_error(self) -> None:
        """The kernel's own trigger; afterwards writes fail."""
        trigger = self.sysfs("trigger_fs_error")
        if not trigger.exists():
            raise NotHere(f"needs {trigger}, which this kernel does not have")
        trigger.write_text("1")

    def is_remounted(self, *options: str) -> None:
        """Unmounted and mounted again."""
        command("umount", str(self.point))
        command("mount", "-t", "ext4", *options, self.device, str(self.point))

    def is_filled(self) -> None:
        """To the brim, root's own part included: a large write is refused before that is used up."""
        try:
            with (self.point / "big").open("wb", buffering=0) as file:
                for _ in range(2 * IMAGE_BYTES // 1024):
                    file.write(bytes(1024))
        except OSError:
            return
        raise NotHere(f"{self.point} took twice its size")

    def is_shut_down(self) -> None:
        """Under its users, by the kernel's own call for it."""
        folder = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _EXT4_IOC_SHUTDOWN, _GOING_FLAGS_NOLOGFLUSH)
        finally:
            os.close(folder)


@contextmanager
def ext4_disk(folder: Path, *, make: Sequence[str] = _EXT4, size_bytes: int = IMAGE_BYTES) -> Iterator[Ext4Disk]:
    """A fresh ext4 file system in a file, on a loop device, mounted on ``folder/disk``; or what ``make`` makes."""
    require(make[0], *DISK_TOOLS)
    image, point = folder / "image", folder / "disk"
    with image.open("wb") as file:
        file.truncate(size_bytes)
    point.mkdir()
    command(*make, str(image))
    with ExitStack() as cleanup:
        try:
            device = command("losetup", "--find", "--show", str(image))
        except OSError as error:
            raise NotHere(f"needs a loop device: {error}") from error
        cleanup.callback(command, "losetup", "--detach", device)
        options = ("-o", "errors=remount-ro") if make == _EXT4 else ()
        command("mount", *options, device, str(point))
        cleanup.callback(command, "umount", str(point))
        yield Ext4Disk(point=point, device=device)


def others(mounts: Iterable[Mount], *points: Path) -> tuple[str, ...]:
    """The mount points among ``mounts`` to be ignored so that the file systems on these points are judged alone. One
    that they lie below is not among them: what is ignored is ignored with all that is mounted below it."""
    return tuple(mount.point for mount in mounts if not any(point.is_relative_to(mount.point) for point in points))


@contextmanager
def tmpfs(folder: Path, *, size: str = "64k") -> Iterator[Path]:
    """A tmpfs of this size on ``folder/small``."""
    require("mount", "umount")
    point = folder / "small"
    point.mkdir()
    try:
        command("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(point))
    except OSError as error:
        raise NotHere(f"tmpfs cannot be mounted here: {error}") from error
    try:
        yield point
    finally:
        command("umount", str(point))


def statvfs(point: Path) -> Space:
    """statvfs of a mount that does not hang."""
    answer = os.statvfs(point)
    return Space(
        total_bytes=answer.f_blocks * answer.f_frsize,
        available_bytes=answer.f_bavail * answer.f_frsize,
        total_inodes=answer.f_files,
        available_inodes=answer.f_favail,
        kept_bytes=(answer.f_bfree - answer.f_bavail) * answer.f_frsize,
        kept_inodes=answer.f_ffree - answer.f_favail,
        read_only=bool(answer.f_flag & os.ST_RDONLY),
    )


# -- network namespaces -----------------------------------------------------------------------------------------------

LINK = "ip link add one type veth peer name two"
UP = ("ip link set one up", "ip link set two up")
ROUTE = ("ip address add 192.0.2.2/24 dev one", "ip route add default via 192.0.2.1")
# Runs inside the namespace, with the namespace's own /sys/class/net mounted over /sys.
_LOOK = """
import json, sys
from healthd.checks.host_network import HostNetworkSettings, host_network
from healthd.sources.trees import FileTree
from healthd.testing import FakeNode
node = FakeNode(sys=FileTree("/sys"), proc=FileTree("/proc"))
found = host_network(node, HostNetworkSettings(interfaces=("one",)))
findings = [[each.code, each.component.kind, each.component.id] for each in found.findings]
print(json.dumps({"status": found.status, "findings": findings,
                  "readings": {reading.name: reading.value for reading in found.readings}}))
"""
# The kernel forbids it, has no veth, or the root is a plain chroot, which is no mount point.
_NOT_HERE = ("Operation not permitted", "Unknown device type", "cannot change root filesystem propagation")


def host_network_after(*commands: str) -> Mapping[str, object]:
    """What host.network finds after these commands in a fresh namespace, which ends with the process.

    ``status``, ``findings`` as (code, kind, id), ``readings`` by name.
    """
    require(*NETWORK_TOOLS)
    script = "\n".join(["set -e", "mount -t sysfs none /sys", *commands, 'exec "$0" -c "$1"'])
    argv = ["unshare", "--net", "--mount", "sh", "-c", script, sys.executable, _LOOK]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s(30), check=False, cwd=ROOT)
    if ran.returncode:
        if any(words in ran.stderr for words in _NOT_HERE):
            raise NotHere(f"no namespace of our own can be had here: {ran.stderr[-200:].strip()}")
        raise OSError(ran.stderr)
    found: Mapping[str, object] = json.loads(ran.stdout)
    return found


# -- /dev/kmsg --------------------------------------------------------------------------------------------------------


def write_kmsg(text: str) -> None:
    """One record from user space. A descriptor of its own: the kernel limits the rate of each (10 in 5 s)."""
    fd = os.open(KMSG, os.O_WRONLY)
    try:
        os.write(fd, f"<3>{text}\n".encode())
    finally:
        os.close(fd)
