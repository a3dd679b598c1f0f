"""A storm of faults after which jobs cannot go on: the budget holds although their nodes are drained before the slot
has settled, and each run of a job is requeued once, by a node that is drained and in a slot.

The laws are those of ``invariants.py`` and ``gangs.py``, looked at with each drain and each requeue.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from healthd.remediation.decide.fleet import SETTLE_S
from tests.simulation.ailments import FIRMWARE, OFF_THE_BUS, UNCONTAINED, Kind
from tests.simulation.fleet import Fleet
from tests.simulation.law import Rates
from tests.simulation.mutations import only
from tests.support.sampling import examples

NODES, QUIET_S, HOURS = 24, 1800.0, 2.0
GANGS = (6, 4, 4, 2, 2)
"""Of the 24 nodes six are spare."""
KINDS = (OFF_THE_BUS, UNCONTAINED, FIRMWARE)
NOTHING = only(OFF_THE_BUS, person_s=600.0)
HOSTILE = only(
    OFF_THE_BUS,
    person_s=600.0,
    admin_drain=0.01,
    undo=0.02,
    hang=0.01,
    restart=0.02,
    no_answer=0.005,
    killed=0.005,
    disk_lost=0.02,
)


def storm(seed: int, gap_s: float, *, rates: Rates, max_out: int, kinds: tuple[Kind, ...] = KINDS) -> Fleet:
    """A fleet whose every second node has a fatal fault within ``gap_s``, and what it came to."""
    fleet = Fleet(
        seed,
        nodes=NODES,
        rates=rates,
        max_out=max_out,
        delegates=False,
        on_job="requeue after 0s",
        gangs=GANGS,
        goes_on=True,
    )
    random = Random(seed)  # noqa: S311 - a fleet, no secret
    for node in random.sample(list(fleet.nodes.values()), NODES // 2):
        in_s = QUIET_S + random.uniform(0.0, gap_s)
        fleet.timeline.after(in_s, lambda node=node: node.falls_ill(random.choice(kinds)))  # type: ignore[misc]
    report = fleet.run(HOURS)
    assert not report.violations, str(report.violations[0])
    return fleet


@settings(max_examples=examples(6), deadline=None)
@given(seed=st.integers(1, 500), gap_s=st.sampled_from([0.0, 5.0, 60.0, 900.0]), max_out=st.integers(1, 6))
def test_a_storm_of_requeues_keeps_to_the_budget(seed: int, gap_s: float, max_out: int) -> None:
    """As many jobs are requeued at once as nodes may be out, however many have lost theirs."""
    fleet = storm(seed, gap_s, rates=NOTHING, max_out=max_out)
    requeues = fleet.gangs.requeues
    assert requeues, "nothing happened in this fleet"
    for first in requeues:
        within = [each for each in requeues if first.s <= each.s <= first.s + SETTLE_S]
        assert len(within) <= max_out, within


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(1, 500), gap_s=st.sampled_from([0.0, 60.0, 900.0]), max_out=st.integers(1, 6))
def test_whatever_befalls_the_cluster_meanwhile(seed: int, gap_s: float, max_out: int) -> None:
    """slurmctld hangs, restarts and answers late, administrators drain and undrain, daemons are killed."""
    fleet = storm(seed, gap_s, rates=HOSTILE, max_out=max_out)
    runs = Counter((each.job, each.run) for each in fleet.gangs.requeues)
    assert max(runs.values(), default=1) == 1
