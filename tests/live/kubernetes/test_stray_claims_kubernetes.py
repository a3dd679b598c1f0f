"""Claims that keep a place from others for nothing, and nodes that no controller covers any more, on a real API server.

A real controller process with the chart's own rights; claims are written with the token of an agent's pod, or by a
person.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.remediation.orchestrators.kubernetes.objects.budget import CLAIM, LEASE, OUT
from healthd.remediation.orchestrators.kubernetes.objects.labels import STATE
from healthd.remediation.orchestrators.kubernetes.objects.stray_claims import IDLE_S, RELABELLED_S
from tests.live.kubernetes.agent_node import AgentNode
from tests.live.kubernetes.agent_rig import Agents, note
from tests.live.kubernetes.api_client import ApiClient
from tests.live.kubernetes.control_plane import LEASES, NAMESPACE, ControlPlane
from tests.live.kubernetes.fleet_controller import Fleet, FleetController, Start, drained
from tests.live.kubernetes.fleet_storm import REASON
from tests.support.running import UNCONTAINED

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

P5 = f"{LEASE}-p5"
SCOPED = '[budget]\nmax_out = 2\n[[budget.scope]]\nname = "p5"\nmax_out = 1\n'
AS_AGENT = "?fieldManager=healthd-agent"
ROLE = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/healthd-agent-budget"
POLICY = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/healthd-budget"


def claim_of(node: str, holder: str = "") -> dict[str, object]:
    """The patch of a Lease by which ``node`` claims; ``holder``: whose key it writes."""
    claim = json.dumps({"node": holder or node, "index": 0})
    return {"metadata": {"annotations": {f"{CLAIM}{holder or node}": claim}}}


def holders(plane: ControlPlane, lease: str) -> set[str]:
    return {key.removeprefix(CLAIM) for key in plane.notes(lease) if key.startswith(CLAIM)}


def troubles(controller: FleetController) -> set[str]:
    """What pages, as its metrics page has it."""
    found = re.findall(r'^healthd_controller_troubles\{trouble="(\w+)"\} ([0-9.]+)$', controller.page(), re.MULTILINE)
    return {trouble for trouble, count in found if float(count)}


def events(plane: ControlPlane) -> set[tuple[str, str]]:
    """Reason and Node of each Event of the controller's."""
    items = plane.admin.get("/apis/events.k8s.io/v1/events").must()["items"]
    ours = [each for each in items if each["reportingController"] == "healthd.io/controller"]
    return {(each["reason"], each["regarding"]["name"]) for each in ours}


@pytest.fixture
def thief(control_plane: ControlPlane, fleet: Fleet) -> Iterator[ApiClient]:
    """The token of the agent on n1, which is in no scope, in a cluster whose chart has the scope p5; n2 is in it."""
    admin = control_plane.admin
    fleet.add(["n1"])
    fleet.add(["n2"], labels={"pool": "p5"})
    role, policy = admin.get(ROLE).must(), admin.get(POLICY).must()
    names = [LEASE, P5]
    rules = [{**each, "resourceNames": names} for each in role["rules"]]
    resources = policy["spec"]["matchConstraints"]["resourceRules"]
    scoped = {"matchConstraints": {"resourceRules": [{**each, "resourceNames": names} for each in resources]}}
    admin.patch(ROLE, {"rules": rules}, kind="merge").must()
    admin.patch(POLICY, {"spec": scoped}, kind="merge").must()
    yield control_plane.client(control_plane.agent_token("n1"))
    admin.patch(ROLE, {"rules": role["rules"]}, kind="merge").must()
    admin.patch(POLICY, {"spec": {"matchConstraints": {"resourceRules": resources}}}, kind="merge").must()


