"""The controller with something happening at every boundary that it passes: a kill, an admin, a full disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.errors import (
    BackendBusy,
    BackendDenied,
    BackendHalfDone,
    BackendRefused,
    BackendUnknown,
    HealthdError,
)
from healthd.core.model import Mode, Remedy
from healthd.remediation.controller.node_status import RepairState
from healthd.remediation.records.handoff import HandoffRecord, RequestAnswer, word
from tests.support.controller_rig import NODE, STEP_S, TIMEOUTS, AskedWorld, Happening
from tests.support.engine_wire import disk_is_full, kill, no_answer

ROUNDS = 12


def replace_asked(folder: Path) -> AskedWorld:
    return AskedWorld(folder)


def reboot_asked(folder: Path) -> AskedWorld:
    return AskedWorld(folder, Remedy.REBOOT_NODE)


def never_came_back(folder: Path) -> AskedWorld:
    """The node rebooted itself, and was not heard of again."""
    world = AskedWorld(folder, Remedy.REBOOT_NODE, asks=False)
    world.goes_silent()
    world.clock.advance(601.0)
    return world


def ordered_again(folder: Path) -> AskedWorld:
    """What was asked for was refused a day ago; now an operator orders it: the same remediation, remedy and attempt."""
    world = AskedWorld(folder)
    world.provisioner.instance = "i-9"
    world.run(2)
    assert (world.acts, world.record.answer) == (0, RequestAnswer.REFUSED)
    world.provisioner.instance = "i-1"
    world.clock.advance(86_400.0)
    world.ask(replace(world.record, answer=None, answered=None, message=""))
    world.wire.passed.clear()
    return world


STORIES = {"replace": replace_asked, "reboot": reboot_asked, "silent": never_came_back, "ordered": ordered_again}
ROUNDS_OF = {"replace": ROUNDS, "reboot": ROUNDS, "silent": 2 * ROUNDS, "ordered": ROUNDS}


@pytest.fixture(params=list(STORIES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def at_every_boundary(
    name: str, folder: Path, happen: Callable[[AskedWorld], Callable[[], None]]
) -> Iterator[tuple[int, str, AskedWorld]]:
    """One world per boundary of the undisturbed story, with something happening there."""
    plain = STORIES[name](folder / "plain").run(ROUNDS_OF[name])
    passed = plain.wire.passed
    assert plain.acts == 1
    plain.close()
    assert len(passed) > 30
    last = max(number for number, label in enumerate(passed) if label in ("after replace", "after reboot")) + 12
    for number, label in enumerate(passed[:last]):
        world = STORIES[name](folder / str(number))
        world.wire.at[number] = happen(world)
        yield number, label, world
        world.close()


def always(happen: Callable[[], None]) -> Callable[[AskedWorld], Callable[[], None]]:
    """The same in every world."""
    return lambda _: happen


def test_undisturbed_it_acts_once_and_says_so(name: str, tmp_path: Path) -> None:
    """One act, the record says taken and what became of it, and the node's own state is left alone."""
    world = STORIES[name](tmp_path).run(ROUNDS_OF[name])
    before = [update for update in world.cluster.updates if update.user != "healthd"]
    assert (world.acts, before) == (1, [])
    assert world.record.answer is RequestAnswer.TAKEN
    assert world.record.became == ("" if name == "reboot" else "i-2")
    assert (world.record.replaced is None) == (name == "reboot")
    assert world.cluster.slots == {("cluster", 0): NODE}


@pytest.mark.sampled(2)
def test_killed_at_any_boundary_it_never_acts_twice(name: str, tmp_path: Path) -> None:
    """kill -9 anywhere: one act, or none where it came between the written intent and the act. What may have been done
    is never done again: a request ends in a refusal or in the node's next attempt, a silent node in a page."""
    unmade = set()
    for number, label, world in at_every_boundary(name, tmp_path, always(kill)):
        world.run(ROUNDS_OF[name])
        assert world.kills == 1
        assert world.acts <= 1, (number, label)
        if not world.acts:
            unmade.add(label)
            world.run(120)
            assert world.acts == 0, (number, label)
            if name == "silent":
                assert world.record.answer is RequestAnswer.REFUSED or world.standings[0].page, (number, label)
                continue
            assert name == "reboot" or world.record.answer is RequestAnswer.REFUSED, (number, label)
            world.ask(replace(world.record, answer=None, answered=None, attempt=2, message=""))
            assert world.run(ROUNDS).acts == 1, (number, label)
    assert unmade, "the window between intent and act is there"
    assert unmade <= {
        *(
            "after save",
            "before write_record",
            "after write_record",
            "before slots",
            "after slots",
            "before read_record",
            "after read_record",
        ),
        *("before view", "after view", "before replace", "before reboot", "before machine", "after machine"),
    }


