"""Whom a finding speaks for when a job has ended badly: the table ``checks/data/blame.csv``. Pure.

A row is for a code, a family (``efa.*``) or, of XIDs, a category of ``xid.csv``; the most specific row decides. A
finding speaks by its severity: ``critical`` is the column for critical ones, ``otherwise`` the one for all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache

from msgspec import Struct

from healthd.checklib.tables import as_row, keyed_rows
from healthd.checklib.xids import xid_number, xid_row
from healthd.core.model import Severity

_XID = "gpu.xid."


class SpeaksFor(StrEnum):
    """Whom a finding names as the cause. UNCLEAR: it may have ended the job, and does not say by whose fault."""

    NODE = "node"
    JOB = "job"
    UNCLEAR = "unclear"
    NEITHER = "neither"


class BlameRow(Struct, frozen=True, kw_only=True):
    """One row. ``category``: of ``xid.csv``; "" for all. ``reason`` says why, ``source`` where that was read."""

    code: str
    category: str
    critical: SpeaksFor
    otherwise: SpeaksFor
    reason: str
    source: str


class BlameTable(Struct, frozen=True):
    """The rows, most specific first."""

    rows: tuple[BlameRow, ...]

    @classmethod
    def of(cls, rows: Iterable[BlameRow]) -> BlameTable:
        """In the order in which they are asked: a row without a pattern, then one with a category, then the longest."""
        return cls(tuple(sorted(rows, key=lambda row: ("*" in row.code, not row.category, -len(row.code)))))

    def row(self, code: str) -> BlameRow:
        """The row of a code. The last row is for every code."""
        number = xid_number(code.removeprefix(_XID)) if code.startswith(_XID) else None
        category = xid_row(number).category if number is not None else ""
        return next(row for row in self.rows if row.category in ("", category) and fnmatchcase(code, row.code))

    def may_blame(self, code: str) -> bool:
        """Whether a finding of this code, or one of this family, may speak for the node."""
        rows = [row for row in self.rows if row.code == code] or [self.row(code)]
        return any(SpeaksFor.NODE in (row.critical, row.otherwise) for row in rows)

    def speaks_for(self, code: str, severity: Severity) -> SpeaksFor:
        """Whom a finding of this code and severity speaks for."""
        row = self.row(code)
        return row.critical if severity is Severity.CRITICAL else row.otherwise


@cache
def blame_table() -> BlameTable:
    """``blame.csv``. Raises ValueError naming the line that cannot be read."""
    return BlameTable.of(keyed_rows("blame.csv", _row, lambda row: (row.code, row.category)).values())


def _row(cells: Mapping[str, str]) -> BlameRow:
    return as_row(cells, BlameRow, category=cells["category"])
