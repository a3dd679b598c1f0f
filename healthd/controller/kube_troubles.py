"""What pages of a node, or of the cluster, although nothing was asked: as a standing, and as an Event. Pure.

Many nodes with one trouble at once have one cause: they page together, in one sentence, and are each shown for what
they are. An Event is forgotten by the API server after an hour, so it is told again while its trouble stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from healthd.core.model import ClusterTrouble
from healthd.remediation.controller.node_status import NodeStatus
from healthd.remediation.orchestrators.kubernetes.events import ClusterEvent, event_name

MANY = 10
"""More nodes than that page together."""
AGAIN_S = 3_600.0
"""How long the API server keeps an Event by default, in seconds (kube-apiserver, --event-ttl)."""
AT_ONCE = 20
"""So many Events are told in one round; the others in the next."""

REASONS: Mapping[ClusterTrouble, str] = {
    ClusterTrouble.AGENT_SILENT: "AgentSilent",
    ClusterTrouble.NODE_DOWN: "NodeDown",
    ClusterTrouble.NO_CLAIM: "TaintWithoutClaim",
    ClusterTrouble.LEFT_FENCE: "FenceWithoutClaim",
    ClusterTrouble.NO_TAINT: "ClaimWithoutTaint",
    ClusterTrouble.ODD_CLAIM: "OddClaim",
    ClusterTrouble.STRAY_CLAIM: "ClaimOutsideItsScope",
    ClusterTrouble.ODD_MARK: "OddHandoffRecord",
    ClusterTrouble.UNCOVERED: "HeldOutsideSelector",
}
"""The Event of each trouble of a node; a drain has Events of its own, and the policies are of no node."""

_WORDS = {
    ClusterTrouble.AGENT_SILENT: "nodes are Ready, and healthd there is silent: see the pods of its DaemonSet",
    ClusterTrouble.NODE_DOWN: "nodes are not Ready, and nothing was asked for them: look at what they share",
    ClusterTrouble.UNCOVERED: "nodes are out by healthd, and no controller looks after them: see [controller] selector",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterFinding:
    """One trouble. ``node`` "": of the cluster. ``said``: for an operator, with the next step."""

    node: str
    trouble: ClusterTrouble
    said: str


def standings_of(found: Sequence[ClusterFinding]) -> tuple[NodeStatus, ...]:
    """Each of them as it pages."""
    counts = Counter(each.trouble for each in found if each.trouble in _WORDS)
    many = {trouble for trouble, count in counts.items() if count > MANY}
    each_one = [
        NodeStatus(node=each.node, said=each.said, page=each.trouble not in many, troubles=(each.trouble,))
        for each in found
    ]
    return (*each_one, *(_together(trouble, found) for trouble in sorted(many)))


def news_of_trouble(found: ClusterFinding, uid: str) -> ClusterEvent | None:
    """The Event of a trouble of the Node of this UID, or None where it has none."""
    reason = REASONS.get(found.trouble)
    return None if reason is None else ClusterEvent(reason=reason, action="Watch", about=uid, note=found.said)


class EventsDue:
    """Which Events are to be told now. No clock and no I/O; times are monotonic."""

    def __init__(self) -> None:
        self._next_s: dict[str, float] = {}

    def due(self, news: Iterable[tuple[str, ClusterEvent]], now_s: float) -> list[tuple[str, ClusterEvent]]:
        """Those that are new, or were told ``AGAIN_S`` ago, as (node, news). What is over is forgotten."""
        wanted = {event_name(node, each): (node, each) for node, each in news}
        self._next_s = {name: at_s for name, at_s in self._next_s.items() if name in wanted}
        late = [both for name, both in wanted.items() if now_s >= self._next_s.get(name, now_s)]
        return late[:AT_ONCE]

    def told(self, node: str, news: ClusterEvent, now_s: float) -> None:
        """The API server has it."""
        self._next_s[event_name(node, news)] = now_s + AGAIN_S


def _together(trouble: ClusterTrouble, found: Collection[ClusterFinding]) -> NodeStatus:
    names = sorted(each.node for each in found if each.trouble is trouble)
    shown = f"{', '.join(names[:MANY])} and {len(names) - MANY} more"
    return NodeStatus(node="", said=f"{len(names)} {_WORDS[trouble]} ({shown})", page=True, troubles=(trouble,))