@pytest.mark.sampled(2)
def test_a_lost_answer_or_a_full_disk_makes_no_second_act(name: str, tmp_path: Path) -> None:
    """What was not answered may have been applied; what cannot be written down is not done."""
    for happen in (no_answer, disk_is_full):
        folder = tmp_path / happen.__name__
        for number, label, world in at_every_boundary(name, folder, always(happen)):
            if happen is disk_is_full and "save" not in label:
                continue
            for _ in range(ROUNDS_OF[name]):
                round_once(world)
            assert world.acts <= 1, (number, label)


def round_once(world: AskedWorld) -> None:
    """What the service says of a round that could not be finished, and goes on."""
    try:
        world.run(1)
    except HealthdError as error:
        world.message.append(str(error))


@pytest.mark.sampled(2)
def test_an_admin_is_never_overruled_but_in_the_window(name: str, tmp_path: Path) -> None:
    """An admin who takes the node over at any boundary keeps it: no act, except between the last look and the act."""
    acted = set()

    def takes_over(world: AskedWorld) -> Callable[[], None]:
        return lambda: world.cluster.update(NODE, "drain", "mine", user="admin")

    for number, label, world in at_every_boundary(name, tmp_path, takes_over):
        before = world.wire
        world.run(ROUNDS_OF[name])
        act = next((i for i, each in enumerate(before.passed) if each in ("before replace", "before reboot")), None)
        if act is not None and act >= number:
            acted.add((label, act - number))
        hold = world.cluster.nodes[NODE].hold
        assert hold is not None
        assert (hold.text, hold.user) == ("mine", "admin")
    assert {distance for _, distance in acted} <= {0, 1}, acted
    assert acted, "the window is there"


@pytest.mark.sampled(2)
def test_an_opt_out_is_never_passed_but_in_the_window(name: str, tmp_path: Path) -> None:
    """The feature that opts the node out, shown from any boundary on: no act, except between the last look and the act.
    What is marked as taken and was not done is taken out of the record; once the node opts in again, it is done."""
    acted = set()

    def opts_out(world: AskedWorld) -> Callable[[], None]:
        world.rules = replace(world.rules, opt_out_feature="hands-off")
        return lambda: world.cluster.nodes[NODE].features.add("hands-off")

    for number, label, world in at_every_boundary(name, tmp_path, opts_out):
        world.run(ROUNDS_OF[name])
        passed = world.wire.passed
        act = next((i for i, each in enumerate(passed) if each in ("before replace", "before reboot")), None)
        if act is not None and act >= number:
            acted.add((label, act - number))
        if world.acts:
            continue
        assert any("opted out" in each for each in world.message), (number, label)
        assert world.record.answer is not RequestAnswer.TAKEN, (number, label)
        world.cluster.nodes[NODE].features.clear()
        assert world.run(ROUNDS_OF[name]).acts == 1, (number, label)
    assert {distance for _, distance in acted} <= {0, 1}, acted
    assert acted, "the window is there"


def test_an_opted_out_node_gets_no_record(tmp_path: Path) -> None:
    """Its own agent reads the same label, and rests: nobody waits for an answer."""
    world = AskedWorld(tmp_path)
    world.rules = replace(world.rules, opt_out_feature="hands-off")
    world.cluster.nodes[NODE].features.add("hands-off")
    before = world.cluster.nodes[NODE].record
    world.run(ROUNDS)
    assert (world.acts, world.cluster.nodes[NODE].record) == (0, before)
    assert (
        world.message
        == ["opted out: the node has the feature hands-off; nothing is touched, nor its handoff record"] * ROUNDS
    )


def one(folder: Path, *happenings: Happening) -> AskedWorld:
    world = AskedWorld(folder)
    for happen in happenings:
        happen(world)
    return world


def test_without_its_place_or_with_another_machine_it_is_refused(tmp_path: Path) -> None:
    """The place, the drain's text and the machine behind the name are all read, and one that is missing is enough."""
    remediations: dict[str, Happening] = {
        "no budget slot is held": lambda world: world.cluster.slots.clear(),
        "it is not drained": lambda world: world.cluster.update(NODE, "undrain"),
        "it is held by admin": lambda world: world.cluster.update(NODE, "drain", "mine", user="admin"),
        "i-9 is behind the name now, and i-1 was meant": lambda world: setattr(world.provisioner, "instance", "i-9"),
    }
    for words, happen in remediations.items():
        world = one(tmp_path / words.replace(" ", "-"), happen).run(3)
        assert world.acts == 0, words
        assert world.record.answer is RequestAnswer.REFUSED, words
        assert words in world.record.message
        assert any(each.startswith("refused: ") for each in world.message)


