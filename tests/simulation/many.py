"""Many fleets, side by side: each in a process of its own, so that none grows by those before it.

A process that is spawned finds nothing of a module that runs as ``__main__``: what it is to do stands here.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tests.simulation.changes import CHANGES
from tests.simulation.fleet import Fleet, Report
from tests.simulation.managers import Kind


def lives(live: Callable[[int], Report], seeds: Iterable[int], workers: int) -> Iterator[tuple[int, Report | None]]:
    """Each seed, in their order, and what its fleet came to; None where its process ended without saying. Whoever stops
    asking waits for those that live, and for no other."""
    if workers == 1:
        yield from ((seed, live(seed)) for seed in seeds)
        return
    with ThreadPoolExecutor(max_workers=workers) as pool:
        living = [(seed, pool.submit(apart, live, seed)) for seed in seeds]
        try:
            yield from ((seed, report.result()) for seed, report in living)
        finally:
            pool.shutdown(cancel_futures=True)


def apart(live: Callable[[int], Report], seed: int) -> Report | None:
    """What one fleet came to in a process of its own; None where that ended abruptly."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(live, seed).result()
        except BrokenProcessPool:
            return None


def lived(
    seed: int, *, hours: float, nodes: int | None, goes_on: bool, change: str | None, manager: Kind | None
) -> Report:
    """What one fleet came to."""
    made = CHANGES[change]() if change else None
    return Fleet(seed, nodes=nodes, goes_on=goes_on, change=made, manager=manager).run(hours)
