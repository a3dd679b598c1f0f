"""A command that runs the checks itself runs all at once; the daemon runs as many as it is configured to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from healthd.agent.agent import Agent, reading_agent
from healthd.config.load import load
from healthd.core.check import Check, discover, ok
from healthd.core.model import Outcome, Result, Status
from healthd.core.node import Node
from healthd.observe.checkup import Checkup
from healthd.sim.machine import SimulatedMachine
from tests.support.limits import limit_s

NAMES = ["host.cpu", "host.memory", "host.reach", "stack.versions", "storage.xfs"]


class InOrder(Checkup):
    """Notes the order in which the runs begin."""

    def start(self, name: str) -> Future[Outcome]:
        self.begun = [*getattr(self, "begun", []), name]
        return super().start(name)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    settings = {name: check.settings for name, check in discover().items()}
    made = reading_agent(load(SimulatedMachine(tmp_path / "machine").config, checks=settings, environ={}).config)
    yield made
    made.close()


def with_run(check: Check, run: Any) -> Check:
    return structs.replace(check, run=run, limits=())


def test_no_check_of_a_command_waits_for_another(agent: Agent) -> None:
    """Each waits until every other one has begun: with fewer at once than there are checks, none would be ok."""
    names = [name for name, check in agent.checkup.checks.items() if check.on == "interval"]
    all_begun = threading.Barrier(len(names))

    def run(_node: Node, _settings: Any) -> Result:
        all_begun.wait(limit_s(20.0))
        return ok()

    agent.checkup.checks = {name: with_run(check, run) for name, check in agent.checkup.checks.items()}
    report = agent.checkup.report(names, deadline_s=limit_s(30.0))
    assert {view.outcome.result.status for view in report.checks} == {Status.OK}


def in_order(agent: Agent, workers: int) -> InOrder:
    """Five checks, three of which may take long, that are ok at once."""
    return InOrder(
        checks={name: with_run(agent.checkup.checks[name], lambda _node, _settings: ok()) for name in NAMES},
        settings=agent.config.checks,
        machine=agent.machine,
        monitor=agent.monitor,
        source="local",
        workers=workers,
    )


@pytest.mark.parametrize("workers", [3, 8])
def test_the_longest_begins_first_only_where_none_waits_for_it(agent: Agent, workers: int) -> None:
    """Where all run at once, those with the longest deadlines begin first. Where fewer do, they would keep the others
    from their turn, and the order is that of the names."""
    checkup = in_order(agent, workers)
    checkup.report(NAMES, deadline_s=limit_s(30.0))
    checkup.close()
    timeouts = [checkup.timeout_s(name) for name in checkup.begun]
    assert sorted(checkup.begun) == NAMES
    assert (timeouts == sorted(timeouts, reverse=True), checkup.begun == NAMES) == (workers == 8, workers == 3)


def give_threads(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the system give so many threads from now on, as a container with a limit of processes does."""
    left, start = [None] * count, threading.Thread.start

    def start_while_any_are_left(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_while_any_are_left)


@pytest.mark.parametrize("threads", [1, 2])
def test_few_threads_run_all_checks(agent: Agent, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Those that the system gives take up one run after the other."""
    checkup = in_order(agent, len(NAMES))
    give_threads(threads, monkeypatch)
    report = checkup.report(NAMES, deadline_s=limit_s(30.0))
    checkup.close()
    assert [view.outcome.result.status for view in report.checks] == [Status.OK] * len(NAMES)


def test_without_a_thread_the_caller_gets_the_error(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing that could run a check later."""
    checkup = in_order(agent, len(NAMES))
    give_threads(0, monkeypatch)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        checkup.report(NAMES, deadline_s=limit_s(30.0))
    checkup.close()


def test_a_command_reads_a_kernel_log_that_holds_no_record(tmp_path: Path) -> None:
    """Its kernel checks are ok."""
    machine = SimulatedMachine(tmp_path / "machine")
    machine.kmsg.write_text("")
    settings = {name: check.settings for name, check in discover().items()}
    made = reading_agent(load(machine.config, checks=settings, environ={}).config)
    try:
        assert (
            made.checkup.report(["kernel.xid"], deadline_s=limit_s(30.0)).checks[0].outcome.result.status is Status.OK
        )
    finally:
        made.close()
