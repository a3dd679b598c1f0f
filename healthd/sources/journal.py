"""The journal, followed through ``journalctl -o json``: lines of services, which the kernel log does not have.

One child follows; it is started again after it ends, from where it left off, and ends with its reader (journalctl
ends when no process reads it). Lines of plain users are skipped: journald's own fields name the writer of a line, and a
user cannot set those. It judges nothing.

Sources: journalctl(1), systemd.journal-fields(7): fields that begin with ``_`` are trusted, MESSAGE may be an array of
bytes, UNIT is a field of the service manager's own messages.
"""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, Any
from uuid import UUID

from msgspec import Struct

from healthd.core.encodable import encodable
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.core.node import KernelRecord
from healthd.probe.child import kill_group
from healthd.sources.command import TRUNCATED, find_tool, kill_child, run_command

_FIELDS = "MESSAGE,PRIORITY,UNIT,_SYSTEMD_UNIT,_UID,_PID,_TRANSPORT,_BOOT_ID"
_KERNEL_FIELDS = "MESSAGE,PRIORITY,SYSLOG_FACILITY,_TRANSPORT,_BOOT_ID,_SOURCE_MONOTONIC_TIMESTAMP"
_RETRY_S = 10.0
_CHUNK_BYTES = 65_536
_BATCH_BYTES = 1 << 20
_LINE_BYTES = 1 << 20
_ONCE_BYTES, _ONCE_S = 32 << 20, 5.0
_MANAGER_PID = "1"
_BYTES = (b'"MESSAGE":[', b'"MESSAGE" : [')  # the second before systemd 240: logs-show.c, output_json
_NO_TOOL = "install systemd's journalctl, or remove the rules with source = journal"
_NO_TOOL_FOR_THE_PAST = "install systemd's journalctl"
_PAST_LINES = 20_000  # a second and a half on a machine with much else to do, of five


_OF_SERVICES = (range(1000), range(61184, 65520))
"""The users of services: system users, and those that systemd makes for ``DynamicUser=`` (systemd, UIDS-GIDS)."""


class WantedLines(Struct, frozen=True, kw_only=True):
    """The lines that a check wants: those that hold one of the needles. ``units``: services that are trusted, too, as
    far as they run as users of services."""

    needles: tuple[str, ...]
    units: frozenset[str] = frozenset()

    @property
    def in_json(self) -> tuple[bytes, ...]:
        """The needles as they appear in a line of JSON, which does not show where a record's line begins."""
        return tuple(json.dumps(each.removeprefix("^"), ensure_ascii=False)[1:-1].encode() for each in self.needles)


class JournalBatch(Struct, frozen=True, kw_only=True):
    """Records in their order, and the cursor behind the last line that was read; "" where none was. ``cut``: older ones
    were skipped, since there are more than one read takes. ``unread``: what journalctl says of files that it left out,
    such as one that a crash has damaged; "" where it read all."""

    records: tuple[KernelRecord, ...] = ()
    cursor: str = ""
    cut: bool = False
    unread: str = ""


