"""Whose fault drives an act: another one after a repair, a more serious one before it, and one of many nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Action, Component, Mode, Refusal, Remedy, Step
from healthd.remediation.decide.rules import OWN_REMEDY, Ladder, Policy, Rule
from tests.support.engine_replay import WELL, Replay
from tests.support.engine_rig import WORN_OUT, XID_79, XID_95, Trouble, World
from tests.support.engine_wire import kill

MISSING = Trouble(
    code="lustre.missing",
    remedy=Remedy.ASK_HUMAN,
    clears_by=None,
    component=Component(kind="mount", id="/fsx"),
)
NEIGHBOUR = replace(XID_79, component=Component(kind="gpu", id="GPU-77aa"))
TEN_MINUTES = 600.0


def world_where(folder: Path, mode: Mode = Mode.REPAIR, ladder: Ladder | None = None) -> World:
    """A node whose site says this of mounts; an act heals nothing but what its evidence ends."""
    world = World(folder, mode=Mode.REPAIR, can_reset=True, can_replace=True)
    rule = Rule(name="mounts", codes=("lustre.*",), reason="ours", source="ours", ladder=ladder, mode=mode, site=True)
    world.rules = replace(world.rules, policy=Policy(rules=(rule, OWN_REMEDY)))
    world.reset_heals = world.reboot_heals = False
    world.restart_daemon()
    return world


def acts(world: World) -> tuple[int, int, int]:
    """How many resets, reboots and replacements were made."""
    return world.resetter.requests, world.provisioner.requests, world.provisioner.replacements


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("first", "made"), [(XID_95, (1, 0, 0)), (XID_79, (0, 1, 0))])
@pytest.mark.parametrize(
    "says",
    [
        (Mode.REPAIR, None, Action.PAGE),
        (Mode.REPAIR, (Remedy.ASK_HUMAN,), Action.PAGE),
        (Mode.QUARANTINE, None, Action.PAGE),
        (Mode.QUARANTINE, (Remedy.REBOOT_NODE,), Action.QUARANTINE),
    ],
)
def test_a_missing_mount_makes_no_further_repair_of_a_gpu(
    tmp_path: Path, first: Trouble, made: tuple[int, int, int], says: tuple[Mode, Ladder | None, Action]
) -> None:
    """One repair for the GPU; the mount keeps the node out by its own rule, for two hours, and then it comes back."""
    mode, ladder, action = says
    world = world_where(tmp_path, mode, ladder)
    world.at(10, lambda: world.log_line(first)).at(14, lambda: world.levels.add(MISSING))
    world.run(1440)
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert (acts(world), remediation.code, world.engine.decision.action) == (made, "lustre.missing", action)
    assert not any("did not help" in text for text in world.audit("step"))
    world.levels.clear()
    assert world.run_to_end().ending() == WELL
    assert acts(world) == made


def test_a_mount_whose_rule_repairs_it_begins_at_its_own_first_rung(tmp_path: Path) -> None:
    """A reset for the GPU; then what the rule of the mount says, as often as it may be tried, and nothing larger."""
    world = world_where(tmp_path, ladder=(Remedy.REBOOT_NODE,))
    world.at(10, lambda: world.log_line(XID_95)).at(20, lambda: world.levels.add(MISSING))
    world.run(600)
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert acts(world) == (1, 2, 0)
    assert "given up after 2 attempts" in remediation.note
    assert [(repair.code, repair.remedy) for repair in remediation.earlier] == [("gpu.xid.95", Remedy.RESET_GPU)]


def test_a_mount_that_many_nodes_miss_makes_no_repair_although_the_gpu_was_its_own(tmp_path: Path) -> None:
    """A file server dies while one node of 25 resets a GPU: its rule says reboot, and no reboot is made."""
    world = world_where(tmp_path, ladder=(Remedy.REBOOT_NODE, Remedy.REPLACE_NODE))

    def file_server_dies() -> None:
        world.levels.add(MISSING)
        stamp = int(world.clock.now().timestamp())
        for number in range(2, 26):
            world.cluster.nodes[f"n{number}"].record = f"healthd code=lustre.missing since={stamp}"

    world.at(10, lambda: world.log_line(XID_95)).at(20, file_server_dies)
    world.run(600)
    assert acts(world) == (1, 0, 0)
    assert world.engine.decision.action is Action.PAGE
    assert any("many at once is not a node's fault" in text for text in world.audit("decision"))
    world.levels.clear()
    assert world.run_to_end().ending() == WELL


def raised_story(folder: Path, **options: object) -> World:
    """A reset waits for a job; ten minutes later another GPU falls off the bus; an hour later the job ends."""
    world = World(folder, mode=Mode.REPAIR, can_reset=True, can_replace=True, **options)  # type: ignore[arg-type]
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_95))
    return world.at(10 + TEN_MINUTES, lambda: world.log_line(NEIGHBOUR)).at(1200, world.end_jobs)


def test_a_more_serious_fault_raises_a_case_that_waits(tmp_path: Path) -> None:
    """One drain, one id, a reboot and no reset; the trail says that the text at the node stays."""
    world = raised_story(tmp_path)
    world.run(150)
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert (remediation.id, remediation.code, remediation.step, remediation.ladder[0]) == (
        "c1",
        "gpu.xid.79",
        Step.WAIT_IDLE,
        Remedy.REBOOT_NODE,
    )
    assert world.hold_text == remediation.text == "healthd: gpu.xid.95 gpu:GPU-5e1f [c1]"
    assert any('the reason that is shown stays "healthd: gpu.xid.95' in text for text in world.audit("step"))
    assert world.run_to_end().ending() == WELL
    assert acts(world) == (0, 1, 0)


def test_killed_at_any_boundary_a_raised_case_is_rebooted_once(tmp_path: Path) -> None:
    """kill -9 anywhere: one drain, no reset, one reboot, one release."""

    def quickly_raised(folder: Path) -> World:
        world = World(folder, mode=Mode.REPAIR, can_reset=True)
        world.at(3, world.start_job).at(10, lambda: world.log_line(XID_95))
        return world.at(40, lambda: world.log_line(NEIGHBOUR)).at(50, world.end_jobs)

    for number, world in Replay(quickly_raised, tmp_path).at_every_boundary(lambda _: kill()):
        assert world.run_to_end().ending() == WELL, number
        assert acts(world) == (0, 1, 0), number


def test_a_more_serious_fault_while_a_repair_is_verified_is_rebooted(tmp_path: Path) -> None:
    """After the reset of the one GPU the other falls off the bus: its own rule, at its first rung."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True, can_replace=True)
    world.at(10, lambda: world.log_line(XID_95)).at(32, lambda: world.log_line(NEIGHBOUR))
    assert world.run_to_end().ending() == WELL
    assert acts(world) == (1, 1, 0)


