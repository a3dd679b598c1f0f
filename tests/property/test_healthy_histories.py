"""A thousand random lives of good nodes, of every instance type: counters that grow as they do, and no finding ever.

What is random: corrected ECC errors (Poisson, up to 50 a day for a GPU), PCIe replays below what is allowed, EFA's
fabric counters below their limits, its keep-alives, reboots that begin the volatile counters anew, and lifelong
counters that came from an earlier life.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import exp
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.checklib.tables import InstanceProfile, instance_types
from healthd.core.check import discover
from healthd.core.model import pci_address
from healthd.judge.history import History, begin_boot, observe
from healthd.observe.runner import run_check
from healthd.sim.tree import layout_of
from healthd.testing import FakeNode, FakeNvml, gpu_with
from tests.faults.overlay import Overlay
from tests.property.test_healthy_nodes import build
from tests.support.judgement import at
from tests.support.sampling import of_this_run

HISTORIES, IN_A_SAMPLE, LOOKS, EVERY_S = 1_000, 60, 10, 43_200.0
COUNTING = ("gpu.ecc", "gpu.pcie", "gpu.remap", "gpu.throttle", "gpu.nvlink", "efa.counters")
TYPES = sorted(instance_types().values(), key=lambda profile: profile.type)
CHECKS = discover()


def poisson(mean: float, dice: random.Random) -> int:
    """Knuth's; the mean is at most 25 here."""
    limit, count, product = exp(-mean), 0, dice.random()
    while product > limit:
        count, product = count + 1, product * dice.random()
    return count


class Life:
    """The counters of one node, and what a healthy half day adds to them."""

    def __init__(self, node: FakeNode, profile: InstanceProfile, dice: random.Random) -> None:
        self.node, self.dice = node, dice
        self.gpus = [pci_address(address) for address in layout_of(profile).gpus]
        self.per_day = [dice.uniform(0, 50) for _ in self.gpus]
        self.volatile = [0 for _ in self.gpus]
        self.lifelong = [dice.randrange(10**6) for _ in self.gpus]
        self.old_uncorrected = [dice.choice((0, 0, 0, dice.randrange(20))) for _ in self.gpus]
        self.replays = [dice.randrange(1000) for _ in self.gpus]
        self.devices = [
            f"bus/pci/devices/{address}/infiniband/rdmap{int(address.split(':')[1], 16)}s0"
            for address in layout_of(profile).efa
        ]
        self.sys = Overlay(node.sys)
        self.boot, self.alive, self.lost = 1, 0, dice.randrange(1000)

    def half_a_day(self) -> FakeNode:
        """Let it pass, and return the node as it is then."""
        if self.dice.random() < 0.05:
            self.boot += 1
            self.volatile, self.replays = [0 for _ in self.gpus], [0 for _ in self.gpus]
            self.alive = self.lost = 0
        new = [poisson(rate / 2, self.dice) for rate in self.per_day]
        self.volatile = [old + more for old, more in zip(self.volatile, new, strict=True)]
        self.lifelong = [old + more for old, more in zip(self.lifelong, new, strict=True)]
        self.replays = [old + self.dice.randrange(2) for old in self.replays]
        self.alive, self.lost = self.alive + 43_000 + self.dice.randrange(300), self.lost + self.dice.randrange(100)
        for path in self.devices:
            self.sys.put(f"{path}/hw_counters/keep_alive_rcvd", str(self.alive))
            if self.sys.exists(f"{path}/ports/1/hw_counters/retrans_timeout_events"):
                self.sys.put(f"{path}/ports/1/hw_counters/retrans_timeout_events", str(self.lost))
        answers = [gpu_with(index, self._values(index), pci=pci) for index, pci in enumerate(self.gpus)]
        return replace(self.node, boot=f"boot-{self.boot}", sys=self.sys, nvml=FakeNvml(*answers))

    def _values(self, index: int) -> Mapping[str, Any]:
        return {
            "nvmlDeviceGetTotalEccErrors(0, 0)": self.volatile[index],
            "nvmlDeviceGetTotalEccErrors(0, 1)": self.lifelong[index],
            "nvmlDeviceGetTotalEccErrors(1, 1)": self.old_uncorrected[index],
            "nvmlDeviceGetPcieReplayCounter": self.replays[index],
        }


def type_of(number: int) -> InstanceProfile:
    """The instance type of the life of this number."""
    return TYPES[number % len(TYPES)]


@pytest.mark.slow
def test_a_thousand_lives_of_good_nodes_are_silent(tmp_path: Path) -> None:
    """Every instance type, five days each, a look every half day: no fault ever opens, and none is unsure. `make test`
    lives sixty of them."""
    nodes = {profile.type: build(tmp_path / profile.type, profile) for profile in TYPES}
    every = {"lives": range(HISTORIES)}
    for number in of_this_run().of(every, kind=lambda number: type_of(number).type, least=IN_A_SAMPLE)["lives"]:
        profile = type_of(number)
        dice = random.Random(20261121 + number)  # noqa: S311 - a simulation
        life, history = Life(nodes[profile.type], profile, dice), History(boot_id="boot-1")
        for look in range(LOOKS):
            node, now = life.half_a_day(), at(look * EVERY_S)
            history, _ = begin_boot(history, node.boot_id)
            for name in COUNTING:
                outcome = replace(run_check(CHECKS[name], node, CHECKS[name].settings()), at=now)
                assert not outcome.result.undecided, (number, profile.type, name, outcome.result.reason)
                history, _ = observe(history, outcome, CHECKS[name].limits, now)
            assert not history.faults, (number, profile.type, look, list(history.faults))
