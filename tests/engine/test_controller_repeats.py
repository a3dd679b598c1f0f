"""What a leader died in, or got no answer to, the next one asks its platform about, and repeats where that is safe."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendBusy, BackendDenied, BackendRefused, BackendUnknown, HealthdError
from healthd.core.model import Mode, Remedy
from healthd.remediation.decide.remediation import PAST_OF
from healthd.remediation.records.handoff import RequestAnswer, withdrawing
from tests.engine.test_controller_replay import STORIES
from tests.support.controller_rig import NODE, STEP_S, TIMEOUTS, AskedWorld
from tests.support.engine_wire import kill, no_answer

REBOOT_SHOWS_S = 200.0
ROUNDS = {"replace": 16, "reboot": 50, "silent": 32, "ordered": 16}
"""Rounds in which a request is carried out, whoever dies in it: minutes, where one that is waited for takes hours."""


def world_of(name: str, folder: Path) -> AskedWorld:
    return STORIES[name](folder).repeats(REBOOT_SHOWS_S if name == "reboot" else 0.0)


@pytest.fixture(params=list(STORIES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def boundaries(name: str, folder: Path) -> list[str]:
    """Those of the undisturbed story, from its beginning to its end."""
    plain = world_of(name, folder).run(ROUNDS[name])
    assert plain.acts == 1
    assert is_done(plain)
    plain.close()
    acted = max(plain.wire.numbers("after replace", "after reboot"))
    return plain.wire.passed[: acted + 20]


def is_done(world: AskedWorld) -> bool:
    """The evidence came, and the node was told."""
    came = (
        world.record.message.startswith("rebooted")
        if world.record.remedy is Remedy.REBOOT_NODE
        else world.record.became == "i-2"
    )
    return came and world.record.answer is RequestAnswer.TAKEN


def settled(world: AskedWorld, rounds: int) -> AskedWorld:
    """As the service goes on after a round that could not be finished."""
    for _ in range(rounds):
        try:
            world.run(1)
        except HealthdError as error:
            world.message.append(str(error))
    return world


@pytest.mark.sampled(3)
@pytest.mark.parametrize("store", ["kept", "lost"])
def test_killed_at_any_boundary_it_is_carried_out_once(name: str, store: str, tmp_path: Path) -> None:
    """kill -9 anywhere, with the store that was left or with none: exactly one act, and the same request is done."""
    for number, label in enumerate(boundaries(name, tmp_path / "plain")):
        world = world_of(name, tmp_path / str(number))
        if store == "lost":
            world.restart = lambda world=world: forgets(world)  # type: ignore[method-assign, misc]
        world.wire.at[number] = kill
        world.run(ROUNDS[name])
        assert (world.kills, world.acts, is_done(world)) == (1, 1, True), (number, label, world.record)
        done = PAST_OF[world.record.remedy or Remedy.NONE]
        assert [past.act for past in world.record.history] == [done], (number, label, world.record)
        world.close()


def forgets(world: AskedWorld) -> None:
    world.kills += 1
    world.forget()


@pytest.mark.sampled(2)
def test_an_answer_that_is_lost_anywhere_costs_no_hours(name: str, tmp_path: Path) -> None:
    """Before the platform has taken it or after: it is done, and asked for once by what the platform has taken."""
    for number, label in enumerate(boundaries(name, tmp_path / "plain")):
        world = world_of(name, tmp_path / str(number))
        world.wire.at[number] = no_answer
        settled(world, ROUNDS[name])
        assert (world.acts, is_done(world)) == (1, True), (number, label, world.record)
        world.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("store", ["kept", "lost"])
def test_what_moved_while_nobody_led_forbids_it(name: str, store: str, tmp_path: Path) -> None:
    """Killed anywhere before the act; before the next leader looks, an admin, a job, an opt-out or a lower mode is
    there (each in its turn): no act is made, whatever the record says."""
    changes: dict[str, Callable[[AskedWorld], object]] = {
        "admin": lambda world: world.cluster.update(NODE, "drain", "mine", user="admin"),
        "job": lambda world: world.cluster.nodes[NODE].jobs.append("7"),
        "opt-out": lambda world: world.cluster.nodes[NODE].features.add("hands-off"),
        "mode": lambda world: setattr(world, "rules", replace(world.rules, mode=Mode.OBSERVE)),
        "slot": lambda world: world.cluster.slots.clear(),
    }
    labels = boundaries(name, tmp_path / "plain")
    act = next(number for number, label in enumerate(labels) if label in ("before replace", "before reboot"))
    for number, (what, change) in zip(range(act + 1), cycle(changes.items()), strict=False):
        world = world_of(name, tmp_path / f"{number}-{what}")
        world.rules = replace(world.rules, opt_out_feature="hands-off")
        world.restart = lambda world=world, change=change: moved(world, change, store)  # type: ignore[method-assign, misc]
        world.wire.at[number] = kill
        settled(world, ROUNDS[name])
        assert (world.kills, world.acts) == (1, 0), (number, what, world.message[-3:])
        world.close()


def moved(world: AskedWorld, change: Callable[[AskedWorld], object], store: str) -> None:
    world.kills += 1
    change(world)
    if store == "lost":
        world.forget()
    else:
        world.store.close()
        world.start()


def dies_before_the_act(name: str, folder: Path) -> AskedWorld:
    """Its leader died after the last look, and its store with it."""
    labels = boundaries(name, folder / "plain")
    world = world_of(name, folder / "world")
    world.restart = lambda: forgets(world)  # type: ignore[method-assign]
    world.wire.at[next(i for i, label in enumerate(labels) if label in ("before replace", "before reboot"))] = kill
    return world


def test_a_node_that_came_back_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    """Its record says taken, by a leader that died before its call; the node answers again, and keeps its machine."""
    world = dies_before_the_act("silent", tmp_path)
    while not world.kills:
        world.run(1)
    world.cluster.nodes[NODE].flags -= {"DOWN", "NOT_RESPONDING"}
    world.run(40)
    assert world.acts == 0
    assert "not asked for again: it answers again: not touched" in world.message[-1]


def test_a_reboot_is_repeated_only_where_the_first_one_must_have_shown(tmp_path: Path) -> None:
    """Not before that; not while the node is silent, which may be its reboot; not without knowing its boot."""
    world = dies_before_the_act("reboot", tmp_path)
    while not world.kills:
        world.run(1)
    world.run(int(REBOOT_SHOWS_S / STEP_S) - 1)
    assert world.acts == 0
    world.goes_silent()
    world.run(5)
    assert world.acts == 0
    assert "it does not answer, and may be in its reboot" in world.message[-1]
    world.cluster.nodes[NODE].flags -= {"DOWN", "NOT_RESPONDING"}
    booted, world.booted = world.booted, None
    world.run(5)
    assert world.acts == 0
    assert "which boot it has is not known" in world.message[-1]
    world.booted = booted
    world.run(1)
    assert world.acts == 1
    assert "reboot asked for again" in world.message[-1]


def test_a_reboot_is_not_repeated_right_before_its_node_asks_again(tmp_path: Path) -> None:
    """The node gives a reboot up that never shows, and makes another request: with a late repetition of the first one
    behind it, the platform would have two reboots in its queue."""
    world = dies_before_the_act("reboot", tmp_path)
    while not world.kills:
        world.run(1)
    world.clock.advance(TIMEOUTS.reboot_timeout_s - 1.5 * REBOOT_SHOWS_S)
    world.run(int(REBOOT_SHOWS_S / STEP_S) + 3)
    assert world.acts == 0
    assert "not asked for again: its node soon gives this request up" in world.message[-1]


@pytest.mark.parametrize("name", ["replace", "reboot"])
def test_what_another_leader_began_is_followed_by_one_that_had_put_it_off(name: str, tmp_path: Path) -> None:
    """Its own store says that nothing was begun, and the record that something was: it is not begun again, its evidence
    is awaited, and a platform that is at it is no reason to wait for one that is free."""
    world = world_of(name, tmp_path / "a")
    reboots, replaces = world.provisioner._reboots, world.provisioner._replaces
    world.provisioner._reboots = world.provisioner._replaces = raising(BackendBusy("InstanceIdInUse"))
    assert world.run(2).record.answer is RequestAnswer.WAITS
    refused = world.acts
    leads_with_store(world, tmp_path / "b")
    world.provisioner._reboots, world.provisioner._replaces = reboots, replaces
    world.run(1)
    assert (world.acts - refused, world.record.answer) == (1, RequestAnswer.TAKEN)
    leads_with_store(world, tmp_path / "a")
    world.provisioner.others = "i-1 is stopped already"
    for _ in range(ROUNDS[name]):
        world.run(1)
        assert world.record.answer is RequestAnswer.TAKEN, world.record
    assert (world.acts - refused, is_done(world)) == (1, True)


def leads_with_store(world: AskedWorld, folder: Path) -> None:
    world.store.close()
    folder.mkdir(exist_ok=True)
    world.folder = folder
    world.start()


def test_a_request_that_was_rewritten_during_the_last_look_is_judged_again(tmp_path: Path) -> None:
    """By the leader after this one, which had stood still: nothing was begun, and the node hears no refusal."""
    for number in [
        i for i, label in enumerate(boundaries("replace", tmp_path / "plain")) if label == "before read_record"
    ]:
        world = world_of("replace", tmp_path / str(number))
        world.wire.at[number] = partial(puts_off, world)
        for _ in range(ROUNDS["replace"]):
            world.run(1)
            assert world.record.answer is not RequestAnswer.REFUSED, (number, world.record)
        assert (world.acts, is_done(world)) == (1, True), number


def puts_off(world: AskedWorld) -> None:
    world.cluster.nodes[NODE].record = replace(world.record, answer=RequestAnswer.WAITS, message="busy").text


def test_a_platform_that_cannot_be_asked_twice_is_waited_for(tmp_path: Path) -> None:
    """As before: what may have been done is not done again, and the node's next attempt is another request."""
    world = dies_before_the_act("replace", tmp_path)
    world.provisioner.repeats_s = None
    world.run(60)
    assert world.acts == 0


