"""A second command is a second request: the controller carries it out, and never answers it from memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendRefused
from healthd.core.model import Event, Remedy
from healthd.remediation.decide.remediation import End, Phase, Remediation
from healthd.remediation.decide.rules import STEPS
from healthd.remediation.records.handoff import RequestAnswer
from healthd.state.store import Store
from tests.support.controller_rig import NODE, AskedWorld
from tests.support.engine_wire import kill

DAY_S = 86_400.0


def again(world: AskedWorld) -> None:
    """`healthd repair --step ...` of the same remediation: the attempts begin at one again."""
    world.ask(replace(world.record, answer=None, answered=None, message="", became="", replaced=None))


@pytest.mark.parametrize("remedy", [Remedy.REPLACE_NODE, Remedy.REBOOT_NODE])
def test_what_failed_yesterday_is_done_today(remedy: Remedy, tmp_path: Path) -> None:
    """The platform failed for good; a day later the same command is asked of it once more, and answered as it ends."""
    world = AskedWorld(tmp_path, remedy)
    no = BackendRefused("no such capacity")
    world.provisioner._reboots = world.provisioner._replaces = raising(no)
    world.run(3)
    assert (world.acts, world.record.answer) == (1, RequestAnswer.REFUSED)
    world.clock.advance(DAY_S)
    world.provisioner._reboots, world.provisioner._replaces = (lambda: None), world._replaces
    again(world)
    world.run(12)
    assert (world.acts, world.record.answer) == (2, RequestAnswer.TAKEN)


def raising(error: Exception):  # type: ignore[no-untyped-def]
    def act() -> None:
        raise error

    return act


def test_a_node_that_has_booted_since_it_asked_is_not_rebooted_again(tmp_path: Path) -> None:
    """A person was quicker than the controller, and the node's daemon could not take its request back yet: it is told
    to speak for itself, and asks anew if it must."""
    world = AskedWorld(tmp_path, Remedy.REBOOT_NODE)
    world.clock.advance(120)
    world.booted = world.clock.now()
    world.run(3)
    assert (world.acts, world.record.answer) == (0, RequestAnswer.WAITS)
    assert "it has booted since it asked" in world.message[-1]
    again(world)
    world.run(3)
    assert (world.acts, world.record.answer) == (1, RequestAnswer.TAKEN)


def test_what_was_done_yesterday_is_done_again(tmp_path: Path) -> None:
    """A replacement that succeeded is no answer to the next one, of the machine that it brought."""
    world = AskedWorld(tmp_path).run(12)
    assert (world.acts, world.record.became) == (1, "i-2")
    world.clock.advance(DAY_S)
    again(world)
    world.cluster.nodes[NODE].record = replace(world.record, machine="i-2").text
    world.run(3)
    assert (world.acts, world.record.answer) == (2, RequestAnswer.TAKEN)


def test_one_request_is_one_act_however_often_it_is_read(tmp_path: Path) -> None:
    """Restarted after every round, with one command and then a second one."""
    world = AskedWorld(tmp_path)
    for _ in range(20):
        world.run(1)
        world.restart()
    world.provisioner.instance = "i-1"
    again(world)
    for _ in range(20):
        world.run(1)
        world.restart()
    assert world.acts == 2


def test_an_order_that_comes_while_the_last_answer_is_written_stays_an_order(tmp_path: Path) -> None:
    """Between the controller's reading and its writing the node has asked anew: the answer to the first request is not
    written over the second one."""
    plain = AskedWorld(tmp_path / "plain")
    plain.provisioner.instance = "i-9"
    plain.run(2)
    last = max(plain.wire.numbers("before read_record"))
    world = AskedWorld(tmp_path / "world")
    world.provisioner.instance = "i-9"

    def asks_anew() -> None:
        world.provisioner.instance = "i-1"
        world.clock.advance(1.0)
        again(world)

    world.wire.at[last] = asks_anew
    world.run(12)
    assert (world.acts, world.record.became) == (1, "i-2")


def old_case(world: AskedWorld, *, end: End | None, phase: Phase = Phase.INTENDED) -> None:
    """A remediation in the store under an id of an earlier version."""
    now, steps = world.clock.now(), STEPS[Remedy.REPLACE_NODE]
    remediation = Remediation(
        id=f"{NODE}/k3/replace_node-1",
        opened=now,
        since=now,
        mode=world.rules.mode,
        code="",
        component="",
        remedy=Remedy.REPLACE_NODE,
        why="the node asked for it",
        text="",
        steps=steps,
        index=2,
        phase=phase,
        machine="i-1",
        attempts=1,
        end=end,
        note="given up",
    )
    world.store.save_remediation(remediation, Event(at=now, kind="step", text="of an earlier version"))
    world.restart()


@pytest.mark.parametrize("end", [None, End.DONE, End.FAILED])
def test_a_case_of_an_earlier_version_answers_no_request(end: End | None, tmp_path: Path) -> None:
    """Its id has no time, so that nobody can tell of which request it was: what asks now is carried out once."""
    world = AskedWorld(tmp_path)
    old_case(world, end=end)
    world.run(12)
    assert (world.acts, world.record.became) == (1, "i-2")


def test_what_an_earlier_version_took_is_followed_and_not_begun(tmp_path: Path) -> None:
    """Upgraded in the middle: the record says taken, the store has a remediation of another form. Its evidence
    counts."""
    world = AskedWorld(tmp_path)
    taken = replace(world.record, answer=RequestAnswer.TAKEN, answered=world.clock.now(), replaced=world.clock.now())
    world.cluster.nodes[NODE].record = taken.text
    old_case(world, end=None)
    world.run(3)
    assert (world.acts, world.record.answer) == (0, RequestAnswer.TAKEN)
    world.provisioner.instance = "i-2"
    world.run(3)
    assert (world.acts, world.record.became) == (0, "i-2")


def test_killed_while_it_is_upgraded_no_second_act_is_made(tmp_path: Path) -> None:
    """kill -9 at every boundary of a request that an earlier version had begun: one act at most."""
    for number in range(60):
        world = AskedWorld(tmp_path / str(number))
        old_case(world, end=None, phase=Phase.PLANNED)
        world.wire.at[number] = kill
        world.run(14)
        assert world.acts <= 1, number
        world.close()


def test_a_store_that_grows_by_orders_keeps_each_of_them(tmp_path: Path) -> None:
    """Two orders of the same remediation, remedy and attempt are two remediations on disk, each with its own end."""
    world = AskedWorld(tmp_path)
    world.provisioner.instance = "i-9"
    world.run(2)
    world.provisioner.instance = "i-1"
    world.clock.advance(DAY_S)
    again(world)
    world.run(12)
    world.close()
    remediations = Store(tmp_path / "controller.db", now=world.clock.now()).remediations()
    assert [remediation.end for remediation in remediations] == [End.FAILED, End.DONE]
    assert len({remediation.id for remediation in remediations}) == 2
