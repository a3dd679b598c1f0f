"""Every boundary of two whole cases, again and again: with a kill there, an admin, a silence, a full disk, a change of
mode, a restart of the controller.

The window that Slurm leaves is asserted as a set of boundaries, from both sides: outside of it nothing of anybody's is
lost, and inside of it something is, or this page would claim too little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from healthd.errors import BackendRefused, BackendUnknown, StoreError
from healthd.model import Action, Mode
from healthd.remediation.orchestrators.local import LocalOrchestrator
from healthd.remediation.ports import Orchestrator
from tests.engine_rig import (
    NODE,
    PATIENCE,
    STORIES,
    XID_79,
    XID_95,
    Ending,
    World,
    kill,
    lowered,
    opted_out,
    quarantine_story,
    repair_story,
)

Story = Callable[[Path], World]
WELL = Ending(in_service=True, holder="", ends=("released",), drains=1, releases=1)
ADMIN = "psu is being changed"


@pytest.fixture(params=["quarantine", "repair"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def happening(act: Callable[[World], object], world: World) -> Callable[[], None]:
    """``act`` as what happens at a boundary."""

    def happen() -> None:
        act(world)

    return happen


class Replay:
    """Plays one story once undisturbed, and then once per boundary with something happening there."""

    def __init__(self, story: Story, folder: Path) -> None:
        self._story, self._folder, self._count = story, folder, 0
        self.plain = self.play().run_to_end()
        self.plain.close()
        self.passed = self.plain.wire.passed

    def play(self) -> World:
        self._count += 1
        return self._story(self._folder / str(self._count))

    def at_every_boundary(self, act: Callable[[World], object]) -> Iterator[tuple[int, World]]:
        """One world per boundary in which ``act`` will happen there, not yet begun."""
        for number in range(len(self.passed)):
            world = self.play()
            world.wire.at[number] = happening(act, world)
            yield number, world
            world.close()

    def numbers(self, *labels: str) -> set[int]:
        return {number for number, label in enumerate(self.passed) if label in labels}

    def window(self, *acts: str) -> set[int]:
        """The documented window: from the answer of the last reading before an act to the act itself."""
        found: set[int] = set()
        for number in self.numbers(*(f"before {act}" for act in acts)):
            assert self.passed[number - 2 : number] == ["before view", "after view"], "the last look precedes the act"
            found |= {number - 1, number}
        return found


@pytest.fixture
def replay(name: str, tmp_path: Path) -> Replay:
    return Replay(STORIES[name], tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# kill -9


def test_undisturbed_a_case_ends_well(replay: Replay, name: str) -> None:
    """One drain, one release, a reboot where the story has one; and boundaries enough for the rest to mean something."""
    assert replay.plain.provisioner.requests == (name == "repair")
    for label in ("before view", "before level", "before quarantine", "before release", "before save"):
        assert replay.numbers(label), label
    assert len(replay.passed) > 60


def test_killed_at_any_boundary_it_ends_in_the_same_place(replay: Replay, name: str) -> None:
    """Drained once, released once, whatever the moment of the kill; a second reboot request only after the time-out,
    where the kill came between the intent and the request."""
    for number, world in replay.at_every_boundary(lambda _: kill()):
        ending = world.run_to_end().ending()
        assert ending == WELL, (number, replay.passed[number], ending)
        assert world.provisioner.requests <= 1, (number, replay.passed[number])
        assert world.kills == 1 + (name == "repair")


def test_killed_between_the_intent_and_the_reboot_it_asks_once_more_after_the_timeout(tmp_path: Path) -> None:
    """What was written down may have been done: nothing is asked again before the reboot had its time."""
    replay = Replay(repair_story, tmp_path)
    (reboot,) = replay.numbers("before reboot")
    world = replay.play()
    world.wire.at[reboot] = kill
    began = None
    while not world.provisioner.requests:
        said = world.step()
        began = world.clock() if said == "killed" else began
    assert began is not None
    assert world.clock() - began > PATIENCE.reboot_timeout_s
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1


def test_killed_twice_it_ends_in_the_same_place(replay: Replay) -> None:
    """A second kill a few boundaries after the first changes nothing either."""
    for number, world in replay.at_every_boundary(lambda _: kill()):
        world.wire.at[number + 1 + number % 7] = kill
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])


def local_orchestrator(world: World) -> Orchestrator:
    return LocalOrchestrator(state_dir=world.folder, node=NODE, dev_root=world.folder, clock=world.seconds)


def test_killed_at_any_boundary_with_the_real_local_orchestrator(tmp_path: Path, name: str) -> None:
    """The hold that is a file obeys the same law."""
    replay = Replay(lambda folder: STORIES[name](folder, local=local_orchestrator), tmp_path)
    for number, world in replay.at_every_boundary(lambda _: kill()):
        ending = world.run_to_end().ending()
        assert (ending.in_service, ending.ends) == (True, ("released",)), (number, replay.passed[number])
        assert world.provisioner.requests <= 1


def test_a_daemon_that_was_away_for_long_does_not_take_that_for_a_failed_repair(tmp_path: Path) -> None:
    """Killed while it verifies and started again after the verification's time-out: no second reboot."""
    replay = Replay(repair_story, tmp_path)
    world = replay.play()
    while not world.said or not world.said[-1].startswith("out until it is well"):
        world.step()
    world.clock.advance(PATIENCE.verify_timeout_s * 3)
    world.restart_daemon()
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1


