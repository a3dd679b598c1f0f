"""Pods that are Slurm nodes: none is evicted before Slurm has drained it."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from healthd.remediation.orchestrators.kubernetes.objects.eviction import (
    EvictionRule,
    EvictMode,
    Pod,
    PodState,
    overdue,
    planned,
)
from healthd.remediation.orchestrators.kubernetes.objects.slurm_nodes import SlurmState, is_slurm_node, slurm_state
from tests.unit.remediation.kubernetes.test_kube_eviction import SINCE, drain, pod, rule, state

OWNERS: dict[str, dict[str, Any]] = {
    "slinky": {"ownerReferences": [{"kind": "NodeSet", "apiVersion": "slinky.slurm.net/v1beta1", "controller": True}]},
    "sunk": {"ownerReferences": [{"kind": "NodeSet", "apiVersion": "sunk.coreweave.com/v1alpha1", "controller": True}]},
    "label": {"labels": {"app.kubernetes.io/name": "slurmd"}},
}
STATES = ("Idle", "Allocated", "Mixed", "Completing", "Down", "Unknown", "Drain", "Undrain")


def worker(*states: str, of: str = "slinky", **more: Any) -> Pod:
    """A pod with a slurmd, and the states of its Slurm node that its conditions show as True."""
    conditions = [{"type": f"SlurmNodeState{each}", "status": str(each in states)} for each in STATES]
    body = msgspec.to_builtins(pod("worker-0", **OWNERS[of], **more))
    return msgspec.convert({**body, "status": {"phase": "Running", "conditions": conditions}}, Pod)


@pytest.mark.parametrize("of", OWNERS)
@pytest.mark.parametrize("mode", EvictMode)
def test_none_is_evicted_before_slurm_has_drained_it_and_its_jobs_are_over(of: str, mode: EvictMode) -> None:
    """Of all that a pod may show, under every rule: only a drain without an undrain and without a job."""
    for count in range(len(STATES) + 1):
        for states in itertools.combinations(STATES, count):
            busy = {"Allocated", "Mixed", "Completing", "Unknown", "Undrain"} & set(states)
            (plan,) = planned([worker(*states, of=of)], [rule(mode, after_s=60.0)], drain(), SINCE + timedelta(hours=9))
            may_go = "Drain" in states and not busy and mode is not EvictMode.NEVER
            assert (plan.state is PodState.EVICT) is may_go, (states, plan)


def test_the_reason_says_what_an_operator_does() -> None:
    """Not drained: let the operator's cordon do it; nothing shown: do it by hand; drained, without a rule: name it."""
    assert state(worker("Idle"), rule())[1].startswith("a Slurm node that Slurm has not drained: set [orchestrator.kub")
    assert "drain it with scontrol, then delete the pod" in state(pod(**OWNERS["sunk"]), rule())[1]
    assert state(worker("Idle", "Drain"))[0] is PodState.FORBIDDEN
    assert "no rule evicts it" in state(worker("Idle", "Drain"))[1]
    assert state(worker("Mixed", "Drain"), rule()) == (
        PodState.WAITS,
        "Slurm drains it, and its jobs end by themselves",
    )


def test_drained_is_complete() -> None:
    """Of a pod that never ends by itself, its jobs are what a rule with complete waits for."""
    assert state(worker("Idle", "Drain"), rule(EvictMode.COMPLETE))[0] is PodState.EVICT
    assert state(worker("Idle", "Drain"), rule(EvictMode.EVICT_AFTER, after_s=60.0), after_s=59.0)[0] is PodState.WAITS


@pytest.mark.parametrize("rules", [(), (rule(EvictMode.NEVER),), (rule(EvictMode.EVICT),)])
def test_one_that_slurm_has_not_drained_pages_after_the_timeout(rules: tuple[EvictionRule, ...]) -> None:
    """Whatever its rule, since Slurm goes on giving it jobs. While Slurm drains it, nothing is overdue."""
    for states, after_s, late in ((("Idle",), 599.0, 0), (("Idle",), 600.0, 1), (("Mixed", "Drain"), 1e6, 0)):
        now = SINCE + timedelta(seconds=after_s)
        plans = planned([worker(*states)], rules, drain(), now)
        assert len(overdue(plans, rules, drain(), done=(), timeout_s=600.0, now=now)) == late


def test_other_pods_are_none() -> None:
    """Not a NodeSet of somebody else's, nor any other pod, whatever conditions it has."""
    assert not is_slurm_node("NodeSet", "example.com", {})
    assert not is_slurm_node("Job", "slinky.slurm.net", {"app.kubernetes.io/name": "slurmctld"})
    assert pod().slurm is None
    assert slurm_state({"Ready": "True"}) is SlurmState.UNKNOWN
