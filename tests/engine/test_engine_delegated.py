"""A node that asks `healthd controller` for repairs while none runs: nothing is begun, so nothing counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.model import Action, Mode, Remedy
from healthd.remediation.decide.commands import Command, Verb
from healthd.remediation.decide.ledger import repairs_of
from healthd.remediation.provisioners.delegated import DelegatedProvisioner
from healthd.remediation.records.handoff import UNASKED_S, HandoffRecord, PastAct, RequestAnswer, parse
from tests.support.engine_replay import when
from tests.support.engine_rig import NODE, STEP_S, WORN_OUT, XID_79, Trouble, World
from tests.support.engine_wire import kill

LINK = Trouble(code="efa.missing", remedy=Remedy.REBOOT_NODE, clears_by=None)


def asking(folder: Path) -> World:
    """A node whose provisioner only asks."""
    world = World(folder, mode=Mode.REPAIR, can_replace=True)
    world.provisioner = DelegatedProvisioner(  # type: ignore[assignment]
        inner=world.provisioner,
        instance_id=world.provisioner.instance,
        read=world.orchestrator.read_record,
        write=world.orchestrator.write_record,
        clock=world.clock.now,
        monotonic_s=world.clock,
    )
    world.restart_daemon()
    return world


def acts(world: World) -> list[PastAct]:
    record = parse(world.orchestrator.read_record())
    return [each.act for each in record.history] if record else []


@pytest.mark.parametrize("waits", [False, True])
def test_a_request_that_no_controller_took_is_no_repair(waits: bool, tmp_path: Path) -> None:
    """The node asks for a reboot for hours, and pages all along. No act was made, the record knows none, and nothing
    shows that a reboot does not help: it never asks for another machine, also where its request waits."""
    world, asked, pages = asking(tmp_path), [], list[bool]()

    def look() -> None:
        record = parse(world.orchestrator.read_record()) or HandoffRecord()
        pages.append(world.engine.decision.action is Action.PAGE)
        if record.asks and record.asked not in asked:
            asked.append(record.asked)
            assert (record.remedy, record.attempt) == (Remedy.REBOOT_NODE, 1)
            if waits:
                answers(world, Remedy.REBOOT_NODE, RequestAnswer.WAITS)

    world.at(10, lambda: world.log_line(XID_79))
    for second in range(20, 4500, 5):
        world.at(second, look)
    world.run(900)
    assert len(asked) > 3
    assert world.wire.passed.count("before collect") == 1, "evidence of the fault, and not of the wait"
    lasting = "".join("x" if page else "." for page in pages).lstrip(".")
    assert "..." not in lasting, "no gap of the page that would read as its end"
    assert world.engine.decision.action is Action.PAGE
    assert "held up" in world.message[-1]
    assert [each.outcome for each in repairs_of(world.store.remediations())] == [""], "the request that stands"
    assert acts(world) == []


def test_a_node_that_came_back_while_it_asked_has_returned(tmp_path: Path) -> None:
    """The fault ends while the request stands. The node withdraws it, verifies, and comes back within minutes: a
    return, by which flapping is bounded, and no repair."""
    world = asking(tmp_path)
    world.at(10, lambda: world.levels.add(LINK)).at(120, lambda: world.levels.discard(LINK))
    assert world.run_to_end().ending().in_service
    assert world.clock() < 120 + 600
    assert repairs_of(world.store.remediations()) == ()
    assert acts(world) == [PastAct.RETURN]
    assert not (parse(world.orchestrator.read_record()) or HandoffRecord()).asks


@pytest.mark.parametrize("answer", [None, RequestAnswer.WAITS])
@pytest.mark.parametrize("remedy", [Remedy.REBOOT_NODE, Remedy.REPLACE_NODE])
def test_what_waits_at_the_controller_is_withdrawn_when_its_fault_ends(
    remedy: Remedy, answer: RequestAnswer | None, tmp_path: Path
) -> None:
    """Whatever was asked for, taken by nobody or held up by a platform without time: the request goes with its fault,
    and no act can follow. The node comes back within minutes."""
    world = asking(tmp_path)
    trouble = replace(LINK, remedy=remedy)
    world.at(10, lambda: world.levels.add(trouble)).at(90, lambda: answers(world, remedy, answer))
    assert not world.run(60).orchestrator.view().in_service
    world.at(int(world.clock()) + 1, lambda: world.levels.discard(trouble)).run(4)
    record = parse(world.orchestrator.read_record()) or HandoffRecord()
    assert (record.asks, record.withdrawn, record.is_withdrawn) == (False, remedy, True)
    since_s = world.clock()
    assert world.run_to_end().ending().in_service
    assert world.clock() < since_s + 300
    assert (repairs_of(world.store.remediations()), acts(world)) == ((), [PastAct.RETURN])


@pytest.mark.parametrize("answer", [None, RequestAnswer.WAITS])
@pytest.mark.parametrize("remedy", [Remedy.REBOOT_NODE, Remedy.REPLACE_NODE])
@pytest.mark.parametrize(("word", "text", "end"), [("resume", "", "acknowledged"), ("drain", "mine now", "lost")])
def test_an_operator_ends_a_request_that_no_controller_has_begun(
    *, word: str, text: str, end: str, remedy: Remedy, answer: RequestAnswer | None, tmp_path: Path
) -> None:
    """By undoing the drain, or by another: the request is withdrawn, and the slot given back within minutes."""
    world = asking(tmp_path)
    world.at(10, lambda: world.levels.add(replace(LINK, remedy=remedy))).at(
        90, lambda: answers(world, remedy, answer)
    ).run(60)
    world.cluster.update(NODE, word, text)
    world.run(20)
    assert (world.ending().ends, world.cluster.slots) == ((end,), {})
    assert not (parse(world.orchestrator.read_record()) or HandoffRecord()).asks
    assert acts(world) == []


@pytest.mark.parametrize("answer", [None, RequestAnswer.WAITS, RequestAnswer.REFUSED])
@pytest.mark.parametrize("remedy", [Remedy.REBOOT_NODE, Remedy.REPLACE_NODE])
def test_a_drain_that_is_lost_under_a_request_is_made_again(
    remedy: Remedy, answer: RequestAnswer | None, tmp_path: Path
) -> None:
    """The cluster's controller restarts without it, or the Node is registered again, while nothing was begun: within
    two minutes the node is out again, and asks for the same. A refusal of that moment is no word about the machine."""
    world = asking(tmp_path)
    world.at(10, lambda: world.levels.add(replace(LINK, remedy=remedy))).run(60)
    before = parse(world.orchestrator.read_record()) or HandoffRecord()
    assert (before.asks, before.remedy) == (True, remedy)
    world.cluster.restart(losing=[NODE])
    assert world.orchestrator.view().hold is None
    answers(world, remedy, answer)
    world.run(int(120 / STEP_S))
    after = parse(world.orchestrator.read_record()) or HandoffRecord()
    assert world.orchestrator.view().hold is not None
    assert (after.asks, after.remedy, after.attempt) == (True, remedy, 1)
    assert after.asked != before.asked
    assert acts(world) == []


@pytest.mark.parametrize("remedy", [Remedy.REBOOT_NODE, Remedy.REPLACE_NODE])
def test_a_request_that_is_refused_for_want_of_its_slot_is_made_again(remedy: Remedy, tmp_path: Path) -> None:
    """The slot is deleted by hand, and the controller begins nothing for a node without one. That is no word about the
    machine: the node takes a slot again, and asks for the same."""
    world = asking(tmp_path)
    world.at(10, lambda: world.levels.add(replace(LINK, remedy=remedy))).run(60)
    before = parse(world.orchestrator.read_record()) or HandoffRecord()
    assert (before.asks, before.remedy) == (True, remedy)
    world.cluster.slots.clear()
    answers(world, remedy, RequestAnswer.REFUSED)
    world.run(int(120 / STEP_S))
    after = parse(world.orchestrator.read_record()) or HandoffRecord()
    assert list(world.cluster.slots.values()) == [NODE]
    assert (after.asks, after.remedy, after.attempt) == (True, remedy, 1)
    assert after.asked != before.asked
    assert acts(world) == []


@pytest.mark.parametrize("by_command", [False, True])
def test_an_undone_drain_acknowledges_once_and_when_its_remediation_ends(by_command: bool, tmp_path: Path) -> None:
    """While the request waits its withdrawal takes a minute, and may come too late: until the remediation ends by the
    operator's undoing, nothing is acknowledged. So it is of a repair by command, on a node with a fault."""
    world = asking(tmp_path)
    world.at(10, lambda: world.levels.add(LINK))
    if by_command:
        world.rules = replace(world.rules, mode=Mode.OBSERVE)
        world.at(70, lambda: world.execute(Command(verb=Verb.REPAIR, who="uid 0", remedy=Remedy.REBOOT_NODE)))
    world.run(60).cluster.update(NODE, "resume")
    found: list[tuple[bool, int]] = []
    for _ in range(20):
        world.step()
        acknowledged = [text for text in world.audit("fault") if text.startswith("acknowledged")]
        found.append((world.ending().ends == ("acknowledged",), len(acknowledged)))
    assert found.index((True, 1)) * STEP_S >= UNASKED_S
    assert set(found) == {(False, 0), (True, 1)}


