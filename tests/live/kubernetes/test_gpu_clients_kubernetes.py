"""A GPU reset on a node of the GPU Operator, on a real API server: with the agent's token, its rights and the policies.

No controller of DaemonSets runs here: the test ends the plugin's process once its label says so, as the kubelet would.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from healthd.core.errors import BackendBusy, BackendRefused
from healthd.core.node import CommandResult
from healthd.remediation.engine.gpu_reset import GpuReset
from healthd.remediation.orchestrators.kubernetes.gpu_clients import PAUSED, RUNS, KubeGpuClients
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from healthd.remediation.ports import Slot
from tests.live.kubernetes.agent_rig import Agents, add_leases
from tests.live.kubernetes.control_plane import ControlPlane

pytestmark = pytest.mark.kubernetes

REASON = "healthd: gpu.xid.95 gpu:GPU-8e2f [k3v9]"
PLUGIN, DRIVER = (f"nvidia.com/gpu.deploy.{name}" for name in ("device-plugin", "driver"))


@pytest.fixture
def one(control_plane: ControlPlane, agents: Agents) -> KubernetesOrchestrator:
    """The agent of n1, whose GPUs the operator looks after."""
    control_plane.add_node("n1", labels={PLUGIN: RUNS, DRIVER: RUNS})
    add_leases(control_plane)
    return agents("n1")


def label(plane: ControlPlane, key: str = PLUGIN) -> str:
    """As the operator's DaemonSet selects by."""
    return str(plane.admin.get("/api/v1/nodes/n1").must()["metadata"]["labels"].get(key))


def out(agent: KubernetesOrchestrator) -> None:
    agent.claim("cluster", 0)
    agent.quarantine(REASON)


def test_a_reset_waits_for_the_plugin_and_brings_it_back(
    control_plane: ControlPlane, one: KubernetesOrchestrator, tmp_path: Path
) -> None:
    """Stopped by its label, waited for, reset, started; the driver's label stays as it is."""
    ran: list[str] = []
    holder, dev = tmp_path / "proc/4711", tmp_path / "dev"
    (holder / "fd").mkdir(parents=True)
    dev.mkdir()
    (dev / "nvidia0").touch()
    (holder / "fd/3").symlink_to(dev / "nvidia0")
    (holder / "comm").write_text("nvidia-device-p")
    (holder / "stat").write_text("4711 (nvidia-device-p) S 1 1")

    def run(argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        ran.append(" ".join(argv))
        return CommandResult(argv=tuple(argv), code=0, stdout="", stderr="", duration_s=0.01)

    reset = GpuReset(
        services=(),
        run=run,
        clients=KubeGpuClients(one),
        let_go=lambda: None,
        own_pids=lambda: (),
        proc_root=tmp_path / "proc",
        dev_root=dev,
    )
    out(one)
    stop = reset.holders()
    assert stop == (PLUGIN,)
    with pytest.raises(BackendBusy, match="still held by 4711 nvidia-device-p"):
        reset.reset(stop)
    assert (label(control_plane), label(control_plane, DRIVER), ran) == (PAUSED, RUNS, [])
    shutil.rmtree(holder)
    reset.reset(stop)
    assert ran == ["nvidia-smi --gpu-reset"]
    assert reset.start(stop) == ""
    assert label(control_plane) == RUNS


def test_on_a_node_in_service_the_server_refuses_it(control_plane: ControlPlane, one: KubernetesOrchestrator) -> None:
    """Nobody could get a GPU there, and no budget would know."""
    with pytest.raises(BackendRefused, match="on a node that is out"):
        KubeGpuClients(one).stop([PLUGIN])
    assert label(control_plane) == RUNS


@pytest.mark.parametrize("way", ["release", "give back"])
def test_what_was_never_started_again_comes_back_with_the_node(
    control_plane: ControlPlane, one: KubernetesOrchestrator, way: str
) -> None:
    """The disk that knew of it was lost: the value of the label tells whose it is. A place that is given back after a
    person let the node in does it too."""
    out(one)
    KubeGpuClients(one).stop([PLUGIN])
    if way == "release":
        one.release(resume=False)
    else:
        undone = {"spec": {"taints": None}, "metadata": {"annotations": {"healthd.io/hold": None}}}
        control_plane.admin.patch("/api/v1/nodes/n1", undone, kind="merge").must()
        one.give_back(Slot(scope="cluster", index=0, node="n1"))
    assert label(control_plane) == RUNS
