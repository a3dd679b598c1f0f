"""Troubles that page although no node requested anything: each as a node status, and as an Event. Pure.

Many nodes with one trouble at once have one cause: they page together, in one sentence, and each still has its own
status. The API server deletes an Event after an hour, so the Event is written again while its trouble lasts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from healthd.core.model import ClusterTrouble
from healthd.core.name_lists import listed
from healthd.remediation.controller.node_status import NodeStatus
from healthd.remediation.orchestrators.kubernetes.objects.events import ClusterEvent, event_name

MANY = 10
"""More nodes than this with one trouble page together."""
AGAIN_S = 3_600.0
"""How long the API server keeps an Event by default, in seconds (kube-apiserver, --event-ttl)."""
AT_ONCE = 20
"""The most Events that one sync writes; the others follow in the next."""

REASONS: Mapping[ClusterTrouble, str] = {
    ClusterTrouble.AGENT_SILENT: "AgentSilent",
    ClusterTrouble.NODE_DOWN: "NodeDown",
    ClusterTrouble.NO_CLAIM: "TaintWithoutClaim",
    ClusterTrouble.LEFT_FENCE: "FenceWithoutClaim",
    ClusterTrouble.NO_TAINT: "ClaimWithoutTaint",
    ClusterTrouble.ODD_CLAIM: "OddClaim",
    ClusterTrouble.STRAY_CLAIM: "ClaimOutsideItsScope",
    ClusterTrouble.ODD_RECORD: "OddHandoffRecord",
    ClusterTrouble.UNCOVERED: "HeldOutsideSelector",
}
"""The Event's reason for each trouble of a node. A drain has Events of its own; the policies belong to no node."""

_WORDS = {
    ClusterTrouble.AGENT_SILENT: "nodes are Ready, but their healthd reports nothing; check the pods of its DaemonSet",
    ClusterTrouble.NODE_DOWN: "nodes are not Ready, and healthd has no part in it; check what they have in common",
    ClusterTrouble.UNCOVERED: "nodes that healthd drained match no [controller] selector; correct the selector",
}


class ClusterFinding(Struct, frozen=True, kw_only=True):
    """One trouble. ``node`` "": of the cluster. ``message``: the message for the operator, with the next step."""

    node: str
    trouble: ClusterTrouble
    message: str


def statuses_of(found: Sequence[ClusterFinding]) -> tuple[NodeStatus, ...]:
    """The node status of each trouble, and one for each trouble that many nodes share."""
    counts = Counter(each.trouble for each in found if each.trouble in _WORDS)
    many = {trouble for trouble, count in counts.items() if count > MANY}
    each_one = [
        NodeStatus(node=each.node, message=each.message, page=each.trouble not in many, troubles=(each.trouble,))
        for each in found
    ]
    return (*each_one, *(_together(trouble, found) for trouble in sorted(many)))


def news_of_trouble(found: ClusterFinding, uid: str) -> ClusterEvent | None:
    """The Event for a trouble of the Node with this UID, or None where the trouble has none."""
    reason = REASONS.get(found.trouble)
    return None if reason is None else ClusterEvent(reason=reason, action="Watch", about=uid, note=found.message)


class EventsDue:
    """Selects the Events that are due. No clock and no I/O; times are monotonic."""

    def __init__(self) -> None:
        self._next_s: dict[str, float] = {}

    def due(self, news: Iterable[tuple[str, ClusterEvent]], now_s: float) -> list[tuple[str, ClusterEvent]]:
        """Events that are new, or were written ``AGAIN_S`` ago, as (node, Event). A trouble that is over is dropped."""
        wanted = {event_name(node, each): (node, each) for node, each in news}
        self._next_s = {name: at_s for name, at_s in self._next_s.items() if name in wanted}
        late = [both for name, both in wanted.items() if now_s >= self._next_s.get(name, now_s)]
        return late[:AT_ONCE]

    def told(self, node: str, news: ClusterEvent, now_s: float) -> None:
        """Note that the API server has this Event."""
        self._next_s[event_name(node, news)] = now_s + AGAIN_S


def _together(trouble: ClusterTrouble, found: Collection[ClusterFinding]) -> NodeStatus:
    names = sorted(each.node for each in found if each.trouble is trouble)
    message = f"{len(names)} {_WORDS[trouble]} ({listed(names, MANY)})"
    return NodeStatus(node="", message=message, page=True, troubles=(trouble,))
