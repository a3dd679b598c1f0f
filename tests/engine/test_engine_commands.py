"""Commands of an operator to the engine: quarantine, release, repair. Killed anywhere, and with an admin in between.

One story is replayed from every boundary: a good node is taken out by command in observe mode, and released by command.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Action, Component, Mode, Refusal, Remedy, Step
from healthd.remediation.decide.commands import Command, Verb
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import End
from healthd.remediation.ports import StateOwner
from tests.support.engine_replay import ADMIN, WELL, Replay, when
from tests.support.engine_rig import IN, NODE, OUT, XID_79, XID_95, World, lowered, opted_out, ordered_story
from tests.support.engine_wire import disk_is_full, kill, no_answer

REBOOT = Command(verb=Verb.REPAIR, who="uid 0", why="kernel update", remedy=Remedy.REBOOT_NODE)
REPAIR_IT = Command(verb=Verb.REPAIR, who="uid 0")
FORCE = replace(IN, forced=True)
OUR_TEXT = "healthd: operator.quarantine node [c1]"
FEATURE = "healthd-opt-out"


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    return Replay(ordered_story, tmp_path)


def out_by_command(folder: Path, **options: object) -> World:
    """A world with a node that is out by command."""
    world = World(folder, **options)  # type: ignore[arg-type]
    world.run(1)
    world.execute(OUT)
    return world.run(4)


def featured(world: World) -> None:
    world.rules = replace(world.rules, opt_out_feature=FEATURE)
    world.cluster.nodes[NODE].features.add(FEATURE)


# ---------------------------------------------------------------------------------------------------------------------
# the story, from every boundary


def test_an_ordered_node_is_out_until_an_order_lets_it_in(replay: Replay) -> None:
    """In observe mode, with nothing wrong: one drain that names the remediation, and the person's words in the
    trail."""
    ours = replay.plain.ours
    assert [update.word for update in ours] == ["drain", "undrain"]
    assert ours[0].after is not None
    assert ours[0].after.text == OUR_TEXT
    for label in ("before view", "before claim", "before quarantine", "before release", "before give_back"):
        assert replay.numbers(label), label


def test_killed_at_any_boundary_it_ends_in_the_same_place(replay: Replay) -> None:
    """Drained once, out until the command, released once."""
    for number, world in replay.at_every_boundary(lambda _: kill()):
        world.run(17)  # to just before the command to let it in
        assert world.hold_text.startswith("healthd: operator.quarantine node ["), (number, replay.passed[number])
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])
        assert world.kills == 1


def test_a_lost_answer_changes_nothing(replay: Replay) -> None:
    """Applied or not: the command is refused before it is written down, and asked again; or it goes on to its end."""
    for number, world in replay.at_every_boundary(lambda _: no_answer(), half=True):
        if replay.passed[number].split()[1] in ("save", "collect"):
            continue
        for steps, command in ((4, OUT), (20, IN)):
            world.run(steps)
            assert world.outcome is not None
            if not world.outcome.done:
                assert world.outcome.refusal is Refusal.UNREADABLE
                assert world.execute(command).done
        ending = world.run_to_end().ending()
        assert (ending.in_service, ending.drains, ending.releases) == (True, 1, 1), (number, replay.passed[number])


def test_an_order_that_cannot_be_written_down_is_not_begun(tmp_path: Path) -> None:
    """The disk is full: nothing is done, and it is said."""
    world = World(tmp_path)
    world.run(1)
    when(world, "before save", disk_is_full)
    assert not world.execute(OUT).done
    assert "disk is full" in world.execute(OUT).message
    world.wire.at = {}
    world.run(10)
    assert (world.ours, world.cluster.slots) == ([], {})


def admin_drains(world: World) -> None:
    world.cluster.update(NODE, "drain", ADMIN)


def admin_undrains(world: World) -> None:
    world.cluster.update(NODE, "undrain")


def admin_takes_over(world: World) -> None:
    admin_undrains(world)
    admin_drains(world)


@pytest.mark.parametrize("act", [admin_drains, admin_takes_over])
def test_what_an_admin_does_stays_except_in_the_window(replay: Replay, act: Callable[[World], None]) -> None:
    """A drain over ours is never undone nor rewritten, by no command; but for the moment before our own updates."""
    lost = set()
    for number, world in replay.at_every_boundary(act):
        world.run(40)
        done = [update for update in world.cluster.updates if update.user == "admin"][-1].after
        assert done is not None
        touched = any(update.before == done for update in world.ours)
        assert touched == (world.cluster.nodes[NODE].hold != done), (number, replay.passed[number])
        if touched:
            lost.add(number)
    assert lost == replay.window("quarantine", "release")


def test_an_admin_who_undoes_our_drain_has_let_the_node_in(replay: Replay) -> None:
    """The remediation is over, and the command to release finds nothing to do."""
    (drain,) = replay.numbers("after quarantine")
    (release,) = replay.numbers("before release")
    for number, world in replay.at_every_boundary(admin_undrains, half=True):
        if not drain + 4 < number < release - 4:
            continue
        ending = world.run_to_end().ending()
        assert (ending.in_service, ending.drains, ending.releases) == (True, 1, 0), (number, replay.passed[number])
        assert ending.ends == ("acknowledged",)


@pytest.mark.parametrize("stop", [opted_out, featured])
def test_opted_out_midway_it_rests(replay: Replay, stop: Callable[[World], None]) -> None:
    """By a file, or by a feature that is read with the node's state: from any boundary on no act, but for the one that
    had begun; a command is refused; taken back, it goes on."""
    acts = [f"before {act}" for act in ("quarantine", "release")]
    for number, world in replay.at_every_boundary(stop):
        allowed: Rules = world.rules
        while number >= len(world.wire.passed):
            world.step()
        world.run(25)
        later = [act for act in world.wire.passed[number + 1 :] if act in acts]
        unseen = stop is featured and number in replay.window("quarantine", "release")  # after the last reading
        assert len(later) <= unseen, (number, replay.passed[number])
        if world.store.open_remediation() is not None:
            assert "opted out: " in world.message[-1], (number, replay.passed[number])
            assert world.engine.opted_out()
        world.rules, world.cluster.nodes[NODE].features = allowed, set()
        world.run(6)
        world.execute(IN)
        world.run_to_end()
        assert not world.hold_text, (number, replay.passed[number])


# ---------------------------------------------------------------------------------------------------------------------
# quarantine


@pytest.mark.parametrize("mode", list(Mode))
def test_nothing_but_an_order_lets_it_in(tmp_path: Path, mode: Mode) -> None:
    """Not time, not health, not a restart, not a reboot, not a fault that came and went; in no mode."""
    world = out_by_command(tmp_path, mode=mode)
    for happens in (world.restart_daemon, lambda: world.log_line(XID_95), world.reset_gpu, world.power_cycle):
        happens()
        world.run(20)
        assert world.hold_text == OUR_TEXT
    assert (world.ending().drains, world.ending().ends, world.provisioner.requests) == (1, ("None",), 0)
    assert "out by command, until `healthd release`: psu looks odd (uid 0)" in world.message[-1]
    assert world.cluster.slots, "it is counted"


def test_an_empty_store_does_not_end_it(tmp_path: Path) -> None:
    """What the cluster shows says that it is a command: with its drain, and where a drain would be a replacement."""
    for number, owner in enumerate((StateOwner.ENGINE, StateOwner.PLATFORM)):
        world = World(tmp_path / str(number), mode=Mode.OBSERVE)
        world.provisioner.state_owner = owner
        world.run(1)
        world.execute(OUT)
        world.run(5)
        world.folder = tmp_path / f"{number} anew"
        world.folder.mkdir()
        world.restart_daemon()
        world.run(20)
        remediation = world.store.open_remediation()
        assert remediation is not None
        assert remediation.step is Step.STAY
        assert world.cluster.slots == {("cluster", 0): NODE}
        assert world.execute(IN).done
        world.run_to_end()
        assert (world.ending().in_service, world.cluster.nodes[NODE].record) == (True, "")


def test_where_a_drain_is_a_replacement_the_place_alone_keeps_jobs_off(tmp_path: Path) -> None:
    """No drain is made there, and the release gives the place back."""
    world = World(tmp_path)
    world.provisioner.state_owner = StateOwner.PLATFORM
    world.run(1)
    world.execute(OUT)
    world.run(5)
    assert (world.ours, world.orchestrator.view().fenced) == ([], True)
    world.execute(IN)
    world.run_to_end()
    assert (world.ours, world.cluster.slots, world.orchestrator.view().in_service) == ([], {}, True)


@pytest.mark.parametrize(
    ("before", "refusal", "words"),
    [
        (lambda world: world.cluster.update("n2", "down", "no fan"), Refusal.BUDGET, "at the fleet limit: 1 of 8"),
        (lambda world: world.cluster.claim("cluster", 0, "n2"), Refusal.BUDGET, "at the fleet limit: 1 of 8"),
        (
            lambda world: world.cluster.update("n2", "drain", "fan swap"),
            Refusal.BUDGET,
            "1 may be; a node that you take out in the cluster counts as well",
        ),
        (admin_drains, Refusal.FOREIGN_HOLD, f'held by admin with "{ADMIN}": left alone'),
        (opted_out, Refusal.OPTED_OUT, "opted out: /etc/healthd/hands-off exists"),
        (featured, Refusal.OPTED_OUT, "opted out: the node has the feature healthd-opt-out"),
        (lambda world: setattr(world.cluster, "hung", True), Refusal.UNREADABLE, "the cluster did not answer"),
    ],
)
@pytest.mark.parametrize("command", [OUT, REBOOT])
def test_a_refused_order_is_said_counted_and_leaves_nothing(
    tmp_path: Path, before: Callable[[World], None], refusal: Refusal, words: str, command: Command
) -> None:
    """The sentence is the answer and in the audit, the word is the metric; nothing is changed. So is a rehearsal."""
    world = World(tmp_path, fleet=8, max_out=1)
    world.run(1)
    before(world)
    slots = dict(world.cluster.slots)
    rehearsed = world.engine.rehearse(command, world.clock.now())
    answer = world.execute(command)
    assert (answer.done, answer.refusal) == (False, refusal)
    assert words in answer.message
    assert (rehearsed.done, rehearsed.refusal) == (False, refusal)
    assert world.engine.stats.refused == {refusal: 1}
    assert world.audit("command") == [f"refused: {command.verb} by command, {command.reason}: {answer.message}"]
    assert (world.ours, world.cluster.slots, world.store.remediations()) == ([], slots, ())


def test_ordered_twice_it_is_done_once(tmp_path: Path) -> None:
    """The second command is told that it is so already."""
    world = out_by_command(tmp_path)
    again = world.execute(OUT)
    assert (again.done, again.message) == (
        True,
        "quarantined already, psu looks odd (uid 0): remediation c1 is at stay",
    )
    assert len(world.store.remediations()) == 1


# ---------------------------------------------------------------------------------------------------------------------
# release


def test_a_node_that_is_not_healthy_is_not_returned(tmp_path: Path) -> None:
    """What is still wrong is the answer, and it stays out; well again, the same command lets it in."""
    world = out_by_command(tmp_path)
    world.log_line(XID_95)
    answer = world.execute(IN)
    assert (answer.done, answer.refusal) == (False, Refusal.NOT_WELL)
    assert answer.message.startswith("gpu.xid.95 on gpu:GPU-5e1f is still open; to release it all the same, ")
    world.run(30)
    assert world.hold_text == OUR_TEXT
    world.reset_gpu()
    assert world.execute(IN).done
    assert world.run_to_end().ending() == WELL


def test_forced_it_is_let_in_and_not_taken_out_again_for_that(tmp_path: Path) -> None:
    """What is open is acknowledged as a person's command, a restart included, until it ends and comes back."""
    world = out_by_command(tmp_path, mode=Mode.QUARANTINE)
    world.log_line(XID_95)
    answer = world.execute(FORCE)
    assert (answer.done, answer.message) == (
        True,
        "remediation c1: released: back in service; slot cluster 0 given back",
    )
    world.run(5)
    world.restart_daemon()
    world.run(30)
    assert world.ending() == WELL
    assert world.message[-1].startswith("acknowledged: an operator wants the node in service")
    world.reset_gpu()
    world.run(3)
    world.log_line(XID_95)
    world.run(5)
    assert world.hold_text.startswith("healthd: gpu.xid.95")


