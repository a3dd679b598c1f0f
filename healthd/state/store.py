"""The state on disk: SQLite, one file, a versioned schema, an audit trail that cannot be rewritten.

One transaction has what belongs together: the findings of a batch of kernel records and the cursor behind it, an intent
and its remediation. A database that cannot be used (damaged, or of a later version) is set aside whole and a fresh one
is started; :attr:`Store.set_aside` has the reason, and the daemon shows it as a notice.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import Struct

from healthd.core.encodable import encodable, json_text
from healthd.core.errors import StoreError
from healthd.core.model import NODE, Component, Event
from healthd.judge.findings import Sightings
from healthd.judge.history import Fault, History
from healthd.judge.trends import Baseline, Days, Highest
from healthd.remediation.decide.remediation import Remediation
from healthd.state.ballast import Ballast
from healthd.state.versioned_file import FileUnusable, create_private, move_aside, prepare_file

SCHEMA_VERSION = 3
_SCHEMA = """
CREATE TABLE event (id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,
                    data TEXT NOT NULL);
CREATE TRIGGER event_keeps_its_text BEFORE UPDATE ON event BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER event_is_new BEFORE INSERT ON event WHEN EXISTS (SELECT 1 FROM event WHERE id = NEW.id)
                    BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TABLE fault (component TEXT NOT NULL, code TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (component, code));
CREATE TABLE baseline (component TEXT NOT NULL, reading TEXT NOT NULL, body TEXT NOT NULL,
                       PRIMARY KEY (component, reading));
CREATE TABLE learned (component TEXT NOT NULL, reading TEXT NOT NULL, body TEXT NOT NULL,
                      PRIMARY KEY (component, reading));
CREATE TABLE days (component TEXT NOT NULL, reading TEXT NOT NULL, body TEXT NOT NULL,
                   PRIMARY KEY (component, reading));
