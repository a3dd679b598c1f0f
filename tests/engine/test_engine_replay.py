"""Every boundary of two whole remediations, again and again: with a kill there, an admin, a silence, a full disk, a
change of mode, a restart of the controller.

The window that Slurm leaves is asserted as a set of boundaries, from both sides: outside of it nothing of anybody's is
lost, and inside of it something is, or this page would claim too little.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Mode
from healthd.remediation.orchestrators.local import LocalOrchestrator
from healthd.remediation.ports import Orchestrator
from tests.support.engine_replay import ADMIN, WELL, Replay, when
from tests.support.engine_rig import (
    NODE,
    OUT,
    STORIES,
    TIMEOUTS,
    XID_79,
    XID_95,
    Ending,
    World,
    lowered,
    opted_out,
    repair_story,
)
from tests.support.engine_wire import disk_is_full, kill, no_answer

CALM = ("quarantine", "reset")
"""Stories without a new boot."""
ACTS = ("before quarantine", "before release", "before reboot", "before replace")


@pytest.fixture(params=["quarantine", "repair", "reset", "replace"])
def name(request: pytest.FixtureRequest) -> str:
    """Which story."""
    return str(request.param)


@pytest.fixture
def replay(name: str, tmp_path: Path) -> Replay:
    return Replay(STORIES[name], tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# kill -9


def test_undisturbed_a_case_ends_well(replay: Replay, name: str) -> None:
    """One drain, one release, a reboot where the story has one; and boundaries enough for the rest to mean a thing."""
    assert replay.plain.provisioner.requests == (name == "repair")
    for label in ("before view", "before snapshot", "before quarantine", "before release", "before save"):
        assert replay.numbers(label), label
    assert len(replay.passed) > 60


@pytest.mark.sampled(2)
def test_killed_at_any_boundary_it_ends_in_the_same_place(replay: Replay, name: str) -> None:
    """Drained once, released once, whatever the moment of the kill; a second reboot request only after the time-out,
    where the kill came between the intent and the request."""
    for number, world in replay.at_every_boundary(lambda _: kill()):
        ending = world.run_to_end().ending()
        assert ending == WELL, (number, replay.passed[number], ending)
        assert world.provisioner.requests <= 1, (number, replay.passed[number])
        assert world.kills == 1 + (name == "repair")


@pytest.mark.sampled(2)
def test_ended_in_order_at_any_boundary_nothing_is_done_twice_or_begun(replay: Replay, name: str) -> None:
    """SIGTERM: the step that is under way comes to its end, none follows, no command is taken, and the next daemon goes
    on: one drain, one release, one request and one reset, however the end fell."""
    for number, world in replay.at_every_boundary(lambda world: world.engine.end(0.0)):
        boundary = replay.passed[number]
        while len(world.wire.passed) <= number:
            world.step()
        passed, now = len(world.wire.passed), world.clock.now()
        assert world.engine.end(0.0), "nothing is under way any more"
        assert "healthd is stopping" in world.engine.reconcile(now)
        outcome = world.engine.execute(OUT, now)
        assert outcome.refusal is not None, (number, boundary)
        assert len(world.wire.passed) == passed, (number, boundary)
        world.restart_daemon()
        ending = world.run_to_end().ending()
        assert ending == WELL, (number, boundary, ending)
        assert world.provisioner.requests <= 1, (number, boundary)
        assert world.resetter.requests == replay.plain.resetter.requests, (number, boundary)


def test_killed_between_the_intent_and_the_reboot_it_asks_once_more_after_the_timeout(tmp_path: Path) -> None:
    """What was written down may have been done: nothing is asked again before the reboot had its time."""
    replay = Replay(repair_story, tmp_path)
    (reboot,) = replay.numbers("before reboot")
    world = replay.play()
    world.wire.at[reboot] = kill
    began = None
    while not world.provisioner.requests:
        message = world.step()
        began = world.clock() if message == "killed" else began
    assert began is not None
    assert world.clock() - began > TIMEOUTS.reboot_timeout_s
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1


@pytest.mark.sampled(2)
def test_killed_twice_it_ends_in_the_same_place(replay: Replay) -> None:
    """A second kill a few boundaries after the first changes nothing either."""
    for number, world in replay.at_every_boundary(lambda _: kill(), half=True):
        world.wire.at[number + 1 + number % 7] = kill
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])


def local_orchestrator(world: World) -> Orchestrator:
    return LocalOrchestrator(state_dir=world.folder, node=NODE, dev_root=world.folder, clock=world.seconds)


@pytest.mark.sampled(2)
def test_killed_at_any_boundary_with_the_real_local_orchestrator(tmp_path: Path, name: str) -> None:
    """The hold that is a file obeys the same law."""
    replay = Replay(lambda folder: STORIES[name](folder, local=local_orchestrator), tmp_path)
    for number, world in replay.at_every_boundary(lambda _: kill(), half=True):
        ending = world.run_to_end().ending()
        assert (ending.in_service, ending.ends) == (True, ("released",)), (number, replay.passed[number])
        assert world.provisioner.requests <= 1


def test_a_daemon_that_was_away_for_long_does_not_take_that_for_a_failed_repair(tmp_path: Path) -> None:
    """Killed while it verifies and started again after the verification's time-out: no second reboot."""
    replay = Replay(repair_story, tmp_path)
    world = replay.play()
    while not world.message or not world.message[-1].startswith("out until it is healthy"):
        world.step()
    world.clock.advance(TIMEOUTS.verify_timeout_s * 3)
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


