"""The allowed keys, and the check of each value at its place. A wrong value never hides another.

The caller passes the classes of the checks' own settings, so nothing here imports a check. Nothing here reads a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from healthd.config.key_lines import Key
from healthd.config.schema import config as schema
from healthd.config.table_lists import row_problems
from healthd.config.toml_text import Problem
from healthd.config.values import close_match, converted, expected, from_text, instead, is_section, shortened
from healthd.core.errors import RegistrationError

# A variable whose name differs from its key: clients use it without reading any configuration.
ALIASES: Mapping[str, Key] = {"HEALTHD_SOCKET": ("daemon", "socket")}
PREFIX = "HEALTHD_"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_KEYS_ADVICE = "see `healthd config show` for every key"

# The allowed keys of a table: a name maps to a leaf's type or to a further table.
Table = Mapping[str, Any]
Allowed = Callable[[], Table]


class Setting(Struct, frozen=True, kw_only=True):
    """One configured value, and its place: ``/etc/healthd/config.toml:3`` or ``environment HEALTHD_…``."""

    key: Key
    value: Any
    origin: str


class ConfigLocation(Struct, frozen=True, kw_only=True):
    """The place of a value: a file's line, or a variable; ``within`` such as ``match[0].`` comes before its key."""

    source: str
    line: int = 0
    within: str = ""

    @property
    def origin(self) -> str:
        """For ``config show``: ``/etc/healthd/config.toml:3 (match[0])``."""
        at = f"{self.source}:{self.line}" if self.line else self.source
        return f"{at} ({self.within.rstrip('.')})" if self.within else at

    @property
    def header(self) -> str:
        """The prefix of a section's name: ``match.``."""
        return re.sub(r"\[\d+\]", "", self.within)

    def problem(self, key: str, wrong: str, advice: str, *, value: str = "") -> Problem:
        """A mistake at this place."""
        return Problem(source=self.source, line=self.line, key=key, value=value, wrong=wrong, advice=advice)


def dotted(key: Key) -> str:
    """A key as TOML writes it: ``checks."gpu.ecc".enabled``."""
    return ".".join(part if _BARE.fullmatch(part) else shortened(part) for part in key)


class Keys(Mapping[str, Any]):
    """The keys of settings classes: field to type, or to the Keys of a field that is a settings class itself.

    Types are written as text and cost more to read than all else in loading, so they are read when a key is looked up.
    """

    def __init__(self, *classes: type) -> None:
        self._classes = classes

    def __getitem__(self, name: str) -> Any:
        return self._types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    @cached_property
    def _types(self) -> Mapping[str, Any]:
        hints = [each for cls in self._classes for each in _hints_of(cls).items()]
        return {name: Keys(hint) if is_section(hint) else hint for name, hint in hints}


