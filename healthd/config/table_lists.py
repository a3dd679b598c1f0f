"""Lists of tables in a configuration: every mistake of every row, with its place in the list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, get_type_hints

from msgspec import Struct
from msgspec.structs import fields

from healthd.config.values import as_toml, choices, close_match, converted, expected, row_class, shortened


class RowProblem(Struct, frozen=True, kw_only=True):
    """One mistake. ``place`` is such as ``[0].name``, counted from 0 as TOML's own lists are; ``value`` as TOML."""

    place: str
    wrong: str
    value: str = ""
    advice: str = "correct the value"


def row_problems(value: Any, hint: Any, *, from_environment: bool) -> Iterator[RowProblem]:
    """The mistakes in the rows of ``value``, if ``hint`` is a list of tables and ``value`` a list at all."""
    cls = row_class(hint)
    rows = _from_text(value) if from_environment and cls else value
    for number, row in enumerate(rows if cls and isinstance(rows, list) else []):
        place = f"[{number}]"
        if isinstance(row, dict):
            yield from _wrong(place, row, cls)
        else:
            yield RowProblem(place=place, value=shortened(row), wrong=f"expected a table with {_names(cls)}")


def _wrong(place: str, row: dict[str, Any], cls: Any) -> Iterator[RowProblem]:
    hints = get_type_hints(cls, include_extras=True)
    wrong = [*_wrong_keys(place, row, cls), *_wrong_values(place, row, hints)]
    yield from wrong
    if not wrong:
        try:
            cls(**{name: converted(item, hints[name]) for name, item in row.items()})
        except ValueError as error:
            yield RowProblem(place=place, wrong=str(error))


def _wrong_keys(place: str, row: dict[str, Any], cls: Any) -> Iterator[RowProblem]:
    known = [item.name for item in fields(cls)]
    for name, item in row.items():
        if name not in known:
            advice = _guess(name, known) or f"expected {_names(cls)}"
            yield RowProblem(place=f"{place}.{name}", value=shortened(item), wrong="no such key", advice=advice)
    for item in fields(cls):
        if item.required and item.name not in row:
            yield RowProblem(place=f"{place}.{item.name}", wrong="missing", advice="add it")


def _wrong_values(place: str, row: dict[str, Any], hints: dict[str, Any]) -> Iterator[RowProblem]:
    for name, item in row.items():
        if name not in hints:
            continue
        try:
            converted(item, hints[name])
        except ValueError:
            guess = _guess(item, choices(hints[name])) if isinstance(item, str) else ""
            wrong, advice = f"expected {expected(hints[name])}", guess or "correct the value"
            yield RowProblem(place=f"{place}.{name}", value=shortened(item), wrong=wrong, advice=advice)


def _guess(word: str, known: Iterable[str]) -> str:
    guess = close_match(word, known)
    return f'did you mean "{guess}"?' if guess else ""


def _names(cls: Any) -> str:
    return ", ".join(item.name for item in fields(cls))


def _from_text(text: str) -> Any:
    """The list in an environment variable, or None where it is no TOML, which another check reports."""
    try:
        return as_toml(text)
    except ValueError:
        return None
