"""Events of ``healthd controller`` about drains, each told once: on the Node, and on the pod in its own namespace.

A stable name makes them once: a controller that was started anew is told by the API server that the Event is there.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from healthd.errors import BackendBusy, BackendError
from healthd.remediation.orchestrators.kube_api import Conflict, Ending, Kind, KubeApi, Missing
from healthd.remediation.orchestrators.kube_events import News, event_about
from healthd.remediation.orchestrators.kube_eviction import CAME_BACK, Drain, Fate, Plan, Pod

_CONTROLLER = "healthd.io/controller"
_NODES_EVENTS = "default"  # where the API server wants Events about what is in no namespace


class KubeDrainEvents:
    """``leads`` raises BackendRefused where this controller may not write any more."""

    def __init__(self, api: KubeApi, *, leads: Callable[[], None], clock: Callable[[], datetime]) -> None:
        self._api, self._leads, self._clock, self._host = api, leads, clock, socket.gethostname()
        self._told: dict[str, tuple[str, set[str]]] = {}  # node to (hold, sources of pods)

    def came_back(self, drain: Drain, uid: str, plans: Iterable[Plan]) -> str:
        """Tell of each that came back, once for one hold and whatever they come from. ``uid``: the Node's. Why that
        cannot be done, or ""."""
        hold, told = self._told.get(drain.node, ("", set[str]()))
        if hold != drain.record.hold:
            told = set()
        self._told[drain.node] = (drain.record.hold, told)
        came = {plan.pod.source: plan.pod for plan in plans if plan.fate is Fate.CAME}
        try:
            for source in sorted(came.keys() - told):
                self._tell(drain, uid, source, came[source])
                told.add(source)
        except BackendBusy:
            raise
        except BackendError as error:
            return f"no Event says so: {error}"
        return ""

    def _tell(self, drain: Drain, uid: str, source: str, pod: Pod) -> None:
        left = "healthd evicts nothing twice for one hold: it is left alone"
        about = f"{drain.record.hold} {source}"
        node = {"apiVersion": "v1", "kind": "Node", "name": drain.node, "uid": uid}
        words = f"{pod.name} of {source} was {CAME_BACK}; {left}"
        self._once(News(reason="PodCameBack", action="Drain", about=about, note=words), node, _NODES_EVENTS)
        meta = pod.metadata
        here = {"apiVersion": "v1", "kind": "Pod", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
        words = f"it runs on {drain.node}, and was {CAME_BACK}; {left}"
        self._once(News(reason="NodeIsOut", action="Drain", about=about, note=words), here, meta.namespace)

    def _once(self, news: News, regarding: dict[str, str], namespace: str) -> None:
        self._leads()
        body: dict[str, Any] = event_about(
            news,
            regarding=regarding,
            namespace=namespace,
            controller=_CONTROLLER,
            instance=self._host,
            now=self._clock(),
        )
        try:
            self._api.create(Kind.EVENT, body, namespace=namespace)
        except (Conflict, Missing, Ending):
            return  # it was told before, or the namespace goes, and its pods with it
