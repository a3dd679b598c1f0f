"""An update without an answer: a controller that slept applies it when it wakes, whatever was decided meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Component, Mode
from tests.support.engine_replay import WELL, when
from tests.support.engine_rig import IN, NODE, TIMEOUTS, XID_79, XID_95, Trouble, World
from tests.support.engine_wire import kill, no_answer

LATE_S = (20.0, 240.0)
LOST_ANSWERS = round((TIMEOUTS.unanswered_s + 120) / 5)


def lost(world: World, act: str, late_s: float) -> list[str]:
    """From now on nothing of this kind is answered for a turn; what was asked for is applied so much later. Returns
    what was asked for, as it is asked."""
    asked: list[str] = []
    real: Callable[..., None] = getattr(world.orchestrator, act)

    def swallow(*args: object) -> None:
        asked.append(act)
        world.at(world.clock() + late_s, lambda: real(*args))
        setattr(world.orchestrator, act, real)
        no_answer()

    setattr(world.orchestrator, act, swallow)
    return asked


def fault_without_an_answer(world: World, act: str, late_s: float) -> None:
    """XID 95, up to the first act of this kind, which is :func:`lost`."""
    asked = lost(world, act, late_s)
    world.at(10, lambda: world.log_line(XID_95))
    while not asked:
        world.step()


@pytest.mark.parametrize("late_s", LATE_S)
def test_a_drain_that_is_applied_after_its_fault_is_over_is_undone(tmp_path: Path, late_s: float) -> None:
    """Its remediation stays, and with it the place in the budget, until the drain was read back; then it is verified
    and released like any other."""
    world = World(tmp_path)
    fault_without_an_answer(world, "quarantine", late_s)
    world.reset_gpu()
    world.run(2)
    assert world.message[-1].startswith("drain abandoned: gpu.xid.95 on gpu:GPU-5e1f is over; its slot is kept until")
    assert world.run_to_end().ending() == WELL
    assert not world.cluster.slots


def test_a_drain_that_never_comes_is_given_up_in_the_end(tmp_path: Path) -> None:
    """Once it can no longer be applied the node is let go; a restart in between forgets nothing."""
    world = World(tmp_path)
    fault_without_an_answer(world, "quarantine", 10_000.0)
    world.script.clear()
    world.reset_gpu()
    world.run(4)
    world.restart_daemon()
    world.run(4)
    assert world.cluster.slots
    since = world.clock()
    world.run_to_end()
    assert world.clock() - since > TIMEOUTS.unanswered_s - 60
    assert world.ending() == replace(WELL, ends=("abandoned",), drains=0, releases=0)
    assert not world.cluster.slots


def test_killed_before_it_had_an_answer_is_as_good_as_none(tmp_path: Path) -> None:
    """The intent is all that is known then: the drain may come."""
    world = World(tmp_path)
    world.at(10, lambda: world.log_line(XID_95))

    def sent_and_killed() -> None:
        world.at(world.clock() + 100, lambda: sent(world))
        kill()

    when(world, "before quarantine", sent_and_killed)
    while "killed" not in world.message:
        world.step()
    world.wire.at.clear()
    world.reset_gpu()
    assert world.run_to_end().ending() == WELL


def sent(world: World) -> None:
    """What the daemon had sent before it was killed."""
    world.cluster.update(NODE, "drain", "healthd: gpu.xid.95 gpu:GPU-5e1f [c1]", user="healthd")


@pytest.mark.parametrize("late_s", LATE_S)
def test_a_drain_that_was_sent_twice_is_undone_twice(tmp_path: Path, late_s: float) -> None:
    """The first one comes after the second was undone again: by the same hand, with the text of the same
    remediation."""
    world = World(tmp_path)
    lost(world, "quarantine", late_s)
    world.at(10, lambda: world.log_line(XID_95)).at(40, world.reset_gpu)
    ending = world.run_to_end().ending()
    assert (ending.in_service, ending.ends) == (True, ("released",))
    assert not world.cluster.slots


def test_nobody_steps_back_from_a_drain_that_may_still_come(tmp_path: Path) -> None:
    """Many have the same finding by now: the place is kept all the same, or the node would be out without one."""
    world = World(tmp_path, max_out=10)
    fault_without_an_answer(world, "quarantine", 60.0)
    for number in range(2, 8):
        world.cluster.update(f"n{number}", "drain", "healthd: gpu.xid.95 gpu:GPU-5e1f [x]")
    world.run(4)
    assert "many at once is not a node's fault" in world.message[-1]
    assert world.cluster.slots
    world.run(20)
    assert world.hold_text == "healthd: gpu.xid.95 gpu:GPU-5e1f [c1]"
    assert world.cluster.slots


@pytest.mark.parametrize("late_s", LATE_S)
def test_a_claim_that_is_made_after_its_case_has_ended_is_given_back(tmp_path: Path, late_s: float) -> None:
    """The place, which fences the node, is found without a restart: it is looked for again for as long as it may
    come."""
    world = World(tmp_path)
    fault_without_an_answer(world, "claim", late_s)
    world.reset_gpu()
    world.run(4)
    assert not world.cluster.slots
    world.run(LOST_ANSWERS)
    assert not world.script
    assert not world.cluster.slots
    assert world.ending().in_service
    assert any("only a slot was left" in text for text in world.audit("step"))


def test_a_place_that_is_left_over_reopens_no_case_that_has_ended(tmp_path: Path) -> None:
    """The record still names the reboot of a remediation that was released long ago: what is on record of it stays, and
    each place that is found is a remediation of its own."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.log_line(XID_79)
    (rebooted,) = world.run_to_end().store.remediations()
    assert "case=c1" in world.cluster.nodes[NODE].record
    world.clock.advance(2 * 86_400)
    for ends in (("released", "abandoned", "abandoned"), ("released", *["abandoned"] * 4)):
        fault_without_an_answer(world, "claim", 20.0)
        world.reset_gpu()
        world.run(LOST_ANSWERS)
        assert (world.cluster.slots, world.ending().ends) == ({}, ends)
        assert world.store.remediations()[0] == rebooted
    assert world.provisioner.requests == 1


