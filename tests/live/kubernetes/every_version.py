"""Looks at every version that the API server gave a fleet's Nodes and its budget, by watches that miss none.

For each version: the kubelet's Ready is there, a taint of ours comes and goes with its annotation, no more claims than
the limit; and it differs from the version before in what belongs to *one* writer, because each write is one writer's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from tests.live.kubernetes.control_plane import LEASES, ControlPlane
from tests.live.kubernetes.other_writers import owned

CLAIM = "claim.healthd.io/"
_NODES = "/api/v1/nodes"
_WATCH_S = 4  # how long the server keeps one watch; the next goes on where it ended


class EveryVersion:
    """From the moment it is made until ``stop``. ``wrong`` are sentences, ``versions`` how many were looked at."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane, self._stop, self._lock = plane, threading.Event(), threading.Lock()
        self.wrong: list[str] = []
        self.versions = self.most_claims = 0
        self._last: dict[str, dict[str, Any]] = {}
        self._threads = [
            threading.Thread(target=self._follow, args=(path, self._listed(path, look), look), name=f"watch of {path}")
            for path, look in ((_NODES, self._node), (LEASES, self._lease))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Look at what was written until now, and end."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _listed(self, path: str, look: Callable[[dict[str, Any]], None]) -> str:
        found = self._plane.admin.get(path).must()
        for each in found["items"]:
            look(each)
        return str(found["metadata"]["resourceVersion"])

    def _follow(self, path: str, version: str, look: Callable[[dict[str, Any]], None]) -> None:
        client = self._plane.client(self._plane.admin_token)
        is_last = False
        while not is_last:
            is_last = self._stop.is_set()  # one more, for what came between the last event and the end
            query = f"watch=1&resourceVersion={version}&timeoutSeconds={1 if is_last else _WATCH_S}"
            for event in client.watch(f"{path}?{query}"):
                if event["type"] != "MODIFIED":
                    self._say(f"{path}: {event['type']} {str(event['object'])[:300]}")
                    return
                version = event["object"]["metadata"]["resourceVersion"]
                look(event["object"])
        client.close()

    def _node(self, node: dict[str, Any]) -> None:
        name, parts = node["metadata"]["name"], owned(node)
        keys = {each["key"] for each in parts["healthd"]["taints"]}
        hold = "healthd.io/hold" in parts["healthd"]["annotations"]
        if ("healthd.io/unhealthy" in keys) is not hold:
            self._say(f"{name}: the taint is {'not ' if hold else ''}there, the annotation is {'' if hold else 'not '}")
        if set(parts["kubelet"]["conditions"]) != {"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"}:
            self._say(f"{name}: of the kubelet's conditions only {sorted(parts['kubelet']['conditions'])} are left")
        self._compare(name, parts, together={"healthd", "cordon"})

    def _lease(self, lease: dict[str, Any]) -> None:
        """Whose keys of a Lease changed: one node's, or those that the controller counts."""
        name, notes = lease["metadata"]["name"], lease["metadata"].get("annotations", {})
        claims = [key for key in notes if key.startswith(CLAIM)]
        self.most_claims = max(self.most_claims, len(claims))
        if len(claims) > int(notes.get("healthd.io/limit", "0")):
            self._say(f"{name}: {len(claims)} claims: {sorted(claims)}")
        parts: dict[str, Any] = {}
        for key, value in notes.items():
            counted = key.startswith("healthd.io/")
            parts.setdefault("controller" if counted else key, {})[key] = value
        self._compare(f"Lease {name}", parts, together=set())

    def _compare(self, name: str, parts: Mapping[str, Any], *, together: set[str]) -> None:
        self.versions += 1
        before = self._last.get(name)
        self._last[name] = dict(parts)
        if before is None:
            return
        changed = {part for part in {*before, *parts} if before.get(part) != parts.get(part)}
        if len(changed) > 1 and changed != together:
            told = {part: (before.get(part), parts.get(part)) for part in sorted(changed)}
            self._say(f"{name}: one write changed what belongs to {sorted(changed)}: {told}")

    def _say(self, text: str) -> None:
        with self._lock:
            self.wrong.append(text)
