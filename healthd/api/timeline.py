"""The audit trail and the remediations of a node as one timeline, newest last: ``healthd history``. It writes nothing.

The order is that of the trail, not of the clock: a clock may be stepped, the trail only grows.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from healthd.core.errors import StoreError
from healthd.core.model import Event
from healthd.observe.report import printable
from healthd.remediation.decide.remediation import Remediation
from healthd.state.store import SCHEMA_VERSION, Store

SCHEMA = "healthd.history/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trail:
    """The newest events, the oldest first, and the remediations that began among them or are open.

    ``cut``: why there are fewer lines than requested, or "".
    """

    events: tuple[Event, ...]
    remediations: tuple[Remediation, ...] = ()
    cut: str = ""


def trail_of(store: Store, *, last: int) -> Trail:
    """The newest ``last`` lines of a store. Raises StoreError."""
    events = store.events(last=last)
    since = min((event.at for event in events), default=None) if len(events) == last else None
    remediations = (
        remediation
        for remediation in store.remediations()
        if since is None or remediation.opened >= since or remediation.is_open
    )
    return Trail(events=events, remediations=tuple(remediations))


def read_trail(path: Path, *, last: int) -> Trail:
    """The same from a database on disk, opened read-only, for a node whose daemon does not answer. Raises
    StoreError."""
    try:
        there = path.is_file()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; be root, or start the daemon, which answers all users") from error
    if not there:
        raise StoreError(f"{path}: no state database; healthd has not run here, or [daemon] state_dir differs")
    store = _ReadStore(path, now=datetime.now(UTC))
    try:
        return trail_of(store, last=last)
    finally:
        store.close()


def trail_json(trail: Trail) -> str:
    """One JSON object, two-space indented."""
    data = {
        "schema": SCHEMA,
        "cut": trail.cut,
        "events": [
            {"at": each.at.isoformat(), "kind": each.kind, "text": each.text, "data": each.data}
            for each in trail.events
        ],
        "remediations": [_remediation_data(remediation) for remediation in trail.remediations],
    }
    return json.dumps(data, indent=2, default=str) + "\n"


def trail_text(trail: Trail) -> str:
    """As text: a line for each event, its evidence under it; each remediation where it began."""
    lines = [printable(line) for line in _lines(trail)]
    lines[:0] = [f"! {trail.cut}"] if trail.cut else []
    return "\n".join(lines or ["the audit trail is empty"]) + "\n"


# ---------------------------------------------------------------------------------------------------------------------


class _ReadStore(Store):
    """An existing database, opened read-only: it is neither created nor repaired nor set aside."""

    def _opened(self, now: datetime) -> sqlite3.Connection:
        uri = f"{self.path.resolve().as_uri()}?mode=ro"
        db = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False)
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version != SCHEMA_VERSION:
                raise sqlite3.DatabaseError(f"its schema version is {version}, this healthd knows {SCHEMA_VERSION}")
        except sqlite3.Error:
            db.close()
            raise
        return db


def _lines(trail: Trail) -> Iterator[str]:
    waiting = list(trail.remediations)
    for event in trail.events:
        while waiting and waiting[0].opened <= event.at:
            yield _remediation_line(waiting.pop(0))
        yield _line(event.at, event.kind, event.text)
        yield from _evidence_lines(event.data)
    yield from map(_remediation_line, waiting)


def _line(at: datetime, kind: str, text: str) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}  {kind:<11}  {text}"


def _evidence_lines(data: Mapping[str, Any]) -> Iterator[str]:
    evidence = data.get("evidence")
    if isinstance(evidence, Mapping) and data.get("opened"):
        yield from (f"{'':31}{name}: {value}" for name, value in evidence.items())


def _remediation_line(remediation: Remediation) -> str:
    steps = ", ".join(remediation.steps)
    if remediation.end is None:
        state = f"open, at {remediation.step} since {remediation.since:%Y-%m-%d %H:%M:%S}"
    else:
        state = f"{remediation.end} at {remediation.since:%Y-%m-%d %H:%M:%S}" + (
            f": {remediation.note}" if remediation.note else ""
        )
    words = f"[{remediation.id}] {remediation.code} on {remediation.component}, {remediation.remedy}: {steps}; {state}"
    return _line(remediation.opened, "remediation", words)


def _remediation_data(remediation: Remediation) -> dict[str, Any]:
    return {
        "id": remediation.id,
        "code": remediation.code,
        "component": remediation.component,
        "remedy": remediation.remedy,
        "why": remediation.why,
        "text": remediation.text,
        "opened": remediation.opened.isoformat(),
        "since": remediation.since.isoformat(),
        "steps": list(remediation.steps),
        "step": remediation.step,
        "attempts": remediation.attempts,
        "end": remediation.end,
        "note": remediation.note,
    }
