"""The runbooks: what an operator does about a finding, step by step.

A runbook is a row of ``checks/data/runbooks.csv``: the codes that it is for, and two to five steps. A code of a family
(``gpu.xid.46``) that has no row of its own takes the row of its family for its remedy, which is that of its row in
``xid.csv`` or ``sxid.csv``. Nothing here reads the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from types import MappingProxyType

from healthd.checklib.tables import filled, keyed_rows
from healthd.core.model import Remedy

COLUMNS = ("do_1", "do_2", "do_3", "do_4", "do_5")
"""The columns of the steps; a runbook has two at least."""
_XID, _SXID = "gpu.xid", "nvswitch.sxid"
_Key = tuple[str, Remedy | None]


def steps(code: str, remedy: Remedy | None = None) -> tuple[str, ...]:
    """The steps of an operator about a finding of this code, in order; none for a code without a runbook.

    ``remedy``: what the finding calls for, where the text of its line decides (an XID 64 without a spare row); None:
    what the code's own row calls for. Commands stand in backquotes, with what to fill in in capitals.
    """
    table, family = runbooks(), f"{family_of(code)}.*"
    of_row = remedy or _remedy_of_row(code) or Remedy.WATCH  # a number that no table has is watched
    keys = ((code, remedy), (code, None), (family, of_row), (family, None))
    return next((table[key] for key in keys if key in table), ())


def next_step(code: str, remedy: Remedy | None = None) -> str:
    """The first of these steps, which fits on a line; "" for a code without a runbook."""
    return next(iter(steps(code, remedy)), "")


def runbook_url(base: str, code: str) -> str:
    """The address of the code's page below ``base``; "" without a base, or for a code without a runbook."""
    return f"{base.rstrip('/')}/{page_of(code)}.html" if base and steps(code) else ""


def page_of(code: str) -> str:
    """The name of the page of a code, or of a family (``site.*``): the code itself, or its family. XIDs have pages of
    their own; all SXids share one."""
    is_xid = code.rpartition(".")[0] == _XID and _remedy_of_row(code) is not None
    has_one = is_xid or code.endswith(".*") or (code, None) in runbooks()
    return code.removesuffix(".*") if has_one else family_of(code)


@lru_cache(maxsize=1024)
def family_of(code: str) -> str:
    """``gpu.xid`` of ``gpu.xid.79``, ``site`` of ``site.disk.slow``; the code itself where it belongs to none."""
    families = (name.removesuffix(".*") for name, _ in runbooks() if name.endswith(".*"))
    return max((each for each in families if code.startswith(f"{each}.")), key=len, default=code)


@cache
def runbooks() -> Mapping[_Key, tuple[str, ...]]:
    """The steps by code, or family, and remedy; None for any. Raises ValueError naming the line that cannot be read."""
    rows = keyed_rows("runbooks.csv", lambda cells: (_keys(cells), _steps(cells)), lambda row: row[0])
    table: dict[_Key, tuple[str, ...]] = {}
    for key, found in ((key, found) for keys, found in rows.values() for key in keys):
        if key in table:
            raise ValueError(f"runbooks.csv: {key[0]} has two rows for {key[1] or 'any remedy'}")
        table[key] = found
    return MappingProxyType(table)


def _keys(cells: Mapping[str, str]) -> tuple[_Key, ...]:
    remedy = Remedy(cells["remedy"]) if cells["remedy"] else None
    return tuple((code, remedy) for code in filled(cells, "codes").split())


def _steps(cells: Mapping[str, str]) -> tuple[str, ...]:
    filled(cells, COLUMNS[1])
    return tuple(cells[column] for column in COLUMNS if cells[column])


def _remedy_of_row(code: str) -> Remedy | None:
    """The remedy of an XID or SXid that has a row in its table; None for any other code."""
    family, _, number = code.rpartition(".")
    if not number.isdecimal() or family not in (_XID, _SXID):
        return None
    from healthd.checklib.xids import sxid_rows, xid_table  # expressions that no other code needs

    rows = sxid_rows(int(number)) if family == _SXID else (xid_table().get(int(number)),)
    return next((row.remedy for row in rows if row is not None), None)
