"""A fleet with production's judgement, engine, ledger, slots, notifier and controller, simulated for weeks.

The short form of ``make simulate``: a few seeds, and what makes the rest worth anything: that a seed decides all, and
that a violation says where and when. `make test` takes some of the lives of each test (tests/support/sampling.py),
`make test-exhaustive` all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from msgspec.structs import replace

from healthd.core.model import Remedy
from tests.simulation.ailments import LOOSE, OFF_THE_BUS
from tests.simulation.changes import CHANGES
from tests.simulation.fleet import Fleet, Report
from tests.simulation.invariants import Invariants
from tests.simulation.law import Rates
from tests.simulation.managers import KINDS, Kind
from tests.simulation.many import lives
from tests.simulation.mutations import LIVES, Life, found, only
from tests.support.running import ROOT
from tests.support.sampling import of_this_run

DAY_H = 24.0
SEEDS = (
    (1008, 37.0),
    (1021, 255.0),
    (1047, 196.0),
    (1060, 43.0),
    (1072, 168.5),
    (1079, 120.5),
    (2095, 145.0),
    (3015, 184.0),
    (5164, 184.5),
    (5205, 64.0),
    (5229, 5.0),
    (6087, 19.5),
    (6211, 82.5),
    (6216, 136.5),
    (8031, 247.6),
    (20060, 202.0),
    (20121, 176.0),
    (20274, 120.0),
    (20282, 30.0),
    (21248, 24.0),
    (30023, 43.0),
    (40064, 54.5),
    (41314, 336.0),
    (60037, 208.0),
    (71015, 32.0),
    (80255, 226.0),
    (110297, 220.0),
    (120426, 108.0),
    (180062, 166.0),
    (170262, 209.0),
    (80433, 317.0),
    (90023, 137.0),
    (90217, 164.0),
    (21036, 332.0),
)
"""Seeds that once broke an invariant, each with the hours until then, in fleets as large as the seed says."""
FLEETS_IN_A_SAMPLE, REGRESSIONS_IN_A_SAMPLE, CHANGES_IN_A_SAMPLE = 1, 2, 2
MANAGED_IN_A_SAMPLE = 2
LOOSE_ONLY = Life(hours=30, max_out=8, delegates=True, rates=only(LOOSE, faults=800, busy=0.1))
SLURMCTLD_KILLED = Life(hours=36, max_out=6, rates=only(OFF_THE_BUS, faults=600, slurmctld_killed=0.02, appends=True))
NAMED_IN_CALLS = {"bounded_in_a_day", "paged_every_day"}
"""Invariants that a function of another name holds beside its own."""
SMALL = (
    replace(LIVES["request-stands"], seed=2),
    LOOSE_ONLY,
    replace(LOOSE_ONLY, seed=2),
    SLURMCTLD_KILLED,
    replace(SLURMCTLD_KILLED, seed=3),
)
REGRESSIONS = (*SEEDS, *SMALL)
FLEETS = (
    {seed: (40, Rates()) for seed in range(1, 6)}
    | {seed: (30, Rates(away=0.5)) for seed in (13, 55)}
    | {seed: (30, Rates(slurmctld_clock=1.0, ignored=0.3)) for seed in (34,)}
)
"""By seeds, the size of a fleet and its law. In the last, slurmctld's clock steps, and platforms acknowledge acts that
they never carry out. In the two before it, two daemons a day stay away for hours or days; once, no other node reported
theirs."""


MANAGED = tuple((kind, seed) for kind in KINDS for seed in (1, 2))
SAMPLE = of_this_run()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SAMPLE.some("fleets", tuple(FLEETS), FLEETS_IN_A_SAMPLE))
def test_no_fleet_breaks_an_invariant_in_ten_days(seed: int) -> None:
    """Whatever befalls a fleet, no invariant is violated: a node whose daemon stays away pages by others, and no node
    whose daemon is there."""
    nodes, rates = FLEETS[seed]
    report = Fleet(seed, nodes=nodes, rates=rates).run(10 * DAY_H)
    assert not report.violations, str(report.violations[0])
    assert report.drains, "nothing happened in this fleet"


@pytest.mark.slow
@pytest.mark.parametrize("number", SAMPLE.some("regressions", range(len(REGRESSIONS)), REGRESSIONS_IN_A_SAMPLE))
def test_what_once_broke_an_invariant_breaks_none(number: int) -> None:
    """The rules behind them: news.py, paging.py, brakes.py, the engine between an order and a turn. In small lives, a
    request that waited outlived its fault (repairs.py), an operator's release counted as a fifth return, and a killed
    slurmctld that forgot a release or its own remark kept a good node out."""
    life = REGRESSIONS[number]
    report = life.lived(None) if isinstance(life, Life) else Fleet(life[0]).run(life[1])
    assert not report.violations, str(report.violations[0])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), SAMPLE.some("managed", MANAGED, MANAGED_IN_A_SAMPLE))
def test_no_fleet_under_a_node_manager_breaks_an_invariant(kind: Kind, seed: int) -> None:
    """ParallelCluster, PCS and HyperPod by Slurm's reasons, with production's provisioners: what is drained there loses
    its machine, at its manager's own time."""
    report = Fleet(seed, nodes=30, manager=kind, rates=Rates(faults=60)).run(5 * DAY_H)
    assert not report.violations, str(report.violations[0])
    assert report.acts[Remedy.REBOOT_NODE], "nothing was repaired in this fleet"


