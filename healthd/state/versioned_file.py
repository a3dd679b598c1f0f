"""A SQLite file with a versioned schema: made where it is fresh, proven where it is not, or set aside whole."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from datetime import datetime
from pathlib import Path


class FileUnusable(Exception):
    """The file is not a database that this version can use."""


def prepare_file(db: sqlite3.Connection, *, schema: str, version: int, check: str) -> None:
    """Make a fresh database, or prove that this one is sound and of this version. ``check``: SQLite's pragma for that,
    ``integrity_check`` or the shorter ``quick_check``. Raises FileUnusable, sqlite3.Error."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        db.executescript(f"BEGIN; {schema} PRAGMA user_version = {version}; COMMIT;")
        found = version
    if found != version:
        raise FileUnusable(f"its schema version is {found}; this healthd reads {version}")
    (state,) = db.execute(f"PRAGMA {check}(1)").fetchone()
    if state != "ok":
        raise FileUnusable(f"it is damaged: {state}")


def move_aside(path: Path, now: datetime) -> Path:
    """Move the file and those that SQLite keeps beside it; returns its new name. Earlier files are not overwritten."""
    first = path.with_name(f"{path.name}.set-aside-{now:%Y%m%dT%H%M%S}")
    numbered = (first.with_name(f"{first.name}.{number}") for number in itertools.count(2))
    aside = next(each for each in itertools.chain([first], numbered) if not each.exists())
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside
