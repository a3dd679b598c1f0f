"""A node that Slurm powers down while healthd holds it, and that wakes with its old disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.core.model import Mode, Remedy
from healthd.remediation.engine.absent import SETTLE_S, AbsentNodes
from healthd.sim.cluster import FakeOrchestrator
from tests.support.engine_rig import NODE, XID_79, Trouble, World

WORN = Trouble(code="gpu.remap.failure", remedy=Remedy.REPLACE_NODE, clears_by=None)
"""What a check sees on the machine in every boot."""
NO_EFA = Trouble(code="efa.missing", remedy=Remedy.REBOOT_NODE, clears_by=None)


def sleeps(world: World) -> None:
    """The machine is off; another node's daemon releases what it left, and a job wakes it: another boot, the same disk.

    Slurm takes such a boot for no unexpected one.
    """
    world.cluster.asleep.add(NODE)
    other = FakeOrchestrator(world.cluster, "n2")
    absent = AbsentNodes(
        node=lambda name: FakeOrchestrator(world.cluster, name),
        rules=lambda: world.rules,
        timeouts=world.timeouts,
        monotonic_s=world.clock,
    )
    for _ in range(2):
        absent.release(other.snapshot(), other.slots(), world.clock.now())
        world.clock.advance(SETTLE_S)
    absent.release(other.snapshot(), other.slots(), world.clock.now())
    world.cluster.asleep.clear()
    world.boot += 1
    world.restart_daemon()


@pytest.mark.parametrize("steps_before", [5, 8, 12])
def test_a_fault_that_is_open_still_takes_the_node_out_again(steps_before: int, tmp_path: Path) -> None:
    """No operator undid the drain: nothing is acknowledged, at whatever step the machine went off."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.at(10, lambda: world.levels.add(WORN)).run(15 + steps_before)
    assert world.hold_text.startswith("healthd: gpu.remap.failure")
    sleeps(world)
    assert (world.hold_text, world.cluster.slots) == ("", {})
    world.run(12)
    assert world.hold_text.startswith("healthd: gpu.remap.failure"), world.message
    assert list(world.cluster.slots.values()) == [NODE]
    world.levels.clear()
    assert world.run_to_end().ending().ends == ("released",)


def test_a_fault_that_the_power_cycle_ended_leaves_the_node_in_service(tmp_path: Path) -> None:
    """It is not drained again for it, and its place is given back."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.at(10, lambda: world.log_line(XID_79)).run(12)
    sleeps(world)
    ending = world.run_to_end().ending()
    assert (ending.in_service, ending.drains, world.cluster.slots) == (True, 1, {})


def test_a_wake_in_the_middle_of_a_reboot_is_no_operators_order(tmp_path: Path) -> None:
    """The boot moves the remediation before it looks at its drain: the drain's own stamp tells what came after it."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.never_boots = True
    world.at(10, lambda: world.levels.add(NO_EFA)).run(30)
    assert world.provisioner.requests == 1
    world.cluster.asleep.add(NODE)
    world.clock.advance(world.timeouts.reboot_timeout_s)
    sleeps(world)
    assert world.hold_text == ""
    world.run(12)
    assert world.hold_text.startswith("healthd: efa.missing"), world.message
    assert not [text for text in world.audit("step") if "by an operator" in text]


def test_an_operator_who_undoes_the_next_drain_is_obeyed(tmp_path: Path) -> None:
    """That it slept once is no reason to take a later undrain for the same."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.at(10, lambda: world.levels.add(WORN)).run(24)
    sleeps(world)
    world.run(12)
    world.cluster.update(NODE, "undrain")
    assert world.run_to_end().ending().ends == ("acknowledged",)
