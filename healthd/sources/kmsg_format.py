"""The record format of the kernel log: bytes into records, and which of them hold what a check wants. Pure.

Record format (Linux, Documentation/ABI/testing/dev-kmsg): ``prefix,sequence,microseconds,flags[,…];text``, where prefix
is facility * 8 + level and bytes outside printable ASCII come as ``\\xNN``; lines that begin with a space are
properties of a record. A read of /dev/kmsg returns one whole record, EPIPE where the next one was overwritten, EINVAL
where it is larger than the buffer. A writer to the device cannot get facility 0 (6.18: ``<3>x`` arrives as 11).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

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
