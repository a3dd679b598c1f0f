"""Lines for a terminal, each in the colour of the state that it is about. Pure: lines in, text out.

It loads nothing that judges, so a verb that only prints loads as little.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

Level = Literal["critical", "warning", "unknown", "info", "ok", ""]
COLOURS: Mapping[str, str] = {"critical": "1;31", "warning": "33", "unknown": "35", "info": "36", "ok": "32"}
"""Red, yellow, magenta, cyan, green: the parameters of SGR (ECMA-48, 8.3.117). The words and the sign say the same."""


class TextLine(Struct, frozen=True):
    """One line, and the state that it is about, which is its colour; "" for a detail, and for a line about no state."""

    text: str
    level: Level = ""


def joined(lines: Iterable[TextLine], *, colour: bool = False) -> str:
    """The text of these lines, in the colours of their levels or without: the one place where lines become a text."""
    return "\n".join(_coloured(line) if colour else printable(line.text) for line in lines) + "\n"


def _coloured(line: TextLine) -> str:
    text, code = printable(line.text), COLOURS.get(line.level)
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


def aligned(rows: Sequence[Sequence[str]], *, widest: int = sys.maxsize) -> list[str]:
    """The rows as columns; what stands in the last one is not padded. ``widest``: no column is padded further."""
    widths = [min(max(map(len, column)), widest) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def printable(line: str) -> str:
    """The line without control characters: a user may have named the mount in it."""
    if line.isprintable():
        return line
    return "".join(character if character.isprintable() else "?" for character in line)