CREATE TABLE sightings (component TEXT NOT NULL, code TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (component, code));
CREATE TABLE name (alias TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE remediation (id TEXT PRIMARY KEY, open INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE fact (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
EVENTS_KEPT = 100_000
"""Lines of the audit trail: some 30 MB, and years of a healthy node. Older ones go; a newer one cannot be deleted."""
REMEDIATIONS_KEPT = 4_000
"""Remediations that are over: years of a node, which may return eight times a day at most. Older ones go."""
_NODE, _INSTANCE = "node", "instance_id"
_STAYS = (
    f"CREATE TRIGGER event_stays BEFORE DELETE ON event WHEN OLD.id > (SELECT MAX(id) FROM event) - {EVENTS_KEPT}"  # noqa: S608
    " BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END"
)
_INDEXES = """
CREATE INDEX IF NOT EXISTS event_of_kind ON event (kind);
CREATE INDEX IF NOT EXISTS event_of_job ON event (json_extract(data, '$.job')) WHERE kind = 'job' AND json_valid(data);
"""
"""For the questions that any user may ask: without them each reads the whole trail."""
_EVENT_COLUMNS = "CAST(at AS BLOB), CAST(kind AS BLOB), CAST(text AS BLOB), CAST(data AS BLOB)"
_KEYS: Mapping[str, tuple[str, ...]] = {
    "fault": ("component", "code"),
    "baseline": ("component", "reading"),
    "learned": ("component", "reading"),
    "days": ("component", "reading"),
    "sightings": ("component", "code"),
    "name": ("alias",),
}
# What SQLite says when the disk or its rights are at fault, and not what is in the file (sqlite.org/rescode.html).
_CODES = ("PERM", "BUSY", "LOCKED", "NOMEM", "IOERR", "FULL", "CANTOPEN", "PROTOCOL")
_OF_THE_DISK = frozenset(getattr(sqlite3, f"SQLITE_{code}") for code in _CODES)
_AnyRow = Fault | Baseline | Highest | Days | Sightings | Component | Remediation
_Row = TypeVar("_Row", bound=_AnyRow)
# Made once, here: threads that decode one type for the first time at the same moment have crashed msgspec.
_DECODERS: Mapping[type, msgspec.json.Decoder[Any]] = {kind: msgspec.json.Decoder(kind) for kind in get_args(_AnyRow)}


IN_MEMORY = Path(":memory:")
"""SQLite's name for a database without a file."""


class EventFilter(Struct, frozen=True, kw_only=True):
    """Which lines of the audit trail are wanted; all, by itself.

    ``after``: only those with a greater number. ``since``: only from then on. ``kinds``: only of these, where there are
    any. ``without``: none of this kind. ``remediation``: only those that name this id, as ``[id]``.
    """

    after: int = 0
    since: datetime | None = None
    kinds: tuple[str, ...] = ()
    without: str = ""
    remediation: str = ""

    def condition(self) -> tuple[str, tuple[int | str, ...]]:
        """As SQL, and the values of its parameters. Times are text of one form and zone (UTC): it sorts as they do."""
        parts: list[tuple[str, tuple[int | str, ...]]] = [("id > ?", (self.after,))]
        if self.since is not None:
            parts.append(("at >= ?", (self.since.astimezone(UTC).isoformat(),)))
        if self.kinds:
            parts.append((f"kind IN ({', '.join('?' * len(self.kinds))})", self.kinds))
        if self.without:
            parts.append(("kind != ?", (self.without,)))
        if self.remediation:
            parts.append(("instr(text, ?) > 0", (f"[{self.remediation}]",)))
        return " AND ".join(text for text, _ in parts), tuple(value for _, values in parts for value in values)


class StoreUnopened(StoreError):
    """The disk refuses the database, whatever its contents."""


class Owner(Struct, frozen=True, kw_only=True):
    """The node that a database is of, and its instance; "" where unknown."""

    node: str = ""
    instance: str = ""


class Store:
    """One open database. Safe to use from several threads; every public method is one transaction.

    The audit trail and the remediations are read through a connection of their own: however often users ask for them,
    no fault and no step waits.

    ``owner``: a database of another node on another instance, which came in a machine image, is set aside: what it
    knows to be under way, has a drain and a slot there and not here.

    Raises StoreError where the disk refuses (full, read-only, gone) or a row makes no sense: nothing was written then.
    """

    def __init__(self, path: Path, *, now: datetime, owner: Owner | None = None) -> None:
        self.path, self._owner = path, owner or Owner()
        self.set_aside = ""
        self.ballast = Ballast(path.parent)
        self._lock = threading.Lock()
        self._read_last: tuple[str, Remediation | None] = ("", None)
        """The text of the open remediation that was read last, and what it says."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = self._opened_with_room(now)
            self._reads = self._db if path == IN_MEMORY else connect_to_read(path)
            self._reads_lock = self._lock if path == IN_MEMORY else threading.Lock()
        except (OSError, sqlite3.Error) as error:
            text = f"{path}: cannot open the state database: {error}; check [daemon] state_dir and its disk"
            raise StoreUnopened(text) from error

    def close(self) -> None:
        """Close the database; committed transactions stay."""
        with self._reads_lock:
            self._reads.close()
        with self._lock:
            self._db.close()  # the last, for it alone can clear the write-ahead log

    # -- judgement ----------------------------------------------------------------------------------------------------

    def history(self) -> History:
        """The History as it was last saved; an empty one in a fresh database."""
        with self._transaction(writes=False) as db:
            return _history(db)

    def save_history(
        self,
        before: History,
        after: History,
        *,
        events: Iterable[Event],
        cursor: tuple[str, int] | None,
        cursor_at: datetime | None = None,
        journal_cursor: str = "",
    ) -> None:
        """Write the changes since ``before``, their events and the cursors of the logs, all or nothing."""
        with self._transaction() as db:
            _sync(db, "fault", before.faults, after.faults)
            _sync(db, "baseline", before.baselines, after.baselines)
            _sync(db, "learned", before.learned, after.learned)
            _sync(db, "days", before.days, after.days)
            _sync(db, "sightings", before.sightings, after.sightings)
            _sync(db, "name", before.names, after.names)
            _set_fact(db, "boot_id", after.boot_id)
            _set_fact(db, _INSTANCE, after.instance_id)
            if cursor is not None:
                _set_fact(db, "cursor", f"{cursor[0]} {cursor[1]}")
            if cursor_at is not None:
                _set_fact(db, "cursor_at", cursor_at.isoformat())
            if journal_cursor:
                _set_fact(db, "journal_cursor", journal_cursor)
            _append(db, events)

    def cursor_at(self) -> datetime | None:
        """Every kernel record of before then was judged; None where that was never known."""
        with self._transaction(writes=False) as db:
            return _cursor_at(db)

    def journal_cursor(self) -> str:
        """journalctl's cursor of the last journal line whose findings are saved; "" at first start."""
        return self.fact("journal_cursor")

    def fact(self, key: str) -> str:
        """The text under this key, or ""."""
        with self._transaction(writes=False) as db:
            return _fact(db, key)

    def keep(self, key: str, value: str) -> None:
        """Keep a text for the next daemon."""
        with self._transaction() as db:
            _set_fact(db, key, value)

    def keep_all(self, facts: Mapping[str, str], *events: Event) -> None:
        """Keep texts by their keys, and add to the audit trail, all or nothing."""
        with self._transaction() as db:
            for key, value in facts.items():
                _set_fact(db, key, value)
            _append(db, events)

    def cursor(self) -> tuple[str, int] | None:
        """(boot id, sequence) of the last kernel record whose findings are saved; None at first start."""
        with self._transaction(writes=False) as db:
            return _cursor(db)

    # -- acting -------------------------------------------------------------------------------------------------------

    def open_remediation(self) -> Remediation | None:
        with self._transaction(writes=False) as db:
            row = db.execute("SELECT body FROM remediation WHERE open ORDER BY rowid DESC LIMIT 1").fetchone()
            if row and row[0] != self._read_last[0]:  # asked for at every turn of the engine, and mostly unchanged
                self._read_last = (row[0], _decode(row[0], Remediation))
            return self._read_last[1] if row else None

    def remediations(self) -> tuple[Remediation, ...]:
        with self._reading() as db:
            return tuple(
                _decode(body, Remediation) for (body,) in db.execute("SELECT body FROM remediation ORDER BY rowid")
            )

    def knows(self, remediation_id: str) -> bool:
        with self._reading() as db:
            return db.execute("SELECT 1 FROM remediation WHERE id = ?", (remediation_id,)).fetchone() is not None

    def save_remediation(self, remediation: Remediation, event: Event) -> None:
        """Write a remediation and the event about its change, all or nothing."""
        with self._transaction() as db:
            db.execute(
                "INSERT INTO remediation (id, open, body) VALUES (?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET open = excluded.open, body = excluded.body",
                (remediation.id, remediation.is_open, json_text(remediation)),
            )
            db.execute(
                "DELETE FROM remediation WHERE NOT open AND rowid <= (SELECT MAX(rowid) FROM remediation) - ?",
                (REMEDIATIONS_KEPT,),
            )
            _append(db, (event,))

    # -- audit --------------------------------------------------------------------------------------------------------

    def append(self, *events: Event) -> None:
        """Add to the audit trail."""
        with self._transaction() as db:
            _append(db, events)

    def events(self, *, last: int = 1000) -> tuple[Event, ...]:
        """The newest ``last`` events, oldest of them first."""
        return self.events_of(EventFilter(), last=last)[0]

    def events_of(self, wanted: EventFilter, *, last: int) -> tuple[tuple[Event, ...], int]:
        """(the newest ``last`` of these events, oldest of them first; the number of the newest event of all)."""
        where, values = wanted.condition()
        with self._reading() as db:
            select = f"SELECT {_EVENT_COLUMNS} FROM event WHERE {where} ORDER BY id DESC LIMIT ?"  # noqa: S608 - constants
            rows = db.execute(select, (*values, last)).fetchall()
            (newest,) = db.execute("SELECT COALESCE(MAX(id), 0) FROM event").fetchone()
        events = (_event(*(value.decode("utf-8", "replace") for value in row)) for row in reversed(rows))
        return tuple(events), newest

    def events_of_job(self, job: str) -> tuple[Event, ...]:
        """The verdicts on the end of a job, oldest first."""
        of_job = "kind = 'job' AND json_valid(data) AND json_extract(data, '$.job') = ?"  # the words of its index
        with self._reading() as db:
            rows = db.execute(f"SELECT {_EVENT_COLUMNS} FROM event WHERE {of_job} ORDER BY id", (job,)).fetchall()  # noqa: S608
        return tuple(_event(*(value.decode("utf-8", "replace") for value in row)) for row in rows)

    # -- opening ------------------------------------------------------------------------------------------------------

    def _opened_with_room(self, now: datetime) -> sqlite3.Connection:
        """Write once more if the disk is full and the ballast could be removed."""
        try:
            return self._opened(now)
        except (OSError, sqlite3.Error):
            if not self.ballast.give_up():
                raise
            return self._opened(now)

    def _opened(self, now: datetime) -> sqlite3.Connection:
        """The database, or a fresh one beside the unusable old one."""
        try:
            return self._own(_connect(self.path))
        except FileUnusable as problem:
            aside = move_aside(self.path, now)
            self.set_aside = f"{self.path}: {problem}; healthd keeps it as {aside} and starts a fresh database"
            return self._own(_connect(self.path))

    def _own(self, db: sqlite3.Connection) -> sqlite3.Connection:
        """The same, with the owner's name in it. Raises FileUnusable for one of another owner. A node with another name
        on the same instance has been renamed; an unknown instance is evidence of nothing."""
        owner, node, instance = self._owner, _fact(db, _NODE), _fact(db, _INSTANCE)
        is_renamed = bool(node) and node != owner.node
        if not owner.node or (is_renamed and "" in (owner.instance, instance)):
            return db
        if is_renamed and instance != owner.instance:
            db.close()
            here = f"{owner.node} on {owner.instance}"
            raise FileUnusable(f"came in a machine image: it is of node {node} on {instance}, and this is {here}")
        if node != owner.node:
            with contextlib.suppress(sqlite3.Error):  # the disk has no room: the next start does it
                _set_fact(db, _NODE, owner.node)
        return db

    def _reading(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """A transaction for which no other of this store waits, but those of the same kind."""
        return self._transaction(writes=False, aside=True)

    @contextlib.contextmanager
    def _transaction(self, *, writes: bool = True, aside: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction. One that only reads takes no write lock: a disk that refuses writes can still be read."""
        lock, db = (self._reads_lock, self._reads) if aside else (self._lock, self._db)
        with lock:
            try:
                db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                try:
                    yield db
                except BaseException:
                    _rollback(db)
                    raise
                db.execute("COMMIT")
            except (sqlite3.Error, msgspec.MsgspecError, ValueError, MemoryError) as error:  # the last: SQLITE_NOMEM
                _rollback(db)
                if _is_full(error):
                    self.ballast.give_up()  # the next attempt has its room
                what = "written" if writes else "read"
                text = f"{self.path}: the state was not {what}: {error}; healthd does not act until it can be"
                raise StoreError(text) from error


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection to an existing database that cannot write. One that was closed in order is read also where no file
    can be made beside it: on a read-only disk, or by another user. Raises sqlite3.Error."""
    db = _connected_to_read(path, "mode=ro")
    try:
        db.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        db.close()
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN) or os.path.exists(f"{path.resolve()}-wal"):
            raise
        return _connected_to_read(path, "mode=ro&immutable=1")
    return db


def _connected_to_read(path: Path, how: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?{how}"
    return sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False)


def _connect(path: Path) -> sqlite3.Connection:
    _make_private(path)
    db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        _prepare(db)
    except (sqlite3.Error, msgspec.MsgspecError, ValueError, RecursionError, FileUnusable) as error:
        db.close()
        if isinstance(error, sqlite3.Error) and _is_of_the_disk(error, path):
            raise
        raise FileUnusable(f"cannot be used: {error}") from error
    return db


def _make_private(path: Path) -> None:
    """For root alone, also where it was created before with another mode."""
    if path == IN_MEMORY:
        return
    with contextlib.suppress(OSError):  # SQLite reports a disk that refuses this
        create_private(path)
        os.chmod(path, 0o600)


def _rollback(db: sqlite3.Connection) -> None:
    """End a transaction that failed; SQLite has already ended it itself where the disk was full."""
    with contextlib.suppress(sqlite3.ProgrammingError):  # closed: there is none
        db.rollback()


def _is_of_the_disk(error: sqlite3.Error, path: Path) -> bool:
    """Whether another file there would fail too. A damaged header can make SQLite take a file for read-only."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code in _OF_THE_DISK or (code == sqlite3.SQLITE_READONLY and not os.access(path, os.W_OK))


def _is_full(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE


def _prepare(db: sqlite3.Connection) -> None:
    """Make a fresh database, or prove that this one can be used, rows included."""
    prepare_file(db, schema=f"{_SCHEMA} {_STAYS};", version=SCHEMA_VERSION, check="integrity_check")
    _prove(db)
    if db.execute("SELECT sql FROM sqlite_master WHERE name = 'event_stays'").fetchone() != (_STAYS,):
        db.executescript(f"BEGIN; DROP TRIGGER IF EXISTS event_stays; {_STAYS}; COMMIT;")  # one that kept every line
    _try_to_write(db)
    with contextlib.suppress(sqlite3.OperationalError):  # the disk has no room: the next start makes them
        db.executescript(f"BEGIN; {_INDEXES} COMMIT;")
    _rollback(db)


def _prove(db: sqlite3.Connection) -> None:
    """Read everything that is ever read again, by the same code: a row that fails only later would end this daemon and
    every one after it."""
    _history(db)
    for remediation_id, body in db.execute("SELECT id, body FROM remediation"):
        if _decode(body, Remediation).id != remediation_id:
            raise FileUnusable(f"the row of remediation {remediation_id} holds another remediation")
    for key, _ in db.execute("SELECT key, value FROM fact"):
        _fact(db, key)
    _cursor(db)
    _cursor_at(db)


def _try_to_write(db: sqlite3.Connection) -> None:
    """Write a row to every table, and roll back: a renamed column shows now, not at the first fault."""
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("INSERT INTO remediation (id, open, body) VALUES ('', 0, '')")
        for table, columns in _KEYS.items():
            _sync(db, table, {}, {("",) * len(columns): NODE})
        _set_fact(db, "", "")
        _append(db, (Event(at=datetime.fromtimestamp(0, UTC), kind="", text=""),))
    finally:
        db.rollback()


def _decode(body: str, kind: type[_Row]) -> _Row:
    return _DECODERS[kind].decode(body)  # type: ignore[no-any-return]  # the table has the kinds for its keys


def _history(db: sqlite3.Connection) -> History:
    """The History from the tables. Raises ValueError for an inconsistent row."""
    faults = _pairs(db, "fault", Fault)
    for (component, code), fault in faults.items():
        if fault.key != (component, code):
            raise ValueError(f"the row of {code} on {component} holds another fault")
    return History(
        boot_id=_fact(db, "boot_id"),
        instance_id=_fact(db, _INSTANCE),
        faults=faults,
        names={alias: _decode(body, Component) for alias, body in db.execute("SELECT alias, body FROM name")},
        baselines=_pairs(db, "baseline", Baseline),
        learned=_pairs(db, "learned", Highest),
        days=_pairs(db, "days", Days),
        sightings=_pairs(db, "sightings", Sightings),
    )


def _pairs(db: sqlite3.Connection, table: str, kind: type[_Row]) -> dict[tuple[str, str], _Row]:
    """The rows of a table by component and reading, or code. The table's name is a constant, never input."""
    rows = db.execute(f"SELECT {', '.join(_KEYS[table])}, body FROM {table}")  # noqa: S608 - constant names
    return {(component, what): _decode(body, kind) for component, what, body in rows}


def _fact(db: sqlite3.Connection, key: str) -> str:
    row = db.execute("SELECT value FROM fact WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else ""


def _cursor(db: sqlite3.Connection) -> tuple[str, int] | None:
    boot_id, _, sequence = _fact(db, "cursor").rpartition(" ")
    return (boot_id, int(sequence)) if boot_id else None


def _cursor_at(db: sqlite3.Connection) -> datetime | None:
    kept = _fact(db, "cursor_at")
    at = datetime.fromisoformat(kept) if kept else None
    if at is not None and at.tzinfo is None:
        raise ValueError(f"the fact cursor_at is {kept!r}; expected a time with its zone")
    return at


def _set_fact(db: sqlite3.Connection, key: str, value: str) -> None:
    db.execute(
        "INSERT INTO fact (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def _event(at: str, kind: str, text: str, data: str) -> Event:
    """One line of the audit trail. A damaged one is returned as it is: it must not hide the others."""
    try:
        return Event(at=datetime.fromisoformat(at), kind=kind, text=text, data=msgspec.json.decode(data))
    except (msgspec.MsgspecError, ValueError):
        return Event(at=datetime.fromtimestamp(0, UTC), kind="damaged", text=f"{at} {kind}: {text} {data}")


def _append(db: sqlite3.Connection, events: Iterable[Event]) -> None:
    db.executemany(
        "INSERT INTO event (at, kind, text, data) VALUES (?, ?, ?, ?)",
        [(event.at.isoformat(), event.kind, encodable(event.text), json_text(event.data)) for event in events],
    )
    db.execute("DELETE FROM event WHERE id <= (SELECT MAX(id) FROM event) - ?", (EVENTS_KEPT,))


def _sync(db: sqlite3.Connection, table: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> None:
    """Make a table match ``after``, touching only rows that differ from ``before``. Names are ours, never input.

    Rows are compared as they are written: an alias of a component takes no part in its equality.
    """
    columns = _KEYS[table]
    where = " AND ".join(f"{column} = ?" for column in columns)
    places = ", ".join("?" * (len(columns) + 1))
    gone = [_as_row(key) for key in before if key not in after]
    changed = {key: json_text(row) for key, row in after.items() if before.get(key) is not row}
    new = [
        (*_as_row(key), text) for key, text in changed.items() if key not in before or json_text(before[key]) != text
    ]
    db.executemany(f"DELETE FROM {table} WHERE {where}", gone)  # noqa: S608 - constant names
    db.executemany(f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}, body) VALUES ({places})", new)  # noqa: S608


def _as_row(key: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(encodable(part) for part in ((key,) if isinstance(key, str) else key))
