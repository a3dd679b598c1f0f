"""One engine among many: what it asks of the cluster, what it shows the others, and when it steps back."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.core.model import Action, Mode, Refusal
from healthd.remediation.decide.remediation import End
from healthd.remediation.ports import Hold, StateOwner
from tests.support.engine_rig import NODE, XID_79, XID_95, World, repair_story
from tests.support.engine_wire import kill

MARK = "healthd code={code} since={since}"
SEEN_95 = replace(XID_95, clears_by=None)  # a check sees whether it is there


def asked(world: World, since: int) -> Counter[str]:
    """What was asked of the cluster since then."""
    return Counter(name.partition(" ")[2] for name in world.wire.passed[since:] if name.startswith("before "))


def see_it_too(world: World, code: str = "gpu.xid.95") -> None:
    """Three others show the same finding, in their records alone: none of them is drained."""
    for name in ("n2", "n3", "n4"):
        world.cluster.nodes[name].record = MARK.format(code=code, since=int(world.seconds()))


def one_of_many(folder: Path) -> World:
    """A node that fails, and by its look after the settle time three others have shown the same."""
    world = World(folder, max_out="50%")
    return world.at(10, lambda: world.log_line(XID_95)).at(18, lambda: see_it_too(world))


def are_well_again(world: World) -> None:
    for node in world.cluster.nodes.values():
        node.record = ""


# ---------------------------------------------------------------------------------------------------------------------
# many at once


def test_drains_to_which_slurm_appends_at_one_moment_are_not_many_at_once(tmp_path: Path) -> None:
    """Four nodes that wait for an operator, each for a day longer, lose their power together, or are rebooted together:
    Slurm gives their reasons one time. The finding of another node an hour later is its own."""
    world = World(tmp_path, max_out="50%")
    for days in range(1, 5):
        node = world.cluster.nodes[f"n{days + 1}"]
        node.flags.add("DRAIN")
        reason = f"healthd: gpu.xid.79 gpu:GPU-{days} [old{days}] : Not responding"
        node.hold = Hold(text=reason, user="slurm", stamp=int(world.seconds()))
        node.record = MARK.format(code="gpu.xid.79", since=int(world.seconds()) - days * 86_400)
    world.at(3600, lambda: world.log_line(XID_79)).run(730)
    assert world.hold_text.startswith("healthd: gpu.xid.79 ")


def test_nodes_that_only_hold_a_slot_are_counted_too(tmp_path: Path) -> None:
    """Rule 8 before the first drain: others show the same finding by the look after the settle time, so this node gives
    its slot back, pages, goes on showing its own, and goes out once the others are well again."""
    world = one_of_many(tmp_path).run(6)
    assert world.message[2].startswith("fenced: ")
    assert world.cluster.nodes[NODE].record == MARK.format(code="gpu.xid.95", since=int(world.seconds()) - 19)
    assert (world.hold_text, world.cluster.slots) == ("", {})
    many = "gpu.xid.95 on 4 nodes within 10 min (n1, n2, n3, n4): many at once is not a node's fault"
    assert world.engine.decision.action is Action.PAGE
    assert world.message[-1].startswith(f"waits for a slot: {many}")
    world.run(40)
    assert (world.hold_text, world.cluster.slots) == ("", {})
    are_well_again(world)
    world.run(20)
    assert world.hold_text.startswith("healthd: gpu.xid.95")
    world.reset_gpu()
    world.run_to_end()
    assert world.ending().ends == (End.RELEASED,)
    record = world.cluster.nodes[NODE].record
    assert " code=" not in record, "it shows its finding no more"
    assert record.startswith("healthd history=return:")


def test_where_a_drain_would_be_a_replacement_the_slot_is_given_back_as_well(tmp_path: Path) -> None:
    """There the slot is all there is, and the step that follows it is the replacement."""
    world = World(tmp_path, mode=Mode.REPAIR, max_out="50%", can_replace=True)
    world.provisioner.state_owner = StateOwner.PLATFORM
    world.at(10, lambda: world.log_line(XID_79)).at(12, lambda: see_it_too(world, code="gpu.xid.79"))
    world.run(20)
    assert (world.cluster.slots, world.provisioner.replacements, world.provisioner.requests) == ({}, 0, 0)
    assert "many at once" in world.message[-1]


def test_a_node_that_is_out_already_is_not_repaired_while_many_have_what_it_has(tmp_path: Path) -> None:
    """Repairs of that kind are held as well: drained as the first of many, it reboots when it is alone with it."""
    world = repair_story(tmp_path, max_out="50%")
    world.at(30, lambda: see_it_too(world, code="gpu.xid.79"))
    world.run(30)
    assert world.provisioner.requests == 0
    assert world.message[-1].startswith("reboot waits: gpu.xid.79 on 4 nodes within 10 min")
    assert world.engine.decision.action is Action.PAGE
    are_well_again(world)
    world.run_to_end()
    assert (world.provisioner.requests, world.ending().in_service) == (1, True)


def held_back(folder: Path) -> World:
    """A node that is out, whose reboot waits: three others show the same since its drain."""
    world = World(folder, mode=Mode.REPAIR, max_out="50%")
    world.cluster.power_saving = "23.02"
    world.cluster.nodes[NODE].jobs = ["12"]
    world.at(10, lambda: world.log_line(XID_79)).run(15)
    see_it_too(world, code="gpu.xid.79")
    world.cluster.nodes[NODE].jobs = []
    world.run(10)
    assert world.message[-1].startswith("reboot waits: "), world.message[-1]
    return world


def test_an_operator_who_undoes_the_drain_of_a_node_that_waits_is_obeyed(tmp_path: Path) -> None:
    """However long its repair is held back: the remediation ends with the drain, and gives its slot back."""
    world = held_back(tmp_path)
    world.cluster.update(NODE, "resume")
    world.run(5)
    assert world.ending().ends == (End.ACKNOWLEDGED,)
    assert (world.cluster.slots, world.provisioner.requests) == ({}, 0)


def test_a_node_that_waits_for_its_repair_is_kept_awake(tmp_path: Path) -> None:
    """A restart of the controller forgets what power saving was told."""
    world = held_back(tmp_path)
    world.cluster.restart()
    world.run(5)
    assert world.cluster.awake == {NODE}


def test_a_kill_between_the_step_back_and_the_slot_leaves_no_drain(tmp_path: Path) -> None:
    """The step back is written before the slot is given back: a later daemon finds the remediation at its slot."""
    plain = one_of_many(tmp_path / "plain").run(8)
    (first, *_) = plain.wire.numbers("before give_back", "after give_back")
    for number in (first - 2, first - 1, first, first + 1):
        world = one_of_many(tmp_path / str(number))
        world.wire.at[number] = kill
        world.run(20)
        assert world.kills == 1
        assert (world.hold_text, world.cluster.slots) == ("", {})
        world.close()


def test_a_node_that_many_are_like_shows_its_finding_without_a_slot(tmp_path: Path) -> None:
    """It is held before it asks for a slot: the others count it all the same, and no more once its fault is over."""
    world = World(tmp_path, mode=Mode.REPAIR, max_out="50%")
    see_it_too(world)
    world.levels.add(SEEN_95)
    world.run(20)
    record, message = world.cluster.nodes[NODE].record, world.message[-1]
    assert (world.store.open_remediation(), world.engine.decision.refusal) == (None, Refusal.CORRELATED)
    assert record.startswith("healthd code=gpu.xid.95 since=")
    assert "many at once is not a node's fault" in message
    world.restart_daemon()
    world.run(20)
    assert world.cluster.nodes[NODE].record == record, "another daemon goes on showing it"
    world.levels.clear()
    world.restart_daemon()
    world.run(20)
    assert world.cluster.nodes[NODE].record == "", "nor is it left behind by a daemon that died meanwhile"


def test_somebody_elses_comment_is_left_where_the_finding_was(tmp_path: Path) -> None:
    """What was shown was written over by a person, and is over: there is nothing of ours to take out."""
    world = World(tmp_path, mode=Mode.REPAIR, max_out="50%")
    see_it_too(world)
    world.levels.add(SEEN_95)
    world.run(20)
    world.cluster.nodes[NODE].record = "ticket 7"
    world.orchestrator.write_record = _refused  # type: ignore[method-assign]
    world.levels.clear()
    world.run(20)
    assert world.cluster.nodes[NODE].record == "ticket 7"
    assert world.message[-1] == "nothing calls for taking the node out"


def test_a_finding_that_cannot_be_taken_back_yet_is_tried_again(tmp_path: Path) -> None:
    """The cluster does not answer when the fault is over: that is said, and done once it answers."""
    world = World(tmp_path, mode=Mode.REPAIR, max_out="50%")
    see_it_too(world)
    world.levels.add(SEEN_95)
    world.run(20)
    world.levels.clear()
    record = world.orchestrator.write_record
    world.orchestrator.write_record = _no_answer  # type: ignore[method-assign]
    world.run(20)
    assert "may still stand in the handoff record, which other nodes read: no answer" in world.message[-1]
    world.orchestrator.write_record = record  # type: ignore[method-assign]
    world.run(1)
    assert world.cluster.nodes[NODE].record == ""


# ---------------------------------------------------------------------------------------------------------------------
# what is shown


def test_a_finding_is_shown_beside_what_the_record_says_already(tmp_path: Path) -> None:
    """When the machine was last replaced bounds the rate of replacements: it must outlive what is added and removed."""
    world = World(tmp_path)
    world.cluster.nodes[NODE].record = "healthd case=k1 machine=i-1 does=replace_node replaced=1795226977"
    world.at(10, lambda: world.log_line(XID_95)).run(3)
    now_s = int(world.seconds())
    shown = f"replaced=1795226977 watched={now_s} code=gpu.xid.95 since={now_s - 4}"
    assert world.cluster.nodes[NODE].record == f"healthd case=k1 machine=i-1 does=replace_node {shown}"
    world.reset_gpu()
    world.run_to_end()
    left = "healthd case=k1 machine=i-1 does=replace_node replaced=1795226977"
    assert world.cluster.nodes[NODE].record == left


def test_where_the_others_cannot_be_shown_it_the_node_goes_out_all_the_same(tmp_path: Path) -> None:
    """An administrator's comment is not written over: that is said, and the reason of the drain shows it later."""
    world = World(tmp_path)
    inner = world.orchestrator
    inner.write_record = _refused  # type: ignore[method-assign]
    world.at(10, lambda: world.log_line(XID_95)).run(6)
    assert "its handoff record was not written: comment not set: it has one already" in world.message[2]
    assert world.hold_text.startswith("healthd: gpu.xid.95")


