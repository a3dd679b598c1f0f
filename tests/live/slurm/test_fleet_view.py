"""``healthd fleet`` on a real slurmctld, with real daemons on some nodes, and none on others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.slurm.slurm_lab import SlurmLab
from tests.live.slurm.test_spine import PCI, Nodes, quarantine
from tests.support.limits import limit_s
from tests.support.running import OFF_THE_BUS, RECOVERED, UNCONTAINED

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
        argv = [sys.executable, "-m", "healthd", "fleet", *arguments, "--config", str(self.config)]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s(30))

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


def test_an_extra_of_an_administrator_stays(lab: SlurmLab, nodes: Nodes, tmp_path: Path) -> None:
    """The daemon says once that it cannot leave its summary, and the node is silent in the fleet."""
    lab.update("n0001", "extra=rack 7")
    node = nodes.add("n0001", OBSERVE)
    node.wait(lambda: "Extra of n0001 not set" in node.log.read_text(), 60, "it is in the log")
    assert "Extra=rack 7" in lab.scontrol("-o", "show", "node", "n0001").stdout
    assert Head(lab, tmp_path).nodes()["n0001"]["state"] == "silent"


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
