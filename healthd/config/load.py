"""Reading the configuration: files, then environment, each value checked where it stands, every problem reported.

A wrong value never hides another: each leaf is converted by itself. The classes of the checks' own settings are handed
in, so nothing here imports a check. Nothing here prints.
"""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from healthd.config import schema
from healthd.config.lines import Key, key_lines, line_of
from healthd.config.rows import row_problems
from healthd.config.values import choices, close_match, converted, expected, from_text, shortened
from healthd.errors import ConfigError, RegistrationError

DEFAULT_PATH = Path("/etc/healthd/config.toml")
MAX_BYTES = 64 * 1024
# tomllib's time and memory grow with the square of a dotted key's parts (131,000 parts in one line: over 20 GB).
MAX_LINE_CHARACTERS = 1_024
MAX_PROBLEMS = 50

# A variable with another name than its key: clients know it without reading any configuration.
ALIASES: Mapping[str, Key] = {"HEALTHD_SOCKET": ("daemon", "socket")}
PREFIX = "HEALTHD_"
# What Kubernetes sets in every pod beside a Service named healthd or healthd-something (kubernetes.io, "Accessing the
# Service", environment variables): nobody wrote them, so they are not misspelt settings.
_SERVICE_LINK = re.compile(r"HEALTHD(_\w+)?_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)")
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_KEYS_ADVICE = "see `healthd config show` for every key"

# What may stand in a table: a name maps to a leaf's type or to a further table.
Table = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake. ``line`` and ``column`` count from 1; 0 where there is none. ``wrong`` says what was expected."""

    source: str
    wrong: str
    advice: str
    line: int = 0
    column: int = 0
    key: str = ""
    value: str = ""

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        subject = f"{self.key} = {self.value}" if self.value else self.key
        return ": ".join(part for part in (place, subject, self.wrong) if part) + f"; {self.advice}"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value that somebody set, and where: ``/etc/healthd/config.toml:3`` or ``environment HEALTHD_…``."""

    key: Key
    value: Any
    origin: str


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A configuration that can be used. ``origins`` maps every dotted key to where its value comes from."""

    config: schema.Config
    origins: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The outcome of reading, good or bad: ``loaded`` is None exactly when there are problems.

    ``texts`` holds each file that could be read, for the report's marks.
    """

    loaded: Loaded | None
    problems: tuple[Problem, ...]
    texts: Mapping[str, str]


def load(
    path: Path | None,
    *,
    checks: Mapping[str, type],
    environ: Mapping[str, str],
    default_path: Path = DEFAULT_PATH,
) -> Loaded:
    """Read the configuration, or raise ConfigError with every problem. Arguments as for :func:`examine`."""
    examined = examine(path, checks=checks, environ=environ, default_path=default_path)
    if examined.loaded is None:
        raise ConfigError(tuple(str(problem) for problem in examined.problems))
    return examined.loaded


def examine(
    path: Path | None,
    *,
    checks: Mapping[str, type],
    environ: Mapping[str, str],
    default_path: Path = DEFAULT_PATH,
) -> Examined:
    """Read the configuration and say everything that is wrong with it.

    ``path``: the only file to read, which must be there; None reads ``default_path``, if it is there, and ``conf.d/``
    beside it, a later file winning key by key. ``checks``: each check's name and settings class. ``environ``: its
    HEALTHD_<SECTION>_<KEY> variables win over every file.
    """
    texts: dict[str, str] = {}
    settings: dict[Key, Setting] = {}
    problems: list[Problem] = []
    for item in _everything(path, default_path, environ, cache(lambda: _allowed(checks)), texts):
        if isinstance(item, Setting):
            settings[item.key] = item
            continue
        problems.append(item)
        if len(problems) == MAX_PROBLEMS:
            more = f"reading stopped after {MAX_PROBLEMS} problems: there may be more"
            problems.append(Problem(source="configuration", wrong=more, advice="correct these first"))
            break
    loaded = None if problems else _assembled(checks, settings, problems)
    return Examined(loaded=loaded, problems=tuple(problems), texts=texts)


def dotted(key: Key) -> str:
    """A key as TOML writes it: ``checks."gpu.ecc".enabled``."""
    return ".".join(part if _BARE.fullmatch(part) else shortened(part) for part in key)


# ---------------------------------------------------------------------------------------------------------------------
# where values stand

Allowed = Callable[[], Table]


def _everything(
    path: Path | None, default_path: Path, environ: Mapping[str, str], allowed: Allowed, texts: dict[str, str]
) -> Iterator[Setting | Problem]:
    """Every setting and every problem, the weakest source first."""
    if path is not None:
        yield from _file(path, allowed, texts)
    else:
        yield from _file(default_path, allowed, texts, may_be_missing=True)
        yield from _folder(default_path.parent / "conf.d", allowed, texts)
    yield from _environment(environ, allowed)