def answers(world: World, remedy: Remedy, answer: RequestAnswer | None) -> None:
    """The controller's answer, in the place of a round of it."""
    record = parse(world.orchestrator.read_record()) or HandoffRecord()
    assert (record.asks, record.remedy) == (True, remedy)
    if answer is not None:
        world.orchestrator.write_record(
            replace(record, answer=answer, answered=world.clock.now(), message="throttled").text
        )


@pytest.mark.parametrize("answer", [RequestAnswer.DENIED, RequestAnswer.REFUSED])
def test_a_right_that_the_controller_lacks_gives_no_machine_away(answer: RequestAnswer, tmp_path: Path) -> None:
    """A controller that may not reboot says nothing about the machine. Any other refusal leads to the next remedy."""
    world, asked = asking(tmp_path), []

    def refuse() -> None:
        record = parse(world.orchestrator.read_record()) or HandoffRecord()
        if record.asks and record.answer is None:
            asked.append(record.remedy)
            world.orchestrator.write_record(
                replace(
                    record, answer=answer, answered=world.clock.now(), message="ec2:RebootInstances is missing"
                ).text
            )

    world.at(10, lambda: world.log_line(XID_79))
    for second in range(20, 900, 5):
        world.at(second, refuse)
    world.run(300)
    is_denied = answer is RequestAnswer.DENIED
    follows = [] if is_denied else [Remedy.REPLACE_NODE] * 2
    assert asked == [Remedy.REBOOT_NODE] * 2 + follows
    assert world.engine.decision.action is Action.PAGE
    why = "the reboot is not permitted" if is_denied else "the replacement failed"
    assert f"{why}: healthd controller: ec2:RebootInstances is missing" in world.message[-1]
    assert acts(world) == []