def test_a_fault_that_comes_while_a_forced_release_waits_is_none_that_its_operator_knew(tmp_path: Path) -> None:
    """The node is DOWN, so the release waits. A GPU that falls off the bus meanwhile keeps the node out."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.at(10, lambda: world.log_line(XID_95)).run(20)
    world.cluster.nodes[NODE].flags.add("DOWN")
    assert world.execute(FORCE).message.startswith("remediation c1: release waits: the node is DOWN")
    world.run(20)
    world.log_line(replace(XID_79, component=Component(kind="gpu", id="GPU-2")))
    world.run(10)
    world.restart_daemon()
    world.cluster.nodes[NODE].flags.discard("DOWN")
    world.run(30)
    assert any("release taken back: gpu.xid.79 on gpu:GPU-2 is still open" in text for text in world.audit("step"))
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert (remediation.id, remediation.code, world.ending().releases) == ("c1", "gpu.xid.79", 0)
    assert [text.partition(":")[0] for text in world.audit("fault") if text.startswith("acknowledged")] == [
        "acknowledged gpu.xid.95 on gpu"
    ]


@pytest.mark.parametrize("wrong", ["not healthy", "unknown", ""])
@pytest.mark.parametrize("by_command", [False, True])
def test_a_forced_release_after_a_repair_covers_no_fault_that_came_with_it(
    wrong: str, *, by_command: bool, tmp_path: Path
) -> None:
    """Commanded while a reboot is under way, it waits for the checks of the new boot. A fault that they find keeps the
    node out: the policy's remediation repairs it, the command's waits until it is over. A check that cannot tell does
    not."""
    world = World(tmp_path, mode=Mode.OBSERVE if by_command else Mode.REPAIR)
    world.log_line(XID_79)
    if by_command:
        assert world.execute(REBOOT).done
    while not world.provisioner.requests:
        world.step()
    assert world.execute(FORCE).done
    while world.boot == 1:
        world.step()
    if wrong == "not healthy":
        world.levels = {replace(XID_79, code="gpu.count", clears_by=None)}
        world.at(world.clock() + 400, world.levels.clear)
    world.blind = "NVML does not answer" if wrong == "unknown" else ""
    for _ in range(90):
        world.step()
        assert not (world.levels and world.orchestrator.view().in_service), world.transcript()
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == (2 if wrong == "not healthy" and not by_command else 1)


def test_a_case_of_the_policys_is_released_from_wherever_it_stands(tmp_path: Path) -> None:
    """Forced at every step of a repair, from the slot to the last: the node is let in, nothing more is repaired, and
    what was asked of the machine before is waited for."""
    for steps in range(14):
        world = World(tmp_path / str(steps), mode=Mode.REPAIR)
        world.start_job()
        world.log_line(XID_79)
        world.run(3)
        if steps > 5:
            world.end_jobs()
        world.run(steps)
        asked = world.provisioner.requests
        assert world.execute(FORCE).done
        world.end_jobs()
        world.run_to_end()
        assert (world.ending().in_service, world.provisioner.requests) == (True, asked), steps
        assert not world.cluster.slots
        world.close()


def test_a_node_that_was_given_up_is_released_by_command(tmp_path: Path) -> None:
    """FAILED is watched until somebody acts: this is how, and what was tried is remembered."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.reboot_heals = False
    world.levels = {replace(XID_79, code="gpu.count", clears_by=None)}
    world.run_to_end()
    assert world.ending().ends == ("failed",)
    assert not world.execute(IN).done
    assert world.execute(FORCE).done
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends) == (True, ("released",))
    assert world.store.remediations()[0].attempts == 2