class JournalLog:
    """Follows the journal of this boot. ``cursor``: after what to begin, else with the boot. One thread reads it.

    ``options``: further ones for journalctl, such as a namespace.
    """

    def __init__(self, wanted: WantedLines, *, cursor: str = "", options: Sequence[str] = ()) -> None:
        self._wanted, self._cursor, self._options = wanted, cursor, tuple(options)
        self._child: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._rest, self._not_before = b"", 0.0
        self._closed = threading.Event()
        self._problem = "the journal has not been read yet"

    def problem(self) -> str:
        """Why the journal is not being read, or ""."""
        return self._problem

    def close(self) -> None:
        """End the child; a read that waits returns at once."""
        self._closed.set()
        if (child := self._child) is not None:
            _kill(child)

    def read_batch(self, timeout_s: float) -> JournalBatch:
        """The new records, after waiting for them for at most ``timeout_s``. Trouble is in ``problem``, never
        raised."""
        if self._child is None and not self._start(timeout_s):
            return JournalBatch()
        child = self._child
        assert child is not None  # noqa: S101 - narrows the type: _start said that there is one
        assert child.stdout is not None  # noqa: S101 - narrows the type: it is a pipe
        lines: list[bytes] = []
        taken = 0
        poller = select.poll()  # select() knows no descriptor above 1023
        poller.register(child.stdout, select.POLLIN)
        while taken < _BATCH_BYTES and poller.poll(0 if taken else max(0, math.ceil(timeout_s * 1000))):
            chunk = os.read(child.stdout.fileno(), _CHUNK_BYTES)
            if not chunk:
                self._ended(child)
                break
            taken += len(chunk)
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            lines += whole
            if len(self._rest) > _LINE_BYTES:
                self._rest = b""  # no message is so long: the rest of it is no JSON and is skipped as such
        else:
            self._problem = ""
        batch = _batch(lines, self._wanted)
        self._cursor = batch.cursor or self._cursor
        return batch

    def _start(self, timeout_s: float) -> bool:
        if self._closed.wait(max(0.0, min(timeout_s, self._not_before - time.monotonic()))) or (
            time.monotonic() < self._not_before
        ):
            return False
        self._not_before, self._rest = time.monotonic() + _RETRY_S, b""
        try:
            tool, options = find_tool("journalctl"), _arguments(self._cursor, self._options)
            argv = [tool, "--output=json", "--no-pager", "--follow", "--no-tail", *options]
            # In memory: a user can fill every folder for temporary files. It is the child's until that has ended.
            self._stderr = open(os.memfd_create("journalctl"), "w+b")  # noqa: SIM115
            self._child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True
            )
        except SourceMissing as error:
            self._problem = f"{error}; {_NO_TOOL}"
            return False
        except OSError as error:
            self._problem = f"journalctl could not be started: {error}"
            return False
        if self._closed.is_set():
            _kill(self._child)
        return True

    def _ended(self, child: subprocess.Popen[bytes]) -> None:
        ended = child.poll() is not None or kill_child(child)
        output = ""
        if self._stderr is not None:
            self._stderr.seek(0)
            output = self._stderr.read(500).decode(errors="replace").strip()
            self._stderr.close()
        if child.stdout is not None:
            child.stdout.close()
        self._child = None
        how = f"ended with {child.returncode}" if ended else f"was killed, but process {child.pid} does not die"
        self._problem = f"journalctl {how}: {output or 'no output'}; healthd starts it again"


def read_journal(wanted: WantedLines, *, cursor: str = "", options: Sequence[str] = ()) -> JournalBatch:
    """The journal of this boot as of now. Raises SourceError, also for more than one read takes."""
    lines, cut, _ = _asked(_arguments(cursor, options), _NO_TOOL)
    if cut:
        raise SourceUnreadable(f"the journal of this boot is larger than {_ONCE_BYTES >> 20} MiB: run the daemon")
    return _batch(lines, wanted)


def read_past_kernel(since: datetime, boot_id: str, *, most: int = _PAST_LINES) -> JournalBatch:
    """The kernel's lines of before this boot that the journal took in after ``since``, as far as it kept them. Raises
    SourceError. Their own times do not tell: the clock of the kernel log loses or gains seconds in weeks.

    The newest lines come first, since they show the end, and ``most`` of them with this boot's own: of a storm the end
    is judged, and the batch says that it is ``cut``.
    """
    asked = [f"--output-fields={_KERNEL_FIELDS}", "_TRANSPORT=kernel", f"--since=@{since.timestamp():.6f}"]
    lines, cut, unread = _asked([*asked, "--reverse", f"--lines={most}"], _NO_TOOL_FOR_THE_PAST)
    entries = (_parsed(line) for line in reversed(lines))
    records = ((kernel_record_of(fields), fields) for fields in entries)
    past = [
        record
        for record, fields in records
        if record is not None and record.boot_id != boot_id and _taken_at(fields) > since
    ]
    return JournalBatch(records=tuple(past), cut=cut or len(lines) >= most, unread=unread)


def read_kernel_since(since: datetime, *, most: int = _PAST_LINES) -> JournalBatch:
    """The kernel's lines after ``since``, of any boot, as far as the journal kept them: see ``read_past_kernel``.
    Raises SourceError."""
    return read_past_kernel(since, "", most=most)


