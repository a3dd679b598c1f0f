"""What the engine refuses, gives up or leaves to others, and that each of these is said and recorded once."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendDenied
from healthd.core.model import Action, Mode
from healthd.remediation.decide.remediation import End
from tests.support.engine_replay import ADMIN, WELL, Replay, when
from tests.support.engine_rig import (
    NODE,
    TIMEOUTS,
    XID_79,
    XID_95,
    Ending,
    World,
    lowered,
    quarantine_story,
    repair_story,
)
from tests.support.engine_wire import kill, no_answer, refused


def denied() -> None:
    raise BackendDenied("ec2:RebootInstances is missing")


def refusals(world: World) -> list[str]:
    return world.audit("decision")


def test_at_the_limit_it_is_refused_and_recorded_once(tmp_path: Path) -> None:
    """The level counts nodes that are out for any cause; the refusal pages, once in the audit, and ends when there is
    room."""
    world = World(tmp_path, fleet=8, max_out=1)
    world.cluster.update("n2", "down", "no fan")
    world.at(10, lambda: world.log_line(XID_95))
    world.run(40)
    message = "at the fleet limit: 1 of 8 nodes are out, 1 may be"
    assert (world.message[-1], refusals(world)) == (message, [message])
    assert (world.engine.decision.action, world.engine.stats.decided) == (Action.PAGE, {Action.PAGE: 1})
    assert not world.ours
    world.cluster.update("n2", "resume")
    world.run(14)  # it looks at the fleet ever more rarely, once a minute at last, and settles
    assert world.hold_text.startswith("healthd: gpu.xid.95")


def test_a_refusal_of_a_fault_that_comes_back_is_recorded_again(tmp_path: Path) -> None:
    """Once per fault, not once per daemon."""
    world = World(tmp_path, mode=Mode.OBSERVE)
    world.at(10, lambda: world.log_line(XID_95)).at(50, world.reset_gpu).at(90, lambda: world.log_line(XID_95)).run(40)
    message = "observe mode: would take the node out for gpu.xid.95 on gpu:GPU-5e1f (reset_gpu)"
    assert refusals(world) == [message, message]
    assert not world.ours


def test_a_level_that_cannot_be_read_takes_nothing_out(tmp_path: Path) -> None:
    """Unknown is not room; recorded once, while the controller hangs and after."""
    world = quarantine_story(tmp_path)
    when(world, "before snapshot", no_answer)
    world.run(30)
    message = "the fleet's level could not be read, so nothing is taken out: no answer within 5 s"
    assert refusals(world) == [message]
    assert not world.ours


def test_a_node_that_is_out_already_is_left_alone(tmp_path: Path) -> None:
    """Whoever holds it; recorded once."""
    world = World(tmp_path)
    world.cluster.update(NODE, "drain", ADMIN)
    world.at(10, lambda: world.log_line(XID_95)).run(40)
    assert refusals(world) == [f'already out of service, held by admin with "{ADMIN}": left alone']
    assert (world.hold_text, world.ours) == (ADMIN, [])


def test_a_drain_that_the_cluster_refuses_is_said_as_such_and_recorded_once(tmp_path: Path) -> None:
    """No answer and an answer of no are different sentences; both are tried again."""
    world = World(tmp_path)
    when(world, "before quarantine", refused)
    world.at(10, lambda: world.log_line(XID_95)).run(30)
    message = "drain refused, will be tried again: Invalid user id"
    assert world.message[-1] == message
    assert world.audit("step").count(f"[c1] {message}") == 1
    world.wire.at = {}
    world.run(2)
    assert world.hold_text.startswith("healthd: gpu.xid.95")


def test_a_release_that_is_refused_does_not_fill_the_audit(tmp_path: Path) -> None:
    """One intent and one refusal, however often it is tried."""
    world = quarantine_story(tmp_path)
    when(world, "before release", refused)
    world.run(120)
    assert world.wire.passed.count("before release") > 50
    assert [text for text in world.audit("step") if "release" in text] == [
        "[c1] intends to release",
        "[c1] release refused, will be tried again: Invalid user id",
    ]


def test_a_drain_that_waits_for_the_fleet_pages(tmp_path: Path) -> None:
    """A drain that was intended and interrupted asks the fleet again, and what it is told is the decision now."""
    replay = Replay(quarantine_story, tmp_path)
    (drain,) = replay.numbers("before quarantine")
    world = replay.play()

    def full_and_killed() -> None:
        for number in range(2, 10):
            world.cluster.update(f"n{number}", "drain", "rack is down")
        kill()

    world.wire.at[drain] = full_and_killed
    while "killed" not in world.message:
        world.step()
    world.run(5)
    assert world.message[-1] == "drain waits: at the fleet limit: 8 of 40 nodes are out, 2 may be"
    assert world.engine.decision.action is Action.PAGE
    assert not world.ours


# ---------------------------------------------------------------------------------------------------------------------
# repairs that fail


GIVEN_UP = "given up after 2 attempts, an operator is needed: "


def failed(world: World, why: str) -> None:
    """It gave up within bounds, the node is out by our drain, and a person is paged."""
    assert world.wire.passed.count("before reboot") == TIMEOUTS.max_attempts
    assert world.ending() == Ending(in_service=False, holder="healthd", ends=("failed",), drains=1, releases=0)
    assert world.message[-1].startswith(GIVEN_UP + why)
    assert world.engine.decision.action is Action.PAGE
    assert sum(GIVEN_UP in text for text in world.audit("step")) == 1


def test_a_reboot_that_never_comes_is_given_up(tmp_path: Path) -> None:
    """Two requests, each with its time; a call's return is no evidence."""
    world = repair_story(tmp_path)
    world.never_boots = True
    failed(world.run_to_end(), "the reboot that was asked for never showed as a new boot id")
    assert world.clock() > 2 * TIMEOUTS.reboot_timeout_s