def test_a_reboot_that_was_given_up_is_not_waited_for_any_more(tmp_path: Path) -> None:
    """It never came; the command does not wait for it again."""
    world = World(tmp_path)
    world.never_boots = True
    world.run(1)
    world.execute(REBOOT)
    world.run_to_end()
    assert world.ending().ends == ("failed",)
    assert world.execute(IN).done
    world.run(20)
    assert (world.ending().in_service, world.ending().ends) == (True, ("released",))


@pytest.mark.parametrize("command", [IN, FORCE])
@pytest.mark.parametrize("came", [False, True])
def test_a_release_outlives_the_reboot_that_it_waited_for(tmp_path: Path, command: Command, came: bool) -> None:
    """Accepted while the last attempt is awaited, which never comes, or comes: the node is let in either way."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.never_boots = True
    world.run(1)
    world.execute(REBOOT)
    while world.provisioner.requests < 2:
        world.step()
    assert world.execute(command).done
    world.run(5)
    assert world.hold_text, "what was asked of the machine comes first"
    if came:
        world.power_cycle()
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends) == (True, ("released",))
    assert world.provisioner.requests == 2


def test_a_release_outlives_a_reset_that_fails_for_the_last_time(tmp_path: Path) -> None:
    """The services run again, and no reboot follows: a person wants the node in."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True)
    world.resetter.held_by = "4711 nvidia-device-p"
    world.run(1)
    world.execute(replace(REBOOT, remedy=Remedy.RESET_GPU))
    while (remediation := world.store.open_remediation()) is None or remediation.attempts < 2:
        world.step()
    assert world.execute(IN).done
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends) == (True, ("released",))
    assert (world.resetter.stopped, world.provisioner.requests) == ([], 0)


