"""The requests of a node to its platform, on its own Node: read, written once, read back, withdrawn.

It writes the patches of ``platform_signals`` with the agent's right to its own Node, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from healthd.core.errors import BackendError, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, instance_id_of
from healthd.remediation.orchestrators.kubernetes.objects.platform_signals import SIGNALS


class OwnNode(Protocol):
    """This node's Node. Both raise BackendError."""

    def own(self, *, fresh: bool = False) -> KubeNode:
        """The Node as it was read last, or read again where ``fresh``."""

    def change_own(self, patch: Callable[[KubeNode], dict[str, Any] | None], *, status: bool) -> None:
        """Patch the Node as it was read; no patch: write nothing."""


class KubePlatformRequests:
    """The requests of one node. ``kind``: of the provisioner, ``eks`` or ``hyperpod``."""

    def __init__(self, node: OwnNode, kind: str, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._node, self._signal, self._clock = node, SIGNALS[kind], clock
        self.platform, self.acts_late = self._signal.platform, self._signal.acts_late

    def machine(self) -> str:
        node = self._node.own()
        if not (found := instance_id_of(node)):
            raise BackendUnknown(f"the providerID of {node.name} names no instance: {node.provider_id!r}")
        return found

    def owner(self) -> str:
        return self._signal.owner(self._node.own())

    def reason_against(self, remedy: Remedy) -> str:
        try:
            return self._signal.reason_against(self._node.own(), remedy)
        except BackendError:
            return ""

    def shown(self) -> str:
        return self._signal.shown(self._node.own())

    def stands(self, remedy: Remedy) -> bool:
        return self._signal.stands(self._node.own(), remedy)

    def would(self, remedy: Remedy) -> str:
        node = self._node.own()
        body = self._signal.patch(node, remedy, self._clock())
        return f"would set {self._text(body)} on Node {node.name}"

    def ask(self, remedy: Remedy) -> None:
        """Write the request, unless it is there already, and read it back. Raises BackendRefused where it must not be
        written, BackendUnknown where the Node does not show it."""

        def patch(node: KubeNode) -> dict[str, Any] | None:
            return None if self._signal.stands(node, remedy) else self._signal.patch(node, remedy, self._clock())

        self._node.change_own(patch, status=self._signal.on_status)
        node = self._node.own(fresh=True)
        if not self._signal.stands(node, remedy):
            raise BackendUnknown(f"request written, not visible on the Node: it shows {self._signal.shown(node)}")

    def recall(self, *, carried_out: bool) -> bool:
        """Withdraw a request while the node is still out: after it was ``carried_out``, so that it is not repeated;
        else only while the platform cannot have begun. Returns whether it was withdrawn. Raises BackendError."""
        now = self._clock()
        if not carried_out and not self._signal.can_be_recalled(self._node.own(fresh=True), now):
            return False
        self._node.change_own(lambda node: self._signal.recalled(node, now), status=self._signal.on_status)
        return True

    def _text(self, body: dict[str, Any]) -> str:
        (made, *_) = body.get("status", {}).get("conditions") or [None]
        if made is not None:
            return f"{made['type']}={made['status']} ({made['reason']})"
        return ", ".join(f"{key}={value}" for key, value in (body["metadata"].get("labels") or {}).items())
