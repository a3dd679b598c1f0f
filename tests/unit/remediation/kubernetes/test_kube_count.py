"""What one reading of all Nodes and Leases comes to: numbers, who is gone, what is odd."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.core.model import ClusterTrouble
from healthd.remediation.orchestrators.kubernetes.objects.budget import COUNTED, LIMIT, NODES, key_of
from healthd.remediation.orchestrators.kubernetes.objects.count import (
    FENCE_HEALS_S,
    UNSHOWN_S,
    CountedNodes,
    Oddity,
    budget_before,
    count,
    lasting,
    left_fences,
    named_in,
    oddities,
    rejoined,
    snapshot_of,
    suspected,
    uncovered,
)
from healthd.remediation.orchestrators.kubernetes.objects.node import (
    CLAIMED,
    HOLD,
    UNHEALTHY,
    KubeNode,
    instance_id_of,
    node_of,
    nodes_in,
)
from healthd.remediation.orchestrators.kubernetes.objects.stray_claims import Stray

READY = {"type": "Ready", "status": "True"}


def node(name: str, *taints: str, pool: str = "", ready: bool = True, provider: str = "") -> KubeNode:
    return node_of(
        {
            "metadata": {"name": name, "labels": {"pool": pool} if pool else {}},
            "spec": {
                "taints": [{"key": key, "effect": "NoSchedule"} for key in taints],
                **({"providerID": provider} if provider else {}),
            },
            "status": {"conditions": [READY] if ready else []},
        }
    )


def seen(*nodes: KubeNode) -> CountedNodes:
    return CountedNodes(nodes={each.name: each for each in nodes})


def lease(**notes: str) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "7", "annotations": notes}}


def claimed(*names: str, text: str = "") -> dict[str, Any]:
    claims = {
        key_of(name): f'{{"node":"{name}","index":{number},"text":"{text}"}}' for number, name in enumerate(names)
    }
    return {"metadata": {"resourceVersion": "7", "annotations": claims}}


@pytest.mark.parametrize(
    ("max_out", "nodes", "limit"), [("5%", 1000, 50), ("5%", 39, 1), ("5%", 0, 1), ("10%", 25, 2), (3, 1000, 3)]
)
def test_a_percentage_is_rounded_down_and_one_may_always_be_out(max_out: str | int, nodes: int, limit: int) -> None:
    """And it is of the nodes that there are now."""
    there = seen(*(node(f"n{number}") for number in range(nodes)))
    found = count(there, budget_before("cluster", lease()), max_out)
    assert (found.limit, found.total, found.out) == (limit, nodes, frozenset())


def test_who_is_out_without_a_claim_is_named_whoever_did_it() -> None:
    """Not Ready, a taint that nobody explained, one of ours without a claim; not a holder, not what jobs tolerate."""
    there = seen(
        node("n1", ready=False),
        node("n2", "example.com/broken"),
        node("n3", UNHEALTHY),
        node("n4", UNHEALTHY),
        node("n5", "nvidia.com/gpu", "dedicated"),
    )
    found = count(there, budget_before("cluster", claimed("n4")), 2, tolerated=["dedicated"])
    assert found.out == {"n1", "n2", "n3"}


def test_a_scope_is_the_nodes_that_its_label_names() -> None:
    """Without a label configured a scope has none, and the cluster has all."""
    there = seen(node("n1", pool="p5", ready=False), node("n2", pool="p5"), node("n3", pool="g6"), node("n4"))
    found = count(there, budget_before("p5", lease()), "50%", scope_label="pool")
    assert (found.limit, found.total, set(found.out)) == (1, 2, {"n1"})
    assert count(there, budget_before("p5", lease()), "50%").total == 0
    assert count(there, budget_before("cluster", lease()), "50%", scope_label="pool").total == 4


def test_numbers_that_make_no_sense_do_not_keep_it_from_counting() -> None:
    """They are what it is about to write; the claims beside them are read."""
    broken = claimed("n1")
    broken["metadata"]["annotations"] |= {LIMIT: "many", NODES: "", COUNTED: "yesterday"}
    assert set(budget_before("cluster", broken).claims) == {"claim.healthd.io/n1"}
    assert budget_before("cluster", {"metadata": {"resourceVersion": "1"}}).claims == {}


def test_gone_is_who_was_missing_twice() -> None:
    """Once may be the server's cache; a Node that is there again begins anew."""
    named = named_in(["claim.healthd.io/n1", "claim.healthd.io/n2", "healthd.io/limit"])
    assert named == {"n1", "n2"}
    absent, suspects = suspected(seen(node("n2")), named, ())
    assert (set(absent), suspects) == ({"n1"}, ())
    assert suspected(seen(node("n2")), named, absent) == (absent, ("n1",))
    assert suspected(seen(node("n1"), node("n2")), named, absent) == (frozenset(), ())


