"""The controller acts on machines: under a name that Slurm has powered down, or is powering down, there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.core.model import Remedy
from healthd.remediation.records.handoff import RequestAnswer
from tests.support.controller_rig import NODE, AskedWorld


@pytest.mark.parametrize("remedy", [Remedy.REPLACE_NODE, Remedy.REBOOT_NODE])
@pytest.mark.parametrize("is_there_yet", [True, False])
def test_a_name_without_a_machine_is_neither_rebooted_nor_replaced(
    remedy: Remedy, is_there_yet: bool, tmp_path: Path
) -> None:
    """The request waits, and is carried out once a machine is back."""
    world = AskedWorld(tmp_path, remedy)
    if is_there_yet:
        world.cluster.powering[NODE] = "POWERING_DOWN"
    else:
        world.cluster.asleep.add(NODE)
    world.run(3)
    assert (world.acts, world.record.answer) == (0, RequestAnswer.WAITS)
    assert world.record.message == "power saving has taken its machine away"
    world.cluster.powering.clear()
    world.cluster.asleep.clear()
    world.run(3)
    assert (world.acts, world.record.answer) == (1, RequestAnswer.TAKEN)


def test_a_node_that_sleeps_after_its_reboot_is_not_taken_for_silent(tmp_path: Path) -> None:
    """Slurm shows it as DOWN and not responding; a machine that nobody has is not replaced."""
    world = AskedWorld(tmp_path, Remedy.REBOOT_NODE, asks=False)
    world.goes_silent()
    world.cluster.asleep.add(NODE)
    world.clock.advance(86_400)
    world.run(30)
    assert world.acts == 0
    assert not any(each.page for each in world.standings)
    world.cluster.asleep.clear()
    world.run(30)
    assert world.acts == 1, "the same without power saving"
