"""What people are told by a daemon that goes on from another's memory, before its engine has decided anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from healthd.config.schema.notify import NotifySection
from healthd.core.model import Mode, Remedy
from healthd.notify.delivery import Receiver
from healthd.notify.message import Message
from healthd.notify.node import open_notifier
from healthd.notify.notifier import Notifier
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
