"""What Slurm does to a drain by itself: an appended remark, a text of its own over ours, a drain of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Action, Mode, Refusal, Remedy
from healthd.remediation.decide.commands import Command, Verb
from healthd.remediation.decide.paging import OUT_BY_COMMAND_S
from healthd.remediation.decide.remediation import End
from healthd.remediation.ports import Hold
from tests.support.engine_replay import ADMIN, WELL, Replay
from tests.support.engine_rig import IN, NODE, STEP_S, XID_79, XID_95, World, replace_story
from tests.support.engine_wire import kill

KTF = "Kill task failed"


def _adopting(folder: Path, mode: Mode = Mode.REPAIR) -> World:
    world = World(folder, mode=mode)
    world.rules = replace(world.rules, adopt_automatic=True)
    return world


def _until(world: World, words: str, steps: int = 60) -> None:
    for _ in range(steps):
        if words in world.step():
            return
    raise AssertionError(f"{words!r} was never said: {world.transcript()}")


def killed_task_story(folder: Path) -> World:
    """XID 79 under a job, whose process hangs in the driver: Slurm gives up on it, over our drain, and the job ends."""
    world = World(folder, mode=Mode.REPAIR)
    world.start_job()
    world.at(10, lambda: world.log_line(XID_79))
    world.at(90, lambda: world.cluster.drains_by_itself(NODE), world.end_jobs)
    return world


def test_kill_task_failed_during_a_case_ends_in_a_repair_and_a_release(tmp_path: Path) -> None:
    """Slurm's text in the place of ours is a remark: the remediation and its slot go on, and the trail has the
    remark."""
    world = killed_task_story(tmp_path).run_to_end()
    assert world.ending() == WELL
    assert (world.provisioner.requests, world.cluster.slots) == (1, {})
    remarks = [text for text in world.audit("step") if f'the cluster wrote "{KTF}" by itself, as root' in text]
    assert len(remarks) == 1


def test_kill_task_failed_is_survived_with_a_kill_at_every_boundary(tmp_path: Path) -> None:
    """kill -9 wherever it comes: one reboot, one release, no slot left."""
    replay = Replay(killed_task_story, tmp_path)
    for number, world in replay.at_every_boundary(lambda _: kill(), half=True):
        world.run_to_end()
        assert world.ending().in_service, (number, world.transcript())
        assert world.ending().ends == ("released",), (number, world.transcript())
        assert (world.provisioner.requests, world.cluster.slots) == (1, {}), number


def test_an_order_counts_from_when_it_was_given_whatever_slurm_writes_over_its_drain(tmp_path: Path) -> None:
    """Its disk is lost as well, so that only the drain told when that was. It pages a day after it, and no later."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.execute(Command(verb=Verb.QUARANTINE, who="uid 0", why="psu looks odd"))
    drained_s = world.run(6).clock()
    world.clock.advance(43_200.0)
    world.lose_store()
    world.run(6).cluster.drains_by_itself(NODE)
    _until(world, "out by command")
    world.clock.advance(drained_s + OUT_BY_COMMAND_S - world.clock() - 120.0)
    pages = []
    for seconds in (0.0, 180.0):
        world.clock.advance(seconds)
        world.step()
        pages.append(world.engine.decision.action is Action.PAGE)
    assert pages == [False, True]


def test_slurms_text_comes_at_any_boundary_and_the_node_comes_back(tmp_path: Path) -> None:
    """Wherever in the remediation Slurm writes over our drain: the node is repaired once and comes back by our hand.
    Where no drain of ours stands, Slurm's is its own, and stays."""

    def over_our_drain(world: World) -> None:
        if world.hold_text.startswith("healthd: "):
            world.cluster.drains_by_itself(NODE)

    def story(folder: Path) -> World:
        world = World(folder, mode=Mode.REPAIR)
        return world.at(10, lambda: world.log_line(XID_79))

    replay = Replay(story, tmp_path)
    window = replay.window("quarantine", "release")
    for number, world in replay.at_every_boundary(over_our_drain):
        world.run_to_end()
        assert world.ending().in_service or number in window, (number, world.transcript())
        assert "lost" not in world.ending().ends, (number, world.transcript())
        assert world.provisioner.requests == 1, number


