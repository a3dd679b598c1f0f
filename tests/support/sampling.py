"""Boundaries to interrupt a life at, the cases of a test, and other long lists: all, or a sample that holds every kind.

Each boundary costs a life that is lived to its end. `make test` takes a sample of them, another one in each run, and
prints its seed, once more where a test failed; `make test-exhaustive` takes them all. HEALTHD_TEST_SEED=SEED takes the
sample of that seed again.

A test or a file with the mark ``sampled(least)`` has some of its parametrized cases in `make test`; with ``kind``, a
function of a case's parameters, each kind is among them. A run that names tests (`-k`, `FILE::TEST`) takes what it
names. Tests below tests/unit have no such mark: the branches that they cover do not depend on chance.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from secrets import randbelow
from typing import TypeVar

import pytest
from msgspec import Struct

Boundary = TypeVar("Boundary")
Size = TypeVar("Size")

# tests/conftest.py takes the HEALTHD_ off, which is of healthd's own settings.
SEED, EXHAUSTIVE = "TEST_SEED", "TEST_EXHAUSTIVE"


class Sample(Struct, frozen=True, kw_only=True):
    """Which boundaries a run takes. ``seed``: an integer, or None for all of them."""

    seed: int | None

    def __str__(self) -> str:
        if self.seed is None:
            return "everything"
        return f"of seed {self.seed}; HEALTHD_TEST_SEED={self.seed} takes it again, make test-exhaustive everything"

    def of(
        self, boundaries: Mapping[str, Sequence[Boundary]], *, kind: Callable[[Boundary], str], least: int
    ) -> dict[str, list[Boundary]]:
        """Of the boundaries of each life, by its name, those to interrupt it at, in their order.

        In all lives together each kind is there at least once, and each life has at least ``least``, or all it has. A
        boundary's turn follows from the seed, its life and its text, whatever else that life passes this time. The
        text must be the same in each process of a run: no set, and no address of an object.
        """
        if self.seed is None:
            return {name: list(of_life) for name, of_life in boundaries.items()}
        pairs = [(name, number) for name, of_life in boundaries.items() for number in range(len(of_life))]
        pairs.sort(
            key=lambda pair: sha256(f"{self.seed} {pair[0]} {_text(boundaries[pair[0]][pair[1]])}".encode()).digest()
        )
        kinds: set[str] = set()
        taken: dict[str, set[int]] = {name: set() for name in boundaries}
        for name, number in pairs:
            this = kind(boundaries[name][number])
            if this not in kinds or len(taken[name]) < least:
                kinds.add(this)
                taken[name].add(number)
        return {name: [boundaries[name][number] for number in sorted(numbers)] for name, numbers in taken.items()}

    def some(self, name: str, every: Sequence[Boundary], least: int) -> list[Boundary]:
        """Of a list by this name whose members are of one kind, at least ``least``, or all it has."""
        return self.of({name: every}, kind=lambda _: name, least=least)[name]


def _text(boundary: object) -> str:
    text = str(boundary)
    if not isinstance(boundary, str) and re.search(r" at 0x[0-9a-f]+>|set\(", text):
        raise ValueError(f"another text in each process, and so another sample: {text[:200]}")
    return text


def of_this_run() -> Sample:
    """The sample that the environment asks for, and leaves to the processes of this run."""
    if os.environ.get(EXHAUSTIVE):
        return Sample(seed=None)
    seed = os.environ.setdefault(SEED, str(randbelow(10**6)))
    return Sample(seed=int(seed))


def examples(every: int) -> int:
    """Of a property that `make test-exhaustive` tries on so many examples, how many this run tries: a fifth in
    `make test`, where hypothesis draws others in each run."""
    return every if of_this_run().seed is None else max(1, every // 5)


def size(whole: Size, sampled: Size) -> Size:
    """How large a story is, or how long: ``whole`` in `make test-exhaustive`, ``sampled`` in `make test`."""
    return whole if of_this_run().seed is None else sampled


def left_out(items: Iterable[pytest.Item], sample: Sample) -> list[pytest.Item]:
    """The cases of tests with the mark ``sampled`` that the sample does not take."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [each for test, of_test in cases.items() for each in _left_out(test, of_test, sample)]


def _left_out(test: str, cases: Sequence[pytest.Item], sample: Sample) -> list[pytest.Item]:
    mark = cases[0].get_closest_marker("sampled")
    assert mark is not None
    (least,), kind = mark.args, mark.kwargs.get("kind")
    by_id = {item.nodeid: item for item in cases}

    def kind_of(nodeid: str) -> str:
        return str(kind(**by_id[nodeid].callspec.params)) if kind is not None else test  # type: ignore[attr-defined]

    taken = set(sample.of({test: list(by_id)}, kind=kind_of, least=least)[test])
    return [item for nodeid, item in by_id.items() if nodeid not in taken]
