"""``[[match]]``: sections of a configuration that hold on some nodes only, so that one file serves a whole fleet.

Every condition of a match must hold, and one element of its list is enough. A condition that cannot be decided does not
hold, and gives a notice. The caller passes the node's :class:`NodeFacts`: nothing here reads the machine, a file or a
clock. Conditions on the job of the node are not decided here but at each decision, by ``job_match``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import translate
from typing import Any, Protocol, get_type_hints

from msgspec import Struct

from healthd.config.key_lines import Key, line_of
from healthd.config.keys import Allowed, ConfigLocation, Setting, Table, checked, dotted, leaves
from healthd.config.schema.config import MatchSection
from healthd.config.toml_text import Problem
from healthd.config.values import shortened
from healthd.core.errors import BackendError, SourceError

NAME = "match"
# They are needed to find out which node this is, or clients use them without reading a configuration.
NOT_IN_A_MATCH = ("node", "sources", "daemon")
_NAMES = MatchSection.__struct_fields__
_CONDITIONS = tuple(name for name in _NAMES if not name.startswith("job_"))
MODE = ("remediation", "mode")
_BEGINS, _, _ENDS = translate("x").partition("x")  # its text around a glob; Python 3.14 ends it by \z
_HOSTLIST = r"\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]"


class NodeFacts(Protocol):
    """The facts of this node. Each raises SourceError or BackendError where it cannot be read."""

    def host(self) -> Collection[str]:
        """The node's name in its cluster."""

    def label(self) -> Collection[str]:
        """Its labels, as ``key=value``."""

    def instance_type(self) -> Collection[str]:
        """Its EC2 instance type, without ``ml.``."""

    def partition(self) -> Collection[str]:
        """The Slurm partitions of the node; none on a node without Slurm."""


class Match(Struct, frozen=True, kw_only=True):
    """One valid section. ``place`` is such as ``/etc/healthd/config.toml:12 (match[0])``."""

    place: str
    when: MatchSection
    settings: tuple[Setting, ...]

    @property
    def is_by_job(self) -> bool:
        """Whether it has a condition on the job of the node."""
        return any(getattr(self.when, name) for name in _NAMES if name not in _CONDITIONS)


class Ruling(Struct, frozen=True, kw_only=True):
    """Whether a match holds here, with the reason. ``decided``: whether every condition could be decided."""

    match: Match
    holds: bool
    why: str
    decided: bool = True

    def __str__(self) -> str:
        holds = "holds" if self.holds else "does not hold"
        return f"{self.match.place} {holds} here{' by job' if self.match.is_by_job else ''}: {self.why}"


def read_matches(
    given: Any, source: str, lines: Callable[[], Mapping[Key, int]], allowed: Allowed
) -> Iterator[Match | Problem]:
    """Every match of one file's ``match``, or its mistakes, whether it holds here or not."""
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        place = ConfigLocation(source=source, line=line_of(lines(), (NAME,)))
        yield place.problem(NAME, "expected a list of tables", "write [[match]], and [match.SECTION] below it")
        return
    table = {name: each for name, each in allowed().items() if name not in NOT_IN_A_MATCH}
    table |= get_type_hints(MatchSection, include_extras=True)
    for number, row in enumerate(given):
        yield from _read(row, number, source, lines(), table)


def decide(matches: Iterable[Match], facts: NodeFacts) -> Iterator[Ruling]:
    """Whether each match holds here. Every fact is read once, and only if a match needs it."""
    known: dict[str, Collection[str] | str] = {}

    def ask(condition: str) -> Collection[str] | str:
        if condition not in known:
            try:
                known[condition] = tuple(getattr(facts, condition)())
            except (SourceError, BackendError) as error:
                known[condition] = str(error)
        return known[condition]

    for match in matches:
        yield _ruling(match, ask)


def holds(condition: str, pattern: str, value: str) -> bool:
    """Whether one value fits one pattern: a shell's glob, and for a host also Slurm's ``p5-[1-32,40]``."""
    if condition == "host":
        return _fits_hostlist(pattern, value)
    wanted = pattern.removeprefix("ml.") if condition == "instance_type" else pattern
    return re.fullmatch(translate(wanted), value) is not None


