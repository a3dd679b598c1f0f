"""The removal of healthd from a cluster: its agents and controller end, every Node is released, every claim is removed.

In this order. An agent that still runs would take its node out again for an open fault; and a claim goes only after its
Node is released, so that the budget never shows a free slot that is not there. All of it may be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from healthd.core.errors import BackendError
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, Missing, PatchKind, ResourceKind, compare_and_swap
from healthd.remediation.orchestrators.kubernetes.gpu_clients import CLIENTS, PAUSED, RUNS
from healthd.remediation.orchestrators.kubernetes.node_health_api import NodeHealths, Unserved
from healthd.remediation.orchestrators.kubernetes.objects import budget as leases
from healthd.remediation.orchestrators.kubernetes.objects.admission_policies import AGENT
from healthd.remediation.orchestrators.kubernetes.objects.eviction import pods_in
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, node_of, nodes_in
from healthd.remediation.orchestrators.kubernetes.objects.uninstall_patches import (
    claims_to_drop,
    kept_off_by,
    leaving_patch,
    leaving_status_patch,
)

CONTROLLER = "healthd-controller"
PODS = "app.kubernetes.io/name=healthd,app.kubernetes.io/component in (agent,controller)"
END_WITHIN_S = 420.0
"""How long to wait for the end of agents and controller, in seconds: longer than the grace of an agent in the middle of
a GPU reset. A pod on a dead machine never ends, and is not waited for; pods that still run after that time are
listed."""
_LOOK_S = 2.0


class UninstallResult(Struct, frozen=True, kw_only=True):
    """The result. ``refused``: node to why something of healthd's is still there."""

    released: tuple[str, ...]
    refused: Mapping[str, str]


class KubeUninstall:
    """``opt_out``: the operator's label. ``say`` gets a line for each step."""

    def __init__(
        self, api: KubeApi, *, namespace: str, scopes: Collection[str], opt_out: str, say: Callable[[str], object]
    ) -> None:
        self._api, self._namespace, self._opt_out = api, namespace, opt_out
        self._leases = [*(leases.lease_name(scope) for scope in scopes)]
        self._say = say

    def annotated_nodes(self) -> tuple[KubeNode, ...]:
        """The Nodes that hold anything of healthd's, those that it keeps pods off first. Raises BackendUnknown."""
        found = [node for node in self._nodes() if self._patch(node) or leaving_status_patch(node)]
        return tuple(sorted(found, key=lambda node: (not kept_off_by(node), node.name)))

    def run(self) -> UninstallResult:
        """Do all of it. Raises BackendError where the cluster cannot be read, or agents cannot be stopped."""
        self._stop()
        annotated = self.annotated_nodes()
        refused = {node.name: why for node in annotated if (why := self._let_in(node))}
        for name in self._leases:
            self._drop(name, leases.CLAIM, refused)
        self._forget(refused)
        released = tuple(node.name for node in annotated if kept_off_by(node) and node.name not in refused)
        return UninstallResult(released=released, refused=refused)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        for kind, name in ((ResourceKind.DEPLOYMENT, CONTROLLER), (ResourceKind.DAEMON_SET, AGENT)):
            try:
                self._api.delete(kind, name, namespace=self._namespace)
                self._say(f"{name} deleted")
            except Missing:
                self._say(f"{name} does not exist")
        until_s = time.monotonic() + END_WITHIN_S
        while running := self._running():
            if time.monotonic() >= until_s:
                self._say(f"{len(running)} pods still run and may write again: {', '.join(running[:10])}")
                return
            time.sleep(_LOOK_S)

    def _running(self) -> Sequence[str]:
        """The pods of healthd's that a kubelet can still end: none on a Node that is gone or not Ready."""
        pods = [
            pod
            for page in self._api.pages(ResourceKind.POD, pods_in, namespace=self._namespace, labelSelector=PODS)
            for pod in page
        ]
        if not pods:
            return ()
        ready = {node.name for node in self._nodes() if node.is_ready}
        return [pod.metadata.name for pod in pods if pod.spec.nodeName in ready]

    def _let_in(self, node: KubeNode) -> str:
        """Release the Node; why that failed, or ""."""
        by = kept_off_by(node)
        try:
            compare_and_swap(
                f"Node {node.name}", lambda fresh: self._write(self._fresh(node) if fresh else node), time.sleep
            )
        except Missing:
            return ""
        except BackendError as error:
            self._say(f"{node.name} NOT released: {error}")
            return str(error)
        if by:
            self._say(f"{node.name} released: {', '.join(by)} removed")
        return ""

    def _write(self, node: KubeNode) -> None:
        if patch := self._patch(node):
            self._api.patch(ResourceKind.NODE, node.name, patch)
        if patch := leaving_status_patch(node):
            self._api.patch(ResourceKind.NODE, node.name, patch, how=PatchKind.STRATEGIC, status=True)

    def _drop(self, lease: str, prefix: str, kept: Collection[str]) -> None:
        try:
            notes = leases.annotations_of(self._api.get(ResourceKind.LEASE, lease, namespace=self._namespace))[1]
        except Missing:
            return
        if gone := claims_to_drop(notes, prefix, kept):
            body = {"metadata": {"annotations": gone}}
            self._api.patch(ResourceKind.LEASE, lease, body, namespace=self._namespace)
            self._say(f"Lease {lease}: {len(gone)} annotations removed")

    def _forget(self, kept: Collection[str]) -> None:
        """Delete the NodeHealths of every node but those that could not be released."""
        healths = NodeHealths(self._api)
        try:
            there = healths.all(past_cache=True)
        except Unserved:
            return
        gone = [each for name, each in sorted(there.items()) if name not in kept]
        for each in gone:
            healths.delete(each)
        if gone:
            self._say(f"NodeHealths: {len(gone)} deleted")

    # -- parts --------------------------------------------------------------------------------------------------------

    def _nodes(self) -> Iterator[KubeNode]:
        """Past the server's cache: what an agent wrote last must be seen."""
        return (node for page in self._api.pages(ResourceKind.NODE, nodes_in) for node in page)

    def _fresh(self, node: KubeNode) -> KubeNode:
        return node_of(self._api.get(ResourceKind.NODE, node.name))

    def _patch(self, node: KubeNode) -> dict[str, object] | None:
        paused = {key: RUNS for key in CLIENTS if node.labels.get(key) == PAUSED}
        return leaving_patch(node, opt_out=self._opt_out, labels=paused)