def test_a_release_of_a_node_that_is_opted_out_names_the_way_that_is_open(tmp_path: Path) -> None:
    """Refused, forced or not; but undoing our drain is outcome, which the answer says, and gives the place back."""
    world = out_by_command(tmp_path)
    opted_out(world)
    for command in (IN, FORCE):
        answer = world.execute(command)
        assert (answer.done, answer.refusal) == (False, Refusal.OPTED_OUT)
        assert answer.message.endswith("; take that back first, or undo our drain by hand: that works all the same")
    admin_undrains(world)
    world.run(2)
    assert (world.ending().ends, world.cluster.slots) == (("acknowledged",), {})


def test_nobody_elses_hold_is_released(tmp_path: Path) -> None:
    """A drain by hand, with a remediation of ours behind it or none, is refused with who holds it; forced or not."""
    world = World(tmp_path)
    world.run(1)
    for command in (IN, FORCE):
        answer = world.execute(command)
        assert answer.message == "n1 is in service, and no remediation is open: there is nothing to release"
    admin_drains(world)
    for command in (IN, FORCE):
        answer = world.execute(command)
        assert (answer.done, answer.refusal) == (False, Refusal.FOREIGN_HOLD)
        assert answer.message.startswith(
            f'held by admin with "{ADMIN}", and no remediation of ours is open: left alone'
        )
    admin_undrains(world)
    world.execute(OUT)
    world.run(4)
    admin_drains(world)
    for command in (IN, FORCE):
        answer = world.execute(command)
        assert (answer.done, f'held by admin with "{ADMIN}", not by remediation' in answer.message) == (False, True)
    world.run(20)
    assert (world.hold_text, world.ending().releases) == (ADMIN, 0)