def _refused(text: str) -> None:
    raise BackendRefused("comment not set: it has one already")


def _no_answer(text: str) -> None:
    raise BackendUnknown("no answer")


# ---------------------------------------------------------------------------------------------------------------------
# what is asked


def waiting(folder: Path) -> World:
    """A node with a fault, for which no slot is free."""
    world = World(folder, max_out=2)
    world.run(2)
    world.engine.learn()
    for index in range(2):
        world.cluster.claim("cluster", index, f"n{index + 2}")
    world.log_line(XID_95)
    world.run(1)
    assert world.message[-1] == "at the fleet limit: all 2 slots are taken"
    return world


def test_a_node_that_waits_asks_ever_more_rarely_and_never_for_the_nodes(tmp_path: Path) -> None:
    """All slots taken: by the list of reservations alone, which costs slurmctld nothing, once a minute at last."""
    world = waiting(tmp_path)
    begun = len(world.wire.passed)
    looks = []
    for _ in range(120):
        before = len(world.wire.passed)
        world.step()
        if asked(world, before)["slots"]:
            looks.append(world.clock())
    assert asked(world, begun)["snapshot"] == 0
    assert asked(world, begun)["view"] == 0, "nor for itself: whatever it is, it cannot go out"
    assert world.store.open_remediation() is None
    assert [after - before for before, after in pairwise(looks)][-3:] == pytest.approx([30.0] * 3, abs=5.0)
    assert world.message[-1] == "at the fleet limit: all 2 slots are taken"


