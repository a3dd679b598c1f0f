"""Stop everything, and let a node in by hand, as docs/how-to/stop-everything.md has it: with a real slurmctld."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.remediation.orchestrators.slurm.orchestrator import SINFO_FIELDS
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.limits import limit_s
from tests.support.pages import blocks
from tests.support.running import UNCONTAINED, RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

NAME, PCI, FEATURE = "n0001", "0000:05:00", "healthd-opt-out"
SECTIONS = """
[remediation]
mode = "quarantine"
settle_s = 0.5
opt_out_file = "{opt_out}"
[budget]
max_out = 8
settle_s = 0.2
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
timeout_s = 5
"""


@pytest.fixture
def node(slurm: SlurmLab, tmp_path: Path) -> Iterator[RunningNode]:
    """A daemon for one node, in quarantine mode."""
    sections = SECTIONS.format(opt_out=tmp_path / "opt-out")
    made = RunningNode(tmp_path / "node", NAME, sections=sections, environ=slurm.env())
    made.start()
    yield made
    made.stop()
    for each in slurm.states():
        featured(slurm, each, "", "")


def shown(title: str) -> str:
    (block,) = (each for each in blocks() if (each.page, each.title) == ("docs/how-to/stop-everything.md", title))
    return block.text


def on_the_head_node(lab: SlurmLab, script: str) -> str:
    done = subprocess.run(
        ["sh", "-c", script], check=False, capture_output=True, text=True, timeout=limit_s(60), env=lab.env()
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def featured(lab: SlurmLab, node: str, available: str, active: str) -> None:
    lab.update(node, f"availablefeatures={available}", f"activefeatures={active}")


def features(lab: SlurmLab, node: str) -> tuple[str, str]:
    """Those that are available and those that are active; Slurm shows none in two ways."""
    known = [lab.shows(node, f"{which}Features").replace("(null)", "") for which in ("Available", "Active")]
    return known[0], known[1]


def reservations(lab: SlurmLab) -> list[str]:
    listed = lab.scontrol("-o", "show", "reservation").stdout.splitlines()
    return [line.split()[0] for line in listed if line.startswith("ReservationName=healthd-")]


def taken_out(lab: SlurmLab, node: RunningNode) -> None:
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    lab.wait(lambda: "DRAIN" in lab.state(NAME), 15.0, "drained")
    node.wait(
        lambda: ((node.status() or {}).get("remediation") or {}).get("step") == "verify", 15.0, "it has read that back"
    )
    assert len(reservations(lab)) == 1


def test_every_node_is_opted_out_and_keeps_its_own_features(slurm: SlurmLab, node: RunningNode) -> None:
    """Also one that is drained, one with several features, one with none; done twice it is done once. The daemon of a
    well node says so, and takes nothing out; taken back, all features are as they were."""
    featured(slurm, NAME, "p5,efa", "p5")
    featured(slurm, "n0002", "gpu", "gpu")
    slurm.update("n0003", "state=drain", "reason=admin: psu")
    before = {each: features(slurm, each) for each in slurm.states()}
    assert (before[NAME], before["n0003"]) == (("p5,efa", "p5"), ("", ""))
    for _ in range(2):
        on_the_head_node(slurm, shown("opt-out-everywhere"))
    assert features(slurm, NAME) == (f"p5,efa,{FEATURE}", f"p5,{FEATURE}")
    assert features(slurm, "n0002") == (f"gpu,{FEATURE}", f"gpu,{FEATURE}")
    assert {features(slurm, each) for each in before if each not in (NAME, "n0002")} == {(FEATURE, FEATURE)}
    plan = node.healthd("plan", "--socket", str(node.socket)).stdout
    assert f"\nopted out: the node has the feature {FEATURE}; healthd only observes here\n" in plan
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    node.wait(lambda: f"opted out: the node has the feature {FEATURE}" in node.log_text(), 15.0, "refused")
    assert reservations(slurm) == []
    on_the_head_node(slurm, shown("opt-in-everywhere"))
    assert {each: features(slurm, each) for each in before} == before
    slurm.wait(lambda: "DRAIN" in slurm.state(NAME), 20.0, "drained once the feature is gone")
    assert "admin: psu" in slurm.shows("n0003", "Reason")
    slurm.update("n0003", "state=undrain")


def test_sinfo_knows_every_field_that_it_is_asked_for(slurm: SlurmLab) -> None:
    """It leaves a column empty whose name it does not know, and says so on stderr alone."""
    featured(slurm, NAME, "p5,efa", "p5")
    asked = slurm.client("sinfo", "-h", "-N", "-n", NAME, "-O", SINFO_FIELDS)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "|p5,efa|p5|" in asked.stdout
    featured(slurm, NAME, "", "")


@pytest.mark.parametrize("way", ["file", "feature"])
def test_an_undone_drain_is_obeyed_on_a_node_that_is_opted_out(
    slurm: SlurmLab, node: RunningNode, tmp_path: Path, way: str
) -> None:
    """The reservation, which nobody but healthd would give back, goes within seconds: a job starts."""
    taken_out(slurm, node)
    if way == "file":
        (tmp_path / "opt-out").touch()
    else:
        featured(slurm, NAME, FEATURE, FEATURE)
    node.wait(
        lambda: "is paused at verify: opted out: " in (node.status() or {})["remediation"]["note"], 15.0, "paused"
    )
    slurm.update(NAME, "state=resume")
    slurm.wait(lambda: not reservations(slurm), 10.0, "its place is given back")
    assert slurm.wait_job(slurm.submit(NAME, "true"), "COMPLETED")["JobState"] == "COMPLETED"
    undone = "our drain was undone by an operator: that acknowledges the fault"
    node.wait(lambda: undone in node.log_text(), 10.0, "it is an order")
    (tmp_path / "opt-out").unlink(missing_ok=True)
    featured(slurm, NAME, "", "")
    time.sleep(6.0)  # a turn of the engine's
    assert "DRAIN" not in slurm.state(NAME)


def test_a_node_is_let_in_by_hand_where_no_daemon_runs(slurm: SlurmLab, node: RunningNode) -> None:
    """By the commands of the page; and a daemon that comes back takes it for an order."""
    taken_out(slurm, node)
    node.kill()
    resume, find, delete = shown("let-in-by-hand").replace("NODE", NAME).splitlines()
    on_the_head_node(slurm, resume)
    (found,) = on_the_head_node(slurm, find).splitlines()
    on_the_head_node(slurm, delete.replace("RESERVATION", found.split()[0].partition("=")[2]))
    assert slurm.wait_job(slurm.submit(NAME, "true"), "COMPLETED")["JobState"] == "COMPLETED"
    node.start()
    node.wait(
        lambda: "our drain was undone by an operator: that acknowledges the fault" in node.log_text(),
        15.0,
        "it is an order",
    )
    time.sleep(1.0)
    assert ("DRAIN" in slurm.state(NAME), reservations(slurm)) == (False, [])
