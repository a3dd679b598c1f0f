"""The fleet that docs/how-to/kubernetes.md shows, on a real API server: as agents and controller leave it.

Three nodes with healthd and one without. n1 is held by its agent and needs an operator; its repair was handed over, and
a person cordoned it. n3's agent fell silent.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from healthd.controller.status import status_of
from healthd.core.model import Action, Decision, Mode, Refusal, Remedy, Step
from healthd.remediation.controller.node_status import NodeStatus
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.orchestrators.kubernetes.node_health_api import NodeHealths
from healthd.remediation.orchestrators.kubernetes.objects import node_health
from healthd.remediation.orchestrators.kubernetes.objects.budget import LEASE, STATUS, STATUS_LEASE, counts
from healthd.remediation.orchestrators.kubernetes.objects.conditions import (
    TYPES,
    ConditionState,
    WrittenCondition,
    patch_of,
)
from healthd.remediation.orchestrators.kubernetes.objects.labels import Labels, with_labels
from healthd.remediation.orchestrators.kubernetes.objects.node import KEEPS
from healthd.remediation.orchestrators.kubernetes.objects.node_health import HealthStatus
from healthd.remediation.records.handoff import HandoffRecord
from healthd.remediation.records.summary import NodeState
from tests.live.kubernetes.agent_rig import Agents, add_leases, note
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fleet_storm import REASON

FOLDER = Path(__file__).resolve().parents[3] / "packaging" / "kubernetes"
COMMANDS = {
    "kubectl-get-nodes": "kubectl get nodes -L healthd.io/state,healthd.io/code",
    "kubectl-get-nodehealth": "kubectl get nodehealth",
    "kubectl-healthd": "kubectl healthd",
}
"""What the page shows: the title of each block, and the command that prints it."""
WELL = ConditionState(status="True", reason="Healthy", message="no fault is open")


class Operator:
    """Somebody with kubectl, the plugin in PATH, and every right."""

    def __init__(self, plane: ControlPlane, kubectl: Path) -> None:
        self._plane, self._kubectl = plane, kubectl

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        """One command, without a terminal."""
        path = os.pathsep.join([str(self._kubectl.parent), str(FOLDER), "/usr/bin", "/bin"])
        env = {"KUBECONFIG": str(self._plane.kubeconfig), "HOME": str(self._plane.root), "PATH": path}
        argv = ["sh", "-c", line]
        return subprocess.run(argv, env=env, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def remediation(now: datetime) -> Remediation:
    """n1's: it waits for its new machine."""
    return Remediation(
        id="k3v9",
        opened=now,
        since=now,
        mode=Mode.REPAIR,
        code="gpu.xid.79",
        component="gpu:GPU-8e2f",
        remedy=Remedy.REPLACE_NODE,
        why="w",
        text=REASON,
        steps=(Step.SLOT, Step.DRAIN, Step.WAIT_IDLE, Step.REPLACE),
        index=3,
    )


def lay_out(plane: ControlPlane, agents: Agents) -> None:
    """Make that fleet of nothing."""
    now = datetime.now(UTC)
    for name in ("n1", "n2", "n3", "cpu-1"):
        plane.add_node(name)
    theirs = {"metadata": {"annotations": {KEEPS[0]: "true"}}, "spec": {"unschedulable": True}}
    plane.admin.patch("/api/v1/nodes/n1", theirs, kind="merge").must()
    add_leases(plane, limit=2, total=3)
    note(plane, counts(limit=2, total=3, out=(), at=now), lease=LEASE)
    sick = Labels(state=NodeState.NEEDS_OPERATOR, code="gpu.xid.79")
    for name, labels in (("n1", sick), ("n2", Labels(state=NodeState.OK)), ("n3", Labels(state=NodeState.OK))):
        written = now - timedelta(hours=1 if name == "n3" else 0)
        patch = with_labels(
            patch_of({kind: WrittenCondition(state=WELL, moved=now) for kind in TYPES}, written), labels
        )
        plane.admin.patch(f"/api/v1/nodes/{name}/status", patch, kind="strategic").must()
    agent = agents("n1")
    agent.claim("cluster", 0)
    agent.quarantine(REASON)
    asked = HandoffRecord(
        remediation_id="k3v9", machine="i-1", remedy=Remedy.REPLACE_NODE, asks=True, attempt=1, asked=now
    )
    agent.write_record(asked.text)
    page = Decision(action=Action.PAGE, reason="refused: no time", refusal=Refusal.REFUSED)
    NodeHealths(agents.api("n1")).show("n1", node_health.status_of(sick, remediation(now), page, HealthStatus(), now))
    message = NodeStatus(node="n1", message="refused: no time", page=True)
    shown = status_of(Mode.REPAIR, (message,), leader="controller-1", now=now)
    plane.add_lease(STATUS_LEASE, {STATUS: json.dumps(shown)})
