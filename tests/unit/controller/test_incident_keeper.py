"""The controller keeps the incidents of its fleet, and sends one message for each, which is updated and resolved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.notify import NotifySection
from healthd.controller.fleet_reader import EVERY_S
from healthd.controller.incidents import KEEP_S, RENEW_S, IncidentKeeper
from healthd.controller.notifications import about_controller, leader_notifier, wrong_with_controller
from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.core.model import Mode
from healthd.fleet.fences import FenceRules
from healthd.fleet.incident_memory import FILE, kept_memory
from healthd.fleet.incidents import ENDS_AFTER, IncidentRules
from healthd.fleet.nodes import FleetNode, FleetPicture
from healthd.notify.delivery import NotDeliveredError, Receiver
from healthd.notify.message import Message
from healthd.notify.news import PAGED
from healthd.notify.notifier import Notifier
from healthd.remediation.records.domain_fence import DomainFence
from healthd.remediation.records.incident_notices import IncidentNotice
from healthd.remediation.records.summary import NodeState
from tests.support.fleet_readings import NOW, names, rack, reading

MINUTE, CLIENTS = timedelta(minutes=1), 60
Fleet = Callable[[datetime], list[FleetNode]]


class Head:
    """A controller's keeper and notifier over a simulated fleet, 20 s a step."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self.folder, self.now = fleet, folder, NOW
        self.notices: list[tuple[datetime, tuple[IncidentNotice, ...]]] = []
        self.fences: list[DomainFence] = []
        self.stuck: set[str] = set()
        self.rules, self.refuses, self.accepts = FenceRules(most=1), False, True
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
            cluster=self,
            fencer=self,
            fence_rules=lambda _: self.rules,
            monotonic_s=self._elapsed_s,
            clock=lambda: self.now,
        )
        self.notifier = Notifier(
            {"chat": Receiver(deliver=self._deliver)},
            per_hour=100,
            wrong=lambda: wrong_with_controller(self.stats),
            about=lambda: about_controller(self.stats, "head-1"),
            keep=lambda text: setattr(self, "kept", text),
            kept=self.kept,
        )
        self.stats.notifier = self.notifier

    def _deliver(self, message: Message) -> None:
        if not self.accepts:
            raise NotDeliveredError("no")
        self.messages.append(message)

    def show_incidents(self, notices: Sequence[IncidentNotice], now: datetime) -> None:
        if self.refuses:
            raise BackendUnknown("slurmctld does not answer")
        self.notices.append((now, tuple(notices)))

    def fence_domain(self, fence: DomainFence) -> None:
        if self.refuses:
            raise BackendUnknown("slurmctld does not answer")
        self.fences.append(fence)

    def lift_fence(self, fence: DomainFence) -> None:
        if fence.domain in self.stuck:
            raise BackendRefused("Access/permission denied")
        self.fences.remove(fence)

    def _elapsed_s(self) -> float:
        return (self.now - NOW).total_seconds()

    def _read(self) -> FleetPicture:
        return FleetPicture(
            cluster="a", at=self.now, nodes=tuple(self.fleet(self.now)), limit=None, taken=0, fences=tuple(self.fences)
        )

    def run(self, lasts: timedelta) -> None:
        end = self.now + lasts
        while self.now < end:
            self.keeper()
            assert not self.notifier.tick(self.now) or not self.accepts
            self.now += timedelta(seconds=EVERY_S)

    @property
    def news(self) -> list[tuple[str, str]]:
        return [(piece["key"], piece["state"]) for each in self.messages for piece in each.data["news"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def file_server(now: datetime) -> list[FleetNode]:
    """60 nodes lose one file system within a minute, for half an hour."""
    lost = MINUTE <= now - NOW < 31 * MINUTE
    nodes = []
    for number, name in enumerate(names(CLIENTS)):
        since = NOW + MINUTE + timedelta(seconds=number / 10)
        has_it = lost and since <= now
        code = ("lustre.missing", "lustre.hung")[number % 2] if has_it else ""
        nodes.append(reading(name, code, "mount:/fsx" if has_it else "", since=since if has_it else NOW, now=now))
    return [*nodes, *(reading(name, now=now) for name in names(20, CLIENTS + 1))]


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
        (file_server, CLIENTS, "shared cause file system /fsx"),
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


def test_a_notice_stands_once_the_message_is_accepted_and_is_renewed(folder: Path) -> None:
    """Before that none does. It has the nodes, and goes with the incident; while nothing changes it is renewed every
    200 s."""
    head = Head(file_server, folder)
    head.accepts = False
    head.run(3 * MINUTE)
    assert head.notices
    assert not any(notices for _, notices in head.notices)
    head.accepts = True
    head.run(3 * MINUTE)
    (notice,) = head.notices[-1][1]
    assert (notice.id, notice.critical) == (head.stats.incidents[0].id, True)
    assert notice.nodes == set(names(CLIENTS))
    head.notices.clear()
    head.run(20 * MINUTE)
    assert all(len(notices) == 1 for _, notices in head.notices)
    assert len(head.notices) == 20 * 60 // RENEW_S
    head.run(40 * MINUTE)
    assert head.notices[-1][1] == ()


def test_a_controller_without_receivers_asks_no_node_to_hold_its_messages(folder: Path) -> None:
    """They would reach nobody."""
    head = Head(file_server, folder)
    head.stats.notifier = None
    head.run(10 * MINUTE)
    assert head.stats.incidents
    assert head.notices == []


def test_a_cluster_that_refuses_is_asked_again(folder: Path) -> None:
    """For the notice and for the fence; the sync goes on and says what is missing."""
    head = Head(dead_rack, folder)
    head.run(MINUTE)
    head.refuses = True
    head.run(MINUTE)
    head.now += timedelta(seconds=EVERY_S)
    problem = head.keeper()
    assert (
        "the fence of NVLink domain rack-7 is not as it should be; trying again: slurmctld does not answer" in problem
    )
    assert "its notice is not left: slurmctld does not answer" in problem
    head.refuses = False
    head.run(MINUTE)
    assert [each.domain for each in head.fences] == ["rack-7"]
    assert head.notices[-1][1]
    assert head.keeper() == ""


def test_a_fence_that_outlasts_its_incident_pages(folder: Path) -> None:
    """After half an hour, with the nodes that keep it."""
    head = Head(lambda now: rack("rack-7", 1, now=now, silent=True), folder)
    head.fences = [DomainFence(domain="rack-7", incident="1123-000000", nodes=frozenset(names(18)))]
    head.run(25 * MINUTE)
    assert head.messages == []
    head.run(10 * MINUTE)
    (piece,) = head.messages[0].data["news"]
    assert piece["key"] == f"{PAGED}fence rack-7"
    assert (
        "all 18 nodes of NVLink domain rack-7 stay out after incident 1123-000000: not clean: gpu-001"
        in piece["message"]
    )


def test_a_fence_that_cannot_be_lifted_pages_and_blocks_no_other(folder: Path) -> None:
    """Another that is over is lifted, and a domain that breaks is fenced. It pages after half an hour, until it is
    lifted; the controller's log has it at once."""
    head = Head(lambda now: [*dead_rack(now), *rack("rack-9", 201, now=now)], folder)
    head.rules, head.stuck = FenceRules(most=3), {"rack-8"}
    head.fences = [
        DomainFence(domain=domain, incident=f"1123-00000{number}", nodes=frozenset(names(18, first)))
        for number, (domain, first) in enumerate((("rack-8", 101), ("rack-9", 201)))
    ]
    head.run(5 * MINUTE)
    assert [each.domain for each in head.fences] == ["rack-8", "rack-7"]
    assert "the fence of NVLink domain rack-8 is not as it should be" in head.keeper()
    assert f"{PAGED}fence rack-8" not in dict(head.news)
    head.run(30 * MINUTE)
    assert dict(head.news)[f"{PAGED}fence rack-8"] == "wrong"
    text = next(each.message for each in wrong_with_controller(head.stats) if each.key == f"{PAGED}fence rack-8")
    assert "all 18 nodes of NVLink domain rack-8 stay out after incident 1123-000000" in text
    assert "Access/permission denied; repair these nodes, or delete the reservation" in text
    head.stuck.clear()
    head.run(30 * MINUTE)
    assert dict(head.news)[f"{PAGED}fence rack-8"] == "over"


def test_a_domain_that_cannot_be_fenced_is_not_called_fenced(folder: Path) -> None:
    """The message of its incident has the reason."""
    head = Head(dead_rack, folder)
    head.refuses = True
    head.run(5 * MINUTE)
    (incident,) = head.stats.incidents
    assert "not fenced: the fence of NVLink domain rack-7 is not as it should be" in incident.message
    head.refuses = False
    head.run(MINUTE)
    (incident,) = head.stats.incidents
    assert "new jobs are kept off all 18 nodes of it as one" in incident.message


def test_a_fleet_that_cannot_be_read_ends_nothing(folder: Path) -> None:
    """What is open stays open, and the reason is said."""
    head = Head(dead_rack, folder)
    head.run(5 * MINUTE)
    (before,) = head.stats.incidents

    def fails(now: datetime) -> list[FleetNode]:
        raise BackendUnknown("slurmctld does not answer")

    head.fleet = fails
    assert "slurmctld does not answer" in head.keeper()
    assert head.stats.incidents == (before,)


def test_a_memory_that_cannot_be_written_is_written_as_soon_as_it_can(folder: Path) -> None:
    """The reason is said for as long as it lasts."""
    head = Head(dead_rack, folder)
    folder.chmod(0o777)
    assert "not remembered" in head.keeper()
    assert "not remembered" in head.keeper()
    folder.chmod(0o755)
    assert not head.keeper()
    assert kept_memory(folder) is not None


def test_the_memory_is_written_when_something_is_new_in_it(folder: Path) -> None:
    """Between that only now and then: when a node was seen last is told to within KEEP_S."""
    head = Head(dead_rack, folder)
    inodes, steps = set(), 0
    while head.now - NOW < timedelta(seconds=EVERY_S + 2 * KEEP_S):
        head.keeper()
        inodes.add((folder / FILE).stat().st_mtime_ns)
        memory = kept_memory(folder)
        assert memory is not None
        assert all(head.now - each.seen < timedelta(seconds=KEEP_S) for each in memory.sightings)
        head.now += timedelta(seconds=EVERY_S)
        steps += 1
    assert steps > 60
    assert 3 <= len(inodes) <= 6  # the first one, the incident, its trend, and every ten minutes


def test_the_next_leader_with_an_empty_disk_resolves_nothing_before_it_has_read_the_fleet(folder: Path) -> None:
    """A pod of Kubernetes whose first reading fails, while its syncs succeed: its receivers get no end and no second
    beginning of the incident, and the notices by which 60 nodes hold their messages stand."""
    head = Head(file_server, folder)
    head.run(5 * MINUTE)
    sent, fails_until = len(head.messages), head.now + 2 * MINUTE
    (folder / FILE).unlink()
    head.notices.clear()
    read = head._read

    def fails() -> FleetPicture:
        if head.now < fails_until:
            raise BackendUnknown("the API server does not answer")
        return read()

    head._read = fails  # type: ignore[method-assign]
    head.start()
    head.stats.took_lead()
    head.notifier = head.stats.notifier = leader_notifier(
        {"chat": Receiver(deliver=head._deliver)},
        NotifySection(),
        head.stats,
        name="head-2",
        kept=head.kept,
        keep=lambda _: None,
    )
    head.stats.ended("ok", 0.1, "")
    head.run(5 * MINUTE)
    assert len(head.messages) == sent
    assert head.notices
    assert all(len(notices) == 1 for _, notices in head.notices)
