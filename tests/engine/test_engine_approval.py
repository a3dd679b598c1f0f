"""The mode ``approve``: everything is prepared, and the act waits for an operator. Killed anywhere.

One story is replayed from every boundary: a fault that a reset heals, and an operator who approves it later.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Action, Mode, Refusal, Remedy, Step
from healthd.remediation.decide.commands import Command, Verb
from healthd.remediation.decide.remediation import End, Remediation
from tests.support.engine_replay import WELL, Replay
from tests.support.engine_rig import NODE, STORIES, XID_79, XID_95, World, reset_story
from tests.support.engine_wire import kill

APPROVE = Command(verb=Verb.APPROVE, who="uid 0", why="seen", remedy=Remedy.RESET_GPU, target=NODE)
UNDO = Command(verb=Verb.UNDO, who="uid 0", why="spare the job", forced=True, target=NODE)
REMEDIES = {"reset": Remedy.RESET_GPU, "repair": Remedy.REBOOT_NODE, "replace": Remedy.REPLACE_NODE}
APPROVED_AT_S = 120.0


def asking(name: str, folder: Path, approvals: dict[Remedy, timedelta | None] | None = None) -> World:
    """A story in which the act waits for an approval."""
    world = STORIES[name](folder)
    world.rules = replace(world.rules, mode=Mode.APPROVE, approvals=approvals or {})
    return world


def acts(world: World) -> int:
    """How many resets, reboots and replacements were asked for."""
    asked = [label for label in world.wire.passed if label in ("before reset", "before reboot", "before replace")]
    return len(asked)


def approved_story(folder: Path) -> World:
    """A reset that an operator approves; it must not have been made before."""
    world = asking("reset", folder)

    def approves() -> None:
        assert acts(world) == 0, "nothing was approved yet"
        outcome = world.execute(APPROVE)
        assert outcome.done, outcome.message

    return world.at(APPROVED_AT_S, approves)


def remediation_id_of(world: World) -> Remediation:
    remediation = world.store.open_remediation()
    assert remediation is not None
    return remediation


@pytest.mark.parametrize("name", REMEDIES)
def test_everything_is_prepared_and_the_act_waits(name: str, tmp_path: Path) -> None:
    """Drained, idle, evidence saved; then it pages once, says since when, and by which command it goes on."""
    world = asking(name, tmp_path).run(60)
    remediation, decision = remediation_id_of(world), world.engine.decision
    assert acts(world) == 0
    assert remediation.step is {"reset": Step.RESET, "repair": Step.REBOOT, "replace": Step.REPLACE}[name]
    assert (decision.action, decision.refusal) == (Action.PAGE, Refusal.APPROVAL)
    word = {"reset": "reset", "repair": "reboot", "replace": "replace"}[name]
    assert f"`healthd approve {remediation.id} --step {word}`" in decision.reason
    assert "without an answer the node stays out as it is" in decision.reason
    assert world.engine.stats.refused[Refusal.APPROVAL] == 1, "counted and told once"
    assert world.engine.stats.decided[Action.PAGE] == 1


@pytest.mark.parametrize("name", REMEDIES)
def test_after_the_approval_it_goes_on_to_its_end(name: str, tmp_path: Path) -> None:
    """The same ending as in repair mode, with the operator's name and reason in the trail."""
    world = asking(name, tmp_path).run(60)
    outcome = world.execute(replace(APPROVE, remedy=REMEDIES[name]))
    assert outcome.done, outcome.message
    assert world.run_to_end().ending() == WELL
    if name != "replace":  # the other machine has an empty disk
        assert any("approve by command: seen (uid 0)" in line for line in world.audit("step"))


def test_killed_at_any_boundary_the_approval_is_kept_and_none_is_made_up(tmp_path: Path) -> None:
    """One drain, one reset that came after the approval, one release: wherever the daemon died."""
    replay = Replay(approved_story, tmp_path)
    for number, world in replay.at_every_boundary(lambda _: kill()):
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])
        assert world.kills == 1


def test_without_an_answer_it_goes_ahead_after_the_time_that_is_set(tmp_path: Path) -> None:
    """And a daemon that dies anywhere neither forgets since when it asked, nor goes ahead early."""
    after = timedelta(seconds=60)

    def story(folder: Path) -> World:
        return asking("reset", folder, {Remedy.RESET_GPU: after})

    replay = Replay(story, tmp_path)
    for number, world in replay.at_every_boundary(lambda _: kill()):
        asked = None
        while not acts(world):
            world.step()
            remediation = world.store.open_remediation()
            asked = asked or (
                remediation.approval.asked if remediation is not None and remediation.approval is not None else None
            )
        assert asked is not None
        waited = world.clock.now() - asked
        assert after <= waited <= after + timedelta(seconds=30), (number, replay.passed[number], waited)
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])