def test_a_second_answer_counts_as_the_first_would_have(tmp_path: Path) -> None:
    """Refused when asked again: the node goes on from there at once. No answer: it is asked again at the next look."""
    refused = dies_before_the_act("replace", tmp_path / "refused")
    refused.provisioner._replaces = raising(BackendRefused("InstanceIdNotFound"))
    refused.run(4)
    assert refused.record.answer is RequestAnswer.REFUSED
    assert "InstanceIdNotFound" in refused.record.message
    silent = dies_before_the_act("replace", tmp_path / "silent")
    silent.provisioner._replaces = raising(BackendUnknown("no answer"))
    silent.run(4)
    assert silent.provisioner.replacements == 3
    assert silent.record.answer is RequestAnswer.TAKEN
    assert "asked for again: no answer" in silent.record.message


@pytest.mark.parametrize(
    ("error", "answer"),
    [(BackendDenied("no right"), RequestAnswer.DENIED), (BackendRefused("no"), RequestAnswer.REFUSED)],
)
def test_a_right_that_is_missing_is_told_as_such(error: BackendRefused, answer: RequestAnswer, tmp_path: Path) -> None:
    """At the first request, at one that is repeated, and by the controller that follows, if this one was killed before
    the node was answered."""
    first = world_of("reboot", tmp_path / "first")
    first.provisioner._reboots = raising(error)
    first.run(30)
    assert (first.record.answer, first.record.history) == (answer, ())
    first.cluster.nodes[NODE].record = replace(first.record, answer=None, answered=None, message="").text
    first.restart()
    assert first.run(3).record.answer is answer
    again = dies_before_the_act("reboot", tmp_path / "again")
    again.provisioner._reboots = raising(error)
    again.run(int(REBOOT_SHOWS_S / STEP_S) + 4)
    assert again.record.answer is answer


