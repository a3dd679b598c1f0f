"""`healthd controller` on a real API server, with the rights that the chart gives it: counts, drains, leads, prunes."""

from __future__ import annotations

import json
import signal
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healthd.notify.notifier import still_told
from healthd.remediation.orchestrators.kubernetes.api import ResourceKind
from healthd.remediation.orchestrators.kubernetes.objects.budget import STATUS, STATUS_LEASE
from healthd.remediation.orchestrators.kubernetes.objects.node import nodes_in
from tests.live.kubernetes.agent_rig import Agents, note
from tests.live.kubernetes.control_plane import LEASES, ControlPlane
from tests.live.kubernetes.fleet_controller import Fleet, Start, drained
from tests.live.kubernetes.fleet_storm import Storm
from tests.support.receiver import receiving

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]


def say(text: str) -> None:
    """A figure of this run, for whoever runs it with -s."""
    sys.stdout.write(text)


# -- counting ---------------------------------------------------------------------------------------------------------


def test_it_makes_the_leases_and_counts_who_is_out_without_a_claim(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """Five per cent of 40 are two; a cordon, a foreign taint and a claim each count once, and only while they last."""
    fleet.add([f"n{number:02}" for number in range(40)], labels={"pool": "p5"})
    start('[budget]\nmax_out = "5%"\n[[budget.scope]]\nname = "p5"\nmax_out = 3\n')

    def counted() -> bool:
        """In both Leases, which are written one after the other."""
        of_scope = control_plane.notes("healthd-budget-p5").get("healthd.io/limit")
        return fleet.numbers() == ("2", "40", "") and of_scope == "3"

    control_plane.wait(counted, 15, f"the counts; they are {fleet.numbers()}")
    drained(agents, "n00")
    fleet.cordon("n07")
    control_plane.wait(lambda: fleet.numbers() == ("2", "40", "n07"), 10, "the cordoned node to count")
    assert control_plane.claims() == {"n00"}
    fleet.cordon("n07", on=False)
    control_plane.wait(lambda: fleet.numbers() == ("2", "40", ""), 10, "nobody to be out but the holder")


def test_of_300_nodes_that_fail_at_once_50_go_out_with_those_that_others_took(
    control_plane: ControlPlane, fleet: Fleet, start: Start, tmp_path: Path
) -> None:
    """1,000 Nodes, 5 %, ten of them cordoned by a person: 300 agents, each with the token of its own node, claim within
    seconds. In no version of the budget are more than 40 claims, and in the end 40 are tainted: 50 are out."""
    names = [f"n{number:04}" for number in range(1000)]
    fleet.add(names)
    for name in names[-10:]:
        fleet.cordon(name)
    one = start('[budget]\nmax_out = "5%"\n')
    control_plane.wait(lambda: fleet.numbers()[:2] == ("50", "1000"), 30, "the counts")
    assert len(fleet.numbers()[2].split()) == 10
    agents = Agents(control_plane, tmp_path)
    api = agents.api(names[0], token=control_plane.admin_token)
    pages = list(api.pages(ResourceKind.NODE, nodes_in))
    assert [len(page) for page in pages] == [500, 500], "a list of this moment comes in pages"
    assert [node.name for page in pages for node in page] == names
    storm = Storm(control_plane, tmp_path, names[:300])
    try:
        seen = storm.run(room=40, within_s=600.0)
    finally:
        storm.close()
        agents.close()
    say(f"\n{seen}\n")
    say(f"controller: {one.memory_mb:.0f} MB, {one.cpu_s:.1f} s of CPU\n")
    assert not seen.wrong, "\n".join(seen.wrong[:5])
    assert seen.versions > 100, "it was looked at too seldom"
    assert seen.most_claims <= 40, "more claims than the limit leaves beside those that others took out"
    assert len(control_plane.claims()) == len(seen.went) == 40
    assert fleet.tainted() == set(seen.went)


def test_the_claim_of_a_node_that_is_gone_goes_and_no_other(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """A deleted Node's claim and record are taken away; those of one that is only NotReady stay, however long."""
    fleet.add(["n1", "n2", "n3", "n4"])
    one = start("[budget]\nmax_out = 2\n")
    control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
    drained(agents, "n1")
    agents("n1").write_record("healthd code=gpu.xid.79")
    dead = agents("n2")
    dead.claim("cluster", 1)
    down = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    control_plane.admin.patch("/api/v1/nodes/n2/status", down).must()
    control_plane.admin.delete("/api/v1/nodes/n1").must()
    control_plane.wait(lambda: control_plane.claims() == {"n2"}, 10, "the claim of n1 to go")
    control_plane.wait(lambda: control_plane.health("n1") == {}, 5, "the record of n1 to go")
    time.sleep(2.0)
    assert control_plane.claims() == {"n2"}
    assert "its Node is gone" in one.log


def test_a_taint_without_a_claim_is_told_and_left_alone(
    control_plane: ControlPlane, fleet: Fleet, start: Start
) -> None:
    """Whoever made it: the person on call reads it, and nothing is done to the node."""
    fleet.add(["n1", "n2"], taints=[])
    taint = {"spec": {"taints": [{"key": "healthd.io/unhealthy", "value": "x", "effect": "NoSchedule"}]}}
    control_plane.admin.patch("/api/v1/nodes/n2", taint, kind="merge").must()
    one = start()
    control_plane.wait(lambda: "a taint of healthd's but no claim" in one.log, 15, "the oddity to be told")
    assert fleet.tainted() == {"n2"}
    assert fleet.numbers()[2] == "n2", "it is out, whoever did it"


# -- drain ------------------------------------------------------------------------------------------------------------

DRAIN = """
[[controller.drain]]
name = "batch"
mode = "evict"
namespaces = ["default"]
labels = ["app=batch"]
unmanaged = true
[[controller.drain]]
name = "guarded"
mode = "evict"
labels = ["app=guarded"]
unmanaged = true
[[controller.drain]]
name = "awaited"
mode = "complete"
labels = ["app=awaited"]
[[controller.drain]]
name = "bare"
mode = "evict"
labels = ["app=bare"]
"""


def test_what_a_rule_names_is_evicted_and_a_protected_pod_is_not(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """On the node that healthd took out; the same pods on another node, and those of no rule, are left alone."""
    fleet.add(["n1", "n2", "n3", "n4"])
    for node, number in (("n1", 1), ("n2", 2)):
        for app in ("batch", "awaited", "bare", "other"):
            control_plane.add_pod(f"{app}-{number}", node)
    control_plane.add_pod("guarded-1", "n1")
    fleet.protect("guarded")
    fleet.cordon("n2")
    with control_plane.reaping():
        one = start("[budget]\nmax_out = 2\n" + DRAIN)
        control_plane.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
        time.sleep(1.5)
        everyone = {f"{app}-{number}" for app in ("batch", "awaited", "bare", "other") for number in (1, 2)}
        assert fleet.pods() == everyone | {"guarded-1"}, "nothing is evicted from a node that others took out"
        fleet.label("n1", "healthd.io/opt-out", "")
        drained(agents, "n1")
        time.sleep(1.5)
        assert fleet.pods() == everyone | {"guarded-1"}, "nothing is evicted from a node that opted out"
        fleet.label("n1", "healthd.io/opt-out", None)
        control_plane.wait(lambda: "batch-1" not in fleet.pods(), 10, "batch-1 to be evicted")
        control_plane.wait(lambda: "its PodDisruptionBudget allows no disruption now" in one.log, 10, "the budget's no")
        time.sleep(1.5)
        assert fleet.pods() == (everyone | {"guarded-1"}) - {"batch-1"}
        control_plane.wait(lambda: "needs unmanaged = true" in one.log, 10, "why the bare pod stays")
        control_plane.admin.delete("/apis/policy/v1/namespaces/default/poddisruptionbudgets/guarded").must()
        control_plane.wait(lambda: "guarded-1" not in fleet.pods(), 10, "guarded-1 to go once nothing protects it")


# -- the lead, and an API server in trouble ---------------------------------------------------------------------------


def test_a_leader_that_is_killed_is_followed_and_one_that_hung_acts_no_more(
    control_plane: ControlPlane, fleet: Fleet, start: Start
) -> None:
    """kill -9: the second takes over after the Lease's 15 s. SIGSTOP: a third takes over, and the one that wakes up
    sees that it lost the lead before it writes anything."""
    fleet.add(["n1", "n2"])
    first = start(name="first")
    control_plane.wait(lambda: first.leads, 15, "the first to lead")
    second = start(name="second")
    control_plane.wait(lambda: "another controller leads" in second.log, 10, "the second to wait")
    first.signal(signal.SIGKILL)
    renewed = lead_of(control_plane)["renewTime"]
    control_plane.wait(lambda: second.leads, 30, "the second to take over")
    took = datetime.fromisoformat(lead_of(control_plane)["acquireTime"]) - datetime.fromisoformat(renewed)
    say(f"taken over {took.total_seconds():.1f} s after the last renewal")
    assert took >= timedelta(seconds=15), "the Lease of one that may still act was taken too early"
    third = start(name="third")
    control_plane.wait(lambda: "another controller leads" in third.log, 10, "the third to wait")
    second.signal(signal.SIGSTOP)
    control_plane.wait(lambda: third.leads, 30, "the third to take over")
    second.signal(signal.SIGCONT)
    control_plane.wait(lambda: not second.leads, 15, "the second to see that it leads no more")
    assert third.leads
    third.stop()
    at = time.monotonic()
    control_plane.wait(lambda: second.leads, 10, "the second to lead again, at once: the third gave the Lease back")
    say(f"taken over {time.monotonic() - at:.1f} s after SIGTERM")


def test_an_api_server_that_hangs_changes_nothing_by_mistake(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """Twelve seconds of SIGSTOP: the lead is lost and taken again, no taint, claim or count is other than before, and
    it counts again."""
    fleet.add([f"n{number}" for number in range(20)])
    one = start('[budget]\nmax_out = "10%"\n' + DRAIN)
    control_plane.wait(lambda: fleet.numbers()[:2] == ("2", "20"), 15, "the counts")
    drained(agents, "n3")
    control_plane.add_pod("other-1", "n3")
    before = (fleet.tainted(), control_plane.claims(), fleet.numbers(), fleet.pods())
    counted = control_plane.notes()["healthd.io/counted"]
    control_plane.hang_api_server()
    control_plane.wait(lambda: "lost the lead" in one.log, 40, "the lead to be lost")
    control_plane.resume_api_server()
    control_plane.wait(
        lambda: control_plane.notes()["healthd.io/counted"] > counted and one.leads, 60, "counting to go on"
    )
    assert (fleet.tainted(), control_plane.claims(), fleet.numbers(), fleet.pods()) == before
    assert one.process is not None
    assert one.process.poll() is None


# -- what it shows ----------------------------------------------------------------------------------------------------


def test_every_replica_shows_what_the_leading_one_said_last(
    control_plane: ControlPlane, fleet: Fleet, start: Start
) -> None:
    """`healthd controller --status` in the pod that waits is the same as in the one that leads: exit 1 for a node that
    needs an operator, 0 once it does not, 2 when nobody leads any more."""
    fleet.add(["n1", "n2", "n3", "n4"])
    budget = '[budget]\nmax_out = "50%"\n'
    one, two = start(budget, name="one"), start(budget, name="two")
    control_plane.wait(lambda: one.leads or two.leads, 30, "a leader")
    taint = {"spec": {"taints": [{"key": "healthd.io/unhealthy", "value": "x", "effect": "NoSchedule"}]}}
    control_plane.admin.patch("/api/v1/nodes/n2", taint, kind="merge").must()
    for each in (one, two):
        control_plane.wait(lambda each=each: each.status()[0] == 1, 30, "a node that needs an operator")  # type: ignore[misc]
    (code, shown), (_, other) = one.status(), two.status()
    assert (code, [node["node"] for node in shown["nodes"] if node["page"]]) == (1, ["n2"])
    assert (shown["leader"], shown["nodes"]) == (other["leader"], other["nodes"])
    control_plane.admin.patch("/api/v1/nodes/n2", {"spec": {"taints": None}}, kind="merge").must()
    control_plane.wait(lambda: two.status()[0] == one.status()[0] == 0, 30, "the end of it")
    old = json.dumps({**one.status()[1], "at": "2026-01-01T00:00:00+00:00"})
    one.stop()
    two.stop()
    note(control_plane, {STATUS: old}, lease=STATUS_LEASE)
    assert (two.status()[0], two.status()[1]["stale"]) == (2, True)


def lead_of(control_plane: ControlPlane) -> dict[str, Any]:
    """The Lease of the lead."""
    return dict(control_plane.admin.get(f"{LEASES}/healthd-controller").must()["spec"])


def noted_as_told(control_plane: ControlPlane) -> list[str]:
    """What the next leader will know that people know of."""
    return [each.key for each in still_told(control_plane.notes("healthd-controller")["healthd.io/told"])]


def test_its_metrics_say_who_leads_and_its_messages_outlive_its_pod(
    control_plane: ControlPlane, fleet: Fleet, start: Start, agents: Agents
) -> None:
    """The budget as it counted it, claims and cordons together; requests by what they came to; a person is asked for
    once, with the chart's own rights, and the next leader, on an empty disk, tells the end of it and nothing twice."""
    fleet.add([f"n{number:02}" for number in range(40)])
    with receiving() as receiver:
        notify = f'[budget]\nmax_out = "10%"\n[notify]\nwebhook_url = "{receiver.url}"\n'
        first = start(notify, name="first")
        control_plane.wait(lambda: fleet.numbers()[:2] == ("4", "40"), 15, "the counts")
        drained(agents, "n00")
        fleet.cordon("n07")
        wanted = {
            "healthd_controller_leads 1.0",
            'healthd_budget_out_nodes{scope="cluster"} 2.0',
            'healthd_budget_limit_nodes{scope="cluster"} 4.0',
            'healthd_budget_nodes{scope="cluster"} 40.0',
        }
        control_plane.wait(lambda: wanted <= set(first.page().splitlines()), 15, "the budget at /metrics")
        assert 'healthd_controller_requests_total{request="list nodes",result="ok",to="kubernetes"}' in first.page()
        taint = {"spec": {"taints": [{"key": "healthd.io/unhealthy", "value": "x", "effect": "NoSchedule"}]}}
        control_plane.admin.patch("/api/v1/nodes/n20", taint, kind="merge").must()
        control_plane.wait(lambda: receiver.taken, 60, "a person is asked for")
        assert [each["key"] for each in receiver.taken[0]["news"]] == ["page n20"]
        control_plane.wait(lambda: noted_as_told(control_plane) == ["page n20"], 15, "it is noted as told")
        first.signal(signal.SIGKILL)
        second = start(notify, name="second")
        control_plane.wait(lambda: second.leads, 40, "the second to take over")
        time.sleep(20)  # longer than it takes to tell something
        assert len(receiver.taken) == 1, "what was told is told again"
        control_plane.admin.patch("/api/v1/nodes/n20", {"spec": {"taints": None}}, kind="merge").must()
        control_plane.wait(lambda: len(receiver.taken) == 2, 60, "the end to be told")
        assert [(each["key"], each["state"]) for each in receiver.taken[1]["news"]] == [("page n20", "over")]
