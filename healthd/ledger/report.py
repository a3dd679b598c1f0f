"""The report of a fleet: failure rates with their exposure, node-hours lost, repairs, replacements, repeat offenders.

Pure: the ledger's rows in, numbers out. Exposure is the time in which a node served, its agent reported, and the ledger
watched: a failure outside that time counts in no rate, as the time does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby

from msgspec import Struct

from healthd.ledger.entries import (
    EntryKind,
    GpuSighting,
    LedgerContents,
    LedgerEntry,
    NodeSpan,
    SpanState,
    WatchInterval,
)
from healthd.ledger.failure_rate import FailureRate, at_least

NOT_KNOWN = "(not known)"
_LOST = frozenset({SpanState.OUT, SpanState.SILENT})
_CHANCE = 0.01
"""How likely one or more false offenders of a kind may be in a fleet whose parts all fail alike."""
_OFTEN = 3
"""Fewer failures than this make no offender, however unlikely they are."""


class LostHours(Struct, frozen=True, kw_only=True):
    """Node-hours out of service, or without a report, for one cause. ``nodes``: how many nodes lost them."""

    cause: str
    hours: float
    nodes: int


class RepairRecord(Struct, frozen=True, kw_only=True):
    """How often one act for one code was begun, and what came of it; the rest is not known, or under way."""

    act: str
    code: str
    tried: int
    helped: int
    failed: int


class ReplacedMachine(Struct, frozen=True, kw_only=True):
    """One replacement. ``lost_h``: the node-hours of the time out that it was in; None where that was not watched."""

    node: str
    at: datetime
    code: str
    instance: str
    outcome: str
    lost_h: float | None


class Offender(Struct, frozen=True, kw_only=True):
    """A node or a GPU with ``failures`` where ``expected`` would be usual in this fleet. ``nodes``: where it was.

    ``is_lemon``: so many are hardly chance.
    """

    kind: str
    name: str
    failures: int
    expected: float
    is_lemon: bool
    codes: tuple[str, ...]
    nodes: tuple[str, ...]


class FleetReport(Struct, frozen=True, kw_only=True):
    """The report from ``since`` to ``until``. ``watched_h``: the hours in which the ledger watched; ``unseen``: the
    critical faults outside all exposure, which no rate counts. ``hours``: node-hours by state, watched time alone."""

    since: datetime
    until: datetime
    watched_h: float
    hours: dict[SpanState, float]
    nodes: int
    total: FailureRate
    unseen: int
    by_type: tuple[FailureRate, ...]
    by_rack: tuple[FailureRate, ...]
    by_code: tuple[FailureRate, ...]
    lost: tuple[LostHours, ...]
    repairs: tuple[RepairRecord, ...]
    replaced: tuple[ReplacedMachine, ...]
    offenders: tuple[Offender, ...]


def fleet_report(contents: LedgerContents, since: datetime, until: datetime) -> FleetReport:
    """The report of this time."""
    watched = WatchedTime(contents.watched, since, until)
    spans = [each for each in contents.spans if _end(each, until) > since and each.start < until]
    serving = [each for each in spans if each.state is SpanState.SERVING]
    inside = [each for each in contents.entries if since <= each.at <= until]
    faults = [each for each in inside if each.kind is EntryKind.FAULT and each.critical]
    seen = _seen(faults, serving, watched)
    exposure_h = sum(watched.hours(each) for each in serving)
    total = FailureRate(key="all", failures=len(seen), exposure_h=exposure_h)
    return FleetReport(
        since=since,
        until=until,
        watched_h=watched.total_h,
        hours={state: sum(watched.hours(each) for each in spans if each.state is state) for state in SpanState},
        nodes=len({each.node for each in spans}),
        total=total,
        unseen=len(faults) - len(seen),
        by_type=_rates(seen, serving, watched, lambda each: each.instance_type),
        by_rack=_rates(seen, serving, watched, lambda each: each.rack),
        by_code=_by_code(seen, exposure_h),
        lost=_lost(spans, watched),
        repairs=_repairs(inside),
        replaced=tuple(_replacements(inside, spans, watched)),
        offenders=(
            *_nodes(seen, serving, watched, total),
            *_gpus(seen, [each for each in contents.gpus if each.last >= since]),
        ),
    )


class WatchedTime:
    """The time that the ledger watched, inside the time of a report."""

    def __init__(self, intervals: Iterable[WatchInterval], since: datetime, until: datetime) -> None:
        clipped = [(max(each.start, since), min(each.until, until)) for each in intervals]
        self._parts = sorted((start, end) for start, end in clipped if end > start)
        self._starts = [start for start, _ in self._parts]
        self._until = until

    @property
    def total_h(self) -> float:
        """All of it, in hours."""
        return sum(_hours(start, end) for start, end in self._parts)

    def hours(self, span: NodeSpan) -> float:
        """The hours of a span that were watched."""
        end = _end(span, self._until)
        first = max(bisect_right(self._starts, span.start) - 1, 0)
        total = 0.0
        for start, until in self._parts[first:]:
            if start >= end:
                break
            total += max(_hours(max(start, span.start), min(until, end)), 0.0)
        return total

    def has(self, at: datetime) -> bool:
        """Whether this moment was watched."""
        before = bisect_right(self._starts, at) - 1
        return before >= 0 and at <= self._parts[before][1]


def _hours(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds() / 3600.0


def _end(span: NodeSpan, until: datetime) -> datetime:
    return until if span.until is None else min(span.until, until)


def _seen(faults: Iterable[LedgerEntry], serving: Iterable[NodeSpan], watched: WatchedTime) -> list[LedgerEntry]:
    """The faults that began in exposure: their node served, and the ledger watched."""
    of: defaultdict[str, list[NodeSpan]] = defaultdict(list)
    for span in serving:
        of[span.node].append(span)
    return [each for each in faults if watched.has(each.at) and any(_holds(span, each.at) for span in of[each.node])]


def _holds(span: NodeSpan, at: datetime) -> bool:
    """Whether a span holds a moment. A moment has whole seconds, as cut off; a span begins between two."""
    return int(span.start.timestamp()) <= at.timestamp() and (span.until is None or at <= span.until)


def _rates(
    seen: Sequence[LedgerEntry],
    serving: Sequence[NodeSpan],
    watched: WatchedTime,
    key: Callable[[LedgerEntry | NodeSpan], str],
) -> tuple[FailureRate, ...]:
    hours: defaultdict[str, float] = defaultdict(float)
    for span in serving:
        hours[key(span) or NOT_KNOWN] += watched.hours(span)
    failures = Counter(key(each) or NOT_KNOWN for each in seen)
    keys = sorted({*hours, *failures})
    return tuple(FailureRate(key=each, failures=failures[each], exposure_h=hours[each]) for each in keys)


def _by_code(seen: Iterable[LedgerEntry], exposure_h: float) -> tuple[FailureRate, ...]:
    counted = Counter(each.code for each in seen)
    order = sorted(counted, key=lambda code: (-counted[code], code))
    return tuple(FailureRate(key=code, failures=counted[code], exposure_h=exposure_h) for code in order)


def _lost(spans: Iterable[NodeSpan], watched: WatchedTime) -> tuple[LostHours, ...]:
    hours: defaultdict[str, float] = defaultdict(float)
    nodes: defaultdict[str, set[str]] = defaultdict(set)
    for span in spans:
        if span.state in _LOST and (lost := watched.hours(span)):
            cause = span.cause or NOT_KNOWN
            hours[cause] += lost
            nodes[cause].add(span.node)
    order = sorted(hours, key=lambda cause: (-hours[cause], cause))
    return tuple(LostHours(cause=cause, hours=hours[cause], nodes=len(nodes[cause])) for cause in order)


def _repairs(entries: Iterable[LedgerEntry]) -> tuple[RepairRecord, ...]:
    acts = [each for each in entries if each.kind in (EntryKind.REPAIR, EntryKind.REPLACEMENT)]
    tried = Counter((each.act, each.code) for each in acts)
    came = Counter((each.act, each.code, each.outcome) for each in acts)
    return tuple(
        RepairRecord(
            act=act, code=code, tried=count, helped=came[act, code, "helped"], failed=came[act, code, "failed"]
        )
        for (act, code), count in sorted(tried.items())
    )


def _replacements(
    entries: Iterable[LedgerEntry], spans: Iterable[NodeSpan], watched: WatchedTime
) -> Iterator[ReplacedMachine]:
    of: defaultdict[str, list[NodeSpan]] = defaultdict(list)
    for span in sorted(spans, key=lambda each: each.start):
        of[span.node].append(span)
    for entry in entries:
        if entry.kind is EntryKind.REPLACEMENT:
            yield _replaced(entry, of[entry.node], watched)


def _replaced(entry: LedgerEntry, own: Iterable[NodeSpan], watched: WatchedTime) -> ReplacedMachine:
    """``own``: the spans of its node, the first first."""
    times_out = [list(time) for is_lost, time in groupby(own, lambda each: each.state in _LOST) if is_lost]
    around = next((time for time in times_out if any(_holds(each, entry.at) for each in time)), ())
    return ReplacedMachine(
        node=entry.node,
        at=entry.at,
        code=entry.code,
        instance=entry.instance,
        outcome=entry.outcome,
        lost_h=sum(watched.hours(each) for each in around) if around else None,
    )


def _nodes(
    seen: Sequence[LedgerEntry], serving: Iterable[NodeSpan], watched: WatchedTime, total: FailureRate
) -> tuple[Offender, ...]:
    """Nodes that fail more often than the fleet's rate over their own exposure would have it."""
    hours: defaultdict[str, float] = defaultdict(float)
    for span in serving:
        hours[span.node] += watched.hours(span)
    per_hour = total.failures / total.exposure_h if total.exposure_h else 0.0
    by_node = _by_name((each.node, each) for each in seen)
    return _offenders("node", by_node, lambda name: per_hour * hours[name], len(hours))


