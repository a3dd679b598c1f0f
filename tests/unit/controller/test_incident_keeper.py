"""The controller keeps the incidents of its fleet, and sends one message for each, which is updated and resolved."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from healthd.api.controller_stats import ControllerStats
from healthd.controller.incidents import EVERY_S, IncidentKeeper
from healthd.controller.notifications import about_controller, wrong_with_controller
from healthd.core.errors import BackendUnknown
from healthd.core.model import Mode
from healthd.fleet.incidents import ENDS_AFTER, IncidentRules
from healthd.fleet.nodes import FleetNode, FleetPicture
from healthd.notify.delivery import Message
from healthd.notify.news import PAGED
from healthd.notify.notifier import Notifier
from healthd.remediation.decide.summary import NodeState
from tests.support.fleet_readings import NOW, names, rack, reading

MINUTE = timedelta(minutes=1)
Fleet = Callable[[datetime], list[FleetNode]]


class Head:
    """A controller's keeper and notifier over a simulated fleet, 20 s a step."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self.folder, self.now = fleet, folder, NOW
        self.messages: list[Message] = []
        self.kept = ""
        self.start()

    def start(self) -> None:
        """A process: the first, or the next leader."""
        self.stats = ControllerStats(orchestrator="slurm", provisioner="", mode=Mode.OBSERVE)
        self.keeper = IncidentKeeper(
            self._read,
            folder=self.folder,
            rules=IncidentRules(),
            stats=self.stats,
            monotonic_s=self._elapsed_s,
        )
        self.notifier = Notifier(
            {"chat": self.messages.append},
            per_hour=100,
            wrong=lambda: wrong_with_controller(self.stats),
            about=lambda: about_controller(self.stats, "head-1"),
            keep=lambda text: setattr(self, "kept", text),
            kept=self.kept,
            head=lambda about: f"{about['incidents']} open",
        )

    def _elapsed_s(self) -> float:
        return (self.now - NOW).total_seconds()

    def _read(self) -> FleetPicture:
        return FleetPicture(cluster="a", at=self.now, nodes=tuple(self.fleet(self.now)), limit=None, taken=0)

    def run(self, lasts: timedelta) -> None:
        end = self.now + lasts
        while self.now < end:
            self.keeper()
            assert not self.notifier.tick(self.now)
            self.now += timedelta(seconds=EVERY_S)

    @property
    def news(self) -> list[tuple[str, str]]:
        return [(piece["key"], piece["state"]) for each in self.messages for piece in each.data["news"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def file_server(now: datetime) -> list[FleetNode]:
    """200 nodes lose one file system within a minute, for half an hour."""
    lost = MINUTE <= now - NOW < 31 * MINUTE
    nodes = []
    for number, name in enumerate(names(200)):
        since = NOW + MINUTE + timedelta(seconds=number / 10)
        has_it = lost and since <= now
        code = ("lustre.missing", "lustre.hung")[number % 2] if has_it else ""
        nodes.append(reading(name, code, "mount:/fsx" if has_it else "", since=since if has_it else NOW, now=now))
    return [*nodes, *(reading(name, now=now) for name in names(20, 201))]


def dead_rack(now: datetime) -> list[FleetNode]:
    """The NVLink of one rack of 18 nodes dies."""
    code = "gpu.imex.not_up" if now - NOW >= MINUTE else ""
    return [*rack("rack-7", 1, code, since=NOW + MINUTE, now=now), *rack("rack-8", 101, now=now)]


def rollout(now: datetime) -> list[FleetNode]:
    """A driver that is bad reaches a node a minute, 16 of 64 in all."""
    found = []
    for number, name in enumerate(names(64)):
        since = NOW + number * MINUTE
        bad = number < 16 and since <= now
        driver = "590.10" if bad else "580.95.05"
        found.append(reading(name, "gpu.count" if bad else "", since=since if bad else NOW, now=now, driver=driver))
    return found


def single_root(now: datetime) -> list[FleetNode]:
    """One dead NVLink, beside which 17 nodes of its rack warn."""
    root = rack("rack-7", 1, "gpu.nvlink.dead", 1, now=now)
    return [*root, *rack("rack-7", 2, "gpu.xid.149", 17, state=NodeState.WARNING, now=now)]


@pytest.mark.parametrize(
    ("fleet", "nodes", "root"),
    [
        (file_server, 200, "shared cause file system /fsx"),
        (dead_rack, 18, "most of NVLink domain rack-7 is broken, and no node outside"),
        (rollout, 16, "shared cause driver 590.10"),
    ],
)
def test_each_incident_is_one_page_that_is_updated(fleet: Fleet, nodes: int, root: str, folder: Path) -> None:
    """One key, first as a problem and later only as a change of it; the right root and all nodes in the end."""
    head = Head(fleet, folder)
    head.run(30 * MINUTE)
    (status,) = head.stats.incidents
    assert status.nodes == nodes
    assert root in status.message
    keys = {key for key, _ in head.news}
    assert keys == {f"{PAGED}incident {status.id}"}
    assert [state for _, state in head.news].count("wrong") == 1
    assert {state for _, state in head.news} <= {"wrong", "now"}


def test_a_file_server_and_a_rack_are_one_message_whole(folder: Path) -> None:
    """All nodes are in it by the first message, so that it needs no update."""
    for fleet in (file_server, dead_rack):
        head = Head(fleet, folder / fleet.__name__)
        head.folder.mkdir(mode=0o755)
        head.run(30 * MINUTE)
        assert len(head.messages) <= 2  # the second is an update under the same key


def test_a_single_root_in_a_rack_is_no_incident(folder: Path) -> None:
    """It is the message of its own node."""
    head = Head(single_root, folder)
    head.run(10 * MINUTE)
    assert not head.stats.incidents
    assert not head.messages


def test_the_end_is_told_once_and_a_new_leader_neither_repeats_nor_forgets(folder: Path) -> None:
    """It takes over the memory and what was sent; the end comes after the nodes have been healthy for a while."""
    head = Head(file_server, folder)
    head.run(10 * MINUTE)
    (before,) = head.stats.incidents
    sent = len(head.messages)
    head.start()
    assert [each.id for each in head.stats.incidents] == [before.id]
    head.run(10 * MINUTE)
    assert len(head.messages) == sent
    head.run(20 * MINUTE + ENDS_AFTER)
    assert not head.stats.incidents
    assert [state for _, state in head.news].count("over") == 1
    assert head.news[-1][1] == "over"


def test_a_fleet_that_cannot_be_read_ends_nothing(folder: Path) -> None:
    """What is open stays open, and the reason is said; it is read no more often than EVERY_S."""
    head = Head(dead_rack, folder)
    head.run(5 * MINUTE)
    (before,) = head.stats.incidents
    readings = 0

    def fails(now: datetime) -> list[FleetNode]:
        nonlocal readings
        readings += 1
        raise BackendUnknown("slurmctld does not answer")

    head.fleet = fails
    assert "slurmctld does not answer" in head.keeper()
    assert "slurmctld does not answer" in head.keeper()
    assert readings == 1
    assert head.stats.incidents == (before,)
    head.now += timedelta(seconds=EVERY_S)
    head.fleet = dead_rack
    folder.chmod(0o777)
    assert "not remembered" in head.keeper()
