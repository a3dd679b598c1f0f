"""The mode ``approve`` on a real API server: the taint stands, the act waits for an operator, undo takes all back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.kubernetes.agent_node import AgentNode
from tests.live.kubernetes.agent_rig import add_leases
from tests.live.kubernetes.control_plane import ControlPlane
from tests.support.limits import limit_s
from tests.support.running import OFF_THE_BUS

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

PCI = "0000:05:00"


@pytest.fixture
def node(control_plane: ControlPlane, tmp_path: Path) -> Iterator[AgentNode]:
    """A node whose reboot is a line in a file."""
    control_plane.add_node("n1")
    add_leases(control_plane, limit=1, total=2)
    asked = tmp_path / "asked"
    more = (
        f'[provisioner]\nkind = "local"\n[provisioner.local]\nreboot_command = ["/bin/sh", "-c", "date >> {asked}"]\n'
    )
    made = AgentNode(control_plane, "n1", tmp_path, mode="approve", more=more)
    with made.kubelet:
        made.daemon.start()
        yield made
        made.daemon.stop()


def plan(node: AgentNode) -> dict[str, object] | None:
    shown = node.daemon.healthd("plan", "--json", "--socket", str(node.daemon.socket))
    remediation = json.loads(shown.stdout)["remediation"]
    return remediation if remediation and remediation["approval"] else None


def waits(node: AgentNode) -> str:
    node.daemon.wait(lambda: plan(node), limit_s(60.0), "an approval is asked for")
    found = plan(node)
    assert found is not None
    return str(found["id"])


def test_the_act_waits_through_kills_and_comes_once_after_the_approval(
    control_plane: ControlPlane, node: AgentNode, tmp_path: Path
) -> None:
    """Tainted; killed and started again it waits; another act is refused; approved it is asked for once."""
    asked = tmp_path / "asked"
    node.daemon.kernel_says(OFF_THE_BUS.format(pci=PCI))
    control_plane.wait(lambda: "healthd.io/unhealthy" in node.taints(), limit_s(30), "n1 to be tainted")
    remediation = waits(node)
    node.daemon.kill()
    node.daemon.start()
    assert waits(node) == remediation
    assert not asked.exists()
    control_plane.wait(
        lambda: node.read()["metadata"]["labels"].get("healthd.io/state") == "needs-operator", limit_s(30), "the label"
    )
    socket = ("--socket", str(node.daemon.socket))
    wrong = node.daemon.healthd("approve", remediation, "--step", "replace", *socket)
    assert (wrong.returncode, "its next act is reboot_node" in wrong.stderr) == (1, True), wrong.stderr
    done = node.daemon.healthd("approve", "n1", "--step", "reboot", "--reason", "seen", *socket)
    assert done.returncode == 0, done.stderr
    node.daemon.kill()
    node.daemon.start()
    node.daemon.wait(lambda: asked.exists() and asked.read_text() != "", limit_s(60), "the reboot is asked for")
    node.daemon.kill()
    node.daemon.start()
    node.daemon.wait(
        lambda: "waiting for a new boot id" in node.daemon.healthd("status", *socket).stdout, limit_s(60), "it waits"
    )
    assert len(asked.read_text().splitlines()) == 1


def test_undo_takes_taint_and_claim_back(control_plane: ControlPlane, node: AgentNode, tmp_path: Path) -> None:
    """Nothing was asked for, and the fault does not taint the node again."""
    node.daemon.kernel_says(OFF_THE_BUS.format(pci=PCI))
    remediation = waits(node)
    assert control_plane.claims() == {"n1"}
    socket = ("--socket", str(node.daemon.socket))
    done = node.daemon.healthd("undo", remediation, "--reason", "the job comes first", *socket)
    assert done.returncode == 0, done.stderr
    control_plane.wait(lambda: not node.taints() and not control_plane.claims(), limit_s(60), "n1 to be let in")
    node.daemon.kill()
    node.daemon.start()
    node.daemon.wait(lambda: "acknowledged" in node.daemon.healthd("plan", *socket).stdout, limit_s(30), "acknowledged")
    assert (node.taints(), (tmp_path / "asked").exists()) == (set(), False)
