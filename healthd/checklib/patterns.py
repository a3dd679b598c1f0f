"""Regular expressions that a site writes: refused where matching one could stall the daemon.

Python's matcher backtracks and cannot be given a deadline, and a kernel line may hold words that a user chose. So a
pattern is matched from the start of a record's words, over :data:`SUBJECT_CHARS` characters at most, and is refused
beforehand if some line of that length could cost more than :data:`MAX_STEPS` steps (a few milliseconds): repeats inside
repeats, back-references, and more than two repeats of any length that each can give way to the next; the items behind
them count each time that they are tried. A pattern must also hold some fixed text, by which the reader of the log skips
other records without trying it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile
from re import _constants as op  # type: ignore[attr-defined]  # the parser of the standard library, which has no public name
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from msgspec import Struct

SUBJECT_CHARS = 512
"""How much of a record is matched."""

MAX_STEPS = 2_500_000
"""The most steps that a pattern may need on the worst line, each character that a repeat passes over counted: 10 ms.
Two repeats of any length need half a million."""

MIN_FIXED_CHARS = 4
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT)
_SINGLE = (op.LITERAL, op.NOT_LITERAL, op.IN, op.ANY)
_Item = tuple[Any, Any]


class SafePattern(Struct, frozen=True, kw_only=True):
    """A pattern that cannot stall. ``needle``: a text that every match holds, or with ``^`` in front begins with."""

    regex: re.Pattern[str]
    needle: str

    @property
    def groups(self) -> frozenset[str]:
        """The names of its groups."""
        return frozenset(self.regex.groupindex)

    def match(self, text: str, at: int) -> Mapping[str, str | None] | None:
        """The named groups where the pattern matches the text from ``at`` on, else None."""
        begins, needle = self.needle.startswith("^"), self.needle.lstrip("^")
        if not (text.startswith(needle, at) if begins else needle in text):
            return None
        found = self.regex.match(text, at, at + SUBJECT_CHARS)
        return found.groupdict() if found else None


@cache
def safe_pattern(expression: str) -> SafePattern:
    """The pattern. Raises ValueError with the mistake and a better form."""
    try:
        tree = parser.parse(expression)
        regex = re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}; a literal bracket or dot needs a backslash") from error
    if tree.state.flags & re.IGNORECASE:
        raise ValueError("(?i) leaves no fixed text to look for first; write both cases where they occur: [Ee]rror")
    items = list(_flat(tree))
    if (steps := _steps(items, (), 1.0)) > MAX_STEPS:
        raise ValueError(
            f"some line of {SUBJECT_CHARS} characters would take {steps:.0e} steps to try, more than {MAX_STEPS:.0e};"
            " use fewer .* and \\S*, or repeats that the next character ends, such as [^:]*: or \\d+ "
        )
    return SafePattern(regex=regex, needle=_needle(items))


# ---------------------------------------------------------------------------------------------------------------------


def _flat(items: Any) -> Iterator[_Item]:
    """The items in their order, with groups that must be there opened up."""
    for code, argument in items:
        if code is op.SUBPATTERN and not argument[1] & re.IGNORECASE:
            yield from _flat(argument[3])
        else:
            yield code, argument


def _steps(items: Sequence[_Item], follow: Sequence[_Item], after: float) -> float:
    """The most steps to try the items and then what follows them, which takes ``after`` steps each time."""
    steps, follow = after, list(follow)
    for item in reversed(items):
        steps = _item_steps(item, follow, steps)
        follow.insert(0, item)
    return steps


def _item_steps(item: _Item, follow: Sequence[_Item], after: float) -> float:
    code, argument = item
    if code in _REPEATS:
        return _repeat_steps(argument, follow, after)
    if code is op.BRANCH:
        return sum(_steps(list(_flat(way)), follow, after) for way in argument[1])
    if code in (op.ASSERT, op.ASSERT_NOT):
        return _steps(list(_flat(argument[1])), (), 1.0) + after  # after a match it is not tried again
    if code is op.SUBPATTERN:
        return _steps(list(_flat(argument[3])), follow, after)
    if code in (*_SINGLE, op.AT):
        return 1.0 + after
    raise ValueError(
        f"{str(code).lower()} is not allowed in a rule: no line may take long to try; write the pattern without it"
    )


def _repeat_steps(argument: Any, follow: Sequence[_Item], after: float) -> float:
    least, most, body = argument
    inner = list(_flat(body))
    if len(inner) == 1 and inner[0][0] in _SINGLE:
        scan = float(min(int(most), SUBJECT_CHARS))
        if not follow or (follow[0][0] is op.LITERAL and not _can_be(inner[0], follow[0][1])):
            return 2 * scan + after  # nothing to give way to, or the next character ends it: there and back
        ends = scan - min(int(least), SUBJECT_CHARS) + 1
        return 2 * scan + -(-ends // _apart(follow)) * after
    if most == 1:
        return after + _steps(inner, follow, after)
    raise ValueError(
        "a group that repeats, such as (ab)+ or (a|b)*, could take for ever; repeat single characters only"
    )


def _apart(items: Sequence[_Item]) -> int:
    """How far apart the fixed text that begins the items must stand on a line: ``abcabd`` at every sixth character."""
    text = [argument for code, argument in takewhile(lambda item: item[0] is op.LITERAL, items)]
    return next((step for step in range(1, len(text)) if text[step:] == text[:-step]), len(text) or 1)


def _can_be(item: _Item, character: int) -> bool:
    """Whether a single-character item can match this character. When in doubt, yes."""
    code, argument = item
    if code is op.LITERAL:
        return bool(argument == character)
    if code is op.NOT_LITERAL:
        return bool(argument != character)
    if code is not op.IN:
        return True
    negated = bool(argument) and argument[0][0] is op.NEGATE
    return any(_class_has(part, character) for part in argument) is not negated


def _class_has(part: _Item, character: int) -> bool:
    code, argument = part
    if code is op.LITERAL:
        return bool(argument == character)
    if code is op.RANGE:
        return bool(argument[0] <= character <= argument[1])
    if code is op.CATEGORY:
        name = {op.CATEGORY_DIGIT: r"\d", op.CATEGORY_NOT_DIGIT: r"\D", op.CATEGORY_SPACE: r"\s"}
        name |= {op.CATEGORY_NOT_SPACE: r"\S", op.CATEGORY_WORD: r"\w", op.CATEGORY_NOT_WORD: r"\W"}
        return argument not in name or re.match(name[argument], chr(character)) is not None
    return False


def _needle(items: Sequence[_Item]) -> str:
    """The text that begins every match, or else the longest that is in every match. Raises ValueError for none."""
    runs = [""]
    for code, argument in items:
        plain = code is op.LITERAL and 32 <= argument < 127 and argument != ord("\\")
        runs = [*runs[:-1], runs[-1] + chr(argument)] if plain else [*runs, ""]
    if len(runs[0]) >= MIN_FIXED_CHARS:
        return f"^{runs[0]}"
    longest = max(runs, key=len).lstrip("^")
    if len(longest) < MIN_FIXED_CHARS:
        raise ValueError(
            f"no {MIN_FIXED_CHARS} fixed characters in a row that every such line holds: every record of the kernel"
            " would have to be tried; spell out some words of the line"
        )
    return longest
