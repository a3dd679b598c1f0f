"""A real daemon, with its real scheduler, whose wall clock is set while it runs: back, forward, and by years.

The clock is the process's own (``tests/clock_sim``), and the daemon knows nothing of that.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healthd.notify.notifier import NEWS
from healthd.state.store import Store
from tests.support.compiled import CLOCK_SIM, compiled
from tests.support.limits import limit_s
from tests.support.ports import free_ports
from tests.support.running import RunningNode
from tests.support.wall_clock import WallClock

pytestmark = [pytest.mark.process, pytest.mark.slow]

HOUR_S = 3600
YEARS_S = 50 * 365 * 86_400
AT_ONCE_S, SHORTEST_INTERVAL_S = 20.0, 10.0
RUNS, AGE, TOLD = "healthd_check_run_seconds_count", "healthd_check_last_run_seconds", "healthd_last_success_seconds"


class ClockedNode(RunningNode):
    """A node whose wall clock can be set."""

    def __init__(self, folder: Path, library: Path, set_by_s: int) -> None:
        folder.mkdir()
        self._clock = WallClock(library, folder / "clock")
        self.set_clock(set_by_s)
        self._port = free_ports(1)[0]
        super().__init__(
            folder / "node",
            "n1",
            sections='[orchestrator]\nkind = "local"\n',
            environ=self._clock.environ,
            http=f"127.0.0.1:{self._port}",
        )

    def set_clock(self, by_s: int) -> None:
        """Let its wall clock be off by so many seconds from now on."""
        self._clock.is_off_by(by_s)

    def metric(self, name: str) -> dict[str, float]:
        """The samples of a metric by check."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=limit_s(10)) as answer:
            lines = answer.read().decode().splitlines()
        begin = f'{name}{{check="'
        samples = [line.removeprefix(begin).split('"} ') for line in lines if line.startswith(begin)]
        return {check: float(value) for check, value in samples}

    def has_looked(self, before: dict[str, float]) -> bool:
        """Whether every check has run since."""
        return all(count > before[name] for name, count in self.metric(RUNS).items() if name in before)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The clock."""
    return compiled(CLOCK_SIM, tmp_path_factory.mktemp("clock_sim") / "clock_sim.so")


@pytest.fixture
def make(tmp_path: Path, library: Path) -> Iterator[Callable[[int], ClockedNode]]:
    """A daemon whose clock is off by so many seconds, and whose interval checks have all looked once."""
    made: list[ClockedNode] = []

    def one(set_by_s: int) -> ClockedNode:
        node = ClockedNode(tmp_path / "clocked", library, set_by_s)
        made.append(node)
        node.start()
        node.wait(lambda: node.has_looked(dict.fromkeys(interval_checks(node), 0.0)), 60.0, "every check to look once")
        return node

    yield one
    for each in made:
        each.kill()


def noted(node: ClockedNode) -> str:
    """What the notifier has written down."""
    with closing(Store(node.state_dir / "healthd.db", now=datetime.now(UTC))) as store:
        return store.fact(NEWS)


def interval_checks(node: ClockedNode) -> list[str]:
    """Those that are due by the clock: an active check runs on order, a kernel check with the log."""
    return [name for name in node.metric(TOLD) if not name.startswith("kernel.")]


@pytest.mark.parametrize(
    ("began", "ended", "message"),
    [
        (0, -HOUR_S, "the clock was set back by 3600 s"),
        (0, HOUR_S, "the clock was set forward by 3600 s"),
        (-YEARS_S, 0, f"the clock was set forward by {YEARS_S} s"),
    ],
)
def test_when_the_clock_is_set_every_check_looks_anew(
    make: Callable[[int], ClockedNode], began: int, ended: int, message: str
) -> None:
    """Within seconds, and once: nothing waits for an hour, nothing is caught up a million times, no age is an hour or
    negative, and the trail says why."""
    node = make(began)
    checks = interval_checks(node)
    before = {name: count for name, count in node.metric(RUNS).items() if name in checks}
    began_s = time.monotonic()
    node.set_clock(ended)
    node.wait(lambda: node.has_looked(before), AT_ONCE_S, f"every check to look after {message}")
    runs = max(node.metric(RUNS)[name] - before[name] for name in checks)
    assert runs <= 3 + (time.monotonic() - began_s) / SHORTEST_INTERVAL_S
    assert f"daemon: {message}: every check runs again" in node.log_text()
    ages = [*(node.metric(AGE)[name] for name in checks), *node.metric(TOLD).values()]
    assert min(ages) >= 0.0
    assert max(ages) < HOUR_S / 2


def test_an_answer_from_the_future_is_not_repeated(make: Callable[[int], ClockedNode]) -> None:
    """Asked right after an hour back, before the daemon has noticed: what is asked about is looked at again."""
    node = make(0)
    name = "host.memory"
    before = node.metric(RUNS)[name]
    node.set_clock(-HOUR_S)
    answer = node.check(name)
    assert node.metric(RUNS)[name] > before
    assert 0.0 <= answer["checks"][0]["age_s"] < HOUR_S / 2


def test_what_is_told_people_does_not_wait_for_an_hour(make: Callable[[int], ClockedNode], tmp_path: Path) -> None:
    """News of a fault that was seen before the clock went back is sent when it has lasted, not an hour later."""
    node = make(0)
    message = tmp_path / "message"
    program = tmp_path / "tell"
    program.write_text(f"#!/bin/sh\ncat >>{message}\n")
    program.chmod(0o755)
    node.stop()
    node.configure(f'[orchestrator]\nkind = "local"\n[notify]\ncommand = ["{program}"]\n')
    node.start()
    node.kernel_says("NVRM: Xid (PCI:0000:05:00): 79, pid=1, name=x, GPU has fallen off the bus.")
    node.wait(lambda: "gpu.xid.79" in noted(node), 15.0, "the notifier to have seen the fault")
    assert not message.exists(), "it has not lasted yet"
    node.set_clock(-HOUR_S)
    node.wait(lambda: message.exists() and "gpu.xid.79" in message.read_text(), 40.0, "people to be told")
