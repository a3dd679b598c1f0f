"""What follows when a repair does not help, when a place in the budget is lost, and when the disk knows nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendBusy, BackendRefused
from healthd.core.model import Action, Mode, Refusal, Remedy, Step
from healthd.remediation.decide.commands import Command
from healthd.remediation.decide.remediation import QUARANTINE_CODE
from healthd.remediation.engine.slots import LONGEST_PAUSE_S
from healthd.remediation.ports import StateOwner
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult, parse
from tests.support.engine_replay import ADMIN, WELL, Replay, when
from tests.support.engine_rig import (
    GPU,
    IN,
    NODE,
    OUT,
    STEP_S,
    TIMEOUTS,
    WORN_OUT,
    XID_79,
    XID_95,
    Trouble,
    World,
    quarantine_story,
    repair_story,
    replace_story,
    reset_story,
)
from tests.support.engine_wire import kill, no_answer

LEVEL_95 = Trouble(code="gpu.level", clears_by=None)


def test_a_reset_that_does_not_help_is_followed_by_a_reboot(tmp_path: Path) -> None:
    """The ladder goes up within one remediation: reset, reset again, reboot; every holder that was stopped runs
    again."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True)
    world.reset_heals = False
    world.levels.add(LEVEL_95)
    assert world.run_to_end().ending() == WELL
    assert (world.resetter.requests, world.provisioner.requests) == (2, 1)
    assert world.resetter.stopped == []
    assert any("reset_gpu did not help, reboot_node is next" in text for text in world.audit("step"))


def test_a_level_that_only_the_disk_remembers_drives_no_act(tmp_path: Path) -> None:
    """An operator swaps the board while the daemon is away. The daemon that starts remembers the fault, and gives no
    machine away before the check behind it has looked; that look ends the fault, and the node comes back."""
    worn = replace(WORN_OUT, clears_by=None)
    world = World(tmp_path, mode=Mode.REPAIR, can_replace=True)

    def swapped() -> None:
        world.end_jobs()
        world.levels.clear()
        world.restart_daemon()

    world.at(3, world.start_job).at(10, lambda: world.levels.add(worn)).at(200, swapped)
    assert world.run_to_end().ending().in_service
    assert world.provisioner.replacements == 0
    assert any("gpu.level has not found it since healthd started" in message for message in world.message)


def test_a_check_that_cannot_tell_after_a_start_drives_no_act(tmp_path: Path) -> None:
    """The same, and the check is unknown at first, as while the driver loads. An unknown has found nothing again."""
    worn = replace(WORN_OUT, clears_by=None)
    world = World(tmp_path, mode=Mode.REPAIR, can_replace=True)

    def swapped() -> None:
        world.end_jobs()
        world.levels.clear()
        world.blind = "NVML: not initialised"
        world.restart_daemon()

    world.at(3, world.start_job).at(10, lambda: world.levels.add(worn)).at(200, swapped)
    world.run(200)
    assert "gpu.remap.failure on gpu:GPU-5e1f may be over: gpu.level has not found it" in world.message[-1]
    world.blind = ""
    assert world.run_to_end().ending().in_service
    assert world.provisioner.replacements == 0


@pytest.mark.parametrize("remedy", [Remedy.RESET_GPU, Remedy.REBOOT_NODE])
def test_a_check_that_cannot_tell_after_a_repair_calls_it_no_failed_one(tmp_path: Path, remedy: Remedy) -> None:
    """The level was there before the repair, and its check is unknown from then on: no second repair, no machine is
    given away, and an operator is paged. Once the check can tell, the node proves itself."""
    missing = Trouble(code="gpu.missing", remedy=remedy, clears_by=None)
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True, can_replace=True)

    def goes_blind(step: Step) -> None:
        if step in (Step.RESET, Step.REBOOT):
            world.blind = "NVML: not initialised"

    world.acting = goes_blind
    world.at(10, lambda: world.levels.add(missing)).run(400)
    assert world.resetter.requests + world.provisioner.requests == 1
    assert world.provisioner.replacements == 0
    assert "gpu.missing on gpu:GPU-5e1f may be over: gpu.level has not found it since" in world.message[-1]
    assert world.engine.decision.action is Action.PAGE
    world.blind = ""
    assert world.run_to_end().ending() == WELL
    assert world.resetter.requests + world.provisioner.requests == 1


def test_what_cannot_be_told_makes_no_repair_a_failed_one(tmp_path: Path) -> None:
    """A check that is unknown from then on: one reset, no more of it and no reboot; a person is paged, and once the
    check can tell, the node proves itself and is let in."""
    world = reset_story(tmp_path)
    world.at(20, lambda: setattr(world, "blind", "nvme: no such command"))
    world.run(400)
    assert (world.resetter.requests, world.provisioner.requests) == (1, 0)
    assert world.message[-1] == "out until it is healthy: gpu.level is unknown: nvme: no such command"
    assert world.engine.decision.action is Action.PAGE
    world.blind = ""
    assert world.run_to_end().ending() == WELL
    assert (world.resetter.requests, world.provisioner.requests) == (1, 0)


def test_a_node_whose_slot_is_gone_reads_the_fleet_ever_more_rarely(tmp_path: Path) -> None:
    """Others took its slots, and it waits for one, drained as it is: as any other node that waits."""
    world = repair_story(tmp_path).run(6)
    world.cluster.slots.clear()
    for index in range(2):
        world.cluster.claim("cluster", index, f"n{index + 2}")
    world.run(10)
    assert world.message[-1].startswith("reboot waits: its slot is gone, and at the fleet limit")
    before = len(world.wire.passed)
    world.run(60)
    assert world.wire.passed[before:].count("before snapshot") <= 60 * STEP_S / (LONGEST_PAUSE_S / 2)
    world.cluster.slots.clear()
    assert world.run_to_end().ending() == WELL


