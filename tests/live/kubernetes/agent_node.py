"""A Node of the control plane with a real agent on it, as a daemon in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.live.kubernetes.agent_rig import write_kubeconfig
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.kubelet_socket import KubeletSocket
from tests.support.running import RunningNode

SECTIONS = """
[remediation]
mode = "{mode}"
settle_s = 2
opt_out_file = ""
[budget]
max_out = {max_out}
settle_s = 0.5
[orchestrator]
kind = "kubernetes"
[orchestrator.kubernetes]
kubeconfig = "{kubeconfig}"
pod_resources = "{socket}"
start_s = 0
"""


class AgentNode:
    """A Node with its kubelet's socket and a daemon. ``more``: further sections of its configuration."""

    def __init__(
        self, plane: ControlPlane, name: str, folder: Path, *, mode: str = "quarantine", more: str = "", **environ: str
    ) -> None:
        self.plane, self.name = plane, name
        self.kubelet = KubeletSocket(folder / f"{name}.sock")
        kubeconfig = write_kubeconfig(plane, name, folder / f"{name}-account")
        sections = SECTIONS.format(mode=mode, max_out=1, kubeconfig=kubeconfig, socket=self.kubelet.path) + more
        self.daemon = RunningNode(folder / name, name, sections=sections, environ=environ)

    def read(self) -> dict[str, Any]:
        """The Node."""
        return self.plane.admin.get(f"/api/v1/nodes/{self.name}").must()

    def taints(self) -> set[str]:
        """The keys of its taints."""
        return {taint["key"] for taint in self.read()["spec"].get("taints", [])}

    def condition(self, kind: str) -> str:
        """The status of one condition, with its reason."""
        for each in self.read()["status"]["conditions"]:
            if each["type"] == kind:
                return f"{each['status']} {each['reason']}"
        return ""
