"""How it stands with the nodes that ``healthd controller`` looks after: what it says of each, and what it counts.

It decides nothing. Counts are of one process, for the metrics page; what must be remembered is in records and on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import ClusterTrouble, Refusal, Remedy
from healthd.remediation.decide.remediation import End, Remediation
from healthd.remediation.engine.step_result import EngineStats


class RepairState(StrEnum):
    """How far the controller is with a node: the word beside the sentence, for a metric that cannot grow."""

    WAITS = "waits"  # it asked for a repair, which is not begun yet
    REPAIR = "repair"  # its platform was asked, and the evidence is awaited
    DONE = "done"
    REFUSED = "refused"
    SILENT = "silent"  # it did not come back from its reboot
    LEFT_ALONE = "left_alone"  # opted out, or it speaks for itself again
    OTHER = "other"  # nothing was asked: a drain, a plugin, what does not fit together


STATES: Mapping[End | None, RepairState] = {
    **dict.fromkeys(End, RepairState.REFUSED),
    None: RepairState.REPAIR,
    End.DONE: RepairState.DONE,
}
"""Where a request stands whose remediation ended so."""


class NodeStatus(Struct, frozen=True, kw_only=True):
    """How it stands with one node, in one sentence; ``node`` "": with the cluster. ``page``: an operator has to know.

    ``refusal``: what it waits for, or why it was refused. ``troubles``: what else pages.
    """

    node: str
    message: str
    remedy: Remedy | None = None
    machine: str = ""
    page: bool = False
    state: RepairState = RepairState.OTHER
    refusal: Refusal | None = None
    troubles: tuple[ClusterTrouble, ...] = ()

    @property
    def is_acted_on(self) -> bool:
        """Whether its request is repaired, waits, or pages here. A node that is left alone, or whose request no daemon
        has renewed in time, may be silent for ever."""
        is_over = self.state is RepairState.LEFT_ALONE or self.refusal is Refusal.LATE
        return self.remedy is not None and not is_over


def merged(statuses: Sequence[NodeStatus]) -> tuple[NodeStatus, ...]:
    """One status of each node and of the cluster, sorted by name: the request for its machine first, then the rest."""
    found: dict[str, NodeStatus] = {}
    for each in sorted(statuses, key=lambda each: (each.node, each.remedy is None)):
        known = found.get(each.node)
        found[each.node] = each if known is None else _both(known, each)
    return tuple(found.values())


def _both(known: NodeStatus, each: NodeStatus) -> NodeStatus:
    message, troubles = f"{known.message}; {each.message}", tuple(dict.fromkeys((*known.troubles, *each.troubles)))
    return replace(known, message=message, page=known.page or each.page, troubles=troubles)


class RecentStatus:
    """How it stood with each request when its platform was asked last, which is not in every sync: at most once in
    ``every_s`` seconds."""

    def __init__(self, every_s: float, monotonic_s: Callable[[], float]) -> None:
        self._every_s, self._monotonic_s = every_s, monotonic_s
        self._last: dict[str, tuple[float, NodeStatus]] = {}

    def lately(self, request: str) -> NodeStatus | None:
        """As the last reading found it; None where another is due."""
        at_s, status = self._last.get(request, (float("-inf"), None))
        return status if self._monotonic_s() - at_s < self._every_s else None

    def keep(self, requests: Collection[str]) -> None:
        """Forget the requests that stand no more."""
        self._last = {request: last for request, last in self._last.items() if request in requests}

    def note(self, request: str, status: NodeStatus) -> NodeStatus:
        """It was looked at just now."""
        self._last[request] = (self._monotonic_s(), status)
        return status


class RepairStats:
    """The counts of one controller since its process began."""

    def __init__(self) -> None:
        self.stats = EngineStats()
        self.answered: Counter[RepairState] = Counter()
        """The states of requests, each counted once when it is new."""
        self._counted: dict[str, tuple[str, NodeStatus]] = {}

    def count(self, request: str, status: NodeStatus) -> None:
        """Count what became of a request by its id, where that is new."""
        known = self._counted.get(status.node)
        before = known[1] if known is not None and known[0] == request else None
        if before is None or before.state is not status.state:
            self.answered[status.state] += 1
        if before is None or (before.state, before.refusal) != (status.state, status.refusal):
            self.stats.refuse(status.refusal)
        self._counted[status.node] = (request, status)

    def before(self, node: str, request: str) -> tuple[RepairState, bool]:
        """Where a request stood that could not be looked at this time, and whether an operator was needed: no answer is
        no news."""
        known = self._counted.get(node)
        return (
            (known[1].state, known[1].page) if known is not None and known[0] == request else (RepairState.WAITS, False)
        )

    def keep(self, nodes: Collection[str]) -> None:
        """Forget the nodes that have no record any more. One that asks for nothing is kept: where its own write took
        the answer away, the same answer is written again, and is no other."""
        self._counted = {node: counted for node, counted in self._counted.items() if node in nodes}

    def time(self, before: Remediation | None, after: Remediation, now: datetime) -> None:
        """Time the one act of a remediation. One that was given up is over from here: the controller watches it no
        more."""
        if before is not None:
            self.stats.time(before, after if after.end is None else replace(after, end=End.DONE), now)