@pytest.mark.sampled(4, kind=lambda act, **_: act.__name__)
@pytest.mark.parametrize(
    ("act", "windows"),
    [
        (admin_drains, dict.fromkeys(STORIES, ("quarantine", "release"))),
        (admin_takes_over, dict.fromkeys(STORIES, ("quarantine", "release"))),
        # On a node that somebody set DOWN, undrain leaves DOWN and the text; the resume after a reboot does not.
        (admin_downs, dict.fromkeys(STORIES, ("quarantine", "release")) | dict.fromkeys(CALM, ("quarantine",))),
        # A text that is set on a node in service is dropped by Slurm: nothing is there to be lost.
        (admin_rewrites, dict.fromkeys(STORIES, ("release",))),
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
    every = len(replay.boundaries()) == len(replay.passed)
    assert judged > (len(replay.passed) / 3 if every else len(lost))  # before the drain there is no text to rewrite


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


@pytest.mark.sampled(2)
def test_an_admin_who_undoes_our_drain_is_obeyed(replay: Replay, name: str) -> None:
    """Not drained again at any boundary, except before our own drain was read back: nobody can have meant a drain that
    he had not seen. That one is made once more, and undone once more it is outcome."""
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
    assert again == {drain + 1, drain + 2} & set(replay.boundaries())


def test_an_undone_drain_is_acknowledged_until_the_fault_ends_and_comes_back(tmp_path: Path) -> None:
    """The command holds for the fault that the person saw, through restarts, and not for the next one."""
    world = World(tmp_path)
    world.at(10, lambda: world.log_line(XID_95)).at(60, lambda: admin_undrains(world)).at(90, world.restart_daemon)
    world.run(60)
    assert world.ending() == Ending(in_service=True, holder="", ends=("acknowledged",), drains=1, releases=0)
    assert world.message[-1].startswith("acknowledged: an operator wants the node in service")
    world.reset_gpu()
    world.run(5)
    world.log_line(XID_95)
    world.run(5)
    assert world.hold_text == "healthd: gpu.xid.95 gpu:GPU-5e1f [c2]"


def featured(world: World) -> None:
    """Opted out by its cluster: that shows only where the node is read."""
    world.rules = replace(world.rules, opt_out_feature="hands-off")
    world.cluster.nodes[NODE].features.add("hands-off")


STOPS = [opted_out, featured, partial(lowered, mode=Mode.OBSERVE)]


@pytest.mark.parametrize("stop", STOPS)
def test_a_person_who_undoes_our_drain_is_obeyed_while_nothing_may_be_done(
    tmp_path: Path, stop: Callable[[World], None]
) -> None:
    """Opted out, or in observe mode: its place in the budget would keep jobs off, and is given back, through a kill as
    well. Once that is taken back the node is not drained again until the fault ends and comes back."""
    world = World(tmp_path)
    allowed = world.rules
    world.at(10, lambda: world.log_line(XID_95))
    world.run(12)
    assert world.cluster.slots
    stop(world)
    world.run(10)
    assert "is paused at verify: " in world.message[-1]
    world.restart_daemon()
    admin_undrains(world)
    world.run(2)
    ended = Ending(in_service=True, holder="", ends=("acknowledged",), drains=1, releases=0)
    assert (world.ending(), world.cluster.slots) == (ended, {})
    world.rules = allowed
    world.run(20)
    assert world.ending() == ended
    world.reset_gpu()
    world.run(5)
    world.log_line(XID_95)
    world.run(5)
    assert world.hold_text == "healthd: gpu.xid.95 gpu:GPU-5e1f [c2]"


@pytest.mark.parametrize("stop", STOPS)
def test_a_drain_that_the_controller_lost_is_no_order_while_nothing_may_be_done(
    tmp_path: Path, stop: Callable[[World], None]
) -> None:
    """It is not made again either, until something may be done; one that was kept over a restart, and then undone, is
    a command."""
    world = World(tmp_path / "lost")
    allowed = world.rules
    world.at(10, lambda: world.log_line(XID_95))
    world.run(12)
    stop(world)
    world.run(5)
    world.cluster.restart(losing=[NODE])
    world.run(5)
    assert (world.ending().drains, world.ending().ends, len(world.cluster.slots)) == (1, ("None",), 1)
    world.rules = allowed
    world.run(5)
    assert (world.ending().drains, world.hold_text) == (2, "healthd: gpu.xid.95 gpu:GPU-5e1f [c1]")
    stop(world)
    world.run(1)
    world.cluster.restart()
    world.run(1)
    admin_undrains(world)
    assert world.run(2).ending().ends == ("acknowledged",)


@pytest.mark.parametrize("stop", STOPS)
def test_what_stands_while_nothing_may_be_done_stays(tmp_path: Path, stop: Callable[[World], None]) -> None:
    """Somebody else's drain over ours is left alone as ever; a reboot that was asked for is waited for, whoever undoes
    the drain meanwhile: it must not meet a job."""
    world = World(tmp_path / "admin")
    world.at(10, lambda: world.log_line(XID_95))
    world.run(12)
    stop(world)
    admin_drains(world)
    world.run(5)
    assert (world.hold_text, world.ending().ends, len(world.cluster.slots)) == (ADMIN, ("None",), 1)
    world = World(tmp_path / "reboot", mode=Mode.REPAIR)
    world.never_boots = True
    world.at(10, lambda: world.log_line(XID_79))
    world.run(15)
    assert world.provisioner.requests == 1
    stop(world)
    admin_undrains(world)
    world.run(5)
    assert (world.ending().ends, len(world.cluster.slots)) == (("None",), 1)


def test_an_undone_drain_is_an_order_also_after_a_restart_of_the_controller_that_kept_it(tmp_path: Path) -> None:
    """Only the restart that came between our last sight of the drain and its absence can have lost it."""
    world = World(tmp_path)
    world.at(10, lambda: world.log_line(XID_95)).at(40, world.cluster.restart).at(60, lambda: admin_undrains(world))
    assert world.run(40).ending().ends == ("acknowledged",)


# ---------------------------------------------------------------------------------------------------------------------
# silence


@pytest.mark.sampled(2)
def test_an_act_without_an_answer_is_read_back_not_repeated(replay: Replay, name: str) -> None:
    """Applied or not, with the answer lost: the same end, one drain, one release, no second reboot of a node that
    reboots."""
    cluster = {label for label in replay.passed if label.split()[1] not in ("save", "collect")}
    for number, world in replay.at_every_boundary(lambda _: no_answer()):
        if replay.passed[number] not in cluster:
            continue
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])
        assert world.provisioner.requests == (name == "repair"), (number, replay.passed[number])
        assert world.provisioner.replacements == (name == "replace"), (number, replay.passed[number])


