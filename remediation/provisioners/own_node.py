"""A node of Kubernetes that asks its platform by its own Node: EKS node auto-repair, HyperPod with ``how = "label"``.

It needs no right at AWS and none on another node: the request is the node's own condition or label. It never acts
itself, and must not ask where another agent already sets the condition or label.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from healthd.core.errors import BackendBusy, BackendError, BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.orchestrators.kubernetes.gpu_clients import OwnNode
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, instance_id_of
from healthd.remediation.orchestrators.kubernetes.objects.platform_signals import SIGNALS
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.target_node import TargetNode
from healthd.remediation.records.handoff import parse

UNHEARD_S = 2700.0
"""After how many seconds a request without a result pages: EKS waits 10 to 30 minutes, HyperPod some minutes."""


class OwnNodeProvisioner:
    """``kind``: ``eks`` or ``hyperpod``. ``node``: this node's own Node. ``read``: its handoff record, which has the
    time of the request. ``hint``: the operator's next step where a request has no result."""

    state_owner = StateOwner.ENGINE
    delegates = False

    def __init__(
        self,
        *,
        kind: str,
        subject: TargetNode,
        node: OwnNode,
        read: Callable[[], str],
        hint: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._signal = SIGNALS[kind]
        self.kind, self.acts_late = kind, self._signal.acts_late
        self._subject, self._node, self._read, self._hint, self._clock = subject, node, read, hint, clock

    def reason_against(self, remedy: Remedy) -> str:
        """Where the Node cannot be read now, the request itself is refused if it must be."""
        if why := self._subject.reason_against(remedy):
            return why
        try:
            return self._signal.reason_against(self._node.own(), remedy)
        except BackendError:
            return ""

    def stands_down(self) -> str:
        """The other agent that sets the node's condition or label, in a sentence, or ""."""
        try:
            owner = self._signal.owner(self._node.own())
        except BackendError as error:
            return f"unknown whether another agent asks {self._signal.platform} for this node: {error}"
        return f"healthd does not ask {self._signal.platform}: {owner}" if owner else ""

    def machine(self) -> str:
        """The instance of the Node's providerID."""
        node = self._node.own()
        if not (found := instance_id_of(node)):
            raise BackendUnknown(f"the providerID of {node.name} names no instance: {node.provider_id!r}")
        return found

    def reboot(self) -> None:
        self._ask(Remedy.REBOOT_NODE)

    def replace(self) -> None:
        self._ask(Remedy.REPLACE_NODE)

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """At once: the request is a condition or a label, and setting it twice changes nothing."""
        return 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        """Withdraw the request; one that was not carried out only while the platform cannot have begun."""
        now = self._clock()
        if not carried_out and not self._signal.can_be_recalled(self._node.own(fresh=True), now):
            return False
        self._node.change_own(lambda node: self._signal.recalled(node, now), status=self._signal.on_status)
        return True

    def progress(self) -> str:
        """The request that the node shows. BackendBusy: without a result for so long that an operator is needed."""
        record, node = parse(self._read()), self._node.own()
        message = f"the node shows {self._signal.shown(node)}"
        if record is None or record.remedy is None or record.asked is None:
            return message
        if not self._signal.stands(node, record.remedy):
            message = f"{message}, not healthd's request: {self._signal.platform} or an operator has changed it"
        if self._clock() - record.asked > timedelta(seconds=UNHEARD_S):
            raise BackendBusy(f"{message}; no result for {UNHEARD_S / 60:g} minutes: {self._hint}")
        return message

    def dry_run(self, remedy: Remedy) -> str:
        if why := self.reason_against(remedy) or self.stands_down():
            raise BackendRefused(why)
        node = self._node.own()
        return f"would set {_text(self._signal.patch(node, remedy, self._clock()))} on Node {node.name}"

    def _ask(self, remedy: Remedy) -> None:
        """Write the request, unless it is there already, and read it back. Raises BackendRefused where it must not be
        written, BackendUnknown where the Node does not show it."""

        def patch(node: KubeNode) -> dict[str, Any] | None:
            return None if self._signal.stands(node, remedy) else self._signal.patch(node, remedy, self._clock())

        self._node.change_own(patch, status=self._signal.on_status)
        node = self._node.own(fresh=True)
        if not self._signal.stands(node, remedy):
            raise BackendUnknown(f"request written, not visible on the Node: it shows {self._signal.shown(node)}")


def _text(body: dict[str, Any]) -> str:
    (made, *_) = body.get("status", {}).get("conditions") or [None]
    if made is not None:
        return f"{made['type']}={made['status']} ({made['reason']})"
    return ", ".join(f"{key}={value}" for key, value in (body["metadata"].get("labels") or {}).items())
