"""The GPU Operator's clients: which labels are written, whose they are, and what becomes of what was stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from healthd.core.errors import BackendUnknown
from healthd.remediation.orchestrators.kubernetes.gpu_clients import CLIENTS, PAUSED, KubeGpuClients, resumed_patch
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, node_of

PLUGIN, DCGM, DRIVER = (f"nvidia.com/gpu.deploy.{name}" for name in ("device-plugin", "dcgm", "driver"))
STOPPED = {PLUGIN: PAUSED, DCGM: PAUSED}


class Own:
    """This node's Node in memory. ``deaf``: whoever writes gets no answer."""

    def __init__(self, **labels: str) -> None:
        self.labels, self.deaf, self.bodies = labels, False, list[dict[str, Any]]()

    def own(self, *, fresh: bool = False) -> KubeNode:
        return node_of({"metadata": {"name": "n1", "resourceVersion": "7", "labels": dict(self.labels)}})

    def change_own(self, patch: Callable[[KubeNode], dict[str, Any] | None], *, status: bool) -> None:
        if self.deaf:
            raise BackendUnknown("patch node n1: no answer within 5 s")
        if (body := patch(self.own())) is not None:
            assert (body["metadata"]["resourceVersion"], status) == ("7", False)
            self.bodies.append(body)
            self.labels |= body["metadata"]["labels"]


@pytest.fixture
def own() -> Own:
    return Own(**{PLUGIN: "true", DCGM: "true", DRIVER: "true", "nvidia.com/gpu.deploy.nvsm": "false"})


def test_what_runs_is_stopped_in_one_write_and_started_again(own: Own) -> None:
    """The driver's label is no client's: its pod would unload the driver. What somebody switched off stays off."""
    clients = KubeGpuClients(own)
    before = dict(own.labels)
    running = clients.running()
    assert set(running) == {PLUGIN, DCGM}
    clients.stop(running)
    assert own.labels == {**before, **STOPPED}
    assert clients.running() == ()
    clients.stop(running)
    assert len(own.bodies) == 1
    assert clients.start(running) == ""
    assert own.labels == before


def test_what_somebody_else_set_meanwhile_is_theirs(own: Own) -> None:
    """Another tool's pause, and a person's `false`: neither is ended by us."""
    clients = KubeGpuClients(own)
    running = clients.running()
    clients.stop(running)
    own.labels |= {PLUGIN: "paused-for-mig-change", DCGM: "false"}
    assert clients.start(running) == ""
    assert (own.labels[PLUGIN], own.labels[DCGM]) == ("paused-for-mig-change", "false")


def test_a_name_that_is_no_clients_is_not_written(own: Own) -> None:
    """Whatever a remediation on disk says."""
    KubeGpuClients(own).stop([DRIVER, "nvidia.com/other"])
    assert own.bodies == []


def test_what_could_not_be_started_is_told_and_found_at_the_release(own: Own) -> None:
    """By its value, which is healthd's own."""
    clients = KubeGpuClients(own)
    clients.stop(clients.running())
    own.deaf = True
    assert "no answer within 5 s" in clients.start([PLUGIN])
    own.deaf = False
    own.change_own(resumed_patch, status=False)
    assert (own.labels[PLUGIN], own.labels[DCGM]) == ("true", "true")
    assert resumed_patch(own.own()) is None


def test_a_node_without_the_operator_has_no_clients() -> None:
    """Nothing is written there."""
    clients = KubeGpuClients(own := Own())
    assert clients.running() == ()
    clients.stop(())
    assert (own.bodies, len(CLIENTS)) == ([], 6)