# ---------------------------------------------------------------------------------------------------------------------
# reading


def _read(
    row: Mapping[str, Any], number: int, source: str, lines: Mapping[Key, int], table: Table
) -> Iterator[Match | Problem]:
    within, here = f"{NAME}[{number}].", (NAME, str(number))
    conditions: dict[str, Any] = {}
    settings: list[Setting] = []
    problems: list[Problem] = []
    for name in (name for name in NOT_IN_A_MATCH if name in row):
        place = ConfigLocation(source=source, line=line_of(lines, (*here, name)), within=within)
        wrong = "not allowed in a match: healthd reads it before it knows which node this is"
        problems.append(place.problem(within + name, wrong, f"write [{name}] outside of any match"))
    rest = {name: value for name, value in row.items() if name not in NOT_IN_A_MATCH}
    for key, value, hint in leaves(rest, table, ()):
        place = ConfigLocation(source=source, line=line_of(lines, (*here, *key)), within=within)
        for item in checked(key, value, hint, place=place, allowed=lambda: table):
            if isinstance(item, Problem):
                problems.append(item)
            elif key[0] in _NAMES:
                conditions[key[0]] = item.value
            else:
                settings.append(item)
    place = ConfigLocation(source=source, line=line_of(lines, here), within=within)
    if not problems and not conditions:
        wrong = "no condition, so it would hold everywhere"
        problems.append(place.problem(within.rstrip("."), wrong, f"add one of {', '.join(_NAMES)}"))
    if not problems:
        match = Match(place=place.origin, when=MatchSection(**conditions), settings=tuple(settings))
        if match.is_by_job:
            problems += _not_by_job(match, place)
        if not problems:
            yield match
    yield from problems


def _not_by_job(match: Match, place: ConfigLocation) -> Iterator[Problem]:
    """The mistakes of a match by job: it decides the mode, and nothing else can change while jobs come and go."""
    wrong = "not allowed in a match by job, which decides remediation.mode alone"
    for setting in match.settings:
        if setting.key != MODE:
            advice = "write it below a match without a job_ condition"
            yield place.problem(place.within + dotted(setting.key), wrong, advice)
    if not match.settings:
        name = place.within + dotted(MODE)
        yield place.problem(name, "missing in a match by job", "add [match.remediation] with a mode")


# ---------------------------------------------------------------------------------------------------------------------
# deciding


def _ruling(match: Match, ask: Callable[[str], Collection[str] | str]) -> Ruling:
    """The ruling. One condition that does not hold decides, also beside one that cannot be decided."""
    undecided, because = "", ["any node"] if match.is_by_job else []
    for condition in _CONDITIONS:
        wanted = getattr(match.when, condition)
        if not wanted:
            continue
        values = ask(condition)
        if isinstance(values, str):
            undecided = undecided or f"{condition} is not known: {values}"
        elif not any(holds(condition, pattern, value) for pattern in wanted for value in values):
            return Ruling(match=match, holds=False, why=f"{condition} is {shortened(sorted(values))}")
        else:
            because.append(f"{condition} is {shortened(sorted(values))}")
    if undecided:
        return Ruling(match=match, holds=False, why=undecided, decided=False)
    return Ruling(match=match, holds=True, why=", ".join(because))


def _fits_hostlist(pattern: str, value: str) -> bool:
    """Numbers in brackets are Slurm's (``[1-32]``, ``[001-032]`` with its width); other brackets are a glob's."""
    parts = re.split(_HOSTLIST, pattern)
    regex = "".join(r"(\d+)" if number % 2 else _unanchored(part) for number, part in enumerate(parts))
    found = re.fullmatch(regex, value)
    return found is not None and all(map(_in_ranges, parts[1::2], found.groups()))


def _unanchored(glob: str) -> str:
    return translate(glob).removeprefix(_BEGINS).removesuffix(_ENDS)


def _in_ranges(ranges: str, digits: str) -> bool:
    for each in ranges.split(","):
        low, _, high = each.partition("-")
        if int(low) <= int(digits) <= int(high or low) and digits == f"{int(digits):0{len(low)}d}":
            return True
    return False
