"""A Kubernetes API server in memory, with what a real one does to its clients: conflicts, stale lists, lost answers.

Objects change by merge patches (RFC 7386; conditions by type) and carry a resourceVersion, to which a patch may be
bound. A LIST from the cache may be as old as the last ``refresh``. Each client passes a boundary before and behind
every request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from healthd.core.errors import BackendRefused
from healthd.remediation.orchestrators.kubernetes.api import (
    Conflict,
    Disrupting,
    KubeApi,
    Missing,
    PatchKind,
    ResourceKind,
)

T = TypeVar("T")
Key = tuple[ResourceKind, str]
Written = Callable[[str, ResourceKind, dict[str, Any] | None, dict[str, Any] | None], None]
NAMESPACE = "healthd"


class Server:
    """``written``: called behind each write with the client, the kind, and the object before and after it; None for
    none. A write replaces the object and never alters it: the cache, too, keeps what it was. ``is_guarded``: whether a
    PodDisruptionBudget has no room for the eviction of a pod."""

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.version = 1
        self.written: Callable[[str, ResourceKind, dict[str, Any] | None, dict[str, Any] | None], None] = lambda *_: (
            None
        )
        self.is_guarded: Callable[[str], bool] = lambda _: False
        self._cached: tuple[int, dict[Key, dict[str, Any]]] = (0, {})
        self.refresh()

    def refresh(self) -> None:
        """Let the server's cache catch up."""
        self._cached = (self.version, dict(self.objects))

    def put(self, kind: ResourceKind, body: Mapping[str, Any], *, by: str = "admin") -> dict[str, Any]:
        """Create an object, or replace it."""
        self.version += 1
        made = _sent(body)
        key = (kind, made["metadata"]["name"])
        before = self.objects.get(key)
        meta = {"uid": f"uid-{self.version}", "resourceVersion": str(self.version), "annotations": {}, "labels": {}}
        made["metadata"] = {**meta, **made["metadata"]}
        self.objects[key] = made
        self.written(by, kind, before, made)
        return made

    def change(
        self, kind: ResourceKind, name: str, body: Mapping[str, Any], *, by: str = "admin", strategic: bool = False
    ) -> dict[str, Any]:
        """Merge a patch. Raises Missing, Conflict."""
        if (before := self.objects.get((kind, name))) is None:
            raise Missing(f"patch {name}: 404")
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != before["metadata"]["resourceVersion"]:
            raise Conflict(f"patch {name}: 409 the object has been modified")
        after = _sent(before)
        _merge(after, _sent(body), strategic=strategic)
        self.version += 1
        after["metadata"]["resourceVersion"] = str(self.version)
        self.objects[kind, name] = after
        self.written(by, kind, before, after)
        return after

    def drop(self, kind: ResourceKind, name: str, *, by: str = "admin") -> None:
        """Delete an object, where it is there."""
        if (before := self.objects.pop((kind, name), None)) is not None:
            self.version += 1
            self.written(by, kind, before, None)

    def delete(self, kind: ResourceKind, name: str, *, by: str) -> None:
        """Have an object deleted: one with finalizers stays, with its deletionTimestamp, until they are done."""
        meta = self.objects[kind, name]["metadata"]
        if not meta.get("finalizers"):
            self.drop(kind, name, by=by)
        elif "deletionTimestamp" not in meta:
            self.change(kind, name, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, by=by)

    def listed(self, kind: ResourceKind, *, newest: str = "") -> list[dict[str, Any]]:
        """Those of a kind, to be read: of the cache, where ``newest`` says that it is new enough."""
        version, cached = self._cached
        objects = cached if newest and int(newest) <= version else self.objects
        return [objects[key] for key in sorted((key for key in objects if key[0] is kind), key=_name)]


