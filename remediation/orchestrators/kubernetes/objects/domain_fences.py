"""The fence of an NVLink domain as a taint of its Nodes, and what of it is written down. Pure.

    taint healthd.io/domain-fence=<incident>  keeps new pods off; no agent may set or remove it
    annotation healthd.io/fences              of the Lease healthd-incidents: each fence with its domain, and the UID
                                              that each Node had when it was tainted

Many taints are no act as a whole, so a fence is written down before its first taint: what is missing after a crash is
known, and so is a taint that an operator removed. A Node that is registered again has another UID and is tainted again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from healthd.core.encodable import NOT_JSON
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, Taint, with_taints_patch
from healthd.remediation.ports import ListedNode
from healthd.remediation.records.domain_fence import KUBE_TAINT, DomainFence

FENCES = "healthd.io/fences"
"""The annotation's key. Its Lease is that of the notices, ``incident_notes.INCIDENTS_LEASE``."""
NOT_YET = ""
"""The UID of a Node that is not tainted yet."""


class WrittenFence(msgspec.Struct, frozen=True, kw_only=True):
    """One fence as it is written down. ``nodes``: name to the UID of the Node that was tainted, or ``NOT_YET``."""

    domain: str
    incident: str
    nodes: dict[str, str]

    def tainted(self, done: Mapping[str, str]) -> WrittenFence:
        """The same, once the Nodes of these UIDs are tainted."""
        return msgspec.structs.replace(self, nodes={**self.nodes, **done})

    def is_due(self, node: KubeNode) -> bool:
        """Whether this Node is still to be tainted: not where an operator removed the taint."""
        return node.name in self.nodes and self.nodes[node.name] != node.uid and node.taint(KUBE_TAINT) is None


_READS = msgspec.json.Decoder(tuple[WrittenFence, ...])  # made by one thread, see ``node``


def begun(fence: DomainFence) -> WrittenFence:
    """A fence of which no Node is tainted yet."""
    nodes = dict.fromkeys(sorted(fence.nodes | fence.missing), NOT_YET)
    return WrittenFence(domain=fence.domain, incident=fence.incident, nodes=nodes)


def fences_text(fences: Iterable[WrittenFence]) -> str:
    """The annotation with these fences."""
    return msgspec.json.encode(sorted(fences, key=lambda each: each.incident)).decode()


def fences_in(text: str) -> tuple[WrittenFence, ...]:
    """The fences in an annotation; none in a text that is none of a controller's: the taints still show them."""
    try:
        return _READS.decode(text) if text else ()
    except NOT_JSON:
        return ()


def domain_fences(
    nodes: Iterable[KubeNode], listed: Iterable[ListedNode], written: Iterable[WrittenFence]
) -> tuple[DomainFence, ...]:
    """The fences as they stand. One without a node is one whose taints an operator removed. A taint that is not written
    down is a fence too, of the domain that most of its nodes are in: else nothing would ever lift it."""
    of, group = {each.name: each for each in nodes}, {each.name: each.group for each in listed}
    there = defaultdict[str, set[str]](set)
    for name, node in of.items():
        if (incident := incident_of(node)) is not None:
            there[incident].add(name)
    known = {each.incident: each for each in written}
    found = [
        DomainFence(
            domain=each.domain,
            incident=each.incident,
            nodes=frozenset(there.get(each.incident, ())),
            missing=frozenset(name for name in each.nodes if name in of and each.is_due(of[name])),
        )
        for each in known.values()
    ]
    for incident in sorted(there.keys() - known.keys()):
        names = there[incident]
        domain = Counter(group.get(name, "") for name in sorted(names)).most_common(1)[0][0]
        found.append(DomainFence(domain=domain or incident, incident=incident, nodes=frozenset(names)))
    return tuple(found)


def incident_of(node: KubeNode) -> str | None:
    """The incident that a Node is fenced for with its domain, or None."""
    taint = node.taint(KUBE_TAINT)
    return taint.value if taint is not None else None


def domain_fence_patch(node: KubeNode, incident: str) -> dict[str, Any]:
    """The patch that fences a Node with its domain."""
    return with_taints_patch(node, (*node.taints, Taint(key=KUBE_TAINT, value=incident, effect="NoSchedule")))


def domain_release_patch(node: KubeNode, incident: str) -> dict[str, Any] | None:
    """The patch that removes the fence of this incident and nothing else; None where it is not there."""
    kept = tuple(each for each in node.taints if (each.key, each.value) != (KUBE_TAINT, incident))
    return with_taints_patch(node, kept) if kept != node.taints else None
