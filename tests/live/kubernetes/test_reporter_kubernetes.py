"""What the agent tells a real API server about its node: conditions, Events, the end of the start-up taint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.core.model import Component, Diagnosis, Mode, Outcome, Remedy, Result, Severity, Status, Step
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.decide.rules import REBOOT
from healthd.remediation.orchestrators.kubernetes.objects.conditions import DEBOUNCE_S, HEARTBEAT_S, TYPES
from healthd.remediation.orchestrators.kubernetes.objects.labels import GAP_S, STOPPED, Labels, labels_on
from healthd.remediation.orchestrators.kubernetes.objects.listed_nodes import summary_in
from healthd.remediation.orchestrators.kubernetes.objects.node import node_of
from healthd.remediation.orchestrators.kubernetes.orchestrator import Fence
from healthd.remediation.orchestrators.kubernetes.reporter import LOOK_S, REGISTERS_S, AgentState, KubeReporter
from healthd.remediation.records.summary import NodeSummary
from tests.live.kubernetes.agent_rig import Agents, install_resource
from tests.live.kubernetes.control_plane import HEALTHS, ControlPlane

pytestmark = pytest.mark.kubernetes
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
XID = Diagnosis(
    code="gpu.xid.79",
    component=Component(kind="gpu", id="GPU-8e2f"),
    severity=Severity.CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    since=NOW,
    reasons=("once",),
)
LOOKED = Outcome(check="gpu.count", result=Result(status=Status.OK), at=NOW, duration_s=0.1)
WELL = AgentState(diagnoses=(), outcomes={"gpu.count": LOOKED}, expected=("gpu.count",))
SICK = replace(WELL, diagnoses=(XID,))


def remediation(step: Step) -> Remediation:
    """A remediation of XID 79 at this step of its reboot."""
    return Remediation(
        id="k3v9",
        opened=NOW,
        since=NOW,
        mode=Mode.REPAIR,
        code=XID.code,
        component=str(XID.component),
        remedy=XID.remedy,
        why="w",
        text="healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]",
        steps=REBOOT,
        index=REBOOT.index(step),
    )


CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodehealths.healthd.io"


class Rig:
    """A reporter whose time is ours."""

    def __init__(self, plane: ControlPlane, agents: Agents) -> None:
        self.plane, self.known, self.passed_s = plane, replace(WELL, outcomes={}), 0.0
        self.kubelet = 1
        self.api, orchestrator = agents.api("n1"), agents("n1")
        self.reporter = KubeReporter(
            self.api,
            node="n1",
            known=lambda: self.known,
            verified=orchestrator.verified,
            fenced=lambda: (orchestrator.heal_fence() is Fence.CLAIMED, "fence looked at"),
            kubelet=lambda: self.kubelet,
            monotonic_s=lambda: self.passed_s,
            clock=lambda: NOW + timedelta(seconds=self.passed_s),
            chance=lambda: 0.5,
        )

    def run(self, for_s: float) -> list[str]:
        """Tick once a second, and say what was done."""
        messages = []
        for _ in range(int(for_s)):
            self.passed_s += 1
            messages.append(self.reporter.tick())
        return [each for each in messages if each]

    def conditions(self) -> dict[str, dict[str, Any]]:
        """All of the node, by type."""
        node = self.plane.admin.get("/api/v1/nodes/n1").must()
        return {each["type"]: each for each in node["status"]["conditions"]}

    def labels(self) -> Labels:
        """As the node shows them."""
        return labels_on(node_of(self.plane.admin.get("/api/v1/nodes/n1").must()))

    def events(self) -> list[dict[str, Any]]:
        """All that were told."""
        return list(self.plane.admin.get("/apis/events.k8s.io/v1/namespaces/default/events").must()["items"])


@pytest.fixture
def rig(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Rig]:
    """The reporter of n1, which has looked at nothing yet."""
    control_plane.add_node("n1", taints=[{"key": "healthd.io/unverified", "effect": "NoSchedule"}])
    agents = Agents(control_plane, tmp_path)
    yield Rig(control_plane, agents)
    agents.close()


def test_conditions_begin_as_unknown_and_those_of_the_kubelet_stay(rig: Rig) -> None:
    """Created before anything was looked at; four of ours beside the four that were there."""
    before = rig.conditions()
    rig.run(1)
    after = rig.conditions()
    assert {kind: after[kind]["status"] for kind in TYPES} == dict.fromkeys(TYPES, "Unknown")
    assert {kind: each for kind, each in after.items() if kind not in TYPES} == before


def test_a_fault_is_shown_after_the_debounce_and_moves_one_transition_time(rig: Rig) -> None:
    """False with the code as reason; the other three keep their transition times, and all have one heartbeat."""
    rig.run(1)
    rig.known = WELL
    rig.run(DEBOUNCE_S + 2)
    well = rig.conditions()
    assert {well[kind]["status"] for kind in TYPES} == {"True"}
    rig.known = SICK
    rig.run(DEBOUNCE_S - 2)
    assert rig.conditions()["HealthdGPU"] == well["HealthdGPU"]
    rig.run(40)
    sick = rig.conditions()
    assert (sick["HealthdGPU"]["status"], sick["HealthdGPU"]["reason"]) == ("False", "GpuXid79")
    assert sick["HealthdGPU"]["message"] == "gpu.xid.79 on gpu:GPU-8e2f: reboot_node"
    assert sick["HealthdGPU"]["lastTransitionTime"] > well["HealthdGPU"]["lastTransitionTime"]
    for kind in ("HealthdNetwork", "HealthdStorage", "HealthdNode"):
        assert sick[kind]["lastTransitionTime"] == well[kind]["lastTransitionTime"]


def test_a_quiet_hour_is_at_most_twelve_requests(rig: Rig) -> None:
    """Heartbeats and nothing else, in the second hour of a node that is well."""
    rig.known = WELL
    rig.run(3600)
    before = dict(rig.api.sent)
    message = rig.run(3600)
    assert all(each.startswith("conditions written") for each in message)
    assert {key: count - before.get(key, 0) for key, count in rig.api.sent.items()} == {
        "get node": 0,
        "get node_health": 0,
        "patch node": len(message),
    }
    assert 3600 // (HEARTBEAT_S * 1.1) <= len(message) <= 12


def test_a_stop_on_purpose_is_shown_until_the_agent_writes_again(rig: Rig) -> None:
    """By one annotation of its own Node, which the policies allow; the next write takes it away."""
    rig.known = WELL
    rig.run(DEBOUNCE_S + 2)

    def shown() -> NodeSummary | None:
        return summary_in(node_of(rig.plane.admin.get("/api/v1/nodes/n1").must()), None)

    before = shown()
    assert before is not None
    assert not before.stopped
    rig.passed_s += 1
    assert rig.reporter.stop() == ""
    after = shown()
    assert after is not None
    assert after == replace(before, stopped=True, at=NOW + timedelta(seconds=rig.passed_s))
    rig.run(HEARTBEAT_S * 1.2)
    again = rig.plane.admin.get("/api/v1/nodes/n1").must()
    assert STOPPED not in again["metadata"].get("annotations", {})


def test_labels_say_what_healthd_does_with_the_node_and_cost_no_request_of_their_own(rig: Rig) -> None:
    """Nothing before all was looked at, then ok; a fault that nothing is done about has its code alone; a remediation
    has its state within a second; and a quiet node sends what it sent without labels."""
    rig.run(1)
    assert rig.labels() == Labels()
    rig.known = WELL
    rig.run(DEBOUNCE_S + 2)
    assert rig.labels() == Labels(state="ok")
    rig.known = SICK
    rig.run(45)
    assert rig.labels() == Labels(code="gpu.xid.79")
    rig.known = replace(SICK, remediation=remediation(Step.DRAIN))
    rig.run(1)
    assert rig.labels() == Labels(state="draining", code="gpu.xid.79")
    rig.known = replace(SICK, remediation=remediation(Step.REBOOT))
    rig.run(GAP_S)
    assert rig.labels() == Labels(state="repairing", code="gpu.xid.79")
    before = dict(rig.api.sent)
    message = rig.run(3600)
    events = sum(each.count("Event ") for each in message)
    assert sum(rig.api.sent.values()) - sum(before.values()) <= 12 + 2 * events


def test_a_daemon_that_starts_leaves_the_labels_until_it_has_decided(rig: Rig) -> None:
    """A rollout makes no node ok that is out; what a person changed is put right with the next write."""
    rig.known = replace(SICK, remediation=remediation(Step.REBOOT))
    rig.run(2)
    rig.known = replace(WELL, has_decided=False)
    rig.run(60)
    assert rig.labels() == Labels(state="repairing", code="gpu.xid.79")
    lie = {"metadata": {"labels": Labels(state="ok").metadata}}
    rig.plane.admin.patch("/api/v1/nodes/n1", lie, kind="merge").must()
    rig.known = replace(WELL, remediation=remediation(Step.REBOOT))
    rig.run(HEARTBEAT_S * 1.1 + 2)
    assert rig.labels() == Labels(state="repairing", code="gpu.xid.79")
    rig.known = WELL
    rig.run(GAP_S + 1)
    assert rig.labels() == Labels(state="ok")


def test_a_node_that_is_not_ok_has_a_nodehealth_for_as_long_as_that_lasts(rig: Rig) -> None:
    """None while it is well; state, code, step and what is waited for with the labels; gone when it is well again."""
    rig.known = WELL
    rig.run(DEBOUNCE_S + 2)
    assert rig.plane.health("n1") == {}
    rig.known = replace(SICK, remediation=remediation(Step.DRAIN))
    assert any("NodeHealth written: state=draining, code=gpu.xid.79" in message for message in rig.run(GAP_S + 1))
    since = NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
    shown = {"state": "draining", "code": "gpu.xid.79", "since": since, "step": "drain", "waitsFor": "the drain"}
    assert rig.plane.health("n1")["status"] == shown
    rig.known = replace(SICK, remediation=remediation(Step.REBOOT))
    rig.run(2 * GAP_S + 1)
    assert rig.plane.health("n1")["status"] == {
        **shown,
        "state": "repairing",
        "step": "reboot",
        "waitsFor": "the reboot",
    }
    before = rig.api.sent["patch node_health"]
    rig.run(600)
    assert rig.api.sent["patch node_health"] == before, "nothing new is written"
    rig.known = WELL
    rig.run(DEBOUNCE_S + 2 * GAP_S)
    assert (rig.labels(), rig.plane.health("n1")) == (Labels(state="ok"), {})


def test_what_a_daemon_before_showed_goes_once_the_node_is_known_to_be_well(rig: Rig) -> None:
    """And stays until then; a handoff record beside it stays, and is shown as of a node that is ok."""
    rig.plane.add_health("n1", status={"state": "held", "code": "gpu.xid.79"}, record={"remediationID": "k3v9"})
    rig.known = replace(WELL, has_decided=False)
    rig.run(DEBOUNCE_S + 2)
    assert rig.plane.health("n1")["status"]["state"] == "held"
    rig.known = WELL
    rig.run(GAP_S + 2)
    there = rig.plane.health("n1")
    assert (there["status"]["state"], "code" in there["status"], there["record"]) == (
        "ok",
        False,
        {"remediationID": "k3v9"},
    )


def test_a_nodehealth_that_cannot_be_written_keeps_no_condition_from_being_told(rig: Rig) -> None:
    """Said, and tried again after a pause; here the resource is missing."""
    rig.plane.admin.delete(CRD).must()
    rig.plane.wait(lambda: rig.plane.admin.get(HEALTHS).status == 404, 30, "NodeHealths to be gone")
    rig.plane.wait(lambda: rig.plane.admin.get(CRD).status == 404, 30, "the resource to be gone")
    try:
        rig.known = replace(SICK, remediation=remediation(Step.DRAIN))
        message = rig.run(DEBOUNCE_S + 2)
        assert rig.conditions()["HealthdGPU"]["status"] == "False"
        problems = [each for each in message if "NodeHealth not written, retry in" in each]
        assert 1 <= len(problems) <= 4
        assert all("nodehealths.healthd.io is missing" in each for each in problems)
    finally:
        install_resource(rig.plane)
    rig.run(600)
    assert rig.plane.health("n1")["status"]["state"] == "draining"


@pytest.mark.parametrize("registers_s", [0, 4, 45, 115])
def test_a_node_that_is_registered_again_has_its_conditions_within_seconds(rig: Rig, registers_s: int) -> None:
    """Another UID under the same name, at any time after a start of the kubelet: no heartbeat is waited for, and the
    start-up taint that it comes with goes as ever."""
    rig.known = WELL
    rig.run(60)
    rig.plane.admin.delete("/api/v1/nodes/n1").must()
    rig.kubelet = 2
    rig.run(registers_s)
    rig.plane.add_node("n1", taints=[{"key": "healthd.io/unverified", "effect": "NoSchedule"}])
    message = "; ".join(rig.run(LOOK_S + 1))
    assert "registered again under another UID" in message
    assert {kind: rig.conditions()[kind]["status"] for kind in TYPES} == dict.fromkeys(TYPES, "Unknown")
    rig.run(DEBOUNCE_S + 2)
    assert {kind: rig.conditions()[kind]["status"] for kind in TYPES} == dict.fromkeys(TYPES, "True")
    assert "taints" not in rig.plane.admin.get("/api/v1/nodes/n1").must()["spec"]


def test_a_kubelet_that_restarts_and_finds_its_node_costs_some_reads(rig: Rig) -> None:
    """For two minutes; nothing is written for it."""
    rig.known = WELL
    rig.run(60)
    before = dict(rig.api.sent)
    rig.kubelet = 2
    rig.run(200)
    assert rig.api.sent["get node"] - before["get node"] == REGISTERS_S // LOOK_S + 1
    assert rig.api.sent["patch node"] - before["patch node"] <= 1  # a heartbeat


def test_the_start_up_taint_stays_until_everything_was_looked_at_and_is_well(rig: Rig) -> None:
    """Neither a verdict that is missing a check nor a bad one lets the first pods in."""

    def tainted() -> bool:
        return bool(rig.plane.admin.get("/api/v1/nodes/n1").must()["spec"].get("taints"))

    rig.run(30)
    assert tainted()
    rig.known = SICK
    rig.run(30)
    assert tainted()
    rig.known = WELL
    assert "verified: start-up taint removed" in "; ".join(rig.run(30))
    assert not tainted()


def test_a_fault_is_one_event_and_a_series_with_growing_gaps(rig: Rig) -> None:
    """In two hours: at once, after 1, 5 and 15 minutes, then hourly; a daemon that starts anew counts on."""
    rig.known = SICK
    rig.run(1)
    (event,) = rig.events()
    assert (event["reason"], event["type"], event["regarding"]["name"]) == ("GpuXid79", "Warning", "n1")
    assert "series" not in event
    rig.run(60 + 300 + 900 + 3600 + 60)
    (event,) = rig.events()
    assert event["series"]["count"] == 5
    again = Rig(rig.plane, Agents(rig.plane, rig.plane.root / "again"))
    again.known = SICK
    again.run(1)
    assert [each["series"]["count"] for each in rig.events()] == [6]
    again.api.close()


def test_news_whose_words_have_changed_is_counted_all_the_same(rig: Rig) -> None:
    """The server lets nobody change an Event's note: it stays the first one, and the count goes up."""
    rig.known = SICK
    rig.run(1)
    rig.known = replace(WELL, diagnoses=(replace(XID, remedy=Remedy.REPLACE_NODE),))
    assert "not told" not in "; ".join(rig.run(61))
    (event,) = rig.events()
    assert (event["series"]["count"], event["note"]) == (2, "gpu.xid.79 on gpu:GPU-8e2f calls for reboot_node")


