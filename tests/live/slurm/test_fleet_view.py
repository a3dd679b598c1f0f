"""``healthd fleet`` on a real slurmctld, with real daemons on some nodes, and none on others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from healthd.ledger.changes import NodeReading
from healthd.ledger.database import LEDGER, Ledger
from healthd.ledger.entries import MachineIdentity, SpanState
from healthd.ledger.feed import LedgerFeed
from healthd.remediation.provisioners.instance_topology import InstancePlace
from tests.live.slurm.slurm_lab import SlurmLab
from tests.live.slurm.test_spine import PCI, Nodes, quarantine
from tests.support.limits import limit_s
from tests.support.ports import free_ports
from tests.support.running import OFF_THE_BUS, RECOVERED, UNCONTAINED, Running, command_line

pytestmark = [pytest.mark.slurm, pytest.mark.process]

OBSERVE = '[orchestrator]\nkind = "slurm"\n'


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(nodes=6) as started:
        yield started


@pytest.fixture
def nodes(lab: SlurmLab, tmp_path: Path) -> Iterator[Nodes]:
    lab.reset()
    lab.update(",".join(lab.nodes), "extra=")
    made = Nodes(lab, tmp_path)
    yield made
    for node in made.running:
        node.stop()


class Head:
    """A head node: the command line, and a configuration that finds the cluster."""

    def __init__(self, lab: SlurmLab, folder: Path) -> None:
        self.config = folder / "head.toml"
        self.config.write_text(f'[orchestrator]\nkind = "slurm"\n[orchestrator.slurm]\nconf = "{lab.conf}"\n')

    def fleet(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return command_line(["fleet", *arguments, "--config", str(self.config)], os.environ, limit_s(30))

    def nodes(self) -> dict[str, dict[str, Any]]:
        done = self.fleet("--json")
        assert done.returncode in (0, 1), done.stderr
        return {each["name"]: each for each in json.loads(done.stdout)["nodes"]}


def test_every_node_in_its_state(lab: SlurmLab, nodes: Nodes, tmp_path: Path) -> None:
    """In service, critical and only observed, drained by us, drained by an operator, silent. The fault's end shows as
    well, and what healthd writes has moved no state but the one that it drained."""
    head = Head(lab, tmp_path)
    observed = nodes.add("n0001", OBSERVE)
    drained = nodes.add("n0002", quarantine())
    nodes.add("n0003", quarantine())
    lab.wait(lambda: all(head.nodes()[name]["reported_at"] for name in ("n0001", "n0002", "n0003")), 60, "all report")
    lab.update("n0004", "state=drain", "reason=fan swap")
    observed.kernel_says(OFF_THE_BUS.format(pci=PCI))
    drained.kernel_says(UNCONTAINED.format(pci=PCI))
    lab.wait(lambda: head.nodes()["n0002"]["state"] == "held", 60, "n0002 is held")
    lab.wait(lambda: head.nodes()["n0001"]["state"] == "critical", 60, "n0001 is critical")

    found = head.nodes()
    assert {name: each["state"] for name, each in found.items() if name != "n0003"} == {
        "n0001": "critical",
        "n0002": "held",
        "n0004": "drained",
        "n0005": "silent",
        "n0006": "silent",
    }
    assert (found["n0001"]["code"], found["n0001"]["mode"]) == ("gpu.xid.79", "observe")
    assert (found["n0002"]["code"], found["n0002"]["slot"]["scope"]) == ("gpu.xid.95", "cluster")
    assert found["n0004"]["hold"] == {"by": "root", "reason": "fan swap", "automatic": False}
    assert {lab.state(name) for name in ("n0001", "n0005", "n0006")} == {"IDLE"}

    shown = head.fleet()
    assert shown.returncode == 1
    for text in ("CRITICAL", "observe mode: nothing is done", 'by root: "fan swap"', "no report yet"):
        assert text in shown.stdout
    why = head.fleet("--why").stdout
    assert "healthd" in next(line for line in why.splitlines() if line.startswith("n0002"))
    one = head.fleet("n0002").stdout
    assert "hold      by healthd" in one
    assert "slot      cluster" in one

    drained.kernel_says(RECOVERED.format(pci=PCI))
    lab.wait(lambda: head.nodes()["n0002"]["hold"] is None, 60, "n0002 is back")
    lab.wait(lambda: head.nodes()["n0002"]["state"] not in ("held", "draining"), 60, "and says so")


def test_one_node_answers_for_itself(lab: SlurmLab, nodes: Nodes, tmp_path: Path) -> None:
    """On its own machine over the socket, with its history; a node whose name has no address has one line, and the
    cluster's part stands. Its answer stands while slurmctld is silent."""
    head = Head(lab, tmp_path)
    node = nodes.add("n0001", OBSERVE)
    lab.wait(lambda: head.nodes()["n0001"]["reported_at"], 60, "n0001 reports")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    lab.wait(lambda: head.nodes()["n0001"]["state"] == "critical", 60, "n0001 is critical")

    away = head.fleet("n0001")
    assert away.returncode == 1
    assert "report    critical gpu.xid.79" in away.stdout
    assert "answer    none: http://n0001:9809/verdict cannot be reached: n0001 has no address" in away.stdout
    answer = json.loads(head.fleet("n0001", "--json").stdout)["answer"]
    assert (answer["verdict"], "n0001 has no address" in answer["problem"]) == (None, True)

    head.config.write_text(f'{head.config.read_text()}[node]\nname = "n0001"\n[daemon]\nsocket = "{node.socket}"\n')
    here = head.fleet("n0001").stdout
    assert f"from {node.socket}\n  critical  " in here
    assert "[gpu.xid.79]" in here
    assert f"history   from {node.socket}\n" in here
    assert json.loads(head.fleet("n0001", "--json").stdout)["answer"]["verdict"]["verdict"] == "critical"
    lab.ctld_pause()
    try:
        blind = head.fleet("n0001")
        assert (blind.returncode, f"from {node.socket}" in blind.stdout) == (2, True)
        assert "the fleet could not be read" in blind.stderr
    finally:
        lab.ctld_resume()


