"""The event store of a daemon, read as outcomes of its checks. Nothing is written to it.

The audit trail holds the faults that opened and ended. Severity and remedy are those of this version's checks, and a
kernel line is judged again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.core.check import Check, FindingCode, declared_by, discover, judged
from healthd.core.errors import SourceUnreadable
from healthd.core.model import Clearance, Component, Finding, Outcome
from healthd.core.node import KernelRecord
from healthd.observe.runner import run_check
from healthd.replay.node import PastNode
from healthd.sources.pastlogs import FIRST_YEAR, LAST_YEAR
from healthd.state.store import connect_to_read

_MAGIC = b"SQLite format 3\0"


class PastStore(Struct, kw_only=True):
    """One store. ``events`` and ``unread`` grow while it is read."""

    path: Path
    host: str
    events: int = 0
    unread: int = 0
    faults: int = 0
    _open: dict[str, dict[tuple[str, str], Finding]] = field(default_factory=dict)

    def outcomes(self) -> Iterator[Outcome]:
        """The outcomes, one for each fault that opened or ended, in the order of the trail."""
        checks = discover()
        for at, data in self._rows():
            self.events += 1
            try:
                outcome = self._outcome(_time(at), json.loads(data), checks)
            except (ValueError, KeyError, TypeError, AttributeError):
                self.unread += 1
                continue
            self.faults += 1
            yield outcome

    def _rows(self) -> Iterator[tuple[str, str]]:
        try:
            with closing(connect_to_read(self.path)) as db:
                yield from db.execute("SELECT at, data FROM event WHERE kind = 'fault' AND data <> '{}' ORDER BY id")
        except sqlite3.Error as error:
            wrong = f"not an event store of healthd, or a copy without the -wal that was beside it: {error}"
            raise SourceUnreadable(f"{self.path}: {wrong}") from error

    def _outcome(self, at: datetime, data: Mapping[str, Any], checks: Mapping[str, Check]) -> Outcome:
        code, component = str(data["code"]), Component.named(str(data["component"]))
        if (found := declared_by(code, checks.values())) is None:
            raise KeyError(code)  # no check finds it any more
        check, known = found
        open_now = self._open.setdefault(check.name, {})
        clearances: tuple[Clearance, ...] = ()
        if data["opened"]:
            open_now[str(component), code] = _finding((code, component), check, known, data["evidence"].get("line"), at)
        elif (finding := open_now.pop((str(component), code), None)) is not None and finding.clears_by is not None:
            clearances = (Clearance(by=finding.clears_by, component=component, code=code, note="ended at that time"),)
        levels = [each for each in open_now.values() if each.clears_by is None]
        news = [open_now[str(component), code]] if data["opened"] else []
        result = judged([*levels, *(each for each in news if each.clears_by is not None)], clearances=clearances)
        return Outcome(check=check.name, result=result, at=at, duration_s=0.0)


def is_store(path: Path) -> bool:
    """Whether a file is a SQLite database."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False  # opening it as a log then gives the reason


def open_store(path: Path) -> PastStore:
    """The store at this path."""
    return PastStore(path=path, host=path.resolve().parent.name if path.stem == "healthd" else path.stem)


# ---------------------------------------------------------------------------------------------------------------------


def _time(at: str) -> datetime:
    """Raises ValueError for one that a daemon does not write: without a zone, or beyond the calendar of the rules."""
    time = datetime.fromisoformat(at)
    if time.tzinfo is None or not FIRST_YEAR <= time.year <= LAST_YEAR:
        raise ValueError(at)
    return time


def _finding(found: tuple[str, Component], check: Check, known: FindingCode, line: Any, at: datetime) -> Finding:
    """The finding as this version would make it: from its kernel line where there is one. On the component in the
    store, and it counts at once: its hold-down was over by then."""
    code, component = found
    finding = known.at(component, known.meaning, time=at)
    if check.on == "kernel" and isinstance(line, str):
        record = KernelRecord(boot_id="", sequence=0, time=at, text=line)
        node = PastNode(name="", kernel_records=(record,))
        findings = run_check(check, node, check.settings()).result.findings
        finding = next((each for each in findings if each.code == code), finding)
    return replace(finding, code=code, component=component, lasting_s=0.0, repeats=None)
