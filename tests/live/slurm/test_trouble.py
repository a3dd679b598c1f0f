"""Slurm in trouble, seen from a real daemon: no drain by mistake, a clear word, quick answers, and on it goes after."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.slurm.slurm_lab import SlurmLab
from tests.live.slurm.test_spine import PCI, Nodes, quarantine, reason
from tests.support.running import OFF_THE_BUS, RECOVERED, UNCONTAINED, RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

QUICK_S = 1.0


@pytest.fixture
def nodes(slurm: SlurmLab, tmp_path: Path) -> Iterator[Nodes]:
    """A maker of daemons on the shared cluster, which is able to answer again when the test is over."""
    made = Nodes(slurm, tmp_path)
    yield made
    slurm.munged_resume()
    slurm.ctld_resume()
    for node in made.running:
        node.stop()


def settings(more: str) -> str:
    """A node that may be taken out, with short timeouts for Slurm's commands."""
    return quarantine(more=more).replace("timeout_s = 5", "timeout_s = 1")


def quickest_check_s(node: RunningNode) -> float:
    """Seconds that `healthd check` takes as a cold process, at best of three: the machine has other things to do."""
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert node.check()["verdict"] == "critical"
        took.append(time.monotonic() - began)
    return min(took)


def tool_folder(folder: Path) -> Path:
    """An empty folder for Slurm's commands."""
    folder.mkdir()
    return folder


def fill(folder: Path) -> None:
    """Install Slurm's commands."""
    for tool in ("scontrol", "sinfo", "squeue"):
        (folder / tool).symlink_to(shutil.which(tool) or tool)


def stop_slurmctld_at_the_drain(folder: Path, pid: int) -> Path:
    """Have scontrol stop slurmctld just before its first drain, not before a summary (``state=draining``). Returns the
    file that lists the drains."""
    calls, real = folder / "updates", (folder / "scontrol").resolve()
    (folder / "scontrol").unlink()
    (folder / "scontrol").write_text(
        f"""#!/bin/sh
case "$*" in *" state=drain "*)
    [ -e {calls} ] || kill -STOP {pid}
    echo "$*" >>{calls} ;;
esac
exec {real} "$@"
"""
    )
    (folder / "scontrol").chmod(0o755)
    return calls


Trouble = tuple[str, Callable[[], object], Callable[[], object], str]


def trouble_named(name: str, slurm: SlurmLab, folder: Path) -> Trouble:
    """(settings, how it begins, how it ends, what has to be said)."""
    bin_dir, conf = folder / "bin", folder / "slurm.conf"
    match name:
        case "scontrol missing":
            tool_folder(bin_dir)
            return f'bin_dir = "{bin_dir}"', lambda: None, lambda: fill(bin_dir), "not found; install it"
        case "slurm.conf missing":
            return f'conf = "{conf}"', lambda: None, lambda: shutil.copy(slurm.conf, conf), "no end within 1 s"
        case "munged hung":
            return "", slurm.munged_pause, slurm.munged_resume, "no end within 1 s"
        case "slurmctld hung":
            return "", slurm.ctld_pause, slurm.ctld_resume, "no end within 1 s"
        case _:
            return "", slurm.ctld_stop, slurm.ctld_start, "no end within 1 s"


@pytest.mark.parametrize(
    "name", ["scontrol missing", "slurm.conf missing", "munged hung", "slurmctld hung", "slurmctld down"]
)
def test_slurm_that_cannot_be_asked(slurm: SlurmLab, nodes: Nodes, name: str) -> None:
    """A critical node whose Slurm does not answer: said in status and audit, answered at once, drained once it does."""
    more, begin, end, words = trouble_named(name, slurm, nodes.folder)
    begin()
    node = nodes.add("n0001", settings(more))
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    message = "the node's state in the cluster could not be read, so nothing is taken out"
    node.wait(lambda: message in node.log_text(), 10.0, "the audit says so")
    status = node.status()
    assert status is not None
    assert message in status["decision"]
    assert words in status["decision"]
    assert status["remediation"] is None
    assert quickest_check_s(node) < QUICK_S
    end()
    slurm.wait(lambda: "DRAIN" in slurm.state("n0001"), 15.0, "drained once Slurm answers")
    assert reason(slurm, "n0001").startswith(f"healthd: gpu.xid.79 gpu:{PCI}")


def test_a_drain_that_was_applied_late_is_adopted(slurm: SlurmLab, nodes: Nodes) -> None:
    """slurmctld hangs in the middle of the drain call and applies it when it wakes: that drain is adopted as ours."""
    bin_dir = tool_folder(nodes.folder / "bin")
    fill(bin_dir)
    updates = stop_slurmctld_at_the_drain(bin_dir, slurm.pid("slurmctld"))
    node = nodes.add("n0001", settings(f'bin_dir = "{bin_dir}"'))
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    node.wait(lambda: "drain: no answer, will be read back" in node.log_text(), 10.0, "the call ran out of time")
    assert quickest_check_s(node) < QUICK_S
    time.sleep(1.0)
    slurm.ctld_resume()
    node.wait(lambda: 'drained: "healthd: gpu.xid.95' in node.log_text(), 10.0, "adopted")
    drains = [line for line in updates.read_text().splitlines() if line.startswith("update nodename=n0001 state=drain")]
    assert len(drains) == 1, drains
    node.kernel_says(RECOVERED.format(pci=PCI))
    slurm.wait_state("n0001", "IDLE")
    # its place is kept for as long as the update without an answer may still come
    node.wait(lambda: "released: back in service" in node.log_text(), 30.0, "released")


def test_a_release_waits_for_slurm_too(slurm: SlurmLab, nodes: Nodes) -> None:
    """A fault that ends while munged hangs: the node stays out, the daemon answers, and it is released afterwards."""
    node = nodes.add("n0001", settings(""))
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    node.wait(lambda: "out until it is healthy" in node.log_text(), 10.0, "drained")
    slurm.munged_pause()
    node.kernel_says(RECOVERED.format(pci=PCI))
    node.wait(lambda: node.check("kernel.xid")["verdict"] == "ok", 10.0, "the fault is over")
    time.sleep(1.5)
    assert "released" not in node.log_text()
    slurm.munged_resume()
    slurm.wait_state("n0001", "IDLE")
    node.wait(lambda: "released: back in service" in node.log_text(), 10.0, "released")
