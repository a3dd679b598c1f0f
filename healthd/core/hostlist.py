"""Lists of host names as Slurm prints and reads them: ``gpu-[001-003,007],login1``. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

_MOST = 100_000
"""Names in one list: more is no list of hosts."""
_MOST_BRACKETS = 8
"""In one name: more is text. Slurm itself has at most five dimensions (HIGHEST_DIMENSIONS)."""
_LISTS = r"(?:[^,\[]|\[[^\]]*\]?)+"
_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,18})(\D*)", re.ASCII)


def folded(names: Iterable[str]) -> str:
    """The names as one host list, each once. Names fold where they differ in their last number alone and that has as
    many digits, as in Slurm's own lists: zeros in front are part of a name."""
    groups: dict[tuple[str, int, str], list[int]] = {}
    plain: set[str] = set()
    for name in set(names):
        parts = _NUMBERED.fullmatch(name)
        if parts is None:
            plain.add(name)
        else:
            groups.setdefault((parts[1], len(parts[2]), parts[3]), []).append(int(parts[2]))
    lists = [*plain, *(_folded(*group, sorted(numbers)) for group, numbers in groups.items())]
    return ",".join(sorted(lists))


def _folded(head: str, digits: int, tail: str, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{head}{numbers[0]:0{digits}d}{tail}"
    return f"{head}[{','.join(ranges(numbers, digits))}]{tail}"


def ranges(numbers: Sequence[int], digits: int = 1) -> Iterator[str]:
    """The numbers, which are in order, as ``0-3`` and ``7``, with at least so many digits."""
    first = last = numbers[0]
    for number in [*numbers[1:], -1]:
        if number == last + 1:
            last = number
            continue
        yield f"{first:0{digits}d}" + (f"-{last:0{digits}d}" if last > first else "")
        first = last = number


def unfolded(hosts: str) -> Iterator[str]:
    """The names in a host list, in its order. Brackets may stand anywhere and several times. A name with more than
    eight of them is the text that it is, and so is a range whose ends are no numbers, or the wrong way round. A list of
    over 100,000 names ends there."""
    return itertools.islice(itertools.chain.from_iterable(map(_unfolded, re.findall(_LISTS, hosts))), _MOST)


def _unfolded(hosts: str) -> Iterator[str]:
    head, opened, rest = hosts.partition("[")
    ranges, closed, tail = rest.partition("]")
    if not (opened and closed) or tail.count("[") >= _MOST_BRACKETS:
        yield hosts
        return
    for ending in _unfolded(tail):
        for each in ranges.split(","):
            yield from (f"{head}{middle}{ending}" for middle in _in_range(each))


def _in_range(each: str) -> Iterator[str]:
    found = _RANGE.fullmatch(each)
    if found is None or not int(found[1]) <= int(found[2]) < int(found[1]) + _MOST:
        yield each
        return
    yield from (f"{number:0{len(found[1])}d}" for number in range(int(found[1]), int(found[2]) + 1))
