"""The family "fs": questions that a file system may never answer. Runs in the worker only.

statfs on a lost Lustre or NFS mount sleeps uninterruptibly, so each network mount point has a worker of its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import Any

from healthd.errors import SourceMissing, SourceUnreadable


def family(_arguments: Sequence[str]) -> FsFamily:
    """The family takes no arguments: the path comes with the question."""
    return FsFamily()


class FsFamily:
    """Questions: ``statvfs``."""

    worn = False

    def answer(self, op: str, args: Mapping[str, Any]) -> Any:
        """One question. Raises SourceMissing for a path that is not there, SourceUnreadable for any other error."""
        if op == "statvfs":
            return _statvfs(str(args["path"]))
        raise SourceUnreadable(f"the fs worker knows no question {op!r}: expected 'statvfs'")


def _statvfs(path: str) -> dict[str, Any]:
    try:
        found = os.statvfs(path)
    except FileNotFoundError as error:
        raise SourceMissing(f"statvfs {path}: it is not there") from error
    except OSError as error:
        word = errno.errorcode.get(error.errno or 0, str(error.errno))
        raise SourceUnreadable(f"statvfs {path}: {error.strerror} ({word})") from error
    return {
        "total_bytes": found.f_blocks * found.f_frsize,
        "available_bytes": found.f_bavail * found.f_frsize,
        "total_inodes": found.f_files,
        "available_inodes": found.f_favail,
        "read_only": bool(found.f_flag & os.ST_RDONLY),
    }
