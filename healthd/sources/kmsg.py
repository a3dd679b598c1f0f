"""The follower of the kernel log: /dev/kmsg, syslog(2), a FIFO, or a growing file in the same record format.

It hands over batches of :class:`.KernelRecord` with the cursor behind them, and reports its state. It must not judge
the meaning of a record, must not lose a record in silence (an overwritten record is a visible gap), and must not raise
for anything the machine does: a source that cannot be read is an error in :meth:`KernelLog.state`.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.node import KernelLogState, KernelRecord
from healthd.sources.kmsg_records import (
    HOLE,
    MOMENT,
    SYSLOG,
    RecordSource,
    any_of,
    open_source,
    parse_record,
    sequence_of,
)

__all__ = ["Cursor", "KernelBatch", "KernelLog", "parse_record", "read_all"]

_LINGER_S = 0.01
_TURN_S = 0.1
_SYSLOG_POLL_S = 1.0
_FILE_POLL_S = 0.1  # of a test or the demo: a node has /dev/kmsg, which tells of its records
_RETRY_S = 0.2
_READ_ALL_WITHIN_S = 5.0


class Cursor(Struct, frozen=True, kw_only=True):
    """The last record that was read: everything after it is new, as long as the boot is the same."""

    boot_id: str
    sequence: int


class KernelBatch(Struct, frozen=True, kw_only=True):
    """The result of one read. Save ``cursor`` together with the findings from ``records``.

    ``cursor`` is None while no record was ever seen. ``gap``: records were lost before or among these. ``caught_up``:
    the source had nothing more at this moment. ``until``: every record of before then is in this batch or an earlier
    one, where that is known. ``drilled``: records of :meth:`KernelLog.inject`, apart from the others,
    so that no check that judges ``records`` meets one.
    """

    records: tuple[KernelRecord, ...]
    cursor: Cursor | None
    gap: bool = False
    caught_up: bool = False
    until: datetime | None = None
    drilled: tuple[KernelRecord, ...] = ()


# ---------------------------------------------------------------------------------------------------------------------
# the follower


class KernelLog:
    """Follows one source. One thread reads; :meth:`wake`, :meth:`dates_from`, :meth:`close` and :meth:`state` may come
    from any other.

    ``cursor``: where an earlier run left off. Of the same boot, records up to it are skipped; of another, or None,
    everything of this boot is read. On a FIFO or a file, whose writer may number again from 0, skipping ends for good
    at the first record beyond the cursor. ``needles``: records whose bytes hold none of them only move the cursor; a
    needle is plain printable ASCII without a backslash, as the kernel escapes everything else, and one that begins with
    ``^`` must begin the record's words. ``clock`` is monotonic.
    """

    def __init__(
        self,
        path: str,
        *,
        boot_id: str,
        boot_time: datetime,
        cursor: Cursor | None = None,
        needles: tuple[bytes, ...] = (),
        trust_user_kmsg: bool = False,
        batch_records: int = 1024,
        clock: Callable[[], float] = time.monotonic,
        open_source: Callable[[str], RecordSource] = open_source,
    ) -> None:
        self.path = path
        self._boot_id, self._boot_time = boot_id, boot_time
        self._wanted, self._trust, self._limit = any_of(needles), trust_user_kmsg, batch_records
        self._clock, self._open = clock, open_source
        self._last = cursor.sequence if cursor and cursor.boot_id == boot_id else None
        self._skipping = self._last is not None
        self._source: RecordSource | None = None
        self._retry_at = 0.0
        self._backlog: deque[bytes] = deque()
        self._injected: deque[bytes] = deque()
        self._numbered = self._timed = self._met = self._after_hole = False
        self._gaps = self._malformed = self._untrusted = 0
        self._drained_at: datetime | None = None
        self._behind = timedelta()
        self._error = ""
        self._beat = clock()
        self._closed = False
        self._reading, self._gate = threading.Lock(), threading.Lock()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def read_batch(self, timeout_s: float) -> KernelBatch:
        """The next records, as soon as there are any; an empty batch at the timeout, on :meth:`wake`, once closed."""
        deadline = time.monotonic() + timeout_s
        with self._reading:
            while not self._closed:
                batch = self._pump(deadline)
                left_s = deadline - time.monotonic()
                if batch.records or batch.gap or left_s <= 0 or self._rung():
                    return self._with_drilled(batch)
                if batch.caught_up:
                    self._wait(left_s)
            return self._batch([], gap=False, caught_up=False)

    def wake(self) -> None:
        """Make a blocked, or else the next, :meth:`read_batch` return now."""
        with self._gate:
            if not self._closed:
                os.eventfd_write(self._bell, 1)

    def inject(self, text: str) -> None:
        """Have the next :meth:`read_batch` return a record with this text that no source holds: for a drill. The thread
        that reads the kernel's records reads it like them, and it moves no cursor."""
        since_boot_us = int((datetime.now(UTC) - self._boot_time).total_seconds() * 1e6)
        self._injected.append(f"4,0,{max(0, since_boot_us)},-;{text}\n".encode())
        self.wake()

    def dates_from(self, boot_time: datetime) -> None:
        """Date the records that are read from now on by this time of the boot: the clock was set, and with it the
        kernel's time of the boot."""
        self._boot_time, self._drained_at, self._behind = boot_time, None, timedelta()

    def close(self) -> None:
        """Stop reading for good; returns once a blocked :meth:`read_batch` has."""
        self.wake()
        with self._gate:
            if self._closed:
                return
            self._closed = True
        with self._reading:
            self._drop_source()
            os.close(self._bell)

    def state(self) -> KernelLogState:
        """The state of the reader; never blocks and never raises."""
        return KernelLogState(
            source=self.path,
            alive=not self._closed,
            idle_s=max(0.0, self._clock() - self._beat),
            gaps=self._gaps,
            malformed=self._malformed,
            untrusted=self._untrusted,
            error=self._error,
        )

    # -- reading ------------------------------------------------------------------------------------------------------

    def _pump(self, deadline: float) -> KernelBatch:
        """Read until the batch is full, nothing is left, or the records should not wait longer."""
        self._beat = self._clock()
        found: list[KernelRecord] = []
        gaps, now = self._gaps, time.monotonic()
        stop_at = max(now + _LINGER_S, min(deadline, now + _TURN_S))
        while len(found) < self._limit and time.monotonic() < stop_at:
            asked_at = datetime.now(UTC)
            if not self._backlog and not self._refill():
                batch = self._batch(found, gap=self._gaps != gaps, caught_up=True)
                if self._error:
                    return batch
                self._drained_at = asked_at
                return replace(batch, until=asked_at)
            lonely = not found
            self._consume(found)
            if found and lonely:
                stop_at = min(stop_at, time.monotonic() + _LINGER_S)
        return self._batch(found, gap=self._gaps != gaps, caught_up=False)

    def _batch(self, found: list[KernelRecord], *, gap: bool, caught_up: bool) -> KernelBatch:
        cursor = None if self._last is None else Cursor(boot_id=self._boot_id, sequence=self._last)
        return KernelBatch(records=tuple(found), cursor=cursor, gap=gap, caught_up=caught_up)

    def _consume(self, found: list[KernelRecord]) -> None:
        backlog, limit = self._backlog, self._limit
        while backlog and len(found) < limit:
            record = self._admit(backlog.popleft())
            if record is not None:
                found.append(record)

    def _admit(self, raw: bytes) -> KernelRecord | None:
        """Move the cursor over one raw record; return it if it is new, wanted, whole and trusted."""
        sequence = sequence_of(raw)
        if sequence is None:
            self._unusable(raw)
            return None
        if not self._is_new(sequence):
            return None
        self._last = sequence
        if self._timed and b"\\x0a" in raw:
            self._gaps += self._hides_a_record(raw)
        if self._wanted is not None and not self._wanted.holds(raw):
            return None
        return self._parsed(raw)

    def _parsed(self, raw: bytes) -> KernelRecord | None:
        """One raw record, if it is whole and trusted."""
        record = parse_record(raw, boot_id=self._boot_id, boot_time=self._boot_time)
        if record is None:
            self._malformed += 1
        elif not record.trusted and not self._trust:
            self._untrusted += 1
        else:
            at = self._placed(record.time)
            return record if record.time == at else replace(record, time=at)
        return None

    def _placed(self, at: datetime) -> datetime:
        """When a record was written, as near as this reader can tell. No time service corrects the clock of the kernel
        log, which is minutes off after months: no record is of later than it is read, and none that the kernel numbers
        is of earlier than the device was last empty. By how much that clock is behind is the same for the next one."""
        if self._numbered and self._drained_at is not None:
            self._behind = max(self._behind, self._drained_at - at)
        return min(at + self._behind, datetime.now(UTC))

    def _with_drilled(self, batch: KernelBatch) -> KernelBatch:
        """The batch, with the records that were injected meanwhile."""
        if not self._injected:
            return batch
        raws = [self._injected.popleft() for _ in range(len(self._injected))]
        wanted = [raw for raw in raws if self._wanted is None or self._wanted.holds(raw)]
        return replace(batch, drilled=tuple(record for raw in wanted if (record := self._parsed(raw)) is not None))

    def _hides_a_record(self, raw: bytes) -> bool:
        """Whether a later line of a record may be a wanted one of its own: syslog(2) shows two records of the same
        microsecond as it shows one of two lines. It is not judged, because a user whom the kernel quotes may have
        written it; nor is it passed over, because the driver may have."""
        lines = raw.split(b"\\x0a")[1:]
        return self._wanted is not None and any(self._wanted.holds(b"0,0,0,-;" + line) for line in lines)

    def _unusable(self, raw: bytes) -> None:
        if raw == HOLE:
            self._gaps += 1
            self._after_hole = True  # the jump that follows is this same gap
        else:
            self._malformed += 1

    def _is_new(self, sequence: int) -> bool:
        """Whether a record lies beyond the cursor; notes a gap where records between them are missing."""
        if not self._skipping or self._last is None:
            return True
        self._met = self._met or sequence // MOMENT == self._last // MOMENT
        if sequence <= self._last:
            return False
        is_gap = not self._met if self._timed else self._numbered and sequence > self._last + 1
        self._gaps += is_gap and not self._after_hole
        self._skipping = False
        return True

    # -- the source ---------------------------------------------------------------------------------------------------

    def _refill(self) -> bool:
        """Fetch raw records from the source, opening it if need be. False: nothing is there now."""
        source = self._source or self._opened()
        if source is None:
            return False
        try:
            raws = source.read(None if self._skipping else self._wanted)
        except OSError as error:
            self._failed(error)
            return False
        if raws is None:
            self._drop_source()
            return self._opened() is not None
        self._backlog.extend(raws)
        return bool(raws)

    def _opened(self) -> RecordSource | None:
        if time.monotonic() < self._retry_at:
            return None
        try:
            self._source = self._open(self.path)
        except OSError as error:
            self._failed(error)
            return None
        self._error = ""
        self._numbered, self._timed = self._source.numbered, self._source.timed
        self._met = self._after_hole = False
        self._skipping = self._skipping or ((self._numbered or self._timed) and self._last is not None)
        return self._source

    def _failed(self, error: OSError) -> None:
        self._drop_source()
        next_step = _next_step_of_syslog(error) if self.path == SYSLOG else _next_step(error)
        self._error = f"{self.path}: {error.strerror or error}: no kernel record is read; {next_step}"
        self._retry_at = time.monotonic() + _RETRY_S

    def _drop_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _wait(self, timeout_s: float) -> None:
        """Wait until the source has something, the bell rings, or the time is over. syslog(2) and a regular file tell
        of no new record, and are read again and again."""
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        if self._source is None or self._source.pollable is None:
            timeout_s = min(timeout_s, _SYSLOG_POLL_S if self._timed else _FILE_POLL_S)
        else:
            poller.register(self._source.pollable, select.POLLIN)
        poller.poll(timeout_s * 1000)

    def _rung(self) -> bool:
        try:
            return bool(os.eventfd_read(self._bell))
        except BlockingIOError:
            return False