def _gpus(seen: Sequence[LedgerEntry], sightings: Iterable[GpuSighting]) -> tuple[Offender, ...]:
    """GPUs by their serial number, or UUID where that is not known, whichever node they were in. One that left the
    fleet before cannot fail, and is no part of what is usual."""
    name_of = {each.gpu: each.serial or each.gpu for each in sightings}
    named = [(each.serial or name_of.get(each.gpu, each.gpu), each) for each in seen if each.gpu or each.serial]
    by_gpu = _by_name(named)
    there = {*name_of.values(), *by_gpu}
    expected = len(named) / len(there) if there else 0.0
    return _offenders("gpu", by_gpu, lambda _: expected, len(there))


def _by_name(named: Iterable[tuple[str, LedgerEntry]]) -> dict[str, list[LedgerEntry]]:
    found: defaultdict[str, list[LedgerEntry]] = defaultdict(list)
    for name, entry in named:
        found[name].append(entry)
    return found


def _offenders(
    kind: str, by_name: dict[str, list[LedgerEntry]], expected: Callable[[str], float], parts: int
) -> tuple[Offender, ...]:
    """Those with more than one failure, the worst first. A lemon is one whose count would come by chance, in any of so
    many parts, at most once in a hundred reports."""
    found = [
        Offender(
            kind=kind,
            name=name,
            failures=len(entries),
            expected=expected(name),
            is_lemon=len(entries) >= _OFTEN and at_least(len(entries), expected(name)) * parts <= _CHANCE,
            codes=tuple(sorted({each.code for each in entries})),
            nodes=tuple(sorted({each.node for each in entries})),
        )
        for name, entries in by_name.items()
        if len(entries) > 1
    ]
    return tuple(sorted(found, key=lambda each: (not each.is_lemon, -each.failures, each.name)))
