"""The ledger on disk: SQLite, one file, a versioned schema, rows under natural keys.

Each reading of the fleet is one transaction: a controller that is killed in it loses that reading, and the next one
finds what the cluster still shows. A file that cannot be used is set aside, and a fresh one is started.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import astuple, fields

from healthd.core.errors import StoreError
from healthd.ledger.changes import NodeChanges, NodeMemory
from healthd.ledger.entries import (
    UNKNOWN_MACHINE,
    EntryKind,
    GpuSighting,
    LedgerContents,
    LedgerEntry,
    LedgerJob,
    MachineIdentity,
    NodeSpan,
    SpanState,
    WatchInterval,
)
from healthd.state.versioned_file import FileUnusable, create_private, move_aside, prepare_file

LEDGER = "ledger.db"
LEDGER_VERSION = 2
_SCHEMA = """
CREATE TABLE watched (start REAL PRIMARY KEY, until REAL NOT NULL);
CREATE TABLE span (node TEXT NOT NULL, start REAL NOT NULL, state TEXT NOT NULL, cause TEXT NOT NULL, until REAL,
                   instance_type TEXT NOT NULL, rack TEXT NOT NULL, PRIMARY KEY (node, start));
CREATE TABLE entry (key TEXT PRIMARY KEY, kind TEXT NOT NULL, node TEXT NOT NULL, at REAL NOT NULL, until REAL,
                    code TEXT NOT NULL, component TEXT NOT NULL, critical INTEGER NOT NULL, act TEXT NOT NULL,
                    outcome TEXT NOT NULL, gpu TEXT NOT NULL, serial TEXT NOT NULL, instance TEXT NOT NULL,
                    instance_type TEXT NOT NULL, rack TEXT NOT NULL, image TEXT NOT NULL, driver TEXT NOT NULL,
                    evidence TEXT NOT NULL);
CREATE INDEX entry_at ON entry (at);
CREATE TABLE gpu (gpu TEXT NOT NULL, serial TEXT NOT NULL, node TEXT NOT NULL, instance TEXT NOT NULL,
                  first REAL NOT NULL, last REAL NOT NULL, PRIMARY KEY (gpu, node, instance));
CREATE TABLE machine (node TEXT PRIMARY KEY, body TEXT NOT NULL);
"""
# A table of a later version of healthd: it is added to a ledger that was begun before, which stays as it is.
_LATER = """
CREATE TABLE IF NOT EXISTS job (job TEXT NOT NULL, run INTEGER NOT NULL, at REAL NOT NULL, user TEXT NOT NULL,
                  nodes TEXT NOT NULL, state TEXT NOT NULL, ending TEXT NOT NULL, verdict TEXT NOT NULL,
                  sentence TEXT NOT NULL, code TEXT NOT NULL, notice TEXT NOT NULL, PRIMARY KEY (job, run, at));
