"""Configuration as text: carets under each mistake in the operator's own file, and every value with its place.

Pure: it makes text, prints nothing, and reads only the source text of settings classes, for their docstrings.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from healthd.config.key_lines import Key
from healthd.config.keys import dotted
from healthd.config.load import Loaded
from healthd.config.schema.config import CheckConfig
from healthd.config.toml_text import Problem
from healthd.config.values import default_of, expected, is_section, plain, toml_lines, toml_value
from healthd.core.name_lists import number_of

CONTEXT_LINES = 1
SHOWN_COLUMNS = 160


def annotated(problems: Sequence[Problem], texts: Mapping[str, str]) -> str:
    """Every problem under its line of the file, with the lines around it; problems without a line follow below."""
    blocks = []
    numbered = list(enumerate(problems, 1))
    for source, group in groupby(numbered, key=lambda pair: pair[1].source):
        members = list(group)
        head = f"{source}: {number_of(len(members), 'problem')}"
        marks = _marked(texts[source], members) if source in texts else []
        words = [f"  {number}: {_sentence(problem)}" for number, problem in members]
        blocks.append("\n".join([head, *marks, *words]))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def shown(loaded: Loaded) -> str:
    """The effective configuration as TOML that can be loaded again; a comment names each value's place."""
    reported = [f"# {each}" for each in (*loaded.rulings, *loaded.notices)]
    blocks = ["\n".join(reported)] if reported else []
    for path, rows in _sections(loaded):
        lines = [f"[{dotted(path)}]", *(_assigned(*row) for row in rows if not _is_of_tables(row[1]))]
        blocks.append("\n".join(lines))
        for key, value, origin in rows:
            blocks += [_table(key, each, origin) for each in value] if _is_of_tables(value) else []
    return "\n\n".join(blocks) + "\n"


def _is_of_tables(value: Any) -> bool:
    return isinstance(value, tuple | list) and any(isinstance(each, Struct) for each in value)


def _assigned(key: Key, value: Any, origin: str) -> str:
    """One key, with the place of its value behind the first line."""
    first, *rest = toml_lines(value).split("\n")
    assignment = f"{dotted(key[-1:])} = {first}" if first else f"# {dotted(key[-1:])} = "
    return "\n".join([f"{assignment:<44} # {origin}", *rest])


def _table(key: Key, row: Struct, origin: str) -> str:
    """One table of a list."""
    given = {name: value for name, value in _values(row) if value is not None}
    head = f"[[{dotted(key)}]]"
    return "\n".join(
        [f"{head:<44} # {origin}", *(f"{dotted((name,))} = {toml_lines(each)}" for name, each in given.items())]
    )


def as_data(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """The effective configuration for programs: dotted key to ``{"value": …, "origin": …}``."""
    return {
        dotted(key): {"value": plain(value), "origin": origin}
        for _, rows in _sections(loaded)
        for key, value, origin in rows
    }


class FieldDoc(Struct, frozen=True, kw_only=True):
    """One field of a settings class, for the reference pages: ``type`` in words, ``default`` as TOML."""

    name: str
    type: str
    default: str
    doc: str


def documented_fields(cls: type) -> tuple[FieldDoc, ...]:
    """The fields of a settings class in their order, each with the docstring under it.

    Raises ValueError for a field without one, and OSError where the source text of the class is not there.
    """
    docs = {name: doc for base in _settings(cls) for name, doc in _docstrings(base).items()}
    hints = get_type_hints(cls, include_extras=True)
    rows = []
    for item in fields(cls):
        if item.name not in docs:
            raise ValueError(f"{cls.__module__}.{cls.__qualname__}.{item.name} has no docstring under it")
        message = "a section" if is_section(hints[item.name]) else expected(hints[item.name])
        default = default_of(item)
        text = "" if default is NODEFAULT else toml_value(default)
        rows.append(FieldDoc(name=item.name, type=message, default=text, doc=docs[item.name]))
    return tuple(rows)


def _marked(text: str, members: Sequence[tuple[int, Problem]]) -> list[str]:
    """The lines with problems, with a row of carets under each, and the lines around them."""
    lines = text.split("\n")
    at: dict[int, list[int]] = {}
    for number, problem in members:
        if 0 < problem.line <= len(lines):
            at.setdefault(problem.line, []).append(number)
    near = {line + offset for line in at for offset in range(-CONTEXT_LINES, CONTEXT_LINES + 1)}
    rows, previous = [], 0
    for line in sorted(near & set(range(1, len(lines) + 1))):
        if previous and line > previous + 1:
            rows.append("   …")
        rows.append(f"{line:4} | {_printable(lines[line - 1])}".rstrip())
        if line in at:
            content = _printable(lines[line - 1])
            indent = len(content) - len(content.lstrip())
            carets = " " * indent + "^" * max(1, len(content.strip()))
            rows.append(f"     | {carets} " + ", ".join(str(number) for number in at[line]))
        previous = line
    return rows


def _sentence(problem: Problem) -> str:
    place = f"line {problem.line}: " if problem.line else ""
    subject = f"{problem.key}: " if problem.key else ""
    return f"{place}{subject}{problem.wrong}; {problem.advice}"


def _printable(line: str) -> str:
    """A line as it may be sent to a terminal: no control characters, not endless."""
    text = "".join(character if character.isprintable() else " " if character == "\t" else "�" for character in line)
    return text if len(text) <= SHOWN_COLUMNS else text[: SHOWN_COLUMNS - 1] + "…"


def _sections(loaded: Loaded) -> Iterator[tuple[Key, list[tuple[Key, Any, str]]]]:
    """(section, its rows of (key, value, origin)), the sections in the order of the schema."""

    def walk(settings: Any, path: Key) -> Iterator[tuple[Key, list[tuple[Key, Any, str]]]]:
        rows, below = [], []
        for name, value in _values(settings):
            key = (*path, name)
            if isinstance(value, Struct):
                below.append((key, value))
            elif key == ("checks",):
                below.extend(((*key, check), each) for check, each in value.items())
            else:
                rows.append((key, value, loaded.origin(key)))
        if rows:
            yield path, rows
        for key, value in below:
            yield from walk(value, key)

    yield from walk(loaded.config, ())


def _values(settings: Any) -> Iterator[tuple[str, Any]]:
    """Field names and values; a check's own settings are in one table with those of every check."""
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(settings, CheckConfig) and item.name == "settings":
            yield from _values(value)
        else:
            yield item.name, value


def _settings(cls: type) -> Iterator[type]:
    """A settings class after those that it inherits from."""
    return (base for base in reversed(cls.__mro__) if is_section(base) and base is not Struct)


def _docstrings(cls: type) -> dict[str, str]:
    """Name to docstring of the annotated assignments that a text follows."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    found: dict[str, str] = {}
    for statement, after in pairwise(body):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as doc)):
                found[name] = " ".join(doc.split())
    return found