class Client(KubeApi):
    """One connection: ``who`` writes, ``passes`` is told of each boundary and may raise."""

    def __init__(self, server: Server, who: str, passes: Callable[[str], None]) -> None:
        self.cluster, self.sent = "", {}
        self._server, self._who, self._passes = server, who, passes

    def get(self, kind: ResourceKind, name: str, *, namespace: str | None = None, ahead: int = 0) -> dict[str, Any]:
        def found() -> dict[str, Any]:
            if (there := self._server.objects.get((kind, name))) is None:
                raise Missing(f"get {name}: 404")
            return _sent(there)

        return self._asked(f"get {kind.name}", found)

    def patch(
        self,
        kind: ResourceKind,
        name: str,
        body: Mapping[str, Any],
        *,
        how: PatchKind = PatchKind.MERGE,
        namespace: str | None = None,
        status: bool = False,
    ) -> dict[str, Any]:
        strategic = how is PatchKind.STRATEGIC
        return self._asked(
            f"patch {kind.name}",
            lambda: _sent(self._server.change(kind, name, body, by=self._who, strategic=strategic)),
        )

    def create(self, kind: ResourceKind, body: Mapping[str, Any], *, namespace: str | None = None) -> dict[str, Any]:
        def made() -> dict[str, Any]:
            if (kind, body["metadata"]["name"]) in self._server.objects:
                raise Conflict(f"create {body['metadata']['name']}: 409 already exists")
            return _sent(self._server.put(kind, body, by=self._who))

        return self._asked(f"create {kind.name}", made)

    def pages(
        self, kind: ResourceKind, decode: Callable[[bytes], T], *, namespace: str | None = None, **params: str
    ) -> Iterator[T]:
        def found() -> list[dict[str, Any]]:
            items = self._server.listed(kind, newest=params.get("resourceVersion", ""))
            return [each for each in items if _fits(each, params)]

        items = self._asked(f"list {kind.name}", found)
        yield decode(json.dumps({"metadata": {}, "items": items}).encode())

    def evict(self, name: str, *, namespace: str, body: Mapping[str, Any]) -> None:
        def gone() -> None:
            there = self._server.objects.get((ResourceKind.POD, name))
            if there is None:
                raise Missing(f"evict {name}: 404")
            uid = body.get("deleteOptions", {}).get("preconditions", {}).get("uid", there["metadata"]["uid"])
            if uid != there["metadata"]["uid"]:
                raise Conflict(f"evict {name}: 409")
            if self._server.is_guarded(name):
                raise Disrupting(f"evict {name}: 429 the disruption budget needs 1 healthy pods and has 1 currently")
            if not body.get("deleteOptions", {}).get("dryRun"):
                self._server.drop(ResourceKind.POD, name, by=self._who)

        self._asked("evict POD", gone)

    def delete(
        self, kind: ResourceKind, name: str, *, uid: str = "", version: str = "", namespace: str | None = None
    ) -> None:
        def gone() -> None:
            there = self._server.objects.get((kind, name))
            if there is None:
                raise Missing(f"delete {name}: 404")
            meta = there["metadata"]
            if (uid and uid != meta["uid"]) or (version and version != meta["resourceVersion"]):
                raise Conflict(f"delete {name}: 409")
            self._server.delete(kind, name, by=self._who)

        self._asked(f"delete {kind.name}", gone)

    def close(self) -> None:
        """Nothing is open."""

    def _asked(self, what: str, call: Callable[[], T]) -> T:
        self._passes(f"before {what}")
        found = call()
        self._passes(f"after {what}")
        return found


def _name(key: Key) -> str:
    return key[1]


def _sent(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body as the other side of a connection reads it."""
    read: dict[str, Any] = json.loads(json.dumps(body))
    return read


def _fits(item: Mapping[str, Any], params: Mapping[str, str]) -> bool:
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, params.get("labelSelector", "").split(",")):
        key, _, value = term.partition("=")
        if labels.get(key) != value:
            return False
    field = params.get("fieldSelector", "")
    if field.startswith("spec.nodeName="):
        return bool(item["spec"].get("nodeName") == field.partition("=")[2])
    if field:
        raise BackendRefused(f"no field selector {field}")
    return True


def _merge(into: dict[str, Any], part: Mapping[str, Any], *, strategic: bool, path: str = "") -> None:
    for key, value in part.items():
        where = f"{path}.{key}"
        if value is None:
            into.pop(key, None)
        elif isinstance(value, Mapping):
            there = into.setdefault(key, {})
            if not isinstance(there, dict):
                there = into[key] = {}
            _merge(there, value, strategic=strategic, path=where)
        elif strategic and where == ".status.conditions":
            types = {each["type"]: each for each in into.get(key, [])}
            for each in value:
                types[each["type"]] = {**types.get(each["type"], {}), **each}
            into[key] = list(types.values())
        elif where != ".metadata.resourceVersion":
            into[key] = value
