"""The records of the kernel log: their format, and the sources that read them raw.

A source is /dev/kmsg, a FIFO, a growing file, or syslog(2). ``healthd.sources.kmsg`` follows, skips and counts what
they read.

Record format (Linux, Documentation/ABI/testing/dev-kmsg): ``prefix,sequence,microseconds,flags[,…];text``, where prefix
is facility * 8 + level and bytes outside printable ASCII come as ``\\xNN``; lines that begin with a space are
properties of a record. A read of /dev/kmsg returns one whole record, EPIPE where the next one was overwritten, EINVAL
where it is larger than the buffer. A writer to the device cannot get facility 0 (6.18: ``<3>x`` arrives as 11).

syslog(2) serves where /dev/kmsg cannot be opened: CAP_SYSLOG is enough, and no device is needed. Every read takes the
whole ring as text (SYSLOG_ACTION_READ_ALL, which removes nothing) and keeps the lines after those that it ended with
last time. Where those lines are no longer in it, records were overwritten, or the log was cleared, before they were
read: that is a hole. The records get the format of /dev/kmsg, numbered by their own time, so that a later run knows
where this one left off.

Text of syslog(2) (Linux, printk.c, print_syslog and record_print_text): ``<prefix>[seconds.microseconds] words``,
prefix being facility * 8 + level, with ``[caller]`` after the time where the kernel is built so. Each line of a record
has that head again. A line with the very head of the one before it is taken for its continuation: words of a user that
the kernel quotes may hold a newline, and must not pass for a record of the driver's.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Protocol

from healthd.core.node import RECORD_LEAD, KernelRecord

# A source's reports beside records: records were overwritten here; a record was here that cannot be used.
HOLE = b""
TORN = b"\n"
MOMENT = 1024
"""How many numbers a microsecond has, where records are numbered by their time."""

RECORD = re.compile(rb"(\d{1,10}),(\d{1,18}),(\d{1,18}),[^;\n]*;([^\n\x00-\x08\x0b-\x1f\x7f]*)(?:\n|\Z)")
_HEAD = re.compile(rb"\d{1,10},(\d{1,18}),\d{1,18},")
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_LEAD = RECORD_LEAD.encode()


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
    """The text of a record, with the bytes that this format escapes."""
    return _ESCAPE.sub(_unescape, text) if b"\\x" in text else text


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes((int(match[1], 16),))


def sequence_of(raw: bytes) -> int | None:
    """The sequence number alone: enough of a record that no check wants."""
    match = _HEAD.match(raw)
    return int(match[1]) if match else None


class RecordFilter:
    """Finds the records that a check wants, in one pass over as many bytes as are at hand.

    Needles that must begin a record's words cost one try per record, however many there are; the others are sought in
    all of it, one by one (by patterns of their own: measured, that takes half the time of ``in``). ``before``: a
    pattern of the text before a record's words; by default the head of this format.
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


def any_of(needles: tuple[bytes, ...]) -> RecordFilter | None:
    """The filter that finds a needle in raw bytes; None where there are none, and every record is wanted."""
    return RecordFilter(needles) if needles else None


def record_lines(block: bytes, wanted: RecordFilter | None) -> list[bytes]:
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
        lines += record_lines(block[position:], None)[-1:]
    return [line for line in lines if not line.startswith(b" ")]


# ---------------------------------------------------------------------------------------------------------------------
# the sources: a device, a FIFO or a growing file


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


# ---------------------------------------------------------------------------------------------------------------------
# the source that is syslog(2)


_READ_ALL, _SIZE_UNREAD, _SIZE_BUFFER = 3, 9, 10  # syslog(2)
_TEXT_PER_RING = (
    3  # a head of 18 bytes or more before lines that the ring holds without: 32 bytes on average (PRB_AVGBITS)
)
_ANCHOR_BYTES = 4096
_POLL_S, _LONGEST_POLL_S = 1.0, 5.0
_SHARE = 0.002  # of a core, for asking whether there is anything new
_WHOLE_S = 10.0  # between two readings of everything, whatever the count of unread bytes says

_LINE = re.compile(rb"(<(\d{1,4})>\[ *(\d{1,12})\.(\d{6})\](?:\[ *[CT]\d{1,10}\])?) ?(.*)\Z", re.DOTALL)
_ODD = re.compile(rb"[^\x20-\x7e]|\\")

Ask = Callable[[int, "ctypes.Array[ctypes.c_char] | None", int], int]


def klogctl(action: int, buffer: ctypes.Array[ctypes.c_char] | None, length: int) -> int:
    """syslog(2) by its name in libc. Raises OSError."""
    got: int = ctypes.CDLL(None, use_errno=True).klogctl(action, buffer, length)
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return got


