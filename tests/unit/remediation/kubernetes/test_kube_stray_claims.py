"""Claims that keep a place from others for nothing: which they are, and when they are taken away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from healthd.remediation.orchestrators.kubernetes.objects.budget import Budget, key_of
from healthd.remediation.orchestrators.kubernetes.objects.count import budget_before
from healthd.remediation.orchestrators.kubernetes.objects.labels import STATE
from healthd.remediation.orchestrators.kubernetes.objects.node import CLAIMED, HOLD, UNHEALTHY, KubeNode, node_of
from healthd.remediation.orchestrators.kubernetes.objects.stray_claims import (
    IDLE_S,
    RELABELLED_S,
    REMEMBERED_S,
    Stray,
    StrayClaims,
    idle_claims,
    is_left_in,
    strays,
)
from healthd.remediation.records.summary import NodeState

READY = {"type": "Ready", "status": "True"}
OK = {STATE: NodeState.OK.value}


def node(name: str, *taints: str, ready: bool = True, deleting: bool = False, **metadata: Any) -> KubeNode:
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}
    spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}
    return node_of(
        {
            "metadata": {"name": name, **gone, **metadata},
            "spec": spec,
            "status": {"conditions": [READY] if ready else []},
        }
    )


def by_name(*nodes: KubeNode) -> dict[str, KubeNode]:
    return {each.name: each for each in nodes}


def budget(scope: str, *names: str) -> Budget:
    notes = {key_of(name): json.dumps({"node": name, "index": index}) for index, name in enumerate(names)}
    return budget_before(scope, {"metadata": {"resourceVersion": "7", "annotations": notes}})


def stray(name: str, scope: str = "p5") -> Stray:
    return Stray(node=name, scope=scope)


def test_astray_is_a_claim_in_a_scope_that_the_label_does_not_name() -> None:
    """Another's, or none; not the cluster's, not of a Node that was not read, and of none where no label is set."""
    there = by_name(*(node(name, labels={"pool": pool}) for name, pool in (("n1", "p5"), ("n2", "g6"))), node("n3"))
    budgets = [budget("cluster", "n1", "n2", "n3"), budget("p5", "n1", "n2", "n3", "n9")]
    assert strays(there, budgets, "pool") == {stray("n2"), stray("n3")}
    assert strays(there, budgets, "") == frozenset()


@pytest.mark.parametrize(
    ("made", "idle"),
    [
        (node("n1", labels=OK), True),
        (node("n1", labels=OK, ready=False), False),
        (node("n1", labels=OK, deleting=True), False),
        (node("n1", CLAIMED, labels=OK), False),
        (node("n1", UNHEALTHY, labels=OK), False),
        (node("n1", labels=OK, annotations={HOLD: "{}"}), False),
        (node("n1", labels={STATE: NodeState.DRAINING.value}), False),
        (node("n1"), False),
    ],
    ids=["ok", "not ready", "deleted", "fenced", "drained", "held", "draining", "without an agent"],
)
def test_idle_is_a_claim_of_a_node_that_nothing_keeps_out_and_whose_agent_says_ok(
    made: KubeNode, *, idle: bool
) -> None:
    """In whichever Lease it stands; of a Node that was not read nothing is said."""
    assert is_left_in(made) is idle
    found = idle_claims(by_name(made), [budget("cluster", "n1", "n9"), budget("p5", "n1")])
    assert found == ({stray("n1", "cluster"), stray("n1")} if idle else frozenset())


def test_one_that_is_not_out_goes_at_the_second_reading_and_one_that_is_out_after_a_minute() -> None:
    """Both are told of from the second reading on. One that was seen once, and then not, is nothing."""
    claims, there = StrayClaims(), by_name(node("n1"), node("n2", UNHEALTHY), node("n3"))
    free, held, once = stray("n1"), stray("n2"), stray("n3")
    assert claims.astray([free, held, once], there, 0.0) == ((), ())
    assert claims.astray([free, held], there, 5.0) == ((free, held), (free,))
    assert claims.astray([held], there, RELABELLED_S - 1.0) == ((free, held), ())
    assert claims.astray([held], there, RELABELLED_S) == ((free, held), (held,))


def test_one_that_is_written_again_goes_at_once_and_its_page_stands() -> None:
    """For as long as it is remembered, which is from when it was seen last."""
    claims, there = StrayClaims(), by_name(node("n1", UNHEALTHY))
    for at_s in (0.0, 30.0, RELABELLED_S):
        claims.astray([stray("n1")], there, at_s)
    assert claims.astray([], there, 100.0) == ((stray("n1"),), ())
    assert claims.astray([stray("n1")], there, 200.0) == ((stray("n1"),), (stray("n1"),))
    assert claims.astray([], there, 200.0 + REMEMBERED_S - 1.0) == ((stray("n1"),), ())
    assert claims.astray([], there, 200.0 + REMEMBERED_S) == ((), ())
    assert claims.astray([stray("n1")], there, 300.0 + REMEMBERED_S) == ((), ())


def test_an_idle_one_goes_after_a_minute_in_which_it_always_was() -> None:
    """The fence of a claim that was just made is on its way."""
    claims, one = StrayClaims(), stray("n1", "cluster")
    assert claims.idle([one], 0.0) == ()
    assert claims.idle([], 30.0) == ()
    assert claims.idle([one], 40.0) == ()
    assert claims.idle([one], IDLE_S) == ()
    assert claims.idle([one], 40.0 + IDLE_S) == (one,)