@pytest.mark.parametrize("at_one_moment", [False, True])
def test_requests_of_others_count_against_the_day(at_one_moment: bool, tmp_path: Path) -> None:
    """The controller holds each to its hour alone: four nodes that wait there use up a day of four, also where they ask
    while this one does. It pages, its request is not left, and an operator may command it all the same."""
    world = asking(tmp_path)
    world.rules = replace(world.rules, replacements_per_day=4)

    def others_ask() -> None:
        if world.cluster.nodes["n2"].record:
            return
        for name in ("n2", "n3", "n4", "n5"):
            world.cluster.nodes[name].record = HandoffRecord(
                remediation_id="k", machine="i-2", remedy=Remedy.REPLACE_NODE, asks=True, asked=world.clock.now()
            ).text

    if at_one_moment:
        when(world, "before write_record", others_ask)
    else:
        others_ask()
    world.at(10, lambda: world.log_line(WORN_OUT)).run(60)
    assert "waits: 4 machines were replaced or requested within a day, 4 may be" in world.message[-1]
    assert world.engine.decision.action is Action.PAGE
    assert not (parse(world.orchestrator.read_record()) or HandoffRecord()).asks
    world.execute(Command(verb=Verb.REPAIR, who="uid 0", why="it has to go", remedy=Remedy.REPLACE_NODE))
    world.run(5)
    assert (parse(world.orchestrator.read_record()) or HandoffRecord()).asks