def test_a_claim_in_a_scope_that_is_not_its_nodes_keeps_no_place(
    control_plane: ControlPlane, fleet: Fleet, start: Start, thief: ApiClient, agents: Agents
) -> None:
    """A stolen token takes the only place of the scope p5, again and again, which the policies admit. Each time the
    place is free within a round or two; it pages, with Event and metric, all the while; and the scope's own node goes
    out as it should."""
    one = start(SCOPED)
    control_plane.wait(lambda: control_plane.notes(P5).get("healthd.io/limit") == "1", 30, "the counts")
    path = f"{LEASES}/{P5}"
    refused = lambda: "agent may only change the claim" in thief.patch(path + AS_AGENT, claim_of("n1", "n2")).message  # noqa: E731
    control_plane.wait(refused, 30, "the policy to hold for the scope's Lease")
    for _ in range(5):
        thief.patch(path + AS_AGENT, claim_of("n1"), kind="merge").must()
        control_plane.wait(lambda: holders(control_plane, P5) == set(), 10, "the place to be free")
        assert "stray_claim" in troubles(one)
    assert ("ClaimOutsideItsScope", "n1") in events(control_plane)
    assert "its label does not name that scope" in one.log
    thief.patch(path + AS_AGENT, claim_of("n1"), kind="merge").must()
    own = agents("n2", scopes=["p5"], scope_label="pool")
    control_plane.wait(lambda: own.snapshot().scopes[0].scope == "p5" and not own.slots(), 10, "room in the scope")
    own.claim("cluster", 0)
    own.claim("p5", 0)
    time.sleep(3.0)
    assert holders(control_plane, P5) == {"n2"}, "its own node's claim stays"


def test_a_node_whose_label_is_changed_while_it_is_out_gives_the_scope_its_place_back_and_stays_out(
    control_plane: ControlPlane, fleet: Fleet, start: Start, thief: ApiClient, agents: Agents
) -> None:
    """Not at once: a Node that is registered again has no labels for some seconds. The cluster's claim, taint and hold
    stay; where the label is put back, the node counts in its scope, claim or not."""
    one = start(SCOPED)
    control_plane.wait(lambda: control_plane.notes(P5).get("healthd.io/limit") == "1", 30, "the counts")
    agent = agents("n2", scopes=["p5"], scope_label="pool")
    control_plane.wait(lambda: agent.snapshot().scopes, 10, "its scope")
    agent.claim("cluster", 0)
    agent.claim("p5", 0)
    agent.quarantine(REASON)
    fleet.label("n2", "pool", "g6")
    began_s = time.monotonic()
    control_plane.wait(lambda: "stray_claim" in troubles(one), 20, "the metric")
    control_plane.wait(lambda: ("ClaimOutsideItsScope", "n2") in events(control_plane), 10, "the Event")
    assert holders(control_plane, P5) == {"n2"}
    control_plane.wait(lambda: holders(control_plane, P5) == set(), RELABELLED_S + 20, "the place to be free")
    assert time.monotonic() - began_s > RELABELLED_S - 5.0
    assert (control_plane.claims(), fleet.tainted(), agent.view().hold is not None) == ({"n2"}, {"n2"}, True)
    fleet.label("n2", "pool", "p5")
    control_plane.wait(lambda: control_plane.notes(P5)[OUT] == "n2", 20, "the node to count in its scope")
    agent.claim("p5", 0)
    time.sleep(3.0)
    assert holders(control_plane, P5) == {"n2"}, "what its agent claims again stays"


