"""The canary in the engine: the first repairs of a revision wait for an operator, later ones go. Killed anywhere."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from healthd.core.model import Action, Mode, Refusal, Remedy, Step
from healthd.remediation.decide.commands import Command, Verb
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult, parse
from tests.support.engine_replay import WELL, Replay
from tests.support.engine_rig import NODE, STORIES, World
from tests.support.engine_wire import kill

REVISION = "0a1b2c3d"
APPROVE = Command(verb=Verb.APPROVE, who="uid 0", why="seen", remedy=Remedy.REBOOT_NODE, target=NODE)
APPROVED_AT_S = 120.0


def first(folder: Path, name: str = "repair") -> World:
    """A story by a revision that has not repaired yet, in mode repair."""
    world = STORIES[name](folder)
    world.rules = replace(world.rules, mode=Mode.REPAIR, revision=REVISION)
    return world


def others_have_worked(world: World, *outcomes: RepairResult) -> None:
    """Repairs by the same revision on other nodes."""
    for number, outcome in enumerate(outcomes, 2):
        past = PastRepair(act=PastAct.RESET, at=world.clock.now(), code="x.y", outcome=outcome, revision=REVISION)
        world.cluster.nodes[f"n{number}"].record = HandoffRecord(history=(past,)).text


def approved_story(folder: Path) -> World:
    """An operator approves it; it must not have been made before."""
    world = first(folder)

    def approves() -> None:
        assert world.provisioner.requests == 0, "nothing was approved yet"
        outcome = world.execute(APPROVE)
        assert outcome.done, outcome.message

    return world.at(APPROVED_AT_S, approves)


def test_the_first_repairs_wait_and_say_why(tmp_path: Path) -> None:
    """Drained and prepared; the plan, the status and the page have the canary and the command."""
    world = first(tmp_path).run(60)
    remediation, decision = world.store.open_remediation(), world.engine.decision
    assert remediation is not None
    assert (remediation.step, world.provisioner.requests) == (Step.REBOOT, 0)
    assert (decision.action, decision.refusal) == (Action.PAGE, Refusal.APPROVAL)
    words = "canary: the first 3 repairs of the fleet ask after a change of healthd, policy or driver"
    assert f"{words} (now revision {REVISION})" in decision.reason
    assert f"`healthd approve {remediation.id} --step reboot`" in decision.reason


def test_killed_at_any_boundary_it_is_made_once_and_after_the_approval(tmp_path: Path) -> None:
    """One drain, one reboot, one release; and the record of the node then counts for the fleet."""
    replay = Replay(approved_story, tmp_path)
    for number, world in replay.at_every_boundary(lambda _: kill()):
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])
        assert world.kills == 2, "once by the kill, and once by its reboot"
        record = parse(world.orchestrator.read_record())
        assert record is not None
        last = record.history[-1]  # one that was killed inside its act has the attempt before it as well
        assert (last.revision, last.outcome) == (REVISION, RepairResult.HELPED)


def test_later_repairs_go_by_themselves(tmp_path: Path) -> None:
    """Three worked elsewhere: no one is asked."""
    world = first(tmp_path)
    others_have_worked(world, *[RepairResult.HELPED] * 3)
    assert world.run_to_end().ending() == WELL
    assert not any("approval" in message for message in world.message)


def test_what_waits_goes_on_when_the_canary_has_worked_elsewhere(tmp_path: Path) -> None:
    """Two worked and one failed: it waits; the third that works lets it go, without an operator."""
    world = first(tmp_path)
    others_have_worked(world, RepairResult.HELPED, RepairResult.HELPED, RepairResult.FAILED)
    world.run(300)
    assert world.provisioner.requests == 0
    others_have_worked(world, *[RepairResult.HELPED] * 3)
    assert world.run_to_end().ending() == WELL


def test_another_revision_asks_again(tmp_path: Path) -> None:
    """The driver, the policy or healthd changed while the node waited for its job: what worked before is none of it."""
    world = first(tmp_path)
    others_have_worked(world, *[RepairResult.HELPED] * 3)
    world.at(1, lambda: setattr(world, "rules", replace(world.rules, revision="ffffffff")))
    world.run(200)
    assert world.provisioner.requests == 0
    assert world.engine.decision.refusal is Refusal.APPROVAL
