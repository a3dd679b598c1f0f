"""What a node's handoff record remembers of it, and what that decides: whole stories on the engine's rig."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.errors import BackendBusy, BackendError, BackendRefused
from healthd.model import Mode, Remedy
from healthd.remediation.marks import PastRepair, parse
from tests.engine_rig import NODE, STORIES, XID_79, Trouble, World


def history_of(world: World) -> tuple[PastRepair, ...]:
    mark = parse(world.cluster.nodes[NODE].mark)
    return mark.history if mark is not None else ()


def told(world: World) -> list[str]:
    return [f"{each.act} {each.code} {each.outcome}".strip() for each in history_of(world)]


@pytest.mark.parametrize(
    ("story", "left"),
    [
        ("quarantine", "return gpu.xid.95"),
        ("repair", "reboot gpu.xid.79 helped"),
        ("reset", "reset gpu.xid.95 helped"),
        ("replace", "replace gpu.remap.failure helped"),
    ],
)
def test_each_repair_is_an_entry_that_says_whether_it_helped(tmp_path: Path, story: str, left: str) -> None:
    """The record says so under the node's name; of a replacement it is the successor's empty disk that goes on."""
    assert told(STORIES[story](tmp_path / "n1").run_to_end()) == [left]


def test_each_attempt_that_did_not_help_is_an_entry(tmp_path: Path) -> None:
    """Two reboots in vain, and nothing after them: the node was given up."""
    world = World(tmp_path / "n1", mode=Mode.REPAIR)
    stuck = Trouble(code="efa.missing", remedy=Remedy.REBOOT_NODE, clears_by=None)
    world.reboot_heals = False
    world.at(10, lambda: world.levels.add(stuck)).run(400)
    assert told(world) == ["reboot efa.missing failed"] * 2


class BusyPlatform(World):
    """Its platform has no time for the first three askings."""

    answer: BackendError = BackendBusy("the cluster is being updated")
    unwilling = 3
    askings = 0

    def _asked_to_reboot(self) -> None:
        self.askings += 1
        if self.askings <= self.unwilling:
            assert told(self) == ["reboot gpu.xid.79"], "it is written down before it is begun"
            raise self.answer
        super()._asked_to_reboot()


def test_a_platform_that_is_busy_has_repaired_nothing(tmp_path: Path) -> None:
    """Asked four times, and begun once."""
    world = BusyPlatform(tmp_path / "n1", mode=Mode.REPAIR)
    world.at(10, lambda: world.log_line(XID_79)).run_to_end()
    assert (world.askings, told(world)) == (4, ["reboot gpu.xid.79 helped"])
    assert [case.acts for case in world.store.cases()] == [(Remedy.REBOOT_NODE,)]


def test_what_was_refused_is_no_repair(tmp_path: Path) -> None:
    """The platform says no, twice: the node is given up, and nothing was done to it."""
    world = BusyPlatform(tmp_path / "n1", mode=Mode.REPAIR)
    world.answer = BackendRefused("not while it is paused")
    world.at(10, lambda: world.log_line(XID_79)).run(60)
    assert (world.askings, told(world)) == (2, [])
    case = world.store.open_case()
    assert case is not None
    assert (str(case.end), case.acts) == ("failed", ())