def test_an_order_is_taken_back_before_the_node_is_out(tmp_path: Path) -> None:
    """While its place settles: nothing was drained, and nothing is."""
    world = World(tmp_path)
    world.run(1)
    world.execute(OUT)
    assert world.execute(IN).done
    world.run(10)
    assert (world.ending().ends, world.ours, world.cluster.slots) == (("abandoned",), [], {})


# ---------------------------------------------------------------------------------------------------------------------
# repair


@pytest.mark.parametrize("mode", list(Mode))
def test_one_remedy_is_carried_out_as_it_was_ordered(tmp_path: Path, mode: Mode) -> None:
    """In any mode, on a good node: drained, the job's end awaited, rebooted once, verified, let in."""
    world = World(tmp_path, mode=mode)
    world.start_job()
    world.run(1)
    assert world.execute(REBOOT).done
    world.run(10)
    assert (world.hold_text, world.provisioner.requests) == ("healthd: operator.repair node [c1]", 0)
    world.restart_daemon()
    world.end_jobs()
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1


def test_without_a_remedy_the_policy_says_which(tmp_path: Path) -> None:
    """As if the mode were repair; with nothing open there is nothing to repair, and that is refused."""
    world = World(tmp_path, mode=Mode.OBSERVE)
    world.run(1)
    answer = world.execute(REPAIR_IT)
    assert (answer.done, answer.refusal) == (False, Refusal.NOT_NEEDED)
    assert answer.message.endswith("to have one remedy all the same, name it with --step")
    world.log_line(XID_79)
    assert world.execute(REPAIR_IT).done
    assert world.run(4).hold_text.startswith("healthd: gpu.xid.79 gpu:GPU-5e1f [")
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1