def read_all(
    path: str,
    *,
    boot_id: str,
    boot_time: datetime,
    needles: tuple[bytes, ...] = (),
    trust_user_kmsg: bool = False,
    max_records: int = 100_000,
) -> KernelBatch:
    """The log as of now, without following it: the newest ``max_records``, ``gap`` set if there were more.

    Raises SourceMissing or SourceUnreadable where nothing can be read, and for a FIFO: a read would take its records
    from the daemon that follows it. ``caught_up`` is False when the log grew faster than it could be read.
    """
    if _is_fifo(path):
        raise SourceUnreadable(
            f"{path}: a FIFO can only be followed by the daemon; reading it here would steal its records"
        )
    log = KernelLog(path, boot_id=boot_id, boot_time=boot_time, needles=needles, trust_user_kmsg=trust_user_kmsg)
    records: deque[KernelRecord] = deque(maxlen=max_records)
    deadline, total, gap = time.monotonic() + _READ_ALL_WITHIN_S, 0, False
    try:
        while True:
            batch = log.read_batch(0.0)
            total, gap = total + len(batch.records), gap or batch.gap
            records.extend(batch.records)
            if error := log.state().error:
                raise _as_source_error(path, error)
            if batch.caught_up or time.monotonic() > deadline:
                lost = gap or total > max_records
                return KernelBatch(records=tuple(records), cursor=batch.cursor, gap=lost, caught_up=batch.caught_up)
    finally:
        log.close()