CREATE INDEX IF NOT EXISTS job_at ON job (at);
CREATE INDEX IF NOT EXISTS entry_until ON entry (until);
"""
_COLUMNS = tuple(each.name for each in fields(LedgerEntry))
_STAYS = ("instance", "instance_type", "rack", "image", "driver")  # as they were when the entry was first written
_CHANGES = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name not in (*_STAYS, "evidence"))
_PUT_ENTRY = (
    f"INSERT INTO entry (key, {', '.join(_COLUMNS)}) VALUES (?{', ?' * len(_COLUMNS)})"  # noqa: S608 - our own names
    f" ON CONFLICT (key) DO UPDATE SET {_CHANGES},"
    " evidence = CASE excluded.evidence WHEN '' THEN evidence ELSE excluded.evidence END"
)
_PUT_JOB = (
    "INSERT OR REPLACE INTO job (job, run, at, user, nodes, state, ending, verdict, sentence, code, notice)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_PUT_SPAN = (
    "INSERT INTO span (node, start, state, cause, until, instance_type, rack) VALUES (?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (node, start) DO UPDATE SET state = excluded.state, cause = excluded.cause, until = excluded.until"
)
_PUT_GPU = (
    "INSERT INTO gpu (gpu, serial, node, instance, first, last) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (gpu, node, instance) DO UPDATE SET last = max(last, excluded.last),"
    " serial = CASE excluded.serial WHEN '' THEN serial ELSE excluded.serial END"
)
_READS_MACHINE = msgspec.json.Decoder(MachineIdentity)
R = TypeVar("R", LedgerEntry, LedgerJob, NodeSpan, WatchInterval, GpuSighting)


class Ledger:
    """One open ledger, for any thread. Each public method is one transaction. Raises StoreError where the disk refuses,
    and writes nothing then. ``reads_only``: for a reader beside the controller, which makes no file and sets none
    aside."""

    def __init__(self, path: Path, *, now: datetime, reads_only: bool = False) -> None:
        self.path, self.set_aside = path, ""
        self._lock = threading.Lock()  # two threads have one connection, which has one transaction at a time
        try:
            if reads_only:
                path.stat()
            else:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = _connect(path, check="") if reads_only else self._opened(now)
        except (OSError, sqlite3.Error, FileUnusable) as error:
            if reads_only and isinstance(error, FileNotFoundError):
                raise StoreError(f"{path}: no ledger here; `healthd controller` keeps it on the head node") from error
            raise StoreError(f"{path}: cannot open the ledger: {error}; {_advice(error)}") from error

    def close(self) -> None:
        """Close it; committed transactions stay."""
        with self._lock:
            self._db.close()

    def watched_until(self, now: datetime) -> datetime | None:
        """When the fleet was watched last, by now; None where it never was. A clock that was ahead watched nothing."""
        with self._transaction(writes=False) as db:
            last = _last_watched(db, now)
        return None if last is None else min(now, _at(last[1]))

    def memories(self) -> dict[str, NodeMemory]:
        """The open rows, by node."""
        with self._transaction(writes=False) as db:
            machines = _machines(db)
            spans = {each.node: each for each in _rows(db, NodeSpan, "span", "WHERE until IS NULL")}
            faults: dict[str, list[LedgerEntry]] = {}
            for entry in _rows(db, LedgerEntry, "entry", "WHERE until IS NULL AND kind = ?", EntryKind.FAULT.value):
                faults.setdefault(entry.node, []).append(entry)
        return {
            node: NodeMemory(
                machine=machines.get(node, UNKNOWN_MACHINE), span=spans.get(node), faults=tuple(faults.get(node, ()))
            )
            for node in {*machines, *spans, *faults}
        }

    def write(
        self, changes: Mapping[str, NodeChanges], now: datetime, *, gap: timedelta, gone: Iterable[str] = ()
    ) -> None:
        """Write one reading: the changes of nodes, and that the fleet was watched until now; after more than ``gap``
        without a reading, from now on. ``gone``: nodes that are no longer listed."""
        with self._transaction() as db:
            for node, each in changes.items():
                db.executemany(_PUT_SPAN, map(_row, each.spans))
                db.executemany(_PUT_ENTRY, map(_entry_row, each.entries))
                db.executemany(_PUT_GPU, map(_row, each.gpus))
                body = msgspec.json.encode(each.after.machine).decode()
                db.execute(
                    "INSERT INTO machine (node, body) VALUES (?, ?)"
                    " ON CONFLICT (node) DO UPDATE SET body = excluded.body",
                    (node, body),
                )
            db.executemany("DELETE FROM machine WHERE node = ?", [(node,) for node in gone])
            _extend(db, now, gap)

    def machines(self) -> dict[str, MachineIdentity]:
        """The last machine known behind each node's name."""
        with self._transaction(writes=False) as db:
            return _machines(db)

    def contents(self, since: datetime | None = None) -> LedgerContents:
        """Everything; or what a report from ``since`` on is made from, which no more years of a fleet make more."""
        at = float("-inf") if since is None else since.timestamp()
        with self._transaction(writes=False) as db:
            return LedgerContents(
                entries=tuple(_rows(db, LedgerEntry, "entry", "WHERE at >= ? ORDER BY at, key", at)),
                spans=tuple(_rows(db, NodeSpan, "span", "WHERE until IS NULL OR until >= ? ORDER BY start, node", at)),
                watched=tuple(_rows(db, WatchInterval, "watched", "WHERE until >= ? ORDER BY start", at)),
                gpus=tuple(_rows(db, GpuSighting, "gpu", "WHERE last >= ? ORDER BY first, gpu", at)),
                machines=_machines(db),
            )

    def entries_since(self, since: datetime) -> tuple[LedgerEntry, ...]:
        """The entries that began or ended since then."""
        at = since.timestamp()
        with self._transaction(writes=False) as db:
            rest = "WHERE at >= ? OR until >= ? ORDER BY +at, key"  # +: by both indexes
            return tuple(_rows(db, LedgerEntry, "entry", rest, at, at))

    def entries_of(self, node: str) -> tuple[LedgerEntry, ...]:
        """The entries of one node, the first first."""
        with self._transaction(writes=False) as db:
            return tuple(_rows(db, LedgerEntry, "entry", "WHERE node = ? ORDER BY at, key", node))

    def put_entries(self, entries: Iterable[LedgerEntry]) -> None:
        """Insert or replace these entries."""
        with self._transaction() as db:
            db.executemany(_PUT_ENTRY, map(_entry_row, entries))

    def put_jobs(self, jobs: Iterable[LedgerJob]) -> None:
        """Insert or replace these ends of jobs."""
        with self._transaction() as db:
            db.executemany(_PUT_JOB, map(_row, jobs))

    def job_ends(self, job: str) -> tuple[LedgerJob, ...]:
        """The ends of one job, the first first."""
        with self._transaction(writes=False) as db:
            return tuple(_rows(db, LedgerJob, "job", "WHERE job = ? ORDER BY at", job))

    def job_ends_since(self, since: datetime) -> tuple[LedgerJob, ...]:
        """The ends of all jobs from then on, the first first."""
        with self._transaction(writes=False) as db:
            return tuple(_rows(db, LedgerJob, "job", "WHERE at >= ? ORDER BY at, job", since.timestamp()))

    def forget(self, before: datetime) -> None:
        """Delete what was over before that time. Open faults and spans stay."""
        at = before.timestamp()
        with self._transaction() as db:
            db.execute(
                "DELETE FROM entry WHERE at < ? AND (until < ? OR (until IS NULL AND kind != 'fault'))", (at, at)
            )
            db.execute("DELETE FROM span WHERE until < ?", (at,))
            db.execute("DELETE FROM watched WHERE until < ?", (at,))
            db.execute("DELETE FROM gpu WHERE last < ?", (at,))
            db.execute("DELETE FROM job WHERE at < ?", (at,))

    # -- opening ------------------------------------------------------------------------------------------------------

    def _opened(self, now: datetime) -> sqlite3.Connection:
        try:
            return _connect(self.path)
        except (sqlite3.DatabaseError, FileUnusable) as problem:
            if isinstance(problem, sqlite3.OperationalError):
                raise  # the disk, or another process: the file itself may be sound
            aside = move_aside(self.path, now)
            self.set_aside = f"{self.path}: {problem}; healthd keeps it as {aside} and starts a fresh ledger"
            return _connect(self.path)

    @contextlib.contextmanager
    def _transaction(self, *, writes: bool = True) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                try:
                    yield self._db
                except BaseException:
                    self._db.rollback()
                    raise
                self._db.execute("COMMIT")
            except (sqlite3.Error, msgspec.MsgspecError, ValueError) as error:
                with contextlib.suppress(sqlite3.Error):  # SQLite ends it itself where the disk is full
                    self._db.rollback()
                what = "written" if writes else "read"
                raise StoreError(f"{self.path}: the ledger was not {what}: {error}; check its disk") from error


