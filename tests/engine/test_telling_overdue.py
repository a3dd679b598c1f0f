"""What people are told of a node that stays out: each way to be out for ever pages on time, each day, and truly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.config.schema.notify import NotifySection
from healthd.core.errors import BackendRefused, StoreError
from healthd.core.model import ClearsBy, Component, Mode, Remedy
from healthd.notify.delivery import Receiver
from healthd.notify.message import Message, Sender
from healthd.notify.node import node_notifier
from healthd.notify.notifier import Notifier
from tests.support.engine_rig import GPU, IN, NODE, OUT, XID_79, XID_95, Trouble, World

DAY_S = 86_400.0
LONG_S = 295.0
AROUND = frozenset({"wrong", "now", "still"})


class Told:
    """A node whose notifier looks after every turn of its engine, and what it told."""

    def __init__(self, world: World) -> None:
        self.world, self.pieces = world, list[tuple[float, str, str, str]]()
        self._engine, self._notifier = world.engine, self._opened()

    def _opened(self) -> Notifier:
        return node_notifier(
            {"list": Receiver(deliver=self._take)},
            NotifySection(per_hour=3_600),
            self.world.monitor,
            engine=self.world.engine,
            store=self.world.store,
            about=lambda: Sender(node=NODE, verdict="critical"),
        )

    def run(self, steps: int) -> Told:
        for _ in range(steps):
            self.world.step()
            self._tick()
        return self

    def until(self, seconds: float) -> Told:
        """On to that second of the story, by five minutes at a time."""
        while self.world.clock() < seconds:
            self.world.clock.advance(LONG_S)
            self.run(1)
        return self

    def states(self, key: str) -> list[tuple[float, str]]:
        """When what was said of a key that begins so."""
        return [(at, state) for at, state, about, _ in self.pieces if about.startswith(key)]

    def words(self, key: str, state: str) -> list[str]:
        return [words for _, message, about, words in self.pieces if about.startswith(key) and message == state]

    def _tick(self) -> None:
        if self._engine is not self.world.engine:  # a daemon that has started since goes on from what is on disk
            self._engine, self._notifier = self.world.engine, self._opened()
        self._notifier.tick(self.world.clock.now())

    def _take(self, message: Message) -> None:
        at = self.world.clock()
        self.pieces += [(at, str(each["state"]), each["key"], each["message"]) for each in message.data["news"]]


def a_job_that_never_ends(world: World) -> None:
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79))


def a_node_that_is_down_behind_our_drain(world: World) -> None:
    world.at(10, lambda: world.log_line(XID_95))
    world.at(60, lambda: world.cluster.nodes[NODE].flags.add("DOWN")).at(90, world.reset_gpu)


def a_check_that_is_unknown(world: World) -> None:
    world.at(10, lambda: world.log_line(XID_95)).at(90, world.reset_gpu)
    world.at(40, lambda: setattr(world, "blind", "nvidia-smi: not found"))


def a_node_that_left_its_partitions(world: World) -> None:
    def refuse(*, jobs: bool = False) -> Any:
        raise BackendRefused(f"n1 is in no partition (asked with jobs: {jobs})")

    world.at(10, lambda: world.log_line(XID_95)).at(90, world.reset_gpu)
    world.at(60, lambda: setattr(world.orchestrator, "view", refuse))


def a_controller_that_never_answers(world: World) -> None:
    world.at(10, lambda: world.log_line(XID_95)).at(60, lambda: setattr(world.cluster, "hung", True))


def a_full_disk(world: World) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreError("healthd.db: the state was not written: database or disk is full")

    def fill() -> None:
        for name in ("save_remediation", "save_history", "keep"):
            setattr(world.store, name, full)

    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79)).at(100, world.end_jobs).at(60, fill)


def a_reboot_that_never_comes(world: World) -> None:
    world.never_boots = True
    world.at(10, lambda: world.log_line(XID_79))


WAYS: dict[str, tuple[Callable[[World], None], Mode, float]] = {
    "job": (a_job_that_never_ends, Mode.REPAIR, 3_600),
    "down": (a_node_that_is_down_behind_our_drain, Mode.QUARANTINE, 14_400),
    "unknown": (a_check_that_is_unknown, Mode.QUARANTINE, 14_400),
    "partition": (a_node_that_left_its_partitions, Mode.REPAIR, 1_200),
    "controller": (a_controller_that_never_answers, Mode.QUARANTINE, 1_200),
    "disk": (a_full_disk, Mode.REPAIR, 1_200),
    "given up": (a_reboot_that_never_comes, Mode.REPAIR, 14_400),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("way", "mode", "bound_s"), WAYS.values(), ids=WAYS)
def test_no_node_stays_out_in_silence(tmp_path: Path, way: Callable[[World], None], mode: Mode, bound_s: float) -> None:
    """Each way to be out for ever pages within its bound, then each day, and is over on no day: the node is out."""
    world = World(tmp_path / "n1", mode=mode)
    way(world)
    told = Told(world).run(60).until(3.5 * DAY_S)
    assert world.cluster.nodes[NODE].flags, "the node is out"
    pages = told.states("page ")
    assert pages[0][0] <= bound_s + 600
    assert {state for _, state in [*pages, *told.states("node")]} <= AROUND
    undecided = [later - sooner for (sooner, _), (later, _) in pairwise(pages)]
    assert max(undecided) <= DAY_S + 600
    assert world.clock() - pages[-1][0] <= DAY_S + 600
    world.close()


def test_the_page_for_a_job_names_it_and_ends_when_the_repair_goes_on(tmp_path: Path) -> None:
    """At the drain people hear which job it waits for; an hour later they are asked to end it; then it is over."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR)
    a_job_that_never_ends(world)
    told = Told(world).run(20)
    assert "waiting for 12 to end" in told.words("node", "wrong")[0]
    told.until(2 * 3_600.0)
    assert "waiting for 12 to end. The repair waits for these jobs" in told.words("page ", "wrong")[0]
    world.end_jobs()
    told.run(60)
    assert [state for _, state in told.states("page ")] == ["wrong", "over"]
    assert [state for _, state in told.states("node")] == ["wrong", "over"]
    assert world.orchestrator.view().in_service
    world.close()