def test_a_fault_that_comes_and_goes_uses_up_no_attempt(tmp_path: Path) -> None:
    """It is back while the withdrawal is waited for, time after time: the node asks again and again for the same
    reboot, and never for another machine because a reboot that nobody made did not help."""
    world = asking(tmp_path)
    for number in range(6):
        world.at(10 + 300 * number, lambda: world.levels.add(LINK))
        world.at(80 + 300 * number, lambda: world.levels.discard(LINK))
        world.at(110 + 300 * number, lambda: world.levels.add(LINK))
        world.at(250 + 300 * number, lambda: world.levels.discard(LINK))
    world.run(360)
    assert not [
        message
        for message in world.message
        if "did not help" in message or "replacement" in message or "given up" in message
    ]
    assert [message for message in world.message if "judged again" in message]
    assert acts(world) == []


def test_a_boot_by_another_hand_ends_the_request_and_is_no_repair(tmp_path: Path) -> None:
    """An operator reboots the node while nobody takes its request: the evidence counts, the request goes, and what
    nobody began is no act of ours."""
    world = asking(tmp_path)
    world.at(10, lambda: world.log_line(XID_79)).at(200, world.power_cycle)
    assert world.run_to_end().ending().in_service
    assert any("rebooted: boot id" in line for line in world.audit("step"))
    record = parse(world.orchestrator.read_record()) or HandoffRecord()
    assert (record.asks, record.remedy, record.is_withdrawn) == (False, None, True)
    assert repairs_of(world.store.remediations()) == ()
    assert acts(world) == [PastAct.RETURN]


@pytest.mark.parametrize("is_first", [False, True])
def test_a_request_that_was_never_left_is_told_from_an_earlier_one(is_first: bool, tmp_path: Path) -> None:
    """The daemon is killed right before it leaves its request. The record has the finding alone, or an earlier request
    that was taken: the node does not wait for hours, and asks a minute later."""
    world = asking(tmp_path)
    if not is_first:
        world.at(10, lambda: world.log_line(XID_79)).at(
            200, lambda: answers(world, Remedy.REBOOT_NODE, RequestAnswer.TAKEN)
        )
        world.at(230, world.power_cycle).run_to_end()
    first, record = parse(world.orchestrator.read_record()) or HandoffRecord(), world.orchestrator.write_record
    assert (first.asks, first.answer) == ((False, None) if is_first else (True, RequestAnswer.TAKEN))

    def dies_of_it(text: str) -> None:
        new = parse(text)
        if new is not None and new.remedy is not None and new.remediation_id != first.remediation_id:
            world.orchestrator.write_record = record  # type: ignore[method-assign]
            kill()
        record(text)

    world.orchestrator.write_record = dies_of_it  # type: ignore[method-assign]
    began_s = world.clock()
    world.log_line(XID_79)
    while (parse(world.orchestrator.read_record()) or first).remediation_id == first.remediation_id:
        world.step()
        assert world.clock() < began_s + 300, world.message[-1]
    assert any("never left with the cluster" in line for line in world.audit("step"))