def test_a_person_who_drains_over_slurms_text_keeps_the_node(tmp_path: Path) -> None:
    """Ours, then Slurm's, then an operator's: the last one is a command, and healthd leaves it alone."""
    world = World(tmp_path, mode=Mode.QUARANTINE).at(10, lambda: world.log_line(XID_79))
    world.at(60, lambda: world.cluster.drains_by_itself(NODE))
    while not any("over our drain" in text for text in world.audit("step")):
        world.step()
    assert world.store.open_remediation() is not None
    world.cluster.update(NODE, "drain", ADMIN)
    world.run_to_end()
    assert (world.hold_text, world.ending().ends, world.cluster.slots) == (ADMIN, ("lost",), {})


WRITTEN_OVER = f'the cluster wrote "{KTF}" over our drain, and nothing was repaired since'


@pytest.mark.parametrize("how", ["resume", "release", "repair", "reboot"])
def test_a_quarantine_over_which_slurm_wrote_stays_out_for_an_operator(how: str, tmp_path: Path) -> None:
    """Its fault ends without a repair; the process that Slurm could not end may be there still. It pages, until the
    operator puts the node back, by healthd or without, or has it rebooted, by healthd or without."""
    fault = replace(XID_79, clears_by=None)
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.levels.add(fault)
    _until(world, "out until it is healthy")
    world.cluster.drains_by_itself(NODE)
    _until(world, "out until it is healthy")
    world.levels.clear()
    world.run(60)
    assert (world.hold_text, len(world.cluster.slots), WRITTEN_OVER in world.message[-1]) == (KTF, 1, True)
    assert (world.engine.decision.action, world.engine.decision.refusal) == (Action.PAGE, Refusal.PERSON)
    match how:
        case "resume":
            world.cluster.update(NODE, "resume")
        case "release":
            assert world.execute(IN).done
        case "repair":
            assert world.execute(Command(verb=Verb.REPAIR, who="uid 0", remedy=Remedy.REBOOT_NODE)).done
        case "reboot":
            world.power_cycle()
    end = "acknowledged" if how == "resume" else "released"
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends, world.cluster.slots) == (True, (end,), {})


def _written_over_in_quarantine(world: World, *, rebooted_before: bool) -> None:
    """Drained for XID 79, which a reboot by hand ends; Slurm writes over our drain before that or after it."""
    world.log_line(XID_79)
    _until(world, "out until it is healthy")
    if rebooted_before:
        world.power_cycle()
        world.step()
    world.cluster.drains_by_itself(NODE)
    world.step()
    assert any("over our drain" in text for text in world.audit("step"))


def test_a_reboot_by_hand_ends_what_slurm_wrote_over_our_drain_before(tmp_path: Path) -> None:
    """The process that Slurm could not end is gone with the boot, so that the drain is ours to undo."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    _written_over_in_quarantine(world, rebooted_before=False)
    world.power_cycle()
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends, world.cluster.slots) == (True, ("released",), {})


def test_what_slurm_writes_over_our_drain_after_a_reboot_by_hand_stays_for_an_operator(tmp_path: Path) -> None:
    """The reboot ended the fault and not what Slurm found later, also where the daemon starts again in between."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    _written_over_in_quarantine(world, rebooted_before=True)
    world.restart_daemon()
    world.run(60)
    assert (world.hold_text, world.ending().ends, WRITTEN_OVER in world.message[-1]) == (KTF, ("None",), True)
    assert (world.engine.decision.action, world.engine.decision.refusal) == (Action.PAGE, Refusal.PERSON)