def test_a_page_ends_with_its_cause_and_swallows_no_other(tmp_path: Path) -> None:
    """The budget was full, then it was not, then the repair was given up: three pieces of news."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR)
    world.never_boots = True
    world.cluster.slots |= {("cluster", 0): "n7", ("cluster", 1): "n8"}
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79)).at(900, world.end_jobs)
    world.at(120, lambda: world.cluster.slots.pop(("cluster", 1)))
    told = Told(world).run(600)
    assert [state for _, state in told.states("page ")] == ["wrong", "over", "wrong"]
    first, last = told.words("page ", "wrong")
    assert "2 slots are taken" in first
    assert last.startswith("given up after 2 attempts")
    world.close()


def test_a_node_that_another_took_over_is_not_over(tmp_path: Path) -> None:
    """People hear whose it is, each day that the fault is open; it is over when the fault is."""
    world = World(tmp_path / "n1", mode=Mode.QUARANTINE)
    world.at(10, lambda: world.log_line(XID_95)).at(60, lambda: world.cluster.update(NODE, "drain", "mine now"))
    told = Told(world).run(40).until(1.5 * DAY_S)
    assert [state for _, state in told.states("node")] == ["wrong", "now", "still"]
    assert "held by admin" in told.words("node", "now")[0]
    assert "is still open" in told.words("node", "still")[0]
    world.reset_gpu()
    told.run(10)
    assert told.states("node")[-1][1] == "over"
    world.close()


def test_a_node_that_another_took_over_once_it_was_healthy_is_said_to_be_theirs(tmp_path: Path) -> None:
    """Nothing calls for anything any more, and the node is out all the same: that is how it ended."""
    world = World(tmp_path / "n1", mode=Mode.QUARANTINE)
    world.at(10, lambda: world.log_line(XID_95))
    world.at(60, lambda: world.cluster.update(NODE, "drain", "mine now"), world.reset_gpu)
    told = Told(world).run(60)
    assert [state for _, state in told.states("node")] == ["wrong", "ended"]
    assert "held by admin" in told.words("node", "ended")[0]
    world.close()


def test_an_operator_who_resumes_every_node_acknowledges_what_was_known_for_a_day(tmp_path: Path) -> None:
    """A fault that opened while the node was out is decided about; the one that was known asks again a day later. At no
    time is a fault said to be over that is open."""
    known = Trouble(code="gpu.missing", remedy=Remedy.REPLACE_NODE, clears_by=None)
    later = Trouble(component=Component(kind="gpu", id="GPU-2222"), clears_by=ClearsBy.REPLACE)
    world = World(tmp_path / "n1", mode=Mode.QUARANTINE)
    world.at(10, lambda: world.levels.add(known)).at(300, lambda: world.log_line(later))
    world.at(1_800, lambda: world.cluster.update(NODE, "resume"))
    told = Told(world).run(400)
    faults = world.monitor.history.faults
    assert faults[str(GPU), "gpu.missing"].acknowledged_until is not None
    assert not faults[str(later.component), later.code].acknowledged
    assert later.code in world.hold_text, "what nobody was shown takes the node out again"
    assert "acknowledged until" in told.words("gpu.missing", "now")[0]
    world.cluster.update(NODE, "resume")
    told.run(5)
    assert world.orchestrator.view().in_service
    told.until(1.5 * DAY_S)
    assert "gpu.missing" in world.hold_text, "the command has ended"
    assert [state for _, state in told.states("gpu.missing")] == ["wrong", "now", "now"]
    assert {state for _, state in told.states("gpu.")} <= AROUND
    assert world.clock.now() - faults[str(GPU), "gpu.missing"].first > timedelta(days=1)
    world.close()


def test_a_node_that_is_out_by_command_is_recalled_each_day(tmp_path: Path) -> None:
    """The operator knows of it, so not after four hours; and is not left to forget it."""
    world = World(tmp_path / "n1", mode=Mode.OBSERVE)
    world.at(10, lambda: world.execute(OUT))
    told = Told(world).run(10).until(2.5 * DAY_S)
    assert [round(at / DAY_S) for at, _ in told.states("page ")] == [1, 2]
    assert "`healthd release` puts the node back" in told.words("page ", "wrong")[0]
    world.close()


def test_a_node_that_is_out_by_command_is_recalled_in_time_after_its_disk_was_lost(tmp_path: Path) -> None:
    """The drain was made before the daemon that found it began."""
    world = World(tmp_path / "n1", mode=Mode.OBSERVE)
    world.at(10, lambda: world.execute(OUT)).at(8 * 3_600.0, world.lose_store)
    told = Told(world).run(10).until(2.5 * DAY_S)
    assert "our drain was found" in "".join(world.audit("step"))
    assert [round(at / DAY_S, 1) for at, _ in told.states("page ")] == [1.0, 2.0]
    world.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_node_that_stays_drained_by_the_cluster_itself_is_not_over(tmp_path: Path, is_killed: bool) -> None:
    """The fault ended and nothing was repaired, and Slurm's own drain is not healthd's to undo: people hear that, also
    where the daemon that saw the end did not live to tell it."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR)
    world.rules = replace(world.rules, adopt_automatic=True)
    link = Trouble(code="efa.missing", remedy=Remedy.REBOOT_NODE, clears_by=None)
    world.at(3, world.start_job).at(10, lambda: world.cluster.drains_by_itself(NODE), lambda: world.levels.add(link))
    world.at(120, lambda: world.levels.discard(link)).at(150, world.end_jobs)
    told = Told(world).run(20)
    while world.store.open_remediation() is not None:
        told.run(1)
    if is_killed:
        world.restart_daemon()
    told.run(10)
    assert not world.orchestrator.view().in_service
    assert [state for _, state in told.states("node")] == ["wrong", "ended"]
    assert "stays drained by the cluster itself" in told.words("node", "ended")[0]
    world.close()


