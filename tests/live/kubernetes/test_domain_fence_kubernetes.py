"""A broken NVLink domain is fenced and lifted as one on a real API server, with the rights that the chart gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.controller.incidents import IncidentKeeper
from healthd.core.model import Mode
from healthd.fleet.fences import FenceRules
from healthd.fleet.incidents import ENDS_AFTER, IncidentRules
from healthd.fleet.kubernetes import read_fleet
from healthd.fleet.nodes import FleetPicture, FleetState
from healthd.remediation.orchestrators.kubernetes.api import FIELD_MANAGER, connect
from healthd.remediation.orchestrators.kubernetes.domain_fencer import KubeFencer
from healthd.remediation.orchestrators.kubernetes.lease_notes import LeaseNotes
from healthd.remediation.orchestrators.kubernetes.objects.conditions import ConditionState
from healthd.remediation.orchestrators.kubernetes.objects.domain_fences import FENCES
from healthd.remediation.orchestrators.kubernetes.objects.incident_notes import INCIDENTS_LEASE
from healthd.remediation.orchestrators.kubernetes.objects.labels import Labels
from healthd.remediation.orchestrators.kubernetes.transport import Pace
from healthd.remediation.records.domain_fence import KUBE_TAINT
from tests.live.kubernetes.agent_rig import write_kubeconfig
from tests.live.kubernetes.api_client import Answer
from tests.live.kubernetes.control_plane import NAMESPACE, ControlPlane
from tests.live.kubernetes.fleet_controller import ACCOUNT, grant
from tests.live.kubernetes.hostile_requests import changes
from tests.live.kubernetes.test_fleet_view_kubernetes import says
from tests.support.limits import limit_s

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

DOMAIN, OUTSIDE = "b0d54bb5-fa12-4c7a-a3f5-1d1e0d1c2f11.1", "b0d54bb5-fa12-4c7a-a3f5-1d1e0d1c2f11.2"
RACK = tuple(f"a{number}" for number in range(1, 7))
DEAD = ConditionState(status="False", reason="GpuImex", message="gpu.imex.not_up on node: ask_human")
THEIRS = {"key": "example.com/theirs", "value": "fan", "effect": "PreferNoSchedule"}
A_FENCE = {"key": KUBE_TAINT, "value": "1124-3f2a9c", "effect": "NoSchedule"}


class Head:
    """A controller that leads: production's keeper and fencer with its own token. ``later``: how far its clock is
    ahead."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.later = plane, timedelta()
        self.token = grant(plane, {}, mode="quarantine")
        self.kubeconfig = str(write_kubeconfig(plane, "", folder / "account", token=self.token))
        kubernetes = replace(Config().orchestrator.kubernetes, kubeconfig=self.kubeconfig, namespace=NAMESPACE)
        self.config = replace(Config(), orchestrator=replace(Config().orchestrator, kubernetes=kubernetes))
        self.api = connect(
            kubeconfig=self.kubeconfig,
            timeout_s=10.0,
            pace=Pace(rate_per_s=50.0, burst=200),
            environ=os.environ,
            manager=ACCOUNT,
        )
        notes = LeaseNotes(self.api, namespace=NAMESPACE, leads=lambda: None, key=FENCES, lease=INCIDENTS_LEASE)
        self.stats = ControllerStats(orchestrator="kubernetes", provisioner="", mode=Mode.QUARANTINE)
        (folder / "state").mkdir(mode=0o755)
        self.keeper = IncidentKeeper(
            self.read,
            folder=folder / "state",
            rules=IncidentRules(),
            stats=self.stats,
            fencer=KubeFencer(self.api, notes, leads=lambda: None),
            fence_rules=lambda _: FenceRules(most=1),
        )

    def read(self) -> FleetPicture:
        return read_fleet(self.config, os.environ, lambda: datetime.now(UTC) + self.later, kubeconfig=self.kubeconfig)

    def step(self) -> None:
        assert self.keeper() == ""

    def add(self, name: str, domain: str = DOMAIN, **settings: Any) -> None:
        labels = {"nvidia.com/gpu.clique": domain, "node.kubernetes.io/instance-type": "p6e-gb200.36xlarge"}
        self.plane.add_node(name, labels=labels, **settings)

    def report(self, *names: str, broken: bool) -> None:
        for name in names:
            says(self.plane, name, {"HealthdGPU": DEAD} if broken else {}, Labels())

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.admin.get(f"/api/v1/nodes/{name}").must()
        return found

    def taints(self, name: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.node(name)["spec"].get("taints", [])
        return found

    def fenced(self) -> set[str]:
        items = self.plane.admin.get("/api/v1/nodes").must()["items"]
        return {
            each["metadata"]["name"]
            for each in items
            if any(taint["key"] == KUBE_TAINT for taint in each["spec"].get("taints", []))
        }


@pytest.fixture
def head(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Head]:
    made = Head(control_plane, tmp_path)
    yield made
    made.api.close()


def test_a_rack_is_fenced_and_put_back_as_one_and_what_others_set_stays(head: Head) -> None:
    """Six nodes, none outside, no drain and no slot. An operator's taint and cordon stand before, during and after. A
    taint that an operator removes stays away; a Node that is registered again gets its own."""
    head.add("a1", taints=[THEIRS])
    for name in RACK[1:]:
        head.add(name)
    head.add("b1", OUTSIDE)
    head.plane.admin.patch("/api/v1/nodes/a2", {"spec": {"unschedulable": True}}, kind="merge").must()
    cordoned = head.taints("a2")
    head.report(*RACK, broken=True)
    head.report("b1", broken=False)
    head.step()
    assert head.fenced() == set()
    head.step()
    assert head.fenced() == set(RACK)
    (incident,) = head.stats.incidents
    fence = {"key": KUBE_TAINT, "value": incident.id, "effect": "NoSchedule"}
    assert head.taints("a1") == [THEIRS, fence]
    assert head.node("a2")["spec"]["unschedulable"]
    fleet = head.read()
    states = {each.name: each.state for each in fleet.nodes}
    assert states == {**dict.fromkeys(RACK, FleetState.HELD), "a2": FleetState.DRAINED, "b1": FleetState.OK}
    assert fleet.out == 1, "the budget of nodes counts the cordon alone"
    head.step()
    assert [each.nodes for each in head.stats.fences] == [6]
    head.plane.admin.patch("/api/v1/nodes/a3", {"spec": {"taints": []}}, kind="merge").must()
    head.plane.admin.delete("/api/v1/nodes/a4").must()
    head.add("a4")
    head.report("a4", broken=True)
    head.step()
    head.step()
    assert head.fenced() == set(RACK) - {"a3"}
    head.report(*RACK, broken=False)
    head.step()
    head.later = ENDS_AFTER + timedelta(minutes=1)
    head.report(*RACK, broken=False)
    head.step()
    head.step()
    assert head.fenced() == set()
    assert (head.taints("a1"), head.taints("a2")) == ([THEIRS], cordoned)
    assert head.node("a2")["spec"]["unschedulable"]
    assert head.read().fences == ()


def test_the_controllers_token_changes_nothing_else_of_a_node(head: Head) -> None:
    """Each field of a Node set otherwise, removed and added to, by each kind of patch: refused or without effect, as
    with its status. A fence of another effect, or without an incident, is refused."""
    head.add("a1", taints=[THEIRS])
    head.plane.admin.patch("/api/v1/nodes/a1", {"spec": {"unschedulable": True}}, kind="merge").must()
    head.report("a1", broken=True)
    client = head.plane.client(head.token)
    path = f"/api/v1/nodes/a1?fieldManager={ACCOUNT}"

    def taint(**taint: str) -> Answer:
        there = head.taints("a1")
        return client.patch(path, {"spec": {"taints": [*there, {**A_FENCE, **taint}]}}, kind="merge")

    head.plane.wait(lambda: taint(effect="NoExecute").status in (403, 422), limit_s(20), "the policy to be in force")
    assert "has the id of an incident" in taint(value="none").message
    before, passed, tried = head.node("a1"), [], 0
    for each in changes(before):
        forced = "&force=true" if each.kind == "apply" else ""
        answer = client.patch(f"{path}{forced}", each.body, kind=each.kind)
        tried += 1
        if answer.ok and _of_others(head.node("a1")) != _of_others(before):
            passed.append(f"{each.kind} at {'.'.join(each.at)}: {each.body}")
            before = head.node("a1")
    assert passed == []
    assert tried >= 100
    for method, where in (("DELETE", "/api/v1/nodes/a1"), ("POST", "/api/v1/nodes")):
        assert client.request(method, where, {}).status == 403
    assert client.patch("/api/v1/nodes/a1/status", {"status": {"phase": "x"}}, kind="merge").status == 403
    taint().must()
    assert head.fenced() == {"a1"}
    client.close()


def test_an_agent_can_neither_set_nor_remove_the_fence_of_its_domain(head: Head) -> None:
    """Not on its own node either: a domain is not a node's to judge."""
    head.add("n1", taints=[A_FENCE])
    head.add("n2")
    as_agent = f"?fieldManager={FIELD_MANAGER}"
    for name, taints in (("n1", []), ("n2", [A_FENCE])):
        agent = head.plane.client(head.plane.agent_token(name))
        answer = agent.patch(f"/api/v1/nodes/{name}{as_agent}", {"spec": {"taints": taints}}, kind="merge")
        assert "may only write unhealthy, claimed and unverified" in answer.message
        agent.close()
    assert head.fenced() == {"n1"}


def _of_others(node: dict[str, Any]) -> dict[str, Any]:
    """A Node without the fence, and without what the server counts for itself."""
    metadata = {key: value for key, value in node["metadata"].items() if key not in ("resourceVersion", "generation")}
    metadata["managedFields"] = [each for each in metadata["managedFields"] if each["manager"] != ACCOUNT]
    taints = [each for each in node["spec"].get("taints", []) if each["key"] != KUBE_TAINT]
    return {**node, "metadata": metadata, "spec": {**node["spec"], "taints": taints}}