# ---------------------------------------------------------------------------------------------------------------------
# an admin


def admin_drains(world: World) -> None:
    world.cluster.update(NODE, "drain", ADMIN)


def admin_downs(world: World) -> None:
    world.cluster.update(NODE, "down", ADMIN)


def admin_undrains(world: World) -> None:
    world.cluster.update(NODE, "undrain")


def admin_takes_over(world: World) -> None:
    world.cluster.update(NODE, "undrain")
    world.cluster.update(NODE, "drain", ADMIN)


def admin_rewrites(world: World) -> None:
    world.cluster.update(NODE, "", ADMIN)


@pytest.mark.parametrize(
    ("act", "windows"),
    [
        (admin_drains, {"quarantine": ("quarantine", "release"), "repair": ("quarantine", "release")}),
        (admin_takes_over, {"quarantine": ("quarantine", "release"), "repair": ("quarantine", "release")}),
        # On a node that somebody set DOWN, undrain leaves DOWN and the text; the resume after a reboot does not.
        (admin_downs, {"quarantine": ("quarantine",), "repair": ("quarantine", "release")}),
        # A text that is set on a node in service is dropped by Slurm: nothing is there to be lost.
        (admin_rewrites, {"quarantine": ("release",), "repair": ("release",)}),
    ],
)
def test_what_an_admin_does_stays_except_in_the_window(
    replay: Replay, name: str, act: Callable[[World], None], windows: dict[str, tuple[str, ...]]
) -> None:
    """Drain, down, take-over and a new text survive to the end at every boundary but those of the window: from the last
    reading before our update to that update."""
    lost, judged = set(), 0
    for number, world in replay.at_every_boundary(act):
        world.run(60)
        done = [update for update in world.cluster.updates if update.user == "admin"][-1].after
        if done is None or done.user != "admin":
            continue
        judged += 1
        touched = any(update.before == done for update in world.ours)
        assert touched == (world.cluster.nodes[NODE].hold != done), (number, replay.passed[number])
        if touched:
            lost.add(number)
    assert lost == replay.window(*windows[name])
    assert judged > len(replay.passed) / 2


def test_a_reboot_meets_an_admins_hold_only_in_the_window(tmp_path: Path) -> None:
    """The last look before the reboot is the last chance to see that somebody else took the node."""
    replay = Replay(repair_story, tmp_path)
    for act in (admin_drains, admin_rewrites, admin_undrains):
        met = {
            number
            for number, world in replay.at_every_boundary(act)
            if set(world.run(45).held_by_at_reboot) - {"healthd"}
        }
        assert met == replay.window("reboot"), act


