"""Changes to real inputs, as a fuzzer makes them. Pure: the chance is an argument."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

LONGEST = 4096
"""Bytes of one input: as long as most of what is read at once, and short enough for many inputs a second."""

_NUMBERS = (0, -1, 1 << 31, 1 << 63, 1 << 64, 10**30, 3.5, 1e308)
_WORDS = (
    *(b"\\x0a", b"\\x1b[31m", b"\x00", b"\n", b"\r", b"\xff\xfe", "\u202e".encode(), b"\xe2\x80\xa8", b'"', b"'", b"|"),
    *(b"<script>", b"%s%n", b"$(id)", b";", b",", b"=", b" - ", b"\\040", b"{", b"}", b"[", b"]", b"(", b")" * 9),
    *(b"9" * 25, b"-1", b"1e309", b"NaN", b"0x" + b"f" * 20, b"true", b"null", b"\xed\xa0\x80", b"\xf0\x9f\x92\xa9"),
    *(b"NVRM: Xid (PCI:0000:53:00): 79, ", b"pid=1, name=", b"LBUG", b"Lustre: ", b"Comment=", b"Reason=", b"State="),
    *(b"NodeName=", b"Partitions=", b" Extra=", b"Oct 11 22:14:15 host kernel: ", b"2026-13-45T99:99:99"),
    *(b"[99999999999.999999]", b"<9999>", "\u0663".encode(), "\u00b2".encode()),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 70, 1.5, float("inf"), "", "x", "9" * 30, "\x00", "\u202e\ud800", [], {}, [[]]),
    *({"a": 1}, ["x"], "2026-13-45T99:99:99Z", "healthd case=ab"),
)


def mutated(random: Random, seeds: Sequence[bytes], longest: int = LONGEST) -> bytes:
    """One of the seeds with one to nine changes, cut at ``longest`` bytes."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.choice((1, 1, 2, 3, 5, 9))):
        random.choice(_CHANGES)(random, data, seeds)
    return bytes(data[:longest])


def mutated_json(random: Random, seeds: Sequence[bytes], longest: int = LONGEST) -> bytes:
    """One of the seeds, which are JSON, with values and keys exchanged, so that it stays JSON; or changed as text."""
    if random.random() < _AS_TEXT:
        return mutated(random, seeds, longest)
    try:
        tree = {"": json.loads(random.choice(seeds))}
    except (ValueError, RecursionError):  # one that was kept because it is none
        return mutated(random, seeds, longest)
    for _ in range(random.choice((1, 1, 2, 4))):
        _change_tree(random, tree)
    return json.dumps(tree.get("")).encode()


# ---------------------------------------------------------------------------------------------------------------------

_AS_TEXT = 0.3
_DEEPEST = 12


def _change_tree(random: Random, tree: Any) -> None:
    """Exchange, drop or add one value, somewhere in there."""
    for _ in range(_DEEPEST):
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            break
        key = random.choice(keys)
        if isinstance(tree[key], dict | list) and random.random() < 0.8:
            tree = tree[key]
            continue
        match random.randrange(4):
            case 0:
                del tree[key]
            case 1 if isinstance(tree, dict):
                tree[random.choice(("", "name", "x" * 99, str(key) * 2))] = tree[key]
            case _:
                tree[key] = deepcopy(random.choice(_VALUES))
        return
    if isinstance(tree, dict):
        tree["x"] = deepcopy(random.choice(_VALUES))
    else:
        tree.append(deepcopy(random.choice(_VALUES)))


def _insert_byte(random: Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    data.insert(random.randrange(len(data) + 1), random.randrange(256))


def _set_byte(random: Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] = random.randrange(256)


def _cut_out(random: Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    del data[at : at + random.randrange(1, 16)]


def _cut_off(random: Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    del data[random.randrange(len(data) + 1) :]


def _insert_word(random: Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.choice(_WORDS)


def _insert_number(random: Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = str(random.choice(_NUMBERS)).encode()


def _repeat(random: Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = data[at : at + random.randrange(1, 40)] * random.choice((2, 8, 40))


def _insert_other(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at, other = random.randrange(len(data) + 1), random.choice(seeds)
    start = random.randrange(len(other) + 1)
    data[at:at] = other[start : start + random.randrange(1, 80)]


def _end_as_other(random: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = random.choice(seeds)
    data[random.randrange(len(data) + 1) :] = other[random.randrange(len(other) + 1) :]


_CHANGES: tuple[Callable[[Random, bytearray, Sequence[bytes]], None], ...] = (
    *(_insert_byte, _set_byte, _cut_out, _cut_off, _insert_word, _insert_number, _repeat, _insert_other),
    _end_as_other,
)