def test_it_waits_for_what_passes_and_then_acts(tmp_path: Path) -> None:
    """A job that runs or is suspended, a maintenance window, a mode that only looks, the rate, another hand at it. Each
    is said, and not refused."""

    def rate(world: AskedWorld) -> None:
        world.rules = replace(world.rules, replacements_per_hour=1)
        world.cluster.nodes["n5"].record = HandoffRecord(replaced=world.clock.now()).text

    remediations: dict[str, tuple[Happening, Happening]] = {
        "not idle": (
            lambda world: world.cluster.nodes[NODE].jobs.append("12"),
            lambda world: world.cluster.nodes[NODE].jobs.clear(),
        ),
        "the node is not idle": (
            lambda world: world.cluster.nodes[NODE].suspended.append("12"),
            lambda world: world.cluster.nodes[NODE].suspended.clear(),
        ),
        "maintenance window maintenance is on the node": (
            lambda world: world.cluster.maintenance.add(NODE),
            lambda world: world.cluster.maintenance.clear(),
        ),
        "the controller is in observe mode": (
            lambda world: setattr(world, "rules", replace(world.rules, mode=Mode.OBSERVE)),
            lambda world: setattr(world, "rules", replace(world.rules, mode=Mode.REPAIR)),
        ),
        "1 machines were replaced within an hour": (
            rate,
            lambda world: setattr(world.cluster.nodes["n5"], "record", ""),
        ),
        "HyperPod acts on it": (
            lambda world: setattr(world.provisioner, "others", "HyperPod acts on it already"),
            lambda world: setattr(world.provisioner, "others", ""),
        ),
    }
    for words, (begins, ends) in remediations.items():
        world = one(tmp_path / words.replace(" ", "-"), begins).run(3)
        assert world.acts == 0, words
        assert world.record.answer is RequestAnswer.WAITS, words
        assert words in world.record.message
        ends(world)
        world.run(ROUNDS)
        assert world.acts == 1, words
        assert world.record.became == "i-2"


def test_what_the_platform_says_of_the_act_itself(tmp_path: Path) -> None:
    """Busy is asked again and counts as not done; no is for good; no answer is followed by its evidence."""

    def once(error: Exception) -> Callable[[AskedWorld], object]:
        def arrange(world: AskedWorld) -> None:
            errors = [error]
            inner = world.provisioner._replaces

            def replaces() -> None:
                if errors:
                    raise errors.pop()
                assert inner is not None
                inner()

            world.provisioner._replaces = replaces

        return arrange

    busy = one(tmp_path / "busy", once(BackendBusy("throttled"))).run(1)
    assert (busy.record.answer, busy.record.replaced) == (RequestAnswer.WAITS, None)
    assert busy.run(ROUNDS).record.became == "i-2"
    assert busy.provisioner.replacements == 2, "the first was answered: not applied"
    refused = one(tmp_path / "no", once(BackendRefused("InstanceIdNotFound"))).run(ROUNDS)
    assert (refused.record.answer, refused.provisioner.replacements) == (RequestAnswer.REFUSED, 1)
    assert "InstanceIdNotFound" in refused.record.message
    unknown = one(tmp_path / "unknown", once(BackendUnknown("no answer"))).run(2)
    unknown.provisioner.instance = "i-2"
    assert unknown.run(2).record.became == "i-2"
    assert unknown.provisioner.replacements == 1


def test_a_second_attempt_is_another_act_and_an_empty_disk_none(tmp_path: Path) -> None:
    """The node counts attempts; a controller without a store believes the record that somebody has taken it."""
    world = AskedWorld(tmp_path / "again").run(1)
    world.forget()
    world.run(ROUNDS)
    assert (world.acts, world.record.became) == (1, "i-2")
    world.provisioner.instance = "i-1"
    world.ask(HandoffRecord(remediation_id="k3", machine="i-1", remedy=Remedy.REPLACE_NODE, asks=True, attempt=2))
    assert world.run(ROUNDS).acts == 2


