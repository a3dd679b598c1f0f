"""Kernel lines: where the kernel's own words begin in a record, and lines of a table, folded into findings. Pure.

For checks whose facts are rows of ``checks/data/kernel_lines.csv``: a pattern, its meaning, its remedy, and whether
such a line opens a fault or ends one.

A line is recognised at the start of its record's words only. Facility 0 proves that the kernel wrote a record, not that
it chose the words: an unprivileged user can have it echo a text (``tmpfs: Unknown parameter '…'`` from a mount in a
user namespace, measured on 6.18). Some records begin with the name of a process, which its user sets (prctl(2),
PR_SET_NAME): a process called ``Lustre: LBUG`` that segfaults must not read as an assertion of Lustre's. So the text
after such a name is judged, and nothing of the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from healthd.checklib.tables import as_row, filled, keyed_rows
from healthd.core.check import CodeForm, FindingCode, judged
from healthd.core.model import NODE, Clearance, ClearsBy, Component, Finding, Remedy, Result, Severity
from healthd.core.node import RECORD_LEAD, KernelRecord

LINE_CHARS = 1024
_HEAD_CHARS = 3
NOT_KERNEL = " (not from the kernel: trust_user_kmsg)"
_FIXED = re.compile(r"[A-Za-z0-9 :/=_-]{4,}")  # of which the last may be repeated or absent


# ---------------------------------------------------------------------------------------------------------------------
# the start of a record's words


NAME_BYTES = 15
"""The longest name of a process or of a network device: TASK_COMM_LEN and IFNAMSIZ less the NUL."""
_LEAD = re.compile(RECORD_LEAD, re.ASCII)
_LEADS_BEGIN = frozenset(" <[0123456789")  # or as the name of a month
_BEHIND_COLON = (
    r"page\ allocation\ |vmalloc|attempt\ to\ access\ beyond\ end\ of\ device|unhandled\ page\ fault\ \("
    r"|sending\ ioctl\ |potentially\ unexpected\ fatal\ signal|entered\ |left\ |renamed\ from\ |port\ \d"
    r"|link\ becomes\ |Caught\ tx_queue"
)
_BEHIND_BLANK = r"invoked\ oom-killer:|uses\ obsolete\ \(PF_INET|calls\ setitimer\(\)"
_OWN = re.compile(
    r"segfault\ at\ |unhandled\ exception:\ |unhandled\ signal\ |bad\ frame\ in\ |vsyscall\ read"
    rf"|memfd_create\(\)\ called|used\ greatest\ stack\ depth|Using\ mlock\ ulimits|{_BEHIND_COLON}|{_BEHIND_BLANK}",
    re.VERBOSE | re.ASCII,
)
_SEPARATOR = re.compile(
    r"\[(\d{1,10})\]:?\ |\((\d{1,10})\):?\ |/(\d{1,10}):\ (?=potentially\ unexpected\ fatal\ signal)"
    r"|(?:\ \((?:uninitialized|unregister(?:ing|ed)|released|dummy|unknown)\))?"
    rf":\ (?={_BEHIND_COLON})|\ (?={_BEHIND_BLANK})",
    re.VERBOSE | re.ASCII,
)
"""The text between a name and the kernel's own words, in Linux 6.18. ``NAME[PID]: ``: show_signal_msg of x86 (mm/
fault.c) and powerpc, arm64_show_signal, do_trap of riscv, memfd_create; ``NAME[PID] ``: signal_fault of x86 and
warn_bad_vsyscall; ``NAME (PID): ``: mm/mmap.c, fs/hugetlbfs/inode.c, fs/proc; ``NAME (PID) used``: kernel/exit.c;
``NAME: ``: warn_alloc (mm/page_alloc.c), bio_check_eod (block/blk-core.c) and, of network devices, net/core/dev.c;
``NAME invoked``: dump_header (mm/oom_kill.c); ``NAME uses``: net/packet/af_packet.c."""
_NOT_A_NAME = ("traps: ", "process '", "process `")
"""Heads of the kernel's own, before the name of a process (arch/x86/kernel/traps.c) or of a file (fs/exec.c), which may
be long enough to hold any text that the kernel writes behind a name."""
_BYTE = re.compile(r"\\x[0-9a-fA-F]{2}|#[0-7]{3}|.", re.DOTALL)  # bytes that are no text are escaped
_LONGEST_NAME = 4 * NAME_BYTES
_WINDOW = _LONGEST_NAME + 45


class LineHead(NamedTuple):
    """Where the words begin. ``task`` and ``pid``: of the name before them; None where the record begins with none."""

    at: int
    task: str | None = None
    pid: str | None = None


def after_lead(text: str) -> int:
    """The start of a record behind priority, syslog header and tags, if there are any."""
    first = text[:1]
    if first not in _LEADS_BEGIN and not (first.isupper() and text[1:2].islower()):
        return 0  # nvme, NVRM:, EXT4-fs: no lead begins so, and storms of such lines are what has to be quick
    lead = _LEAD.match(text)
    return lead.end() if lead else 0


def split_line(text: str) -> LineHead:
    """The start of the kernel's own words: no user can choose the text there.

    A name may itself look like the end of one, so the last match within the length of a name counts. Where no known
    text of the kernel follows, it may be the name's end, and there are no words.
    """
    at = after_lead(text)
    head = LineHead(at)
    if text.startswith(_NOT_A_NAME, at):
        return head
    for found in _SEPARATOR.finditer(text, at, at + _WINDOW):
        if not _is_name(text[at : found.start()]):
            break
        pid = next((group for group in found.groups() if group), None)
        begins = found.end() if _OWN.match(text, found.end()) else len(text)
        head = LineHead(begins, text[at : found.start()].rstrip(" "), pid)
    return head


def _is_name(text: str) -> bool:
    return len(text) <= NAME_BYTES + 1 or len(_BYTE.findall(text)) <= NAME_BYTES + 1


# ---------------------------------------------------------------------------------------------------------------------
# the rows of the table


class LineRow(Struct, frozen=True, kw_only=True):
    """One kind of kernel line. ``ends``: such a line ends the fault of ``code``. ``symptom_of``: codes that explain it.

    ``expression`` is matched at the start of a record's words; its named groups become evidence, and fill
    ``component`` (``disk:{disk}``). ``needle`` is a text that every such line holds. ``example`` is such a line.
    """

    check: str
    code: str
    ends: bool
    expression: str
    needle: str
    component: str
    severity: Severity
    remedy: Remedy
    clears_by: ClearsBy
    symptom_of: tuple[str, ...]
    meaning: str
    example: str
    reason: str
    source: str

    @property
    def begins(self) -> bool:
        """Whether each of its lines begins as the example does, with the text that begins the expression."""
        return _begins(self.expression, self.example)

    @property
    def named(self) -> bool:
        """Whether such a line begins with the name of a process."""
        return _named(self.example)

    @property
    def pattern(self) -> re.Pattern[str]:
        """The expression, compiled at first use: a table is loaded to list its codes more often than to read a log."""
        return _compiled(self.expression)


@cache
def line_rows(check: str) -> tuple[LineRow, ...]:
    """The rows of ``kernel_lines.csv`` for one check, in their order: the first that fits a line counts.

    Raises ValueError naming the line that cannot be read, or a code whose rows do not agree on its remedy.
    """
    return tuple(row for row in _all_line_rows() if row.check == check)


@cache
def _all_line_rows() -> tuple[LineRow, ...]:
    rows = tuple(keyed_rows("kernel_lines.csv", _line_row, lambda row: (row.check, row.expression)).values())
    must_agree(rows)
    return rows


def must_agree(rows: Iterable[LineRow]) -> None:
    """Raises ValueError where rows that begin the fault of one code do not agree on what it calls for."""
    verdicts: dict[str, tuple[object, ...]] = {}
    for row in rows:
        verdict = (row.severity, row.remedy, row.clears_by, row.symptom_of, row.meaning)
        if not row.ends and verdicts.setdefault(row.code, verdict) != verdict:
            raise ValueError(
                f"kernel_lines.csv: the rows of {row.code} do not agree: {verdicts[row.code]} and {verdict}"
            )


def _line_row(cells: Mapping[str, str]) -> LineRow:
    return as_row(
        cells,
        LineRow,
        ends={"ends": True, "": False}[cells["ends"]],
        expression=filled(cells, "pattern"),
        symptom_of=tuple(cells["symptom_of"].split()),
    )


@cache
def _begins(expression: str, example: str) -> bool:
    fixed = _FIXED.match(expression)
    return fixed is not None and example.startswith(fixed[0][:-1])


@cache
def _named(example: str) -> bool:
    return split_line(example).task is not None


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.DOTALL)


# ---------------------------------------------------------------------------------------------------------------------
# lines that are one fault


Groups = Mapping[str, str | None]
Place = Callable[[LineRow, Groups], Component]
More = Callable[[KernelRecord, Groups], Mapping[str, Any]]


class Burst(Struct, kw_only=True):
    """Lines that are one fault. The first one represents all: ``add`` is called with each, that one included."""

    first: KernelRecord
    count: int = 0
    _last: KernelRecord | None = None

    def add(self, record: KernelRecord) -> None:
        """Count one line."""
        self.count += 1
        self._last = record

    @property
    def last(self) -> KernelRecord:
        """The last line, which is the first where there was one."""
        return self._last or self.first

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


class RowBurst(Burst, Generic[R], kw_only=True):
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


# ---------------------------------------------------------------------------------------------------------------------
# the lines of a check's rows


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


def explain_row(check: str, code: str) -> tuple[CodeForm, ...]:
    """The form of a code, from its rows; none where it is no code of the check."""
    rows = [row for row in line_rows(check) if row.code == code and not row.ends]
    if not rows:
        return ()
    first = rows[0]
    ends = [f"It ends by such a line: {row.example}" for row in line_rows(check) if row.ends and row.code == code]
    return (
        CodeForm(
            code=code,
            meaning=first.meaning,
            severity=first.severity,
            remedy=first.remedy,
            clears_by=first.clears_by,
            reason=first.reason,
            source="; ".join(dict.fromkeys(row.source for row in rows)),
            notes=(*(f"Such a line: {row.example}" for row in rows), *ends),
        ),
    )


def judge_lines(
    check: str, records: Iterable[KernelRecord], *, place: Place | None = None, more: More | None = None
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
        return match.groupdict() if match and split_line(text).at == at else None
    head = split_line(text)
    match = row.pattern.match(text, head.at, LINE_CHARS)
    return {"task": head.task, "pid": head.pid, **match.groupdict()} if match else None


@cache
def _rows_by_head(check: str) -> tuple[Mapping[str, tuple[LineRow, ...]], tuple[LineRow, ...]]:
    """The rows that a record may fit by its beginning, in their order, and those that any other record may fit."""
    rows = line_rows(check)
    others = tuple(row for row in rows if not row.begins)
    heads = {row.example[:_HEAD_CHARS] for row in rows if row.begins}
    fits = {head: tuple(row for row in rows if not row.begins or row.example.startswith(head)) for head in heads}
    return fits, others