@pytest.mark.sampled(3, kind=lambda steps, **_: steps)
@pytest.mark.parametrize("steps", [1, 60])
def test_while_the_cluster_is_silent_nothing_is_touched(replay: Replay, steps: int) -> None:
    """A controller that hangs from any boundary on, and applies what it was sent when it wakes up: at most the one act
    that was under way is sent to it, and the end is the same, or that the fault was over before anything was done."""
    spared = Ending(in_service=True, holder="", ends=(), drains=0, releases=0)
    ends = [WELL] if steps < 60 else [WELL, spared, replace(spared, ends=("abandoned",))]
    for number, world in replay.at_every_boundary(lambda world: setattr(world.cluster, "hung", True)):
        while not world.cluster.hung:
            world.step()
        acts = len(world.wire.numbers(*ACTS))
        world.run(steps)
        new = len(world.wire.numbers(*ACTS)) - acts
        assert new <= (replay.passed[number] == "after view"), (number, replay.passed[number])
        world.cluster.wake()
        assert world.run_to_end().ending() in ends, (number, replay.passed[number])


@pytest.mark.sampled(2)
def test_a_controller_that_loses_our_drain_gets_it_again(replay: Replay) -> None:
    """A restart that forgot the drain, at any boundary, is not a person's command: nothing is acknowledged, and a node
    whose fault is open is out again. While a reboot that was asked for is awaited nobody looks: lost in that time, the
    node comes back as Slurm's own DOWN, and is left to a person."""
    for number, world in replay.at_every_boundary(lambda world: world.cluster.restart(losing=[NODE]), half=True):
        while number >= len(world.wire.passed):
            world.step()
        world.run(5)  # the settle time of its place in the budget, and a turn
        asked = world.provisioner.requests + world.provisioner.replacements == 1
        if world.monitor.diagnoses() and not (asked and world.boot == 1):
            assert world.hold_text, (number, replay.passed[number])
        ending = world.run_to_end().ending()
        if asked and not ending.in_service:
            assert ending.holder == "slurm", (number, replay.passed[number])
            assert ending.ends in (("lost",), ("abandoned",)), (number, replay.passed[number])
        else:
            assert ending.in_service, (number, replay.passed[number])
            assert set(ending.ends) <= {"released", "abandoned"}, (number, replay.passed[number], ending.ends)
        assert not any("acknowledged" in text for text in world.audit("fault"))