def test_a_second_slot_of_a_drained_node_is_given_back_and_delays_no_repair(tmp_path: Path) -> None:
    """A claim without an answer was made after all: one slot is enough, and no operator is called for it."""
    world = repair_story(tmp_path).run(7)
    world.cluster.claim("cluster", 1, NODE)
    assert world.run_to_end().ending() == WELL
    assert not any("its slot is gone" in message for message in world.message)


def test_a_reset_that_was_never_made_leaves_the_record_as_others_have_written_it(tmp_path: Path) -> None:
    """Its holders do not let go for three minutes, in which the daemon said that it watches. Nothing of an earlier
    repair, whose end is not known, is said to have helped."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True)
    earlier = PastRepair(act=PastAct.REBOOT, at=world.clock.now() - timedelta(days=30), code="gpu.xid.95")
    world.orchestrator.write_record(HandoffRecord(history=(earlier,)).text)
    world.resetter.held_by = "4711 nvidia-device-p"
    world.at(10, lambda: world.log_line(XID_95)).run(20)
    assert world.message[-1].startswith("GPU reset waits")
    watched = world.clock.now().replace(microsecond=0)
    record = parse(world.orchestrator.read_record()) or HandoffRecord()
    world.orchestrator.write_record(replace(record, watched=watched).text)
    world.run(30)
    record = parse(world.orchestrator.read_record()) or HandoffRecord()
    assert any("attempt 1 failed, trying again: no GPU reset" in text for text in world.audit("step"))
    assert record.watched == watched
    world.reset_gpu()
    assert world.run_to_end().ending() == WELL
    record = parse(world.orchestrator.read_record()) or HandoffRecord()
    assert world.resetter.requests == 0
    assert [(each.act, each.outcome) for each in record.history] == [
        (PastAct.REBOOT, RepairResult.NOT_KNOWN),
        (PastAct.RETURN, RepairResult.NOT_KNOWN),
    ]


def held_back(world: World, reason: str) -> World:
    """A replacement that waits: too many were made within the hour, or the platform has no time, or acts already."""

    def has_no_time() -> None:
        raise BackendBusy("InsufficientInstanceCapacity")

    match reason:
        case "too many":
            world.rules = replace(world.rules, replacements_per_hour=0)
        case "no time":
            world.provisioner._replaces = has_no_time
        case _:
            world.provisioner.others = "the platform replaces it already"
    return world.at(10, lambda: world.log_line(WORN_OUT)).run(20)


def test_a_replacement_that_the_rate_holds_back_reads_the_fleet_twice_a_minute(tmp_path: Path) -> None:
    """For hours, as other nodes do beside it."""
    world = held_back(World(tmp_path, mode=Mode.REPAIR, can_replace=True), "too many")
    before, minutes = len(world.wire.passed), 10
    world.run(round(minutes * 60 / STEP_S))
    assert world.wire.passed[before:].count("before snapshot") <= 4 * minutes
    assert world.message[-1].startswith("replacement waits: 0 machines were replaced within an hour, 0 may be")
    assert world.engine.decision.action is Action.PAGE
    world.rules = replace(world.rules, replacements_per_hour=4)
    world.run(10)
    assert world.provisioner.replacements == 1


@pytest.mark.parametrize("reason", ["too many", "no time", "acts already"])
def test_an_operator_ends_a_replacement_that_is_held_back(tmp_path: Path, reason: str) -> None:
    """By undoing the drain: the fault is acknowledged, and the slot given back."""
    world = held_back(World(tmp_path, mode=Mode.REPAIR, can_replace=True), reason)
    world.cluster.update(NODE, "resume")
    world.run(3)
    assert world.ending().ends == ("acknowledged",)
    assert (world.orchestrator.view().in_service, world.cluster.slots) == (True, {})


def test_a_reset_waits_for_what_is_still_ending(tmp_path: Path) -> None:
    """What was asked to end lets go after a minute: one attempt, one reset, and all of it runs again."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True)
    world.resetter.held_by = "4711 nvidia-device-p"
    world.at(10, lambda: world.log_line(XID_95)).at(90, lambda: setattr(world.resetter, "held_by", ""))
    assert world.run_to_end().ending() == WELL
    assert (world.resetter.requests, world.provisioner.requests, world.resetter.stopped) == (1, 0, [])
    assert any("GPU reset waits: the GPUs are still held by 4711" in text for text in world.audit("step"))


def test_a_gpu_that_nobody_lets_go_leads_to_the_reboot_and_never_hangs(tmp_path: Path) -> None:
    """Each attempt waits for so long and no longer; then the next remedy of the rule, with the sentence why."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True)
    world.resetter.held_by = "4711 nvidia-device-p"
    world.at(10, lambda: world.log_line(XID_95))
    assert world.run_to_end().ending() == WELL
    assert (world.resetter.requests, world.provisioner.requests, world.resetter.stopped) == (0, 1, [])
    why = "reboot_node is next: no GPU reset: the GPUs are still held by 4711 nvidia-device-p"
    assert any(f"[c1] {why}" in text for text in world.audit("step"))


def test_a_holder_that_cannot_be_ended_leads_straight_to_the_reboot(tmp_path: Path) -> None:
    """Where a reset is impossible from the start, the first rung is the reboot."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.at(10, lambda: world.log_line(XID_95))
    assert world.run_to_end().ending() == WELL
    assert (world.resetter.requests, world.provisioner.requests) == (0, 1)


