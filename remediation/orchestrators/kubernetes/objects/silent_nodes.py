"""The nodes that have fallen silent: a Ready node whose agent writes nothing, a node that is not Ready, or a node that
is out and that no controller covers. Pure.

Only a node's own agent knows its faults, and requests its repairs. Where the agent has stopped or its machine has died,
the controller pages. An agent writes its conditions every 300 to 330 s (``conditions``), with or without a fault: their
heartbeat is its sign of life. The controller itself counts how long it has seen no new heartbeat: a node's clock that
is wrong or was set pages for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec import Struct

from healthd.core.encodable import NOT_JSON
from healthd.core.model import ClusterTrouble
from healthd.remediation.decide.rules import by_feature
from healthd.remediation.orchestrators.kubernetes.objects.conditions import TYPES
from healthd.remediation.orchestrators.kubernetes.objects.node import (
    CLAIMED,
    UNHEALTHY,
    KubeNode,
    away_by,
    features_of,
    hold_of,
)

SILENT = "healthd.io/silent"
"""The annotation of the controller's Lease that says what pages, for the next leader."""
KEPT_NODES = 300
"""Of more than that at once, the others page again after their timeout: some 30 kB of the Lease."""

_OF_KUBERNETES = ("TAINTED:node.kubernetes.io/", "TAINTED:node.cloudprovider.kubernetes.io/")
"""Of the lifecycle controllers: not-ready, unreachable, and shutdown of a stopped instance (k8s.io/cloud-provider,
api/well_known_taints.go). They say the same as the condition Ready, and no operator set them."""


class SilenceKind(Struct, frozen=True, kw_only=True):
    """The kind of a silence. ``beat``: the last heartbeat of a node's agent, "" for none; a new one ends the
    silence."""

    trouble: ClusterTrouble
    beat: str = ""


_Seconds = Mapping[ClusterTrouble, tuple[SilenceKind, float]]
"""For how long a node has been in each state."""
_ALTERNATE = frozenset({ClusterTrouble.AGENT_SILENT, ClusterTrouble.NODE_DOWN})
"""The states between which a node goes that is Ready and not Ready in turn: each keeps its time in the other."""


class Watched(Struct, frozen=True, kw_only=True):
    """The nodes whose silence pages. ``all_nodes``: every node that is counted has an agent; else those that healthd
    wrote on, and ``named``, those with a claim or a handoff record. ``acted_on``: nodes with a repair in progress.
    ``reports``: whether agents write conditions, which are their sign of life."""

    all_nodes: bool
    named: Collection[str]
    acted_on: Collection[str]
    tolerated: Collection[str] = ()
    opt_out_label: str = ""
    reports: bool = True


def quiet_nodes(nodes: Mapping[str, KubeNode], watched: Watched) -> dict[str, SilenceKind]:
    """The state of each node whose silence pages: the page comes where it does not change."""
    ours = (node for node in nodes.values() if watched.all_nodes or node.name in watched.named or _has_agent(node))
    return {
        node.name: SilenceKind(trouble=ClusterTrouble.AGENT_SILENT, beat=beat_of(node))
        if node.is_ready
        else SilenceKind(trouble=ClusterTrouble.NODE_DOWN)
        for node in ours
        if (watched.reports or not node.is_ready)
        and node.name not in watched.acted_on
        and not _is_left_alone(node, watched)
    }


def beat_of(node: KubeNode) -> str:
    """When the agent of a node wrote its conditions last, by its own clock, or ""."""
    beats = [each.lastHeartbeatTime or "" for each in node.conditions if each.type in TYPES]
    return max(beats, default="")


def silence_message(node: str, quiet: SilenceKind, timeout_s: float) -> str:
    """The message for the operator, with the next step."""
    if quiet.trouble is ClusterTrouble.NODE_DOWN:
        return (
            f"the Node has not been Ready for over {timeout_s:g} s, and no repair of its machine is requested. healthd"
            f" on the node cannot report: see `kubectl describe node {node}` and the console of the machine"
        )
    if quiet.trouble is ClusterTrouble.UNCOVERED:
        return (
            f"healthd has kept the node out, or the node has held a claim, for over {timeout_s:g} s, but [controller]"
            f" selector does not cover it: no controller counts it, drains it or answers its agent. Restore the labels"
            f" that the selector needs, or release it: kubectl healthd release {node} --by-hand"
        )
    last = f"last heartbeat {quiet.beat}" if quiet.beat else "no condition written yet"
    return (
        f"healthd on the node has been silent for over {timeout_s:g} s although the Node is Ready ({last}): its faults"
        f" go unseen. See `kubectl get pods -A --field-selector spec.nodeName={node}`, and its agent's log"
    )


