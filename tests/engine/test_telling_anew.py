"""What people are told by a daemon that goes on from another's memory, before its engine has decided anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from healthd.config.schema.notify import NotifySection
from healthd.core.model import Mode, Remedy
from healthd.notify.delivery import Receiver
from healthd.notify.message import Message, Sender
from healthd.notify.node import node_notifier, open_notifier
from healthd.notify.notifier import Notifier
from healthd.remediation.engine.absent import AbsentNode
from tests.support.engine_rig import XID_95, Trouble, World

ODD = Trouble(code="gpu.level.odd", remedy=Remedy.ASK_HUMAN, clears_by=None)


class Pager:
    """Who is told by each daemon of a node."""

    def __init__(self, world: World) -> None:
        self.world, self.told = world, list[str]()
        self.started()

    def started(self) -> None:
        """A daemon has started."""
        world = self.world
        identity = SimpleNamespace(instance_id="")
        machine = SimpleNamespace(name="n1", identity=identity, instance_type=None)
        checkup: Any = SimpleNamespace(monitor=world.monitor, machine=machine, notices=())
        config = NotifySection(command=("/bin/true",))
        notifier = open_notifier(
            config, checkup, engine=world.engine, store=world.store, mode=Mode.QUARANTINE, state_dir=""
        )
        assert notifier is not None
        self.notifier: Notifier = notifier
        (channel,) = notifier.channels
        channel._receiver = Receiver(deliver=self._take)

    def ticks(self, times: int = 6) -> None:
        """Half a minute in which the engine does not come round, and the notifier does."""
        for _ in range(times):
            self.world.clock.advance(5.0)
            self.notifier.tick(self.world.clock.now())

    def _take(self, message: Message) -> None:
        self.told += [f"{each['state']} {each['key']}" for each in message.data["news"] if "page " in each["key"]]


def test_a_person_who_was_asked_for_is_needed_until_the_engine_has_decided(tmp_path: Path) -> None:
    """A restart while the cluster does not answer is no end of it, and no second call; the end is told, once."""
    world = World(tmp_path / "n1", max_out=0)
    pager = Pager(world)
    world.log_line(XID_95)
    world.run(2)
    pager.ticks()
    assert pager.told == ["wrong page gpu.xid.95 gpu:GPU-5e1f"]
    world.restart_daemon()
    pager.started()
    pager.ticks()
    world.run(2)
    pager.ticks()
    assert pager.told == ["wrong page gpu.xid.95 gpu:GPU-5e1f"]
    world.restart_daemon()
    pager.started()
    world.reset_gpu()
    pager.ticks()
    assert pager.told == ["wrong page gpu.xid.95 gpu:GPU-5e1f"], "nobody has looked"
    world.run(2)
    pager.ticks()
    assert pager.told == ["wrong page gpu.xid.95 gpu:GPU-5e1f", "over page gpu.xid.95 gpu:GPU-5e1f"]
    world.close()


def test_a_node_that_is_out_until_a_person_has_repaired_it_needs_one_after_a_restart_too(tmp_path: Path) -> None:
    """Its remediation is gone on with and nothing is decided: the call is over when the node is back, as without a
    restart."""
    world = World(tmp_path / "n1")
    pager = Pager(world)
    world.levels.add(ODD)
    world.run(4)
    pager.ticks()
    assert pager.told == ["wrong page gpu.level.odd gpu:GPU-5e1f"]
    world.restart_daemon()
    pager.started()
    world.run(4)
    pager.ticks()
    assert world.engine.holds_node() is not None
    assert pager.told == ["wrong page gpu.level.odd gpu:GPU-5e1f"]
    world.levels.clear()
    world.run_to_end()
    world.step()
    pager.ticks()
    assert pager.told == ["wrong page gpu.level.odd gpu:GPU-5e1f", "over page gpu.level.odd gpu:GPU-5e1f"]
    world.close()


def test_a_page_for_another_node_stands_over_a_restart_until_the_fleet_shows_its_end(tmp_path: Path) -> None:
    """The daemon reads the fleet minutes after its start, and another agent may be the first in service by then. Until
    then nothing is known of that node, and its receivers keep one incident."""
    world, told = World(tmp_path / "n1"), list[str]()
    paged: tuple[AbsentNode, ...] = (AbsentNode(node="n7", message="it is DOWN", page=True),)
    pages: frozenset[str] | None = frozenset({"n7"})

    def daemon() -> Notifier:
        return node_notifier(
            {"oncall": Receiver(deliver=lambda message: told.extend(each.state for each in message.about.news))},
            NotifySection(),
            world.monitor,
            engine=None,
            store=world.store,
            about=lambda: Sender(node="n1"),
            absent=lambda: paged,
            absent_pages=lambda: pages,
        )

    def ticks(notifier: Notifier) -> list[str]:
        for _ in range(12):
            world.clock.advance(5.0)
            notifier.tick(world.clock.now())
        return told

    assert ticks(daemon()) == ["wrong"]
    paged, pages = (), None
    again = daemon()
    assert ticks(again) == ["wrong"], "the fleet was not read yet"
    pages = frozenset({"n7"})
    assert ticks(again) == ["wrong"], "another agent is first by now"
    pages = frozenset()
    assert ticks(again) == ["wrong", "over"]
    pages = frozenset({"n7"})
    assert ticks(again) == ["wrong", "over"], "the next page is that other agent's"
    world.close()