def test_a_claim_that_a_person_made_for_a_healthy_node_is_taken_away_in_a_minute(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """n1's agent says that all is well, of n2 none says anything, n3 is out: theirs stay, for their agents."""
    fleet.add(["n1"], labels={STATE: "ok"})
    fleet.add(["n2", "n3"])
    one = start("[budget]\nmax_out = 3\n")
    control_plane.wait(lambda: fleet.numbers()[0] == "3", 30, "the counts")
    drained(agents, "n3")
    fleet.label("n3", STATE, "ok")  # stale, say: its taint stands
    note(control_plane, {f"{CLAIM}n1": "by hand", f"{CLAIM}n2": json.dumps({"node": "n2", "index": 1})})
    time.sleep(IDLE_S - 10.0)
    assert control_plane.claims() == {"n1", "n2", "n3"}
    control_plane.wait(lambda: control_plane.claims() == {"n2", "n3"}, 30, "the claim of n1 to go")
    told = "its claim was removed from the Lease healthd-budget"
    control_plane.wait(lambda: '"node": "n1"' in one.log and told in one.log, 30, "the log")


def test_beside_a_real_agent_a_claim_made_by_hand_goes_and_its_own_claim_stays(
    control_plane: ControlPlane, fleet: Fleet, start: Start, tmp_path: Path
) -> None:
    """The agent says that all is well, and is not asked: no request of its own, no remediation, no taint. Then it takes
    its node out for a fault, and what it claimed stands for as long as that."""
    fleet.add(["n1"])
    start("[budget]\nmax_out = 1\n")
    control_plane.wait(lambda: fleet.numbers()[0] == "1", 30, "the counts")
    node = AgentNode(control_plane, "n1", tmp_path)
    with node.kubelet:
        node.daemon.start(within_s=60)
        try:
            node.daemon.well(90)
            control_plane.wait(lambda: node.read()["metadata"]["labels"].get(STATE) == "ok", 60, "the agent's word")
            note(control_plane, {f"{CLAIM}n1": json.dumps({"node": "n1", "index": 0})})
            control_plane.wait(lambda: not control_plane.claims(), IDLE_S + 30, "the claim to go")
            assert node.taints() == set()
            node.daemon.kernel_says(UNCONTAINED.format(pci="0000:05:00"))
            control_plane.wait(lambda: "healthd.io/unhealthy" in node.taints(), 90, "its drain")
            time.sleep(IDLE_S + 10.0)
            assert control_plane.claims() == {"n1"}
        finally:
            node.daemon.stop()


def test_a_fence_that_a_person_made_is_named_at_once_and_does_not_page(
    control_plane: ControlPlane, fleet: Fleet, start: Start
) -> None:
    """With the command that lifts it; its agent has some minutes to do so. A drain without a claim pages at once."""
    taints = {name: [{"key": f"healthd.io/{name}", "effect": "NoSchedule"}] for name in ("claimed", "unhealthy")}
    for name, made in taints.items():
        fleet.add([name], taints=made)
    one = start("[budget]\nmax_out = 2\n")
    control_plane.wait(lambda: "no_claim" in troubles(one), 30, "the drain to page")

    def messages() -> dict[str, tuple[str, bool]]:
        return {each["node"]: (each["message"], each["page"]) for each in one.status()[1]["nodes"]}

    control_plane.wait(lambda: "claimed" in messages(), 30, "the fence to be named")
    words, pages = messages()["claimed"]
    assert ("kubectl taint node claimed healthd.io/claimed-" in words, pages) == (True, False)
    assert troubles(one) == {"no_claim"}


def test_a_node_that_is_out_and_that_the_selector_no_longer_covers_pages(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """After its timeout, with Event and metric, until it is covered again or let in; a claim alone is enough. One that
    healthd has nothing to do with does not."""
    fleet.add(["n1", "n2", "n3"], labels={"pool": "p5", "healthd.io/opt-out": "true"})
    fleet.add(["cpu-1"], taints=[{"key": "example.com/other", "effect": "NoSchedule"}])
    one = start("selector = 'pool=p5'\nsilence_timeout_s = 5\n[budget]\nmax_out = 2\n")
    control_plane.wait(lambda: fleet.numbers()[:2] == ("2", "3"), 30, "the counts")
    drained(agents, "n1")
    note(control_plane, {f"{CLAIM}n2": json.dumps({"node": "n2", "index": 1})})
    for name in ("n1", "n2"):
        fleet.label(name, "pool", "g6")
    control_plane.wait(lambda: "uncovered" in troubles(one), 90, "the metric")
    told = {("HeldOutsideSelector", "n1"), ("HeldOutsideSelector", "n2")}
    control_plane.wait(lambda: told <= events(control_plane), 20, "the Events")
    assert not any(about == "cpu-1" for _, about in events(control_plane))
    assert "[controller] selector does not cover it" in one.log
    for name in ("n1", "n2"):
        fleet.label(name, "pool", "p5")
    control_plane.wait(lambda: "uncovered" not in troubles(one), 20, "the end of it")