def test_another_machine_with_the_same_fault_pages(tmp_path: Path) -> None:
    """A replacement that does not help is not followed by another: an image that breaks every node must not loop."""
    world = replace_story(tmp_path / "w")
    world.replacement_heals = False
    world.run(600)
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert "another machine did not help" in remediation.note
    assert (world.provisioner.replacements, world.engine.decision.action) == (1, Action.PAGE)
    assert world.hold_text.startswith("healthd: gpu.remap.failure")


def test_too_many_replacements_in_the_fleet_are_a_persons_business(tmp_path: Path) -> None:
    """The rate is read from the records at the nodes, which no restart forgets; when it is calm again, it goes on."""
    world = replace_story(tmp_path / "w")
    world.rules = replace(world.rules, replacements_per_day=100)
    stamp = int(world.clock.now().timestamp())
    for number in range(2, 6):
        world.cluster.nodes[f"n{number}"].record = f"healthd case=x machine=i-{number} replaced={stamp}"
    world.run(40)
    assert world.message[-1].startswith("replacement waits: 4 machines were replaced within an hour")
    assert (world.provisioner.replacements, world.engine.decision.action) == (0, Action.PAGE)
    world.clock.advance(3600)
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.replacements == 1


def test_nodes_that_are_idle_at_one_moment_do_not_pass_the_rate_together(tmp_path: Path) -> None:
    """Four others write theirs down between this node's reading and its own record: it takes that back and waits."""
    world = replace_story(tmp_path / "w")
    world.rules = replace(world.rules, replacements_per_day=100)

    def others_begin() -> None:
        record = parse(world.cluster.nodes[NODE].record)
        if record is not None and record.replaced is not None and not world.cluster.nodes["n2"].record:
            stamp = int(world.clock.now().timestamp())
            for number in range(2, 6):
                world.cluster.nodes[f"n{number}"].record = f"healthd case=x machine=i-{number} replaced={stamp}"

    when(world, "after write_record", others_begin)
    world.run(40)
    assert world.message[-1].startswith("replacement waits: 4 machines were replaced within an hour")
    record = parse(world.cluster.nodes[NODE].record)
    assert record is not None
    assert (record.replaced, record.history) == (None, ())
    world.clock.advance(3600)
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.replacements == 1


def test_a_repair_that_waits_for_an_operator_reads_the_fleet_twice_a_minute(tmp_path: Path) -> None:
    """Not in each turn: hundreds may wait for days."""
    world = World(tmp_path, mode=Mode.APPROVE)
    world.at(10, lambda: world.log_line(XID_79)).run(30)
    assert "approv" in world.message[-1]
    since, turns = len(world.wire.passed), 24
    world.run(turns)
    assert world.wire.passed[since:].count("before snapshot") <= turns * STEP_S / 30 + 1


def test_evidence_that_takes_minutes_leaves_the_reset_its_time(tmp_path: Path) -> None:
    """Each step begins when the one before has ended, not when the turn began."""
    world = World(tmp_path, mode=Mode.REPAIR, can_reset=True)
    world.at(10, lambda: world.log_line(XID_95))
    when(world, "before collect", lambda: world.clock.advance(2 * TIMEOUTS.let_go_s))
    world.resetter.held_by = "4711 nvidia-device-p"
    while not world.resetter.stopped:
        world.step()
    assert world.message[-1].startswith("GPU reset waits")
    world.run(3)
    world.resetter.held_by = ""
    assert world.run_to_end().ending() == WELL
    assert (world.resetter.requests, world.provisioner.requests) == (1, 0)


def test_a_repaired_node_returns_once_its_active_tests_pass(tmp_path: Path) -> None:
    """A finding keeps it out and pages; they run again after a quarter of an hour, and the node settles after them."""
    world = reset_story(tmp_path)
    world.found_by_tests, world.tests_take_s = "nccl.nvlink.slow was found: 90 GB/s", 60.0
    world.run(100)
    why = "stays out, an operator is needed: after the repair nccl.nvlink.slow was found: 90 GB/s; "
    assert (world.message[-1], world.engine.decision.refusal) == (f"{why}see `healthd release`", Refusal.PERSON)
    assert (world.engine.decision.action, world.resetter.requests, world.tested) == (Action.PAGE, 1, 1)
    world.found_by_tests = ""
    while world.tested < 2:
        world.step()
    passed_s = world.clock()
    assert world.run_to_end().ending() == WELL
    assert world.clock() - passed_s >= world.timeouts.settle_s
    assert (world.resetter.requests, world.tested) == (1, 2)


def test_a_daemon_that_ends_does_not_wait_for_its_tests(tmp_path: Path) -> None:
    """They run again with the next one, and nothing counts as passed meanwhile."""
    world = reset_story(tmp_path)
    world.while_tested = lambda: world.engine.end(0.0)
    while not world.tested:
        world.step()
    assert "the active tests run later, they were ended" in world.message[-1]
    world.while_tested = lambda: None
    world.restart_daemon()
    assert world.run_to_end().ending() == WELL
    assert (world.resetter.requests, world.tested) == (1, 2)


def test_a_machine_that_came_for_another_runs_its_tests(tmp_path: Path) -> None:
    """Its disk is empty, and its daemon has made no repair."""
    world = replace_story(tmp_path / "w").run_to_end()
    assert (world.ending(), world.tested) == (WELL, 1)


def test_an_operator_takes_a_node_as_its_tests_left_it(tmp_path: Path) -> None:
    """`healthd release` asks the checks, and not the active tests once more."""
    world = reset_story(tmp_path)
    world.found_by_tests = "gdrcopy.wrong was found: 3 bytes differ"
    world.run(100)
    assert world.execute(IN).done
    assert world.run_to_end().ending().in_service
    assert world.tested == 1


def test_a_node_that_was_not_repaired_runs_no_active_test(tmp_path: Path) -> None:
    """They load the whole node for minutes."""
    world = quarantine_story(tmp_path).run_to_end()
    assert (world.ending(), world.tested) == (WELL, 0)


