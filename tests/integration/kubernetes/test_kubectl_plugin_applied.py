"""`kubectl healthd`, by the real kubectl on a real API server: what it shows, and what it changes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healthd.controller.status import status_of
from healthd.model import Mode
from healthd.remediation.orchestrators.kube_budget import LEASE, counts
from healthd.remediation.orchestrators.kube_conditions import TYPES, Shown, State, patch_of
from healthd.remediation.orchestrators.kube_labels import Labels, NodeState, with_labels
from healthd.remediation.orchestrators.kube_node import HOLD, KEEPS
from healthd.remediation.orchestrators.kube_told import STATUS, STATUS_LEASE
from healthd.remediation.standings import Standing
from tests.integration.kubernetes.agent_rig import Agents, add_leases, note
from tests.integration.kubernetes.control_plane import ControlPlane
from tests.integration.kubernetes.fleet_storm import REASON
from tests.pages import blocks

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

FOLDER = Path(__file__).resolve().parents[3] / "packaging" / "kubernetes"
WELL = State(status="True", reason="Healthy", message="nothing is open")


class Operator:
    """Somebody with kubectl, the plugin in PATH, and every right."""

    def __init__(self, plane: ControlPlane, kubectl: Path) -> None:
        self._plane, self._kubectl = plane, kubectl

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        """One command, without a terminal."""
        path = f"{self._kubectl.parent}:{FOLDER}:/usr/bin:/bin"
        env = {"KUBECONFIG": str(self._plane.kubeconfig), "HOME": str(self._plane.root), "PATH": path}
        argv = ["sh", "-c", line]
        return subprocess.run(argv, env=env, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def node(plane: ControlPlane, name: str = "n1") -> dict[str, Any]:
    found: dict[str, Any] = plane.admin.get(f"/api/v1/nodes/{name}").must()
    return found


@pytest.fixture
def agents(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Agents]:
    """Three nodes with healthd and one without: n1 is held by its agent, with a person's cordon and annotation."""
    for name in ("n1", "n2", "n3", "cpu-1"):
        control_plane.add_node(name)
    theirs = {"metadata": {"annotations": {KEEPS[0]: "true"}}, "spec": {"unschedulable": True}}
    control_plane.admin.patch("/api/v1/nodes/n1", theirs, kind="merge").must()
    add_leases(control_plane, limit=2, total=3)
    note(control_plane, counts(limit=2, total=3, out=(), at=datetime.now(UTC)), lease=LEASE)
    now = datetime.now(UTC)
    for name, labels in (
        ("n1", Labels(state=NodeState.NEEDS_OPERATOR, code="gpu.xid.79")),
        ("n2", Labels(state=NodeState.OK)),
        ("n3", Labels(state=NodeState.OK)),
    ):
        written = now - timedelta(hours=1 if name == "n3" else 0)
        patch = with_labels(patch_of({kind: Shown(state=WELL, moved=now) for kind in TYPES}, written), labels)
        control_plane.admin.patch(f"/api/v1/nodes/{name}/status", patch, kind="strategic").must()
    made = Agents(control_plane, tmp_path)
    agent = made("n1")
    agent.claim("cluster", 0)
    agent.quarantine(REASON)
    said = Standing(node="n1", said="refused: no time", page=True)
    shown = status_of(Mode.REPAIR, (said,), leader="controller-1", now=now)
    control_plane.add_lease(STATUS_LEASE, {STATUS: json.dumps(shown)})
    yield made
    made.close()


@pytest.fixture
def operator(control_plane: ControlPlane, kubectl: Path, agents: Agents) -> Operator:
    return Operator(control_plane, kubectl)


