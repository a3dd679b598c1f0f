"""The restart of a node's device plugin after a GPU reset: the node's agent requests it, the controller evicts the pod.

NVIDIA's device plugin marks a GPU unhealthy once the driver has reported an error of it, and only its own restart ends
that (k8s-device-plugin, internal/rm/health.go): pods find fewer GPUs than there are, although the reset repaired them.
The agent asks once per reset, by an annotation of its own Node; the controller evicts the plugin's pod of that node, by
its uid, and the DaemonSet makes another.

The controller ignores a request that is over an hour old, of a node that opted out, or of one whose GPUs the plugin
counts as healthy. It evicts once per reset, once per node within ten minutes, and for at most ten nodes in that time. A
request is no permission: a hostile agent gets no more than the restart of its own node's plugin, once in a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from healthd.core.errors import BackendBusy, BackendError
from healthd.remediation.decide.rules import by_feature
from healthd.remediation.orchestrators.kubernetes.api import Conflict, Disrupting, KubeApi, Missing, ResourceKind
from healthd.remediation.orchestrators.kubernetes.objects.eviction import (
    Plan,
    Pod,
    PodState,
    eviction_of,
    owner_of,
    pods_in,
)
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, features_of, node_of

ASKED = "healthd.io/restart-device-plugin"
AT_ONCE, WITHIN_S = 10, 600.0
"""At most so many nodes' plugins are restarted within so many seconds, and one node's once."""

_SETTLE_S = 30.0  # a plugin that sees its GPUs again by itself has said so by then; the kubelet writes every 10 s
_OLD_S = 3600.0


class Asked(Struct, frozen=True, kw_only=True):
    """The request in a Node's annotation. ``reset``: one word that names the reset; ``at``: by the clock of its
    agent."""

    reset: str
    at: datetime


def asked_of(node: KubeNode) -> Asked | None:
    """The request on a Node; None without a valid one."""
    reset, _, at = node.annotations.get(ASKED, "").partition(" ")
    if not (reset and at.isdecimal() and len(at) <= 11):
        return None
    return Asked(reset=reset, at=datetime.fromtimestamp(int(at), UTC))


def asking_patch(reset: str, at: datetime) -> dict[str, Any]:
    """The patch of a Node by which its agent asks. It replaces an older request."""
    return {"metadata": {"annotations": {ASKED: f"{reset} {int(at.timestamp())}"}}}


def the_plugin(pods: Iterable[Pod], node: str) -> Pod | str:
    """The one pod of the plugin on this node, or why it cannot be determined."""
    there = [pod for pod in pods if pod.spec.nodeName == node and not pod.is_over]
    there = [pod for pod in there if (owner := owner_of(pod)) is not None and owner.kind == "DaemonSet"]
    if not there:
        return "no pod of a DaemonSet on the node matches [orchestrator.kubernetes] device_plugin"
    if len(there) > 1:
        names = ", ".join(pod.name for pod in there)
        return (
            f"{len(there)} pods on the node match [orchestrator.kubernetes] device_plugin ({names}): make it match one"
        )
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
        self._done: dict[str, tuple[str, str]] = {}  # node to (reset, its result)

    def sync(self, nodes: Mapping[str, KubeNode]) -> Mapping[str, str]:
        """Handle the request of every node; the results. A node whose request fails delays no other."""
        self._done = {name: done for name, done in self._done.items() if name in nodes}
        answer = {}
        for name in sorted(nodes):
            if (asked := asked_of(nodes[name])) is None or not self._is_due(asked):
                continue
            known = self._done.get(name)
            try:
                message = known[1] if known and known[0] == asked.reset else self._restarted(nodes[name], asked)
            except BackendError as error:
                message = f"not restarted: {error}"
            if message:
                answer[name] = f"device plugin, after reset {asked.reset}: {message}"
        return answer

    def _is_due(self, asked: Asked) -> bool:
        return _SETTLE_S <= (self._clock() - asked.at).total_seconds() < _OLD_S

    def _restarted(self, node: KubeNode, asked: Asked) -> str:
        """The result of this request in this sync; "" while the plugin counts all GPUs as healthy."""
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
            return f"{plugin.name} was restarted and still counts {lost} as unhealthy: an operator is needed"
        return self._evicted(node.name, asked, plugin)

    def _evicted(self, name: str, asked: Asked, plugin: Pod) -> str:
        """Request the eviction once, if the Node has not changed."""
        node = node_of(self._api.get(ResourceKind.NODE, name))
        if by_feature(features_of(node), self._opt_out_label):
            return "not restarted: the node opted out"
        if asked_of(node) != asked or not node.lacking:
            return ""
        self._leads()
        self._acts.append((self._monotonic_s(), name))
        meta, plan = plugin.metadata, Plan(pod=plugin, state=PodState.EVICT, why="")
        try:
            self._api.evict(meta.name, namespace=meta.namespace, body=eviction_of(plan))
        except (Missing, Conflict, BackendBusy) as error:
            self._acts.pop()  # answered: it was not evicted, and the next sync may ask again
            match error:
                case Disrupting():
                    return f"not restarted yet: its PodDisruptionBudget allows no disruption now: {error}"
                case BackendBusy():
                    return f"not restarted yet: {error}"
            return f"{plugin.name} is gone already"
        message = f"{plugin.name} was evicted for its restart"
        self._done[name] = (asked.reset, message)
        return message

    def _too_many(self, name: str) -> str:
        now_s = self._monotonic_s()
        while self._acts and now_s - self._acts[0][0] >= WITHIN_S:
            self._acts.popleft()
        if any(other == name for _, other in self._acts):
            return f"it was restarted less than {WITHIN_S:g} s ago"
        if len(self._acts) >= AT_ONCE:
            return f"{len(self._acts)} device plugins were restarted within {WITHIN_S:g} s, the limit"
        return ""


def _is_younger(plugin: Pod, asked: Asked) -> bool:
    made = plugin.metadata.creationTimestamp
    return made is not None and made > asked.at