def test_whoever_leads_next_sees_a_machine_that_was_moved_already(tmp_path: Path) -> None:
    """Stopped and started: the instance keeps its id, and is another machine by the time of its launch."""
    world = AskedWorld(tmp_path / "w")
    world.provisioner.instance = f"i-1@{world.clock.now() - timedelta(days=3)}"
    world.run(1)
    assert (world.acts, world.record.answer) == (1, RequestAnswer.TAKEN)
    world.comes_at_s, world.provisioner.instance = 0.0, f"i-1@{world.clock.now() + timedelta(seconds=1)}"
    world.forget()
    world.run(ROUNDS)
    assert (world.acts, word(world.provisioner.instance)) == (1, world.record.became)


def test_a_platform_without_time_is_not_asked_in_every_round(tmp_path: Path) -> None:
    """Neither it nor the disk nor the record hears of it again before the next look is due."""
    world = AskedWorld(tmp_path / "w")
    world.poll_s = 10 * STEP_S
    world.restart()
    asked: list[float] = []

    def busy() -> None:
        asked.append(world.clock())
        raise BackendBusy("InstanceIdInUse")

    world.provisioner.replace = busy  # type: ignore[method-assign]
    world.run(25)
    assert len(asked) == 3
    assert (world.record.answer, world.message[-1]) == (RequestAnswer.WAITS, world.message[0])


@pytest.mark.parametrize("is_named", [True, False])
def test_whoever_leads_next_follows_a_reboot_to_its_end(is_named: bool, tmp_path: Path) -> None:
    """The record has the boot that was to end: at every change of leader nothing is asked for again, nothing has
    happened before it has, and then it is said. By the boot's name, and where only its time is known."""
    world = reboot_asked(tmp_path)
    world.boot = "01234567-old" if is_named else ""
    for _ in range(3):
        world.run(3)
        world.forget()
    world.run(3)
    assert (world.acts, world.record.answer, world.record.message) == (
        1,
        RequestAnswer.TAKEN,
        "waiting for a new boot id",
    )
    assert not any(each.startswith("rebooted: ") for each in world.message)
    world.boot, world.booted = "89abcdef-new" if is_named else "", world.clock.now()
    world.run(3)
    assert world.acts == 1
    assert world.record.message.startswith("rebooted: boot id ")
    if is_named:
        assert world.record.message == "rebooted: boot id 01234567 became 89abcdef"
    assert world.run(3).standings == (), "it is done, and the node was told"


def test_a_reboot_of_which_the_boot_before_is_not_known_is_left_open(tmp_path: Path) -> None:
    """Its record was written by an earlier controller: no boot proves that it happened, and no second one is asked for;
    when it should be over long ago, a node that answers is left to itself."""
    world = reboot_asked(tmp_path).run(2)
    world.cluster.nodes[NODE].record = replace(world.record, boot="").text
    world.forget()
    world.run(10)
    words = "which boot it had is not known: its own daemon tells when it is back"
    assert world.message[-1] == f"reboot asked for; {words}"
    world.booted = world.clock.now()
    world.run(60)
    assert (world.acts, world.record.answer) == (1, RequestAnswer.TAKEN)
    assert not any(each.startswith("rebooted: ") for each in world.message)
    assert "left to its own daemon" in world.message[-1]


def test_a_node_that_answers_or_came_back_is_not_given_up(tmp_path: Path) -> None:
    """Silent means DOWN and not responding at every look; one that was back in between, or whose policy has nothing
    left, pages."""
    world = never_came_back(tmp_path / "answers").run(4)
    assert "its machine is replaced if it stays silent" in world.message[-1]
    world.cluster.nodes[NODE].flags.discard("NOT_RESPONDING")
    world.run(2)
    assert "it is not DOWN" in world.message[-1]
    assert not world.standings[0].is_acted_on, "an agent that does not come back pages by its silence"
    world.goes_silent()
    world.run(5)
    assert world.acts == 0, "the silence is counted anew"
    back = never_came_back(tmp_path / "back")
    back.booted = back.clock.now()
    assert back.run(ROUNDS).acts == 0
    assert back.standings[0].page
    assert "fell silent again" in back.message[-1]
    left = never_came_back(tmp_path / "left")
    left.cluster.nodes[NODE].record = replace(left.record, following=()).text
    assert left.run(ROUNDS).acts == 0
    assert left.standings[0].page
    freed = never_came_back(tmp_path / "freed")
    freed.cluster.slots.clear()
    assert freed.run(ROUNDS).standings == ()