SLOW = Trouble(code="nccl.test.slow", remedy=Remedy.REBOOT_NODE, clears_by=None)


def test_a_node_that_an_active_test_took_out_runs_it_again(tmp_path: Path) -> None:
    """Nothing else on the node can show that it is over: before the node settles, and a quarter of an hour after it
    was found again."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.found_by_tests, world.while_tested, world.tests_take_s = "90 GB/s", lambda: world.test(SLOW), 60.0
    world.at(10, lambda: world.test(SLOW)).run(150)
    assert world.tested == 1
    world.found_by_tests, world.while_tested = "", world.test
    world.run(60)
    assert world.tested == 2
    assert world.run_to_end().ending() == WELL
    assert world.tested == 2


def test_a_repair_for_an_active_tests_finding_is_judged_by_that_test(tmp_path: Path) -> None:
    """Where it finds the same after the reboot, the reboot did not help."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.found_by_tests, world.while_tested = "90 GB/s", lambda: world.test(SLOW)
    world.at(10, lambda: world.test(SLOW))
    for _ in range(150):
        if world.provisioner.requests < 2:
            world.step()
    assert world.provisioner.requests == 2
    world.found_by_tests, world.while_tested = "", world.test
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 2


def test_a_node_that_waits_for_an_active_test_names_its_command(tmp_path: Path) -> None:
    """The tests are turned off, or cannot run here."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.at(10, lambda: world.test(SLOW)).run(20)
    why = "nccl.test.slow on gpu:GPU-5e1f is still open until `healthd check --active nccl.test` passes"
    assert world.message[-1] == f"out until it is healthy: {why}"
    assert why in world.execute(IN).message
    world.test()
    assert world.run_to_end().ending() == WELL


def test_a_busy_platform_costs_no_attempt(tmp_path: Path) -> None:
    """Throttled, or no capacity at the moment: asked again later, as often as it takes."""
    world = repair_story(tmp_path)
    asked, calls = world.provisioner.reboot, []

    def busy() -> None:
        calls.append(world.clock())
        if len(calls) < 5:
            raise BackendBusy("RequestLimitExceeded")
        asked()

    world.provisioner.reboot = busy  # type: ignore[method-assign]
    assert world.run_to_end().ending() == WELL
    assert (len(calls), world.provisioner.requests) == (5, 1)


def test_what_is_not_needed_any_more_is_taken_back_before_anybody_begins(tmp_path: Path) -> None:
    """Where a platform waits before it acts, and the fault ends meanwhile: no reboot comes, the node proves itself."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.at(10, lambda: world.log_line(XID_95))
    world.never_boots, world.provisioner.recalls = True, True
    while not world.provisioner.requests:
        world.step()
    world.run(3)
    assert world.provisioner.taken_back == 0
    world.reset_gpu()
    assert world.run_to_end().ending() == WELL
    assert (world.provisioner.requests, world.provisioner.taken_back, world.boot) == (1, 1, 1)
    assert any("the reboot was taken back before it began" in text for text in world.audit("step"))


@pytest.mark.parametrize("acts_late", [True, False])
def test_a_request_that_stands_is_withdrawn_when_an_operator_undoes_the_drain(acts_late: bool, tmp_path: Path) -> None:
    """EKS node auto-repair acts half an hour later, on a node that runs jobs by then. What any other platform was asked
    for is under way, and is awaited."""
    world = repair_story(tmp_path)
    world.never_boots, world.provisioner.recalls, world.provisioner.acts_late = True, True, acts_late
    while not world.provisioner.requests:
        world.step()
    world.run(60)
    world.cluster.update(NODE, "resume", "")
    world.run(4)
    assert world.provisioner.taken_back == int(acts_late)
    assert world.ending().ends == ("acknowledged" if acts_late else "None",)


def test_a_request_stands_after_its_fault_until_an_operator_undoes_the_drain(tmp_path: Path) -> None:
    """The platform may have begun, so that the end of the fault is too late; jobs may come once the drain is gone."""
    world = World(tmp_path, mode=Mode.REPAIR).at(10, lambda: world.log_line(XID_95))
    world.never_boots, world.provisioner.recalls, world.provisioner.acts_late = True, True, True
    world.provisioner.too_late = True
    while not world.provisioner.requests:
        world.step()
    world.reset_gpu()
    world.run(60)
    assert world.provisioner.taken_back == 0
    world.cluster.update(NODE, "resume", "")
    world.run(4)
    assert world.provisioner.taken_back == 1
    assert world.ending().ends == ("acknowledged",)


def test_a_slot_that_was_taken_away_is_taken_again_while_a_request_stands(tmp_path: Path) -> None:
    """The platform acts half an hour later: without it one node more than the limit may be out by then."""
    world = repair_story(tmp_path)
    world.never_boots, world.provisioner.acts_late = True, True
    while not world.provisioner.requests:
        world.step()
    world.run(2)
    (slot,) = world.cluster.slots
    world.cluster.give_back(*slot)
    for _ in range(3):
        world.clock.advance(120.0)
        world.run(2)
    assert set(world.cluster.slots.values()) == {NODE}
    assert world.provisioner.requests == 1


