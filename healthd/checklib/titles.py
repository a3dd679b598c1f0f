"""The titles of findings: what is wrong in the words of an operator, for the head of a message.

A title is a row of ``checks/data/titles.csv``: the codes that it is for, and a sentence without a full stop, in which
``{where}`` is the device. A code without a row has no title: the message of its finding stands in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from healthd.checklib.tables import filled, keyed_rows

WHERE = "{where}"
_UNNAMED = {"gpu": "a GPU", "efa": "an EFA device"}
_NUMBERED = ("gpu.xid.", "XID")


def title_of(code: str, where: str) -> str:
    """``GPU 3 fell off the bus (XID 79)``; "" for a code without a title. ``where``: the device, as operators name it;
    "" where it is not known."""
    template = titles().get(code, "")
    if not template:
        return ""
    title = template.replace(WHERE, where or _UNNAMED.get(code.partition(".")[0], "the node"))
    prefix, word = _NUMBERED
    return f"{title} ({word} {code.removeprefix(prefix)})" if code.startswith(prefix) else title


@cache
def titles() -> Mapping[str, str]:
    """The sentence of each code. Raises ValueError naming the line that cannot be read."""
    rows = keyed_rows("titles.csv", lambda cells: (filled(cells, "codes"), filled(cells, "title")), lambda row: row[0])
    found: dict[str, str] = {}
    for codes, title in rows.values():
        for code in codes.split():
            if code in found:
                raise ValueError(f"titles.csv: {code} has two rows")
            found[code] = title
    return MappingProxyType(found)
