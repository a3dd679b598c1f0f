"""The audit trail and the remediations of a node as one timeline, newest last: ``healthd history``. It writes nothing.

The order is that of the trail, not of the clock: a clock may be stepped, the trail only grows.
"""

from __future__ import annotations

import sqlite3
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.config.values import did_you_mean
from healthd.core.encodable import encodable
from healthd.core.errors import StoreError, UsageError
from healthd.core.json_documents import json_fields
from healthd.core.model import Event
from healthd.judge.devices import DeviceNames, device_names, folded_texts
from healthd.observe.text_lines import Level, TextLine, joined
from healthd.remediation.decide.remediation import Remediation
from healthd.state.store import SCHEMA_VERSION, EventFilter, Store, connect_to_read

SCHEMA = "healthd.history/v1"
_FOR_PROGRAMS = frozenset({"sequence", "last_sequence", "last_time", "boot_id", "trusted", "form"})
"""Evidence of where a line stands in its log, and how it was read: ``-v`` shows it."""
CHECK = "check"
"""The kind of the lines about check runs, most of a trail; a finding has a line of its own."""
_SHARED, _SHARED_KEYS = 200, ("code", "component", "severity", "opened")
"""Of faults and of remediations the newest, for other machines."""
_SEVERITY_LEVEL: Mapping[str, Level] = {"critical": "critical", "warning": "warning", "info": "info"}


class Trail(Struct, frozen=True, kw_only=True):
    """The newest events, the oldest first, and the remediations that began among them or are open.

    ``cut``: why there are fewer lines than requested, or "". ``newest``: the number of the newest event of the trail.
    ``names``: of the node's devices, for the text.
    """

    events: tuple[Event, ...]
    remediations: tuple[Remediation, ...] = ()
    cut: str = ""
    newest: int = 0
    names: DeviceNames = field(default_factory=DeviceNames)


def wanted(options: Namespace, now: datetime) -> EventFilter:
    """The lines that a command line asks for: without those of check runs, unless they are asked for."""
    return EventFilter(
        after=options.after,
        since=now - options.since if options.since else None,
        kinds=tuple(options.kind),
        without="" if options.kind or options.verbose else CHECK,
        remediation=encodable(options.case),
    )


def asked_of(store: Store, which: EventFilter, *, last: int) -> Trail:
    """As ``trail_of``. Raises UsageError for a remediation that the store does not know."""
    if which.remediation and not store.knows(which.remediation):
        known = [remediation.id for remediation in store.remediations()]
        hint = did_you_mean(which.remediation, known, "`healthd history --kind step` names each in brackets")
        raise UsageError(f"healthd history: no remediation has the id {which.remediation!r}; {hint}")
    return trail_of(store, which, last=last)


def trail_of(store: Store, which: EventFilter, *, last: int) -> Trail:
    """The newest ``last`` of these lines of a store. Raises StoreError.

    Remediations have lines of their own, unless kinds are named, or only what is new is wanted.
    """
    events, newest = store.events_of(which, last=last)
    since = which.since
    if len(events) == last:
        since = max(filter(None, (since, min((event.at for event in events), default=None))), default=None)
    remediations = (
        remediation
        for remediation in (() if which.kinds or which.after else store.remediations())
        if (since is None or remediation.opened >= since or remediation.is_open)
        and which.remediation in ("", remediation.id)
    )
    return Trail(events=events, remediations=tuple(remediations), newest=newest)


def read_trail(path: Path, which: EventFilter, *, last: int) -> Trail:
    """As ``asked_of`` from a database on disk, opened read-only, for a node whose daemon does not answer. Raises
    StoreError, UsageError."""
    try:
        there = path.is_file()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}; be root, or start the daemon, which answers all users") from error
    if not there:
        raise StoreError(f"{path}: no state database; healthd has not run here, or [daemon] state_dir differs")
    with closing(_ReadStore(path, now=datetime.now(UTC))) as store:
        return replace(asked_of(store, which, last=last), names=stored_names(store))


def names_in(path: Path) -> DeviceNames:
    """As ``stored_names`` from a database on disk; none from one that this healthd cannot read."""
    try:
        with closing(_ReadStore(path, now=datetime.now(UTC))) as store:
            return stored_names(store)
    except StoreError:
        return DeviceNames()


def stored_names(store: Store) -> DeviceNames:
    """The operator's names of this node's GPUs, for the answer without a daemon. Raises StoreError."""
    history = store.history()
    return device_names({}, history.faults.values(), history.names)


def trail_data(trail: Trail) -> dict[str, Any]:
    """The trail in the shape of ``healthd.history/v1``: of it the text is made, in the daemon and while following."""
    return {
        "schema": SCHEMA,
        "cut": trail.cut,
        "newest": trail.newest,
        "names": dict(trail.names.names),
        "events": [
            {"at": each.at.isoformat(), "kind": each.kind, "text": each.text, "data": each.data}
            for each in trail.events
        ],
        "remediations": [_remediation_data(remediation) for remediation in trail.remediations],
    }