def test_an_admin_who_undoes_our_drain_is_obeyed(replay: Replay, name: str) -> None:
    """Not drained again at any boundary, except before our own drain was read back: nobody can have meant a drain that
    he had not seen. That one is made once more, and undone once more it is obeyed."""
    again = set()
    for number, world in replay.at_every_boundary(admin_undrains):
        while number >= len(world.wire.passed):
            world.step()
        undone = [update for update in world.cluster.updates if update.user == "admin" and update.before]
        world.run_to_end()
        if undone and undone[0].before and undone[0].before.user == "healthd" and world.ending().drains > 1:
            again.add(number)
    (drain,) = replay.numbers("before quarantine")
    assert replay.passed[drain : drain + 4] == ["before quarantine", "after quarantine", "before view", "after view"]
    assert again == {drain + 1, drain + 2}


def test_an_undone_drain_is_acknowledged_until_the_fault_ends_and_comes_back(tmp_path: Path) -> None:
    """The order holds for the fault that the person saw, through restarts, and not for the next one."""
    world = World(tmp_path)
    world.at(10, lambda: world.log_line(XID_95)).at(60, lambda: admin_undrains(world)).at(90, world.restart_daemon)
    world.run(60)
    assert world.ending() == Ending(in_service=True, holder="", ends=("acknowledged",), drains=1, releases=0)
    assert world.said[-1].startswith("acknowledged: a person put the node back")
    world.reset_gpu()
    world.run(5)
    world.log_line(XID_95)
    world.run(5)
    assert world.hold_text == "healthd: gpu.xid.95 gpu:GPU-5e1f [c2]"


def test_an_undone_drain_is_an_order_also_after_a_restart_of_the_controller_that_kept_it(tmp_path: Path) -> None:
    """Only the restart that came between our last sight of the drain and its absence can have lost it."""
    world = World(tmp_path)
    world.at(10, lambda: world.log_line(XID_95)).at(40, world.cluster.restart).at(60, lambda: admin_undrains(world))
    assert world.run(40).ending().ends == ("acknowledged",)


# ---------------------------------------------------------------------------------------------------------------------
# silence


def no_answer(_: World) -> None:
    raise BackendUnknown("no answer within 5 s")


def test_an_act_without_an_answer_is_read_back_not_repeated(replay: Replay, name: str) -> None:
    """Applied or not, with the answer lost: the same end, one drain, one release, no second reboot of a node that
    reboots."""
    cluster = {label for label in replay.passed if label.split()[1] not in ("save", "collect")}
    for number, world in replay.at_every_boundary(no_answer):
        if replay.passed[number] not in cluster:
            continue
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])
        assert world.provisioner.requests == (name == "repair"), (number, replay.passed[number])


@pytest.mark.parametrize("steps", [1, 60])
def test_while_the_cluster_is_silent_nothing_is_touched(replay: Replay, steps: int) -> None:
    """A controller that hangs from any boundary on, and applies what it was sent when it wakes up: at most the one act
    that was under way is sent to it, and the end is the same, or that the fault was over before anything was done."""
    spared = Ending(in_service=True, holder="", ends=(), drains=0, releases=0)
    ends = [WELL] if steps < 60 else [WELL, spared, replace(spared, ends=("abandoned",))]
    for number, world in replay.at_every_boundary(lambda world: setattr(world.cluster, "hung", True)):
        while not world.cluster.hung:
            world.step()
        acts = len(world.wire.numbers("before quarantine", "before release", "before reboot"))
        world.run(steps)
        new = len(world.wire.numbers("before quarantine", "before release", "before reboot")) - acts
        assert new <= (replay.passed[number] == "after view"), (number, replay.passed[number])
        world.cluster.wake()
        assert world.run_to_end().ending() in ends, (number, replay.passed[number])


