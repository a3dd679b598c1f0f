"""Notices and fences on a real slurmctld: 18 nodes of a rack are out as one, and nodes read what is reported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.controller.incidents import IncidentKeeper
from healthd.controller.notifications import about_controller, wrong_with_controller
from healthd.core.hostlist import unfolded
from healthd.core.model import Mode
from healthd.fleet.fences import FenceRules
from healthd.fleet.incidents import ENDS_AFTER, IncidentRules
from healthd.fleet.nodes import FleetPicture, FleetState
from healthd.fleet.slurm import read_fleet
from healthd.notify.delivery import Receiver
from healthd.notify.message import Message
from healthd.notify.notifier import Notifier
from healthd.remediation.orchestrators.slurm.incident_reservations import notice_name, parse_fences, parse_notices
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.records.incident_notices import LASTS, IncidentNotice
from healthd.remediation.records.summary import NodeState, NodeSummary
from tests.live.slurm.slurm_lab import SlurmLab, skip_reason
from tests.support.limits import limit_s
from tests.support.running import command_line

pytestmark = [pytest.mark.slurm, pytest.mark.process, pytest.mark.slow]

RACK = tuple(unfolded("n[0001-0018]"))
TOPOLOGY = (
    "SwitchName=rack-7 Nodes=n[0001-0018]\nSwitchName=rack-8 Nodes=n[0019-0020]\nSwitchName=top Switches=rack-[7-8]\n"
)


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    if reason := skip_reason():
        pytest.skip(reason)
    made = SlurmLab(nodes=20, conf={"TopologyPlugin": "topology/tree"})
    (made.root / "topology.conf").write_text(TOPOLOGY)
    made.start()
    yield made
    made.stop()


class Head:
    """A head node: production's keeper and notifier, in this process. ``later``: how far its clock is ahead."""

    def __init__(self, lab: SlurmLab, folder: Path) -> None:
        folder.chmod(0o755)
        self.folder = folder
        slurm = replace(Config().orchestrator.slurm, conf=str(lab.conf))
        self.config = replace(Config(), orchestrator=replace(Config().orchestrator, kind="slurm", slurm=slurm))
        self.lab, self.later, self.messages = lab, timedelta(), list[Message]()
        self.slurm = SlurmOrchestrator.of(self.config, "head")
        self.stats = ControllerStats(orchestrator="slurm", provisioner="", mode=Mode.QUARANTINE)
        self.stats.notifier = self.notifier = Notifier(
            {"chat": Receiver(deliver=self.messages.append)},
            per_hour=100,
            wrong=lambda: wrong_with_controller(self.stats),
            about=lambda: about_controller(self.stats, "head"),
            keep=lambda _: None,
        )
        self._steps = 0.0
        self.keeper = IncidentKeeper(
            self.read,
            folder=folder,
            rules=IncidentRules(),
            stats=self.stats,
            cluster=self.slurm,
            fencer=self.slurm,
            fence_rules=lambda _: FenceRules(most=1),
            monotonic_s=self._monotonic_s,
        )

    def _monotonic_s(self) -> float:
        return self._steps

    def now(self) -> datetime:
        return datetime.now(UTC) + self.later

    def read(self) -> FleetPicture:
        return read_fleet(self.config, "head", self.now, racks=True)

    def step(self) -> None:
        self._steps += 60.0
        assert self.keeper() == ""
        assert self.notifier.tick(self.now()) == ()

    def report(self, state: NodeState, code: str = "") -> None:
        """Every node leaves a summary with slurmctld, as its agent does."""
        now = self.now()
        for node in self.lab.nodes:
            faulty = node in RACK
            summary = NodeSummary(
                state=state if faulty else NodeState.OK,
                at=now,
                since=now,
                code=code if faulty else "",
                instance_type="p6e-gb200.36xlarge",
            )
            SlurmOrchestrator.of(self.config, node).summarize(summary)

    def incidents(self) -> str:
        """The output of ``healthd fleet incidents`` on the head node."""
        config = self.folder / "head.toml"
        config.write_text(
            f'[orchestrator]\nkind = "slurm"\n[orchestrator.slurm]\nconf = "{self.lab.conf}"\n'
            f'[controller]\nstate_dir = "{self.folder}"\n'
        )
        done = command_line(["fleet", "incidents", "--config", str(config)], os.environ, limit_s(60))
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    def answer(self) -> str:
        return self.slurm.reservations()

    @property
    def states(self) -> dict[str, FleetState]:
        return {each.name: each.state for each in self.read().nodes}


