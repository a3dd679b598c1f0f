"""The NodeHealth objects at the API server: one is read, all are listed, and each writer sets or drops its own part.

The writer that removes the last part of an object deletes the object, and only as it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from healthd.core.errors import BackendUnknown
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, Missing, NotServed, ResourceKind, compare_and_swap
from healthd.remediation.orchestrators.kubernetes.objects.node_health import (
    RECORD,
    STATUS,
    HealthStatus,
    NodeHealth,
    health_of,
    healths_in,
    record_patch,
    without_nulls,
)

OLD_CRD = (
    "upgrade it before agents and controller: `helm upgrade` does; without Helm"
    " `kubectl apply --server-side -f packaging/kubernetes/nodehealths.yaml`"
)
NO_CRD = (
    "the CustomResourceDefinition nodehealths.healthd.io is missing: `helm upgrade` installs it; without Helm"
    " `kubectl apply --server-side -f packaging/kubernetes/nodehealths.yaml`"
)


class Unserved(BackendUnknown):
    """The server has no NodeHealths, so that none can be read."""


class NodeHealths:
    """``api``: of an agent, which may write its own, or of the controller. ``pause``: waits before a compare-and-swap
    is tried again, see there."""

    def __init__(self, api: KubeApi, pause: Callable[[float], object] = lambda _: None) -> None:
        self._api, self._pause = api, pause
        self._newest = "0"  # the version that was seen or written last here: no list is to be older

    def read(self, node: str) -> NodeHealth | None:
        """The object of this node, or None. Raises BackendUnknown."""
        with _explained():
            try:
                return self._seen(self._api.get(ResourceKind.NODE_HEALTH, node))
            except Missing:
                return None

    def all(self, *, past_cache: bool = False) -> dict[str, NodeHealth]:
        """Every object, by node, from the server's cache, which costs etcd nothing, and no older than what was read or
        written here; or ``past_cache``, of this moment. Raises BackendUnknown."""
        at = {} if past_cache else {"resourceVersion": self._newest, "resourceVersionMatch": "NotOlderThan"}
        with _explained():
            try:
                pages = self._api.pages(ResourceKind.NODE_HEALTH, healths_in, **at)
                return {each.name: each for page in pages for each in page}
            except BackendUnknown:
                self._newest = "0"  # it may be ahead of a server whose data were restored
                raise

    def write(self, node: str, patch: Mapping[str, Any]) -> NodeHealth:
        """Merge this into the object of this node, which is made where there is none, and return it as the server
        keeps it. Raises BackendError."""

        def once(_: bool) -> NodeHealth:
            try:
                return self._seen(self._api.patch(ResourceKind.NODE_HEALTH, node, patch))
            except Missing:  # a Conflict then is one that the other writer has made meanwhile
                return self._seen(
                    self._api.create(ResourceKind.NODE_HEALTH, {"metadata": {"name": node}, **without_nulls(patch)})
                )

        with _explained():
            return compare_and_swap(f"NodeHealth {node}", once, self._pause)

    def replace(self, seen: NodeHealth, patch: Mapping[str, Any]) -> None:
        """Merge this into the object as it was read. Raises Conflict where it was changed since, and BackendError."""
        with _explained():
            body = {"metadata": {"resourceVersion": seen.version}, **patch}
            self._seen(self._api.patch(ResourceKind.NODE_HEALTH, seen.name, body))

    def leave(self, node: str, text: str) -> None:
        """Write this handoff record, or remove it for "". Raises BackendError."""
        if text:
            self.write(node, record_patch(node, text))
        else:
            self._drop(node, RECORD)

    def show(self, node: str, status: HealthStatus) -> None:
        """Write this status; a quiet status only beside a record. Raises BackendError."""
        if status.is_quiet:
            self._drop(node, STATUS, status.patch)
        else:
            self.write(node, status.patch)

    def delete(self, seen: NodeHealth) -> None:
        """Delete the object as it was read. Raises Conflict where it was changed since, and BackendError."""
        with _explained():
            try:
                self._api.delete(ResourceKind.NODE_HEALTH, seen.name, uid=seen.uid, version=seen.version)
            except Missing:
                return

    def _seen(self, thing: Mapping[str, Any]) -> NodeHealth:
        seen = health_of(thing)
        self._newest = seen.version or self._newest
        return seen

    def _drop(self, node: str, part: str, instead: Mapping[str, Any] | None = None) -> None:
        """Remove a part, or write ``instead`` where the other part is to stay."""

        def once(_: bool) -> None:
            seen = self.read(node)
            if seen is None:
                return
            if not _is_left(seen, part):
                self.delete(seen)
            elif getattr(seen, part) is not None or instead is not None:
                with _explained(), suppress(Missing):  # the other writer took the rest away meanwhile
                    self._seen(self._api.patch(ResourceKind.NODE_HEALTH, node, instead or {part: None}))

        compare_and_swap(f"NodeHealth {node}", once, self._pause)


def _is_left(seen: NodeHealth, part: str) -> bool:
    """Whether the object says anything without this part."""
    if part == STATUS:
        return seen.record is not None
    return seen.status is not None and not seen.status.is_quiet


@contextmanager
def _explained() -> Iterator[None]:
    """Where the resource itself is missing, the error names the next step."""
    try:
        yield
    except NotServed as error:
        raise NotServed(f"{error}; {NO_CRD}") from error
    except BackendUnknown as error:
        if isinstance(error.__cause__, NotServed):
            raise Unserved(f"{error}; {NO_CRD}") from error
        raise
