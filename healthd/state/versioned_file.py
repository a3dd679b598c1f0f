"""A SQLite file with a versioned schema: made where it is fresh, proven where it is not, or set aside whole."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

_BUSY_ATTEMPTS = 250


class FileUnusable(Exception):
    """The file is not a database that this version can use."""


def create_private(path: Path) -> None:
    """Create the file for root alone, whatever the umask: SQLite gives those beside it the database's own mode. One
    that is there is not opened: closing it would drop the locks of this process's other connections. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def prepare_file(db: sqlite3.Connection, *, schema: str, version: int, check: str) -> None:
    """Make a fresh database, or prove that this one is sound and of this version. ``check``: SQLite's pragma for that,
    ``integrity_check`` or the shorter ``quick_check``, which reads all of it; "": only the version is proven. Raises
    FileUnusable, sqlite3.Error."""
    _use_wal(db)
    db.execute("PRAGMA synchronous = FULL")
    found = _version(db)
    if found == 0:
        found = _made_if_fresh(db, schema, version)
    if found != version:
        raise FileUnusable(f"its schema version is {found}; this healthd reads {version}")
    state = db.execute(f"PRAGMA {check}(1)").fetchone()[0] if check else "ok"
    if state != "ok":
        raise FileUnusable(f"it is damaged: {state}")


def _use_wal(db: sqlite3.Connection) -> None:
    """Where another connection is about to do the same, SQLite refuses at once and waits for nothing."""
    for pause_s in itertools.chain([0.02] * _BUSY_ATTEMPTS, [None]):
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if pause_s is None or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(pause_s)


def _made_if_fresh(db: sqlite3.Connection, schema: str, version: int) -> int:
    """The version of the database, made here unless another opener of the same fresh file was first."""
    db.execute("BEGIN IMMEDIATE")
    try:
        if _version(db) == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in _statements(f"{schema} PRAGMA user_version = {version};"):
                db.execute(statement)
        db.execute("COMMIT")
    except BaseException:
        db.rollback()
        raise
    return _version(db)


def _statements(script: str) -> Iterator[str]:
    """One by one: ``executescript`` would end the transaction."""
    statement = ""
    for part in script.split(";"):
        statement += f"{part};"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _version(db: sqlite3.Connection) -> int:
    (found,) = db.execute("PRAGMA user_version").fetchone()
    return int(found)


def move_aside(path: Path, now: datetime) -> Path:
    """Move the file and those that SQLite keeps beside it; returns its new name. Earlier files are not overwritten."""
    first = path.with_name(f"{path.name}.set-aside-{now:%Y%m%dT%H%M%S}")
    numbered = (first.with_name(f"{first.name}.{number}") for number in itertools.count(2))
    aside = next(each for each in itertools.chain([first], numbered) if not each.exists())
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside
