"""When a drain that does not end needs a person."""

from __future__ import annotations

from datetime import timedelta

import pytest

from healthd.remediation.orchestrators.kubernetes.objects.eviction import (
    EvictionRule,
    EvictMode,
    GangMode,
    Plan,
    PodState,
    overdue,
)
from tests.unit.remediation.kubernetes.test_kube_eviction import SINCE, drain, pod

TIMEOUT_S = 600.0


def late(
    state: PodState, rule: EvictionRule, after_s: float, *, gone: str | None = None, done: tuple[str, ...] = ()
) -> bool:
    """Whether a pod of this state is overdue so long after the node was taken out."""
    plan = Plan(pod=pod(deletionTimestamp=gone), state=state, why="")
    now = SINCE + timedelta(seconds=after_s)
    return bool(overdue([plan], [rule], drain(), done=done, timeout_s=TIMEOUT_S, now=now))


def rule(mode: EvictMode = EvictMode.EVICT, after_s: float = 0.0, gang: GangMode = GangMode.WAIT) -> EvictionRule:
    return EvictionRule(name="r", mode=mode, after_s=after_s, gang=gang)


@pytest.mark.parametrize("state", [PodState.EVICT, PodState.FORBIDDEN])
def test_what_a_rule_evicts_and_is_still_there_is_overdue(state: PodState) -> None:
    """Refused by a budget or for want of a right, or forbidden: once its timeout has passed, and not before."""
    assert not late(state, rule(), TIMEOUT_S - 1)
    assert late(state, rule(), TIMEOUT_S)
    assert not late(state, rule(), TIMEOUT_S, done=("u-train-0",))


@pytest.mark.parametrize("mode", [EvictMode.COMPLETE, EvictMode.EVICT_AFTER])
def test_the_timeout_begins_at_the_rule_s_own_time(mode: EvictMode) -> None:
    """Until then the pod is awaited."""
    assert not late(PodState.EVICT, rule(mode, 3600.0), 3600.0 + TIMEOUT_S - 1)
    assert late(PodState.EVICT, rule(mode, 3600.0), 3600.0 + TIMEOUT_S)


def test_a_finalizer_that_keeps_a_pod_past_its_grace_is_overdue() -> None:
    """Whoever deleted it, and whatever its rule; the API's deletionTimestamp has the grace in it."""
    gone = (SINCE + timedelta(seconds=60)).isoformat()
    never = rule(EvictMode.NEVER)
    assert not late(PodState.LEAVES, never, 59 + TIMEOUT_S, gone=gone)
    assert late(PodState.LEAVES, never, 60 + TIMEOUT_S, gone=gone)
    before = (SINCE - timedelta(days=7)).isoformat()
    assert not late(PodState.LEAVES, never, TIMEOUT_S - 1, gone=before), "the drain has its own timeout"
    assert not late(PodState.LEAVES, never, 1e6)


@pytest.mark.parametrize(
    ("state", "which"),
    [
        (PodState.STAYS, rule()),
        (PodState.CAME, rule()),
        (PodState.WAITS, rule(EvictMode.NEVER)),
        (PodState.WAITS, rule(EvictMode.COMPLETE)),
        (PodState.WAITS, rule()),
        (PodState.WAITS, rule(EvictMode.COMPLETE, gang=GangMode.WHOLE)),
        (PodState.WAITS, EvictionRule(name="other", mode=EvictMode.EVICT, namespaces=("other",))),
    ],
)
def test_what_is_meant_to_stay_or_to_be_awaited_is_never_overdue(state: PodState, which: EvictionRule) -> None:
    """A gang that its rule waits for among them."""
    assert not late(state, which, 1e6)


def test_a_gang_that_cannot_go_whole_is_overdue() -> None:
    """Its rule wants it gone, and one member holds it up."""
    assert late(PodState.WAITS, rule(gang=GangMode.WHOLE), TIMEOUT_S)
