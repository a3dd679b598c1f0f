"""The checks that are due run one by one, and one that hangs delays the others until the next call only."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from healthd.agent.agent import reading_agent
from healthd.config.load import load
from healthd.core.check import Check, discover, ok, unknown
from healthd.core.model import Result
from healthd.core.node import Node
from healthd.observe.checkup import Checkup
from healthd.sim.machine import SimulatedMachine
from tests.support.limits import limit_s

NAMES = ("host.clock", "host.cpu", "host.memory")
RARE = "storage.xfs"  # once an hour


class Runs:
    """What the checks do here: each notes its thread and tells what it is to; the first hangs where it is to."""

    def __init__(self) -> None:
        self.of: list[tuple[str, str]] = []
        self.result = ok()
        self.go_on = threading.Event()
        self.go_on.set()

    def check(self, name: str) -> Check:
        def run(_node: Node, _settings: Any) -> Result:
            self.of.append((name, threading.current_thread().name))
            if name == NAMES[0]:
                self.go_on.wait(30.0)
            return self.result

        return structs.replace(discover()[name], run=run)

    def reach(self, *names: str) -> bool:
        until = time.monotonic() + limit_s(10.0)
        while [name for name, _ in self.of] != list(names) and time.monotonic() < until:
            time.sleep(0.01)
        return [name for name, _ in self.of] == list(names)


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def checkup(tmp_path: Path, runs: Runs) -> Iterator[Checkup]:
    settings = {name: check.settings for name, check in discover().items()}
    agent = reading_agent(load(SimulatedMachine(tmp_path / "machine").config, checks=settings, environ={}).config)
    made = Checkup(
        checks={name: runs.check(name) for name in (*NAMES, RARE)},
        settings=agent.config.checks,
        machine=agent.machine,
        monitor=agent.monitor,
        source="daemon",
        workers=4,
    )
    yield made
    runs.go_on.set()
    made.close()
    agent.close()


def test_those_due_run_one_after_the_other_in_one_thread(checkup: Checkup, runs: Runs) -> None:
    """In the order in which they became due, each once."""
    for name in (*NAMES, NAMES[0]):
        checkup.is_due(name)
    checkup.run_due()
    assert runs.reach(*NAMES)
    assert len({thread for _, thread in runs.of}) == 1


def test_one_that_hangs_delays_the_others_until_the_next_call(checkup: Checkup, runs: Runs) -> None:
    """Another thread takes them up; the one that hangs is not begun a second time, and its run can be waited for."""
    runs.go_on.clear()
    for name in NAMES:
        checkup.is_due(name)
    checkup.run_due()
    assert runs.reach(NAMES[0])
    checkup.run_due()
    assert runs.reach(*NAMES)
    for name in (NAMES[0], RARE):
        checkup.is_due(name)
    checkup.run_due()
    assert runs.reach(*NAMES, RARE)
    joined = checkup.start(NAMES[0])
    assert not joined.done()
    runs.go_on.set()
    assert joined.result(timeout=limit_s(10)).check == NAMES[0]
    assert runs.reach(*NAMES, RARE)


def test_one_that_is_due_alone_waits_for_no_other(checkup: Checkup, runs: Runs) -> None:
    """A thread has it at once, also while another check hangs."""
    runs.go_on.clear()
    checkup.is_due(NAMES[0])
    checkup.run_due()
    assert runs.reach(NAMES[0])
    checkup.is_due(NAMES[1])
    checkup.run_due()
    assert runs.reach(NAMES[0], NAMES[1])


def after(checkup: Checkup, age: timedelta) -> bool:
    """Whether the rare check is due so long after an outcome."""
    outcome = checkup.start(RARE).result(timeout=limit_s(10))
    checkup.monitor.absorb(structs.replace(outcome, at=datetime.now(UTC) - age))
    return checkup.is_due(RARE)


def test_a_rare_check_is_asked_in_vain_until_its_interval_is_over(checkup: Checkup) -> None:
    """It looks once an hour, up to half of a part sooner or later; before its first look it is due at once."""
    assert checkup.asked_every_s(RARE) == 300.0
    assert checkup.is_due(RARE)
    assert [after(checkup, timedelta(minutes=minutes)) for minutes in (0, 5, 55, 58, 70)] == [
        *(False, False, False),
        *(True, True),
    ]


def test_what_could_not_be_told_is_asked_again_soon(checkup: Checkup, runs: Runs) -> None:
    """An unknown outcome of a rare check lasts for minutes, not for its interval."""
    runs.result = unknown("the GPU was being reset")
    assert after(checkup, timedelta(minutes=5))


def test_after_the_clock_was_set_back_a_rare_check_is_due(checkup: Checkup) -> None:
    """An outcome from the future may be of any age."""
    assert after(checkup, timedelta(minutes=-30))


def test_a_check_that_is_not_rare_is_due_whenever_its_time_comes(checkup: Checkup) -> None:
    """Its interval is the schedule's."""
    checkup.start(NAMES[1]).result(timeout=limit_s(10))
    assert checkup.asked_every_s(NAMES[1]) == checkup.interval_s(NAMES[1])
    assert checkup.is_due(NAMES[1])


def test_a_clock_that_was_set_makes_every_check_due(checkup: Checkup, runs: Runs) -> None:
    """What a rare check has told in this interval, too."""
    for name in (*NAMES, RARE):
        checkup.start(name).result(timeout=limit_s(10))
    checkup.all_are_due()
    checkup.run_due()
    assert runs.reach(*NAMES, RARE, *NAMES, RARE)
