"""Kernel lines that a table knows: recognised, folded into findings, and ended by the lines that say it is over.

For checks whose facts are rows of ``checks/data/kernel_lines.csv``: a pattern, what it means, what it calls for. Pure.
A line is recognised at the start of its record's words only (``record_text``): facility 0 says that the kernel
wrote a record, not that it chose the words, and a user can have it echo a text or begin with a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from healthd.checklib.kernel_tables import LineRow, line_rows
from healthd.checklib.record_text import after_lead, words_of
from healthd.core.check import FindingCode, judged
from healthd.core.model import NODE, Clearance, ClearsBy, Component, Finding, Result
from healthd.core.node import KernelRecord

LINE_CHARS = 1024
_HEAD_CHARS = 3
NOT_KERNEL = " (not from the kernel: trust_user_kmsg)"

Groups = Mapping[str, str | None]
Place = Callable[[LineRow, Groups], Component]
More = Callable[[KernelRecord, Groups], Mapping[str, Any]]


@dataclass(kw_only=True, slots=True)
class Burst:
    """Lines that are one fault. The first one stands for all: ``add`` is called with each, that one included."""

    first: KernelRecord
    last: KernelRecord = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        """Until another line comes the first is the last."""
        self.last = self.first

    def add(self, record: KernelRecord) -> None:
        """Count one line."""
        self.count += 1
        self.last = record

    @property
    def times(self) -> str:
        """``, 3 times`` for a message; "" where there was one line."""
        return f", {self.count} times" if self.count > 1 else ""

    def seen(self) -> dict[str, Any]:
        """The evidence that every line of a log has: what it says, when, in which boot, who wrote it."""
        return {
            "line": self.first.text[:LINE_CHARS],
            "count": self.count,
            "sequence": self.first.sequence,
            "last_sequence": self.last.sequence,
            "last_time": self.last.time.isoformat(),
            "boot_id": self.first.boot_id,
            "trusted": self.first.trusted,
        }


def label(record: KernelRecord) -> str:
    """What a message must say beside its fault where the record may be a user's: "" for the kernel's own."""
    return "" if record.trusted else NOT_KERNEL


def codes_of(check: str) -> tuple[FindingCode, ...]:
    """The finding codes of a check's rows. Rows of one code agree in all but their patterns."""
    rows = {row.code: row for row in line_rows(check) if not row.ends}
    return tuple(
        FindingCode(
            code=row.code,
            severity=row.severity,
            remedy=row.remedy,
            meaning=row.meaning,
            clears_by=row.clears_by,
            symptom_of=row.symptom_of,
        )
        for row in rows.values()
    )


def recognises(check: str, text: str, _settings: object = None) -> bool:
    """Whether a row of a check fits a line."""
    return _recognised(check, text) is not None


def explain_row(check: str, code: str) -> str | None:
    """A code's rows in words; None where it is no code of the check."""
    rows = [row for row in line_rows(check) if row.code == code and not row.ends]
    if not rows:
        return None
    first = rows[0]
    ends = [f"It ends by such a line: {row.example}" for row in line_rows(check) if row.ends and row.code == code]
    lines = [
        f"{code}: {first.meaning}.",
        f"{first.severity}; calls for: {first.remedy}; ends by: {first.clears_by}. {first.reason}",
        *(f"Such a line: {row.example}" for row in rows),
        *ends,
        *dict.fromkeys(f"Source: {row.source}" for row in rows),
    ]
    return "\n".join(lines)


def judge_lines(
    check: str,
    records: Iterable[KernelRecord],
    *,
    place: Place | None = None,
    more: More | None = None,
) -> Result:
    """What the rows of a check make of a batch: one finding per code and component, however many lines.

    ``place``: the component of a line, else the row's own. ``more``: evidence beyond what the pattern names.
    """
    batch = _Batch(check=check, place=place or place_of, more=more or _nothing)
    for record in records:
        batch.take(record)
    return judged(batch.findings(), clearances=batch.clearances)


