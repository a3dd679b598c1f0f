"""The events of a node's service, played with the real engine: drained, repaired, released, handed over, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from healthd.config.schema.notify import NotifySection
from healthd.core.model import Mode
from healthd.notify.delivery import NotDeliveredError, Receiver
from healthd.notify.eventbridge import DRAINED, HANDED_OVER, RELEASED, REPAIR, events_of
from healthd.notify.message import Message, Sender
from healthd.notify.news import Topic, TopicMemory
from healthd.notify.node import node_notifier
from healthd.notify.notifier import Notifier
from tests.support.engine_rig import NODE, WORN_OUT, XID_79, XID_95, World


class Event(Struct, frozen=True):
    """An event as a rule of the site sees it, and the identity by which one that comes again is known."""

    kind: str
    step: str
    severity: str
    identity: tuple[str, ...]


class Bus:
    """A node with a receiver of its service and one for operators, of whose messages an incident covers all."""

    def __init__(self, world: World) -> None:
        self.world, self.events, self.read = world, list[Event](), list[str]()
        self.answers = True
        self._engine, self._notifier = world.engine, self._opened()

    def run(self, steps: int) -> Bus:
        for _ in range(steps):
            self.world.step()
            if self._engine is not self.world.engine:  # a daemon that has started since
                self._engine, self._notifier = self.world.engine, self._opened()
            self._notifier.tick(self.world.clock.now())
        return self

    def kinds(self) -> list[tuple[str, str]]:
        return [(each.kind, each.step) for each in self.events]

    def restart(self) -> None:
        """The daemon starts again, and its notifier is as early as can be."""
        self.world.restart_daemon()
        self._engine, self._notifier = self.world.engine, self._opened()
        for _ in range(20):
            self.world.clock.advance(5.0)
            self._notifier.tick(self.world.clock.now())

    def _opened(self) -> Notifier:
        return node_notifier(
            {
                "events": Receiver(deliver=self._take, each_incident=True, steps=True, service=True),
                "chat": Receiver(deliver=lambda message: self.read.append(message.about.title)),
            },
            NotifySection(),
            self.world.monitor,
            engine=self.world.engine,
            store=self.world.store,
            about=lambda: Sender(node=NODE),
            hold=covers_all,
        )

    def _take(self, message: Message) -> None:
        about = message.about
        for kind in events_of(about):
            (since,) = (each.since.isoformat() for each in about.news)
            identity = (kind, about.id, since, about.step if kind == REPAIR else "")
            self.events.append(Event(kind, about.step, about.severity, identity))
        if not self.answers:
            raise NotDeliveredError("no answer; AWS may have applied it")


def covers_all(wrong: Sequence[Topic], seen: Mapping[str, TopicMemory], now: datetime) -> dict[str, str]:
    """An incident of the fleet reports all that is new here."""
    return {each.key: "1126-3f2a9c" for each in wrong if each.key not in seen or not seen[each.key].reported}


def test_a_reboot_is_three_events_also_while_an_incident_reports_the_node(tmp_path: Path) -> None:
    """Operators hear of the incident alone; a program hears of each node, and a restart repeats and ends nothing."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR)
    bus = Bus(world)
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79)).at(100, world.end_jobs)
    bus.run(10)
    assert bus.kinds() == [(DRAINED, "drained")]
    bus.restart()
    assert bus.kinds() == [(DRAINED, "drained")]
    bus.run(80)
    assert bus.kinds() == [(DRAINED, "drained"), (REPAIR, "reboot"), (RELEASED, "")]
    assert {each.severity for each in bus.events[:2]} == {"critical"}
    assert bus.read == []
    world.close()


def test_a_new_machine_reports_the_drain_that_it_is_behind_and_its_release(tmp_path: Path) -> None:
    """Its disk is empty: whether the machine before it could report its drain is not known to it."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR, can_replace=True)
    bus = Bus(world)
    world.at(10, lambda: world.log_line(WORN_OUT))
    bus.run(120)
    assert world.machine == 2
    kinds = [kind for kind, _ in bus.kinds()]
    assert kinds == [DRAINED, REPAIR, DRAINED, RELEASED]
    assert bus.kinds()[1] == (REPAIR, "replace")
    world.close()


def test_an_event_without_an_answer_comes_again_with_the_same_identity(tmp_path: Path) -> None:
    """The call may have been applied: who reads the bus tells the second one from a second drain."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR)
    bus = Bus(world)
    bus.answers = False
    world.at(3, world.start_job).at(10, lambda: world.log_line(XID_79)).at(400, world.end_jobs)
    bus.run(40)
    bus.answers = True
    bus.run(200)
    kinds = [each.kind for each in bus.events]
    assert kinds.count(DRAINED) > 1
    assert list(dict.fromkeys(each.identity[0] for each in bus.events)) == [DRAINED, REPAIR, RELEASED]
    assert len({each.identity for each in bus.events}) == 3
    world.close()


def undrained_by_an_operator(world: World) -> None:
    world.cluster.update(NODE, "undrain")


def drained_by_an_operator(world: World) -> None:
    world.cluster.update(NODE, "drain", "psu swap")


@pytest.mark.parametrize("takes_over", [undrained_by_an_operator, drained_by_an_operator])
def test_a_node_that_an_operator_takes_over_is_not_released(tmp_path: Path, takes_over: Any) -> None:
    """healthd's part is over. What the operator does with the node after that is no event of healthd's."""
    world = World(tmp_path / "n1")
    bus = Bus(world)
    world.at(10, lambda: world.log_line(XID_95)).at(100, lambda: takes_over(world))
    world.at(400, world.reset_gpu, lambda: world.cluster.update(NODE, "undrain"))
    bus.run(160)
    assert [kind for kind, _ in bus.kinds()] == [DRAINED, HANDED_OVER]
    world.close()


def test_a_node_that_healthd_never_had_has_no_events(tmp_path: Path) -> None:
    """A fault on a node that an operator drained, and both ends."""
    world = World(tmp_path / "n1")
    bus = Bus(world)
    drained_by_an_operator(world)
    world.at(10, lambda: world.log_line(XID_95))
    world.at(200, world.reset_gpu, lambda: world.cluster.update(NODE, "undrain"))
    bus.run(100)
    assert bus.events == []
    world.close()