@pytest.mark.parametrize("by_file", [True, False])
def test_an_opt_out_withdraws_a_request_that_stands_and_its_end_asks_again(by_file: bool, tmp_path: Path) -> None:
    """The node's owner wants nothing done here, and EKS node auto-repair would act all the same. The file on the node
    says so, or what only the cluster shows."""
    world = repair_story(tmp_path)
    world.never_boots, world.provisioner.recalls, world.provisioner.acts_late = True, True, True
    while not world.provisioner.requests:
        world.step()
    rules = world.rules = replace(world.rules, opt_out_feature="hands-off")
    if by_file:
        world.rules = replace(rules, opted_out="/etc/healthd/hands-off exists")
    else:
        world.cluster.nodes[NODE].features.add("hands-off")
    world.run(60)
    assert (world.provisioner.requests, world.provisioner.taken_back) == (1, 1)
    world.rules = rules
    world.cluster.nodes[NODE].features.clear()
    world.run(20)
    assert (world.provisioner.requests, world.provisioner.taken_back) == (2, 1)


def test_what_was_carried_out_is_taken_back_so_that_it_does_not_come_again(tmp_path: Path) -> None:
    """With the new boot, before anything else."""
    world = repair_story(tmp_path)
    world.provisioner.recalls = True
    assert world.run_to_end().ending() == WELL
    assert (world.provisioner.requests, world.provisioner.taken_back) == (1, 1)


def test_the_same_fault_on_many_nodes_is_no_nodes_fault(tmp_path: Path) -> None:
    """Rule 8: with three other nodes held for the same code within minutes, nothing is taken out, and it pages."""
    world = World(tmp_path, max_out="50%")
    for number in range(2, 5):
        world.cluster.update(f"n{number}", "drain", f"healthd: gpu.xid.95 gpu:GPU-{number} [a{number}]", user="healthd")
    world.at(10, lambda: world.log_line(XID_95))
    world.run(20)
    assert not world.hold_text
    assert world.engine.decision.action is Action.PAGE
    assert "gpu.xid.95" in world.message[-1]


def test_a_cluster_that_gives_no_places_pages(tmp_path: Path) -> None:
    """Whoever may not make reservations learns so from a page, not from a node that keeps failing jobs in silence."""
    world = World(tmp_path)
    claim = world.cluster.claim

    def refused(scope: str, index: int, node: str) -> None:
        raise BackendRefused("Error creating the reservation: Invalid user id")

    world.cluster.claim = refused  # type: ignore[method-assign]
    world.at(10, lambda: world.log_line(XID_95))
    world.run(6)
    assert world.message[-1] == "no slot can be taken: Error creating the reservation: Invalid user id"
    assert (world.engine.decision.action, world.hold_text) == (Action.PAGE, "")
    world.cluster.claim = claim  # type: ignore[method-assign]
    world.at(120, world.reset_gpu)
    assert world.run_to_end().ending() == WELL


# ---------------------------------------------------------------------------------------------------------------------
# a controller that forgets the drain of a node that was repaired


def repaired_and_forgotten(world: World) -> World:
    """Rebooted, verifying, and slurmctld starts without our drain: in service, and nobody has looked yet."""
    while not world.message or not world.message[-1].startswith(("out until it is healthy", "healthy again")):
        world.step()
    world.cluster.nodes[NODE].flags.clear()
    world.cluster.nodes[NODE].hold = None
    world.cluster.restart()
    return world


def test_a_repaired_node_whose_drain_got_lost_is_verified_all_the_same(tmp_path: Path) -> None:
    """Drained again, looked at by every check, good for the settle time, and only then let in; not repaired again."""
    world = repaired_and_forgotten(repair_story(tmp_path))
    assert not world.monitor.diagnoses(), "the fault is over, and that alone proves nothing"
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends) == (True, ("released",))
    assert (world.ending().drains, world.provisioner.requests) == (2, 1)
    messages = world.audit("step")
    again = next(number for number, text in enumerate(messages) if "lost our drain: it is made again" in text)
    assert any("verified: healthy since" in text for text in messages[again:])
    assert not any("reboot" in text for text in messages[again:])


def test_where_the_place_alone_fences_a_lost_place_is_taken_again(tmp_path: Path) -> None:
    """The same without a drain: the place, and verified."""
    world = repair_story(tmp_path)
    world.provisioner.state_owner = StateOwner.PLATFORM
    world.cluster.rebooted = announced  # type: ignore[method-assign]
    repaired_and_forgotten(world).cluster.slots.clear()
    world.run_to_end()
    assert (world.ending().ends, world.provisioner.requests) == (("released",), 1)
    assert any("verified: healthy since" in text for text in world.audit("step"))


def test_a_repaired_node_that_is_not_healthy_after_its_drain_got_lost_is_tried_again(tmp_path: Path) -> None:
    """The attempts that it had count; after the last an operator is needed."""
    world = repair_story(tmp_path)
    world.reboot_heals = False
    world.levels = {replace(XID_79, code="gpu.count", clears_by=None)}
    repaired_and_forgotten(world).run_to_end()
    assert (world.provisioner.requests, world.ending().ends) == (2, ("failed",))
    assert world.hold_text.startswith("healthd: ")


def test_the_page_for_a_repair_that_was_given_up_outlasts_its_drain(tmp_path: Path) -> None:
    """The node is drained again and verified again, and all that time an operator is needed."""
    world = repair_story(tmp_path)
    world.reboot_heals = False
    world.levels = {replace(XID_79, code="gpu.count", clears_by=None)}
    assert world.run_to_end().ending().ends == ("failed",)
    drains = world.ending().drains
    world.cluster.nodes[NODE].flags.clear()
    world.cluster.nodes[NODE].hold = None
    world.cluster.restart()
    for _ in range(200):
        world.step()
        assert world.engine.decision.action is Action.PAGE, world.message[-1]
        assert "given up after" in world.engine.decision.reason
    assert (world.ending().drains, world.provisioner.requests) == (drains + 1, 2)


@pytest.mark.parametrize(("command", "ends"), [(IN, "released"), (replace(IN, forced=True), "abandoned")])
def test_an_order_to_let_a_repaired_node_in_holds_though_its_drain_got_lost(
    tmp_path: Path, command: Command, ends: str
) -> None:
    """Verified first, or where it was forced left in service as it is."""
    world = repair_story(tmp_path)
    repaired_and_forgotten(world)
    world.run(1)
    assert world.execute(command).done
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends) == (True, (ends,))