def test_a_reboot_that_is_refused_is_given_up(tmp_path: Path) -> None:
    """Also when the answer is no at once."""
    world = repair_story(tmp_path)
    when(world, "before reboot", refused)
    failed(world.run_to_end(), "the reboot was refused: Invalid user id")


def test_a_right_that_is_missing_gives_no_machine_away(tmp_path: Path) -> None:
    """A role that may not reboot says nothing about the machine. Any other refusal leads to the next remedy."""
    world = repair_story(tmp_path / "denied", can_replace=True)
    when(world, "before reboot", denied)
    failed(world.run_to_end(), "the reboot is not permitted: ec2:RebootInstances is missing")
    assert world.provisioner.replacements == 0
    world = repair_story(tmp_path / "refused", can_replace=True)
    when(world, "before reboot", refused)
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.replacements == 1


def test_a_fault_that_outlives_the_reboot_is_given_up(tmp_path: Path) -> None:
    """Fault, repair, same fault, twice: then a person."""
    world = repair_story(tmp_path)
    world.reboot_heals = False
    world.levels = {replace(XID_79, code="gpu.count", clears_by=None)}
    failed(world.run_to_end(), "not healthy after the repair: gpu.count on gpu:GPU-5e1f is still open")


def given_up(tmp_path: Path) -> World:
    world = repair_story(tmp_path)
    world.reboot_heals = False
    world.levels = {replace(XID_79, code="gpu.count", clears_by=None)}
    return world.run_to_end()


@pytest.mark.parametrize("step", ["verify", "reboot"])
def test_a_node_that_was_given_up_is_only_watched_in_observe_mode(tmp_path: Path, step: str) -> None:
    """Nothing is written to the cluster, and an operator who puts the node back is outcome as before."""
    world = given_up(tmp_path) if step == "verify" else repair_story(tmp_path)
    if step == "reboot":
        when(world, "before reboot", refused)
        world.run_to_end().wire.at = {}
    lowered(world, Mode.OBSERVE)
    world.run(2)
    since = len(world.wire.passed)
    world.run(20)
    assert {"before write_record", "before keep_awake", "before save"}.isdisjoint(world.wire.passed[since:])
    assert world.message[-1].endswith("in observe mode, nothing is touched")
    world.cluster.update(NODE, "resume")
    world.run(3)
    assert world.ending() == Ending(in_service=True, holder="", ends=("acknowledged",), drains=1, releases=0)


