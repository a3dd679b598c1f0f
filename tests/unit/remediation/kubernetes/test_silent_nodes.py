"""Whose silence pages, and from when on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from healthd.core.model import ClusterTrouble
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, node_of
from healthd.remediation.orchestrators.kubernetes.objects.silent_nodes import (
    KEPT_NODES,
    SilenceKind,
    Silences,
    Watched,
    beat_of,
    quiet_nodes,
    silence_message,
    silent_in,
    silent_text,
)

BEAT = "2026-11-23T05:00:00Z"
HOLD = '{"text": "healthd: x", "by": "healthd", "stamp": 1, "cordoned": true}'
WATCHED = Watched(all_nodes=False, named=(), acted_on=(), tolerated=(), opt_out_label="healthd.io/opt-out")
SILENT, DOWN = (
    SilenceKind(trouble=ClusterTrouble.AGENT_SILENT, beat=BEAT),
    SilenceKind(trouble=ClusterTrouble.NODE_DOWN),
)


def node(*taints: str, ready: str = "True", beat: str = BEAT, spec: Any = None, **meta: Any) -> KubeNode:
    """n1 with the conditions of an agent; ``beat`` "": without."""
    ours = [{"type": "HealthdGPU", "status": "True", "lastHeartbeatTime": beat}] if beat else []
    listed = [{"key": key, "effect": "NoSchedule"} for key in taints]
    return node_of(
        {
            "metadata": {"name": "n1", **meta},
            "spec": {"taints": listed, **(spec or {})},
            "status": {"conditions": [{"type": "Ready", "status": ready}, *ours]},
        }
    )


def quiet(which: KubeNode, watched: Watched = WATCHED) -> SilenceKind | None:
    return quiet_nodes({"n1": which}, watched).get("n1")


def test_a_ready_node_would_be_silent_of_its_agent_and_another_of_itself() -> None:
    """Unknown and False alike: a kubelet that says no is no kubelet that says yes."""
    assert quiet(node()) == SILENT
    assert quiet(node(ready="Unknown")) == quiet(node(ready="False")) == DOWN


def test_a_node_that_healthd_has_nothing_to_do_with_is_not_watched() -> None:
    """Unless the selector says that every node which counts has an agent, or a claim or a handoff record names it."""
    plain = node(beat="")
    assert quiet(plain) is None
    assert quiet(plain, replace(WATCHED, all_nodes=True)) == SilenceKind(trouble=ClusterTrouble.AGENT_SILENT)
    assert quiet(plain, replace(WATCHED, named={"n1"})) == SilenceKind(trouble=ClusterTrouble.AGENT_SILENT)
    notes, cordoned = {"healthd.io/hold": HOLD}, {"unschedulable": True}
    assert quiet(node("healthd.io/unhealthy", beat="", ready="Unknown", spec=cordoned, annotations=notes)) == DOWN


def test_an_agent_that_is_to_write_no_conditions_is_not_silent() -> None:
    """`report = false`: another agent reports. A node that is not Ready pages all the same."""
    watched = replace(WATCHED, all_nodes=True, reports=False)
    assert quiet(node(beat=""), watched) is None
    assert quiet(node(ready="Unknown"), watched) == DOWN


@pytest.mark.parametrize(
    "which",
    [
        node(spec={"unschedulable": True}),
        node("karpenter.sh/disrupted"),
        node(labels={"healthd.io/opt-out": "true"}),
        node(deletionTimestamp=BEAT),
    ],
)
def test_what_others_have_taken_out_pages_them_not_us(which: KubeNode) -> None:
    """They know of it: a cordon, another's taint, an opt-out, a Node on its way out."""
    assert quiet(which) is None


def test_taints_that_say_the_same_change_nothing() -> None:
    """Ours, those of the node's own condition, and those that say what a node has."""
    taints = ("healthd.io/unhealthy", "healthd.io/claimed", "node.kubernetes.io/unreachable", "nvidia.com/gpu")
    assert quiet(node(*taints, ready="Unknown")) == DOWN
    assert quiet(node("node.cloudprovider.kubernetes.io/shutdown", ready="Unknown")) == DOWN, "a stopped instance"
    assert quiet(node("example.com/team"), replace(WATCHED, tolerated=("example.com/*",))) == SILENT


def test_a_node_for_which_something_is_under_way_is_not_silent() -> None:
    """Its reboot and its replacement have times of their own."""
    assert quiet(node(ready="Unknown"), replace(WATCHED, acted_on={"n1"})) is None


def test_the_latest_of_our_heartbeats_counts_and_no_others() -> None:
    """The kubelet's heartbeat says nothing of the agent."""
    assert beat_of(node()) == BEAT
    assert beat_of(node(beat="")) == ""