def test_a_cluster_that_is_away_costs_nothing_and_hears_it_all_later(rig: Rig) -> None:
    """What changed meanwhile is written when it answers again, with the time at which it changed."""
    rig.known = WELL
    rig.run(60)
    rig.plane.kill_api_server()
    rig.known = SICK
    changed = NOW + timedelta(seconds=rig.passed_s + 1)
    message = rig.run(60)
    assert message
    assert all("not written" in each or "not told" in each for each in message)
    rig.plane.start_api_server()
    rig.run(600)
    shown = rig.conditions()["HealthdGPU"]
    assert (shown["status"], shown["lastTransitionTime"]) == ("False", changed.strftime("%Y-%m-%dT%H:%M:%SZ"))


def test_conditions_of_others_survive_writers_at_once(rig: Rig) -> None:
    """Four others write their own types while ours are written: nobody loses one."""
    rig.known = WELL
    stop = threading.Event()

    def write(kind: str) -> None:
        client, count = rig.plane.client(rig.plane.admin_token), 0
        while not stop.is_set():
            count += 1
            one = {"type": kind, "status": "True", "reason": "Fine", "message": str(count)}
            client.patch("/api/v1/nodes/n1/status", {"status": {"conditions": [one]}}).must()
        client.close()

    others = [f"Other{number}" for number in range(4)]
    threads = [threading.Thread(target=write, args=(kind,)) for kind in others]
    for thread in threads:
        thread.start()
    for _ in range(20):
        rig.known = SICK if rig.known is WELL else WELL
        rig.run(60)
    stop.set()
    for thread in threads:
        thread.join()
    assert set(rig.conditions()) == {"MemoryPressure", "DiskPressure", "PIDPressure", "Ready", *TYPES, *others}
