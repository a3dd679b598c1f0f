"""What would be silent: a round that does not end, and nodes, agents and policies that nobody hears of any more.

A real controller process with the chart's own rights on a real API server.
"""

from __future__ import annotations

import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from healthd.api.exit_codes import ExitCode
from healthd.controller.kube_watch import POLICIES_S
from tests.live.kubernetes import fault_proxy as faults
from tests.live.kubernetes.control_plane import HEALTHS, LEASES, ControlPlane
from tests.live.kubernetes.fault_proxy import FaultProxy
from tests.live.kubernetes.fleet_controller import Fleet, FleetController, Start
from tests.support.limits import limit_s

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]


def health(controller: FleetController) -> int:
    """What a probe gets; 0 for no answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{controller.port}/healthz", timeout=limit_s(10)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_a_round_that_hangs_gives_up_the_lead_and_ends_loudly(
    control_plane: ControlPlane, fleet: Fleet, start: Start, proxy: FaultProxy, tmp_path: Path
) -> None:
    """The API server lets this one controller's list run into its deadline, and renewals pass: it would lead for ever.
    The probe sees it, the other one takes over at once, and the process ends with an error."""
    fleet.add(["n1"])
    (tmp_path / "stuck").mkdir()
    stuck = FleetController(
        control_plane, tmp_path / "stuck", "sync_timeout_s = 6\n[budget]\nmax_out = 1\n", url=proxy.url
    )
    try:
        stuck.start()
        control_plane.wait(lambda: stuck.leads and fleet.numbers()[0] == "1", 60, "the first to lead")
        other = start("[budget]\nmax_out = 1\n", name="other")
        control_plane.wait(lambda: "another controller leads" in other.log, 60, "the second to wait")
        assert (health(stuck), health(other)) == (200, 200), "one that waits is ready"
        proxy.fail(faults.HANGS, times=None, path="/api/v1/nodes[?]")
        control_plane.wait(lambda: health(stuck) == 503, 20, "the probe to see it")
        control_plane.wait(lambda: other.leads, 30, "the second to take over")
        assert stuck.process is not None
        assert stuck.process.wait(timeout=limit_s(30)) == ExitCode.FAILED
        last = [line for line in stuck.log.splitlines() if "giving up the lead and exiting" in line]
        assert len(last) == 1
        assert "a sync has not finished for over 6 s" in last[0]
        assert '"level": "critical"' in last[0]
        holder = control_plane.admin.get(f"{LEASES}/healthd-controller").must()["spec"]["holderIdentity"]
        time.sleep(2.0)
        assert control_plane.admin.get(f"{LEASES}/healthd-controller").must()["spec"]["holderIdentity"] == holder
        assert other.leads
    finally:
        stuck.stop()


# -- nodes ------------------------------------------------------------------------------------------------------------

PATIENT = "silence_timeout_s = {}\n[budget]\nmax_out = 2\n"


def shows(plane: ControlPlane, name: str, *, ready: str = "True", beat: datetime | None = None) -> None:
    """The Node as its kubelet and its agent leave it. ``beat``: the agent's heartbeat, now where it is left out."""
    at = (beat or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    ours = {"type": "HealthdNode", "status": "True", "lastHeartbeatTime": at}
    body = {"status": {"conditions": [{"type": "Ready", "status": ready}, ours]}}
    plane.admin.patch(f"/api/v1/nodes/{name}/status", body).must()


def troubles(controller: FleetController) -> dict[str, float]:
    """What pages, by trouble, as its metrics page has it."""
    found = re.findall(r'^healthd_controller_troubles\{trouble="(\w+)"\} ([0-9.]+)$', controller.page(), re.MULTILINE)
    return {trouble: float(count) for trouble, count in found if float(count)}


def events(plane: ControlPlane) -> set[tuple[str, str]]:
    """Reason and Node of each Event of the controller's."""
    items = plane.admin.get("/apis/events.k8s.io/v1/events").must()["items"]
    ours = [each for each in items if each["reportingController"] == "healthd.io/controller"]
    return {(each["reason"], each["regarding"]["name"]) for each in ours if each["regarding"]["kind"] == "Node"}


def paged(controller: FleetController, node: str) -> bool:
    """Whether the log has a page for this node."""
    return any(f'"node": "{node}"' in line and '"page": true' in line for line in controller.log.splitlines())


def test_silent_agents_dead_machines_and_odd_records_page_with_event_and_metric_until_they_are_over(
    control_plane: ControlPlane, fleet: Fleet, start: Start
) -> None:
    """n1's agent has stopped, n2 is dead and asked for nothing, n3 has a handoff record that is none. n4 is well, n5
    was cordoned and switched off by its operator, n6 has no agent: they do not page. The next leader goes on with what
    pages, and it is over with its cause."""
    fleet.add([f"n{number}" for number in range(1, 7)])
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    shows(control_plane, "n1", beat=long_ago)
    shows(control_plane, "n2", beat=long_ago, ready="Unknown")
    shows(control_plane, "n5", ready="Unknown")
    fleet.cordon("n5")

    def is_so(condition: Callable[[], bool]) -> Callable[[], bool]:
        def look() -> bool:
            shows(control_plane, "n3")
            shows(control_plane, "n4")
            return condition()

        return look

    first = start(PATIENT.format(8), name="first")
    control_plane.wait(is_so(lambda: fleet.numbers()[0] == "2"), 60, "the counts")
    began_s = time.monotonic()
    later = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    control_plane.add_health("n3", record={"watched": later})
    wanted = {"agent_silent": 1.0, "node_down": 1.0, "odd_record": 1.0}
    control_plane.wait(is_so(lambda: troubles(first) == wanted), 60, "the metric")
    assert time.monotonic() - began_s > 5.0, "before its timeout"
    told = {("AgentSilent", "n1"), ("NodeDown", "n2"), ("OddHandoffRecord", "n3")}
    control_plane.wait(is_so(lambda: events(control_plane) == told), 20, "the Events")
    assert all(paged(first, name) for name in ("n1", "n2", "n3"))
    assert not any(paged(first, name) for name in ("n4", "n5", "n6"))
    assert "healthd_controller_operator_needed 3.0" in first.page()
    first.signal(signal.SIGKILL)
    second = start(PATIENT.format(3600), name="second")
    control_plane.wait(is_so(lambda: second.leads and troubles(second) == wanted), 60, "the next leader to know of it")
    shows(control_plane, "n1")
    shows(control_plane, "n2")
    control_plane.admin.patch(f"{HEALTHS}/n3", {"record": None}, kind="merge").must()
    control_plane.wait(is_so(lambda: troubles(second) == {}), 20, "the end of all")
    assert events(control_plane) == told


# -- policies ---------------------------------------------------------------------------------------------------------


def test_a_missing_policy_pages_after_its_timeout_until_it_is_back(
    control_plane: ControlPlane, fleet: Fleet, start: Start
) -> None:
    """Without its binding a policy holds nothing; the chart's rights let the controller see it."""
    fleet.add(["n1"])
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    binding = control_plane.admin.get(f"{path}/healthd-agent-events").must()
    control_plane.admin.delete(f"{path}/healthd-agent-events").must()
    try:
        one = start(PATIENT.format(3))
        control_plane.wait(lambda: '"page": true' in one.log, 60, "the page")
        assert "an agent can change other nodes than its own: binding healthd-agent-events is missing" in one.log
        control_plane.wait(lambda: troubles(one) == {"no_policies": 1.0}, 10, "the metric")
    finally:
        meta = {"name": "healthd-agent-events"}
        control_plane.admin.post(path, {"metadata": meta, "spec": binding["spec"]}).must()
    control_plane.wait(lambda: troubles(one) == {}, POLICIES_S + 20, "the end of it")