def test_a_machine_is_followed_by_its_provider_id() -> None:
    """Under another name it is the same machine; a new one is not."""
    there = seen(node("n1", provider="aws:///a/i-1"), node("n2", provider="aws:///a/i-2"))
    assert rejoined(there, "aws:///a/i-2", old="n9") == "n2"
    assert rejoined(there, "aws:///a/i-2", old="n2") == ""
    assert rejoined(there, "aws:///a/i-3", old="n9") == ""
    assert rejoined(there, "", old="n9") == ""


@pytest.mark.parametrize(
    ("provider", "instance"),
    [
        ("aws:///us-west-2a/i-0123456789abcdef0", "i-0123456789abcdef0"),
        ("aws:///usw2-az1/sagemaker/cluster/hyperpod-abcdef012345-i-0123456789abcdef0", "i-0123456789abcdef0"),
        ("kind://docker/kind/kind-worker", ""),
        ("", ""),
    ],
)
def test_a_node_names_its_instance(provider: str, instance: str) -> None:
    """EC2's and HyperPod's way of writing it."""
    assert instance_id_of(node("n1", provider=provider)) == instance


def test_the_snapshot_has_everybody_who_is_out_and_every_record() -> None:
    """What the controller's own questions need: holders that show a drain as well."""
    there = seen(node("n1", UNHEALTHY), node("n2", ready=False), node("n3"))
    budget = budget_before("cluster", claimed("n1", text="healthd: x [k3]"))
    snapshot = snapshot_of(there, budget, {"n1": "healthd case=k3"})
    assert (set(snapshot.out), snapshot.total, [record.node for record in snapshot.records]) == (
        {"n1", "n2"},
        3,
        ["n1"],
    )
    assert [held.node for held in snapshot.held] == ["n1"]
    assert snapshot_of(there, budget_before("cluster", claimed("n1")), {}).held == ()


def test_what_does_not_fit_together_is_found() -> None:
    """A taint without a claim, a claim without a taint, a claim or a record that no healthd made; not what fits, not
    whom the list lacks."""
    notes = claimed("n1", "n2", "n9")
    notes["metadata"]["annotations"]["claim.healthd.io/n5"] = "somebody's"
    there = seen(node("n1", CLAIMED), node("n2"), node("n3", UNHEALTHY), node("n4"))
    found = oddities(there, [budget_before("cluster", notes)], {"n9": "attempt"})
    assert {(each.node, each.kind) for each in found} == {
        ("n2", ClusterTrouble.NO_TAINT),
        ("n3", ClusterTrouble.NO_CLAIM),
        ("n5", ClusterTrouble.ODD_CLAIM),
        ("n9", ClusterTrouble.ODD_RECORD),
    }
    assert all(each.message for each in found)


def test_a_record_of_a_clock_that_is_ahead_names_the_clocks() -> None:
    """Its healthd did write it; to remove it would lose the node's history."""
    ahead = Oddity(node="n9", kind=ClusterTrouble.ODD_RECORD, about="a time in the future").message
    assert "Compare the clocks of the node and of the controller" in ahead
    assert "kubectl patch" not in ahead
    assert "kubectl patch" in Oddity(node="n9", kind=ClusterTrouble.ODD_RECORD, about="attempt").message