def test_a_repaired_node_that_a_person_wants_in_service_is_not_held_up(tmp_path: Path) -> None:
    """What was acknowledged meanwhile does not keep the remediation waiting for a decision that nobody would make."""
    world = repair_story(tmp_path)
    world.reboot_heals = False
    world.levels = {replace(XID_79, code="gpu.count", clears_by=None)}
    repaired_and_forgotten(world)
    world.monitor.acknowledge(by=world.clock.now(), now=world.clock.now(), why="a person has seen it")
    world.run_to_end()
    assert (world.ending().in_service, world.ending().ends) == (True, ("released",))


# ---------------------------------------------------------------------------------------------------------------------
# in a hurry


def hurried(world: World) -> str:
    return world.engine.reconcile(world.clock.now(), hurry=True)


def test_a_job_that_is_about_to_start_meets_the_drain_at_once(tmp_path: Path) -> None:
    """In a hurry the drain does not wait for the settle time; what follows does."""
    world = World(tmp_path)
    world.log_line(XID_95)
    assert hurried(world) == "drained: the slot is held; re-reading after the settle time"
    assert world.hold_text.startswith("healthd: gpu.xid.95")
    world.at(60, world.reset_gpu)
    assert world.run_to_end().ending() == WELL


def test_an_order_is_in_no_hurry_because_a_job_was(tmp_path: Path) -> None:
    """The turn before it was; its own drain waits until its place has settled."""
    world = World(tmp_path)
    hurried(world)
    world.execute(OUT)
    world.run(1)
    assert (world.ours, len(world.cluster.slots)) == ([], 1)
    assert world.run(4).hold_text.startswith("healthd: operator.quarantine node [")


def test_over_the_limit_nothing_is_drained_in_a_hurry(tmp_path: Path) -> None:
    """Another node goes out between the claim and the reading behind it: the node waits for what the settle time
    brings. Its slot keeps new jobs off; the job that is about to start is not refused, and no job is requeued."""
    world = World(tmp_path, fleet=4, max_out=2)
    world.cluster.claim("cluster", 1, "n3")
    claim = world.orchestrator.claim

    def claimed(scope: str, index: int) -> None:
        claim(scope, index)
        world.cluster.update("n2", "drain", "no fan")

    world.orchestrator.claim = claimed  # type: ignore[method-assign]
    world.log_line(XID_95)
    assert "waiting for others to give back" in hurried(world)
    assert "waiting for others to give back" in hurried(world)
    assert (world.ours, len(world.cluster.slots)) == ([], 2)


def test_a_hurried_drain_without_a_place_is_let_go(tmp_path: Path) -> None:
    """Others went out meanwhile, and no place is left for this node: its drain is undone although it is not well."""
    world = World(tmp_path, fleet=4, max_out=1)
    world.log_line(XID_95)
    hurried(world)
    world.cluster.update("n2", "down", "no fan")
    world.run(int(LONGEST_PAUSE_S / 5))
    assert not world.hold_text
    assert not world.cluster.slots
    assert world.store.open_remediation() is None
    assert "at the fleet limit" in world.message[-1]


# ---------------------------------------------------------------------------------------------------------------------
# an empty store


def forget(world: World) -> None:
    """The database is gone, and the daemon starts."""
    world.store.close()
    shutil.rmtree(world.folder)
    world.folder.mkdir()
    world._start()


def test_a_daemon_without_a_memory_adopts_what_it_finds(tmp_path: Path) -> None:
    """Its place in the budget proves that the drain is its own: it verifies, releases and gives the place back."""
    world = World(tmp_path / "w")
    missing = Trouble(code="efa.missing", remedy=Remedy.REBOOT_NODE, clears_by=None)
    world.levels.add(missing)
    world.run(6)
    world.levels.discard(missing)
    forget(world)
    world.run_to_end()
    assert world.ending().in_service
    assert world.ending().ends == ("released",)
    assert not world.cluster.slots
    assert any("our drain was found, and no remediation of it in the store" in text for text in world.audit("step"))


def test_a_text_alone_proves_nothing(tmp_path: Path) -> None:
    """Anybody can write our words: without a place in the budget the node is left alone."""
    world = World(tmp_path / "w")
    world.cluster.update(NODE, "drain", f"healthd: gpu.xid.95 {GPU} [c1]", user="root")
    world.run(60)
    assert world.hold_text.startswith("healthd: gpu.xid.95")
    assert not world.ours


def test_a_place_without_a_drain_is_given_back(tmp_path: Path) -> None:
    """Killed and forgotten between the place and the drain, or drained by somebody since: only the place is ours."""
    world = World(tmp_path / "w")
    world.log_line(XID_95)
    world.run(1)
    assert world.cluster.slots
    world.cluster.update(NODE, "drain", ADMIN)
    forget(world)
    world.run(10)
    assert not world.cluster.slots
    assert world.hold_text == ADMIN


def first_list_unanswered(world: World) -> None:
    """The next question for the places gets no answer; the one after it does."""
    begin = len(world.wire.passed)

    def look() -> None:
        if world.wire.passed[-1] == "before slots":
            world.wire.at.clear()
            no_answer()

    world.wire.at = dict.fromkeys(range(begin, begin + 1000), look)


UNKNOWN = "what an earlier daemon left with it is not known: no answer within 5 s"


