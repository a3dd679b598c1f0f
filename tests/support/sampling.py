"""Boundaries to interrupt a life at, and other long lists: all of one, or a sample that holds every kind of it.

Each boundary costs a life that is lived to its end. `make test` takes a sample of them, another one in each run, and
prints its seed, once more where a test failed; `make test-exhaustive` takes them all. HEALTHD_TEST_SEED=SEED takes the
sample of that seed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from secrets import randbelow
from typing import TypeVar

Boundary = TypeVar("Boundary")

# tests/conftest.py takes the HEALTHD_ off, which is of healthd's own settings.
SEED, EXHAUSTIVE = "TEST_SEED", "TEST_EXHAUSTIVE"


@dataclass(frozen=True, kw_only=True)
class Sample:
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
        boundary's turn follows from the seed, its life and its text, whatever else that life passes this time.
        """
        if self.seed is None:
            return {name: list(of_life) for name, of_life in boundaries.items()}
        pairs = [(name, number) for name, of_life in boundaries.items() for number in range(len(of_life))]
        pairs.sort(key=lambda pair: sha256(f"{self.seed} {pair[0]} {boundaries[pair[0]][pair[1]]}".encode()).digest())
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


def of_this_run() -> Sample:
    """The sample that the environment asks for, and leaves to the processes of this run."""
    if os.environ.get(EXHAUSTIVE):
        return Sample(seed=None)
    seed = os.environ.setdefault(SEED, str(randbelow(10**6)))
    return Sample(seed=int(seed))


def examples(every: int) -> int:
    """Of a property that `make test-exhaustive` tries on so many examples, how many this run tries: a third in
    `make test`, where hypothesis draws others in each run."""
    return every if of_this_run().seed is None else every // 3