def _folder(folder: Path, allowed: Allowed, texts: dict[str, str]) -> Iterator[Setting | Problem]:
    try:
        names = sorted(item.name for item in folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        wrong = f"cannot be listed: {error.strerror}"
        yield Problem(source=str(folder), wrong=wrong, advice="expected a folder that healthd's user may read")
        return
    for name in names:
        if name.endswith(".toml") and not name.startswith("."):
            yield from _file(folder / name, allowed, texts)


def _file(
    path: Path, allowed: Allowed, texts: dict[str, str], *, may_be_missing: bool = False
) -> Iterator[Setting | Problem]:
    try:
        text = _text(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and may_be_missing and not path.is_symlink():
            return
        advice = "check the path and its permissions: healthd reads it as the user it runs as"
        yield Problem(source=str(path), wrong=f"cannot be read: {error.strerror}", advice=advice)
        return
    if isinstance(text, Problem):
        yield text
        return
    texts[str(path)] = text
    tree = _tree(text, str(path))
    if isinstance(tree, Problem):
        yield tree
        return
    lines = cache(lambda: key_lines(text))
    for key, value, hint in _leaves(tree, allowed() if tree else {}, ()):
        line = line_of(lines(), key)
        yield from _checked(key, value, hint, source=str(path), line=line, allowed=allowed)


def _text(path: Path) -> str | Problem:
    """The text of a file, never more than MAX_BYTES of it, or what is wrong with it. Raises OSError."""
    source = str(path)
    if not stat.S_ISREG(path.stat().st_mode):
        return Problem(source=source, wrong="not a regular file", advice="expected a TOML file here")
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        wrong = f"larger than {MAX_BYTES} bytes, which no configuration of healthd is"
        return Problem(source=source, wrong=wrong, advice="is it another file? Name the right one with --config")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        wrong = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        return Problem(source=source, line=line, wrong=wrong, advice="expected TOML in UTF-8; convert it with iconv")


def _tree(text: str, source: str) -> dict[str, Any] | Problem:
    for number, content in enumerate(text.split("\n"), 1):
        if len(content) > MAX_LINE_CHARACTERS:
            wrong = f"a line of {len(content)} characters, expected at most {MAX_LINE_CHARACTERS}"
            return Problem(source=source, line=number, wrong=wrong, advice="break the list over several lines")
    try:
        return tomllib.loads(text)
    except RecursionError:
        return Problem(source=source, wrong="not TOML: nested too deeply", advice="expected sections such as [daemon]")
    except ValueError as error:
        return _syntax(str(error), source, last_line=text.rstrip("\n").count("\n") + 1)


def _syntax(message: str, source: str, *, last_line: int) -> Problem:
    """What tomllib says, with its position taken out of the sentence."""
    line = column = 0
    if position := _POSITION.search(message):
        line, column = int(position[1] or last_line), int(position[2] or 0)
    twice = message.startswith(("Cannot overwrite", "Cannot declare", "Cannot redefine", "Duplicate"))
    advice = "it is set twice: keep one" if twice else "correct the line; text values need quotes"
    wrong = "not TOML: " + _POSITION.sub("", message)
    return Problem(source=source, line=line, column=column, wrong=wrong, advice=advice)


def _environment(environ: Mapping[str, str], allowed: Allowed) -> Iterator[Setting | Problem]:
    """What HEALTHD_ variables set. An alias comes before its full name, so the full name wins."""
    mine = sorted(name for name in environ if name.startswith(PREFIX))
    if not mine:
        return
    variables = _variables(allowed(), ())
    for name in sorted(mine, key=lambda name: name not in ALIASES):
        if name in variables:
            key, hint = variables[name]
            source = f"environment {name}"
            yield from _checked(key, environ[name], hint, source=source, from_environment=True, allowed=allowed)
        elif not _SERVICE_LINK.fullmatch(name):
            guess = close_match(name, variables)
            advice = f"did you mean {guess}?" if guess else "expected HEALTHD_<SECTION>_<KEY>: unset it or correct it"
            value = shortened(environ[name])
            yield Problem(source="environment", value=value, key=name, wrong="no such setting", advice=advice)


def _variables(table: Table, path: Key) -> dict[str, tuple[Key, Any]]:
    """Environment variable to (key, type) for every leaf below ``table``."""
    found: dict[str, tuple[Key, Any]] = {}
    for name, wanted in table.items():
        key = (*path, name)
        if isinstance(wanted, dict):
            found |= _variables(wanted, key)
        else:
            found[PREFIX + re.sub(r"[^A-Z0-9]+", "_", "_".join(key).upper())] = (key, wanted)
    if not path:
        found |= {name: (key, table[key[0]][key[1]]) for name, key in ALIASES.items()}
    return found


# ---------------------------------------------------------------------------------------------------------------------
# what may be set


def _allowed(checks: Mapping[str, type]) -> Table:
    """The whole table of what may be set."""
    common = _table(schema.CheckSection)
    table = {item.name: _table(item.default_factory) for item in fields(schema.Config) if item.name != "checks"}
    return table | {"checks": {name: {**common, **_own(name, cls, common)} for name, cls in checks.items()}}


def _own(name: str, cls: type, common: Table) -> dict[str, Any]:
    """What a check's settings class adds. Raises RegistrationError where it takes a name that every check has."""
    own = _table(cls)
    if taken := sorted(own.keys() & common.keys()):
        raise RegistrationError(f"check {name!r}: {cls.__qualname__} has {taken}, which every check has: rename it")
    return own


def _table(cls: Any) -> dict[str, Any]:
    """Field to type, or to a table where the field is a settings class itself."""
    hints = get_type_hints(cls, include_extras=True)
    return {
        item.name: _table(hints[item.name]) if is_dataclass(hints[item.name]) else hints[item.name]
        for item in fields(cls)
    }


_UNKNOWN = object()
_NOT_A_TABLE = object()


def _leaves(tree: Mapping[str, Any], table: Table, path: Key) -> Iterator[tuple[Key, Any, Any]]:
    """(key, value, type) for everything in ``tree``; the type is a marker for what may not stand there."""
    for name, value in tree.items():
        key, wanted = (*path, name), table.get(name, _UNKNOWN)
        if isinstance(wanted, dict) and isinstance(value, dict):
            yield from _leaves(value, wanted, key)
        else:
            yield key, value, _NOT_A_TABLE if isinstance(wanted, dict) else wanted


def _checked(
    key: Key, value: Any, hint: Any, *, source: str, allowed: Allowed, line: int = 0, from_environment: bool = False
) -> Iterator[Setting | Problem]:
    """The setting, or what is wrong with it, row by row where it is a list of tables."""
    rows = list(row_problems(value, hint, from_environment=from_environment))
    for row in rows:
        at = dotted(key) + row.place
        yield Problem(source=source, line=line, key=at, value=row.value, wrong=row.wrong, advice=row.advice)
    if not rows:
        yield _leaf(key, value, hint, source=source, allowed=allowed, line=line, from_environment=from_environment)


def _leaf(
    key: Key, value: Any, hint: Any, *, source: str, allowed: Allowed, line: int, from_environment: bool
) -> Setting | Problem:
    name = dotted(key)
    if hint is _UNKNOWN:
        wrong = "no such check" if key[0] == "checks" and len(key) == 2 else "no such key"
        return Problem(source=source, line=line, key=name, wrong=wrong, advice=_unknown_advice(key, value, allowed()))
    if hint is _NOT_A_TABLE:
        return Problem(
            source=source,
            line=line,
            key=name,
            value=shortened(value),
            wrong="expected a section, not a value",
            advice=f"write [{name}] and its keys below",
        )
    try:
        fitting = from_text(value, hint) if from_environment else converted(value, hint)
    except ValueError:
        guess = close_match(value, choices(hint)) if isinstance(value, str) else None
        advice = f'did you mean "{guess}"?' if guess else "correct the value, or leave it out for the default"
        wrong = f"expected {expected(hint)}"
        return Problem(source=source, line=line, key=name, value=shortened(value), wrong=wrong, advice=advice)
    return Setting(key=key, value=fitting, origin=f"{source}:{line}" if line else source)


def _unknown_advice(key: Key, value: Any, allowed: Table) -> str:
    """The same name at another place; else a close one at the same place; else where the names are listed."""
    if len(key) == 2 and isinstance(value, dict) and (name := f"{key[1]}.{next(iter(value), '')}") in allowed["checks"]:
        return f'the name of a check is quoted: write [checks."{name}"]'
    for at, _ in _variables(allowed, ()).values():
        if at[-1] == key[-1] and at[0] != "checks":
            return f"did you mean {dotted(at)}?"
    table: Any = allowed
    for part in key[:-1]:
        table = table[part]
    guess = close_match(key[-1], table)
    return f"did you mean {dotted((*key[:-1], guess))}?" if guess else _KEYS_ADVICE


# ---------------------------------------------------------------------------------------------------------------------
# putting it together


def _assembled(checks: Mapping[str, type], settings: Mapping[Key, Setting], problems: list[Problem]) -> Loaded | None:
    """The configuration. What a settings class itself refuses (``__post_init__``) is added to ``problems``."""
    origins: dict[str, str] = {}

    def build(cls: Any, path: Key, **extra: Any) -> Any:
        values: dict[str, Any] = dict(extra)
        for item in fields(cls):
            if item.name in values:
                continue
            key = (*path, item.name)
            default = item.default_factory() if item.default_factory is not MISSING else item.default
            if is_dataclass(default):
                values[item.name] = build(type(default), key)
                continue
            given = settings.get(key)
            origins[dotted(key)] = given.origin if given else "default"
            values[item.name] = given.value if given else default
        try:
            return cls(**values)
        except ValueError as error:
            source = ", ".join(sorted({item.origin for key, item in settings.items() if key[: len(path)] == path}))
            problems.append(Problem(source=source, key=dotted(path), wrong=str(error), advice="correct the values"))
            return None

    tables = {
        name: build(schema.CheckConfig, ("checks", name), settings=build(cls, ("checks", name)))
        for name, cls in checks.items()
    }
    config = build(schema.Config, (), checks=tables)
    return None if problems else Loaded(config=config, origins=origins)
