"""The news of a fleet: what happened since a time, one line for what happened to many nodes in one minute. Pure.

A fleet that is read once shows when each node came into its present state, and what was repaired. The ledger adds what
began and is over again, and incidents their begin and end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from healthd.core.ages import lasting
from healthd.core.hostlist import folded
from healthd.fleet.causes import by_cause
from healthd.fleet.incidents import Incident
from healthd.fleet.nodes import FleetNode, FleetState
from healthd.ledger.entries import EntryKind, LedgerEntry
from healthd.remediation.records.handoff import by_now

WINDOW = timedelta(hours=1)
"""How far back news go."""
MOST = 200
"""Of lines; the oldest are left out."""


class FleetEventKind(StrEnum):
    """The kinds of news. STATE: nodes came into a state. REPAIR: an act on them. OVER: a fault that is gone. INCIDENT:
    one began or ended."""

    STATE = "state"
    REPAIR = "repair"
    OVER = "over"
    INCIDENT = "incident"


class FleetEvent(Struct, frozen=True, kw_only=True):
    """One line of news: ``nodes`` had ``text`` happen to them at ``at``, the time of the first. ``state``: the state
    that they came into, or ""."""

    at: datetime
    kind: FleetEventKind
    text: str
    nodes: tuple[str, ...]
    state: str = ""

    @property
    def hosts(self) -> str:
        """The nodes as a host list."""
        return folded(self.nodes)


def recent_events(
    nodes: Sequence[FleetNode],
    now: datetime,
    *,
    entries: Iterable[LedgerEntry] = (),
    incidents: Iterable[Incident] = (),
) -> tuple[FleetEvent, ...]:
    """The news of ``WINDOW``, the newest first. ``entries``: those of the ledger that began or ended in it."""
    since = now - WINDOW

    def is_recent(at: datetime | None) -> bool:
        return at is not None and since <= at <= now

    found = [*_states(nodes, is_recent), *_repairs(nodes, is_recent), *_incidents(incidents, is_recent)]
    shown = {(each.name, each.code) for each in nodes if each.is_trouble or each.state is FleetState.WARNING}
    found += _faults([each for each in entries if each.kind is EntryKind.FAULT], shown, is_recent)
    return tuple(sorted(found, key=lambda each: (each.at, each.text), reverse=True)[:MOST])


def entered(node: FleetNode) -> datetime | None:
    """Since when it is in its state, as far as that is known: silence begins when the agent's report is too old."""
    if node.state is FleetState.STOPPED:
        return node.summary.at if node.summary is not None else None
    if node.state is FleetState.SILENT:
        if node.is_silent and node.summary is not None and node.summary.at is not None:
            return node.summary.at + timedelta(seconds=node.silent_after_s)
        return node.held_since
    return node.since


_Recent = Callable[[datetime | None], bool]


def _states(nodes: Sequence[FleetNode], is_recent: _Recent) -> Iterator[FleetEvent]:
    """Nodes that came into their state: by minute, and there by cause."""
    by_minute: dict[datetime, list[FleetNode]] = {}
    for node in nodes:
        at = entered(node)
        if at is not None and is_recent(at):
            by_minute.setdefault(at.replace(second=0, microsecond=0), []).append(node)
    for members in by_minute.values():
        for group in by_cause(members):
            yield FleetEvent(
                at=min(at for each in group.nodes if (at := entered(each)) is not None),
                kind=FleetEventKind.STATE,
                text=": ".join(filter(None, (group.state.value, group.cause))),
                nodes=tuple(each.name for each in group.nodes),
                state=group.state.value,
            )


def _repairs(nodes: Sequence[FleetNode], is_recent: _Recent) -> Iterator[FleetEvent]:
    """Resets, reboots, replacements and returns, from the handoff records."""
    found: list[tuple[datetime, str, str]] = []
    for node in nodes:
        for past in by_now(node.record, node.now).history:
            if is_recent(past.at):
                outcome = f": {past.outcome}" if past.outcome else ""
                found.append((past.at, f"{past.act} for {past.code or 'no code'}{outcome}", node.name))
    yield from _joined(found, FleetEventKind.REPAIR)


def _faults(entries: Sequence[LedgerEntry], shown: set[tuple[str, str]], is_recent: _Recent) -> Iterator[FleetEvent]:
    """Faults that are over, with their begin where that is in the window too. A fault that its node still has stands
    there as the node's state."""
    begun: list[tuple[datetime, str, str]] = []
    over: list[tuple[datetime, str, str]] = []
    for each in entries:
        what = " ".join(filter(None, (each.code, each.component)))
        if each.until is not None and is_recent(each.until):
            over.append(
                (each.until, f"over: {what}, lasted {lasting((each.until - each.at).total_seconds())}", each.node)
            )
        if is_recent(each.at) and (each.until is not None or (each.node, each.code) not in shown):
            begun.append((each.at, f"fault: {what}", each.node))
    yield from _joined(begun, FleetEventKind.STATE)
    yield from _joined(over, FleetEventKind.OVER)


def _joined(found: Iterable[tuple[datetime, str, str]], kind: FleetEventKind) -> Iterator[FleetEvent]:
    """One event for the nodes that have the same text in one minute."""
    groups: dict[tuple[datetime, str], list[tuple[datetime, str]]] = {}
    for at, text, node in found:
        groups.setdefault((at.replace(second=0, microsecond=0), text), []).append((at, node))
    for (_, text), members in groups.items():
        nodes = tuple(sorted({node for _, node in members}))
        yield FleetEvent(at=min(at for at, _ in members), kind=kind, text=text, nodes=nodes)


def _incidents(incidents: Iterable[Incident], is_recent: _Recent) -> Iterator[FleetEvent]:
    for each in incidents:
        about = f"{each.codes[0] if each.codes else each.root}, {each.cause.text}"
        if is_recent(each.began):
            text = f"incident {each.id} began: {about}"
            yield FleetEvent(at=each.began, kind=FleetEventKind.INCIDENT, text=text, nodes=each.nodes)
        if each.ended is not None and is_recent(each.ended):
            text = f"incident {each.id} ended: {about}"
            yield FleetEvent(at=each.ended, kind=FleetEventKind.INCIDENT, text=text, nodes=each.nodes)
