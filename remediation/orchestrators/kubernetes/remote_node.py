"""One node of Kubernetes as ``healthd controller`` sees it: its Node, its pods that hold GPUs, its handoff record.

It writes the record of the node's NodeHealth and nothing else; the Node itself is its own agent's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, Missing, ResourceKind
from healthd.remediation.orchestrators.kubernetes.node_health_api import NodeHealths
from healthd.remediation.orchestrators.kubernetes.objects.eviction import is_lost, pods_in
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, instance_id_of, node_of, view_of
from healthd.remediation.ports import NodeView

_SILENT = frozenset({"DOWN", "NOT_RESPONDING"})
"""The flags of a node that the cluster has given up: the node controller has set its Ready condition to Unknown."""


class RemoteKubeNode:
    """The node ``node``, read by the controller. ``leads`` raises BackendRefused once this controller may not write."""

    def __init__(
        self,
        api: KubeApi,
        *,
        node: str,
        namespace: str,
        leads: Callable[[], None],
        resources: Collection[str],
        tolerated: Collection[str] = (),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._clock = clock
        self._api, self._name, self._leads = api, node, leads
        self._healths = NodeHealths(api)
        self._resources, self._tolerated = tuple(resources), tuple(tolerated)

    def view(self, *, jobs: bool = False) -> NodeView:
        """The Node, always with the pods that hold GPUs: no cheaper reading shows whether it is idle. Raises
        BackendUnknown, and BackendRefused for a Node that is gone."""
        node = self._node()
        pages = self._api.pages(ResourceKind.POD, pods_in, fieldSelector=f"spec.nodeName={self._name}")
        now = self._clock()
        here = (pod for page in pages for pod in page if not is_lost(pod, now, ready=node.is_ready))
        held = tuple(sorted(pod.name for pod in here if not pod.is_over and pod.holds(self._resources)))
        view = view_of(node, tolerated=self._tolerated, jobs=held)
        ready = node.condition("Ready")
        silent = ready is not None and ready.status == "Unknown"
        return replace(view, flags=view.flags | _SILENT) if silent else view

    def read_record(self) -> str:
        seen = self._healths.read(self._name)
        return seen.text if seen is not None else ""

    def write_record(self, text: str) -> None:
        """Write the handoff record, "" to remove it."""
        self._leads()
        self._healths.leave(self._name, text)

    def machine(self) -> str:
        """The instance behind the Node now. Raises BackendUnknown where the Node is gone or names no instance."""
        try:
            node = self._node()
        except BackendRefused as error:
            raise BackendUnknown(f"{error}; its replacement has another name") from error
        if not (found := instance_id_of(node)):
            raise BackendUnknown(f"the providerID of {self._name} names no instance: {node.provider_id!r}")
        return found

    def label(self, name: str) -> str:
        """A label of the Node, or ""."""
        return self._node().labels.get(name, "")

    def boot_id(self) -> str:
        """The boot that the kubelet reports, or ""."""
        return self._node().boot_id

    def _node(self) -> KubeNode:
        try:
            return node_of(self._api.get(ResourceKind.NODE, self._name))
        except Missing as error:
            raise BackendRefused(f"the node {self._name} is no longer in the cluster") from error


class SeenClaim(Struct, frozen=True, kw_only=True):
    """A NodeClaim of Karpenter's, as the API server has it (karpenter.sh/v1)."""

    name: str
    uid: str
    node: str
    instance_id: str
    deleting: bool


class KubeClaims:
    """Karpenter's NodeClaims. ``leads`` as above; ``make`` gives what the provisioner calls one."""

    def __init__(self, api: KubeApi, *, leads: Callable[[], None]) -> None:
        self._api, self._leads = api, leads

    def of(self, instance_id: str) -> SeenClaim | None:
        """The NodeClaim whose status.providerID ends with this instance, or None."""
        found = [claim for page in self._api.pages(ResourceKind.NODE_CLAIM, _claims_in) for claim in page]
        return next((claim for claim in found if instance_id and claim.instance_id == instance_id), None)

    def delete(self, claim: Any) -> None:
        self._leads()
        try:
            self._api.delete(ResourceKind.NODE_CLAIM, claim.name, uid=claim.uid)
        except Missing:
            return


class _RemoteMeta(msgspec.Struct, frozen=True):
    name: str
    uid: str
    deletionTimestamp: str | None = None  # noqa: N815 - the API's own word


class _RemoteStatus(msgspec.Struct, frozen=True):
    providerID: str = ""  # noqa: N815 - the API's own word
    nodeName: str = ""  # noqa: N815 - as above


class _Item(msgspec.Struct, frozen=True):
    metadata: _RemoteMeta
    status: _RemoteStatus = _RemoteStatus()


class _Items(msgspec.Struct, frozen=True):
    items: tuple[_Item, ...]


_READS_ITEMS = msgspec.json.Decoder(_Items)  # made by one thread, see ``node``


def _claims_in(page: bytes) -> tuple[SeenClaim, ...]:
    found = _READS_ITEMS.decode(page).items
    return tuple(
        SeenClaim(
            name=each.metadata.name,
            uid=each.metadata.uid,
            node=each.status.nodeName,
            instance_id=each.status.providerID.rpartition("/")[2],
            deleting=each.metadata.deletionTimestamp is not None,
        )
        for each in found
    )
