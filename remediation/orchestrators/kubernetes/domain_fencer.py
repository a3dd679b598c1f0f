"""Fences the NVLink domains of a Kubernetes cluster: taints their Nodes, and removes these taints.

It runs in ``healthd controller`` alone, whose admission policy lets it change no other field of a Node. Each write
checks first that this controller still leads. Both acts may be repeated after a crash at any point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from healthd.core.errors import BackendError, BackendUnknown, StoreError
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, Missing, ResourceKind, compare_and_swap
from healthd.remediation.orchestrators.kubernetes.lease_notes import LeaseNotes
from healthd.remediation.orchestrators.kubernetes.objects.domain_fences import (
    WrittenFence,
    begun,
    domain_fence_patch,
    domain_release_patch,
    fences_in,
    fences_text,
)
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, node_of
from healthd.remediation.records.domain_fence import DomainFence

_Patch = Callable[[KubeNode], dict[str, Any] | None]


class KubeFencer:
    """``notes``: where fences are written down. ``leads`` raises BackendRefused where this controller may not write any
    more. ``sleep`` waits seconds."""

    def __init__(
        self,
        api: KubeApi,
        notes: LeaseNotes,
        *,
        leads: Callable[[], None],
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._api, self._notes, self._leads, self._sleep = api, notes, leads, sleep

    def fence_domain(self, fence: DomainFence) -> None:
        """Keep new pods off all nodes of a domain; of a fence that stands in part, off the others. Raises BackendError
        where a Node could not be tainted; the others are."""
        written = self._written()
        mine = written.get(fence.incident) or begun(fence)
        self._keep({**written, fence.incident: mine})
        done = dict[str, str]()

        def patch(node: KubeNode) -> dict[str, Any] | None:
            done[node.name] = node.uid
            return domain_fence_patch(node, fence.incident) if mine.is_due(node) else None

        error = self._change(mine.nodes, patch, done)
        self._keep({**written, fence.incident: mine.tainted(done)})
        if error is not None:
            raise error

    def lift_fence(self, fence: DomainFence) -> None:
        """Remove the taints of this fence, and then its record. Raises BackendError where one is still there."""
        written = self._written()
        mine = written.get(fence.incident) or begun(fence)
        names = {**mine.nodes, **dict.fromkeys(fence.nodes, "")}
        error = self._change(names, lambda node: domain_release_patch(node, fence.incident), {})
        if error is not None:
            raise error
        self._keep({incident: each for incident, each in written.items() if incident != fence.incident})

    # -- parts --------------------------------------------------------------------------------------------------------

    def _change(self, names: Iterable[str], patch: _Patch, done: dict[str, str]) -> BackendError | None:
        """Patch these Nodes; one that fails stops no other, and is not ``done``. Returns the last error."""
        last: BackendError | None = None
        for name in sorted(names):
            try:
                self._change_node(name, patch)
            except Missing:
                continue  # its replacement is tainted when it is there
            except BackendError as error:
                done.pop(name, None)
                last = error
        return last

    def _change_node(self, name: str, patch: _Patch) -> None:
        def once(_: bool) -> None:
            if (body := patch(node_of(self._api.get(ResourceKind.NODE, name)))) is not None:
                self._leads()
                self._api.patch(ResourceKind.NODE, name, body)

        compare_and_swap(f"Node {name}", once, self._sleep)

    def _written(self) -> dict[str, WrittenFence]:
        try:
            return {each.incident: each for each in fences_in(self._notes.kept())}
        except StoreError as error:
            raise BackendUnknown(str(error)) from error

    def _keep(self, fences: Mapping[str, WrittenFence]) -> None:
        try:
            self._notes.keep(fences_text(fences.values()))
        except StoreError as error:
            raise BackendUnknown(str(error)) from error
