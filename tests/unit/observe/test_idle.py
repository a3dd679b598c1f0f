"""Who may not be disturbed by an active test."""

from __future__ import annotations

import pytest

from healthd.core.errors import SourceMissing, SourceTimeout
from healthd.core.node import NvmlFailure
from healthd.observe.idle import not_idle
from healthd.remediation.ports import NodeView
from healthd.sim.cluster import FakeOrchestrator
from healthd.testing import FakeClock, FakeNode, FakeNvml, gpu_with, healthy_gpu, pci_tree
from tests.support.troubled_cluster import TroubledCluster

HOLDER = {"pid": 4711, "usedGpuMemory": None, "gpuInstanceId": 0, "computeInstanceId": 0}


@pytest.fixture
def cluster() -> TroubledCluster:
    return TroubledCluster("n1", clock=FakeClock())


def node(**answers: object) -> FakeNode:
    return FakeNode(nvml=FakeNvml(gpu_with(0, answers), healthy_gpu(1)))


def reason_against(node: FakeNode, orchestrator: FakeOrchestrator | None, *, own_job: str = "") -> str:
    busy = not_idle(node, orchestrator, own_job=own_job)
    return busy.why if busy is not None else ""


def test_nobody_works_here(cluster: TroubledCluster) -> None:
    """Without a process on a GPU and without a job, the node is idle; so it is where there is no cluster."""
    assert reason_against(node(), FakeOrchestrator(cluster, "n1")) == ""
    assert reason_against(node(), None) == ""


@pytest.mark.parametrize("call", ["nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"])
def test_a_process_on_a_gpu_is_work(cluster: TroubledCluster, call: str) -> None:
    """Whoever holds a GPU is named, whatever the cluster says."""
    busy = reason_against(node(**{call: [HOLDER]}), FakeOrchestrator(cluster, "n1"))
    assert busy == "the GPUs are in use: GPU 0 by process 4711"


def test_what_nvml_cannot_tell_is_not_idle() -> None:
    """A driver that does not answer has not said that nobody is there."""
    silent = FakeNode(nvml=FakeNvml(error=SourceTimeout("NVML: no answer in 5 s")))
    assert reason_against(silent, None) == "cannot read which processes hold the GPUs: NVML: no answer in 5 s"


@pytest.mark.parametrize(
    ("code", "name", "busy"),
    [
        (
            999,
            "NVML_ERROR_UNKNOWN",
            "the GPUs are in use: GPU 0 by processes that NVML does not list (NVML_ERROR_UNKNOWN)",
        ),
        (3, "NVML_ERROR_NOT_SUPPORTED", ""),
        (15, "NVML_ERROR_GPU_IS_LOST", ""),
    ],
)
def test_a_gpu_that_does_not_list_its_processes(code: int, name: str, busy: str) -> None:
    """May have some, unless it has no such list, or is lost, and with it whatever ran there."""
    failed = NvmlFailure(code=code, name=name)
    assert reason_against(node(nvmlDeviceGetComputeRunningProcesses=failed), None) == busy


def test_a_node_without_a_gpu_has_none_that_is_held() -> None:
    """No library is no answer where the bus has a GPU; where it has none, there is nothing to hold."""
    missing = FakeNvml(error=SourceMissing("NVML: libnvidia-ml.so.1 is not there"))
    assert reason_against(FakeNode(nvml=missing, sys=pci_tree()), None) == ""
    assert "cannot read which processes" in reason_against(
        FakeNode(nvml=missing, sys=pci_tree(gpus=["0000:53:00"])), None
    )
    hidden = FakeNode(nvml=missing, sys={})
    assert "cannot read which processes" in reason_against(hidden, None)


def test_a_job_of_the_cluster_is_work(cluster: TroubledCluster) -> None:
    """A job that has not touched its GPUs yet may at any moment."""
    cluster.nodes["n1"].jobs.append("17")
    assert "runs jobs on this node: 17" in reason_against(node(), FakeOrchestrator(cluster, "n1"))


def test_the_next_step_is_to_wait_only_for_work(cluster: TroubledCluster) -> None:
    """What holds the node ends; what cannot be read is for the operator to repair."""
    held = not_idle(node(nvmlDeviceGetComputeRunningProcesses=[HOLDER]), None)
    silent = not_idle(FakeNode(nvml=FakeNvml(error=SourceTimeout("no answer in 5 s"))), None)
    missing = not_idle(FakeNode(nvml=FakeNvml(error=SourceMissing("no library")), sys={}), None)
    cluster.nodes["n1"].jobs.append("17")
    job = not_idle(node(), FakeOrchestrator(cluster, "n1"))
    cluster.hung = True
    unread = not_idle(node(), FakeOrchestrator(cluster, "n1"))
    steps = [each.do for each in (held, job, silent, missing, unread) if each is not None]
    assert steps == [*["run it again when the node is idle"] * 2, SourceTimeout.do, "", ""]


def test_the_job_that_asks_may_test_its_own_node(cluster: TroubledCluster) -> None:
    """Inside an allocation the own job is no reason; a second one is."""
    cluster.nodes["n1"].jobs.append("17")
    orchestrator = FakeOrchestrator(cluster, "n1")
    assert reason_against(node(), orchestrator, own_job="17") == ""
    cluster.nodes["n1"].jobs.append("18")
    assert reason_against(node(), orchestrator, own_job="17").endswith("runs jobs on this node: 18")


def test_a_controller_that_does_not_answer_has_not_said_idle(cluster: TroubledCluster) -> None:
    """Jobs that cannot be listed count as there."""
    cluster.hung = True
    assert reason_against(node(), FakeOrchestrator(cluster, "n1")).startswith("cannot read the jobs of this node")


def test_what_still_completes_is_work() -> None:
    """A job that left the queue may still be ending here."""

    class Completing(FakeOrchestrator):
        def view(self, *, jobs: bool = False) -> NodeView:
            return NodeView(name="n1", in_service=True, flags=frozenset({"COMPLETING", "IDLE"}), hold=None)

    message = reason_against(node(), Completing(TroubledCluster("n1", clock=FakeClock()), "n1"))
    assert message.endswith("reports that this node is not idle: COMPLETING, IDLE")
