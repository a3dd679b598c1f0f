"""What a person orders, with a real daemon and a real slurmctld; and who opts a node out by a feature."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.running import RECOVERED, UNCONTAINED, RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

NAME = "n0001"
PCI = "0000:05:00"
FEATURE = "healthd-opt-out"
SECTIONS = """
[remediation]
mode = "{mode}"
settle_s = 0.5
opt_out_file = ""
[budget]
max_out = {max_out}
settle_s = 0.2
[provisioner]
kind = "local"
[provisioner.local]
reboot_command = ["/bin/false", "reboot"]
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
timeout_s = 60
unanswered_s = 120
"""


def sections(*, mode: str = "observe", max_out: int = 8) -> str:
    return SECTIONS.format(mode=mode, max_out=max_out)


@pytest.fixture
def node(slurm: SlurmLab, tmp_path: Path) -> Iterator[RunningNode]:
    """A daemon for one node, in observe mode."""
    made = RunningNode(tmp_path / "node", NAME, sections=sections(), environ=slurm.env())
    made.start()
    yield made
    made.stop()
    featured(slurm, "")


def ask(node: RunningNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    return node.healthd(*arguments, "--socket", str(node.socket))


def featured(lab: SlurmLab, *features: str) -> None:
    words = ",".join(features)
    lab.update(NAME, f"availablefeatures={words}", f"activefeatures={words}")


def reason(lab: SlurmLab) -> str:
    return lab.shows(NAME, "Reason").partition(" [root@")[0]


def slots(lab: SlurmLab) -> list[str]:
    listed = lab.scontrol("-o", "show", "reservation").stdout.splitlines()
    return [line for line in listed if f"Nodes={NAME} " in line and line.startswith("ReservationName=healthd-")]


def test_a_node_is_taken_out_by_command_stays_out_and_comes_back_by_command(slurm: SlurmLab, node: RunningNode) -> None:
    """In observe mode, with nothing wrong: drained, also after a kill -9 and a restart; then verified and IDLE."""
    done = ask(node, "quarantine", "--reason", "psu looks odd")
    assert (done.returncode, done.stdout.startswith("remediation ")) == (0, True), done.stderr
    slurm.wait(lambda: "DRAIN" in slurm.state(NAME), 10.0, "drained")
    assert reason(slurm).startswith("healthd: operator.quarantine node [")
    assert len(slots(slurm)) == 1
    text = slurm.shows(NAME, "Reason")
    node.kill()
    node.start()
    node.wait(lambda: "until `healthd release`: psu looks odd (uid 0)" in ask(node, "status").stdout, 10.0, "it stays")
    time.sleep(1.5)
    assert slurm.shows(NAME, "Reason") == text
    let = ask(node, "release", "--reason", "psu was changed")
    assert let.returncode == 0, let.stderr
    slurm.wait_state(NAME, "IDLE")
    slurm.wait(lambda: not slots(slurm), 10.0, "its place is given back")
    told = ask(node, "history", "--last", "1000").stdout  # each start of a daemon has a line of each check
    assert "quarantine by command: psu looks odd (uid 0)" in told
    assert "release by command" not in told.partition("quarantine by command")[0]
    assert "psu was changed (uid 0)" in told


def test_a_job_that_runs_is_left_to_end(slurm: SlurmLab, node: RunningNode, tmp_path: Path) -> None:
    """The drain keeps new jobs off, and the one that is there goes on."""
    done = tmp_path / "done"
    job = slurm.run_job(NAME, f"while [ ! -e {done} ]; do sleep 0.05; done")
    assert ask(node, "quarantine", "--reason", "fan").returncode == 0
    slurm.wait(lambda: "DRAIN" in slurm.state(NAME), 10.0, "drained")
    assert slurm.job(job)["JobState"] == "RUNNING"
    done.touch()
    assert slurm.wait_job(job, "COMPLETED")["JobState"] == "COMPLETED"
    assert ask(node, "release").returncode == 0
    slurm.wait_state(NAME, "IDLE")


def test_a_drain_of_somebody_else_is_no_ones_to_order_away(slurm: SlurmLab, node: RunningNode) -> None:
    """Neither rewritten by a quarantine nor undone by a release, forced or not; each says who holds it."""
    slurm.update(NAME, "state=drain", "reason=admin: psu")
    text = slurm.shows(NAME, "Reason")
    for order in (
        ("quarantine", "--reason", "x"),
        ("release",),
        ("release", "--force", "--reason", "x"),
        ("repair", "--step", "reboot", "--yes"),
    ):
        refused = ask(node, *order)
        assert (refused.returncode, 'held by root with "admin: psu"' in refused.stderr) == (1, True), refused
    time.sleep(1.0)
    assert (slurm.shows(NAME, "Reason"), slots(slurm)) == (text, [])
    assert node.log_text().count("command: refused: ") == 4
    slurm.update(NAME, "state=undrain")


def test_at_the_limit_an_order_is_refused(slurm: SlurmLab, node: RunningNode) -> None:
    """An order is counted as any other node that is out."""
    node.stop()
    node.configure(sections(max_out=1))
    node.start()
    slurm.update("n0008", "state=drain", "reason=admin: fan")
    for dry in ((), ("--dry-run",)):
        refused = ask(node, "quarantine", "--reason", "psu", *dry)
        assert (refused.returncode, "at the fleet limit: 1 of 8 nodes are out" in refused.stdout + refused.stderr) == (
            1,
            True,
        )
    assert slurm.state(NAME).startswith("IDLE")
    slurm.update("n0008", "state=undrain")
    slurm.wait_state("n0008", "IDLE")
    assert ask(node, "quarantine", "--reason", "psu").returncode == 0
    slurm.wait(lambda: "DRAIN" in slurm.state(NAME), 10.0, "drained, now that there is room")
    assert ask(node, "release").returncode == 0
    slurm.wait_state(NAME, "IDLE")


def test_a_fault_keeps_a_release_waiting_and_force_lets_it_in(slurm: SlurmLab, node: RunningNode) -> None:
    """Refused with what is wrong; forced it is let in, and not drained again for that until it ends and comes back."""
    node.stop()
    node.configure(sections(mode="quarantine"))
    node.start()
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    slurm.wait(lambda: "DRAIN" in slurm.state(NAME), 15.0, "drained for its fault")
    refused = ask(node, "release")
    assert (refused.returncode, "gpu.xid.95 on GPU 0000:05:00 is still open" in refused.stderr) == (1, True)
    assert ask(node, "release", "--force").returncode == 64
    assert ask(node, "release", "--force", "--reason", "vendor says so").returncode == 0
    slurm.wait_state(NAME, "IDLE")
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    time.sleep(2.0)
    assert slurm.state(NAME).startswith("IDLE")
    node.kernel_says(RECOVERED.format(pci=PCI))
    node.wait(lambda: "gpu.xid.95 on gpu:0000:05:00 ended" in node.log_text(), 10.0, "it is over")
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    slurm.wait(lambda: "DRAIN" in slurm.state(NAME), 15.0, "back, and so drained")
    node.kernel_says(RECOVERED.format(pci=PCI))
    slurm.wait_state(NAME, "IDLE")


def test_a_feature_stops_a_case_midway_and_lets_it_go_on(slurm: SlurmLab, node: RunningNode) -> None:
    """Set while the node is out: nothing is touched any more, orders are refused; removed: it goes on by itself."""
    node.stop()
    node.configure(sections(mode="quarantine"))
    node.start()
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    slurm.wait(lambda: "DRAIN" in slurm.state(NAME), 15.0, "drained")
    text = slurm.shows(NAME, "Reason")
    featured(slurm, "p5", FEATURE)
    words = f"opted out: the node has the feature {FEATURE}"
    node.wait(lambda: f"verify: {words}" in ask(node, "status").stdout, 15.0, "it rests")
    status = node.status()
    assert status is not None
    assert status["opted_out"] == f"the node has the feature {FEATURE}"
    node.kernel_says(RECOVERED.format(pci=PCI))
    time.sleep(2.0)
    assert slurm.shows(NAME, "Reason") == text
    refused = ask(node, "release", "--force", "--reason", "x")
    assert (refused.returncode, words in refused.stderr) == (1, True)
    assert words in ask(node, "plan").stdout
    featured(slurm, "p5")
    slurm.wait_state(NAME, "IDLE", within_s=20.0)


def test_a_node_with_the_feature_is_not_taken_out(slurm: SlurmLab, node: RunningNode) -> None:
    """The refusal is the decision, in the trail as well."""
    node.stop()
    node.configure(sections(mode="quarantine"))
    featured(slurm, FEATURE)
    node.start()
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    node.wait(lambda: f"opted out: the node has the feature {FEATURE}" in node.log_text(), 15.0, "refused")
    time.sleep(1.0)
    assert (slurm.state(NAME).startswith("IDLE"), slots(slurm)) == (True, [])
    featured(slurm, "")
    slurm.wait(lambda: "DRAIN" in slurm.state(NAME), 20.0, "drained once the feature is gone")
    node.kernel_says(RECOVERED.format(pci=PCI))
    slurm.wait_state(NAME, "IDLE")


def test_a_rehearsed_repair_changes_nothing(slurm: SlurmLab, node: RunningNode) -> None:
    """Every step in words, the command that would be run among them; the node is as it was."""
    before = slurm.scontrol("-o", "show", "node", NAME).stdout.split(" State=")[1].split(" ")[0]
    told = ask(node, "repair", "--step", "reboot", "--dry-run")
    assert told.returncode == 0, told.stderr
    steps = [line.split()[0] for line in told.stdout.splitlines()[1:]]
    assert steps == ["slot", "drain", "wait_idle", "collect", "reboot", "verify", "release"]
    assert "would run: /bin/false reboot" in told.stdout
    assert "it is idle now" in told.stdout
    time.sleep(0.5)
    assert (slurm.state(NAME).startswith(before.split("+")[0]), slots(slurm)) == (True, [])
    assert "command" not in {event.kind for event in node.events()}
    nobody = ask(node, "repair", "--step", "reboot")
    assert (nobody.returncode, "(no terminal); pass --yes or --dry-run" in nobody.stderr) == (64, True)
    cannot = ask(node, "repair", "--step", "replace", "--dry-run")
    assert (cannot.returncode, "the local provisioner has no replace_node" in cannot.stderr) == (
        1,
        True,
    )


def test_a_repair_that_fails_is_given_up_and_released_by_command(slurm: SlurmLab, node: RunningNode) -> None:
    """The reboot command says no, twice: a person is needed, and lets the node in."""
    assert ask(node, "repair", "--step", "reboot", "--reason", "kernel", "--yes").returncode == 0
    node.wait(lambda: "given up after 2 attempts" in node.log_text(), 30.0, "given up")
    assert reason(slurm).startswith("healthd: operator.repair node [")
    assert ask(node, "release", "--reason", "by hand").returncode == 0
    slurm.wait_state(NAME, "IDLE", within_s=20.0)
    assert os.path.exists(node.state_dir / "bundles"), "evidence was collected before"
