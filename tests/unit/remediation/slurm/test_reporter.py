"""When a node writes its summary to slurmctld, and what it logs about that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.core.errors import BackendError, BackendRefused, BackendUnknown
from healthd.remediation.orchestrators.slurm.reporter import AGAIN_S, CHANGES, LONGEST_S, SlurmReporter
from healthd.remediation.records.summary import NodeState, NodeSummary

START = datetime(2026, 11, 24, 12, tzinfo=UTC)
HEARTBEAT_S = 600.0
OK = NodeSummary(state=NodeState.OK)


class World(Struct):
    """A slurmctld that takes what it is given, an agent that knows what it is told, and their clock."""

    known: NodeSummary | None = OK
    now_s: float = 0.0
    fails: BackendError | None = None
    written: list[tuple[float, NodeSummary]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    asked: int = 0

    def summarize(self, summary: NodeSummary) -> None:
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        self.written.append((self.now_s, summary))

    def reporter(self) -> SlurmReporter:
        return SlurmReporter(
            self,
            known=lambda: self.known,
            heartbeat_s=HEARTBEAT_S,
            monotonic_s=lambda: self.now_s,
            clock=lambda: START + timedelta(seconds=self.now_s),
            chance=lambda: 0.5,
        )

    def lives(self, reporter: SlurmReporter, for_s: float, every_s: float = 5.0) -> None:
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.log += filter(None, [reporter.tick()])
            self.now_s += every_s


def test_a_quiet_node_writes_at_its_heartbeat_alone() -> None:
    """Twelve requests an hour at most: each write is a read and an update."""
    world = World()
    world.lives(world.reporter(), 3600 * 6)
    assert 34 <= len(world.written) <= 37
    assert world.written[0][1] == replace(OK, at=START + timedelta(seconds=world.written[0][0]))
    assert world.log == []


def test_a_change_is_written_within_seconds() -> None:
    """Not before the last one was shown for a while, and no more often than the bucket allows."""
    world = World()
    reporter = world.reporter()
    world.lives(reporter, 120)
    world.known = replace(OK, state=NodeState.CRITICAL)
    changed_s = world.now_s
    world.lives(reporter, 60)
    assert [at_s for at_s, _ in world.written[1:]] == [changed_s]
    for _ in range(60):
        world.known = OK if world.known != OK else replace(OK, state=NodeState.CRITICAL)
        world.lives(reporter, 5)
    assert len(world.written) - 2 <= CHANGES + 3, "a user who makes a check come and go"


def test_the_words_of_a_step_follow_it_and_what_counts_minutes_waits_for_the_heartbeat() -> None:
    """Words such as "intends to reboot" must not stand for ten minutes: the reboot is asked for two seconds later."""
    world = World()
    reporter = world.reporter()
    world.lives(reporter, 60)
    for step, note in (("wait_idle", "intends to wait"), ("reboot", "intends to reboot")):
        world.known = replace(OK, state=NodeState.REPAIRING, step=step, note=note)
        world.lives(reporter, 5)
        for minutes in range(5):
            world.known = replace(world.known, note=f"asked for {minutes} min ago")
            world.lives(reporter, 60)
    assert [summary.note for _, summary in world.written[1:]] == [
        "intends to wait",
        "asked for 0 min ago",
        "intends to reboot",
        "asked for 0 min ago",
    ]


def test_a_repair_shows_each_of_its_steps() -> None:
    """A few changes within minutes are written as they come; of an hour full of changes, six in each heartbeat."""
    world = World()
    reporter = world.reporter()
    world.lives(reporter, 60)
    steps = ("drain", "wait_idle", "collect", "reboot", "verify")
    for step in steps:
        world.known = replace(OK, state=NodeState.REPAIRING, step=step)
        world.lives(reporter, 30)
    assert [summary.step for _, summary in world.written[1:]] == list(steps)
    before = len(world.written)
    for number in range(360):
        world.known = replace(OK, code=f"c.{number}")
        world.lives(reporter, 10)
    assert len(world.written) - before <= CHANGES * 3600 / HEARTBEAT_S + 8


def test_nothing_is_said_before_it_is_known() -> None:
    """A node that has not finished its first round of checks is not ok yet."""
    world = World(known=None)
    reporter = world.reporter()
    world.lives(reporter, 300)
    assert world.asked == 0
    world.known = OK
    world.lives(reporter, 10)
    assert len(world.written) == 1


def test_a_slurmctld_that_does_not_answer_is_asked_seldom_and_logged_once() -> None:
    """The pauses grow; when it answers again the whole summary is written, and that is logged too."""
    world = World(fails=BackendUnknown("Slurm did not answer"))
    reporter = world.reporter()
    world.lives(reporter, 7200)
    assert world.asked <= 7200 / (HEARTBEAT_S / 2) + 6
    assert world.log == ["the summary of this node is not written: Slurm did not answer"]
    world.fails = BackendRefused("Extra of n1 not set: it is another's")
    world.lives(reporter, LONGEST_S + AGAIN_S)
    world.fails = None
    world.lives(reporter, LONGEST_S + AGAIN_S)
    assert world.log[1:] == [
        "the summary of this node is not written: Extra of n1 not set: it is another's",
        "the summary of this node is written again",
    ]
    assert world.written[0][1].state is NodeState.OK


def test_a_stop_on_purpose_is_written_once_beside_the_last_state() -> None:
    """Before anything is known nothing is; a slurmctld that does not answer costs one attempt and one line."""
    world = World(known=None)
    reporter = world.reporter()
    assert (reporter.stop(), world.asked) == ("", 0)
    world.known = replace(OK, state=NodeState.CRITICAL)
    world.lives(reporter, 60)
    assert not world.written[-1][1].stopped
    assert reporter.stop() == ""
    stopped = world.written[-1][1]
    assert (stopped.state, stopped.stopped, stopped.at) == (
        NodeState.CRITICAL,
        True,
        START + timedelta(seconds=world.now_s),
    )
    world.known = None
    assert (reporter.stop(), world.written[-1][1].state) == ("", NodeState.CRITICAL)
    world.fails = BackendUnknown("no answer")
    asked = world.asked
    assert reporter.stop() == "the stop of this daemon is not written: no answer"
    assert world.asked == asked + 1