def test_until_it_is_known_what_was_left_nothing_is_begun(tmp_path: Path) -> None:
    """One lost answer at the start, with a fault open: no remediation adopts the slot of a command, which stays."""
    world = World(tmp_path / "w", mode=Mode.REPAIR)
    world.provisioner.state_owner = StateOwner.PLATFORM
    world.run(1)
    world.execute(OUT)
    world.run(5)
    forget(world)
    world.log_line(XID_95)
    first_list_unanswered(world)
    message = world.step()
    assert message == f"the node's state in the cluster could not be read, so nothing is taken out: {UNKNOWN}"
    assert (world.engine.decision.reason, world.engine.decision.refusal) == (message, Refusal.UNREADABLE)
    assert world.store.open_remediation() is None
    world.reset_gpu()
    world.run(60)
    remediation = world.store.open_remediation()
    assert remediation is not None
    assert (remediation.code, remediation.step) == (QUARANTINE_CODE, Step.STAY)
    assert world.cluster.slots == {("cluster", 0): NODE}


def rewrites_the_state(world: World, act: str) -> None:
    """When it is asked for this, the platform takes our drain off the node, as HyperPod does."""
    real: Callable[[], None] = getattr(world.provisioner, act)

    def taken_over() -> None:
        real()
        world.cluster.nodes[NODE].flags.clear()
        world.cluster.nodes[NODE].hold = None

    setattr(world.provisioner, act, taken_over)


def test_another_machine_with_the_same_fault_pages_although_the_first_answer_was_lost(tmp_path: Path) -> None:
    """On HyperPod a new ladder would begin: another reboot, and another machine."""
    world = replace_story(tmp_path / "w")
    world.provisioner.state_owner = StateOwner.AFTER_ASKING
    world.cluster.rebooted = announced  # type: ignore[method-assign]
    world.replacement_heals = False
    rewrites_the_state(world, "replace")
    while not world.replaced_at_s:
        world.step()
    world.another_machine()
    for _ in range(3):  # its checks have looked by then
        first_list_unanswered(world)
        world.step()
    world.run_to_end()
    assert UNKNOWN in "".join(world.message)
    assert world.ending().ends == ("failed",)
    assert "another machine did not help, an operator is needed" in world.message[-1]
    assert world.provisioner.replacements == 1


def test_whoever_asks_meanwhile_is_told_so(tmp_path: Path) -> None:
    """An command and its dry run are refused, a plan has nothing taken out, and it is counted and noted once."""
    world = World(tmp_path / "w", mode=Mode.REPAIR)
    world.log_line(XID_95)
    when(world, "before slots", no_answer)
    world.run(5)
    for outcome in (world.execute(OUT), world.engine.rehearse(IN, world.clock.now())):
        assert (outcome.done, outcome.refusal) == (False, Refusal.UNREADABLE)
        assert outcome.message == f"the cluster did not answer, and {UNKNOWN}"
    (planned,) = world.engine.considered()
    assert planned.decision.refusal is Refusal.UNREADABLE
    assert world.engine.holds_node() is None
    assert len(world.audit("decision")) == 1
    assert world.engine.stats.refused[Refusal.UNREADABLE] == 2  # the decision, and the command
    world.wire.at.clear()
    world.run(4)
    (planned,) = world.engine.considered()
    assert planned.decision.refusal is not Refusal.UNREADABLE
    assert world.hold_text.startswith("healthd: gpu.xid.95")


# ---------------------------------------------------------------------------------------------------------------------
# platforms that write the node's state themselves


def announced(name: str) -> None:
    """A reboot that the cluster was told of: the node comes back as it was."""


def test_where_a_drain_is_a_replacement_the_place_alone_fences(tmp_path: Path) -> None:
    """ParallelCluster and PCS: the whole remediation without a drain; jobs are kept off by the reservation."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.provisioner.state_owner = StateOwner.PLATFORM
    world.cluster.rebooted = announced  # type: ignore[method-assign]
    world.at(10, lambda: world.log_line(XID_79))
    world.run(8)
    assert not world.hold_text
    assert not world.orchestrator.view().in_service
    ending = world.run_to_end().ending()
    assert ending == replace(WELL, drains=0, releases=0)
    assert world.provisioner.requests == 1


def test_a_machine_that_the_manager_put_in_place_of_a_reboot_is_verified(tmp_path: Path) -> None:
    """A reboot that never came back is answered by another machine there: it finds what was left, and proves itself."""
    world = World(tmp_path / "w", mode=Mode.REPAIR)
    world.provisioner.state_owner = StateOwner.PLATFORM
    world.never_boots = True
    world.cluster.rebooted = announced  # type: ignore[method-assign]
    world.at(10, lambda: world.log_line(XID_79))
    world.run(30)
    assert world.provisioner.requests == 1
    world.another_machine()
    world.run_to_end()
    assert world.ending().ends == ("released",)
    assert not world.cluster.slots
    messages = world.audit("step")
    assert any("a repair of i-0fake0, under this name, was left unfinished" in text for text in messages), messages
    assert any("verified: " in text for text in messages)


def asked_and_taken_over(folder: Path) -> World:
    """A reboot for which the platform rewrites the node's state, as HyperPod does."""
    world = World(folder, mode=Mode.REPAIR)
    world.provisioner.state_owner = StateOwner.AFTER_ASKING
    world.cluster.rebooted = announced  # type: ignore[method-assign]
    rewrites_the_state(world, "reboot")
    return world.at(10, lambda: world.log_line(XID_79))


def test_where_the_request_takes_the_drains_place_the_place_in_the_budget_stays(tmp_path: Path) -> None:
    """HyperPod rewrites the node's state for what it was asked: that is no command of a person's, and no loss."""
    world = asked_and_taken_over(tmp_path)
    ending = world.run_to_end().ending()
    assert (ending.in_service, ending.ends, ending.drains, ending.releases) == (True, ("released",), 1, 0)
    assert not world.cluster.slots