def test_a_node_whose_order_is_made_again_is_recalled_a_day_after_the_order(tmp_path: Path) -> None:
    """The controller restarts after hours and loses the drain, which is made again: no page for that, and no day more
    of silence."""
    world = World(tmp_path / "n1", mode=Mode.OBSERVE)
    world.at(10, lambda: world.execute(OUT)).at(8 * 3_600.0, lambda: world.cluster.restart(losing=[NODE]))
    told = Told(world).run(10).until(2.5 * DAY_S)
    assert "made again" in "".join(world.audit("step"))
    assert [round(at / DAY_S, 1) for at, _ in told.states("page ")] == [1.0, 2.0]
    world.close()


def test_a_job_that_is_waited_for_while_faults_take_turns_pages_in_time(tmp_path: Path) -> None:
    """Each finding takes the remediation over and ends again. The job holds its other nodes all the while."""
    gpus = [Component(kind="gpu", id=f"GPU-{number}") for number in range(2)]
    links = [
        Trouble(code="gpu.pcie.degraded", remedy=Remedy.REBOOT_NODE, clears_by=None, component=gpu) for gpu in gpus
    ]
    world = World(tmp_path / "n1", mode=Mode.REPAIR)
    world.at(3, world.start_job)
    for turn in range(8):
        link, from_s = links[turn % 2], 10 + turn * 1_500
        world.at(from_s, partial(world.levels.add, link)).at(from_s + 600, partial(world.levels.discard, link))
    told = Told(world).run(20).until(6_000.0)
    assert world.engine.remediation is not None
    ((at_s, state),) = told.states("page ")[:1]
    assert (state, round(at_s / 3_600.0, 1)) == ("wrong", 1.0)
    world.close()


def test_a_release_by_force_ends_what_was_told_of_the_case(tmp_path: Path) -> None:
    """The command ends the remediation between two turns: the node is said to be in service, and nothing stands that a
    later boot would end."""
    world = World(tmp_path / "n1", mode=Mode.QUARANTINE)
    world.at(10, lambda: world.log_line(XID_95)).at(100, lambda: world.execute(replace(IN, forced=True)))
    told = Told(world).run(60)
    assert world.orchestrator.view().in_service
    assert [state for _, state in told.states("node")] == ["wrong", "ended"]
    assert "back in service by an operator" in told.words("node", "ended")[0]
    assert world.engine.remediation is None
    world.close()


def test_a_daemon_that_starts_anew_says_of_nothing_that_it_is_over_before_it_has_looked(tmp_path: Path) -> None:
    """Its first turns get no answer: the node is out still, and its page stands."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR)
    a_job_that_never_ends(world)
    told = Told(world).until(2 * 3_600.0)
    message = told.states("page ") + told.states("node")
    world.cluster.hung = True
    world.restart_daemon()
    told.run(30)
    assert told.states("page ") + told.states("node") == message
    world.cluster.hung = False
    told.run(30)
    assert {state for _, state in told.states("page ") + told.states("node")} <= AROUND
    world.close()
