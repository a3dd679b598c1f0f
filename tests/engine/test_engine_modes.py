"""What a mode or a rule that was changed makes of an open remediation, both ways; and a fault that another one
hides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import force_setattr, replace

from healthd.core.model import Action, Mode, Refusal, Remedy, Step
from healthd.remediation.decide.commands import Command, Verb
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import Phase, Repair
from healthd.remediation.decide.rules import OWN_REMEDY, Ladder, Policy, Rule, layered
from healthd.remediation.ports import StateOwner
from tests.support.engine_replay import WELL, Replay
from tests.support.engine_rig import (
    TIMEOUTS,
    WORN_OUT,
    XID_79,
    XID_95,
    Trouble,
    World,
    lowered,
    opted_out,
    repair_story,
    replace_story,
    reset_story,
)
from tests.support.engine_wire import kill

TEXT_79 = "healthd: gpu.xid.79 gpu:GPU-5e1f [c1]"
NO_DRIVER = Trouble(code="efa.driver_absent", remedy=Remedy.ASK_HUMAN, clears_by=None)
REBOOT = Command(verb=Verb.REPAIR, who="uid 0", why="now", remedy=Remedy.REBOOT_NODE)
REPAIR_IT = Command(verb=Verb.REPAIR, who="uid 0", why="now")


def rule(code: str, *, ladder: Ladder | None = None, mode: Mode = Mode.REPAIR) -> Rule:
    return Rule(name="ours", codes=(code,), reason="ours", source="ours", ladder=ladder, mode=mode, site=True)


def ruled(world: World, *rules: Rule) -> None:
    """The operator loads these rules before what each finding calls for by itself."""
    world.rules = replace(world.rules, policy=Policy(rules=(*rules, OWN_REMEDY)))


def reloaded(world: World, *rules: Rule) -> None:
    """The same by SIGHUP: the daemon's parts are made anew."""
    ruled(world, *rules)
    world.restart_daemon()


def quarantined_story(folder: Path) -> World:
    """Drained for a GPU off the bus in quarantine mode, and the mode is raised while the job still runs."""
    world = World(folder, mode=Mode.QUARANTINE)
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79)).at(60, partial(lowered, world, Mode.REPAIR))
    return world.at(120, world.end_jobs)


# ---------------------------------------------------------------------------------------------------------------------
# raised


def test_what_was_only_kept_out_is_repaired_once_the_mode_allows_it(tmp_path: Path) -> None:
    """Under the drain, the text and the place that stand: one drain, one reboot after the job, one release."""
    world = quarantined_story(tmp_path)
    slots = dict(world.run(8).cluster.slots)
    assert (world.hold_text, world.provisioner.requests, len(slots)) == (TEXT_79, 0, 1)
    world.run(15)
    assert world.message[-1] == "drained; waiting for 12 to end"
    assert (world.hold_text, world.cluster.slots) == (TEXT_79, slots)
    assert world.engine.stats.decided == {Action.QUARANTINE: 1, Action.REPAIR: 1}
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1
    message = "[c1] goes on to repair it: repair for gpu.xid.79 on gpu:GPU-5e1f (reboot_node)"
    assert message in world.audit("step")


def test_killed_at_any_boundary_it_is_repaired_once(tmp_path: Path) -> None:
    """kill -9 anywhere: one drain, one reboot, one release."""
    for number, world in Replay(quarantined_story, tmp_path).at_every_boundary(lambda _: kill()):
        assert world.run_to_end().ending() == WELL, number
        assert world.provisioner.requests == 1, number