def _is_fifo(path: str) -> bool:
    return path != SYSLOG and os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode)


def _as_source_error(path: str, error: str) -> SourceError:
    return SourceUnreadable(error) if path == SYSLOG or os.path.exists(path) else SourceMissing(error)


def _next_step_of_syslog(error: OSError) -> str:
    match error.errno:
        case errno.EPERM | errno.ENOSYS:
            return (
                "give healthd CAP_SYSLOG (in Kubernetes: securityContext.capabilities.add: [SYSLOG], and a seccomp"
                " profile that allows syslog(2), as RuntimeDefault does with that capability); trying again"
            )
        case errno.EPROTO:
            return "without times new records cannot be recognized: boot with printk.time=1; trying again"
        case _:
            return "see syslog(2); trying again"


def _next_step(error: OSError) -> str:
    match error.errno:
        case errno.ENOENT:
            return "expected /dev/kmsg, a FIFO or a file of its records; check [sources] kmsg; trying again"
        case errno.EACCES | errno.EPERM:
            return (
                "run healthd as root or with CAP_SYSLOG, and in a container as privileged (its device cgroup"
                " must allow the device too); trying again"
            )
        case errno.EINVAL:
            return "expected /dev/kmsg, a FIFO or a file of its records; point [sources] kmsg at one; trying again"
        case _:
            return "see dmesg for what the device reports; trying again"