def under_repair(world: World) -> None:
    lowered(world, Mode.REPAIR)
    world.log_line(XID_79)


@pytest.mark.parametrize(
    ("before", "command", "refusal"),
    [
        (under_repair, REBOOT, Refusal.REMEDIATION_OPEN),
        (lambda world: setattr(world.provisioner, "others", "HyperPod is at it"), REBOOT, Refusal.MANAGED),
        (lambda world: None, replace(REBOOT, remedy=Remedy.REPLACE_NODE), Refusal.CANNOT),
        (lambda world: None, replace(REBOOT, remedy=Remedy.RESET_GPU), Refusal.CANNOT),
    ],
)
def test_a_repair_is_refused_for_what_would_stop_it(
    tmp_path: Path, before: Callable[[World], None], command: Command, refusal: Refusal
) -> None:
    """Another remediation, a manager at the machine, nobody who could."""
    world = World(tmp_path)
    before(world)
    world.run(3)
    answer = world.execute(command)
    assert (answer.done, answer.refusal) == (False, refusal)
    assert len(world.store.remediations()) == (refusal is Refusal.REMEDIATION_OPEN)


def test_too_many_replacements_refuse_one_more_by_command_too(tmp_path: Path) -> None:
    """The rate is the fleet's, whoever asks."""
    world = World(tmp_path, can_replace=True)
    world.run(1)
    now_s = int(world.seconds())
    for number in range(2, 6):
        world.cluster.nodes[f"n{number}"].record = f"healthd replaced={now_s - 60}"
    answer = world.execute(replace(REBOOT, remedy=Remedy.REPLACE_NODE))
    assert (answer.done, answer.refusal) == (False, Refusal.RATE)


def test_a_node_that_is_out_by_command_is_repaired_and_stays_out(tmp_path: Path) -> None:
    """A fault came while it was out: one remedy by name, and then it waits for the command to let it in."""
    world = out_by_command(tmp_path, mode=Mode.OBSERVE)
    world.log_line(XID_79)
    assert world.execute(REPAIR_IT).refusal is Refusal.REMEDIATION_OPEN
    assert world.execute(REBOOT).done
    world.run(30)
    assert (world.provisioner.requests, world.boot, world.hold_text) == (1, 2, OUR_TEXT)
    assert "until `healthd release`" in world.message[-1]
    world.restart_daemon()
    world.run(2)
    assert world.execute(IN).done
    assert world.run_to_end().ending() == WELL


