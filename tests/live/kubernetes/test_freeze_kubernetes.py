"""A freeze of the fleet on a real API server: one annotation of the budget's Lease, which no agent may write."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.live.kubernetes.agent_node import AgentNode
from tests.live.kubernetes.agent_rig import add_leases
from tests.live.kubernetes.control_plane import ControlPlane
from tests.support.limits import limit_s
from tests.support.running import OFF_THE_BUS

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

PCI = "0000:05:00"


def test_a_freeze_holds_repairs_and_its_end_lets_them_go(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Begun with an administrator's right; a node with a fault is tainted and not rebooted, also after a kill -9."""
    control_plane.add_node("n1")
    add_leases(control_plane, limit=1, total=2)
    asked = tmp_path / "asked"
    more = (
        f'[provisioner]\nkind = "local"\n[provisioner.local]\nreboot_command = ["/bin/sh", "-c", "date >> {asked}"]\n'
    )
    more += "[policy]\ncanary_repairs = 0\n"
    node = AgentNode(control_plane, "n1", tmp_path, mode="repair", more=more)
    admin = tmp_path / "admin.toml"
    admin.write_text(
        f'[orchestrator]\nkind = "kubernetes"\n[orchestrator.kubernetes]\nkubeconfig = "{control_plane.kubeconfig}"\n'
    )
    verb = ("--config", str(admin))
    begun = node.daemon.healthd("freeze", "--for", "2h", "--reason", "driver rollout", *verb)
    assert (begun.returncode, "driver rollout (root)" in begun.stdout) == (0, True), begun.stderr
    shown = json.loads(node.daemon.healthd("freeze", "--json", *verb).stdout)
    assert [(row["state"], row["reason"]) for row in shown["freezes"]] == [("on", "driver rollout")]
    with node.kubelet:
        node.daemon.start()
        try:
            node.daemon.kernel_says(OFF_THE_BUS.format(pci=PCI))
            control_plane.wait(lambda: "healthd.io/unhealthy" in node.taints(), limit_s(30), "n1 to be tainted")
            socket = ("--socket", str(node.daemon.socket))
            words = "driver rollout (root); no reset, reboot or replacement before its end"
            for _ in range(2):
                node.daemon.wait(
                    lambda: words in node.daemon.healthd("status", *socket).stdout, limit_s(60), "the repair waits"
                )
                node.daemon.kill()
                node.daemon.start()
            head = node.daemon.healthd("fleet", *verb).stdout.splitlines()[0]
            assert "driver rollout (root)" in head, head
            assert not asked.exists()
            ended = node.daemon.healthd("freeze", "--end", *verb)
            assert ended.returncode == 0, ended.stderr
            node.daemon.wait(lambda: asked.exists() and asked.read_text() != "", limit_s(90), "the reboot is asked for")
            time.sleep(1.0)
            assert len(asked.read_text().splitlines()) == 1
        finally:
            node.daemon.stop()