def test_what_slurm_wrote_while_the_daemon_was_away_counts_by_its_own_time(tmp_path: Path) -> None:
    """The daemon reads Slurm's text in the boot after: by the text's stamp it is older than that boot, which ended
    it."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.log_line(XID_79)
    _until(world, "out until it is healthy")
    world.cluster.drains_by_itself(NODE)
    world.clock.advance(60.0)
    world.power_cycle()
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends, world.cluster.slots) == (True, ("released",), {})


def test_a_person_who_undoes_slurms_text_gives_an_order(tmp_path: Path) -> None:
    """The drain that Slurm wrote over was ours: undoing it acknowledges the fault as ever."""
    world = World(tmp_path, mode=Mode.QUARANTINE).at(10, lambda: world.log_line(XID_79))
    _until(world, "out until it is healthy")
    world.cluster.drains_by_itself(NODE)
    _until(world, "out until it is healthy")
    world.cluster.update(NODE, "resume")
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends) == (True, ("acknowledged",))


@pytest.mark.parametrize("text", ["{} please leave", "{} : reboot complete", "Anna: {}", "{} : Not responding, Anna"])
def test_a_person_who_edits_our_text_and_keeps_its_id_is_respected(tmp_path: Path, text: str) -> None:
    """Our id in a text that Slurm did not write makes it no drain of ours."""
    world = World(tmp_path, mode=Mode.QUARANTINE).at(10, lambda: world.log_line(XID_79))
    _until(world, "out until it is healthy")
    edited = text.format(world.hold_text)
    world.cluster.update(NODE, "", edited)
    world.run_to_end()
    assert (world.hold_text, world.ending().ends) == (edited, ("lost",))


@pytest.mark.parametrize("mode", [Mode.QUARANTINE, Mode.REPAIR])
def test_a_node_that_an_operator_has_slurm_reboot_comes_back(tmp_path: Path, mode: Mode) -> None:
    """`scontrol reboot NODE` of a node that we hold: Slurm appends to our reason and keeps the drain, which stays ours.
    We ask for no second reboot beside it."""
    world = World(tmp_path, mode=mode)
    world.start_job()
    world.log_line(XID_79)
    world.run(12)
    node, requested = world.cluster.nodes[NODE], "REBOOT_REQUESTED"
    node.flags.add(requested)
    world.end_jobs()
    world.run(6)
    if mode is Mode.REPAIR:
        assert world.message[-1] == f"reboot waits: the cluster reboots the node already: it is {requested}"
    node.hold = Hold(text=f"{world.hold_text} : reboot issued", user="root", stamp=int(world.seconds()))
    world.power_cycle()
    node.flags.difference_update({requested, "DOWN"})
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends, world.cluster.slots) == (True, ("released",), {})
    assert world.provisioner.requests == 0


@pytest.mark.parametrize("text", ["Kill task failed", "Epilog error"])
def test_slurm_that_appends_to_our_reason_loses_us_no_node(tmp_path: Path, text: str) -> None:
    """From 24.11 on a reboot leaves " : Not responding" behind our reason, with Slurm's user and stamp."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.cluster.appends = True
    world.at(10, lambda: world.log_line(XID_79))
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1