def test_a_process_that_ends_without_a_report_names_its_seed_and_ends_no_other() -> None:
    """Two workers share three seeds; the process of one is killed. The reports come in the order of the seeds."""
    reports = list(lives(_lives_unless_killed, range(1, 4), 2))
    assert [(seed, report is not None) for seed, report in reports] == [(1, True), (2, False), (3, True)]


def _lives_unless_killed(seed: int) -> Report:
    if seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return Fleet(seed, nodes=2).run(1.0)


def test_a_seed_decides_everything() -> None:
    """Two fleets of one seed live the same life, to the last message."""
    first, second = (Fleet(7, nodes=20, goes_on=True) for _ in range(2))
    first.run(3 * DAY_H)
    second.run(3 * DAY_H)
    assert first.watch.trails == second.watch.trails
    assert first.watch.trails


def test_a_violation_says_the_time_the_node_and_its_trail() -> None:
    """Whoever reads it sees what happened to the node before, and need not run it again."""
    fleet = Fleet(3, nodes=20)
    fleet.timeline.at(7200.0, lambda: fleet.watch.note("n2", "is struck by lightning"))
    fleet.timeline.at(9000.0, lambda: fleet.watch.fail("an_example", "n2", "the sky is dark"))
    violation = fleet.run(5.0).violations[0]
    assert violation.rule == "an_example"
    assert "at day 0 02:30:00 on n2: the sky is dark" in str(violation)
    assert "day 0 02:00:00 is struck by lightning" in str(violation)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE.some("changes", tuple(CHANGES), CHANGES_IN_A_SAMPLE))
def test_an_old_fault_that_is_put_back_is_found(name: str) -> None:
    """An invariant that is about an old fault finds it; the same seed without the fault violates nothing."""
    result = found(name, LIVES[name])
    assert result.by, f"none of {CHANGES[name]().found_by} was violated"
    assert not result.without, result.without[0]


def test_each_old_fault_names_an_invariant_that_exists() -> None:
    """No switch waits for an invariant that nobody wrote."""
    assert {rule for change in CHANGES.values() for rule in change().found_by} <= set(vars(Invariants)) | NAMED_IN_CALLS


def test_the_command_lives_its_seeds_in_processes_of_their_own() -> None:
    """``python -m tests.simulation --workers 2``: no seed is lost, and the figures are of all."""
    argv = [sys.executable, "-m", "tests.simulation", "--seeds", "2", "--nodes", "2", "--hours", "1", "--workers", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "seeds 2, " in done.stdout
