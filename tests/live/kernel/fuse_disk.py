"""A file system in memory that hangs, dawdles or fails on request: ``python fuse_disk.py POINT CONTROL``.

It speaks the kernel's own protocol on /dev/fuse (Linux, include/uapi/linux/fuse.h, 7.31), so it needs root and nothing
else. CONTROL holds words that are read before each answer: ``hang:statfs``, ``slow:write:0.5``, ``fail:fsync:EIO``,
``corrupt:read``. A request that hangs is held until its word is gone. One flat folder, no permissions, no directories.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import struct
import sys
import time
from pathlib import Path

LOOKUP, FORGET, GETATTR, SETATTR, UNLINK, OPEN, READ, WRITE = 1, 2, 3, 4, 10, 14, 15, 16
STATFS, RELEASE, FSYNC, FLUSH, INIT, CREATE, INTERRUPT, BATCH_FORGET = 17, 18, 20, 25, 26, 35, 36, 42
NAMES = {LOOKUP: "lookup", UNLINK: "unlink", READ: "read", WRITE: "write", STATFS: "statfs", FSYNC: "fsync"}
NAMES |= {CREATE: "create", OPEN: "open", GETATTR: "getattr"}
SILENT = frozenset({FORGET, INTERRUPT, BATCH_FORGET})
HEADER = struct.Struct("<IIQQIIIHH")
ROOT, MAX_WRITE, DIRECT_IO = 1, 1 << 17, 1


class Disk:
    """The files, by node id and by name."""

    def __init__(self, control: Path) -> None:
        self.control = control
        self.names: dict[bytes, int] = {}
        self.data: dict[int, bytearray] = {}
        self.next = ROOT + 1

    def words(self, opcode: int) -> list[list[str]]:
        name = NAMES.get(opcode, "other")
        words = [word.split(":") for word in self.control.read_text().split()]
        return [word for word in words if word[1] in (name, "all") and opcode != INIT]

    def answer(self, opcode: int, node: int, body: bytes) -> bytes:
        """What to say to a request. Raises OSError with the number to answer."""
        match opcode:
            case 26:  # INIT
                return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, MAX_WRITE, 1, 0, 0, 0)
            case 17:  # STATFS
                return struct.pack("<QQQQQIIII24x", 1000, 500, 500, 100, 50, 4096, 255, 4096, 0)
            case 1:  # LOOKUP
                return self.entry(self.find(body))
            case 3 | 4:  # GETATTR, SETATTR
                return struct.pack("<QII", 0, 0, 0) + self.attributes(node)
            case 35:  # CREATE
                return self.entry(self.create(body[16:].rstrip(b"\0"))) + struct.pack("<QIi", 0, DIRECT_IO, 0)
            case 14:  # OPEN
                return struct.pack("<QIi", 0, DIRECT_IO, 0)
            case 16:  # WRITE
                return self.write(node, body)
            case 15:  # READ
                _, offset, size = struct.unpack_from("<QQI", body)
                return bytes(self.data[node][offset : offset + size])
            case 10:  # UNLINK
                del self.names[self.find_name(body)]
                return b""
            case 18 | 20 | 25:  # RELEASE, FSYNC, FLUSH
                return b""
        raise OSError(errno.ENOSYS, "not here")

    def find_name(self, body: bytes) -> bytes:
        name = body.rstrip(b"\0")
        if name not in self.names:
            raise OSError(errno.ENOENT, "no such name")
        return name

    def find(self, body: bytes) -> int:
        return self.names[self.find_name(body)]

    def create(self, name: bytes) -> int:
        self.names[name] = self.next
        self.data[self.next] = bytearray()
        self.next += 1
        return self.names[name]

    def write(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        self.data[node][offset : offset + size] = body[40 : 40 + size]
        return struct.pack("<II", size, 0)

    def attributes(self, node: int) -> bytes:
        size = len(self.data.get(node, b""))
        mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o600
        return struct.pack("<6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def entry(self, node: int) -> bytes:
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + self.attributes(node)


def serve(device: int, disk: Disk) -> None:
    """Answer until the file system is unmounted."""
    held: list[bytes] = []
    while True:
        for request in [request for request in held if reply(device, disk, request)]:
            held.remove(request)
        if not select.select([device], [], [], 0.02)[0]:
            continue
        try:
            request = os.read(device, MAX_WRITE + 8192)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                continue
            return
        if not reply(device, disk, request):
            held.append(request)


def reply(device: int, disk: Disk, request: bytes) -> bool:
    """Answer a request; False if it must be held."""
    length, opcode, unique, node, *_ = HEADER.unpack_from(request)
    if opcode in SILENT:
        return True
    words = disk.words(opcode)
    if any(word[0] == "hang" for word in words):
        return False
    code, body = 0, b""
    try:
        for word in words:
            if word[0] == "slow":
                time.sleep(float(word[2]))
            elif word[0] == "fail":
                raise OSError(getattr(errno, word[2]), "as told")
        body = disk.answer(opcode, node, request[HEADER.size : length])
        if any(word[0] == "corrupt" for word in words):
            body = bytes(255 - byte for byte in body)
    except OSError as error:
        code = -(error.errno or errno.EIO)
    try:
        os.write(device, struct.pack("<IiQ", 16 + len(body), code, unique) + body)
    except OSError as error:
        if error.errno != errno.ENOENT:  # whoever asked has been killed
            raise
    return True


def main(point: str, control: str) -> None:
    """Mount, say so, serve."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"healthd-test", point.encode(), b"fuse.healthd", 0, options):
        raise OSError(ctypes.get_errno(), f"mount {point}: {os.strerror(ctypes.get_errno())}")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    serve(device, Disk(Path(control)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