def test_before_its_slot_a_raised_case_gets_the_text_of_what_it_is_about(tmp_path: Path) -> None:
    """At the limit of the fleet: nothing is to be seen at the node yet."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True, max_out=1)
    world.at(10, lambda: world.log_line(XID_95))
    while world.store.open_remediation() is None:
        world.step()
    world.cluster.update("n2", "down", "no fan")
    world.log_line(NEIGHBOUR)
    world.run(4)
    world.cluster.update("n2", "resume")
    while not world.hold_text:
        world.step()
    assert world.hold_text == "healthd: gpu.xid.79 gpu:GPU-77aa [c1]"
    assert world.run_to_end().ending() == WELL
    assert acts(world) == (0, 1, 0)


def test_a_fault_that_is_over_needs_no_other_node_to_be_well(tmp_path: Path) -> None:
    """Many nodes have what this one had: its repair was held for that; now it is verified, and comes back."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79))
    world.run(10)
    stamp = int(world.clock.now().timestamp())
    for number in range(2, 8):
        world.cluster.nodes[f"n{number}"].record = f"healthd code=gpu.xid.79 since={stamp}"
    world.end_jobs()
    world.run(20)
    assert (acts(world), world.engine.decision.refusal) == ((0, 0, 0), Refusal.CORRELATED)
    world.power_cycle()
    assert world.run_to_end().ending() == WELL


def test_a_machine_that_was_not_given_away_is_not_said_to_have_failed(tmp_path: Path) -> None:
    """The fault is over right before the replacement, and comes again while the node is verified."""
    world = World(tmp_path / "w", mode=Mode.REPAIR, can_replace=True)
    worn = replace(WORN_OUT, clears_by=None)
    world.levels.add(worn)
    world.at(3, world.start_job).at(100, world.levels.clear).at(170, world.end_jobs)
    world.at(180, lambda: world.levels.add(worn))
    world.run(35)
    assert any("no replacement is needed" in text for text in world.audit("step"))
    world.run(365)
    assert acts(world) == (0, 0, 1)
    assert not any("did not help" in text for text in world.message)


def test_a_machine_with_another_fault_is_decided_by_the_rule_of_that(tmp_path: Path) -> None:
    """A worn-out GPU is replaced; the new machine has a GPU off the bus: it is rebooted, and nothing is said to have
    failed."""
    world = World(tmp_path / "w", mode=Mode.REPAIR, can_replace=True)
    world.at(10, lambda: world.log_line(WORN_OUT))
    while world.machine == 1:
        world.step()
    world.run(3)
    world.log_line(NEIGHBOUR)
    world.run_to_end()
    assert acts(world) == (0, 1, 1)
    assert world.ending().in_service
    assert not any("did not help" in text for text in world.message)