def _asked(options: Iterable[str], no_tool: str) -> tuple[list[bytes], bool, str]:
    """Journalctl's lines of JSON, whether there were more than are kept, and what it says of files that it left out: it
    ends with 0 then, and a quiet one says nothing else. ``no_tool``: the next step where there is no journalctl. Raises
    SourceError."""
    argv = ["journalctl", "--output=json", "--no-pager", "--quiet", *options]
    try:
        answer = run_command(argv, timeout_s=_ONCE_S, limit_bytes=_ONCE_BYTES)
    except SourceMissing as error:
        raise SourceMissing(f"{error}; {no_tool}") from error
    if answer.code:
        raise SourceUnreadable(f"journalctl: exit status {answer.code}: {answer.stderr.strip()[:200]}")
    lines = answer.stdout.encode("utf-8", "surrogateescape").split(b"\n")
    cut = lines[-1].startswith(TRUNCATED.encode())
    unread = " ".join(answer.stderr.split())[:200]
    return [line for line in (lines[:-2] if cut else lines) if line], cut, unread


def kernel_record_of(fields: Mapping[str, Any]) -> KernelRecord | None:
    """The record of one of the kernel's own entries, at the time of the kernel's line, not of its arrival."""
    if fields.get("_TRANSPORT") != "kernel" or fields.get("SYSLOG_FACILITY", "0") != "0":
        return None
    try:
        taken_us = int(fields["__MONOTONIC_TIMESTAMP"])
        source_us = int(fields.get("_SOURCE_MONOTONIC_TIMESTAMP", taken_us))
        return KernelRecord(
            boot_id=str(UUID(str(fields["_BOOT_ID"]))),
            sequence=source_us,
            time=_taken_at(fields) + timedelta(microseconds=source_us - taken_us),
            text=_text(fields.get("MESSAGE")),
            level=int(fields.get("PRIORITY", 6)),
        )
    except (KeyError, ValueError, TypeError, OverflowError, OSError):  # the last two: a time beyond what there is
        return None


def _taken_at(fields: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(int(fields["__REALTIME_TIMESTAMP"]) / 1e6, UTC)


def record_of(fields: Mapping[str, Any], units: Iterable[str] = ()) -> KernelRecord | None:
    """The record of one entry; None for one that is the kernel's (its own log has it), a plain user's, or no entry.

    Entries of root, of the service manager and of the named units are trusted. A unit may hold processes of plain
    users: without cgroup v2 the jobs of Slurm run in slurmd.service, as users' jobs of cron do in its unit.
    """
    unit = str(fields.get("_SYSTEMD_UNIT", ""))
    if str(fields.get("_PID")) == _MANAGER_PID and fields.get("UNIT"):
        unit = str(fields["UNIT"])
    transport = fields.get("_TRANSPORT")
    is_named = unit in set(units) and _is_of_a_service(str(fields.get("_UID")))
    if transport == "kernel" or not (fields.get("_UID") == "0" or transport == "driver" or is_named):
        return None
    try:
        realtime_us, monotonic_us = (int(fields[f"__{name}_TIMESTAMP"]) for name in ("REALTIME", "MONOTONIC"))
        return KernelRecord(
            boot_id=str(UUID(str(fields["_BOOT_ID"]))),
            sequence=monotonic_us,
            time=datetime.fromtimestamp(realtime_us / 1e6, UTC),
            text=_text(fields.get("MESSAGE")),
            facility=-1,
            level=int(fields.get("PRIORITY", 6)),
            source="journal",
            unit=unit,
        )
    except (KeyError, ValueError, TypeError, OverflowError, OSError):  # the last two: a time beyond what there is
        return None


def _is_of_a_service(uid: str) -> bool:
    return uid.isdecimal() and len(uid) < 10 and any(int(uid) in users for users in _OF_SERVICES)


def _arguments(cursor: str, options: Sequence[str]) -> Iterator[str]:
    yield from ("--boot", f"--output-fields={_FIELDS}", *options)
    if cursor:
        yield f"--after-cursor={cursor}"


def _batch(lines: Iterable[bytes], wanted: WantedLines) -> JournalBatch:
    """The batch of these lines. Of unwanted lines only the last one is parsed, for its cursor. A list of bytes shows no
    needle."""
    needles, records, last, cursor = (*wanted.in_json, *_BYTES), [], b"", ""
    for line in filter(None, lines):
        last = line
        if any(needle in line for needle in needles) and (record := record_of(_parsed(line), wanted.units)) is not None:
            records.append(record)
    if last:
        cursor = str(_parsed(last).get("__CURSOR", ""))
    return JournalBatch(records=tuple(records), cursor=cursor)


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _text(message: Any) -> str:
    """A message is text, or a list of bytes where it is no UTF-8, or null where it is too long."""
    if isinstance(message, list):
        return bytes(message).decode(errors="replace")
    return encodable(message) if isinstance(message, str) else ""


def _kill(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        kill_group(child.pid)
