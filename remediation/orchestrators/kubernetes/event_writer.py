"""The Events that ``healthd controller`` writes. ``reporter`` writes those of a node's own agent.

Those about a drain are written once: on the Node, and on the pod in its own namespace. A stable name makes them once:
the API server refuses a second Event of that name, also from a restarted controller.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime

from msgspec import Struct

from healthd.core.errors import BackendBusy, BackendError
from healthd.remediation.orchestrators.kubernetes.api import Conflict, Ending, KubeApi, Missing, ResourceKind
from healthd.remediation.orchestrators.kubernetes.objects.events import ClusterEvent, event_about
from healthd.remediation.orchestrators.kubernetes.objects.eviction import CAME_BACK, Drain, Plan, Pod, PodState

CONTROLLER = "healthd.io/controller"
"""The reporting controller of an Event that ``healthd controller`` writes."""
NODE_FAULT = "NodeFault"
"""The reason of an Event about a pod that a fault of its node ended."""
NODES_EVENTS = "default"
"""The namespace where the API server wants Events about objects without a namespace."""


class KubeEventWriter:
    """``leads`` raises BackendRefused where this controller may not write any more. ``clock`` gives aware UTC."""

    def __init__(self, api: KubeApi, *, leads: Callable[[], None], clock: Callable[[], datetime]) -> None:
        self._api, self._leads, self._clock, self._host = api, leads, clock, socket.gethostname()

    def of_node(self, news: ClusterEvent, *, name: str, uid: str) -> None:
        """Write an Event about a Node. Raises BackendError; Conflict where it was written before."""
        self._create(news, {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}, NODES_EVENTS)

    def of_pod(self, news: ClusterEvent, *, namespace: str, name: str, uid: str) -> None:
        """Write an Event about a pod. Raises as above."""
        pod = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
        self._create(news, pod, namespace)

    def _create(self, news: ClusterEvent, regarding: Mapping[str, str], namespace: str) -> None:
        self._leads()
        body = event_about(
            news,
            regarding=regarding,
            namespace=namespace,
            controller=CONTROLLER,
            instance=self._host,
            now=self._clock(),
        )
        self._api.create(ResourceKind.EVENT, body, namespace=namespace)


class _PodNews(Struct, frozen=True, kw_only=True):
    reason: str
    pod: Pod
    message: str


def _news(plans: Iterable[Plan], stuck: Mapping[str, str]) -> Iterator[_PodNews]:
    left = "healthd evicts a pod once per drain, and leaves it alone now"
    for plan in plans:
        if plan.state is PodState.CAME:
            yield _PodNews(reason="PodCameBack", pod=plan.pod, message=f"{CAME_BACK}; {left}")
        elif why := stuck.get(plan.pod.metadata.uid, ""):
            yield _PodNews(reason="DrainStuck", pod=plan.pod, message=f"it is still on the node: {why}")


class KubeDrainEvents:
    """The Events about drains. ``leads`` and ``clock`` as above."""

    def __init__(self, api: KubeApi, *, leads: Callable[[], None], clock: Callable[[], datetime]) -> None:
        self._telling = KubeEventWriter(api, leads=leads, clock=clock)
        # Node to (hold, the news that was written about it).
        self._reported: dict[str, tuple[str, set[tuple[str, str]]]] = {}

    def keep(self, nodes: Collection[str]) -> None:
        """Forget what was written of other nodes: their drains are over."""
        self._reported = {node: reported for node, reported in self._reported.items() if node in nodes}

    def tell(self, drain: Drain, uid: str, plans: Iterable[Plan], stuck: Mapping[str, str]) -> str:
        """Write an Event about each pod that came back or does not go, once per drain and source. ``uid``: the Node's.
        ``stuck``: uid of a pod to why it does not go. Returns why an Event could not be written, or ""."""
        reported = self._reported_of(drain)
        news = {(each.reason, each.pod.source): each for each in _news(plans, stuck)}
        try:
            for key in sorted(news.keys() - reported):
                self._tell(drain, uid, news[key])
                reported.add(key)
        except BackendBusy:
            raise
        except BackendError as error:
            return f"its Event could not be written: {error}"
        return ""

    def tell_of_fault(self, drain: Drain, fault: str, evicted: Iterable[Pod], died: Iterable[Pod]) -> str:
        """Write an Event about each pod that healthd evicted for this fault, and each that failed with it, once per
        drain. Returns why an Event could not be written, or ""."""
        went = f"evicted from {drain.node}, which has {fault}: DisruptionTarget is set, podFailurePolicy can ignore it"
        fell = f"failed on {drain.node}, which has {fault}, before healthd evicted it: its owner counts the failure"
        reported = self._reported_of(drain)
        try:
            for pod, message in (*((pod, went) for pod in evicted), *((pod, fell) for pod in died)):
                meta = pod.metadata
                if (NODE_FAULT, meta.uid) in reported:
                    continue
                about = f"{drain.record.hold} {meta.uid}"
                news = ClusterEvent(reason=NODE_FAULT, action="Drain", about=about, note=message)
                with contextlib.suppress(Conflict, Missing, Ending):  # as below
                    self._telling.of_pod(news, namespace=meta.namespace, name=meta.name, uid=meta.uid)
                reported.add((NODE_FAULT, meta.uid))
        except BackendBusy:
            raise
        except BackendError as error:
            return f"its Event could not be written: {error}"
        return ""

    def without_fault(self, drain: Drain, pods: Iterable[Pod]) -> list[Pod]:
        """Those whose Event about the fault is not written, as far as this process knows."""
        reported = self._reported_of(drain)
        return [pod for pod in pods if (NODE_FAULT, pod.metadata.uid) not in reported]

    def _reported_of(self, drain: Drain) -> set[tuple[str, str]]:
        hold, reported = self._reported.get(drain.node, ("", set[tuple[str, str]]()))
        reported = reported if hold == drain.record.hold else set()
        self._reported[drain.node] = (drain.record.hold, reported)
        return reported

    def _tell(self, drain: Drain, uid: str, news: _PodNews) -> None:
        about, meta = f"{drain.record.hold} {news.pod.source}", news.pod.metadata
        note = f"{news.pod.name} of {news.pod.source}: {news.message}"
        of_node = ClusterEvent(reason=news.reason, action="Drain", about=about, note=note)
        with contextlib.suppress(Conflict):  # it was written before
            self._telling.of_node(of_node, name=drain.node, uid=uid)
        note = f"healthd drains {drain.node}: {news.message}"
        of_pod = ClusterEvent(reason="NodeIsOut", action="Drain", about=f"{news.reason} {about}", note=note)
        with contextlib.suppress(Conflict, Missing, Ending):  # or its namespace goes, and it goes with that
            self._telling.of_pod(of_pod, namespace=meta.namespace, name=meta.name, uid=meta.uid)