def test_a_mode_that_was_lowered_for_a_minute_loses_no_repair(tmp_path: Path) -> None:
    """Lowered and raised again while the job runs: rebooted all the same."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79)).at(300, world.end_jobs)
    world.at(60, partial(lowered, world, Mode.QUARANTINE)).at(120, partial(lowered, world, Mode.REPAIR))
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1
    assert "[c1] is not repaired any more: the mode was lowered" in world.audit("step")


def test_where_the_place_alone_fences_it_is_raised_too(tmp_path: Path) -> None:
    """ParallelCluster and PCS: no drain before, and none after."""
    world = quarantined_story(tmp_path)
    world.provisioner.state_owner = StateOwner.PLATFORM
    world.cluster.rebooted = lambda name: None  # type: ignore[method-assign]
    ending = world.run_to_end().ending()
    assert (ending, world.provisioner.requests) == (replace(WELL, drains=0, releases=0), 1)


def test_a_fault_behind_another_is_repaired_once_that_is_repaired(tmp_path: Path) -> None:
    """A driver that is absent is for a person; a GPU that falls off the bus meanwhile is rebooted and ends the page."""
    world = World(tmp_path, mode=Mode.REPAIR)
    ruled(world, rule("gpu.xid.79", mode=Mode.QUARANTINE))
    world.levels = {NO_DRIVER}
    world.at(30, lambda: world.log_line(XID_79)).at(120, partial(ruled, world)).at(300, world.levels.clear)
    world.run(6)
    assert world.hold_text == "healthd: efa.driver_absent gpu:GPU-5e1f [c1]"
    assert world.engine.decision.action is Action.PAGE
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1


def test_a_daemon_that_has_just_started_looks_before_it_repairs(tmp_path: Path) -> None:
    """Mended by a person who rebooted it while the mode was raised: what the store still says of a level is looked at
    first, and nothing is rebooted."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.levels = {replace(XID_79, code="gpu.count", clears_by=None)}
    world.run(20)
    lowered(world, Mode.REPAIR)
    world.power_cycle()
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 0


def test_how_often_the_mode_changes_does_not_make_more_attempts(tmp_path: Path) -> None:
    """What was tried before it was lowered counts: two reboots, and then a person, however often it is raised."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.reboot_heals = False
    world.levels = {replace(XID_79, code="gpu.count", clears_by=None)}
    for _ in range(8):
        world.run(30)
        lowered(world, Mode.QUARANTINE)
        world.run(3)
        lowered(world, Mode.REPAIR)
    world.run_to_end()
    assert (world.provisioner.requests, world.ending().ends) == (TIMEOUTS.max_attempts, ("failed",))


def test_another_machine_that_did_not_help_is_not_followed_by_one_more(tmp_path: Path) -> None:
    """The mode is lowered and raised on the successor, which shows the same: a person, and no loop."""
    world = replace_story(tmp_path / "w")
    world.replacement_heals = False
    while world.machine == 1:
        world.step()
    world.run(5)
    lowered(world, Mode.QUARANTINE)
    world.run(5)
    lowered(world, Mode.REPAIR)
    world.run(200)
    assert (world.provisioner.replacements, world.engine.decision.action) == (1, Action.PAGE)
    assert world.engine.decision.refusal is Refusal.EXHAUSTED
    assert "came back after replace_node: an operator is needed" in world.engine.decision.reason


def test_waiting_for_a_person_makes_no_lemon_well(tmp_path: Path) -> None:
    """A node that comes back too often stays out however long nobody looks: its age is no repair."""
    world = World(tmp_path, mode=Mode.REPAIR)
    began = world.clock.now()
    made = [Repair(code=f"x.{n}", component="node", remedy=Remedy.REBOOT_NODE, began=began) for n in range(4)]
    force_setattr(world.engine._dependencies, "ledger", lambda: made)
    world.log_line(XID_79)
    world.run(10)
    assert (world.hold_text, world.engine.decision.refusal) == (TEXT_79, Refusal.LEMON)
    world.clock.advance(8 * 86_400)
    world.run(40)
    assert (world.provisioner.requests, world.engine.decision.refusal) == (0, Refusal.LEMON)


@pytest.mark.parametrize("stop", [opted_out, partial(lowered, mode=Mode.OBSERVE)])
def test_opted_out_or_observing_it_stays_as_it_is(tmp_path: Path, stop: Callable[[World], None]) -> None:
    """Nothing is decided anew for a remediation that rests."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.log_line(XID_79)
    world.run(10)
    lowered(world, Mode.REPAIR)
    stop(world)
    world.run(60)
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert (remediation.step, world.provisioner.requests) == (Step.VERIFY, 0)


# ---------------------------------------------------------------------------------------------------------------------
# for a person