class Silences:
    """For how long each node has been silent, as one controller saw it. No clock and no I/O.

    A node that goes Ready and not Ready again and again without a heartbeat of its agent is silent all the while: the
    time in each of the two states adds up, and a page for the agent lasts while the node is not Ready. A new heartbeat
    ends both.

    ``timeout_s``: the silence after which it pages. ``gap_s``: the time between two readings counts up to so many
    seconds; while the API server did not answer the controller, it answered no agent. ``paging``: the pages of the
    previous leader, which last until their cause is over.
    """

    def __init__(self, *, timeout_s: float, gap_s: float, paging: Mapping[str, SilenceKind]) -> None:
        self._timeout_s, self._gap_s = timeout_s, gap_s
        self._known: dict[str, _Seconds] = {name: {quiet.trouble: (quiet, timeout_s)} for name, quiet in paging.items()}
        self._polled_s: float | None = None

    def silent(self, quiet: Mapping[str, SilenceKind], now_s: float) -> dict[str, SilenceKind]:
        """The nodes that page now. ``now_s``: monotonic."""
        step_s = 0.0 if self._polled_s is None else now_s - self._polled_s
        counted_s = min(step_s, self._gap_s)
        self._polled_s = now_s
        self._known = {name: _counted(self._known.get(name, {}), each, counted_s) for name, each in quiet.items()}
        return {name: each for name, each in quiet.items() if _for_s(self._known[name], each) >= self._timeout_s}


def _for_s(known: _Seconds, quiet: SilenceKind) -> float:
    of_agent = known.get(ClusterTrouble.AGENT_SILENT, (quiet, 0.0))[1]
    return max(known[quiet.trouble][1], of_agent if quiet.trouble is ClusterTrouble.NODE_DOWN else 0.0)


def _counted(known: _Seconds, quiet: SilenceKind, counted_s: float) -> _Seconds:
    """The seconds in each state, after so many more in this one."""
    before, for_s = known.get(quiet.trouble, (quiet, -counted_s))
    if before != quiet:  # a heartbeat
        return {quiet.trouble: (quiet, 0.0)}
    others = {trouble: known[trouble] for trouble in _ALTERNATE & known.keys()} if quiet.trouble in _ALTERNATE else {}
    return {**others, quiet.trouble: (quiet, for_s + counted_s)}


_READS_SILENT = msgspec.json.Decoder(dict[str, SilenceKind])  # made by one thread, see ``node``


def silent_in(text: str) -> dict[str, SilenceKind]:
    """The pages that an annotation holds; none where it cannot be read: then a silence pages after its timeout."""
    try:
        return _READS_SILENT.decode(text) if text else {}
    except NOT_JSON:
        return {}


def silent_text(paging: Mapping[str, SilenceKind]) -> str:
    """The annotation that holds these pages, the first ``KEPT_NODES`` by name."""
    return msgspec.json.encode(dict(sorted(paging.items())[:KEPT_NODES])).decode() if paging else ""


def _has_agent(node: KubeNode) -> bool:
    return hold_of(node) is not None or any(node.condition(kind) is not None for kind in TYPES)


def _is_left_alone(node: KubeNode, watched: Watched) -> bool:
    """Whether a node opted out, is being deleted, or was taken out by an operator or another agent, who know of it."""
    held = hold_of(node)
    ours = {f"TAINTED:{UNHEALTHY}", f"TAINTED:{CLAIMED}", "NOTREADY"}
    ours |= {"CORDONED"} if held is not None and held.cordoned else set()
    others = {each for each in away_by(node, watched.tolerated) - ours if not each.startswith(_OF_KUBERNETES)}
    return bool(others) or bool(by_feature(features_of(node), watched.opt_out_label))