def test_a_node_that_waited_for_a_slot_sees_what_the_holders_show_before_it_takes_one(tmp_path: Path) -> None:
    """The holders gave their slots back because many have it: the next node takes none for its settle time to see
    that. One whose fault no other node has goes on as before."""
    for codes, claims in (("gpu.xid.95", 0), ("gpu.xid.79", 1)):
        world = waiting(tmp_path / codes)
        world.cluster.slots.clear()
        see_it_too(world, codes)
        begun = len(world.wire.passed)
        world.run(12)
        assert asked(world, begun)["claim"] == claims
        assert ("many at once" in world.message[-1]) is not bool(claims)
        assert bool(world.cluster.slots) is bool(claims)
        world.close()


def test_a_refusal_is_looked_at_anew_ever_more_rarely(tmp_path: Path) -> None:
    """A thousand nodes that may not go out do not read a thousand nodes each, every five seconds."""
    world = World(tmp_path, fleet=8, max_out=1)
    world.cluster.update("n2", "down", "no fan")
    world.log_line(XID_95)
    world.run(1)
    assert world.message[-1].startswith("at the fleet limit: 1 of 8")
    begun = len(world.wire.passed)
    world.run(120)
    assert 10 <= asked(world, begun)["snapshot"] <= 14
    assert asked(world, begun)["view"] <= 2 * asked(world, begun)["snapshot"]
    assert asked(world, begun)["slots"] <= asked(world, begun)["snapshot"] + 1  # and once for what may have come late


