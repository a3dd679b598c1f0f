"""What a node asks of its platform by its own Node: read, written once, read back, taken back.

It writes what ``signals`` says, with the agent's own right to its own Node, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from healthd.core.errors import BackendError, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.orchestrators.kubernetes.node import KubeNode, instance_id_of
from healthd.remediation.orchestrators.kubernetes.signals import SIGNALS


class OwnNode(Protocol):
    """This node's Node. Both raise BackendError."""

    def own(self, *, fresh: bool = False) -> KubeNode:
        """As it was a moment ago, or ``fresh``."""

    def change_own(self, patch: Callable[[KubeNode], dict[str, Any] | None], *, status: bool) -> None:
        """Patch it as it was read, or do nothing."""


class KubeAsking:
    """The requests of one node. ``kind``: of the provisioner, ``eks`` or ``hyperpod``."""

    def __init__(self, node: OwnNode, kind: str, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._node, self._signal, self._clock = node, SIGNALS[kind], clock
        self.platform = self._signal.platform

    def machine(self) -> str:
        """The instance that the Node stands for. Raises BackendUnknown."""
        node = self._node.own()
        if not (found := instance_id_of(node)):
            raise BackendUnknown(f"the providerID of {node.name} names no instance: {node.provider_id!r}")
        return found

    def owner(self) -> str:
        """Who else speaks for the node, or "". Raises BackendError."""
        return self._signal.owner(self._node.own())

    def why_not(self, remedy: Remedy) -> str:
        """Why the platform never does this to such a node, or "" where it does, or the node cannot be read now."""
        try:
            return self._signal.why_not(self._node.own(), remedy)
        except BackendError:
            return ""

    def shown(self) -> str:
        """What the node shows now. Raises BackendError."""
        return self._signal.shown(self._node.own())

    def stands(self, remedy: Remedy) -> bool:
        """Whether this request stands as it was made. Raises BackendError."""
        return self._signal.stands(self._node.own(), remedy)

    def would(self, remedy: Remedy) -> str:
        """What the node would show. Raises BackendRefused as asking would."""
        node = self._node.own()
        body = self._signal.patch(node, remedy, self._clock())
        return f"would have {node.name} show {self._words(body)}"

    def ask(self, remedy: Remedy) -> None:
        """Write the request, unless it stands, and read it back. Raises BackendRefused where it must not be written,
        BackendUnknown where it is not to be seen."""

        def patch(node: KubeNode) -> dict[str, Any] | None:
            return None if self._signal.stands(node, remedy) else self._signal.patch(node, remedy, self._clock())

        self._node.change_own(patch, status=self._signal.on_status)
        node = self._node.own(fresh=True)
        if not self._signal.stands(node, remedy):
            raise BackendUnknown(f"written, and not to be seen: the node shows {self._signal.shown(node)}")

    def recall(self, *, carried_out: bool) -> bool:
        """Take a request back while the node is still out: once it was ``carried_out``, so that it is not done again;
        else only while the platform is surely not at it. Returns whether it was. Raises BackendError."""
        now = self._clock()
        if not carried_out and not self._signal.can_be_recalled(self._node.own(fresh=True), now):
            return False
        self._node.change_own(lambda node: self._signal.recalled(node, now), status=self._signal.on_status)
        return True

    def _words(self, body: dict[str, Any]) -> str:
        (made, *_) = body.get("status", {}).get("conditions") or [None]
        if made is not None:
            return f"{made['type']}={made['status']} ({made['reason']})"
        return ", ".join(f"{key}={value}" for key, value in (body["metadata"].get("labels") or {}).items())