def test_a_drain_that_is_applied_after_its_case_has_ended_is_a_case_of_its_own(tmp_path: Path) -> None:
    """It is written down before anything else is asked: a lost answer does not leave its place held."""
    world = World(tmp_path)
    world.at(10, lambda: world.log_line(XID_95)).at(40, world.reset_gpu)
    (released,) = world.run_to_end().store.remediations()
    sent(world)
    world.cluster.claim("cluster", 0, NODE)
    world.restart_daemon()
    begin, views = len(world.wire.passed), 0

    def second_view_lost() -> None:
        nonlocal views
        views += world.wire.passed[-1] == "before view"
        if world.wire.passed[-1] == "before view" and views == 2:
            no_answer()

    world.wire.at = dict.fromkeys(range(begin, begin + 100), second_view_lost)
    assert "gave no answer" in world.step()
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert (remediation.id, remediation.text) == ("c2", released.text)
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends, world.cluster.slots) == (True, ("released",) * 2, {})
    assert world.store.remediations()[0] == released


def test_a_claim_that_outlived_its_daemon_is_given_back(tmp_path: Path) -> None:
    """Killed, and found nothing at its start: it looks again."""
    world = World(tmp_path)
    fault_without_an_answer(world, "claim", 100.0)
    world.reset_gpu()
    world.run(3)
    world.restart_daemon()
    world.run(LOST_ANSWERS)
    assert world.ending().in_service
    assert not world.cluster.slots


def test_quiet_is_quiet(tmp_path: Path) -> None:
    """Once nothing can come any more, a node that is well asks the cluster nothing."""
    world = World(tmp_path)
    world.run(LOST_ANSWERS)
    passed = len(world.wire.passed)
    assert world.wire.passed.count("before slots") < 10
    world.run(100)
    assert world.wire.passed[passed:] == []


NEIGHBOUR = replace(XID_79, component=Component(kind="gpu", id="GPU-77aa"))


def undrained_late(folder: Path, late_s: float, fault: Trouble) -> World:
    """An undrain got no answer and was not applied yet when another fault opened."""
    world = World(folder, mode=Mode.QUARANTINE)
    world.at(10, lambda: world.log_line(XID_95)).at(60, world.reset_gpu)
    real = world.orchestrator.release

    def swallow(*, resume: bool) -> None:
        world.orchestrator.release = real  # type: ignore[method-assign]
        world.log_line(fault)
        world.at(world.clock() + late_s, lambda: real(resume=resume))
        no_answer()

    world.orchestrator.release = swallow  # type: ignore[method-assign]
    while not any("release taken back" in message for message in world.message):
        world.step()
    return world


@pytest.mark.parametrize("fault", [XID_79, NEIGHBOUR])
@pytest.mark.parametrize("late_s", LATE_S)
def test_an_undrain_that_is_applied_late_is_no_order_of_a_persons(
    tmp_path: Path, late_s: float, fault: Trouble
) -> None:
    """The release was taken back meanwhile: nothing is acknowledged, no job reaches the node, and the same remediation
    drains it again, for the fault that is open now: it knows of the undrain that may meet its drain."""
    world = undrained_late(tmp_path, late_s, fault)
    while world.script:
        world.step()
    message = len(world.message)
    world.run(LOST_ANSWERS)
    assert any(
        "an undrain of ours that got no answer was applied late" in text for text in world.message[message - 1 :]
    )
    assert world.hold_text == "healthd: gpu.xid.95 gpu:GPU-5e1f [c1]"
    assert world.store.remediations()[-1].code == fault.code
    assert not any("by an operator" in text for text in world.audit("step", "fault"))
    assert "acknowledged" not in world.ending().ends


def test_no_job_reaches_a_node_whose_drain_was_undone_by_our_own_late_undrain(tmp_path: Path) -> None:
    """Its place in the budget fences it until it is drained again."""
    world = undrained_late(tmp_path, 60.0, NEIGHBOUR)
    for _ in range(LOST_ANSWERS):
        world.step()
        assert not world.orchestrator.view().in_service or "c1" not in world.hold_text
    assert world.hold_text


def test_a_person_who_undoes_the_drain_once_no_undrain_can_come_is_obeyed(tmp_path: Path) -> None:
    """The time in which our own undrain explains it is bounded."""
    world = undrained_late(tmp_path, 10_000.0, XID_79)
    world.script.clear()
    world.run(LOST_ANSWERS)
    world.cluster.update(NODE, "undrain")
    world.run(3)
    assert world.ending().ends == ("acknowledged",)


def test_an_order_finds_the_case_that_waits_for_its_drain(tmp_path: Path) -> None:
    """`healthd release` meanwhile is taken, and comes to the same."""
    world = World(tmp_path)
    fault_without_an_answer(world, "quarantine", 60.0)
    world.reset_gpu()
    world.run(2)
    assert world.execute(IN).done
    assert world.run_to_end().ending() == WELL
