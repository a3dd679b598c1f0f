"""The Events that ``healthd controller`` writes. ``reporter`` writes those of a node's own agent."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from datetime import datetime

from healthd.remediation.orchestrators.kubernetes.api import KubeApi, ResourceKind
from healthd.remediation.orchestrators.kubernetes.events import ClusterEvent, event_about

CONTROLLER = "healthd.io/controller"
"""The reporting controller of an Event that ``healthd controller`` writes."""
NODES_EVENTS = "default"
"""The namespace where the API server wants Events about objects without a namespace."""


class KubeTelling:
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
