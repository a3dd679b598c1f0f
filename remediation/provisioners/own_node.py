"""A node of Kubernetes that asks its platform by its own Node: EKS node auto-repair, HyperPod with ``how = "label"``.

It needs no right at AWS and none on another node: the request is the node's own condition or label. It never acts
itself, and must not ask where another agent already sets the condition or label.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from healthd.core.errors import BackendBusy, BackendError, BackendRefused
from healthd.core.model import Remedy
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.target_node import TargetNode
from healthd.remediation.records.handoff import parse

UNHEARD_S = 2700.0
"""After how many seconds a request without a result pages: EKS waits 10 to 30 minutes, HyperPod some minutes."""


class PlatformRequests(Protocol):
    """The node's requests to its platform. Every call may raise BackendError. ``acts_late``: see ``ports``."""

    platform: str
    acts_late: bool

    def machine(self) -> str:
        """The instance that the Node stands for."""

    def owner(self) -> str:
        """The other agent that sets the node's condition or label, or ""."""

    def shown(self) -> str:
        """The condition or label that the node shows now."""

    def reason_against(self, remedy: Remedy) -> str:
        """Why the platform never carries out this remedy on such a node, or "". Raises nothing: where the Node cannot
        be read now, ``ask`` refuses if it must."""

    def stands(self, remedy: Remedy) -> bool:
        """Whether the node shows this request."""

    def would(self, remedy: Remedy) -> str:
        """The request that ``ask`` would write, in a sentence."""

    def ask(self, remedy: Remedy) -> None:
        """Write the request, and read it back."""

    def recall(self, *, carried_out: bool) -> bool:
        """Withdraw the request; whether that was possible."""


class OwnNodeProvisioner:
    """``read``: this node's handoff record, which has the time of the request. ``hint``: the operator's next step where
    a request has no result."""

    state_owner = StateOwner.ENGINE
    delegates = False

    def __init__(
        self,
        *,
        kind: str,
        subject: TargetNode,
        asking: PlatformRequests,
        read: Callable[[], str],
        hint: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.kind, self.acts_late = kind, asking.acts_late
        self._subject, self._asking, self._read, self._hint, self._clock = subject, asking, read, hint, clock

    def reason_against(self, remedy: Remedy) -> str:
        return self._subject.reason_against(remedy) or self._asking.reason_against(remedy)

    def stands_down(self) -> str:
        """The other agent that sets the node's condition or label, in a sentence, or ""."""
        try:
            owner = self._asking.owner()
        except BackendError as error:
            return f"unknown whether another agent asks {self._asking.platform} for this node: {error}"
        return f"healthd does not ask {self._asking.platform}: {owner}" if owner else ""

    def machine(self) -> str:
        """The instance of the Node's providerID."""
        return self._asking.machine()

    def reboot(self) -> None:
        self._asking.ask(Remedy.REBOOT_NODE)

    def replace(self) -> None:
        self._asking.ask(Remedy.REPLACE_NODE)

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """At once: the request is a condition or a label, and setting it twice changes nothing."""
        return 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        return self._asking.recall(carried_out=carried_out)

    def progress(self) -> str:
        """The request that the node shows. BackendBusy: without a result for so long that an operator is needed."""
        record, shown = parse(self._read()), self._asking.shown()
        message = f"the node shows {shown}"
        if record is None or record.remedy is None or record.asked is None:
            return message
        if not self._asking.stands(record.remedy):
            message = f"{message}, not healthd's request: {self._asking.platform} or an operator has changed it"
        if self._clock() - record.asked > timedelta(seconds=UNHEARD_S):
            raise BackendBusy(f"{message}; no result for {UNHEARD_S / 60:g} minutes: {self._hint}")
        return message

    def dry_run(self, remedy: Remedy) -> str:
        if why := self.reason_against(remedy) or self.stands_down():
            raise BackendRefused(why)
        return self._asking.would(remedy)
