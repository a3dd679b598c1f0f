"""The device plugin of a node that has had its GPUs reset: asked for by the node's agent, restarted by the controller.

NVIDIA's device plugin takes a GPU for unhealthy once the driver has reported an error of it, and has no way back but
its own restart (k8s-device-plugin, internal/rm/health.go): pods find fewer GPUs than there are, although the reset
mended them. The agent asks once per reset, by an annotation of its own Node; a controller evicts the plugin's pod of
that node, by its uid, and the DaemonSet makes another.

Nothing is done that is not asked for, is over an hour old, concerns a node that opted out, or whose GPUs the plugin
counts as healthy; nor twice for one reset, twice on one node within ten minutes, or for more than ten nodes in that
time. The agent's word is no permission: the worst that a hostile one gets is that of its own node, once in a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from healthd.core.errors import BackendBusy, BackendError
from healthd.remediation.decide.rules import by_feature
from healthd.remediation.orchestrators.kubernetes.api import Conflict, Disrupting, KubeApi, Missing, ResourceKind
from healthd.remediation.orchestrators.kubernetes.eviction import Fate, Plan, Pod, eviction_of, owner_of, pods_in
from healthd.remediation.orchestrators.kubernetes.node import KubeNode, features_of, node_of

ASKED = "healthd.io/restart-device-plugin"
AT_ONCE, WITHIN_S = 10, 600.0
"""At most so many nodes' plugins are restarted within so many seconds, and one node's once."""

_SETTLE_S = 30.0  # a plugin that sees its GPUs again by itself has said so by then; the kubelet writes every 10 s
_OLD_S = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a Node's annotation asks. ``reset``: one word that names the reset; ``at``: by the clock of its agent."""

    reset: str
    at: datetime


def asked_of(node: KubeNode) -> Asked | None:
    """The request at a Node; None where there is none that makes sense."""
    reset, _, at = node.annotations.get(ASKED, "").partition(" ")
    if not (reset and at.isdecimal() and len(at) <= 11):
        return None
    return Asked(reset=reset, at=datetime.fromtimestamp(int(at), UTC))


def asking_patch(reset: str, at: datetime) -> dict[str, Any]:
    """The patch of a Node by which its agent asks. An older request makes way."""
    return {"metadata": {"annotations": {ASKED: f"{reset} {int(at.timestamp())}"}}}


def the_plugin(pods: Iterable[Pod], node: str) -> Pod | str:
    """The one pod of the plugin on this node, or why there is none that could be meant."""
    there = [pod for pod in pods if pod.spec.nodeName == node and not pod.is_over]
    there = [pod for pod in there if (owner := owner_of(pod)) is not None and owner.kind == "DaemonSet"]
    if not there:
        return "no pod of a DaemonSet on it fits [orchestrator.kubernetes] device_plugin"
    if len(there) > 1:
        names = ", ".join(pod.name for pod in there)
        return f"{len(there)} pods on it fit [orchestrator.kubernetes] device_plugin ({names}): name one"
    return there[0]


class KubePlugins:
    """The device plugins of a fleet, as one controller restarts them.

    ``selector``: of the plugin's pods, in ``namespace``. ``leads`` raises BackendRefused where this controller may not
    act any more. ``clock`` gives aware UTC, ``monotonic_s`` what the rate is counted by.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        selector: str,
        namespace: str,
        leads: Callable[[], None],
        clock: Callable[[], datetime],
        monotonic_s: Callable[[], float],
        opt_out_label: str = "",
    ) -> None:
        self._api, self._selector, self._namespace, self._leads = api, selector, namespace, leads
        self._clock, self._monotonic_s, self._opt_out_label = clock, monotonic_s, opt_out_label
        self._acts: deque[tuple[float, str]] = deque()
        self._done: dict[str, tuple[str, str]] = {}  # node to (reset, what was said)

    def round(self, nodes: Mapping[str, KubeNode]) -> Mapping[str, str]:
        """Look at every node that asks, and say what came of it. One that cannot be helped holds up no other."""
        self._done = {name: done for name, done in self._done.items() if name in nodes}
        said = {}
        for name in sorted(nodes):
            if (asked := asked_of(nodes[name])) is None or not self._is_due(asked):
                continue
            known = self._done.get(name)
            try:
                words = known[1] if known and known[0] == asked.reset else self._restarted(nodes[name], asked)
            except BackendError as error:
                words = f"not restarted: {error}"
            if words:
                said[name] = f"device plugin, after reset {asked.reset}: {words}"
        return said

    def _is_due(self, asked: Asked) -> bool:
        return _SETTLE_S <= (self._clock() - asked.at).total_seconds() < _OLD_S

    def _restarted(self, node: KubeNode, asked: Asked) -> str:
        """What came of this request in this round; "" while the plugin counts all GPUs as healthy."""
        if not node.lacking:
            return ""
        if why := self._too_many(node.name):
            return f"not restarted yet: {why}"
        pages = self._api.pages(
            ResourceKind.POD,
            pods_in,
            namespace=self._namespace,
            labelSelector=self._selector,
            fieldSelector=f"spec.nodeName={node.name}",
        )
        plugin = the_plugin([pod for page in pages for pod in page], node.name)
        if isinstance(plugin, str):
            return f"not restarted: {plugin}"
        if plugin.metadata.deletionTimestamp is not None:
            return f"{plugin.name} is being deleted"
        if _is_younger(plugin, asked):
            lost = ", ".join(f"{count} of {name}" for name, count in sorted(node.lacking.items()))
            return f"{plugin.name} has begun since, and still counts {lost} as unhealthy: a person has to look"
        return self._evicted(node.name, asked, plugin)

    def _evicted(self, name: str, asked: Asked, plugin: Pod) -> str:
        """Ask once, if the Node is as it was."""
        node = node_of(self._api.get(ResourceKind.NODE, name))
        if by_feature(features_of(node), self._opt_out_label):
            return "not restarted: the node opted out"
        if asked_of(node) != asked or not node.lacking:
            return ""
        self._leads()
        self._acts.append((self._monotonic_s(), name))
        meta, plan = plugin.metadata, Plan(pod=plugin, fate=Fate.EVICT, why="")
        try:
            self._api.evict(meta.name, namespace=meta.namespace, body=eviction_of(plan))
        except (Missing, Conflict):
            return f"{plugin.name} is gone already"
        except Disrupting as error:
            return f"not restarted yet: its PodDisruptionBudget has no room: {error}"
        except BackendBusy as error:
            return f"not restarted yet: {error}"
        words = f"{plugin.name} was evicted for its restart"
        self._done[name] = (asked.reset, words)
        return words

    def _too_many(self, name: str) -> str:
        now_s = self._monotonic_s()
        while self._acts and now_s - self._acts[0][0] >= WITHIN_S:
            self._acts.popleft()
        if any(other == name for _, other in self._acts):
            return f"it was asked to less than {WITHIN_S:g} s ago"
        if len(self._acts) >= AT_ONCE:
            return f"{len(self._acts)} were within {WITHIN_S:g} s"
        return ""


def _is_younger(plugin: Pod, asked: Asked) -> bool:
    made = plugin.metadata.creationTimestamp
    return made is not None and made > asked.at
