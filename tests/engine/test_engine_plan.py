"""Asking the engine what it would do: nothing is done, nothing is noted."""

from __future__ import annotations

from pathlib import Path

from healthd.core.model import Action, Mode, Remedy
from tests.support.engine_rig import XID_79, XID_95, World


def test_a_plan_leaves_no_trace(tmp_path: Path) -> None:
    """No update of the cluster, no line in the audit trail, no decision counted; and then it comes as was planned."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.log_line(XID_79)
    before = world.store.events(), dict(world.engine.stats.decided), world.engine.decision
    (planned,) = world.engine.considered()
    assert (world.store.events(), dict(world.engine.stats.decided), world.engine.decision) == before
    assert (world.ours, world.store.open_remediation()) == ([], None)
    assert planned.decision.action is Action.REPAIR
    assert planned.cannot == ((Remedy.REPLACE_NODE, "the fake provisioner has no replace_node"),)
    world.run(1)
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert (remediation.steps, remediation.ladder) == (planned.decision.steps, planned.decision.ladder)
    world.close()


def test_a_reset_that_nobody_can_make_is_named(tmp_path: Path) -> None:
    """The resetter's own words."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.log_line(XID_95)
    (planned,) = world.engine.considered()
    assert (Remedy.RESET_GPU, "nvidia-smi: not found") in planned.cannot
    world.close()


def test_the_cluster_is_not_asked_for_each_who_asks(tmp_path: Path) -> None:
    """What was read ten seconds ago is good enough for a plan: everybody may ask for one."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.log_line(XID_79)
    first = world.engine.considered()
    world.cluster.update("n1", "drain", "burned")
    assert world.engine.considered() == first
    world.clock.advance(11.0)
    assert world.engine.considered() != first
    world.close()
