"""The kernel log by syslog(2), where /dev/kmsg cannot be opened: CAP_SYSLOG is enough, and no device is needed.

Every read takes the whole ring as text (SYSLOG_ACTION_READ_ALL, which removes nothing) and keeps the lines after those
that it ended with last time. Where those lines are no longer in it, records were overwritten, or the log was cleared,
before they were read: that is a hole. The records have the format of /dev/kmsg (``kmsg_format``), numbered by their own
time, so that a later run knows where this one left off.

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
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from healthd.sources.kmsg_format import HOLE, MOMENT, TORN, RecordFilter

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
        words = b"\\x0a".join(_ODD.sub(_escape, line[5]) for line in lines)
        return b"%b,%d,%d,-;%b" % (first[2], self._number, usec, words)


def _escape(match: re.Match[bytes]) -> bytes:
    return b"\\x%02x" % match[0][0]
