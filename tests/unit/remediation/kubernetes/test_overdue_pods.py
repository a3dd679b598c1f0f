"""When a drain that does not end needs a person."""

from __future__ import annotations

from datetime import timedelta

import pytest

from healthd.remediation.orchestrators.kubernetes.eviction import EvictionRule, EvictMode, Fate, GangMode, Plan, overdue
from tests.unit.remediation.kubernetes.test_kube_eviction import SINCE, drain, pod

TIMEOUT_S = 600.0


def late(
    fate: Fate, rule: EvictionRule, after_s: float, *, gone: str | None = None, done: tuple[str, ...] = ()
) -> bool:
    """Whether a pod of this fate is overdue so long after the node was taken out."""
    plan = Plan(pod=pod(deletionTimestamp=gone), fate=fate, why="")
    now = SINCE + timedelta(seconds=after_s)
    return bool(overdue([plan], [rule], drain(), done=done, timeout_s=TIMEOUT_S, now=now))


def rule(mode: EvictMode = EvictMode.EVICT, after_s: float = 0.0, gang: GangMode = GangMode.WAIT) -> EvictionRule:
    return EvictionRule(name="r", mode=mode, after_s=after_s, gang=gang)


@pytest.mark.parametrize("fate", [Fate.EVICT, Fate.FORBIDDEN])
def test_what_a_rule_evicts_and_is_still_there_is_overdue(fate: Fate) -> None:
    """Refused by a budget or for want of a right, or forbidden: once its timeout has passed, and not before."""
    assert not late(fate, rule(), TIMEOUT_S - 1)
    assert late(fate, rule(), TIMEOUT_S)
    assert not late(fate, rule(), TIMEOUT_S, done=("u-train-0",))


@pytest.mark.parametrize("mode", [EvictMode.COMPLETE, EvictMode.EVICT_AFTER])
def test_the_timeout_begins_at_the_rule_s_own_time(mode: EvictMode) -> None:
    """Until then the pod is awaited."""
    assert not late(Fate.EVICT, rule(mode, 3600.0), 3600.0 + TIMEOUT_S - 1)
    assert late(Fate.EVICT, rule(mode, 3600.0), 3600.0 + TIMEOUT_S)


def test_a_finalizer_that_keeps_a_pod_past_its_grace_is_overdue() -> None:
    """Whoever deleted it, and whatever its rule; the API's deletionTimestamp has the grace in it."""
    gone = (SINCE + timedelta(seconds=60)).isoformat()
    never = rule(EvictMode.NEVER)
    assert not late(Fate.LEAVES, never, 59 + TIMEOUT_S, gone=gone)
    assert late(Fate.LEAVES, never, 60 + TIMEOUT_S, gone=gone)
    before = (SINCE - timedelta(days=7)).isoformat()
    assert not late(Fate.LEAVES, never, TIMEOUT_S - 1, gone=before), "the drain has its own timeout"
    assert not late(Fate.LEAVES, never, 1e6)


@pytest.mark.parametrize(
    ("fate", "which"),
    [
        (Fate.STAYS, rule()),
        (Fate.CAME, rule()),
        (Fate.WAITS, rule(EvictMode.NEVER)),
        (Fate.WAITS, rule(EvictMode.COMPLETE)),
        (Fate.WAITS, rule()),
        (Fate.WAITS, rule(EvictMode.COMPLETE, gang=GangMode.WHOLE)),
        (Fate.WAITS, EvictionRule(name="other", mode=EvictMode.EVICT, namespaces=("other",))),
    ],
)
def test_what_is_meant_to_stay_or_to_be_awaited_is_never_overdue(fate: Fate, which: EvictionRule) -> None:
    """A gang that its rule waits for among them."""
    assert not late(fate, which, 1e6)


def test_a_gang_that_cannot_go_whole_is_overdue() -> None:
    """Its rule wants it gone, and one member holds it up."""
    assert late(Fate.WAITS, rule(gang=GangMode.WHOLE), TIMEOUT_S)