@cache
def _hints_of(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def allowed_table(checks: Mapping[str, type]) -> Table:
    """The table of all allowed keys. Raises RegistrationError for a key of a check that every check has."""
    plain = schema.Config()
    sections = {name: type(getattr(plain, name)) for name in plain.__struct_fields__ if name != "checks"}
    table: dict[str, Any] = {name: Keys(cls) for name, cls in sections.items()}
    return table | {"checks": {name: Keys(schema.CheckSection, _own(name, cls)) for name, cls in checks.items()}}


def _own(name: str, cls: Any) -> Any:
    """The settings class of a check."""
    if taken := sorted(set(cls.__struct_fields__).intersection(schema.CheckSection.__struct_fields__)):
        raise RegistrationError(f"check {name!r}: {cls.__qualname__} has {taken}, which every check has: rename it")
    return cls


_OF_MANY = frozenset(schema.CheckSection.__struct_fields__)
"""Names that say nothing about their place: every check has them."""
_UNKNOWN = object()
_NOT_A_TABLE = object()


def leaves(tree: Mapping[str, Any], table: Table, path: Key) -> Iterator[tuple[Key, Any, Any]]:
    """(key, value, type) for every value in ``tree``; for a key that is not allowed the type is a marker."""
    for name, value in tree.items():
        key, wanted = (*path, name), table.get(name, _UNKNOWN)
        if isinstance(wanted, Mapping) and isinstance(value, dict):
            yield from leaves(value, wanted, key)
        else:
            yield key, value, _NOT_A_TABLE if isinstance(wanted, Mapping) else wanted


def checked(
    key: Key,
    value: Any,
    hint: Any,
    *,
    place: ConfigLocation,
    allowed: Allowed,
    from_environment: bool = False,
    line_of_row: Callable[[Key], int] | None = None,
) -> Iterator[Setting | Problem]:
    """The setting, or its mistakes, row by row where it is a list of tables.

    ``line_of_row``: the line of a key such as ``("policy", "rule", "1", "codes")``, where there are lines.
    """
    rows = list(row_problems(value, hint, from_environment=from_environment))
    for row in rows:
        line = line_of_row((*key, *re.findall(r"\w+", row.key))) if line_of_row else place.line
        yield replace(row, source=place.source, line=line, key=place.within + dotted(key) + row.key)
    if not rows:
        yield _leaf(key, value, hint, place=place, allowed=allowed, from_environment=from_environment)


def _leaf(
    key: Key, value: Any, hint: Any, *, place: ConfigLocation, allowed: Allowed, from_environment: bool
) -> Setting | Problem:
    name = place.within + dotted(key)
    if hint is _UNKNOWN:
        wrong = "no such check" if key[0] == "checks" and len(key) == 2 else "no such key"
        return place.problem(name, wrong, _unknown_advice(key, value, place, allowed()))
    if hint is _NOT_A_TABLE:
        advice = f"write [{place.header}{dotted(key)}] and its keys below"
        return place.problem(name, "expected a section, not a value", advice, value=shortened(value))
    try:
        fitting = from_text(value, hint) if from_environment else converted(value, hint)
    except ValueError:
        advice = instead(value, hint, "correct the value, or leave it out for the default")
        return place.problem(name, f"expected {expected(hint)}", advice, value=shortened(value))
    return Setting(key=key, value=fitting, origin=place.origin)


def _unknown_advice(key: Key, value: Any, place: ConfigLocation, allowed: Table) -> str:
    """A similar name at the same place, of a value for a value; else the one place that has this name; else a section
    for a value, or the reverse; else the list of names."""
    names = (key[-1], f"{key[-1]}.{next(iter(value), '')}") if isinstance(value, dict) else ()
    if name := next((each for each in names if each in allowed["checks"]), ""):
        why = "the name of a check is quoted" if key[0] == "checks" else "the settings of a check stand below checks"
        return f'{why}: write [{place.header}checks."{name}"]'
    table: Any = allowed
    for part in key[:-1]:
        table = table[part]
    alike = (name for name, wanted in table.items() if isinstance(wanted, Mapping) is isinstance(value, dict))
    if guess := close_match(key[-1], alike):
        return f"did you mean {place.within}{dotted((*key[:-1], guess))}?"
    there = {at for at, _ in variables(allowed, ()).values() if at[-1] == key[-1] and at[0] != "checks"}
    if len(there) == 1 and key[0] != "checks" and key[-1] not in _OF_MANY:
        return f"did you mean {place.within}{dotted(there.pop())}?"
    if guess := close_match(key[-1], table):
        return f"did you mean {place.within}{dotted((*key[:-1], guess))}?"
    return "see `healthd checks` for every name" if key[:-1] == ("checks",) else _KEYS_ADVICE


def variables(table: Table, path: Key) -> dict[str, tuple[Key, Any]]:
    """Environment variable to (key, type) for every leaf below ``table``."""
    found: dict[str, tuple[Key, Any]] = {}
    for name, wanted in table.items():
        key = (*path, name)
        if isinstance(wanted, Mapping):
            found |= variables(wanted, key)
        else:
            found[PREFIX + re.sub(r"[^A-Z0-9]+", "_", "_".join(key).upper())] = (key, wanted)
    if not path:
        found |= {name: (key, table[key[0]][key[1]]) for name, key in ALIASES.items() if key[0] in table}
    return found
