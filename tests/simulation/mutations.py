"""Each old fault in a life that brings it about, and what finds it there: ``python -m tests.simulation --mutations``.

A life is small, and what befalls its fleet is only what the fault is about, so that it shows with any seed. The same
seed without the fault must violate nothing: else the finding says nothing of the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from tests.simulation.ailments import (
    BAD_DRIVER,
    BAD_IMAGE,
    BAD_SLOT,
    LOOSE,
    MOUNT_FLAPS,
    MOUNT_LOST,
    NO_EFA,
    OFF_THE_BUS,
    POWER,
    UNCONTAINED,
    WORN_OUT,
    Kind,
)
from tests.simulation.changes import CHANGES
from tests.simulation.fleet import Fleet, Report
from tests.simulation.law import DAY, Rates
from tests.simulation.managers import Kind as Manager

_STAY = ("person_s", "ordered_share")


def only(*kinds: Kind, **rates: float) -> Rates:
    """A law by which nothing happens but these kinds of faults, and what ``rates`` name."""
    none: dict[str, Any] = {
        each.name: 0.0 for each in fields(Rates) if isinstance(each.default, float) and each.name not in _STAY
    }
    return Rates(**{**none, **rates, "kinds": tuple((kind, 1) for kind in kinds)})


class Life(Struct, frozen=True, kw_only=True):
    """Of one fleet: how large it is, for how long it lives, and what befalls it."""

    rates: Rates
    nodes: int = 12
    hours: float = 36.0
    max_out: int = 5
    delegates: bool = False
    seed: int = 1
    manager: Manager | None = None

    def lived(self, change: str | None) -> Report:
        """What it comes to, with this old fault put back or with none."""
        fleet = Fleet(
            self.seed,
            nodes=self.nodes,
            rates=self.rates,
            max_out=self.max_out,
            delegates=self.delegates,
            manager=self.manager,
            change=CHANGES[change]() if change else None,
            goes_on=True,
        )
        return fleet.run(self.hours)


LIVES: Mapping[str, Life] = {
    "successor-forgets": Life(hours=48, rates=only(BAD_IMAGE, faults=300)),
    "needless-act-counts": Life(rates=only(OFF_THE_BUS, NO_EFA, faults=300, person_s=600)),
    "kill-failed-is-an-order": Life(rates=only(OFF_THE_BUS, UNCONTAINED, faults=300, kill_failed_share=1.0)),
    "slot-leaks": Life(hours=24, rates=only(OFF_THE_BUS, faults=200)),
    "foreign-fault-drives": Life(max_out=8, rates=only(OFF_THE_BUS, MOUNT_LOST, faults=800)),
    "resume-holds-forever": Life(hours=72, rates=only(WORN_OUT, MOUNT_LOST, faults=300, bulk_resume=0.2)),
    "flaps-without-end": Life(rates=only(MOUNT_FLAPS, faults=300)),
    "storm-goes-on": Life(nodes=24, hours=30, max_out=8, rates=only(BAD_DRIVER, faults=300, person_s=DAY)),
    "repairs-without-end": Life(
        nodes=8, hours=48, max_out=8, seed=2, rates=only(BAD_SLOT, faults=600, person_s=20 * DAY)
    ),
    "budget-from-memory": Life(hours=60, max_out=4, rates=only(UNCONTAINED, faults=1200, admin_drain=0.3)),
    "order-from-memory": Life(nodes=8, hours=48, delegates=True, rates=only(POWER, faults=300, ordered_share=0.95)),
    "request-stands": Life(
        hours=48, max_out=8, seed=13, delegates=True, rates=only(LOOSE, NO_EFA, faults=600, busy=0.1, person_s=600)
    ),
    "drains-what-is-replaced": Life(hours=12, manager="parallelcluster", rates=only(OFF_THE_BUS, faults=300)),
    "first-cause-stays": Life(hours=60, max_out=8, rates=only(MOUNT_LOST, faults=200, person_s=DAY)),
}
"""In which life each of :data:`CHANGES` is found."""


class Found(Struct, frozen=True, kw_only=True):
    """What became of one old fault. ``by``: the invariants that are about it and found it; ``without``: what the same
    life violates without it."""

    change: str
    by: tuple[str, ...]
    without: tuple[str, ...]
    cpu_s: float

    @property
    def is_proof(self) -> bool:
        """Whether it was found, and nothing else was."""
        return bool(self.by) and not self.without


def found(change: str, life: Life) -> Found:
    """Live a life twice: with the old fault, and without."""
    with_it, without = life.lived(change), life.lived(None)
    rules = {each.rule for each in with_it.violations}
    return Found(
        change=change,
        by=tuple(rule for rule in CHANGES[change]().found_by if rule in rules),
        without=tuple(str(each) for each in without.violations),
        cpu_s=with_it.cpu_s + without.cpu_s,
    )


def table(seeds: Iterable[int], say: Callable[[str], None]) -> bool:
    """Say of each old fault what found it; whether all were, and nothing without them. Seed 1 is the life's own, 2 the
    one after it."""
    say(f"{'old fault':25} {'found by':62} {'seed':>4} {'nodes':>5} {'hours':>5} {'CPU s':>6}")
    ok = True
    for seed, (change, first) in product(seeds, LIVES.items()):
        life = replace(first, seed=first.seed + seed - 1)
        each = found(change, life)
        ok = ok and each.is_proof
        by = ", ".join(each.by) or "NOT FOUND"
        say(f"{change:25} {by:62} {life.seed:4} {life.nodes:5} {life.hours:5g} {each.cpu_s:6.1f}")
        for violation in each.without:
            say(f"  violated without it: {violation}")
    return ok