def test_what_is_remembered_lets_ask_for_a_slot_but_drains_nobody(tmp_path: Path) -> None:
    """Two nodes went out since the fleet was read: the slot is asked for, and the next reading gives it back."""
    world = World(tmp_path, fleet=40, max_out=2)
    world.run(1)
    assert world.engine.learn() is not None
    world.run(10)
    assert world.engine.learn() is None, "not before its time"
    for name in ("n2", "n3"):
        world.cluster.update(name, "drain", "admin: psu")
    world.log_line(XID_95)
    begun = len(world.wire.passed)
    world.run(1)
    assert asked(world, begun)["claim"] == 1
    assert "3 of 40 nodes are out, 2 may be; gave back cluster-0" in world.message[-1]
    world.run(30)
    assert (world.hold_text, world.cluster.slots) == ("", {})


def test_the_fleet_is_not_read_in_quiet_while_a_case_is_open(tmp_path: Path) -> None:
    """A remediation reads what it needs."""
    world = World(tmp_path)
    world.log_line(XID_95)
    world.run(30)
    begun = len(world.wire.passed)
    world.clock.advance(10_000.0)
    assert world.engine.learn() is None
    assert asked(world, begun) == Counter()


def test_a_slot_that_is_gone_while_a_job_runs_on_is_taken_again(tmp_path: Path) -> None:
    """Kubernetes evicts no pod from a Node without a claim, so the job would run on for days."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79)).run(20)
    assert world.message[-1].startswith("drained; waiting for")
    world.cluster.slots.clear()
    begun = len(world.wire.passed)
    world.run(120)
    assert list(world.cluster.slots.values()) == [NODE]
    assert world.message[-1].startswith("drained; waiting for")
    assert asked(world, begun)["slots"] <= 4


def test_a_place_that_is_gone_is_taken_anew_before_the_repair(tmp_path: Path) -> None:
    """An administrator deleted the reservation of a drained node: another is asked for, and without one it waits."""
    world = repair_story(tmp_path, fleet=40, max_out=1)

    def deleted(taken_by: str = "") -> None:
        world.cluster.slots.clear()
        if taken_by:
            world.cluster.slots[("cluster", 0)] = taken_by

    world.at(36, lambda: deleted("n7"))
    world.run(20)
    assert world.provisioner.requests == 0
    assert world.message[-1].startswith("reboot waits: its slot is gone, and at the fleet limit")
    deleted()
    world.run_to_end()
    assert (world.provisioner.requests, world.ending().in_service) == (1, True)