def test_a_killed_slurmctld_that_forgot_what_it_appended_loses_us_no_node(tmp_path: Path) -> None:
    """What it read back has our own user and stamp again."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.cluster.appends = True
    world.at(10, lambda: world.log_line(XID_79))
    drain = None
    while not world.hold_text.endswith("Not responding"):
        drain = world.cluster.nodes[NODE].hold
        world.step()
    world.run(2)
    world.cluster.nodes[NODE].hold = drain
    assert world.run_to_end().ending() == WELL


def test_a_replaced_machine_goes_on_behind_slurms_text(tmp_path: Path) -> None:
    """The successor has an empty disk, and the reason names no remediation any more: slot and handoff record do."""
    world = replace_story(tmp_path)
    _until(world, "waiting for another instance")
    world.cluster.drains_by_itself(NODE)
    world.run_to_end()
    assert (world.ending().in_service, world.cluster.slots, world.machine) == (True, {}, 2)


# ---------------------------------------------------------------------------------------------------------------------
# a drain of Slurm's before ours


def test_a_node_that_slurm_drained_is_repaired_where_a_fault_calls_for_it(tmp_path: Path) -> None:
    """Repair mode: the drain stays as Slurm wrote it, a slot is taken, the node reboots, and comes back by our hand."""
    world = _adopting(tmp_path)
    world.cluster.drains_by_itself(NODE)
    world.at(10, lambda: world.log_line(XID_79))
    world.run_to_end()
    ending = world.ending()
    assert (ending.in_service, ending.drains, ending.releases, ending.ends) == (True, 0, 1, ("released",))
    assert (world.provisioner.requests, world.cluster.slots) == (1, {})


def test_an_adopted_drain_is_survived_with_a_kill_at_every_boundary(tmp_path: Path) -> None:
    """As a drain of our own is."""

    def story(folder: Path) -> World:
        world = _adopting(folder)
        world.cluster.drains_by_itself(NODE)
        return world.at(10, lambda: world.log_line(XID_79))

    for number, world in Replay(story, tmp_path).at_every_boundary(lambda _: kill(), half=True):
        world.run_to_end()
        assert (world.ending().in_service, world.ending().drains) == (True, 0), (number, world.transcript())
        assert (world.provisioner.requests, world.cluster.slots) == (1, {}), number


def test_a_fault_that_is_over_before_a_repair_leaves_slurms_drain(tmp_path: Path) -> None:
    """Nothing was done for what made Slurm drain the node, so its drain is not ours to undo."""
    world = _adopting(tmp_path)
    world.start_job()
    world.cluster.drains_by_itself(NODE)
    world.at(10, lambda: world.log_line(XID_95)).at(200, world.reset_gpu, world.end_jobs)
    world.run_to_end()
    assert (world.hold_text, world.cluster.slots, world.ours) == (KTF, {}, [])


@pytest.mark.parametrize(
    ("mode", "adopts"), [(Mode.QUARANTINE, True), (Mode.REPAIR, False)], ids=["quarantine mode", "setting off"]
)
def test_what_is_not_adopted_is_paged_with_both_facts(tmp_path: Path, mode: Mode, adopts: bool) -> None:
    """A node that Slurm drained while a fatal fault is open is left alone, and a person is told of both."""
    world = World(tmp_path, mode=mode)
    world.rules = replace(world.rules, adopt_automatic=adopts)
    world.cluster.drains_by_itself(NODE)
    world.at(10, lambda: world.log_line(XID_79)).run(20)
    decision = world.engine.decision
    assert (decision.action, decision.refusal) == (Action.PAGE, Refusal.FOREIGN_HOLD)
    assert KTF in decision.reason
    assert "gpu.xid.79" in decision.reason
    assert (world.ours, world.cluster.slots, world.store.open_remediation()) == ([], {}, None)


def test_a_node_that_is_down_by_itself_is_not_adopted(tmp_path: Path) -> None:
    """What made Slurm give the node up is not known to be over after a repair."""
    world = _adopting(tmp_path)
    world.cluster.rebooted(NODE)
    world.at(10, lambda: world.log_line(XID_79)).run(20)
    assert (world.ours, world.cluster.slots) == ([], {})
    assert "Node unexpectedly rebooted" in world.engine.decision.reason


def test_a_drain_of_slurms_while_a_slot_settles_is_gone_on_with(tmp_path: Path) -> None:
    """Between slot and drain Slurm drains the node: its text stays, and the repair goes on."""
    world = _adopting(tmp_path)
    world.at(10, lambda: world.log_line(XID_79))
    _until(world, "fenced")
    world.cluster.drains_by_itself(NODE)
    world.run(int(30 / STEP_S))
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert (remediation.adopted, remediation.end, world.hold_text) == (True, None, KTF)
    world.run_to_end()
    assert [each.end for each in world.store.remediations()] == [End.RELEASED]


def test_a_persons_drain_is_never_adopted(tmp_path: Path) -> None:
    """Held as ever."""
    world = _adopting(tmp_path)
    world.cluster.update(NODE, "drain", ADMIN)
    world.at(10, lambda: world.log_line(XID_79)).run(20)
    assert (world.hold_text, world.ours, world.engine.decision.action) == (ADMIN, [], Action.HOLD)