def test_a_remedy_that_is_set_to_go_needs_no_approval(tmp_path: Path) -> None:
    """Resets go, reboots ask."""
    world = asking("reset", tmp_path, {Remedy.RESET_GPU: timedelta()})
    assert world.run_to_end().ending() == WELL
    assert not any("approval" in message for message in world.message)


def test_an_escalation_asks_again(tmp_path: Path) -> None:
    """The approval of a reset is none of the reboot that follows, also not by a daemon that was started again."""
    world = asking("reset", tmp_path)
    world.reset_heals = False
    world.levels.add(XID_95)
    world.run(60)
    assert world.execute(APPROVE).done
    world.run(400)
    assert world.resetter.requests == 2, "two attempts at what was approved"
    assert remediation_id_of(world).step is Step.REBOOT
    world.restart_daemon()
    world.run(20)
    assert world.provisioner.requests == 0
    assert world.engine.decision.refusal is Refusal.APPROVAL
    late = world.execute(APPROVE)
    assert (late.done, late.refusal) == (False, Refusal.APPROVAL)
    assert "its next act is reboot_node, not reset_gpu" in late.message
    assert world.provisioner.requests == 0


def test_an_approval_of_another_remediation_is_refused(tmp_path: Path) -> None:
    """An id that is not open here, and an act that is not named."""
    world = asking("reset", tmp_path).run(60)
    for command, words in (
        (replace(APPROVE, target="c9"), "no remediation 'c9': open here is c1"),
        (replace(APPROVE, remedy=None), "name the act: `healthd approve c1 --step reset`"),
        (replace(APPROVE, remedy=Remedy.REBOOT_NODE), "its next act is reset_gpu, not reboot_node"),
    ):
        outcome = world.execute(command)
        assert not outcome.done
        assert words in outcome.message
    assert acts(world) == 0
    assert world.execute(replace(APPROVE, target="c1")).done


def test_nothing_is_open_to_approve_or_to_undo(tmp_path: Path) -> None:
    """A healthy node."""
    world = World(tmp_path, mode=Mode.APPROVE).run(2)
    for command in (APPROVE, UNDO):
        outcome = world.execute(command)
        assert (outcome.done, outcome.refusal) == (False, Refusal.NOT_NEEDED)
        assert "none is open here" in outcome.message


def test_in_repair_mode_there_is_nothing_to_approve(tmp_path: Path) -> None:
    """It says so, and goes on as it would have."""
    world = reset_story(tmp_path).run(4)
    outcome = world.execute(APPROVE)
    assert (outcome.done, outcome.refusal) == (False, Refusal.NOT_NEEDED)
    assert world.run_to_end().ending() == WELL


def test_an_act_can_be_approved_before_its_node_is_idle(tmp_path: Path) -> None:
    """While the job runs on: then nothing waits for the operator at night. Twice is said, and changes nothing."""
    world = asking("reset", tmp_path).run(6)
    assert remediation_id_of(world).step is Step.WAIT_IDLE
    assert world.execute(APPROVE).done
    approval = remediation_id_of(world).approval
    again = world.execute(replace(APPROVE, who="uid 7"))
    assert again.done
    assert again.message == "approved already: seen (uid 0)"
    assert remediation_id_of(world).approval == approval
    assert world.run_to_end().ending() == WELL
    assert Refusal.APPROVAL not in world.engine.stats.refused


def test_a_mode_that_is_lowered_to_approve_asks_before_the_act(tmp_path: Path) -> None:
    """From whatever boundary on: no act is begun after it without an approval, but in the milliseconds before one."""
    replay = Replay(reset_story, tmp_path)
    (act,) = replay.numbers("before reset")

    def lower(world: World) -> None:
        world.rules = replace(world.rules, mode=Mode.APPROVE)

    crossed = set()
    for number, world in replay.at_every_boundary(lower):
        world.run(100)
        crossed |= {
            act - number for begun, label in enumerate(world.wire.passed) if label == "before reset" and begun >= number
        }
    assert crossed <= {0, 1}


# ---------------------------------------------------------------------------------------------------------------------
# undo


def undone_story(folder: Path) -> World:
    """A reset that waits for an approval, and is taken back."""
    world = asking("reset", folder)
    return world.at(APPROVED_AT_S, lambda: world.execute(UNDO))


def test_undo_takes_the_drain_and_the_slot_back(tmp_path: Path) -> None:
    """From every boundary: in service again, no act, and the fault acknowledged, so that it is not drained again."""
    replay = Replay(undone_story, tmp_path)
    for number, world in replay.at_every_boundary(lambda _: kill()):
        world.run_to_end()
        ending = world.ending()
        assert (ending.in_service, ending.drains, ending.releases) == (True, 1, 1), (number, replay.passed[number])
        assert acts(world) == 0, (number, replay.passed[number])
        assert world.cluster.slots == {}
        world.run(20)
        assert world.engine.decision.refusal is Refusal.ACKNOWLEDGED