def test_a_controller_that_loses_our_drain_gets_it_again(replay: Replay) -> None:
    """A restart that forgot the drain, at any boundary, is not a person's order: nothing is acknowledged, and a node
    whose fault is open is out again. While a reboot that was asked for is awaited nobody looks: lost in that time, the
    node comes back as Slurm's own DOWN, and is left to a person."""
    for number, world in replay.at_every_boundary(lambda world: world.cluster.restart(losing=[NODE])):
        while number >= len(world.wire.passed):
            world.step()
        world.run(2)
        awaited = world.provisioner.requests == 1 and world.boot == 1
        if world.monitor.diagnoses() and not awaited:
            assert world.hold_text, (number, replay.passed[number])
        ending = world.run_to_end().ending()
        if awaited and not ending.in_service:
            assert (ending.holder, ending.ends) == ("slurm", ("lost",)), (number, replay.passed[number])
        else:
            assert ending.in_service, (number, replay.passed[number])
            assert set(ending.ends) <= {"released", "abandoned"}, (number, replay.passed[number], ending.ends)
        assert not any("acknowledged" in text for text in world.audit("fault"))


# ---------------------------------------------------------------------------------------------------------------------
# a full disk


def disk_is_full(_: World) -> None:
    raise StoreError("the state was not written: database or disk is full")


def test_without_a_written_intent_nothing_is_done(replay: Replay) -> None:
    """A write that fails, before or after it took effect, at any moment: no act lacks its intent on disk (the rig
    asserts that at every act of every test here), and the end is the same."""
    for number, world in replay.at_every_boundary(disk_is_full):
        if replay.passed[number].endswith("save"):
            assert world.run_to_end().ending() == WELL, (number, replay.passed[number])


def test_a_disk_that_stays_full_stops_everything_until_it_can_be_written(replay: Replay) -> None:
    """From any boundary on for a minute: not one act that was not intended before."""
    for number, world in replay.at_every_boundary(lambda _: None):
        world.wire.at = dict.fromkeys(range(number, number + 1000), partial(_fail_saves, world))
        while number >= len(world.wire.passed):
            world.step()
        world.run(7)
        world.wire.at = {}
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])


def _fail_saves(world: World) -> None:
    if world.wire.passed[-1] == "before save":
        disk_is_full(world)


# ---------------------------------------------------------------------------------------------------------------------
# what the operator allows


@pytest.mark.parametrize("stop", [opted_out, partial(lowered, mode=Mode.OBSERVE)])
def test_opted_out_or_observing_nothing_more_is_done(replay: Replay, stop: Callable[[World], None]) -> None:
    """From any boundary on no act follows, but for the one that has begun; taken back, the case goes on to its end."""
    acts = [f"before {act}" for act in ("quarantine", "release", "reboot")]
    for number, world in replay.at_every_boundary(stop):
        allowed = world.rules
        while number >= len(world.wire.passed):
            world.step()
        world.run(100)
        later = [act for act in world.wire.passed[number + 1 :] if act in acts]
        assert later == [], (number, replay.passed[number])
        world.rules = allowed
        assert world.run_to_end().ending().in_service, (number, replay.passed[number])


def test_a_mode_lowered_to_quarantine_reboots_nothing_any_more(tmp_path: Path) -> None:
    """The node stays quarantined until its fault ends; then it is released."""
    replay = Replay(repair_story, tmp_path)
    for number, world in replay.at_every_boundary(partial(lowered, mode=Mode.QUARANTINE)):
        while number >= len(world.wire.passed):
            world.step()
        world.run(60)
        assert world.wire.passed[number + 1 :].count("before reboot") == 0, (number, replay.passed[number])
        if not world.provisioner.requests:
            assert world.hold_text.startswith("healthd: gpu.xid.79"), (number, replay.passed[number])
            world.power_cycle()
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])


