"""Kernel logs of the past: files in any form that an operator kept, read as one stream of kernel lines.

It recognizes a file by its content, skips unwanted lines as bytes, and counts those that it cannot read. It must not
judge a line, and never guesses in silence: information that a form lacks (a year, a time zone) is a note.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path

from msgspec import Struct

from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.sources.kmsg_records import RecordFilter
from healthd.sources.pastlines import EMPTY, FORMATS, PLAIN, Dating, Format, LogLine

_BLOCK_BYTES = 1 << 17  # of each file: a fleet's thousands are read side by side
_SAMPLE_BYTES = 1 << 18
_SAMPLE_LINES = 2000
_LONGEST_BYTES = 1 << 20
_LAST_LINES = 100
FIRST_YEAR, LAST_YEAR = 1900, 2100
"""The years of lines that are read: rules count back and on from a time by years, and the calendar must not end
there."""

_GZIP = b"\x1f\x8b"
_FURTHER = re.compile(rb"\n[ \t]+")
_DATED = re.compile(rb"(?<![\d:])\d\d:\d\d:\d\d(?!:)")


class PastLog(Struct, kw_only=True):
    """One file. ``lines`` and ``unread`` grow while it is read: how many there are, and how many could not be.

    ``host``: the host of lines that name none. ``ended``: the time of its last kernel line, once it was read; None
    where the last of its lines are not the kernel's.
    """

    path: Path
    format: Format
    dating: Dating
    host: str
    notes: tuple[str, ...]
    lines: int = 0
    unread: int = 0
    kernel_lines: int = 0
    ended: datetime | None = None

    def read(
        self, needles: tuple[bytes, ...], on_lines: Callable[[int], None] = lambda _lines: None
    ) -> Iterator[LogLine]:
        """The kernel lines that hold a needle, in the order of the file; ``on_lines`` gets how many lines each
        block of it has. Raises SourceUnreadable."""
        wanted = RecordFilter((*needles, *self.format.also), self.format.before)
        form, block = self.format, b""
        for block in _blocks(self.path, form, self._torn):
            on_lines(self._count(block))
            for raw in _wanted(block, wanted, form):
                line = self._parsed(raw)
                if line is None:
                    self.unread += self.format.heads.search(b"\n" + raw) is not None
                elif line.text:
                    self.kernel_lines += 1
                    yield line if line.host else line.at(self.host)
        self.ended = self._last_time(block)

    def _parsed(self, raw: bytes) -> LogLine | None:
        """The line, or None where it, or its time, cannot be read."""
        line = self.format.parse(raw, self.dating)
        return line if line is not None and FIRST_YEAR <= line.time.year <= LAST_YEAR else None

    def _last_time(self, block: bytes) -> datetime | None:
        """The time of the last kernel line of the last block, wanted or not: it shows how long the log was quiet after
        the last line that counts."""
        for raw in reversed(block.rsplit(self.format.ends, _LAST_LINES)[1:]):
            line = self._parsed(raw) if raw else None
            if line is not None and line.text:
                return line.time
        return None

    def _count(self, block: bytes) -> int:
        lines = block.count(self.format.ends)
        self.lines += lines
        if (unread := lines - len(self.format.heads.findall(b"\n" + block))) > 0:
            self.unread += max(0, unread - (len(_FURTHER.findall(block)) if self.format.indents else 0))
        return lines

    def _torn(self) -> None:
        self.lines += 1
        self.unread += 1


def open_log(path: Path) -> PastLog:
    """Open a file by the form of its content. Raises SourceMissing, SourceUnreadable."""
    try:
        there = path.stat()
        if not stat.S_ISREG(there.st_mode):
            is_folder = stat.S_ISDIR(there.st_mode)
            why = "a folder; name its files" if is_folder else "not a regular file; copy its content to one first"
            raise SourceUnreadable(f"{path}: cannot be read: {why}")
        with _opened(path) as file:
            sample = file.read(_SAMPLE_BYTES)
        modified = datetime.fromtimestamp(there.st_mtime, UTC)
        form = _form_of(path, sample)
        last = form.last_stamp(_tail(path)) if form.from_boot else None
    except FileNotFoundError as error:
        raise SourceMissing(
            f"{path}: no such file; expected a kernel log, a journal, a syslog or healthd.db"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise SourceUnreadable(f"{path}: cannot be read: {error}") from error
    dating = Dating(modified=modified, first=form.first_stamp(sample), last=last)
    notes = tuple(note for note in (form.note, *form.dated(dating)) if note)
    return PastLog(path=path, format=form, dating=dating, host=_stem(path), notes=notes)


# ---------------------------------------------------------------------------------------------------------------------


def _form_of(path: Path, sample: bytes) -> Format:
    """The form that most lines of the sample have; where none has any, text without times, if it is text at all. An
    empty file is a log that was just rotated, or the answer of a journalctl that found none."""
    if sample in (b"", b"-- No entries --\n"):
        return EMPTY
    head = b"\n" + b"\n".join(sample.split(b"\n")[:_SAMPLE_LINES])
    best = max(FORMATS, key=lambda form: form.weight * len(form.heads.findall(head)))
    if best.heads.search(head):
        return best
    lines = [line for line in sample.split(b"\n")[:_SAMPLE_LINES] if line.strip()]
    if lines and b"\0" not in sample and not any(_DATED.search(line[:64]) for line in lines):
        return PLAIN
    known = ", ".join(form.name for form in FORMATS)
    raise SourceUnreadable(f"{path}: not a log of a known form; expected one of {known}, as it is or gzipped")


def _opened(path: Path) -> BufferedReader | gzip.GzipFile:
    file = path.open("rb")
    if file.peek(2)[:2] != _GZIP:
        return file
    file.close()
    return gzip.open(path, "rb")


def _tail(path: Path) -> bytes:
    """The end of a file. A compressed one is read to it."""
    tail = b""
    with _opened(path) as file:
        if not isinstance(file, gzip.GzipFile):
            file.seek(max(0, os.fstat(file.fileno()).st_size - _SAMPLE_BYTES))
        while chunk := file.read(_SAMPLE_BYTES):
            tail = (tail + chunk)[-_SAMPLE_BYTES:]
    return tail


def _stem(path: Path) -> str:
    return re.sub(r"(\.(gz|log|txt|out|dmesg|kmsg))+\Z", "", path.name) or path.name


def _blocks(path: Path, form: Format, torn: Callable[[], None]) -> Iterator[bytes]:
    """The file in blocks of whole lines, or records. A line without an end in a megabyte is dropped and counted."""
    rest, dropping, ends = b"", False, form.ends
    try:
        with _opened(path) as file:
            while chunk := file.read(_BLOCK_BYTES):
                block, end, rest = _cut(rest + chunk, form)
                if dropping and end:
                    _, end, block = block.partition(ends)
                    dropping = False
                if end and not dropping:
                    yield block + ends
                if len(rest) > _LONGEST_BYTES:
                    if not dropping:
                        torn()
                    rest, dropping = b"", True
    except (OSError, EOFError, zlib.error) as error:
        raise SourceUnreadable(f"{path}: cannot be read to its end: {error}") from error
    if rest.strip() and not dropping:
        yield rest.removesuffix(ends) + ends


def _cut(data: bytes, form: Format) -> tuple[bytes, bytes, bytes]:
    """The whole lines, their end, and the rest; where lines indent, only the next line shows that a line is whole."""
    if not form.indents:
        return data.rpartition(form.ends)
    at = data.rfind(b"\n")
    while at >= 0 and data[at + 1 : at + 2] in (b"", b" ", b"\t"):
        at = data.rfind(b"\n", 0, at)
    return (data[:at], b"\n", data[at + 1 :]) if at >= 0 else (b"", b"", data)


def _wanted(block: bytes, wanted: RecordFilter, form: Format) -> Iterator[bytes]:
    """The lines, or records, of a block that hold a needle; a record of several lines without its indentation."""
    position, ends, width = 0, form.ends, len(form.ends)
    for hit in wanted.hits(block):
        if hit < position:
            continue
        found = block.rfind(ends, max(0, position - width), hit + 1)
        start = max(position, found + width if found >= 0 else 0)
        end = _end(block, hit + 1, ends)
        while form.indents and block[end + 1 : end + 2] in (b" ", b"\t"):
            end = _end(block, end + 1, ends)
        position = end + width
        raw = block[start:end]
        yield _FURTHER.sub(b"\n", raw) if form.indents and b"\n" in raw else raw


def _end(block: bytes, at: int, ends: bytes) -> int:
    end = block.find(ends, at)
    return len(block) if end < 0 else end
