"""The mode ``approve`` with a real daemon and a real slurmctld: the act waits, through kills, for an operator."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.slurm.reboot_asked import repairing
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.limits import limit_s
from tests.support.running import OFF_THE_BUS, RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

NAME = "n0001"
PCI = "0000:05:00"


class AskingNode:
    """A daemon that asks before it reboots; a reboot is a line in a file, and never comes."""

    def __init__(self, folder: Path, slurm: SlurmLab) -> None:
        self.asked_file, self.slurm = folder / "asked", slurm
        self.daemon = RunningNode(folder / "node", NAME, sections=self.sections("ask"), environ=slurm.env())

    def sections(self, without_answer: str) -> str:
        more = f'[remediation.approve]\nreboot_node = "{without_answer}"'
        return repairing(self.asked_file, mode="approve", more=more)

    @property
    def reboots(self) -> int:
        """How many reboots were asked for."""
        return len(self.asked_file.read_text().splitlines()) if self.asked_file.exists() else 0

    def verb(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.daemon.healthd(*arguments, "--socket", str(self.daemon.socket))

    def waits(self) -> str:
        """The id of the remediation, once its reboot waits for an approval."""
        self.daemon.wait(lambda: self._approval() is not None, limit_s(30.0), "an approval is asked for")
        return str(json.loads(self.verb("plan", "--json").stdout)["remediation"]["id"])

    def asked_at(self) -> str:
        approval = self._approval()
        assert approval is not None
        return str(approval["asked"])

    def _approval(self) -> dict[str, str] | None:
        remediation = json.loads(self.verb("plan", "--json").stdout)["remediation"]
        approval = remediation and remediation["approval"]
        return approval or None

    def slots(self) -> list[str]:
        listed = self.slurm.scontrol("-o", "show", "reservation").stdout.splitlines()
        return [line for line in listed if f"Nodes={NAME} " in line and line.startswith("ReservationName=healthd-")]


@pytest.fixture
def node(slurm: SlurmLab, tmp_path: Path) -> Iterator[AskingNode]:
    made = AskingNode(tmp_path, slurm)
    made.daemon.start()
    yield made
    made.daemon.stop()


def test_the_act_waits_through_kills_and_comes_once_after_the_approval(slurm: SlurmLab, node: AskingNode) -> None:
    """Drained and prepared; killed and started again it waits since the same moment; approved, killed again, one
    reboot was asked for."""
    node.daemon.kernel_says(OFF_THE_BUS.format(pci=PCI))
    slurm.wait(lambda: "DRAIN" in slurm.state(NAME), limit_s(15.0), "drained")
    remediation = node.waits()
    since, text = node.asked_at(), slurm.shows(NAME, "Reason")
    for _ in range(2):
        node.daemon.kill()
        node.daemon.start()
        assert node.waits() == remediation
    assert (node.asked_at(), slurm.shows(NAME, "Reason"), node.reboots) == (since, text, 0)
    command = f"healthd approve {remediation} --step reboot"
    for verb in ("plan", "status"):
        assert command in node.verb(verb).stdout
    wrong = node.verb("approve", remediation, "--step", "replace")
    assert (wrong.returncode, "its next act is reboot_node, not replace_node" in wrong.stderr) == (1, True), (
        wrong.stderr
    )
    other = node.verb("approve", "zzzz", "--step", "reboot")
    assert (other.returncode, f"open here is {remediation}" in other.stderr) == (1, True), other.stderr
    dry = node.verb("approve", remediation, "--step", "reboot", "--dry-run")
    assert (dry.returncode, "would approve" in dry.stdout, node.reboots) == (0, True, 0), dry.stdout
    dry = node.verb("approve", remediation, "--step", "reboot", "--dry-run", "--json")
    shown = json.loads(dry.stdout)
    assert (shown["schema"], shown["command"], shown["target"]) == ("healthd.command/v1", "approve", remediation)
    assert (shown["dry_run"], shown["done"], len(shown["steps"]), node.reboots) == (True, True, 3, 0)
    done = node.verb("approve", remediation, "--step", "reboot", "--reason", "seen")
    assert done.returncode == 0, done.stderr
    node.daemon.kill()
    node.daemon.start()
    node.daemon.wait(lambda: node.reboots, limit_s(30.0), "the reboot is asked for")
    node.daemon.kill()
    node.daemon.start()
    node.daemon.wait(lambda: "waiting for a new boot id" in node.verb("status").stdout, limit_s(30.0), "it waits")
    assert node.reboots == 1
    assert "approve by command: seen (uid 0)" in node.daemon.log_text() + node.verb("history", "--last", "1000").stdout
    undone = node.verb("undo", remediation, "--reason", "too late")
    assert (undone.returncode, "cannot be taken back" in undone.stderr) == (1, True), undone.stderr
    undone = node.verb("undo", remediation, "--reason", "too late", "--json")
    shown = json.loads(undone.stdout)
    assert (undone.returncode, shown["done"], shown["refusal"]) == (1, False, "cannot")
    assert "DRAIN" in slurm.state(NAME)


def test_undo_puts_the_node_back_and_it_stays(slurm: SlurmLab, node: AskingNode) -> None:
    """The drain and the slot are gone, nothing was rebooted, and the fault does not drain the node again."""
    node.daemon.kernel_says(OFF_THE_BUS.format(pci=PCI))
    remediation = node.waits()
    assert len(node.slots()) == 1
    assert node.verb("undo", remediation).returncode == 64, "it needs a reason"
    node.daemon.kill()
    node.daemon.start()
    assert node.waits() == remediation
    done = node.verb("undo", remediation, "--reason", "the job comes first")
    assert done.returncode == 0, done.stderr
    slurm.wait_state(NAME, "IDLE")
    slurm.wait(lambda: not node.slots(), limit_s(10.0), "the slot is given back")
    node.daemon.kill()
    node.daemon.start()
    node.daemon.wait(lambda: "acknowledged" in node.verb("plan").stdout, limit_s(15.0), "acknowledged")
    assert (slurm.state(NAME).startswith("IDLE"), node.reboots) == (True, 0)


def test_without_an_answer_it_goes_ahead_by_default(slurm: SlurmLab, node: AskingNode) -> None:
    """The wait says until when; a reload that sets a time applies to the act that waits already."""
    node.daemon.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.waits()
    assert "without an answer the node stays out as it is" in node.verb("plan").stdout
    node.daemon.stop()
    node.daemon.configure(node.sections("go after 1m"))
    node.daemon.start()
    node.waits()
    assert re.search(r"without an answer it goes ahead at \d{4}-\d\d-\d\d \d\d:\d\d UTC", node.verb("plan").stdout)
    assert node.reboots == 0
    node.daemon.wait(lambda: node.reboots, limit_s(90.0), "it goes ahead")
    assert "approved by default: reboot_node" in node.verb("history", "--last", "1000").stdout


def test_a_user_without_the_right_approves_nothing(node: AskingNode) -> None:
    """Refused by the kernel's word for who asks, counted, and nothing is begun."""
    node.daemon.kernel_says(OFF_THE_BUS.format(pci=PCI))
    remediation = node.waits()
    node.daemon.open_to_all()
    refused = node.daemon.as_nobody("approve", remediation, "--step", "reboot", "--socket", str(node.daemon.socket))
    assert refused.returncode != 0
    assert node.reboots == 0
    assert node.waits() == remediation