def test_a_reboot_that_was_asked_for_is_waited_for_though_the_mode_was_lowered(tmp_path: Path) -> None:
    """A node that seems well is not released into a reboot that may still come."""
    world = World(tmp_path, mode=Mode.REPAIR)
    level = replace(XID_79, code="gpu.recovery", clears_by=None)
    world.never_boots = True
    world.levels = {level}
    world.run(6)
    assert world.provisioner.requests == 1
    world.levels = set()
    lowered(world, Mode.QUARANTINE)
    world.run(60)
    assert world.hold_text, "still out"
    world.run_to_end()
    assert world.clock() > PATIENCE.reboot_timeout_s
    assert world.ending() == WELL


def test_a_release_that_was_applied_is_known_for_ours_though_the_mode_was_lowered(tmp_path: Path) -> None:
    """Lowering the mode forgets no intent: what we released is not taken for a person's undoing."""
    replay = Replay(repair_story, tmp_path)
    (released,) = replay.numbers("after release")
    world = replay.play()

    def lower_and_lose_the_answer() -> None:
        lowered(world, Mode.QUARANTINE)
        no_answer(world)

    world.wire.at[released] = lower_and_lose_the_answer
    assert world.run_to_end().ending() == WELL


# ---------------------------------------------------------------------------------------------------------------------
# refusals


def refusals(world: World) -> list[str]:
    return world.audit("decision")


def test_at_the_limit_it_is_refused_and_recorded_once(tmp_path: Path) -> None:
    """The level counts nodes that are out for any cause; the refusal pages, once in the audit, and ends when there is
    room."""
    world = World(tmp_path, fleet=8, max_out=1)
    world.cluster.update("n2", "down", "no fan")
    world.at(10, lambda: world.log_line(XID_95))
    world.run(40)
    said = "at the fleet limit: 1 of 8 nodes are out, 1 may be"
    assert (world.said[-1], refusals(world)) == (said, [said])
    assert (world.engine.decision.action, world.engine.decided) == (Action.PAGE, {Action.PAGE: 1})
    assert not world.ours
    world.cluster.update("n2", "resume")
    world.run(2)
    assert world.hold_text.startswith("healthd: gpu.xid.95")


def test_a_refusal_of_a_fault_that_comes_back_is_recorded_again(tmp_path: Path) -> None:
    """Once per fault, not once per daemon."""
    world = World(tmp_path, mode=Mode.OBSERVE)
    world.at(10, lambda: world.log_line(XID_95)).at(50, world.reset_gpu).at(90, lambda: world.log_line(XID_95)).run(40)
    said = "observe mode: would take the node out for gpu.xid.95 on gpu:GPU-5e1f (reset_gpu)"
    assert refusals(world) == [said, said]
    assert not world.ours


def test_a_level_that_cannot_be_read_takes_nothing_out(tmp_path: Path) -> None:
    """Unknown is not room; recorded once, while the controller hangs and after."""
    replay = Replay(quarantine_story, tmp_path)
    world = replay.play()
    level = min(replay.numbers("before level"))
    for number in range(level, level + 400):
        world.wire.at[number] = partial(_no_level, world)
    world.run(30)
    said = "the fleet's level could not be read, so nothing is taken out: no answer within 5 s"
    assert refusals(world) == [said]
    assert not world.ours


def _no_level(world: World) -> None:
    if world.wire.passed[-1] == "before level":
        no_answer(world)


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
    refused = partial(_refuse, world, "before quarantine")
    world.wire.at = dict.fromkeys(range(1000), refused)
    world.at(10, lambda: world.log_line(XID_95)).run(30)
    said = "drain refused, will be tried again: Invalid user id"
    assert world.said[-1] == said
    assert world.audit("step").count(f"[c1] {said}") == 1
    world.wire.at = {}
    world.run(2)
    assert world.hold_text.startswith("healthd: gpu.xid.95")


def _refuse(world: World, label: str) -> None:
    if world.wire.passed[-1] == label:
        raise BackendRefused("Invalid user id")


