"""A node whose slurmd starts after healthd, as at a boot; where slurmctld configures it, no sign of Slurm is there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.slurm.slurm_lab import SlurmLab
from tests.live.slurm.test_spine import PCI, Nodes, nodes, quarantine, reason
from tests.support.running import RECOVERED, UNCONTAINED, RunningNode

__all__ = ["nodes"]
pytestmark = [pytest.mark.slurm, pytest.mark.process]
AUTO = quarantine().replace('kind = "slurm"', 'kind = "auto"')


def kind(node: RunningNode) -> str:
    status = node.status()
    return "" if status is None else str(status["orchestrator"])


def started(node: RunningNode, slurm: SlurmLab, *, is_seen: bool) -> None:
    """Start its daemon, with or without a sign of Slurm."""
    node.stop()
    node.see("SLURM_CONF", slurm.env()["SLURM_CONF"] if is_seen else "")
    node.start()


@pytest.fixture
def sent() -> Iterator[Path]:
    """Where slurmd keeps the configuration that slurmctld sends it, still empty; the processes of this worker alone see
    what is there."""
    folder = Path("/run/slurm/conf")
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_boot_before_slurmd_undoes_no_drain(slurm: SlurmLab, nodes: Nodes) -> None:
    """The node was one of Slurm: healthd took it for a machine of no cluster, its drain for undone by an operator, and
    left the node drained for good."""
    node = nodes.add("n0002", AUTO)
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    node.wait(lambda: "out until it is healthy" in node.log_text(), 20.0, "drained")
    started(node, slurm, is_seen=False)
    assert kind(node) == "slurm"
    node.kernel_says(RECOVERED.format(pci=PCI))
    node.wait(lambda: "ended" in node.log_text(), 20.0, "the fault is over")
    started(node, slurm, is_seen=True)
    slurm.wait_state("n0002", "IDLE")
    assert "undone by an operator" not in node.log_text()


def test_what_was_begun_without_slurm_is_decided_again(slurm: SlurmLab, nodes: Nodes) -> None:
    """A first boot with a broken GPU: the remediation of a machine of no cluster drained nothing in Slurm."""
    node = nodes.add("n0003", AUTO, start=False)
    started(node, slurm, is_seen=False)
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    node.wait(lambda: "out until it is healthy" in node.log_text(), 20.0, "taken out of no cluster")
    started(node, slurm, is_seen=True)
    slurm.wait(lambda: "DRAIN" in slurm.state("n0003"), 20.0, "n0003 is drained")
    assert reason(slurm, "n0003").startswith("healthd: gpu.xid.95")
    assert "undone by an operator" not in node.log_text()


def test_a_slurmd_that_starts_later_is_found(slurm: SlurmLab, nodes: Nodes, sent: Path) -> None:
    """Within half a minute the daemon starts again, as one of Slurm."""
    node = nodes.add("n0004", AUTO, start=False)
    started(node, slurm, is_seen=False)
    assert kind(node) == "local"
    (sent / "slurm.conf").write_text(Path(slurm.env()["SLURM_CONF"]).read_text())
    node.wait(lambda: kind(node) == "slurm", 60.0, "it is one of Slurm")
    node.stop()