def raising(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def test_a_platform_that_shows_it_late_says_that_it_is_in_use(tmp_path: Path) -> None:
    """Killed right after the call, and the platform lists the machine as before: it answers that it is at it."""
    plain = world_of("replace", tmp_path / "plain").run(16)
    world = world_of("replace", tmp_path / "world")
    inner, shown = world.provisioner._replaces, []
    assert inner is not None

    def late() -> None:
        shown.append(world.provisioner.others or "in use")
        world.provisioner.others = "in use" if world.comes_at_s else ""
        inner()
        world.provisioner.others = ""

    world.provisioner._replaces = late
    world.wire.at[plain.wire.passed.index("after replace")] = kill
    world.run(16)
    assert len(shown) > 1
    assert is_done(world)
    assert world.record.answer is RequestAnswer.TAKEN


def test_a_machine_that_was_given_away_is_not_asked_about_again(tmp_path: Path) -> None:
    """Another instance is behind the name before the next leader looks: that is the evidence, and nothing is asked."""
    world = dies_before_the_act("replace", tmp_path)
    while not world.kills:
        world.run(1)
    world.provisioner.instance = "i-2"
    world.run(10)
    assert (world.acts, is_done(world)) == (0, True)


def test_a_lost_answer_lets_no_moved_instance_be_stopped_again(tmp_path: Path) -> None:
    """Another leader had an instance of EC2 moved, which keeps its id, and one of the readings that this one makes next
    gets no answer, whichever it is: the second request, which EC2 would take, would meet the machine that came."""
    act = boundaries("replace", tmp_path / "plain").index("before replace")
    for number in range(24):
        world = world_of("replace", tmp_path / str(number))
        world.provisioner.instance = "i-1@2025-12-29T00:00:00+00:00"
        world.wire.at[act] = kill
        while not world.kills:
            world.run(1)
        world.provisioner.instance = moved_to = "i-1@2026-01-01T00:00:00+00:00"
        passed = len(world.wire.passed)
        world.wire.at[passed + number] = no_answer
        settled(world, 10)
        assert (world.acts, world.record.became) == (0, moved_to), world.wire.passed[passed:]


def test_a_request_that_its_node_has_given_up_is_not_repeated(tmp_path: Path) -> None:
    """Longer ago than the node waits for it: by then it has gone on, or asks a person."""
    world = dies_before_the_act("replace", tmp_path)
    while not world.kills:
        world.run(1)
    world.clock.advance(901.0)
    world.run(5)
    assert (world.acts, world.record.answer) == (0, RequestAnswer.REFUSED)


def test_the_wait_for_a_reboot_to_show_begins_when_it_is_sent(tmp_path: Path) -> None:
    """The request waited for minutes behind a job. Sent, and without an answer, it is not sent once more before a first
    one must have shown."""
    shows_s = 100.0
    world = STORIES["reboot"](tmp_path).repeats(shows_s)
    sent: list[float] = []
    world.provisioner._reboots = lambda: unanswered(world, sent)
    world.cluster.nodes[NODE].jobs.append("7")
    world.run(int(2 * shows_s / STEP_S))
    assert not sent
    world.cluster.nodes[NODE].jobs.clear()
    world.run(int(2 * shows_s / STEP_S))
    assert len(sent) == 2
    assert sent[1] - sent[0] >= shows_s


def unanswered(world: AskedWorld, sent: list[float]) -> None:
    sent.append(world.clock())
    raise BackendUnknown("no answer")


@pytest.mark.parametrize("remedy", [Remedy.REBOOT_NODE, Remedy.REPLACE_NODE])
def test_a_withdrawal_over_an_act_is_answered_and_the_act_counts(remedy: Remedy, tmp_path: Path) -> None:
    """The node's update overwrites the answer after the controller's last look: the next round writes it once more,
    with the act in the history, and repeats nothing, although the platform gave no answer."""
    world = AskedWorld(tmp_path, remedy).repeats(0.0)
    sent: list[float] = []
    world.provisioner._reboots = world.provisioner._replaces = lambda: unanswered(world, sent)
    before = world.record
    while not sent:
        world.run(1)
    world.cluster.nodes[NODE].record = withdrawing(before).text
    world.run(20)
    assert (len(sent), world.record.answer, world.record.withdrawn) == (1, RequestAnswer.TAKEN, remedy)
    assert [past.act for past in world.record.history] == [PAST_OF[remedy]]
    assert (world.record.replaced is None) is (remedy is Remedy.REBOOT_NODE)
    world.restart()
    world.run(20)
    assert len(sent) == 1