def test_a_node_that_boots_once_more_after_the_platform_has_put_it_back_is_resumed(tmp_path: Path) -> None:
    """HyperPod sees to its own reasons alone: nothing else ends a DOWN that slurmctld sets for an unannounced boot."""
    world = asked_and_taken_over(tmp_path)
    while not any("rebooted: " in text for text in world.audit("step")):
        world.step()
    world.cluster.update(NODE, "down", "Node unexpectedly rebooted", user="slurm")
    ending = world.run_to_end().ending()
    assert (ending.in_service, ending.ends, ending.drains, ending.releases) == (True, ("released",), 1, 1)
    assert not world.cluster.slots


def test_killed_before_the_record_of_it_that_is_still_no_order_of_a_persons(tmp_path: Path) -> None:
    """At any boundary: the node that HyperPod has put back is verified all the same, and asked for once."""
    for number, world in Replay(asked_and_taken_over, tmp_path).at_every_boundary(lambda _: kill()):
        ending = world.run_to_end().ending()
        assert (ending.in_service, ending.ends, ending.drains) == (True, ("released",), 1), number
        assert world.provisioner.requests == 1, number
        assert any("verified: " in text for text in world.audit("step")), number


@pytest.mark.parametrize("label", ["before reboot", "after reboot"])
def test_a_request_without_an_answer_loses_no_drain(label: str, tmp_path: Path) -> None:
    """It may have taken the drain's place, or never have come: the next reading tells, and no drain of ours is taken
    for another's. One that never came is asked for again once its time is up."""
    world = asked_and_taken_over(tmp_path)

    def lost() -> None:
        if world.wire.passed[-1] == label:
            world.wire.at.clear()
            no_answer()

    world.wire.at = dict.fromkeys(range(10_000), lost)
    ending = world.run_to_end().ending()
    assert (ending.in_service, ending.ends, ending.drains) == (True, ("released",), 1)
    assert world.provisioner.requests == 1
    assert not world.cluster.slots


def test_a_reboot_that_was_asked_for_explains_a_node_that_is_down_to_whoever_remembers_nothing(tmp_path: Path) -> None:
    """Its disk lost between the request and the boot: the record tells of the reboot, so that the node is resumed."""
    world = repair_story(tmp_path / "w")
    while not world.provisioner.requests:
        world.step()
    world.boots_at_s = 0.0
    world.another_machine()
    assert "DOWN" in world.orchestrator.view().flags
    assert world.run_to_end().ending() == WELL
    assert world.provisioner.requests == 1


def test_a_place_that_a_person_takes_away_is_an_order(tmp_path: Path) -> None:
    """Where the place is all there is, deleting the reservation is undoing our drain."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.provisioner.state_owner = StateOwner.PLATFORM
    world.at(10, lambda: world.log_line(XID_79)).at(60, world.cluster.slots.clear)
    assert world.run(30).ending().ends == ("acknowledged",)


@pytest.mark.parametrize(("fault", "heals"), [(XID_79, "requests"), (WORN_OUT, "replacements")])
def test_under_another_ones_maintenance_no_machine_is_repaired(tmp_path: Path, fault: Trouble, heals: str) -> None:
    """Our reservation deleted and an administrator's own in its place, while the job still ran: fenced, but not by
    us."""
    world = World(tmp_path, mode=Mode.REPAIR, can_replace=True)
    world.provisioner.state_owner = StateOwner.PLATFORM
    world.at(3, world.start_job).at(10, lambda: world.log_line(fault))

    def maintain() -> None:
        world.cluster.slots.clear()
        world.cluster.maintenance.add(NODE)

    world.at(40, maintain).at(60, world.end_jobs)
    world.run(40)
    assert getattr(world.provisioner, heals) == 0
    assert world.ending().ends == ("acknowledged",)


def test_a_place_that_is_gone_from_one_scope_is_taken_anew_before_the_repair(tmp_path: Path) -> None:
    """Fenced by the partition's place alone it would be missing in the fleet's count; without room it waits."""
    world = World(tmp_path, mode=Mode.REPAIR, max_out=1)
    world.cluster.partitions = {"gpu": [NODE, "n2"]}
    world.quotas = {"gpu": 1}
    world.restart_daemon()
    world.provisioner.state_owner = StateOwner.PLATFORM
    world.cluster.rebooted = announced  # type: ignore[method-assign]
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79)).run(8)
    assert set(world.cluster.slots) == {("cluster", 0), ("gpu", 0)}
    world.cluster.slots[("cluster", 0)] = "n3"
    world.end_jobs()
    world.run(10)
    assert world.message[-1].startswith("reboot waits: its slot is gone, and at the fleet limit")
    assert world.provisioner.requests == 0
    del world.cluster.slots[("cluster", 0)]
    assert world.run_to_end().ending().ends == ("released",)
    assert world.provisioner.requests == 1


def test_while_another_acts_on_the_machine_nothing_is_asked_for(tmp_path: Path) -> None:
    """HyperPod's own agent, or clustermgtd, at work: the repair waits, and says for whom."""
    world = repair_story(tmp_path)
    world.provisioner.others = "HyperPod acts on n1 already"
    world.run(40)
    assert world.message[-1] == "reboot waits: HyperPod acts on n1 already"
    assert world.provisioner.requests == 0
    world.provisioner.others = ""
    assert world.run_to_end().ending() == WELL


def test_a_wear_out_without_another_machine_keeps_the_node_out(tmp_path: Path) -> None:
    """Nobody here can replace it: it is kept out, and a person is told."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.at(10, lambda: world.log_line(WORN_OUT))
    world.run(40)
    assert world.hold_text.startswith("healthd: gpu.remap.failure")
    assert world.provisioner.requests == 0
