"""The simulated machine: what is well on it stays well, however long healthd looks."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from healthd.checks.efa_counters import efa_counters
from healthd.core.check import NoSettings
from healthd.core.model import Result
from healthd.sim.machine import SimulatedMachine
from healthd.sources.trees import FileTree
from healthd.testing import FakeNode
from tests.support.limits import limit_s
from tests.support.over_time import open_codes
from tests.support.sim_devices import remove_efa

LOOK_S, LOOKS = 120.0, 60
"""Two hours."""


@pytest.fixture
def machine(tmp_path: Path) -> SimulatedMachine:
    return SimulatedMachine(tmp_path / "node")


def look(machine: SimulatedMachine) -> Result:
    return efa_counters(FakeNode(sys=FileTree(machine.root / "sys")), NoSettings())


def looks(machine: SimulatedMachine, count: int, *, alive: bool = True) -> list[Result]:
    """So many, two minutes apart."""
    looks = []
    for _ in range(count):
        machine.time_passes(LOOK_S if alive else 0.0)
        looks.append(look(machine))
    return looks


def test_its_devices_live_for_hours(machine: SimulatedMachine) -> None:
    """A keep-alive a second, on every device: nothing is found. Where time stands still, none is told from another; a
    device that is silent while its siblings live is found."""
    well, still = looks(machine, LOOKS), looks(machine, 3, alive=False)
    counter = next((machine.root / "sys/class/infiniband").iterdir()) / "hw_counters/keep_alive_rcvd"
    silent, dead = counter.read_text(), []
    for _ in range(3):
        machine.time_passes(LOOK_S)
        counter.write_text(silent)
        dead.append(look(machine))
    found = open_codes("efa.counters", [*well, *still, *dead], every_s=LOOK_S)
    assert not any(found[: LOOKS + len(still)])
    assert found[-1] == {"efa.counters.keep_alive"}


def test_a_boot_counts_anew(machine: SimulatedMachine) -> None:
    """As the driver does."""
    machine.time_passes(3600.0)
    (machine.folder / "reboot-is-wanted").touch()
    machine.reboot()
    machine.time_passes(2.0)
    readings = [reading for reading in look(machine).readings if reading.name == "efa_keep_alive_rcvd_total"]
    assert [reading.value for reading in readings] == [2] * 32


def test_a_device_that_is_gone_stays_gone(machine: SimulatedMachine) -> None:
    """Time makes no device."""
    remove_efa(machine.root)
    machine.time_passes(60.0)
    assert len({reading.component for reading in look(machine).readings}) == 31


def test_it_lives_as_long_as_the_block(machine: SimulatedMachine) -> None:
    """In real time, beside whoever runs on it; and no thread is left."""
    counter = next((machine.root / "sys/class/infiniband").iterdir()) / "hw_counters/keep_alive_rcvd"
    with machine.living(every_s=0.05):
        until_s = time.monotonic() + limit_s(20.0)
        while counter.read_text() in ("0\n", "1\n"):
            assert time.monotonic() < until_s
            time.sleep(0.05)
    assert "simulated time" not in {thread.name for thread in threading.enumerate()}
