"""Scenarios of different nodes, played at the same time on one cluster: most of a repair is waiting.

A scenario is a function of a lab and a platform, and its docstring says what it shows. Those that the run has collected
are started together; a test then waits for its own, and fails with what failed in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import Struct

from tests.live.aws.aws_forks import AwsForks
from tests.live.platforms.platform_lab import Platform, PlatformLab

LANES = 6
"""How many are played at once. On two cores more would only make each slower than its own waits allow for."""

ENDS_WITHIN_S = 3600.0


class Scenario(Struct, frozen=True, kw_only=True):
    """One branch on one row of the table."""

    play: Callable[[PlatformLab, Platform], None]
    platform: Platform

    def __str__(self) -> str:
        return f"{self.play.__name__} on {self.platform}"


Results = Callable[[Scenario], None]
"""Waits for a scenario's end, and raises what failed in it."""


@contextmanager
def played(scenarios: Sequence[Scenario], lab: PlatformLab, *, lanes: int = LANES) -> Iterator[Results]:
    """Play them all on ``lab``. Leaving the block waits for those that run, and starts no more."""
    with ThreadPoolExecutor(max_workers=lanes) as pool:
        futures: dict[str, Future[None]] = {
            str(scenario): pool.submit(scenario.play, lab, scenario.platform) for scenario in scenarios
        }
        try:
            yield lambda scenario: futures[str(scenario)].result(ENDS_WITHIN_S)
        finally:
            pool.shutdown(cancel_futures=True)


def collected(request: pytest.FixtureRequest) -> list[Scenario]:
    """The scenarios of the tests of this module that this run has collected."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    mine = [item.callspec.params for item in items if item.path == request.path and hasattr(item, "callspec")]
    return [each for params in mine for each in params.values() if isinstance(each, Scenario)]


def lab_for(folder: Path, moto: tuple[str, int], forks: AwsForks, scenarios: Sequence[Scenario]) -> PlatformLab:
    """A cluster with a node for each, and one more for whoever needs two."""
    return PlatformLab(folder, moto, forks, nodes=len(scenarios) + 1)
