"""Versions of the software stack: their sources, their order, and the minimums of the instance families.

Pure over the Node protocol, like a check. It judges nothing: a check decides which difference matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial

from msgspec import Struct

from healthd.checklib.tables import as_row, keyed_rows
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.node import Node

DRIVER_LIBRARY = "driver_library"
_PYTHON = "python"


class VersionSource(Struct, frozen=True, kw_only=True):
    """One place where a part's version can be read, a row of ``stack.csv``.

    ``kind``: sys or proc (``where`` is a path), command (``where`` is its words) or python (``where`` is the name of an
    installed package, as a glob: pip writes the version into the name of its metadata folder). ``pattern`` finds the
    version in the text as its first group. A part may have several places: the first that has it counts. Places of one
    command share its run, and so do all of kind python.
    """

    part: str
    kind: str
    where: str
    pattern: str
    source: str


class Minimum(Struct, frozen=True, kw_only=True):
    """The oldest version of a part an instance family works with. ``family``: how its types begin (``p6-b200.``)."""

    family: str
    part: str
    minimum: str
    source: str


class Stack(Struct, frozen=True, kw_only=True):
    """The versions found, by part, and the places that should have answered and did not."""

    versions: Mapping[str, str]
    undecided: tuple[str, ...]


@cache
def places() -> tuple[VersionSource, ...]:
    """``stack.csv`` in its order. Raises ValueError naming the line that cannot be read."""
    table = keyed_rows("stack.csv", partial(as_row, kind=VersionSource), lambda place: (place.part, place.where))
    return tuple(table.values())


@cache
def parts() -> tuple[str, ...]:
    """Every part that has a place, and the driver's library, which says its version itself."""
    return tuple(dict.fromkeys((*(place.part for place in places()), DRIVER_LIBRARY)))


@cache
def all_minimums() -> tuple[Minimum, ...]:
    """``minimum_versions.csv``. Raises ValueError naming the line that cannot be read."""
    table = keyed_rows("minimum_versions.csv", partial(as_row, kind=Minimum), lambda row: (row.family, row.part))
    return tuple(table.values())


def minimums(instance_type: str | None) -> tuple[Minimum, ...]:
    """The minimums of this instance type; none for a type without a row."""
    name = (instance_type or "").strip().removeprefix("ml.")
    return tuple(row for row in all_minimums() if name.startswith(row.family))


def read_stack(node: Node, parts: Iterable[str] | None = None, *, python_homes: Sequence[str] = ()) -> Stack:
    """The versions of these parts, or of all. A part without a version is absent; a source that fails is a gap.

    ``python_homes``: the Pythons whose packages are read, the first one first. No Python is started for that.
    """
    wanted = None if parts is None else set(parts)
    versions: dict[str, str] = {}
    undecided: list[str] = []
    texts: dict[str, str | SourceError] = {}
    for place in places():
        if place.part in versions or (wanted is not None and place.part not in wanted):
            continue
        text = _PYTHON if place.kind == _PYTHON else place.where
        if text not in texts:  # one that hung, or failed, is not asked again for the next part
            texts[text] = _text_or_error(node, place, python_homes)
        answer = texts[text]
        if isinstance(answer, SourceError):
            if not isinstance(answer, SourceMissing) or place.part == "kernel":  # every one has a kernel
                undecided.append(f"{place.part}: {answer}")
        elif found := re.search(place.pattern, _about(place, answer), re.MULTILINE):
            versions[place.part] = found[1]
    return Stack(versions=versions, undecided=tuple(dict.fromkeys(undecided)))


def older(version: str, than: str) -> bool:
    """Whether ``version`` comes before ``than``, number by number; text after the numbers does not count.

    Raises SourceUnreadable for one that does not begin with a number.
    """
    left, right = _numbers(version), _numbers(than)
    length = max(len(left), len(right))
    return _padded(left, length) < _padded(right, length)


def matches(version: str, pin: str) -> bool:
    """Whether a version is the pinned one, or of the pinned line: ``580`` pins all of 580.x."""
    return version == pin or version.startswith((f"{pin}.", f"{pin}-", f"{pin}+"))


def _text_or_error(node: Node, place: VersionSource, python_homes: Sequence[str]) -> str | SourceError:
    try:
        return _text(node, place, python_homes)
    except SourceError as error:
        return error


def _text(node: Node, place: VersionSource, python_homes: Sequence[str]) -> str:
    if place.kind == _PYTHON:
        return _packages(node, python_homes)
    if place.kind == "command":
        return _output(node, *place.where.split())
    tree = {"sys": node.sys, "proc": node.proc}[place.kind]
    return tree.read(place.where)


def _packages(node: Node, homes: Sequence[str]) -> str:
    """The metadata folders of every package that a row names, one per line, in the order of the homes."""
    if not homes:
        return ""
    names = [each for place in places() if place.kind == _PYTHON for each in ("-o", "-path", _folders(place))][1:]
    homes = [f"{home.rstrip('/')}/lib" for home in homes]
    return _output(node, "find", "-H", *homes, "-xdev", "-maxdepth", "3", *names)


def _output(node: Node, *argv: str) -> str:
    """A command's output. An exit status is no fault: a file or home of several is missing as a rule. Raises
    SourceMissing without the command, SourceUnreadable for one that was killed."""
    result = node.command(*argv)
    if result.code in (126, 127):
        raise SourceMissing(f"{argv[0]}: {result.stderr.strip()[:200]}")
    if result.code < 0:
        raise SourceUnreadable(f"{argv[0]} was killed by signal {-result.code}")
    return result.stdout


def _about(place: VersionSource, text: str) -> str:
    """The lines of a text that are about this place."""
    if place.kind != _PYTHON:
        return text
    return "\n".join(line for line in text.splitlines() if fnmatchcase(line, _folders(place)))


def _folders(place: VersionSource) -> str:
    """The glob of a Python package's metadata folders."""
    return f"*-packages/{place.where}-*.dist-info"


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    if found is None:
        raise SourceUnreadable(f"version {version!r}: expected one that begins with a number, like 2.1.0")
    return tuple(int(number) for number in found[0].split("."))


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))
