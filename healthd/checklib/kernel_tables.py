"""The fact tables of kernel lines whose number alone is not enough: NVLink registers, SXids, and plain lines.

As ``tables``, on which it is based: rows get their types here, and a check knows their meaning for the node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType

from healthd.checklib.record_text import words_of
from healthd.checklib.tables import XidCase, filled, keyed_rows
from healthd.core.model import REMEDY_RANK, ClearsBy, Remedy, Severity

_FIXED = re.compile(r"[A-Za-z0-9 :/=_-]{4,}")  # of which the last may be repeated or absent


@dataclass(frozen=True, kw_only=True, slots=True)
class NvLink5Rule:
    """NVIDIA's verdict on one error of one unit of NVLink5 (XID 144 to 150).

    ``patterns``: the required 32 bits of intrinfo, as (mask, value): first as drivers before 575 write them, then as
    drivers from 575 on. No word fits a rule of each (a test proves it), so the driver's version is not needed.
    ``immediate`` and ``investigate``: NVIDIA's own words for the steps at once, and afterwards.
    """

    xid: int
    units: frozenset[str]
    subcode: int
    patterns: tuple[tuple[int, int], tuple[int, int]]
    error_status: int
    nonfatal: bool
    immediate: str
    investigate: str
    verdict: XidCase


@dataclass(frozen=True, kw_only=True, slots=True)
class SxidRow:
    """The meaning of one SXid, and the judgement of a line of it *without* a severity word.

    ``drivers``: ``<550`` or ``>=550`` where the number means different things; else empty. ``nonfatal_remedy``: the
    remedy for a Non-fatal line where that is more than watching. ``ends``: the SXid whose fault this one ends.
    """

    sxid: int
    drivers: str
    meaning: str
    severity: Severity
    remedy: Remedy
    clears_by: ClearsBy
    nonfatal_remedy: Remedy | None
    ends: int | None
    reason: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LineRow:
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
def nvlink5_rules() -> tuple[NvLink5Rule, ...]:
    """``nvlink5_rules.csv`` in its order. Raises ValueError naming the line that cannot be read."""
    rules = keyed_rows("nvlink5_rules.csv", _nvlink5_rule, lambda rule: (rule.xid, rule.patterns, rule.error_status))
    return tuple(rules.values())


@lru_cache(maxsize=1024)
def nvlink5_rule(xid: int, unit: str, words: tuple[int, ...]) -> NvLink5Rule | None:
    """The rule that an NVLink5 error fits: its unit, intrinfo (the first word) and error status (the second).

    A status of several bits, of a unit whose statuses are single bits, is as bad as the worst of them; None where no
    rule fits, or one of the bits has none.
    """
    if len(words) < 2:
        return None
    fitting = {
        rule.error_status: rule
        for rule in nvlink5_rules()
        if rule.xid == xid
        and rule.units.intersection(unit.split("/"))
        and any(words[0] & mask == value for mask, value in rule.patterns)
    }
    status = words[1]
    bits = [1 << bit for bit in range(status.bit_length()) if status >> bit & 1]
    if status in fitting or not all(bit in fitting for bit in (bits or [-1])) or any(_several(s) for s in fitting):
        return fitting.get(status)
    return max((fitting[bit] for bit in bits), key=lambda rule: REMEDY_RANK[rule.verdict.remedy])


def _several(status: int) -> bool:
    return status.bit_count() != 1


@cache
def xid74_bits() -> Mapping[tuple[int, int], str]:
    """The published registers of XID 74: the meaning of a set bit, by (register, bit), both from 0."""
    rows = keyed_rows("xid74_bits.csv", dict, lambda cells: (int(cells["register"]), int(cells["bit"])))
    return MappingProxyType({key: filled(cells, "meaning") for key, cells in rows.items()})


@cache
def sxid_table() -> Mapping[tuple[int, str], SxidRow]:
    """``sxid.csv`` by number and drivers (mostly ""). Raises ValueError naming the line that cannot be read."""
    return keyed_rows("sxid.csv", _sxid_row, lambda row: (row.sxid, row.drivers))


@cache
def sxid_rows(sxid: int) -> tuple[SxidRow, ...]:
    """The rows of one SXid: none, one, or two where its meaning differs for drivers before and from 550."""
    return tuple(row for (number, _), row in sxid_table().items() if number == sxid)


@cache
def line_rows(check: str) -> tuple[LineRow, ...]:
    """The rows of ``kernel_lines.csv`` for one check, in their order: the first that fits a line counts.

    Raises ValueError naming the line that cannot be read, or a code whose rows do not agree on its remedy.
    """
    rows = keyed_rows("kernel_lines.csv", _line_row, lambda row: (row.check, row.expression))
    said: dict[str, tuple[object, ...]] = {}
    for row in rows.values():
        verdict = (row.severity, row.remedy, row.clears_by, row.symptom_of, row.meaning)
        if not row.ends and said.setdefault(row.code, verdict) != verdict:
            raise ValueError(f"kernel_lines.csv: the rows of {row.code} do not agree: {said[row.code]} and {verdict}")
    return tuple(row for row in rows.values() if row.check == check)


# ---------------------------------------------------------------------------------------------------------------------


def _nvlink5_rule(cells: Mapping[str, str]) -> NvLink5Rule:
    xid, unit, subcode = int(cells["xid"]), filled(cells, "unit"), int(cells["subcode"])
    status, said = int(cells["error_status"], 16), filled(cells, "nvidia_severity")
    return NvLink5Rule(
        xid=xid,
        units=frozenset(unit.split("/")),
        subcode=subcode,
        patterns=(_bits(cells["intrinfo_before_575"]), _bits(cells["intrinfo_from_575"])),
        error_status=status,
        nonfatal=said.startswith("Non-fatal"),
        immediate=filled(cells, "nvidia_immediate"),
        investigate=filled(cells, "nvidia_investigate"),
        verdict=XidCase(
            xid=xid,
            case=f"{unit}/{subcode}/{status:#x}",
            meaning=f"NVLink5 {unit}, sub-code {subcode}, status {status:#x}: {said}, {filled(cells, 'origin')}",
            severity=Severity(cells["severity"]),
            remedy=Remedy(cells["remedy"]),
            clears_by=ClearsBy(cells["clears_by"]),
            reason=filled(cells, "reason"),
            source=filled(cells, "source"),
        ),
    )


def _bits(pattern: str) -> tuple[int, int]:
    """``--01`` as (mask 0b0011, value 0b0001). Raises ValueError for what is not 32 of ``-01``."""
    if len(pattern) != 32 or set(pattern) - set("-01"):
        raise ValueError(f"{pattern!r}: expected 32 of '-', '0' and '1'")
    mask = int("".join("0" if bit == "-" else "1" for bit in pattern), 2)
    return mask, int(pattern.replace("-", "0"), 2)


def _sxid_row(cells: Mapping[str, str]) -> SxidRow:
    return SxidRow(
        sxid=int(cells["sxid"]),
        drivers={"": "", "<550": "<550", ">=550": ">=550"}[cells["drivers"]],
        meaning=filled(cells, "meaning"),
        severity=Severity(cells["severity"]),
        remedy=Remedy(cells["remedy"]),
        clears_by=ClearsBy(cells["clears_by"]),
        nonfatal_remedy=Remedy(cells["nonfatal_remedy"]) if cells["nonfatal_remedy"] else None,
        ends=int(cells["ends"]) if cells["ends"] else None,
        reason=filled(cells, "reason"),
        source=filled(cells, "source"),
    )


def _line_row(cells: Mapping[str, str]) -> LineRow:
    return LineRow(
        check=filled(cells, "check"),
        code=filled(cells, "code"),
        ends={"ends": True, "": False}[cells["ends"]],
        expression=filled(cells, "pattern"),
        needle=filled(cells, "needle"),
        component=filled(cells, "component"),
        severity=Severity(cells["severity"]),
        remedy=Remedy(cells["remedy"]),
        clears_by=ClearsBy(cells["clears_by"]),
        symptom_of=tuple(cells["symptom_of"].split()),
        meaning=filled(cells, "meaning"),
        example=filled(cells, "example"),
        reason=filled(cells, "reason"),
        source=filled(cells, "source"),
    )


@cache
def _begins(expression: str, example: str) -> bool:
    fixed = _FIXED.match(expression)
    return fixed is not None and example.startswith(fixed[0][:-1])


@cache
def _named(example: str) -> bool:
    return words_of(example).task is not None


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.DOTALL)
