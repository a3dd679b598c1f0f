"""Lists of tables in a configuration: every mistake of every row, with its place in the list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from msgspec.structs import fields

from healthd.config.toml_text import Problem
from healthd.config.values import as_toml, converted, did_you_mean, expected, instead, row_class, shortened

_CORRECT = "correct the value"


def row_problems(value: Any, hint: Any, *, from_environment: bool) -> Iterator[Problem]:
    """The mistakes in the rows of ``value``, if ``hint`` is a list of tables and ``value`` a list at all.

    ``key`` is the place in the list, such as ``[0].name``, counted from 0 as TOML's own lists are; the caller adds the
    list's own place.
    """
    cls = row_class(hint)
    rows = _from_text(value) if from_environment and cls else value
    for number, row in enumerate(rows if cls and isinstance(rows, list) else []):
        place = f"[{number}]"
        if isinstance(row, dict):
            yield from _wrong(place, row, cls)
        else:
            wrong = f"expected a table with {', '.join(item.name for item in fields(cls))}"
            yield Problem(source="", key=place, value=shortened(row), wrong=wrong, advice=_CORRECT)


def _wrong(place: str, row: dict[str, Any], cls: Any) -> list[Problem]:
    hints = get_type_hints(cls, include_extras=True)
    problems = [each for name, item in row.items() if (each := _misfit(f"{place}.{name}", name, item, hints))]
    problems += [
        Problem(source="", key=f"{place}.{item.name}", wrong="missing", advice="add it")
        for item in fields(cls)
        if item.required and item.name not in row
    ]
    if not problems:
        try:
            cls(**{name: converted(item, hints[name]) for name, item in row.items()})
        except ValueError as error:
            problems.append(Problem(source="", key=place, wrong=str(error), advice=_CORRECT))
    return problems


def _misfit(place: str, name: str, item: Any, hints: Mapping[str, Any]) -> Problem | None:
    """The mistake in one key of a row, or None."""
    if name not in hints:
        wrong, advice = "no such key", did_you_mean(name, hints, f"expected {', '.join(hints)}")
    else:
        try:
            converted(item, hints[name])
        except ValueError:
            wrong, advice = f"expected {expected(hints[name])}", instead(item, hints[name], _CORRECT)
        else:
            return None
    return Problem(source="", key=place, value=shortened(item), wrong=wrong, advice=advice)


def _from_text(text: str) -> Any:
    """The list in an environment variable, or None where it is no TOML, which another check reports."""
    try:
        return as_toml(text)
    except ValueError:
        return None