def test_a_daemon_that_is_stopped_says_so_and_one_that_is_killed_does_not(
    lab: SlurmLab, nodes: Nodes, tmp_path: Path
) -> None:
    """After two and a half heartbeats; until then both nodes are as they reported last. A restart ends it."""
    head = Head(lab, tmp_path)
    stopped, killed = nodes.add("n0001", OBSERVE), nodes.add("n0002", OBSERVE)
    lab.wait(lambda: [head.nodes()[name]["state"] for name in ("n0001", "n0002")] == ["ok"] * 2, 60, "both report")
    killed.kill()
    assert stopped.stop() == 0
    found = head.nodes()
    assert [(found[name]["state"], found[name]["stopped"]) for name in ("n0001", "n0002")] == [
        ("ok", True),
        ("ok", False),
    ]
    for name in ("n0001", "n0002"):  # as it is when the heartbeats have passed
        extra = re.search(r"Extra=(\S.*?)$", lab.scontrol("show", "node", name).stdout, re.MULTILINE)
        assert extra is not None
        lab.update(name, "extra=" + re.sub(r"\bat=(\d+)", lambda at: f"at={int(at[1]) - 2000}", extra[1]))
    found = head.nodes()
    assert {name: found[name]["state"] for name in ("n0001", "n0002")} == {"n0001": "stopped", "n0002": "silent"}
    assert "stopped on purpose" in head.fleet().stdout
    stopped.start()
    lab.wait(lambda: head.nodes()["n0001"]["state"] == "ok", 60, "it reports again")
    assert not head.nodes()["n0001"]["stopped"]


def test_an_extra_of_an_administrator_stays(lab: SlurmLab, nodes: Nodes, tmp_path: Path) -> None:
    """The daemon says once that it cannot leave its summary, and the node is silent in the fleet."""
    lab.update("n0001", "extra=rack 7")
    node = nodes.add("n0001", OBSERVE)
    node.wait(lambda: "Extra of n0001 not set" in node.log.read_text(), 60, "it is in the log")
    assert "Extra=rack 7" in lab.scontrol("-o", "show", "node", "n0001").stdout
    assert Head(lab, tmp_path).nodes()["n0001"]["state"] == "silent"


