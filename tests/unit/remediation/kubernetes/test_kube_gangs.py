"""A gang is evicted whole or not at all: when its pods go."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from healthd.remediation.orchestrators.kubernetes.objects.eviction import (
    EvictionRule,
    EvictMode,
    GangMode,
    Plan,
    Pod,
    PodState,
    planned,
)
from healthd.remediation.orchestrators.kubernetes.objects.gangs import GangLabels, gang_of, gangs_to_see, with_gangs
from tests.unit.remediation.kubernetes.test_kube_eviction import SINCE, drain, pod

NODE = "n1"
GROUP = "kueue.x-k8s.io/pod-group-name"
MARKS = GangLabels()


def member(name: str, node: str = NODE, *, made: str = "2026-11-20T10:00:00Z", **meta: Any) -> Pod:
    """A pod of the gang ``train``."""
    meta = {"labels": {GROUP: "train", "app": "x"}, "creationTimestamp": made, **meta}
    return pod(name, spec={"nodeName": node}, **meta)


def rule(gang: GangMode = GangMode.WHOLE, mode: EvictMode = EvictMode.EVICT, **settings: Any) -> EvictionRule:
    return EvictionRule(name="r", mode=mode, gang=gang, **settings)


def drained(
    here: list[Pod], elsewhere: list[Pod], *rules: EvictionRule, now: datetime = SINCE
) -> list[tuple[str, PodState]]:
    """Who comes to what, in the order in which they would be asked for."""
    return [(plan.pod.metadata.name, plan.state) for plan in plans(here, elsewhere, *rules, now=now)]


def plans(here: list[Pod], elsewhere: list[Pod], *rules: EvictionRule, now: datetime = SINCE) -> tuple[Plan, ...]:
    first = planned(here, rules, drain(), now)
    everybody = [*here, *elsewhere]
    members = {
        gang: [each for each in everybody if gang_of(each, MARKS) == gang] for gang in gangs_to_see(first, rules, MARKS)
    }
    return with_gangs(first, members, rules, MARKS, drain=drain(), now=now)


def test_by_default_a_gang_that_runs_elsewhere_too_is_left_alone() -> None:
    """Without one member the others would only hold their GPUs; the sentence says which word is needed."""
    (plan,) = plans([member("a")], [member("b", "n2")], rule(GangMode.WAIT))
    assert plan.state is PodState.WAITS
    assert "rule r: gang team-a/train of Kueue has 1 members on other nodes" in plan.why
    assert 'gang = "whole"' in plan.why


def test_a_gang_that_is_all_here_goes_by_default() -> None:
    """Nobody elsewhere is left waiting; pending and finished members are none."""
    others = [member("pending", ""), member("over", "n2", phase="Succeeded")]
    assert drained([member("a"), member("b")], others, rule(GangMode.WAIT)) == [
        ("a", PodState.EVICT),
        ("b", PodState.EVICT),
    ]


def test_members_alone_are_evicted_where_the_job_goes_on_without_them() -> None:
    """An elastic job: nobody else is even looked at."""
    here = [member("a")]
    assert gangs_to_see(planned(here, [rule(GangMode.MEMBERS)], drain(), SINCE), [rule(GangMode.MEMBERS)], MARKS) == ()
    assert drained(here, [member("b", "n2")], rule(GangMode.MEMBERS)) == [("a", PodState.EVICT)]


def test_whole_means_every_member_wherever_it_runs_and_those_elsewhere_first() -> None:
    """Should one elsewhere be refused, the one here is still there to ask again for."""
    found = plans([member("a"), pod("alone")], [member("b", "n2"), member("c", "n3")], rule())
    names = [(plan.pod.metadata.name, plan.state) for plan in found]
    assert names == [
        ("b", PodState.EVICT),
        ("c", PodState.EVICT),
        ("a", PodState.EVICT),
        ("alone", PodState.EVICT),
    ]
    assert found[0].why == "rule r, with gang team-a/train of Kueue"
    assert found[-1].why == "rule r"


@pytest.mark.parametrize(
    ("here", "elsewhere", "words"),
    [
        (
            [member("a")],
            [member("b", "n2", ownerReferences=None)],
            "team-a/b forbidden: no controller would recreate it",
        ),
        ([member("a")], [member("b", "n2", labels={GROUP: "train"})], "team-a/b waits: it runs until it ends"),
        ([member("a"), member("x", ownerReferences=None)], [], "team-a/x forbidden"),
    ],
)
def test_one_member_that_may_not_go_holds_all_of_them(here: list[Pod], elsewhere: list[Pod], words: str) -> None:
    """Elsewhere or here: a rule must let every one of them go, or none goes."""
    found = plans(here, elsewhere, rule(labels={"app": "x"}))
    assert PodState.EVICT not in [plan.state for plan in found]
    assert "is evicted whole or not at all" in found[0].why
    assert words in found[0].why


def test_what_is_on_its_way_out_holds_up_nobody() -> None:
    """A member elsewhere that is being deleted was asked for in the round before."""
    leaving = member("b", "n2", deletionTimestamp="2026-11-21T10:00:00Z")
    assert drained([member("a")], [leaving], rule()) == [("a", PodState.EVICT)]
    assert drained([member("a")], [leaving], rule(GangMode.WAIT)) == [("a", PodState.EVICT)]


def test_a_gang_s_next_life_is_not_ours_to_end() -> None:
    """A pod that was made after the node went out: its job has begun anew, and must not be ended round by round."""
    born = member("b-2", "n2", made="2026-11-21T10:00:01Z")
    assert drained([member("a")], [born], rule()) == [("a", PodState.EVICT)]


def test_a_gang_that_waits_is_not_torn_apart_because_a_member_is_young() -> None:
    """A worker that its owner made anew elsewhere runs in the same gang."""
    born = member("b-2", "n2", made="2026-11-21T10:00:01Z")
    assert drained([member("a")], [born], rule(GangMode.WAIT)) == [("a", PodState.WAITS)]


def test_a_deadline_is_the_gang_s_as_well() -> None:
    """Before it all wait, after it all go."""
    late = rule(mode=EvictMode.COMPLETE, after_s=600.0)
    here, elsewhere = [member("a")], [member("b", "n2")]
    assert drained(here, elsewhere, late) == [("a", PodState.WAITS)]
    assert drained(here, elsewhere, late, now=SINCE + timedelta(seconds=601)) == [
        ("b", PodState.EVICT),
        ("a", PodState.EVICT),
    ]


def test_what_stays_is_no_member() -> None:
    """A finished member, and one of a DaemonSet, hold nobody up."""
    stays = [
        member("done", phase="Succeeded"),
        member("ds", ownerReferences=[{"kind": "DaemonSet", "controller": True}]),
    ]
    found = dict(drained([member("a"), *stays], [member("b", "n2")], rule()))
    assert found == {
        "b": PodState.EVICT,
        "a": PodState.EVICT,
        "done": PodState.STAYS,
        "ds": PodState.STAYS,
    }