def test_it_pages_after_the_timeout_and_until_a_sign_of_life() -> None:
    """Another heartbeat ends it, and so does the end of the Node."""
    silences = Silences(timeout_s=600.0, gap_s=60.0, paging={})
    assert silences.silent({"n1": SILENT}, 1000.0) == {}
    for now_s in range(1060, 1600, 60):
        assert silences.silent({"n1": SILENT}, float(now_s)) == {}
    assert silences.silent({"n1": SILENT}, 1600.0) == {"n1": SILENT}
    assert silences.silent({"n1": SILENT}, 1610.0) == {"n1": SILENT}
    alive = replace(SILENT, beat="2026-11-23T05:30:00Z")
    assert silences.silent({"n1": alive}, 1620.0) == {}
    assert silences.silent({}, 1630.0) == {}


def test_a_dead_agent_pages_however_often_its_node_goes_ready_and_not_ready() -> None:
    """The seconds of both states add up until a heartbeat; a node whose agent writes in between does not page."""
    silences, alive = Silences(timeout_s=600.0, gap_s=60.0, paging={}), Silences(timeout_s=600.0, gap_s=60.0, paging={})
    paged = []
    for number in range(40):
        is_ready = number % 4 < 2
        beats = replace(SILENT, beat=f"2026-11-23T05:{number // 4:02}:00Z")
        paged.append(silences.silent({"n1": SILENT if is_ready else DOWN}, 60.0 * number))
        assert alive.silent({"n1": beats if is_ready else DOWN}, 60.0 * number) == {}
    began = next(number for number, each in enumerate(paged) if each)
    assert paged[began:] == [{"n1": SILENT if number % 4 < 2 else DOWN} for number in range(began, 40)]
    assert 10 <= began < 24


def test_a_page_for_a_node_that_was_not_ready_ends_where_it_is_ready_again() -> None:
    """Its agent has its own time to write."""
    silences = Silences(timeout_s=600.0, gap_s=60.0, paging={"n1": DOWN})
    assert silences.silent({"n1": DOWN}, 0.0) == {"n1": DOWN}
    assert silences.silent({"n1": SILENT}, 60.0) == silences.silent({"n1": SILENT}, 120.0) == {}


def test_a_cluster_without_policies_begins_again_once_they_were_there() -> None:
    """Such a state is no silence of a node: what it was before says nothing of now."""
    silences = Silences(timeout_s=600.0, gap_s=600.0, paging={})
    uncovered = SilenceKind(trouble=ClusterTrouble.UNCOVERED)
    assert silences.silent({"n1": uncovered}, 0.0) == {}
    assert silences.silent({"n1": DOWN}, 300.0) == {}
    assert silences.silent({"n1": uncovered}, 600.0) == {}
    assert silences.silent({"n1": uncovered}, 1200.0) == {"n1": uncovered}


def test_what_was_not_seen_does_not_count() -> None:
    """While the API server answered nobody, no agent could write."""
    silences = Silences(timeout_s=600.0, gap_s=60.0, paging={})
    silences.silent({"n1": SILENT}, 0.0)
    assert silences.silent({"n1": SILENT}, 7200.0) == {}
    assert silences.silent({"n1": SILENT}, 7260.0) == {}


def test_the_next_leader_goes_on_with_what_paged() -> None:
    """It neither says that it is over nor begins anew; what makes no sense is no page."""
    kept = silent_text({"n1": SILENT, "": SilenceKind(trouble=ClusterTrouble.NO_POLICIES)})
    silences = Silences(timeout_s=600.0, gap_s=60.0, paging=silent_in(kept))
    assert silences.silent({"n1": SILENT, "n2": DOWN}, 5.0) == {"n1": SILENT}
    assert silent_in("") == silent_in("garbage") == silent_in('{"n1": 1}') == {}
    assert silent_text({}) == ""
    assert len(silent_in(silent_text({f"n{number}": SILENT for number in range(2 * KEPT_NODES)}))) == KEPT_NODES


def test_the_words_name_the_next_step() -> None:
    """Where to look, and since when; they stay the same while it lasts."""
    assert "kubectl describe node n1" in silence_message("n1", DOWN, 600.0)
    assert BEAT in silence_message("n1", SILENT, 600.0)
    assert "no condition written yet" in silence_message("n1", replace(SILENT, beat=""), 600.0)
    uncovered = SilenceKind(trouble=ClusterTrouble.UNCOVERED)
    assert "kubectl healthd release n1 --by-hand" in silence_message("n1", uncovered, 600.0)