def test_the_fleet_is_shown_with_its_budget_on_top(operator: Operator) -> None:
    """One node out of two that may be; the node that needs an operator, and the one whose agent fell silent; exit 1."""
    done = operator.types("kubectl healthd")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert lines[0].startswith("budget cluster: 1 of 2 that may be out, 3 nodes, counted ")
    assert lines[1].startswith("controller: controller-1 leads, mode repair, heard ")
    assert lines[3].split() == ["NODE", "STATE", "CODE", "OUT", "WHY"]
    assert lines[4].split()[:3] == ["n1", "needs-operator", "gpu.xid.79"]
    assert lines[4].endswith("cordoned; refused: no time")
    assert re.split(" {3,}", lines[5]) == ["n3", "ok (agent silent for 60m)"]
    assert lines[7:] == ["1 of 4 nodes: ok", "1 of 4 nodes: no agent"]
    rows = json.loads(operator.types("kubectl healthd --all --json").stdout)["nodes"]
    assert sorted(each["node"] for each in rows) == ["cpu-1", "n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("title", "line"),
    [
        ("kubectl-healthd", "kubectl healthd"),
        ("kubectl-get-nodes", "kubectl get nodes -L healthd.io/state,healthd.io/code"),
    ],
)
def test_the_page_shows_what_kubectl_prints(operator: Operator, title: str, line: str) -> None:
    """But for ages, versions and the width of columns."""
    (shown,) = (each.text for each in blocks() if each.title == title)
    assert comparable(operator.types(line).stdout) == comparable(shown)


def comparable(text: str) -> list[list[str]]:
    """The words of each line, without what differs from run to run."""
    aged = re.sub(r"\bv1\.\S+", "", re.sub(r"\b\d+[smhd]\b", "-", text))
    return [line.split() for line in aged.splitlines()]


def test_why_tells_all_that_the_cluster_knows(operator: Operator) -> None:
    """Conditions, both taints, the hold, the claim, the controller's word; and that no agent can be asked."""
    done = operator.types("kubectl healthd why n1")
    assert done.returncode == 1, done
    shown = (
        "HealthdGPU",
        "healthd.io/unhealthy=",
        "healthd.io/claimed=",
        REASON,
        "in healthd-budget",
        "not by healthd",
    )
    assert [words for words in shown if words not in done.stdout] == []
    assert "its agent: " in done.stdout
    assert operator.types("kubectl healthd why n9").returncode == 2


def test_a_node_without_an_agent_is_let_in_by_hand_and_what_a_person_set_stays(
    control_plane: ControlPlane, operator: Operator
) -> None:
    """Refused without a terminal or --yes; a dry run changes nothing; then neither taint, hold nor claim is left."""
    before = (node(control_plane), control_plane.claims())
    for line in ("release n1", "release n1 --by-hand", "release n1 --by-hand --dry-run"):
        done = operator.types(f"kubectl healthd {line}")
        assert done.returncode == (0 if "dry" in line else 2), (line, done)
    assert (node(control_plane), control_plane.claims()) == before
    done = operator.types("kubectl healthd release n1 --by-hand --yes")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "n1 is let in")
    after = node(control_plane)
    assert (after["spec"].get("taints", []), control_plane.claims()) == ([], set())
    assert after["spec"]["unschedulable"] is True
    notes = after["metadata"]["annotations"]
    assert (HOLD in notes, notes.get(KEEPS[0]), KEEPS[1] in notes) == (False, "true", False)


def test_a_node_is_opted_out_and_in_again(control_plane: ControlPlane, operator: Operator, agents: Agents) -> None:
    """By the label that the product reads."""
    for line, is_out in (("opt-out n2", True), ("opt-out n2 --off", False), ("opt-out n2 --off", False)):
        assert operator.types(f"kubectl healthd {line}").returncode == 0
        assert ("healthd.io/opt-out" in agents("n2").view().features) is is_out


def test_the_opt_out_of_a_cluster_with_another_label(
    control_plane: ControlPlane, operator: Operator, agents: Agents
) -> None:
    """As its values name it, which the chart notes on the budget's Lease; where they name none nothing is done."""
    note(control_plane, {"healthd.io/opt-out-label": "example.com/hands-off"}, lease=LEASE)
    for line, is_out in (("opt-out n2", True), ("opt-out n2 --off", False)):
        assert operator.types(f"kubectl healthd {line}").returncode == 0
        assert ("example.com/hands-off" in agents("n2").view().features) is is_out
        assert "healthd.io/opt-out" not in agents("n2").view().features
        assert ("opted out" in operator.types("kubectl healthd").stdout) is is_out
    note(control_plane, {"healthd.io/opt-out-label": ""}, lease=LEASE)
    done = operator.types("kubectl healthd opt-out n2")
    assert (done.returncode, "remediation.opt_out_label is empty" in done.stderr) == (2, True)