@pytest.mark.parametrize("mode", [Mode.QUARANTINE, Mode.REPAIR])
def test_what_only_a_person_mends_is_kept_out_and_pages(tmp_path: Path, mode: Mode) -> None:
    """In either mode, and again after a restart of the daemon."""
    world = World(tmp_path, mode=mode)
    world.levels = {NO_DRIVER}
    for _ in range(2):
        world.run(30)
        decision = world.engine.decision
        assert (decision.action, decision.refusal) == (Action.PAGE, Refusal.PERSON)
        assert decision.reason == (
            "quarantine for efa.driver_absent on gpu:GPU-5e1f (ask_human): only an operator can repair it"
        )
        world.restart_daemon()
    world.levels.clear()
    assert world.run_to_end().ending() == WELL
    assert world.engine.decision.action is Action.HOLD


@pytest.mark.parametrize("remedy", list(Remedy))
def test_what_users_bring_about_takes_no_slot(tmp_path: Path, remedy: Remedy) -> None:
    """A full disk is critical, and whatever it calls for, the node stays in service and no operator is called by its
    decision; a rule of the site's own may say otherwise."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.rules = replace(world.rules, policy=layered("ours", (), (), None))
    full = Trouble(code="host.filesystem.full", remedy=remedy, clears_by=None)
    world.levels = {full}
    world.run(30)
    assert (world.hold_text, world.engine.decision.steps) == ("", ())
    world.rules = replace(
        world.rules, policy=layered("ours", (rule("host.filesystem.full", ladder=(Remedy.ASK_HUMAN,)),), (), None)
    )
    world.restart_daemon()
    world.run(30)
    assert world.hold_text.startswith("healthd: host.filesystem.full")


def test_what_nobody_here_can_repair_is_kept_out_and_pages(tmp_path: Path) -> None:
    """A worn-out GPU, and nobody who could replace the machine."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.log_line(WORN_OUT)
    world.run(20)
    decision = world.engine.decision
    assert (world.hold_text, decision.action, decision.refusal) == (
        "healthd: gpu.remap.failure gpu:GPU-5e1f [c1]",
        Action.PAGE,
        Refusal.CANNOT,
    )


# ---------------------------------------------------------------------------------------------------------------------
# by command


@pytest.mark.parametrize("command", [REBOOT, REPAIR_IT])
@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.QUARANTINE])
def test_a_node_that_is_only_kept_out_is_repaired_by_command(tmp_path: Path, command: Command, mode: Mode) -> None:
    """Under its own drain and place, in any mode; one reboot, and it comes back when it is well."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.start_job()
    world.log_line(XID_79)
    world.run(10)
    lowered(world, mode)
    rehearsed = world.engine.rehearse(command, world.clock.now())
    assert rehearsed.done, rehearsed
    assert rehearsed.lines[0] == "wait_idle  waits for 12 to end"
    assert world.execute(command).done
    world.run(2)
    assert (world.hold_text, len(world.cluster.slots)) == (TEXT_79, 1)
    world.restart_daemon()
    world.end_jobs()
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1


def test_a_repair_by_name_is_made_though_the_fault_is_over(tmp_path: Path) -> None:
    """Exactly what was ordered: a node that is about to be released is rebooted first."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.log_line(XID_95)
    world.run(10)
    world.reset_gpu()
    assert world.execute(REBOOT).done
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1