def test_a_release_that_is_refused_does_not_fill_the_audit(tmp_path: Path) -> None:
    """One intent and one refusal, however often it is tried."""
    world = quarantine_story(tmp_path)
    world.wire.at = dict.fromkeys(range(4000), partial(_refuse, world, "before release"))
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
    while "killed" not in world.said:
        world.step()
    world.run(5)
    assert world.said[-1] == "drain waits: at the fleet limit: 8 of 40 nodes are out, 2 may be"
    assert world.engine.decision.action is Action.PAGE
    assert not world.ours


# ---------------------------------------------------------------------------------------------------------------------
# repairs that fail


GIVEN_UP = "given up after 2 attempts, a person is needed: "


def failed(world: World, why: str) -> None:
    """It gave up within bounds, the node is out by our drain, and a person is paged."""
    assert world.provisioner.requests == PATIENCE.max_attempts
    assert world.ending() == Ending(in_service=False, holder="healthd", ends=("failed",), drains=1, releases=0)
    assert world.said[-1].startswith(GIVEN_UP + why)
    assert world.engine.decision.action is Action.PAGE
    assert sum(GIVEN_UP in text for text in world.audit("step")) == 1


def test_a_reboot_that_never_comes_is_given_up(tmp_path: Path) -> None:
    """Two requests, each with its time; a call's return is no evidence."""
    world = repair_story(tmp_path)
    world.never_boots = True
    failed(world.run_to_end(), "the reboot that was asked for never showed as a new boot id")
    assert world.clock() > 2 * PATIENCE.reboot_timeout_s


def test_a_reboot_that_is_refused_is_given_up(tmp_path: Path) -> None:
    """Also when the answer is no at once."""
    world = repair_story(tmp_path)
    world.wire.at = dict.fromkeys(range(1000), partial(_refuse, world, "after reboot"))
    world.never_boots = True
    failed(world.run_to_end(), "the reboot was refused: Invalid user id")


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


def test_a_person_who_puts_a_node_back_that_was_given_up_is_obeyed(tmp_path: Path) -> None:
    """Neither drained nor rebooted again for what that person has seen."""
    world = given_up(tmp_path)
    world.restart_daemon()
    world.cluster.update(NODE, "resume")
    world.run(100)
    assert world.ending() == Ending(in_service=True, holder="", ends=("acknowledged",), drains=1, releases=0)
    assert world.provisioner.requests == PATIENCE.max_attempts


def test_a_node_that_was_given_up_and_that_the_controller_forgot_is_drained_and_not_rebooted(tmp_path: Path) -> None:
    """The bound is on requests, not on rounds of the case."""
    world = given_up(tmp_path)
    world.cluster.nodes[NODE].flags.discard("DOWN")
    world.cluster.restart(losing=[NODE])
    world.run(100)
    assert world.hold_text.startswith("healthd: ")
    assert world.said[-1] == GIVEN_UP + "no attempt is left"
    assert world.provisioner.requests == PATIENCE.max_attempts


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
    world.wire.at[collect] = partial(disk_is_gone, world)
    assert world.run_to_end().ending() == WELL
    assert "[c1] evidence could not be collected in full: no space left" in world.audit("step")


def disk_is_gone(_: World) -> None:
    raise OSError("no space left")


# ---------------------------------------------------------------------------------------------------------------------
# DOWN


def test_a_node_that_is_down_without_a_reboot_is_not_resumed(tmp_path: Path) -> None:
    """slurmd lost behind our drain: DOWN keeps our reason, but nothing proves that a resume is right."""
    world = quarantine_story(tmp_path)
    world.at(30, lambda: world.cluster.nodes[NODE].flags.add("DOWN"))
    world.run(60)
    assert world.said[-1] == "release waits: the node is DOWN, and no reboot since our drain explains it"
    assert world.hold_text.startswith("healthd: ")
    world.cluster.nodes[NODE].flags.discard("DOWN")
    assert world.run_to_end().ending() == WELL