def test_a_node_that_was_given_up_is_repaired_by_command(tmp_path: Path) -> None:
    """A person who knows what helps says so: under its own drain and place it is rebooted once more, and comes back
    when it is well. The rehearsal leaves it given up."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.reboot_heals = False
    world.levels = {replace(XID_79, code="gpu.count", clears_by=None)}
    world.run_to_end()
    assert (world.ending().ends, world.provisioner.requests) == (("failed",), 2)
    text, world.reboot_heals = world.hold_text, True
    assert world.engine.rehearse(REBOOT, world.clock.now()).lines[0] == "wait_idle  it is idle now"
    assert world.store.remediations()[0].end is End.FAILED
    assert world.execute(REBOOT).done
    assert (world.hold_text, len(world.cluster.slots)) == (text, 1)
    world.restart_daemon()
    assert world.run_to_end().ending() == WELL
    assert (world.provisioner.requests, len(world.store.remediations())) == (3, 1)


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("by_command", [False, True])
@pytest.mark.parametrize("wrong", ["not healthy", "unknown"])
def test_a_node_that_is_not_verified_takes_the_next_act_by_command(
    wrong: str, *, by_command: bool, released: bool, tmp_path: Path
) -> None:
    """Rebooted, by the policy or by command, and not healthy after that, or not known to be: you order the next act
    under the same drain. So you do where a release was commanded before, which then waits no longer."""
    world = World(tmp_path, mode=Mode.OBSERVE if by_command else Mode.REPAIR)
    world.log_line(XID_79)
    if by_command:
        assert world.execute(REBOOT).done
    while world.boot == 1:
        world.step()
    if wrong == "unknown":
        world.blind = "NVML does not answer"
    else:
        world.levels = {replace(XID_79, code="gpu.count", clears_by=None)}
    if released:
        assert world.execute(IN).done
    world.run(4)
    text = world.hold_text
    assert "out until it is healthy" in world.message[-1]
    world.at(world.clock() + 20, lambda: setattr(world, "blind", ""))
    assert world.execute(REBOOT).done
    assert (world.hold_text, len(world.cluster.slots)) == (text, 1)
    world.run_to_end()
    assert (world.ending(), world.provisioner.requests) == (WELL, 2)


def test_a_repair_by_command_that_was_given_up_is_made_again_and_the_node_stays_out(tmp_path: Path) -> None:
    """The command that it is out by outlives both."""
    world = out_by_command(tmp_path, mode=Mode.OBSERVE)
    world.never_boots = True
    assert world.execute(REBOOT).done
    world.run_to_end()
    assert world.ending().ends == ("failed",)
    assert world.execute(REPAIR_IT).refusal is Refusal.REMEDIATION_OPEN
    world.never_boots = False
    assert world.execute(REBOOT).done
    world.run(30)
    assert (world.boot, world.hold_text) == (2, OUR_TEXT)
    assert "until `healthd release`" in world.message[-1]


def test_repaired_and_forgotten_by_the_controller_it_is_out_by_command_again(tmp_path: Path) -> None:
    """Neither rebooted once more nor let in: the command stands."""
    world = out_by_command(tmp_path, mode=Mode.OBSERVE)
    assert world.execute(REBOOT).done
    world.run(30)
    world.cluster.nodes[NODE].flags.clear()
    world.cluster.nodes[NODE].hold = None
    world.cluster.restart()
    world.run(60)
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert (remediation.step, world.hold_text, world.provisioner.requests) == (Step.STAY, OUR_TEXT, 1)


def test_another_machine_behind_the_name_of_a_quarantine_stays_out(tmp_path: Path) -> None:
    """Replaced by command while it was out by command: the new machine's empty store finds that it is one."""
    world = out_by_command(tmp_path, mode=Mode.OBSERVE, can_replace=True)
    assert world.execute(replace(REBOOT, remedy=Remedy.REPLACE_NODE)).done
    world.run(60)
    remediation = world.store.open_remediation()
    assert (world.machine, world.provisioner.replacements) == (2, 1)
    assert remediation is not None
    assert remediation.step is Step.STAY
    world.execute(IN)
    world.run_to_end()
    assert world.orchestrator.view().in_service