def test_a_claim_of_a_scope_is_odd_by_itself_and_its_lease_is_named() -> None:
    """Beside the cluster's: one that no healthd made, and one whose node no taint keeps out; not one that is astray,
    which is told of as that. A taint needs the cluster's claim, whatever scope has one."""
    notes = claimed("n2", "n3")
    notes["metadata"]["annotations"]["claim.healthd.io/n5"] = "somebody's"
    there = seen(node("n1", CLAIMED), node("n2"), node("n3"), node("n5"))
    budgets = [budget_before("cluster", claimed("n1")), budget_before("p5", notes)]
    found = oddities(there, budgets, astray=[Stray(node="n3", scope="p5"), Stray(node="n1", scope="g6")])
    assert {(each.node, each.kind, each.scope) for each in found} == {
        ("n2", ClusterTrouble.NO_TAINT, "p5"),
        ("n5", ClusterTrouble.ODD_CLAIM, "p5"),
    }
    assert all("Lease healthd-budget-p5" in each.message for each in found)
    assert "the Lease healthd-budget-p5," in Oddity(node="n3", kind=ClusterTrouble.STRAY_CLAIM, scope="p5").message


def test_whom_the_selector_leaves_out_is_looked_at_where_healthd_is_at_work() -> None:
    """By a taint of healthd's, the annotation of a hold, or a claim in any Lease."""
    held = node_of({"metadata": {"name": "n4", "annotations": {HOLD: "x"}}})
    all_ = [node("n1", UNHEALTHY), node("n2", CLAIMED), node("n3"), held, node("n5"), node("n6", "example.com/x")]
    budgets = [budget_before("cluster", claimed("n1")), budget_before("p5", claimed("n5"))]
    assert uncovered(all_, seen(node("n1", UNHEALTHY)), budgets).keys() == {"n2", "n4", "n5"}


def test_what_passes_by_itself_is_not_told() -> None:
    """A taint without a claim is told at the second look, a claim without a taint after a quarter of an hour; what was
    away meanwhile begins anew."""
    bare, slow = Oddity(node="n1", kind=ClusterTrouble.NO_CLAIM), Oddity(node="n2", kind=ClusterTrouble.NO_TAINT)
    since, told = lasting({bare, slow}, {}, 0.0)
    assert told == ()
    since, told = lasting({bare, slow}, since, 10.0)
    assert told == (bare,)
    assert lasting({slow}, since, UNSHOWN_S)[1] == (slow,)
    since, _ = lasting({bare}, since, 20.0)
    assert lasting({slow}, since, UNSHOWN_S + 30.0)[1] == ()


def test_a_fence_alone_is_named_at_once_and_told_when_its_agent_had_its_time() -> None:
    """A fence beside a drain, or beside what is left of a hold, is none that an agent takes away by itself."""
    held = node_of(
        {"metadata": {"name": "n3", "annotations": {HOLD: "x"}}, "spec": {"taints": [{"key": CLAIMED, "effect": ""}]}}
    )
    there = seen(node("n1", CLAIMED), node("n2", CLAIMED, UNHEALTHY), held)
    found = oddities(there, [budget_before("cluster", lease())])
    assert {(each.node, each.kind) for each in found} == {
        ("n1", ClusterTrouble.LEFT_FENCE),
        ("n2", ClusterTrouble.NO_CLAIM),
        ("n3", ClusterTrouble.NO_CLAIM),
    }
    fence = Oddity(node="n1", kind=ClusterTrouble.LEFT_FENCE)
    since, told = lasting(found, {}, 10.0)
    assert (left_fences(since, 10.0), told) == ({}, ())
    since, told = lasting(found, since, 15.0)
    assert left_fences(since, 15.0) == {"n1": fence.message}
    assert fence not in told
    assert "kubectl taint node n1 healthd.io/claimed-" in fence.message
    since, told = lasting([fence], since, 10.0 + FENCE_HEALS_S)
    assert (left_fences(since, 10.0 + FENCE_HEALS_S), told) == ({}, (fence,))


def test_a_page_of_nodes_is_read_as_it_comes() -> None:
    """With the boot that the kubelet reports, where it does."""
    page = b'{"items":[{"metadata":{"name":"n1"},"status":{"nodeInfo":{"bootID":"b1"}}},{"metadata":{"name":"n2"}}]}'
    assert [(each.name, each.boot_id) for each in nodes_in(page)] == [("n1", "b1"), ("n2", "")]
