"""``healthd fleet`` on a real API server: every state that it can tell there, and the same as ``kubectl healthd``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healthd.remediation.orchestrators.kubernetes.objects.budget import FIXED_LIMIT, FIXED_NODES, LEASE, counts
from healthd.remediation.orchestrators.kubernetes.objects.conditions import (
    TYPES,
    WITH_WARNINGS,
    ConditionState,
    WrittenCondition,
    patch_of,
)
from healthd.remediation.orchestrators.kubernetes.objects.labels import Labels, with_labels
from healthd.remediation.records.summary import NodeState
from tests.live.kubernetes.agent_rig import Agents, note
from tests.live.kubernetes.control_plane import NAMESPACE, ControlPlane
from tests.live.kubernetes.shown_fleet import WELL, Operator
from tests.support.limits import limit_s

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

WARNED = ConditionState(status="True", reason=WITH_WARNINGS, message="efa.counters.retrans on efa:rdmap0: watch")
FAULTY = ConditionState(status="False", reason="GpuXid79", message="gpu.xid.79 on gpu:GPU-8e2f: replace_node")
UNDECIDED = ConditionState(
    status="Unknown", reason="CouldNotTell", message="checks that could not decide: gpu.count, gpu.ecc"
)


class Head:
    """A machine with the operator's kubeconfig. It belongs to no cluster itself, and healthd has no configuration."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.env = {"KUBECONFIG": str(plane.kubeconfig), "HOME": str(folder), "PATH": os.defpath}
        self.config = folder / "head.toml"
        self.config.write_text(f'[orchestrator.kubernetes]\nnamespace = "{NAMESPACE}"\n')

    def fleet(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "healthd", "fleet", *arguments, "--config", str(self.config)]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True, check=False, timeout=limit_s(60))

    def data(self) -> dict[str, Any]:
        done = self.fleet("--json")
        assert done.returncode in (0, 1), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.data()["nodes"]}


@pytest.fixture
def head(control_plane: ControlPlane, tmp_path: Path) -> Head:
    return Head(control_plane, tmp_path)


def says(
    plane: ControlPlane, name: str, states: Mapping[str, ConditionState], labels: Labels, *, since_s: float = 0
) -> None:
    """The node's agent has written this, just now."""
    now = datetime.now(UTC)
    moved = now - timedelta(seconds=since_s)
    shown = {kind: WrittenCondition(state=states.get(kind, WELL), moved=moved) for kind in TYPES}
    plane.admin.patch(
        f"/api/v1/nodes/{name}/status", with_labels(patch_of(shown, now), labels), kind="strategic"
    ).must()


def test_every_node_in_its_state(control_plane: ControlPlane, shown_agents: Agents, head: Head) -> None:
    """In service, warned, critical, undecided, held for an operator, silent, cordoned by another, not ready, without an
    agent: each with its cause, and the budget as the Lease and the Nodes have it."""
    for name in ("w1", "c1", "u1", "drained", "down"):
        control_plane.add_node(name)
    says(control_plane, "w1", {"HealthdNetwork": WARNED}, Labels(state=NodeState.OK))
    says(control_plane, "c1", {"HealthdGPU": FAULTY}, Labels(code="gpu.xid.79"), since_s=7300)
    says(control_plane, "u1", {"HealthdGPU": UNDECIDED}, Labels(), since_s=200)
    says(control_plane, "drained", {}, Labels(state=NodeState.OK))
    control_plane.admin.patch("/api/v1/nodes/drained", {"spec": {"unschedulable": True}}, kind="merge").must()
    says(control_plane, "down", {}, Labels(state=NodeState.OK))
    control_plane.admin.patch(
        "/api/v1/nodes/down/status",
        {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}},
        kind="strategic",
    ).must()
    control_plane.admin.patch(
        "/api/v1/nodes/c1",
        {
            "metadata": {
                "labels": {
                    "node.kubernetes.io/instance-type": "p5.48xlarge",
                    "eks.amazonaws.com/nodegroup": "train",
                    "topology.k8s.aws/network-node-layer-3": "nn-1",
                }
            }
        },
        kind="merge",
    ).must()

    found = head.nodes()
    assert {name: each["state"] for name, each in found.items()} == {
        "n1": "needs-operator",
        "n2": "ok",
        "n3": "silent",
        "cpu-1": "no-agent",
        "w1": "warning",
        "c1": "critical",
        "u1": "unknown",
        "drained": "drained",
        "down": "down",
    }
    assert found["n1"]["waits_for"] == "refused: no time"
    assert (found["n1"]["code"], found["n1"]["step"]) == ("gpu.xid.79", "replace")
    assert found["n1"]["slot"]["scope"] == "cluster"
    assert (found["n1"]["remediation"], found["n1"]["asks"]) == ("k3v9", "replace_node")
    assert (found["c1"]["component"], found["c1"]["instance_type"]) == ("gpu:GPU-8e2f", "p5.48xlarge")
    assert (found["c1"]["partitions"], found["c1"]["rack"]) == (["train"], "nn-1")
    assert (found["u1"]["code"], found["w1"]["code"]) == ("gpu.count", "efa.counters.retrans")
    assert found["drained"]["hold"] == {"by": "", "reason": "cordoned", "automatic": False}
    assert found["drained"]["cluster_state"] == "Ready,SchedulingDisabled"

    shown = head.fleet()
    assert (shown.returncode, shown.stderr) == (1, "")
    assert "9 nodes" in shown.stdout
    assert "budget 3 of 2 out, 1 slot taken" in shown.stdout
    for text in ("NO AGENT", "no heartbeat", '"cordoned"', 'by Kubernetes: "KubeletNotReady"', "for 2 h"):
        assert text in shown.stdout
    assert "train" in head.fleet("--by", "partition").stdout
    assert "nn-1" in head.fleet("--by", "rack").stdout
    why = next(line for line in head.fleet("--why").stdout.splitlines() if line.startswith("n1"))
    assert "NEEDS OPERATOR  healthd" in why
    one = head.fleet("n1").stdout
    for text in ("hold      by healthd", "slot      cluster 0", "remedy    asks for replace_node, attempt 1"):
        assert text in one


