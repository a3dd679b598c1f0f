"""Plays one story of ``engine_rig`` once undisturbed, and then once per boundary with something happening there.

`make test-exhaustive` takes every boundary, `make test` a sample of them that holds every kind (``sampling``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.engine_rig import Ending, World
from tests.support.sampling import of_this_run

_ACTS = {
    f"{side} {call}" for side in ("before", "after") for call in ("quarantine", "release", "reset", "reboot", "replace")
}
Story = Callable[[Path], World]
WELL = Ending(in_service=True, holder="", ends=("released",), drains=1, releases=1)
ADMIN = "psu is being changed"


def happening(act: Callable[[World], object], world: World) -> Callable[[], None]:
    """``act`` as what happens at a boundary."""

    def happen() -> None:
        act(world)

    return happen


class Replay:
    """One story, and what it passes undisturbed."""

    def __init__(self, story: Story, folder: Path) -> None:
        self._story, self._folder, self._count = story, folder, 0
        self.plain = self.play().run_to_end()
        self.plain.close()
        self.passed = self.plain.wire.passed

    def play(self) -> World:
        self._count += 1
        return self._story(self._folder / str(self._count))

    def at_every_boundary(self, act: Callable[[World], object], *, half: bool = False) -> Iterator[tuple[int, World]]:
        """One world per boundary of this run in which ``act`` will happen there, not yet begun.

        After a call and before the next is one moment but for what lies between the engine's ports; ``half`` takes one
        of the two.
        """
        for number in self.boundaries(half=half):
            world = self.play()
            world.wire.at[number] = happening(act, world)
            yield number, world
            world.close()

    def boundaries(self, *, half: bool = False) -> list[int]:
        """The numbers of those that this run takes, another sample in each test. It holds the two sides of every call,
        and what lies before and after each call that acts."""
        every = range(0, len(self.passed), 2 if half else 1)
        test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
        return of_this_run().of({test: every}, kind=self._kind, least=0)[test]

    def _kind(self, number: int) -> str:
        """What was passed; and what comes next, where one of the two belongs to a call that acts."""
        here, following = self.passed[number], [*self.passed[number + 1 :], "the end"][0]
        return f"{here}, {following}" if not {here, following}.isdisjoint(_ACTS) else here

    def numbers(self, *labels: str) -> set[int]:
        return {number for number, label in enumerate(self.passed) if label in labels}

    def window(self, *acts: str) -> set[int]:
        """The documented window: from the answer of the last reading before an act to the act itself. Of it, the
        boundaries that this run takes."""
        found: set[int] = set()
        for number in self.numbers(*(f"before {act}" for act in acts)):
            assert self.passed[number - 2 : number] == ["before view", "after view"], "the last look precedes the act"
            found |= {number - 1, number}
        return found & set(self.boundaries())


def when(world: World, label: str, happen: Callable[[], None]) -> None:
    """Let something happen at every boundary of this name from now on, until ``world.wire.at`` is cleared."""

    def look() -> None:
        if world.wire.passed[-1] == label:
            happen()

    begin = len(world.wire.passed)
    world.wire.at = dict.fromkeys(range(begin, begin + 10_000), look)