def _advice(error: Exception) -> str:
    match error:
        case PermissionError():
            return "run it as root"
        case OSError() | sqlite3.OperationalError():
            return "check [controller] state_dir"
        case _:
            return "`healthd controller` sets it aside at its start, and begins a fresh one"


def kept_ledger(state_dir: str) -> contextlib.closing[Ledger]:
    """The ledger that the controller keeps in its state directory, for a reader beside it. Raises StoreError."""
    return contextlib.closing(Ledger(Path(state_dir) / LEDGER, now=datetime.now(UTC), reads_only=True))


def _connect(path: Path, *, check: str = "quick_check") -> sqlite3.Connection:
    create_private(path)
    db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        prepare_file(db, schema=_SCHEMA, version=LEDGER_VERSION, check=check)
        db.executescript(_LATER)
    except BaseException:
        db.close()
        raise
    return db


def _last_watched(db: sqlite3.Connection, now: datetime) -> tuple[float, float] | None:
    """Start and end of the last watched interval that began by now. A later one is of a clock that was ahead then."""
    query = "SELECT start, until FROM watched WHERE start <= ? ORDER BY until DESC LIMIT 1"
    found: tuple[float, float] | None = db.execute(query, (now.timestamp(),)).fetchone()
    return found


def _extend(db: sqlite3.Connection, now: datetime, gap: timedelta) -> None:
    """Extend the last watched interval to now, or begin another one after a gap."""
    at, last = now.timestamp(), _last_watched(db, now)
    if last is None or at > last[1] + gap.total_seconds():
        db.execute("INSERT INTO watched (start, until) VALUES (?, ?)", (at, at))
    elif at > last[1]:
        db.execute("UPDATE watched SET until = ? WHERE start = ?", (at, last[0]))


def _machines(db: sqlite3.Connection) -> dict[str, MachineIdentity]:
    return {node: _READS_MACHINE.decode(body) for node, body in db.execute("SELECT node, body FROM machine")}


def _rows(db: sqlite3.Connection, kind: type[R], table: str, rest: str, *values: Any) -> Iterator[R]:
    """The rows of a table, which has the fields of ``kind`` as its columns."""
    columns = tuple(each.name for each in fields(kind))
    for row in db.execute(f"SELECT {', '.join(columns)} FROM {table} {rest}", values):  # noqa: S608 - our own names
        yield msgspec.convert(dict(zip(columns, row, strict=True)), kind, strict=False)  # times are numbers there


def _entry_row(entry: LedgerEntry) -> tuple[Any, ...]:
    return (entry.key, *_row(entry))


def _row(each: LedgerEntry | LedgerJob | NodeSpan | GpuSighting) -> tuple[Any, ...]:
    """The fields in their order, which is that of the columns."""
    return tuple(_plain(value) for value in astuple(each))


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.timestamp()
        case EntryKind() | SpanState():
            return value.value
        case _:
            return value


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