class KernelSyslog:
    """The source. ``ask`` is klogctl, or a test's own; ``monotonic_s`` paces the reads."""

    numbered, timed = False, True
    pollable: int | None = None

    def __init__(self, ask: Ask = klogctl, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._monotonic_s = ask, monotonic_s
        self._buffer = ctypes.create_string_buffer(_TEXT_PER_RING * ask(_SIZE_BUFFER, None, 0))
        self._anchor: bytes | None = None
        self._unread, self._number = -1, -1
        self._look_s = self._whole_s = monotonic_s()

    def read(self, wanted: RecordFilter | None) -> Sequence[bytes] | None:
        """The new records since the last read; all of the ring at the first. The follower applies ``wanted``: it must
        also see a line that only may be a record of its own."""
        began_s = self._monotonic_s()
        if began_s < self._look_s:
            return []
        found = self._text() if self._may_have_grown(began_s) else None
        spent_s = self._monotonic_s() - began_s
        self._look_s = began_s + min(_LONGEST_POLL_S, max(_POLL_S, spent_s / _SHARE)) if not found else began_s
        return [] if found is None else self._new(found)

    def close(self) -> None:
        """Do nothing: no descriptor is held open."""

    def _may_have_grown(self, now_s: float) -> bool:
        """Whether new text may be there, by the count of unread bytes, which costs a tenth of reading them. The count
        proves nothing where another process reads the log away, so that it is often 0."""
        unread = self._ask(_SIZE_UNREAD, None, 0)
        if unread and unread == self._unread and now_s < self._whole_s:
            return False
        self._unread, self._whole_s = unread, now_s + _WHOLE_S
        return True

    def _text(self) -> bytes | None:
        """The ring as text, or None where it ends as it did."""
        length = self._ask(_READ_ALL, self._buffer, len(self._buffer))
        tail = ctypes.string_at(ctypes.byref(self._buffer, max(0, length - _ANCHOR_BYTES)), min(length, _ANCHOR_BYTES))
        if self._anchor is not None and tail.endswith(self._anchor) and (self._anchor or not tail):
            return None
        return ctypes.string_at(self._buffer, length)

    def _new(self, text: bytes) -> list[bytes]:
        """The records after the anchor, and the hole before them where it is gone."""
        hole = []
        if self._anchor:
            at = text.rfind(self._anchor)
            hole = [HOLE] if at < 0 else []
            text = text[at + len(self._anchor) :] if at >= 0 else text
        if text or hole:
            kept = ((self._anchor or b"") + text if not hole else text)[-_ANCHOR_BYTES:]
            self._anchor = kept[kept.find(b"\n") + 1 :] if len(kept) == _ANCHOR_BYTES else kept
        elif self._anchor is None:
            self._anchor = b""
        return hole + list(self._records(text))

    def _records(self, text: bytes) -> Iterator[bytes]:
        """Records in the format of /dev/kmsg; TORN for a line without a head. Raises OSError where none has one. It
        works line by line: a ring may hold megabytes."""
        heads = (_LINE.match(line.rstrip(b"\n")) for line in io.BytesIO(text))
        is_timed = not text
        for head, group in groupby(heads, key=lambda match: match[1] if match else b""):
            matches = list(group)
            lines = [match for match in matches if match]
            is_timed = is_timed or bool(head)
            yield from (self._record(lines),) if head else (TORN for _ in matches)
        if not is_timed:
            raise OSError(errno.EPROTO, "its lines have no time")

    def _record(self, lines: Sequence[re.Match[bytes]]) -> bytes:
        first = lines[0]
        usec = int(first[3]) * 1_000_000 + int(first[4])
        self._number = max(self._number + 1, usec * MOMENT)
        message = b"\\x0a".join(_ODD.sub(_escape, line[5]) for line in lines)
        return b"%b,%d,%d,-;%b" % (first[2], self._number, usec, message)


def _escape(match: re.Match[bytes]) -> bytes:
    return b"\\x%02x" % match[0][0]


# ---------------------------------------------------------------------------------------------------------------------
# the source behind a path


def open_source(path: str) -> RecordSource:
    """Open a path by its kind of file. Raises OSError; a kind of file that holds no records is EINVAL."""
    if path == SYSLOG:
        return KernelSyslog()
    mode = os.stat(path).st_mode
    if stat.S_ISCHR(mode):
        return Device(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    if stat.S_ISFIFO(mode):  # opened for writing too: a FIFO that nobody writes is then not at its end
        return Lines(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), path)
    if stat.S_ISREG(mode):
        return Lines(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)
    raise OSError(errno.EINVAL, "neither a device, a FIFO nor a regular file", path)