# ---------------------------------------------------------------------------------------------------------------------
# a full disk


def test_without_a_written_intent_nothing_is_done(replay: Replay) -> None:
    """A write that fails, before or after it took effect, at any moment: no act lacks its intent on disk (the rig
    asserts that at every act of every test here), and the end is the same."""
    for number, world in replay.at_every_boundary(lambda _: disk_is_full()):
        if replay.passed[number].endswith("save"):
            assert world.run_to_end().ending() == WELL, (number, replay.passed[number])


@pytest.mark.sampled(2)
def test_a_disk_that_stays_full_stops_everything_until_it_can_be_written(replay: Replay) -> None:
    """From any boundary on for a minute: not one act that was not intended before."""
    for number, world in replay.at_every_boundary(lambda world: when(world, "before save", disk_is_full), half=True):
        while number >= len(world.wire.passed):
            world.step()
        world.run(7)
        world.wire.at = {}
        ending = world.run_to_end().ending()
        never_out = replace(WELL, ends=("abandoned",), drains=0, releases=0)  # it was over before it could be drained
        assert ending in (WELL, never_out), (number, replay.passed[number])


# ---------------------------------------------------------------------------------------------------------------------
# what the operator allows


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stop", [opted_out, partial(lowered, mode=Mode.OBSERVE)])
def test_opted_out_or_observing_nothing_more_is_done(replay: Replay, stop: Callable[[World], None]) -> None:
    """From any boundary on no act follows, but for the one that has begun; taken back, the remediation goes on to its
    end."""
    acts = [f"before {act}" for act in ("quarantine", "release", "reboot")]
    for number, world in replay.at_every_boundary(stop):
        allowed = world.rules
        while number >= len(world.wire.passed):
            world.step()
        world.run(30)
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
        world.run(15)
        assert world.wire.passed[number + 1 :].count("before reboot") == 0, (number, replay.passed[number])
        if not world.provisioner.requests:
            assert world.hold_text.startswith("healthd: gpu.xid.79"), (number, replay.passed[number])
            world.power_cycle()
        assert world.run_to_end().ending() == WELL, (number, replay.passed[number])


def test_a_reboot_that_was_asked_for_is_waited_for_though_the_mode_was_lowered(tmp_path: Path) -> None:
    """A node that seems well is not released into a reboot that may still come."""
    world = World(tmp_path, mode=Mode.REPAIR)
    snapshot = replace(XID_79, code="gpu.recovery", clears_by=None)
    world.never_boots = True
    world.levels = {snapshot}
    world.run(6)
    assert world.provisioner.requests == 1
    world.levels = set()
    lowered(world, Mode.QUARANTINE)
    world.run(60)
    assert world.hold_text, "still out"
    world.run_to_end()
    assert world.clock() > TIMEOUTS.reboot_timeout_s
    assert world.ending() == WELL


def test_a_release_that_was_applied_is_known_for_ours_though_the_mode_was_lowered(tmp_path: Path) -> None:
    """Lowering the mode forgets no intent: what we released is not taken for a person's undoing."""
    replay = Replay(repair_story, tmp_path)
    (released,) = replay.numbers("after release")
    world = replay.play()

    def lower_and_lose_the_answer() -> None:
        lowered(world, Mode.QUARANTINE)
        no_answer()

    world.wire.at[released] = lower_and_lose_the_answer
    assert world.run_to_end().ending() == WELL


@pytest.mark.parametrize("late_s", [60.0, 240.0])
def test_an_undrain_that_is_applied_late_meets_no_other_drain_of_ours(tmp_path: Path, late_s: float) -> None:
    """An undrain that got no answer may have been sent twice: as long as one may still be applied the node keeps its
    place, so that no new drain is there to be undone, which would read as a person's command."""
    world = World(tmp_path)
    world.at(10, lambda: world.log_line(XID_95)).at(60, world.reset_gpu)

    def lost_and_sent_again() -> None:
        world.wire.at.clear()
        world.at(world.clock() + late_s, lambda: world.cluster.update(NODE, "undrain", user="healthd"))
        world.at(world.clock() + 20, lambda: world.log_line(XID_95))
        no_answer()

    when(world, "after release", lost_and_sent_again)
    world.run(round((late_s + 120) / 5))
    assert world.ending().holder == "", "no new drain yet"
    assert world.orchestrator.view().fenced, "and no new job"
    world.run(80)
    assert world.hold_text == "healthd: gpu.xid.95 gpu:GPU-5e1f [c2]"
    assert world.ending().ends == ("released", "None")
    world.close()