def test_a_rack_is_out_as_one_while_its_jobs_go_on_and_comes_back_as_one(lab: SlurmLab, tmp_path: Path) -> None:
    """One reservation of 18 nodes, which names its incident. A job that runs there ends as it would, a new one waits,
    one on the other rack runs. No state and no reason is touched. Lifted, all are idle at once."""
    head = Head(lab, tmp_path)
    running = lab.submit("n0001", "sleep 8")
    lab.wait(lambda: "MIXED" in lab.state("n0001") or "ALLOC" in lab.state("n0001"), limit_s(20), "the job runs")
    head.report(NodeState.CRITICAL, "gpu.imex.not_up")
    head.step()
    assert parse_fences(head.answer()) == ()
    head.step()
    (fence,) = parse_fences(head.answer())
    assert (fence.domain, fence.nodes) == ("rack-7", frozenset(RACK))
    (incident,) = head.stats.incidents
    assert fence.incident == incident.id
    lab.wait(lambda: "MAINT" in lab.state("n0002") or "RESERVED" in lab.state("n0002"), limit_s(20), "it is reserved")
    waiting = lab.submit("n0002", "true")
    lab.wait_job(lab.submit("n0019", "true"), "COMPLETED")
    lab.wait_job(running, "COMPLETED")
    assert "PENDING" in lab.client("squeue", "-h", "-o", "%T", "-j", str(waiting)).stdout
    lab.wait(lambda: {head.states[name] for name in RACK} == {FleetState.HELD}, limit_s(20), "all 18 are held")
    assert {head.states[name] for name in ("n0019", "n0020")} == {FleetState.OK}
    shown = head.incidents()
    assert f"{incident.id}  OPEN" in shown
    assert "  fenced as one: n[0001-0018]\n" in shown
    view = SlurmOrchestrator.of(head.config, "n0003").view(jobs=True)
    assert (view.hold, view.fenced) == (None, True)
    assert view.maintenance == f"healthd-fence:{incident.id}:rack-7", "no reset, reboot or replacement meanwhile"
    head.report(NodeState.OK)
    head.step()
    head.later = ENDS_AFTER + timedelta(minutes=1)
    head.step()
    assert head.stats.incidents == ()
    head.step()
    assert parse_fences(head.answer()) == ()
    lab.wait_job(waiting, "COMPLETED")
    head.step()
    assert parse_fences(head.answer()) == ()
    lab.wait(lambda: {head.states[name] for name in RACK} == {FleetState.OK}, limit_s(20), "all are back")


def test_notices_are_read_by_nodes_renewed_and_gone_with_the_incident(lab: SlurmLab, tmp_path: Path) -> None:
    """A node's own reading has the incident once its message is accepted; slurmctld forgets none over a restart."""
    head = Head(lab, tmp_path)
    head.report(NodeState.CRITICAL, "gpu.imex.not_up")
    head.step()
    assert parse_notices(head.answer()).open == (), "the message is not accepted yet"
    head.step()
    lab.ctld_stop()
    lab.ctld_start()
    node = SlurmOrchestrator.of(head.config, "n0007")
    notices = node.incident_notices()
    now = datetime.now(UTC)
    assert notices.is_watched(now)
    assert notices.covering("n0007", "gpu.imex.not_up", "node", critical=True, now=now) is not None
    assert notices.covering("n0019", "gpu.imex.not_up", "node", critical=True, now=now) is None
    assert notices.open[0].until is not None
    assert abs(notices.open[0].until - now - LASTS) < timedelta(minutes=2)
    head.slurm.show_incidents((), now)
    assert parse_notices(head.answer()).open == ()
    for fence in parse_fences(head.answer()):
        head.slurm.lift_fence(fence)


def test_slurmctld_takes_a_notice_of_thousands_of_nodes(lab: SlurmLab, tmp_path: Path) -> None:
    """Its name is as long as a name of ours can be."""
    head = Head(lab, tmp_path)
    nodes = frozenset(f"gpu-{number:05}" for number in range(0, 20_000, 2))
    notice = IncidentNotice(id="1124-000000", root="lustre mount:/fsx", began=datetime.now(UTC), nodes=nodes)
    head.slurm.show_incidents([notice], datetime.now(UTC))
    (read,) = head.slurm.incident_notices().open
    assert len(notice_name(notice)) > 8_000
    assert len(read.nodes) > 1_000
    head.slurm.show_incidents((), datetime.now(UTC))
