"""The device plugin's restart after a GPU reset, on a real API server: the agent asks with its own token, the
controller evicts with the right that the chart gives it, and nobody else's plugin goes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healthd.agent.plugin_restart import PluginRestart
from healthd.state.store import Store
from tests.live.kubernetes.agent_rig import Agents
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fleet_controller import Fleet, Start

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]
SETTINGS = """
[budget]
max_out = 2
"""
PLUGIN = {"device_plugin": "app=plugin", "device_plugin_namespace": "gpu-operator"}
DAEMON_SETS = "/apis/apps/v1/namespaces/gpu-operator/daemonsets"
DAEMON_SET = {
    "metadata": {"name": "plugin"},
    "spec": {
        "selector": {"matchLabels": {"app": "plugin"}},
        "template": {
            "metadata": {"labels": {"app": "plugin"}},
            "spec": {"containers": [{"name": "main", "image": "registry.invalid/none"}]},
        },
    },
}


def gpus(plane: ControlPlane, node: str, healthy: int) -> None:
    """What the kubelet writes of the plugin's word."""
    body = {"status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": str(healthy)}}}
    plane.admin.patch(f"/api/v1/nodes/{node}/status", body).must()


def plugin(plane: ControlPlane, node: str, number: int) -> str:
    """The plugin's pod on a node. (No controller of DaemonSets runs here: the test makes the next one.)"""
    plane.add_namespace("gpu-operator")
    plane.admin.post(DAEMON_SETS, DAEMON_SET)
    uid = plane.admin.get(f"{DAEMON_SETS}/plugin").must()["metadata"]["uid"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "plugin", "uid": uid, "controller": True}
    name = f"plugin-{node}-{number}"
    plane.add_pod(name, node, namespace="gpu-operator")
    meta: dict[str, Any] = {"labels": {"app": "plugin"}, "ownerReferences": [owner]}
    plane.admin.patch(f"/api/v1/namespaces/gpu-operator/pods/{name}", {"metadata": meta}, kind="merge").must()
    return name


def asks(agents: Agents, node: str, folder: Path, *, ago_s: float = 40.0) -> None:
    """As the agent does after a reset, some time ago."""
    store = Store(folder / f"{node}.db", now=datetime.now(UTC))
    restart = PluginRestart(
        store, agents(node).ask_plugin_restart, clock=lambda: datetime.now(UTC) - timedelta(seconds=ago_s)
    )
    restart.wanted()
    assert "asked healthd controller" in restart.due()
    store.close()


def test_it_is_evicted_once_where_it_was_asked_for_and_gpus_are_missing(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents, tmp_path: Path
) -> None:
    """Four nodes: one asks and lacks a GPU; one lacks one and does not ask; one asks and lacks none; one opted out. One
    pod goes, and the next one of that node stays, although the GPU is still missing: a person is needed then."""
    fleet.add(["n1", "n2", "n3", "n4"])
    for node, healthy in (("n1", 7), ("n2", 7), ("n3", 8), ("n4", 7)):
        gpus(control_plane, node, healthy)
        plugin(control_plane, node, 0)
    time.sleep(1.1)  # the API server's times have whole seconds
    fleet.label("n4", "healthd.io/opt-out", "")
    for node in ("n1", "n3", "n4"):
        asks(agents, node, tmp_path, ago_s=0.0)
    with control_plane.reaping():
        one = start(SETTINGS, kubernetes=PLUGIN)
        control_plane.wait(lambda: fleet.numbers()[0] == "2", 15, "the counts")
        time.sleep(2.0)
        assert len(fleet.pods("gpu-operator")) == 4, "a plugin that sees its GPUs again by itself gets half a minute"
        control_plane.wait(lambda: "plugin-n1-0" not in fleet.pods("gpu-operator"), 45, "the plugin of n1 to go")
        assert fleet.pods("gpu-operator") == {"plugin-n2-0", "plugin-n3-0", "plugin-n4-0"}
        plugin(control_plane, "n1", 1)
        time.sleep(2.0)
        assert fleet.pods("gpu-operator") == {"plugin-n1-1", "plugin-n2-0", "plugin-n3-0", "plugin-n4-0"}
        for words in ("gpu-operator/plugin-n1-0 was evicted for its restart", "not restarted: the node opted out"):
            control_plane.wait(lambda words=words: words in one.log, 15, words)  # type: ignore[misc]


def test_where_its_pods_are_not_named_none_is_restarted(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents, tmp_path: Path
) -> None:
    """The setting is explicit."""
    fleet.add(["n1", "n2"])
    gpus(control_plane, "n1", 7)
    name = plugin(control_plane, "n1", 0)
    asks(agents, "n1", tmp_path)
    start(SETTINGS)
    control_plane.wait(lambda: fleet.numbers()[0] == "2", 15, "the counts")
    time.sleep(2.0)
    assert fleet.pods("gpu-operator") == {name}