def shared_data(store: Store, node: str, names: DeviceNames) -> dict[str, Any]:
    """The part of the timeline that other machines may read, as ``healthd.history/v1`` of this node: how faults began
    and ended, and the remediations with their steps. Evidence, notes and commands stay here, because they may name
    users and jobs. Raises StoreError."""
    events, newest = store.events_of(EventFilter(kinds=("fault",)), last=_SHARED)
    changes = tuple(
        replace(each, data={key: each.data[key] for key in _SHARED_KEYS if key in each.data})
        for each in events
        if "opened" in each.data
    )
    remediations = tuple(replace(each, why="", text="", note="") for each in store.remediations()[-_SHARED:])
    return {"node": node, **trail_data(Trail(events=changes, remediations=remediations, newest=newest, names=names))}


def trail_text(data: Mapping[str, Any], *, verbose: bool = False, colour: bool = False) -> str:
    """As text: a line for each event, its evidence under it; each remediation where it began. Events of one second that
    differ in their device alone are one line.

    ``verbose``: each event by itself, with the devices' own names.
    """
    names = DeviceNames({} if verbose else data.get("names", {}))  # a daemon of an earlier version sends none
    lines = list(_lines(data, names, verbose=verbose))
    lines[:0] = [TextLine(f"! {data['cut']}", "warning")] if data["cut"] else []
    if not lines:
        lines = [TextLine("no line of the audit trail is so" if data["newest"] else "the audit trail is empty")]
    return joined(lines, colour=colour)


# ---------------------------------------------------------------------------------------------------------------------


class _ReadStore(Store):
    """An existing database, opened read-only: it is neither created nor repaired nor set aside."""

    def _opened(self, now: datetime) -> sqlite3.Connection:
        db = connect_to_read(self.path)
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version != SCHEMA_VERSION:
                wrong = f"its schema version is {version}; this healthd reads {SCHEMA_VERSION}"
                text = f"{self.path}: {wrong}: read it with the healthd that wrote it; the daemon sets it aside"
                raise StoreError(text)
        except (sqlite3.Error, StoreError):
            db.close()
            raise
        return db


def _lines(data: Mapping[str, Any], names: DeviceNames, *, verbose: bool) -> Iterator[TextLine]:
    waiting = list(data["remediations"])
    for event in data["events"] if verbose else _folded(data["events"], names):
        while waiting and datetime.fromisoformat(waiting[0]["opened"]) <= datetime.fromisoformat(event["at"]):
            yield _remediation_line(waiting.pop(0), names)
        yield event_line(event)
        yield from _evidence_lines(event["data"], verbose=verbose)
    yield from (_remediation_line(each, names) for each in waiting)


def _folded(events: Iterable[Mapping[str, Any]], names: DeviceNames) -> Iterator[Mapping[str, Any]]:
    """The events with the names that operators use. Of those that differ in their device alone the first."""
    for _, group in groupby(events, key=lambda each: (each["kind"], _time(each["at"]), _level(each))):
        alike = list(group)
        for each in folded_texts(names.plain(event["text"]) for event in alike):
            yield {**alike[each.members[0]], "text": each.text}


def event_line(event: Mapping[str, Any]) -> TextLine:
    """The line of one event, in the level of its finding: what ended, or is ok, is green."""
    return TextLine(_line(event["at"], event["kind"], event["text"]), _level(event))


def _level(event: Mapping[str, Any]) -> Level:
    kind, data = event["kind"], event["data"]
    if kind == "fault" and "opened" in data:
        return _SEVERITY_LEVEL.get(data.get("severity", ""), "warning") if data["opened"] else "ok"
    if kind == CHECK:
        state = event["text"].partition(" is ")[2].partition(":")[0]
        return "unknown" if state == "unknown" else "ok" if state == "ok" else ""
    return "critical" if kind == "damaged" or data.get("end") == "failed" else ""


def _line(at: str, kind: str, text: str) -> str:
    return f"{_time(at)}  {kind:<11}  {text}"


def _time(at: str) -> str:
    return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M:%S}"


def _evidence_lines(data: Mapping[str, Any], *, verbose: bool) -> Iterator[TextLine]:
    evidence = data.get("evidence")
    if isinstance(evidence, Mapping) and data.get("opened"):
        shown = (each for each in evidence.items() if verbose or each[0] not in _FOR_PROGRAMS)
        yield from (TextLine(f"{'':31}{name}: {value}") for name, value in shown)


def _remediation_line(data: Mapping[str, Any], names: DeviceNames) -> TextLine:
    level: Level = ""
    if data["end"] is None:
        state = f"open, at {data['step']} since {_time(data['since'])}"
    else:
        state = f"{data['end']} at {_time(data['since'])}" + (f": {data['note']}" if data["note"] else "")
        level = "critical" if data["end"] == "failed" else "ok"
    about = f"[{data['id']}] {data['code']} on {data['component']}, {data['remedy']}"
    text = names.plain(f"{about}: {', '.join(data['steps'])}; {state}")
    return TextLine(_line(data["opened"], "remediation", text), level)


def _remediation_data(remediation: Remediation) -> dict[str, Any]:
    named = json_fields(remediation, "id", "code", "component", "remedy", "why", "text", "opened", "since", "steps")
    return named | json_fields(remediation, "step", "attempts", "end", "note")
