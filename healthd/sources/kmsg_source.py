"""The sources of kernel log records: /dev/kmsg, a FIFO, a growing file, or syslog(2).

Each makes raw records of a file; ``healthd.sources.kmsg`` follows, skips and counts them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from typing import Protocol

from healthd.sources.kmsg_format import HOLE, TORN, RecordFilter, record_lines

SYSLOG = "syslog"
"""The path that stands for syslog(2)."""
_RECORD_BYTES = 8192  # the kernel's own limit for one record in this format (printk.c, CONSOLE_EXT_LOG_MAX)
_CHUNK_BYTES = 65536
_LINE_BYTES = 65536
_BURST = 256
_REPORTS = {errno.EPIPE: HOLE, errno.EINVAL: TORN}


class RecordSource(Protocol):
    """A source of raw records. ``numbered``: by the kernel, so that a jump since the last read is a gap. ``timed``: by
    their time, so that a gap is where the last record that was read is no longer there."""

    numbered: bool
    timed: bool
    pollable: int | None

    def read(self, wanted: RecordFilter | None) -> Sequence[bytes] | None:
        """The raw records there now; HOLE and TORN for missing ones. None: the source is gone, open it again."""

    def close(self) -> None:
        """Close the file descriptor."""


class Device:
    """/dev/kmsg: one record per read. While it is open the kernel itself reports every hole, by EPIPE."""

    numbered, timed = True, False

    def __init__(self, fd: int, read: Callable[[int, int], bytes] = os.read) -> None:
        self.pollable: int | None = fd
        self._fd = fd
        self._read = read

    def read(self, wanted: RecordFilter | None) -> Sequence[bytes] | None:
        """A burst: its first record, the wanted ones, and its last. An error after those is left for the next call."""
        records: list[bytes] = []
        unwanted = b""
        for _ in range(_BURST):
            try:
                raw = self._read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in _REPORTS:
                    if records:
                        break
                    raise
                records.append(_REPORTS[error.errno])
                continue
            if not raw:
                self.pollable = None  # at its end and always readable, as /dev/null is: poll, do not spin
                break
            if not records or wanted is None or wanted.holds(raw):
                records.append(raw)
                unwanted = b""
            else:
                unwanted = raw
        return [*records, unwanted] if unwanted else records

    def close(self) -> None:
        """Close the device."""
        os.close(self._fd)


class Lines:
    """A FIFO or a growing file. A last line without its newline is held back until that comes, up to 64 KiB.

    A file that shrank, and a path that leads to another file, end this source: the next one starts from the beginning.
    A file that was cut and grew beyond its old length between two reads looks like one that only grew.
    """

    numbered = timed = False

    def __init__(self, fd: int, path: str) -> None:
        self._fd, self._path = fd, path
        opened = os.fstat(fd)
        self._identity = (opened.st_dev, opened.st_ino)
        self._is_fifo = stat.S_ISFIFO(opened.st_mode)
        self.pollable: int | None = fd if self._is_fifo else None
        self._position = 0
        self._tail = b""
        self._overlong = False

    def read(self, wanted: RecordFilter | None) -> Sequence[bytes] | None:
        """The complete lines of the next chunk that hold a needle, and the last one."""
        replaced = self._replaced()  # first: lines that were written before the replacement are still read
        for _ in range(_BURST):
            chunk = self._chunk()
            if not chunk:
                break
            if lines := self._split(chunk, wanted):
                return lines
        if not replaced:
            return []
        return [TORN] if self._drop_tail() else None

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _replaced(self) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        if (there.st_dev, there.st_ino) != self._identity:
            return True
        return not self._is_fifo and there.st_size < self._position

    def _chunk(self) -> bytes:
        try:
            chunk = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return b""
        self._position += len(chunk)
        return chunk

    def _drop_tail(self) -> bool:
        tail, self._tail = self._tail, b""
        return bool(tail)

    def _split(self, chunk: bytes, wanted: RecordFilter | None) -> list[bytes]:
        if self._overlong:
            _, newline, chunk = chunk.partition(b"\n")
            self._overlong = not newline
        block, newline, rest = (self._tail + chunk).rpartition(b"\n")
        self._tail = rest
        lines = record_lines(block, wanted) if newline else []
        if len(rest) > _LINE_BYTES:
            self._tail, self._overlong = b"", True
            lines.append(TORN)
        return lines


def open_source(path: str) -> RecordSource:
    """Open a path by its kind of file. Raises OSError; a kind of file that holds no records is EINVAL."""
    if path == SYSLOG:
        from healthd.sources.syslog import KernelSyslog  # loads ctypes

        return KernelSyslog()
    mode = os.stat(path).st_mode
    if stat.S_ISCHR(mode):
        return Device(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    if stat.S_ISFIFO(mode):  # opened for writing too: a FIFO that nobody writes is then not at its end
        return Lines(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), path)
    if stat.S_ISREG(mode):
        return Lines(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)
    raise OSError(errno.EINVAL, "neither a device, a FIFO nor a regular file", path)