@pytest.mark.parametrize("at", [1, 6, 40])
def test_undo_works_from_every_step_before_the_act(at: int, tmp_path: Path) -> None:
    """Also while the job still runs."""
    world = asking("reset", tmp_path).run(2 + at)
    assert world.execute(UNDO).done
    world.run_to_end()
    assert world.ending().in_service
    assert acts(world) == 0


def reboot_is_asked_for(world: World) -> None:
    world.boots_at_s = 0.0
    world.never_boots = True


@pytest.mark.parametrize(("spoil", "words"), [(reboot_is_asked_for, "reboot_node was begun at")])
def test_what_was_begun_is_not_undone(spoil: Callable[[World], None], words: str, tmp_path: Path) -> None:
    """A reboot that the platform was asked for comes whatever is ordered: the refusal says so."""
    world = STORIES["repair"](tmp_path)
    spoil(world)
    while not world.provisioner.requests:
        world.step()
    outcome = world.execute(UNDO)
    assert (outcome.done, outcome.refusal) == (False, Refusal.CANNOT)
    assert words in outcome.message
    assert not remediation_id_of(world).release_command


def test_what_was_done_is_not_undone(tmp_path: Path) -> None:
    """A node that was reset has to prove itself: `healthd release` is the verb."""
    world = STORIES["reset"](tmp_path)
    while remediation_id_of(world).step is not Step.VERIFY if world.store.open_remediation() else True:
        world.step()
    outcome = world.execute(UNDO)
    assert (outcome.done, outcome.refusal) == (False, Refusal.CANNOT)
    assert "reset_gpu was made and cannot be taken back" in outcome.message
    assert world.run_to_end().ending() == WELL


def test_what_was_done_for_another_fault_is_not_undone_either(tmp_path: Path) -> None:
    """The node was reset for one fault, and waits for the approval of a reboot for the next: it has yet to be
    verified."""
    world = STORIES["reset"](tmp_path)
    while not world.resetter.requests:
        world.step()
    world.rules = replace(world.rules, mode=Mode.APPROVE)
    world.log_line(XID_79)
    world.run(20)
    assert "reboot waits: approval" in world.message[-1]
    outcome = world.execute(UNDO)
    assert (outcome.done, outcome.refusal) == (False, Refusal.CANNOT)
    assert "reset_gpu was made and cannot be taken back" in outcome.message


def test_nothing_is_approved_of_what_was_given_up(tmp_path: Path) -> None:
    """Both reboots were approved, and none came: another approval begins nothing, and says so."""
    world = asking("repair", tmp_path)
    world.never_boots = True
    order = replace(APPROVE, remedy=Remedy.REBOOT_NODE)
    world.at(APPROVED_AT_S, lambda: world.execute(order)).run_to_end()
    assert remediation_id_of(world).end is End.FAILED
    outcome = world.execute(order)
    assert (outcome.done, outcome.refusal) == (False, Refusal.NOT_NEEDED)
    assert "has no act before it, it is at reboot: given up after 2 attempts" in outcome.message


def test_a_dry_run_shows_the_act_and_does_nothing(tmp_path: Path) -> None:
    """Of an approval what follows; of a repair in this mode, that nothing waits: the command is the approval."""
    world = asking("reset", tmp_path).run(60)
    before = remediation_id_of(world)
    shown = world.engine.rehearse(APPROVE, world.clock.now())
    assert shown.done
    assert any(line.startswith("reset") and "approval" not in line for line in shown.lines)
    undone = world.engine.rehearse(UNDO, world.clock.now())
    assert undone.done
    assert [line.split()[0] for line in undone.lines] == ["release"]
    assert remediation_id_of(world) == before


def test_a_command_to_repair_is_its_own_approval(tmp_path: Path) -> None:
    """No approval is asked for what was just commanded."""
    world = World(tmp_path, mode=Mode.APPROVE, can_reset=True).run(1)
    assert world.execute(Command(verb=Verb.REPAIR, who="uid 0", remedy=Remedy.RESET_GPU)).done
    assert world.run_to_end().ending() == WELL
    assert world.resetter.requests == 1


def test_another_fault_asks_again(tmp_path: Path) -> None:
    """An approved reset does not approve the reboot that a worse fault brings while the job still runs."""
    world = asking("reset", tmp_path).run(6)
    assert world.execute(APPROVE).done
    world.log_line(XID_79)
    world.run(60)
    assert remediation_id_of(world).step is Step.REBOOT
    assert world.engine.decision.refusal is Refusal.APPROVAL
    assert acts(world) == 0
