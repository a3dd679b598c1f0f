"""The line of each key of a TOML text: tomllib gives values without positions, and an error must name a line.

It works on text that tomllib has already accepted, so it may be lax. It never judges a value.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

Key = tuple[str, ...]

_PART = r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|[A-Za-z0-9_-]+)"""
_DOTTED = rf"({_PART}(?:[ \t]*\.[ \t]*{_PART})*)"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*{_DOTTED}[ \t]*\]")
_ASSIGNMENT = re.compile(rf"[ \t]*{_DOTTED}[ \t]*=")
_TOKEN = re.compile(r'''"""|\'\'\'|"(?:\\.|[^"\\])*"|'[^']*'|\#.*|[\[\]{}]''')
_CLOSING = {'"""': re.compile(r'(?:\\.|[^\\])*?"{3,5}'), "'''": re.compile(r".*?'{3,5}")}


def key_lines(text: str) -> Mapping[Key, int]:
    """The line, counted from 1, on which each key or table of ``text`` is first written.

    The tables of an array are listed by number, from 0: ``("match", "1", "host")``. Keys inside an inline table are not
    listed: ask for the longest listed prefix.
    """
    found: dict[Key, int] = {}
    arrays: dict[Key, int] = {}
    table: Key = ()
    quote, depth = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        start = 0
        if not quote and not depth:
            if header := _HEADER.match(line):
                table = _numbered(_parts(header[1]), arrays, opens=line.lstrip().startswith("[["))
                _note(found, table, number)
                continue
            if not (assignment := _ASSIGNMENT.match(line)):
                continue
            _note(found, table + _parts(assignment[1]), number)
            start = assignment.end()
        quote, depth = _after(line, start, quote, depth)
    return found


def line_of(lines: Mapping[Key, int], key: Key) -> int:
    """The line of ``key``, or of the closest table around it; 0 where no part of it is written."""
    return next((lines[key[:end]] for end in range(len(key), 0, -1) if key[:end] in lines), 0)


def _parts(dotted: str) -> Key:
    """``checks."gpu.ecc"`` as ("checks", "gpu.ecc"), by the rules of TOML itself."""
    parts: list[str] = []
    table: Any = tomllib.loads(f"{dotted} = 0")
    while isinstance(table, dict):
        name, table = next(iter(table.items()))
        parts.append(name)
    return tuple(parts)


def _numbered(parts: Key, arrays: dict[Key, int], *, opens: bool) -> Key:
    """The table's name with the number of each array's last table in it; ``opens``: it begins the next one."""
    table: Key = ()
    for part in parts[:-1]:
        table = (*table, part)
        table += (str(arrays[table]),) if table in arrays else ()
    table = (*table, *parts[-1:])
    if opens:
        arrays[table] = arrays.get(table, -1) + 1
    return (*table, str(arrays[table])) if table in arrays else table


def _note(found: dict[Key, int], key: Key, number: int) -> None:
    for end in range(1, len(key) + 1):
        found.setdefault(key[:end], number)


def _after(line: str, at: int, quote: str, depth: int) -> tuple[str, int]:
    """The open multi-line quote and the depth of open brackets at the end of the line."""
    while at < len(line):
        if quote:
            if not (closing := _CLOSING[quote].match(line, at)):
                return quote, depth
            quote, at = "", closing.end()
        elif token := _TOKEN.search(line, at):
            at = token.end()
            if token[0] in _CLOSING:
                quote = token[0]
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        else:
            break
    return quote, depth
