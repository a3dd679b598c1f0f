"""The controller of a Kubernetes cluster keeps its incidents, with the rights that the chart gives it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healthd.core.errors import BackendRefused
from healthd.notify.incident_hold import IncidentHold
from healthd.notify.news import Topic
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, ResourceKind
from healthd.remediation.orchestrators.kubernetes.from_config import read_notices
from healthd.remediation.orchestrators.kubernetes.objects.conditions import ConditionState
from healthd.remediation.orchestrators.kubernetes.objects.incident_notes import INCIDENTS, INCIDENTS_LEASE, notices_text
from healthd.remediation.orchestrators.kubernetes.objects.labels import Labels
from tests.live.kubernetes.agent_rig import Agents
from tests.live.kubernetes.control_plane import NAMESPACE, ControlPlane
from tests.live.kubernetes.fleet_controller import FleetController
from tests.live.kubernetes.test_fleet_view_kubernetes import says
from tests.support.limits import limit_s

pytestmark = [pytest.mark.kubernetes, pytest.mark.process, pytest.mark.slow]

LOST = ConditionState(status="False", reason="LustreMissing", message="lustre.missing on mount:/fsx: ask_human")


def test_a_lost_file_system_is_one_message_of_the_controller(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Five nodes report it: one incident, in the metrics and to the receiver; a node that is well is not in it."""
    for name in ("a1", "a2", "a3", "a4", "a5"):
        control_plane.add_node(name)
        says(control_plane, name, {"HealthdStorage": LOST}, Labels(code="lustre.missing"), since_s=60)
    control_plane.add_node("well")
    says(control_plane, "well", {}, Labels())
    sent = tmp_path / "sent"
    command = f'[notify]\ncommand = ["/bin/sh", "-c", "cat >> {sent}"]\n'
    controller = FleetController(control_plane, tmp_path / "controller", command).start()
    try:
        control_plane.wait(
            lambda: 'healthd_controller_incident_nodes{severity="critical"} 5.0' in _page(controller),
            limit_s(60),
            "the incident of five nodes",
        )
        control_plane.wait(lambda: sent.exists() and bool(sent.read_text()), limit_s(60), "its message")
        (piece,) = json.loads(sent.read_text().splitlines()[0])["news"]
        assert piece["key"].startswith("page incident ")
        assert "lustre.missing on 5 nodes (a[1-5])" in piece["message"]
        assert "file system /fsx" in piece["message"]
        agents = Agents(control_plane, tmp_path)
        try:
            _holds_its_message(control_plane, agents.api("a1"), NAMESPACE)
        finally:
            agents.close()
    finally:
        controller.stop()


def _holds_its_message(plane: ControlPlane, api: KubeApi, namespace: str) -> None:
    """An agent of the incident reads the controller's notice with its own token, and can write none."""
    own = Topic(key="gpu", message="w", critical=True, code="lustre.missing", component="mount:/fsx")

    def held(node: str) -> Mapping[str, str]:
        hold = IncidentHold(node, lambda: read_notices(api, namespace), wait_s=0.0)
        return hold([own], {}, datetime.now(UTC))

    plane.wait(lambda: any(held("a1").values()), limit_s(90), "the notice of the incident")
    assert held("well") == {}
    body = {"metadata": {"annotations": {INCIDENTS: notices_text([], datetime.now(UTC))}}}
    with pytest.raises(BackendRefused):
        api.patch(ResourceKind.LEASE, INCIDENTS_LEASE, body, namespace=namespace)
    assert any(held("a1").values())


def _page(controller: FleetController) -> str:
    try:
        return controller.page()
    except OSError:  # it starts
        return ""