def _nothing(_record: KernelRecord, _groups: Groups) -> Mapping[str, Any]:
    return {}


def place_of(row: LineRow, groups: Groups) -> Component:
    """``disk:{disk}`` with what the line says; the node where it says nothing."""
    kind, _, name = row.component.partition(":")
    named = name.format_map({key: value or "" for key, value in groups.items()})
    return Component(kind=kind, id=named) if named else NODE


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class _Group(Burst):
    row: LineRow
    component: Component
    groups: Groups


@dataclass(kw_only=True)
class _Batch:
    """The fold of one batch. A line that ends a fault starts a new one: nothing folds across it."""

    check: str
    place: Place
    more: More
    clearances: list[Clearance] = field(default_factory=list)
    _folded: dict[tuple[object, ...], _Group] = field(default_factory=dict)

    def take(self, record: KernelRecord) -> None:
        """Fold one record in."""
        found = _recognised(self.check, record.text)
        if found is None:
            return
        row, groups = found
        component = self.place(row, groups)
        if row.ends:
            note = f"{record.text[:LINE_CHARS]}{label(record)}"
            over = Clearance(by=ClearsBy.LOG_LINE, component=component, time=record.time, note=note, code=row.code)
            self.clearances.append(over)
            return
        era = sum(over.code == row.code and over.component in (NODE, component) for over in self.clearances)
        key = (row.code, component, record.trusted, era)
        group = self._folded.get(key)
        if group is None:
            group = self._folded[key] = _Group(row=row, component=component, first=record, groups=groups)
        group.add(record)

    def findings(self) -> Iterator[Finding]:
        """One finding per group, in the order of their first lines."""
        for group in self._folded.values():
            yield self._finding(group)

    def _finding(self, group: _Group) -> Finding:
        row, record = group.row, group.first
        evidence = {
            **group.seen(),
            **{name: value for name, value in group.groups.items() if value},
            **self.more(record, group.groups),
            "why": row.reason,
            "source": row.source,
        }
        return Finding(
            code=row.code,
            severity=row.severity,
            component=group.component,
            message=f"{row.meaning}{group.times}: {record.text[:200]}{label(record)}",
            remedy=row.remedy,
            evidence=evidence,
            time=record.time,
            clears_by=row.clears_by,
            symptom_of=row.symptom_of,
        )


@lru_cache(maxsize=1024)
def _recognised(check: str, text: str) -> tuple[LineRow, Groups] | None:
    """The first row that fits a line, and what the line says. A storm repeats few lines, so it is remembered."""
    by_head, others = _rows_by_head(check)
    at = after_lead(text)
    for row in by_head.get(text[at : at + _HEAD_CHARS], others):
        if row.needle in text and (found := _fitting(row, text, at)) is not None:
            return row, found
    return None


def _fitting(row: LineRow, text: str, at: int) -> Groups | None:
    """What a line says by this row. Most lines that hold a needle are harmless: where the words begin is asked last."""
    if not row.named:
        match = row.pattern.match(text, at, LINE_CHARS)
        return match.groupdict() if match and words_of(text).at == at else None
    words = words_of(text)
    match = row.pattern.match(text, words.at, LINE_CHARS)
    return {"task": words.task, "pid": words.pid, **match.groupdict()} if match else None


@cache
def _rows_by_head(check: str) -> tuple[Mapping[str, tuple[LineRow, ...]], tuple[LineRow, ...]]:
    """The rows that a record may fit by how it begins, in their order, and those that any other record may fit."""
    rows = line_rows(check)
    others = tuple(row for row in rows if not row.begins)
    heads = {row.example[:_HEAD_CHARS] for row in rows if row.begins}
    fits = {head: tuple(row for row in rows if not row.begins or row.example.startswith(head)) for head in heads}
    return fits, others