def test_a_command_that_is_on_disk_is_no_refused_one_where_its_first_step_is_not(tmp_path: Path) -> None:
    """The disk is full from the second write on: the answer says that the command stands, and so it does."""
    world = World(tmp_path, mode=Mode.OBSERVE).run(1)
    writes = iter((lambda: None, disk_is_full))
    inner = world.wire.boundary

    def boundary(name: str) -> None:
        if name == "before save":
            next(writes, disk_is_full)()
        inner(name)

    world.wire.boundary = boundary  # type: ignore[method-assign]
    outcome = world.execute(OUT)
    world.wire.boundary = inner  # type: ignore[method-assign]
    words = "remediation c1 is open, and goes on once this is over: the state was not written: database or disk is full"
    assert (outcome.done, outcome.message) == (True, words)
    world.run(10)
    assert world.hold_text == OUR_TEXT


def test_the_mode_does_not_lower_an_order(tmp_path: Path) -> None:
    """Lowered to quarantine or observe while the job still runs: what was ordered is done."""
    for mode in (Mode.QUARANTINE, Mode.OBSERVE):
        world = World(tmp_path / mode, mode=Mode.REPAIR)
        world.start_job()
        world.run(1)
        world.execute(REBOOT)
        world.run(5)
        world.rules = replace(world.rules, mode=mode)
        world.end_jobs()
        assert world.run_to_end().ending() == WELL
        assert world.provisioner.requests == 1


# ---------------------------------------------------------------------------------------------------------------------
# what is said of it


@pytest.mark.parametrize("command", [OUT, REBOOT, IN, FORCE])
def test_a_rehearsal_names_every_step_and_leaves_no_trace(tmp_path: Path, command: Command) -> None:
    """As many lines as steps are left; no update, no slot, no line in the trail, no count, no remediation."""
    world = out_by_command(tmp_path) if command.verb is Verb.RELEASE else World(tmp_path)
    world.run(1)
    remediation, before = (
        world.store.open_remediation(),
        (world.store.events(), list(world.ours), dict(world.cluster.slots)),
    )
    rehearsed = world.engine.rehearse(command, world.clock.now())
    assert rehearsed.done
    left = {OUT: 5, REBOOT: 7, IN: 2, FORCE: 1}[command]
    assert len(rehearsed.lines) == left
    assert (world.store.events(), list(world.ours), dict(world.cluster.slots)) == before
    assert world.store.open_remediation() == remediation
    if command is REBOOT:
        assert "reboot     would be asked for reboot_node" in rehearsed.lines


def test_a_rehearsal_says_what_a_reset_would_stop(tmp_path: Path) -> None:
    """The services that hold the GPUs, by name."""
    world = World(tmp_path, can_reset=True)
    world.run(1)
    rehearsed = world.engine.rehearse(replace(REBOOT, remedy=Remedy.RESET_GPU), world.clock.now())
    assert any("stops nvidia-persistenced, resets all GPUs" in line for line in rehearsed.lines)
    assert world.resetter.requests == 0


def test_every_wait_of_a_case_is_counted_once(tmp_path: Path) -> None:
    """A job that runs, a fault that stays, a person who opts out: each by its word, not once a turn."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.start_job()
    world.log_line(XID_79)
    world.run(20)
    assert world.engine.stats.refused == {Refusal.NOT_IDLE: 1}
    opted_out(world)
    world.run(20)
    assert world.engine.stats.refused == {Refusal.NOT_IDLE: 1, Refusal.OPTED_OUT: 1}


def test_the_order_is_the_decision_that_status_shows(tmp_path: Path) -> None:
    """With who gave it and why; counted as what it is."""
    world = World(tmp_path)
    world.run(1)
    world.execute(OUT)
    assert world.engine.decision.reason == "quarantine by command: psu looks odd (uid 0)"
    assert world.engine.stats.decided == {Action.QUARANTINE: 1}
    assert any("quarantine by command: psu looks odd (uid 0)" in text for text in world.audit("step"))
    assert datetime.now(UTC) > world.store.remediations()[0].opened
