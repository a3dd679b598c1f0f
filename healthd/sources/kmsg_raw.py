"""The record format of the kernel log, and the places that speak it: /dev/kmsg, a FIFO, a growing file.

It turns bytes into records and files into raw records; following, skipping and counting are ``healthd.sources.kmsg``'s.

Record format (Linux, Documentation/ABI/testing/dev-kmsg): ``prefix,sequence,microseconds,flags[,…];text``, where prefix
is facility * 8 + level and bytes outside printable ASCII come as ``\\xNN``; lines that begin with a space are
properties of a record. A read of /dev/kmsg returns one whole record, EPIPE where the next one was overwritten, EINVAL
where it is larger than the buffer. A writer to the device cannot get facility 0 (6.18: ``<3>x`` arrives as 11).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from healthd.node import RECORD_LEAD, KernelRecord

_RECORD_BYTES = 8192  # the kernel's own limit for one record in this format (printk.c, CONSOLE_EXT_LOG_MAX)
_CHUNK_BYTES = 65536
_LINE_BYTES = 65536
_BURST = 256

# What a source reports beside records: records were overwritten here; a record was here that cannot be used.
HOLE = b""
TORN = b"\n"
SYSLOG = "syslog"
"""The path that stands for syslog(2)."""
MOMENT = 1024
"""How many numbers a microsecond has, where records are numbered by their time."""
_REPORTS = {errno.EPIPE: HOLE, errno.EINVAL: TORN}

RECORD = re.compile(rb"(\d{1,10}),(\d{1,18}),(\d{1,18}),[^;\n]*;([^\n\x00-\x08\x0b-\x1f\x7f]*)(?:\n|\Z)")
_HEAD = re.compile(rb"\d{1,10},(\d{1,18}),\d{1,18},")
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_LEAD = RECORD_LEAD.encode()


# ---------------------------------------------------------------------------------------------------------------------
# records


def parse_record(raw: bytes, *, boot_id: str, boot_time: datetime) -> KernelRecord | None:
    """One record, or None where the bytes are not one: torn, binary, out of range. Pure; never raises.

    ``boot_time`` plus the record's monotonic microseconds is its time: a step of the wall clock does not move it.
    """
    match = RECORD.match(raw)
    if match is None:
        return None
    prefix, sequence, usec, escaped = match.groups()
    try:
        moment = boot_time + timedelta(microseconds=int(usec))
    except OverflowError:
        return None
    facility = int(prefix) >> 3
    return KernelRecord(
        boot_id=boot_id,
        sequence=int(sequence),
        time=moment,
        text=unescaped(escaped).decode("utf-8", "backslashreplace"),
        facility=facility,
        level=int(prefix) & 7,
        trusted=facility == 0,
    )


def unescaped(text: bytes) -> bytes:
    """The words of a record, with the bytes that stand escaped in this format."""
    return _ESCAPE.sub(_unescape, text) if b"\\x" in text else text


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes((int(match[1], 16),))


def sequence_of(raw: bytes) -> int | None:
    """The sequence number alone: all that a record no check wants has to give."""
    match = _HEAD.match(raw)
    return int(match[1]) if match else None


class Wanted:
    """Finds the records that a check wants, in one pass over as many bytes as are at hand.

    Needles that must begin a record's words cost one try per record, however many there are; the others are sought in
    all of it, one by one (by patterns of their own: measured, that takes half the time of ``in``). ``before``: a
    pattern of what stands before a record's words; by default the head of this format.
    """

    def __init__(self, needles: tuple[bytes, ...], before: bytes = rb"^[^;\n]*+;") -> None:
        begin = _alternatives([needle[1:] for needle in needles if needle.startswith(b"^")])
        self._begins = re.compile(rb"%b%b(?:%b)" % (before, _LEAD, begin), re.MULTILINE) if begin else None
        self._anywhere = tuple(needle for needle in needles if not needle.startswith(b"^"))
        self._finders = tuple(re.compile(re.escape(needle)).search for needle in self._anywhere)

    def holds(self, raw: bytes) -> bool:
        """Whether one record holds a needle."""
        if self._begins is not None and self._begins.match(raw):
            return True
        for find in self._finders:  # noqa: SIM110 - once for every record of the log: a generator costs half as much again
            if find(raw):
                return True
        return False

    def hits(self, block: bytes) -> list[int]:
        """Where needles are, in order; some of one line may be left out if another of it is there."""
        found = [match.start() for match in self._begins.finditer(block)] if self._begins else []
        for needle in self._anywhere:
            at = block.find(needle)
            while at >= 0:
                found.append(at)
                at = block.find(needle, (block.find(b"\n", at) + 1) or len(block))
        return sorted(found)


def _alternatives(words: Sequence[bytes]) -> bytes:
    """A pattern for any of the words, by first bytes: a record that begins otherwise is left at its first byte."""
    by_first: dict[bytes, list[bytes]] = {}
    for word in words:
        by_first.setdefault(re.escape(word[:1]), []).append(re.escape(word[1:]))
    firsts = b"".join(by_first)
    ways = b"|".join(b"%b(?:%b)" % (first, b"|".join(rest)) for first, rest in by_first.items())
    return b"(?=[%b])(?:%b)" % (firsts, ways) if words else b""


def any_of(needles: tuple[bytes, ...]) -> Wanted | None:
    """What finds a needle in raw bytes; None where there are none, and every record is wanted."""
    return Wanted(needles) if needles else None


def _record_lines(block: bytes, wanted: Wanted | None) -> list[bytes]:
    """The lines of a block that begin a record and hold a needle, and the last one: it moves the cursor."""
    if wanted is None:
        return [line for line in block.split(b"\n") if line and not line.startswith(b" ")]
    lines, position = [], 0
    for hit in wanted.hits(block):
        if hit < position:
            continue
        start = block.rfind(b"\n", position, hit) + 1 or position
        position = block.find(b"\n", hit) + 1 or len(block)
        lines.append(block[start:position].rstrip(b"\n"))
    if position < len(block):
        lines += _record_lines(block[position:], None)[-1:]
    return [line for line in lines if not line.startswith(b" ")]


# ---------------------------------------------------------------------------------------------------------------------
# sources


class Source(Protocol):
    """Where raw records come from. ``numbered``: by the kernel, so that a jump since the last look is a gap. ``timed``:
    by their time, so that a gap is where the last record that was looked at is not there any more."""

    numbered: bool
    timed: bool
    pollable: int | None

    def read(self, wanted: Wanted | None) -> Sequence[bytes] | None:
        """What is there now; HOLE and TORN where something is not. None: the source is gone, open it anew."""

    def close(self) -> None:
        """Give the file descriptor back."""


class Device:
    """/dev/kmsg: one record per read. While it is open the kernel itself reports every hole, by EPIPE."""

    numbered, timed = True, False

    def __init__(self, fd: int, read: Callable[[int, int], bytes] = os.read) -> None:
        self.pollable: int | None = fd
        self._fd = fd
        self._read = read

    def read(self, wanted: Wanted | None) -> Sequence[bytes] | None:
        """A burst: its first record, what is wanted, and its last. An error after those is left for the next call."""
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
                self.pollable = None  # at its end and always readable, as /dev/null is: look again, do not spin
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
    A file cut and grown beyond its old length between two looks cannot be told from one that only grew.
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

    def read(self, wanted: Wanted | None) -> Sequence[bytes] | None:
        """The complete lines of the next chunk that hold a needle, and the last one."""
        replaced = self._replaced()  # looked at first: what was written before the replacement is still read
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

    def _split(self, chunk: bytes, wanted: Wanted | None) -> list[bytes]:
        if self._overlong:
            _, newline, chunk = chunk.partition(b"\n")
            self._overlong = not newline
        block, newline, rest = (self._tail + chunk).rpartition(b"\n")
        self._tail = rest
        lines = _record_lines(block, wanted) if newline else []
        if len(rest) > _LINE_BYTES:
            self._tail, self._overlong = b"", True
            lines.append(TORN)
        return lines


def open_source(path: str) -> Source:
    """Open a path as what it is. Raises OSError; a kind of file that holds no records is EINVAL."""
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