def test_an_order_to_repair_is_refused_while_it_is_being_repaired(tmp_path: Path) -> None:
    """A remediation that has a repair of its own is not taken over, nor is one that is not out yet."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.start_job()
    world.log_line(XID_79)
    for steps in (1, 10):
        world.run(steps)
        for command in (REBOOT, REPAIR_IT):
            assert world.execute(command).refusal is Refusal.REMEDIATION_OPEN


# ---------------------------------------------------------------------------------------------------------------------
# lowered


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (rule("gpu.*", mode=Mode.QUARANTINE), "rule ours goes no further than quarantine"),
        (rule("gpu.*", ladder=(Remedy.ASK_HUMAN,)), "rule ours does not say reboot_node any more"),
        (rule("gpu.*", mode=Mode.OBSERVE), "rule ours goes no further than observe"),
        (rule("gpu.*", ladder=()), "no rule takes a node out for it any more"),
    ],
)
def test_a_rule_that_was_lowered_reaches_the_open_case(tmp_path: Path, changed: Rule, words: str) -> None:
    """Loaded while the job runs: its end is followed by no reboot. What the rule no longer takes out is let in, what it
    still does stays out; raised again, it is repaired."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79))
    world.at(60, lambda: reloaded(world, changed)).at(90, world.end_jobs)
    world.run(60)
    assert world.provisioner.requests == 0
    assert f"[c1] is not repaired any more: {words}" in world.audit("step")
    if changed.mode is Mode.OBSERVE or changed.ladder == ():
        assert world.ending() == WELL
        return
    assert (world.hold_text, world.engine.stats.refused[Refusal.LOWERED]) == (TEXT_79, 1)
    reloaded(world)
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1


@pytest.mark.parametrize("changed", [rule("gpu.*", mode=Mode.QUARANTINE), rule("gpu.*", ladder=(Remedy.ASK_HUMAN,))])
def test_a_rule_that_was_lowered_at_any_boundary_reboots_nothing(tmp_path: Path, changed: Rule) -> None:
    """Also between the intent and the act; what was asked for before is waited for."""
    for number, world in Replay(repair_story, tmp_path).at_every_boundary(lambda world: ruled(world, changed)):
        while number >= len(world.wire.passed):
            world.step()
        world.run(15)
        assert world.wire.passed[number + 1 :].count("before reboot") == 0, number
        if not world.provisioner.requests:
            world.power_cycle()
        assert world.run_to_end().ending() == WELL, number


def test_a_smaller_rung_of_the_same_rule_is_no_lowering(tmp_path: Path) -> None:
    """What the rule says still goes on, though other rungs of it were changed."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79))
    world.at(60, lambda: ruled(world, rule("gpu.*", ladder=(Remedy.REBOOT_NODE,)))).at(90, world.end_jobs)
    assert world.run_to_end().ending() == WELL
    assert (world.provisioner.requests, world.engine.stats.refused[Refusal.LOWERED]) == (1, 0)


# ---------------------------------------------------------------------------------------------------------------------
# in the middle of a reset


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "lower",
    [
        partial(lowered, mode=Mode.QUARANTINE),
        partial(lowered, mode=Mode.OBSERVE),
        opted_out,
        lambda world: ruled(world, rule("gpu.*", mode=Mode.QUARANTINE)),
    ],
)
def test_what_a_reset_had_stopped_is_started_whatever_is_lowered(
    tmp_path: Path, lower: Callable[[World], None]
) -> None:
    """From any boundary on: a minute later every service runs, and no reset is made any more for a fault that is open;
    allowed again, the remediation comes to its end."""
    for number, world in Replay(reset_story, tmp_path).at_every_boundary(lambda _: kill(), half=True):
        allowed: Rules = world.rules
        while number >= len(world.wire.passed) and not world.kills:
            world.step()
        lower(world)
        asked, is_open = world.resetter.requests, bool(world.monitor.diagnoses())
        world.run(12)
        assert world.resetter.stopped == [], number
        assert world.resetter.requests == asked or not is_open, number  # a rule says nothing of a fault that is over
        world.rules = allowed
        assert world.run_to_end().ending() == WELL, number


@pytest.mark.parametrize("mode", [Mode.QUARANTINE, Mode.OBSERVE])
def test_a_reset_that_waits_for_its_holders_gives_them_back(tmp_path: Path, mode: Mode) -> None:
    """Stopped, still ending, and then the mode is lowered: all of it runs again, and the node stays out."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True)
    world.resetter.held_by = "4711 nvidia-device-p"
    world.at(10, lambda: world.log_line(XID_95))
    while not world.resetter.stopped:
        world.step()
    lowered(world, mode)
    world.run(3)
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert (remediation.stopped, remediation.phase, world.resetter.stopped) == ((), Phase.PLANNED, [])
    world.resetter.held_by = ""
    lowered(world, Mode.REPAIR)
    assert world.run_to_end().ending() == WELL
    assert (world.resetter.requests, world.provisioner.requests) == (1, 0)