@pytest.mark.parametrize("follows", [AskedWorld.restart, AskedWorld.forget])
@pytest.mark.parametrize("error", [BackendRefused("it is in a Capacity Block"), BackendDenied("no right to it")])
def test_a_machine_that_nobody_may_replace_pages_until_it_is_back(
    error: BackendRefused, follows: Callable[[AskedWorld], None], tmp_path: Path
) -> None:
    """Its own daemon is away with it, so that only the controller can page: in each sync, and also the next one to
    lead, until the node is in service."""
    world = never_came_back(tmp_path)

    def no() -> None:
        raise error

    world.provisioner._replaces = no
    world.run(ROUNDS)
    for _ in range(3):
        assert (world.standings[0].page, world.standings[0].state) == (True, RepairState.REFUSED)
        assert str(error) in world.standings[0].message
        world.run(1)
    asked = world.provisioner.replacements
    assert asked == 1
    for mode in (Mode.REPAIR, Mode.OBSERVE):
        follows(world)
        world.rules = replace(world.rules, mode=mode)
        world.run(ROUNDS)
        assert (world.standings[0].page, world.standings[0].state) == (True, RepairState.REFUSED)
        assert world.provisioner.replacements == asked
    world.cluster.slots.clear()
    assert world.run(1).standings == ()


@pytest.mark.parametrize("seconds", [-2, 1, 20])
def test_a_boot_that_is_reported_a_second_later_is_the_same(seconds: int, tmp_path: Path) -> None:
    """slurmctld computes it at each registration. It is no evidence of a reboot; a boot minutes later is."""
    world = AskedWorld(tmp_path, Remedy.REBOOT_NODE)
    world.boot, world.booted = "", world.clock.now() - timedelta(days=3)
    world.boots_at_s, world.provisioner._reboots = 0.0, lambda: None
    world.run(3)
    assert world.record.answer is RequestAnswer.TAKEN
    world.booted += timedelta(seconds=seconds)
    world.run(3)
    assert not any(each.startswith("rebooted: ") for each in world.message), world.message[-1]
    world.booted = world.clock.now()
    world.run(3)
    assert any(each.startswith("rebooted: ") for each in world.message), world.message[-1]


@pytest.mark.parametrize("remedy", [Remedy.REBOOT_NODE, Remedy.REPLACE_NODE])
def test_a_request_that_no_daemon_renews_hides_no_silence(remedy: Remedy, tmp_path: Path) -> None:
    """The node died while its request waited: too old by now, it is not carried out, and its silence pages."""
    world = AskedWorld(tmp_path, remedy)
    world.rules = replace(world.rules, mode=Mode.OBSERVE)
    world.run(3)
    assert world.standings[0].is_acted_on
    world.goes_silent()
    world.run(round(TIMEOUTS.replace_timeout_s / STEP_S))
    world.rules = replace(world.rules, mode=Mode.REPAIR)
    world.run(20)
    assert (world.acts, world.standings[0].is_acted_on) == (0, False)
    assert "which is too long ago" in world.standings[0].message


def test_an_act_that_is_half_done_is_not_given_up(tmp_path: Path) -> None:
    """A machine that healthd stopped and could not start is tried for as long as it takes, and pages all along."""
    world = AskedWorld(tmp_path)
    world.comes_at_s = 0.0

    def progress() -> str:
        raise BackendHalfDone("i-1 is stopped, and could not be started yet")

    world.provisioner.progress = progress  # type: ignore[method-assign]
    world.provisioner._replaces = lambda: None
    world.run(round(2 * TIMEOUTS.replace_timeout_s / STEP_S))
    assert (world.standings[0].page, world.standings[0].state) == (True, RepairState.REPAIR)
    assert "i-1 is stopped" in world.standings[0].message
    world.provisioner.instance = "i-2"
    assert world.run(2).record.became == "i-2"


def test_one_that_answers_at_the_last_look_is_looked_after_anew(tmp_path: Path) -> None:
    """Between record and act: nothing is done, the record is that of the reboot again, and a later silence counts."""
    plain = never_came_back(tmp_path / "plain").run(2 * ROUNDS)
    marked = plain.wire.passed.index("after write_record")
    world = never_came_back(tmp_path / "world")
    before = world.cluster.nodes[NODE].record
    world.wire.at[marked] = lambda: world.cluster.nodes[NODE].flags.discard("NOT_RESPONDING")
    world.run(2 * ROUNDS)
    assert "it answers again: not touched" in world.message
    assert (world.acts, world.cluster.nodes[NODE].record) == (0, before)
    world.goes_silent()
    assert world.run(2 * ROUNDS).acts == 1
