"""The family "fs": questions that a file system may never answer. Runs in the worker only.

statfs on a lost Lustre or NFS mount sleeps uninterruptibly, and the worker with it: the parent leaves it alone and asks
about other mounts in another. A worker judges only whether the file was written, and whether the bytes that it read
back are the same.
"""

from __future__ import annotations

import errno
import os
import time

from healthd.core.errors import SourceMissing, SourceUnreadable

TYPE_CHECKING = False  # the name that type checkers know; a worker does without the module typing, which takes 2 MB
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors with which a healthy server refuses: root squash, a foreign folder, a read-only export."""


def family(_arguments: Sequence[str]) -> FsFamily:
    """The family takes no arguments: the path comes with the question."""
    return FsFamily()


class FsFamily:
    """Questions: ``statvfs``, ``holders``, ``file``."""

    worn = False

    def answer(self, op: str, args: Mapping[str, Any]) -> Any:
        """Answer one question. Raises SourceMissing for a missing path, SourceUnreadable for any other error."""
        path = str(args.get("path", ""))
        try:
            if op == "statvfs":
                return _statvfs(path)
            if op == "holders":
                from healthd.probe.fs_holders import holders  # of a full disk, and so seldom needed

                return holders(path)
            if op == "file":
                return _file(path, int(args["size_bytes"]))
        except FileNotFoundError as error:
            raise SourceMissing(f"{op} {path}: no such file or folder") from error
        except OSError as error:
            raise SourceUnreadable(f"{op} {path}: {error.strerror} ({_word(error)})") from error
        raise SourceUnreadable(f"the fs worker got {op!r}; expected 'statvfs', 'holders' or 'file'")


def _statvfs(path: str) -> dict[str, Any]:
    """The free space; EIO where XFS has stopped after an error: stat says so, neither statvfs nor its options do."""
    os.stat(path)
    found = os.statvfs(path)
    return {
        "total_bytes": found.f_blocks * found.f_frsize,
        "available_bytes": found.f_bavail * found.f_frsize,
        "total_inodes": found.f_files,
        "available_inodes": found.f_favail,
        "read_only": bool(found.f_flag & os.ST_RDONLY),
        "kept_bytes": (found.f_bfree - found.f_bavail) * found.f_frsize,
        "kept_inodes": found.f_ffree - found.f_favail,
    }


def _file(path: str, size_bytes: int) -> dict[str, Any]:
    """Write, read back, remove. After an error the file is removed too, if the file system still allows it."""
    data, began = os.urandom(size_bytes), time.monotonic()
    try:
        path, file = _fresh(path)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        return {"size_bytes": 0, "write_s": time.monotonic() - began, "refused": _word(error)}
    try:
        with os.fdopen(file, "r+b", buffering=0) as raw:
            _write_all(raw.fileno(), data)
            os.fsync(raw.fileno())
            written = time.monotonic()
            same = _read_back(raw.fileno(), size_bytes) == data
        read = time.monotonic()
    except OSError:
        _tidied(path)
        raise
    os.unlink(path)
    return {
        "size_bytes": size_bytes,
        "write_s": written - began,
        "read_s": read - written,
        "unlink_s": time.monotonic() - read,
        "same": same,
    }


def _tidied(path: str) -> None:
    """Remove the file after an error, which is the one to report."""
    try:
        os.unlink(path)
    except OSError:
        return


def _fresh(path: str) -> tuple[str, int]:
    """A file that did not exist, and its path. An older one of that name is removed first and never opened: any user
    who may write to the folder could have put a link to another's file there, and this process is root.

    A file that cannot be removed is another user's: a folder, or a file that a server keeps from root. That shows
    nothing about the server, so the test uses a random name instead.
    """
    try:
        try:  # noqa: SIM105 - contextlib would be one more module in each worker
            os.unlink(path)
        except FileNotFoundError:
            pass
        return path, _new(path)
    except OSError:
        if not os.path.lexists(path):
            raise
    own = f"{path}-{os.urandom(8).hex()}"
    return own, _new(own)


def _new(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _read_back(file: int, size_bytes: int) -> bytes:
    """Read the file from its start, from the server where the kernel allows it: its cache is dropped first."""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(file, 0, os.SEEK_SET)
    parts: list[bytes] = []
    while part := os.read(file, size_bytes):
        parts.append(part)
    return b"".join(parts)


def _word(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))