def test_it_contradicts_kubectl_healthd_in_nothing(
    control_plane: ControlPlane, kubectl: Path, shown_agents: Agents, head: Head
) -> None:
    """The same nodes need an operator, are silent, or have no agent; the same code; the same budget."""
    plugin = Operator(control_plane, kubectl)
    rows = {each["node"]: each for each in json.loads(plugin.types("kubectl healthd --all --json").stdout)["nodes"]}
    found = head.nodes()
    assert rows.keys() == found.keys()
    for name, row in rows.items():
        state, node = row["state"], found[name]
        message = "silent" if "agent silent" in state else state.replace(" ", "-")
        assert (name, node["state"]) == (name, message)
        assert node["code"] == row["code"]
    budget = plugin.types("kubectl healthd").stdout.splitlines()[0]
    assert "1 of 3 nodes out, at most 2" in budget
    assert head.data()["budget"] == {"out": 1, "taken": 1, "limit": 2}


def test_what_is_missing_is_said(control_plane: ControlPlane, shown_agents: Agents, head: Head, tmp_path: Path) -> None:
    """A stale count, Helm's fixed numbers, a namespace without healthd; no Node, no right, no server."""
    old = datetime.now(UTC) - timedelta(hours=1)
    note(control_plane, counts(limit=2, total=3, out=(), at=old), lease=LEASE)
    assert "! Lease healthd-budget: the nodes that are out were counted at" in head.fleet().stdout
    note(control_plane, {FIXED_LIMIT: "5", FIXED_NODES: "4"}, lease=LEASE)
    control_plane.admin.patch("/api/v1/nodes/n2", {"spec": {"unschedulable": True}}, kind="merge").must()
    fixed = head.data()
    assert (fixed["budget"], fixed["remarks"]) == ({"out": 1, "taken": 1, "limit": 5}, [])
    head.config.write_text('[orchestrator.kubernetes]\nnamespace = "elsewhere"\n')
    assert "there is no Lease healthd-budget" in head.data()["remarks"][0]

    head.config.write_text('[controller]\nselector = "no=such"\n')
    none = head.fleet()
    assert (none.returncode, "no Node with the labels 'no=such'" in none.stderr) == (2, True)
    nowhere = tmp_path / "nowhere"
    text = control_plane.kubeconfig.read_text().replace(control_plane.url, "https://127.0.0.1:1")
    nowhere.write_text(text)
    head.env["KUBECONFIG"] = str(nowhere)
    dead = head.fleet()
    assert (dead.returncode, "the fleet could not be read" in dead.stderr) == (2, True)
    head.env["KUBECONFIG"] = f"{nowhere}:{control_plane.kubeconfig}"
    two = head.fleet()
    assert (two.returncode, "names several files" in two.stderr) == (64, True)
    del head.env["KUBECONFIG"]
    absent = head.fleet()
    assert (absent.returncode, "none is found here" in absent.stderr) == (64, True)