def test_each_controller_serves_the_fleet_as_a_page(lab: SlurmLab, nodes: Nodes, tmp_path: Path) -> None:
    """The one that leads and the one that waits: the document is that of the command."""
    nodes.add("n0001", OBSERVE)
    lab.update("n0004", "state=drain", "reason=fan swap")
    head = Head(lab, tmp_path)
    lab.wait(lambda: head.nodes()["n0001"]["state"] == "ok", 60, "n0001 reports, every check having looked")
    ports, text = free_ports(2), head.config.read_text()
    controllers = [Running(), Running()]
    try:
        for number, (controller, port) in enumerate(zip(controllers, ports, strict=True)):
            config = tmp_path / f"controller-{number}.toml"
            own = f'[controller]\nstate_dir = "{tmp_path / "state"}"\nhttp = "127.0.0.1:{port}"\n'
            config.write_text(f'{text}[provisioner]\nkind = "ec2"\n[provisioner.aws]\nregion = "us-east-1"\n{own}')
            controller.begin("controller", config, tmp_path / f"log-{number}", dict(os.environ))
        lab.wait(lambda: {news(port)["controller"]["leads"] for port in ports} == {True, False}, 60, "one leads")
        lab.wait(lambda: all(news(port)["read_at"] for port in ports), 60, "both have read the fleet")
        expected = head.nodes()
        for port in ports:
            found = {each["name"]: each for each in fetched(port, "fleet")["nodes"]}
            assert {name: (each["state"], each["by"], each["why"]) for name, each in found.items()} == {
                name: (each["state"], each["by"], each["why"]) for name, each in expected.items()
            }
            assert found["n0004"]["state"] == "drained"
    finally:
        for controller in controllers:
            controller.stop()


def fetched(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=limit_s(10)) as answer:
        return json.load(answer)


def news(port: int) -> Any:
    try:
        return fetched(port, "fleet/news")
    except OSError:
        return {"controller": {"leads": None}, "read_at": None}


def test_what_cannot_be_read_is_said(lab: SlurmLab, nodes: Nodes, tmp_path: Path) -> None:
    """A node that is not there, a controller that does not answer, and a machine without Slurm."""
    head = Head(lab, tmp_path)
    missing = head.fleet("n0099")
    assert (missing.returncode, "did you mean n000" in missing.stderr) == (64, True)
    nowhere = tmp_path / "nowhere.toml"
    nowhere.write_text('[orchestrator]\nkind = "local"\n')
    head.config = nowhere
    none = head.fleet()
    assert (none.returncode, "none is found here" in none.stderr) == (64, True)
    head = Head(lab, tmp_path)
    lab.ctld_pause()
    try:
        head.config.write_text(head.config.read_text() + "timeout_s = 0.5\n")
        gone = head.fleet()
        assert (gone.returncode, "the fleet could not be read" in gone.stderr) == (2, True)
    finally:
        lab.ctld_resume()


def test_a_rack_that_slurm_does_not_name_is_the_one_in_the_ledger(lab: SlurmLab, nodes: Nodes, tmp_path: Path) -> None:
    """Where the site has EC2 asked for it; else the node has none, as without a ledger."""
    head, at = Head(lab, tmp_path), datetime.now(UTC)
    ledger = Ledger(tmp_path / LEDGER, now=at)
    feed = LedgerFeed(ledger, interval_s=60.0, keep_days=1.0)
    feed.places["i-1"] = InstancePlace(network=("nn-1", "nn-2", "nn-3"))
    machine = MachineIdentity(instance="i-1")
    feed.read({"n0001": NodeReading(node="n0001", state=SpanState.SERVING, machine=machine)}, at)
    ledger.close()
    state = f'[controller]\nstate_dir = "{tmp_path}"\n'
    before = head.config.read_text()
    head.config.write_text(f"{before}{state}")
    assert {each["rack"] for each in head.nodes().values()} == {""}
    head.config.write_text(f"{before}{state}[ledger]\naws_topology = true\n")
    assert {name: each["rack"] for name, each in head.nodes().items() if each["rack"]} == {"n0001": "nn-3"}
    assert "nn-3" in head.fleet("--by", "rack").stdout
    (tmp_path / LEDGER).write_bytes(b"no database at all, in more than a hundred bytes of text" * 4)
    assert {each["rack"] for each in head.nodes().values()} == {""}