def test_a_person_who_puts_a_node_back_that_was_given_up_is_obeyed(tmp_path: Path) -> None:
    """Neither drained nor rebooted again for what that person has seen."""
    world = given_up(tmp_path)
    world.restart_daemon()
    world.cluster.update(NODE, "resume")
    world.run(100)
    assert world.ending() == Ending(in_service=True, holder="", ends=("acknowledged",), drains=1, releases=0)
    assert world.provisioner.requests == TIMEOUTS.max_attempts


def test_a_node_that_was_given_up_and_that_the_controller_forgot_is_drained_and_not_rebooted(tmp_path: Path) -> None:
    """The bound is on requests, not on rounds of the remediation."""
    world = given_up(tmp_path)
    world.cluster.nodes[NODE].flags.discard("DOWN")
    world.cluster.restart(losing=[NODE])
    world.run(100)
    assert world.hold_text.startswith("healthd: ")
    assert world.message[-1].startswith(GIVEN_UP + "not healthy after the repair: gpu.count")
    assert world.provisioner.requests == TIMEOUTS.max_attempts


def test_a_drain_that_comes_late_leaves_why_a_person_is_needed(tmp_path: Path) -> None:
    """The same drain once more, after the node was given up: it is ours, and the page still says why."""
    world = repair_story(tmp_path)
    when(world, "before reboot", refused)
    world.run_to_end()
    remediation = world.store.remediations()[0]
    world.cluster.update(NODE, "undrain")
    world.cluster.update(NODE, "drain", remediation.text, user="healthd")
    world.engine._journal.write(replace(remediation, drain_unanswered=world.clock.now()), "its drain got no answer")
    world.run(3)
    late = world.store.remediations()[0]
    assert (late.end, late.note) == (End.FAILED, remediation.note)
    assert late.hold == world.cluster.nodes[NODE].hold != remediation.hold
    assert any("was applied late: it is ours as well" in text for text in world.audit("step"))
    assert world.engine.decision.reason == remediation.note


def test_a_fault_that_is_over_before_the_reboot_needs_none(tmp_path: Path) -> None:
    """A repair that others have made is verified, not repeated."""
    world = repair_story(tmp_path)
    world.at(30, world.power_cycle)
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 0
    assert "[c1] no reboot is needed: gpu.xid.79 on gpu:GPU-5e1f is over" in world.audit("step")


def test_evidence_that_cannot_be_saved_does_not_stop_the_repair(tmp_path: Path) -> None:
    """It is said, and the repair goes on."""
    replay = Replay(repair_story, tmp_path)
    (collect,) = replay.numbers("before collect")
    world = replay.play()
    world.wire.at[collect] = disk_is_gone
    assert world.run_to_end().ending() == WELL
    assert "[c1] evidence could not be collected in full: no space left" in world.audit("step")


def disk_is_gone() -> None:
    raise OSError("no space left")


# ---------------------------------------------------------------------------------------------------------------------
# DOWN


def test_a_node_that_is_down_without_a_reboot_is_not_resumed(tmp_path: Path) -> None:
    """slurmd lost behind our drain: DOWN keeps our reason, but nothing proves that a resume is right."""
    world = quarantine_story(tmp_path)
    world.at(30, lambda: world.cluster.nodes[NODE].flags.add("DOWN"))
    world.run(60)
    assert world.message[-1] == "release waits: the node is DOWN, and no reboot since our drain explains it"
    assert world.hold_text.startswith("healthd: ")
    world.cluster.nodes[NODE].flags.discard("DOWN")
    assert world.run_to_end().ending() == WELL
