"""File trees of the kernel: /sys, /proc, /dev, or a recorded or constructed copy of one.

Reads are bounded and never follow a path out of the root that was asked for. This module gives text and
names, and the caller knows their meaning. Nothing here caches, because the files change.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable

MAX_BYTES = 1 << 22
"""The most of one file that is read. The longest that is read is the mount table, 1 KB for each container at most."""

_ATTRIBUTE_BYTES = 4096
"""The smallest page of Linux. sysfs gives an attribute, which fits into a page, whole in one read (Linux,
Documentation/filesystems/sysfs.rst, "Reading/Writing Attribute Data")."""

_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.ESRCH, errno.EOPNOTSUPP})
"""ESRCH: a process that ended between the open of a file in /proc and its read. EOPNOTSUPP: a file of what this kernel
or device does not keep, such as /proc/pressure of a kernel before 5.6 that was not booted with psi=1 (RHEL 8)."""


class FileTree:
    """The ``Tree`` port of :mod:`healthd.core.node` on a real folder. Paths are relative; ``""`` is the root itself.

    ``is_sysfs``: a read that ends within a page has the whole file, so no second one asks for its end.
    """

    def __init__(self, root: str | Path, *, is_sysfs: bool = False) -> None:
        self._root, self._is_sysfs = str(Path(root)), is_sysfs

    def __repr__(self) -> str:
        return f"FileTree({self._root!r})"

    def read(self, path: str) -> str:
        """The text of a file, stripped; bytes that are no UTF-8 are replaced.

        Raises SourceMissing, or SourceUnreadable when it cannot be read or is longer than :data:`MAX_BYTES`: half a
        file is no answer.
        """
        full = self._full(path)
        try:
            fd = os.open(full, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.read(fd, _ATTRIBUTE_BYTES) if self._is_sysfs else b""
                if len(data) in (0, _ATTRIBUTE_BYTES):
                    data += _read_bounded(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise _source_error(full, error) from error
        if len(data) > MAX_BYTES:
            raise SourceUnreadable(f"{full}: longer than {MAX_BYTES} bytes, which no file that healthd reads should be")
        return data.decode("utf-8", errors="replace").strip()

    def names(self, path: str) -> tuple[str, ...]:
        full = self._full(path)
        try:
            return tuple(sorted(os.listdir(full)))
        except OSError as error:
            raise _source_error(full, error) from error

    def exists(self, path: str) -> bool:
        """Whether the path exists; a link counts by its target. Raises SourceUnreadable if that is unknown."""
        full = self._full(path)
        try:
            os.stat(full)
        except OSError as error:
            problem = _source_error(full, error)
            if isinstance(problem, SourceMissing):
                return False
            raise problem from error
        return True

    def target(self, path: str) -> str:
        """The last part of a link's target: ``efa`` for ``…/driver``. Raises SourceMissing or SourceUnreadable."""
        full = self._full(path)
        try:
            return os.path.basename(os.readlink(full).rstrip("/"))
        except OSError as error:
            raise _source_error(full, error) from error

    def may_open(self, path: str) -> bool:
        """Whether this process may open a file to read and write. access(2) asks the device cgroup too, and unlike open
        wakes no driver (Linux, fs/namei.c: inode_permission calls devcgroup_inode_permission)."""
        return os.access(self._full(path), os.R_OK | os.W_OK)

    def _full(self, path: str) -> str:
        """As text: a node is a thousand files a minute, and a path object costs more than reading one of them."""
        if path.startswith("/") or "\0" in path or (".." in path and ".." in path.split("/")):
            raise SourceUnreadable(f"path {path!r} in {self._root}: expected a relative path without '..'")
        return f"{self._root}/{path}" if path else self._root


def _read_bounded(fd: int) -> bytes:
    """At most one byte more than is allowed. A file of the kernel may return less per read than requested."""
    parts, room = [], MAX_BYTES + 1
    while room > 0 and (part := os.read(fd, min(room, 1 << 16))):
        parts.append(part)
        room -= len(part)
    return b"".join(parts)


def _source_error(path: str, error: OSError) -> SourceError:
    kind = SourceMissing if error.errno in _NOT_THERE else SourceUnreadable
    return kind(f"{path}: {error.strerror or error} ({errno.errorcode.get(error.errno or 0, 'no errno')})")
