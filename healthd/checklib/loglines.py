"""Kernel lines of a table: recognised, folded into findings, and ended by the lines that end a fault.

For checks whose facts are rows of ``checks/data/kernel_lines.csv``: a pattern, its meaning, its remedy. Pure. A line is
recognised at the start of its record's words only (``record_text``): facility 0 proves that the kernel wrote a record,
not that it chose the words, and a user can have it echo a text or begin with a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import inf
from typing import Any, Generic, TypeVar

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
    """Lines that are one fault. The first one represents all: ``add`` is called with each, that one included."""

    first: KernelRecord
    last: KernelRecord = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        """Begin with the first line as the last."""
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
        """The evidence of every line of a log: its text, time, boot and writer."""
        return {
            "line": self.first.text[:LINE_CHARS],
            "count": self.count,
            "sequence": self.first.sequence,
            "last_sequence": self.last.sequence,
            "last_time": self.last.time.isoformat(),
            "boot_id": self.first.boot_id,
            "trusted": self.first.trusted,
        }


B = TypeVar("B", bound=Burst)


class BurstFold(Generic[B]):
    """The fold of one batch of lines: ``bursts`` by their keys, in the order of their first lines.

    ``clearances``: evidence that faults are over. A line after it starts a new burst: no fold crosses it, by the
    ``era`` in a key.
    """

    def __init__(self) -> None:
        self.bursts: dict[tuple[object, ...], B] = {}
        self.clearances: list[Clearance] = []

    def era(self, component: Component, code: str = "") -> int:
        """How often a fault of this code, or of any, has ended there by now."""
        here = (over for over in self.clearances if over.component in (NODE, component))
        return sum(not code or over.code in ("", code) for over in here)

    def over(self, record: KernelRecord, component: Component, note: str, *, by: ClearsBy, code: str = "") -> None:
        """Keep the evidence of a line that a fault is over."""
        note = f"{note}{label(record)}"
        self.clearances.append(Clearance(by=by, component=component, time=record.time, note=note, code=code))


R = TypeVar("R")


@dataclass(kw_only=True, slots=True)
class RowBurst(Burst, Generic[R]):
    """Lines that fit one row or rule at one component. ``groups``: the pattern's named groups in the first."""

    row: R
    component: Component
    groups: Groups


class RowFold(BurstFold[RowBurst[R]]):
    """The fold of lines that rows or rules fit: a burst for each code and component. Once there are ``most``, a
    line of another component counts for the node."""

    def __init__(self, *, most: float = inf) -> None:
        super().__init__()
        self._most = most

    def take(self, record: KernelRecord, row: R, code: str, component: Component, groups: Groups) -> None:
        """Fold one line in."""
        era = self.era(component, code) if self.clearances else 0
        key = (code, component, record.trusted, era)
        burst = self.bursts.get(key)
        if burst is None and len(self.bursts) >= self._most:
            key, component = (code, NODE, record.trusted, era), NODE
            burst = self.bursts.get(key)
        if burst is None:
            burst = self.bursts[key] = RowBurst(row=row, component=component, first=record, groups=groups)
        burst.add(record)

    def take_end(self, record: KernelRecord, code: str, component: Component) -> None:
        """Fold in a line that ends a fault."""
        self.over(record, component, record.text[:LINE_CHARS], by=ClearsBy.LOG_LINE, code=code)


def label(record: KernelRecord) -> str:
    """The note in a message whose record may be a user's: "" for the kernel's own."""
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
    """A code's rows as text; None where it is no code of the check."""
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
    """The result of a check's rows on a batch: one finding per code and component, however many lines.

    ``place``: the component of a line, else the row's own. ``more``: evidence beside the pattern's groups.
    """
    fold = RowFold[LineRow]()
    for record in records:
        if (found := _recognised(check, record.text)) is not None:
            row, groups = found
            component = (place or place_of)(row, groups)
            if row.ends:
                fold.take_end(record, row.code, component)
            else:
                fold.take(record, row, row.code, component, groups)
    findings = [_finding(burst, more(burst.first, burst.groups) if more else {}) for burst in fold.bursts.values()]
    return judged(findings, clearances=fold.clearances)


def place_of(row: LineRow, groups: Groups) -> Component:
    """``disk:{disk}`` with the line's value; the node where it has none."""
    kind, _, name = row.component.partition(":")
    named = name.format_map({key: value or "" for key, value in groups.items()})
    return Component(kind=kind, id=named) if named else NODE


# ---------------------------------------------------------------------------------------------------------------------


def _finding(burst: RowBurst[LineRow], more: Mapping[str, Any]) -> Finding:
    row, record = burst.row, burst.first
    evidence = {
        **burst.seen(),
        **{name: value for name, value in burst.groups.items() if value},
        **more,
        "why": row.reason,
        "source": row.source,
    }
    return Finding(
        code=row.code,
        severity=row.severity,
        component=burst.component,
        message=f"{row.meaning}{burst.times}: {record.text[:200]}{label(record)}",
        remedy=row.remedy,
        evidence=evidence,
        time=record.time,
        clears_by=row.clears_by,
        symptom_of=row.symptom_of,
    )


@lru_cache(maxsize=1024)
def _recognised(check: str, text: str) -> tuple[LineRow, Groups] | None:
    """The first row that fits a line, and the line's groups. A storm repeats few lines, so the result is cached."""
    by_head, others = _rows_by_head(check)
    at = after_lead(text)
    for row in by_head.get(text[at : at + _HEAD_CHARS], others):
        if row.needle in text and (found := _fitting(row, text, at)) is not None:
            return row, found
    return None


def _fitting(row: LineRow, text: str, at: int) -> Groups | None:
    """A line's groups by this row. Most lines that hold a needle are harmless: the start of the words is found last."""
    if not row.named:
        match = row.pattern.match(text, at, LINE_CHARS)
        return match.groupdict() if match and words_of(text).at == at else None
    words = words_of(text)
    match = row.pattern.match(text, words.at, LINE_CHARS)
    return {"task": words.task, "pid": words.pid, **match.groupdict()} if match else None


@cache
def _rows_by_head(check: str) -> tuple[Mapping[str, tuple[LineRow, ...]], tuple[LineRow, ...]]:
    """The rows that a record may fit by its beginning, in their order, and those that any other record may fit."""
    rows = line_rows(check)
    others = tuple(row for row in rows if not row.begins)
    heads = {row.example[:_HEAD_CHARS] for row in rows if row.begins}
    fits = {head: tuple(row for row in rows if not row.begins or row.example.startswith(head)) for head in heads}
    return fits, others
