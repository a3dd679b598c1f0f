"""A node of Kubernetes that asks its platform by its own Node: EKS node auto-repair, HyperPod with ``how = "label"``.

No right at AWS is needed, and none of another node's: what asks is the node's own condition or label. It acts on
nothing itself and must not ask where somebody else speaks for the node already.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from healthd.core.errors import BackendBusy, BackendError, BackendRefused
from healthd.core.model import Remedy
from healthd.remediation.decide.handoff import parse
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.subject import Subject

UNHEARD_S = 2700.0
"""After how many seconds a request that nothing came of pages: EKS waits 10 to 30 minutes, HyperPod some minutes."""


class Asking(Protocol):
    """How the node asks. Every call may raise BackendError."""

    platform: str

    def machine(self) -> str:
        """The instance that the Node stands for."""

    def owner(self) -> str:
        """Who else speaks for the node, or ""."""

    def shown(self) -> str:
        """What the node shows now."""

    def why_not(self, remedy: Remedy) -> str:
        """Why the platform never does this to such a node, or "". Raises nothing: what cannot be read now is refused,
        where it must be, when it is asked for."""

    def stands(self, remedy: Remedy) -> bool:
        """Whether this request stands."""

    def would(self, remedy: Remedy) -> str:
        """What would be shown."""

    def ask(self, remedy: Remedy) -> None:
        """Ask, and read it back."""

    def recall(self, *, carried_out: bool) -> bool:
        """Take it back; whether that could be."""


class OwnNodeProvisioner:
    """``read``: this node's mark, which says since when the platform was asked. ``hint``: what to look at where
    nothing comes of a request."""

    state_owner = StateOwner.ENGINE
    delegates = False

    def __init__(
        self,
        *,
        kind: str,
        subject: Subject,
        asking: Asking,
        read: Callable[[], str],
        hint: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.kind = kind
        self._subject, self._asking, self._read, self._hint, self._clock = subject, asking, read, hint, clock

    def why_not(self, remedy: Remedy) -> str:
        """Why this remedy cannot be asked for here, or ""."""
        return self._subject.why_not(remedy) or self._asking.why_not(remedy)

    def stands_down(self) -> str:
        """Who else speaks for the node."""
        try:
            owner = self._asking.owner()
        except BackendError as error:
            return f"it cannot be told who else speaks for the node: {error}"
        return f"{self._asking.platform} is not asked: {owner}" if owner else ""

    def machine(self) -> str:
        """The instance of the Node's providerID."""
        return self._asking.machine()

    def reboot(self) -> None:
        """Show that a reboot is wanted."""
        self._asking.ask(Remedy.REBOOT_NODE)

    def replace(self) -> None:
        """Show that another machine is wanted."""
        self._asking.ask(Remedy.REPLACE_NODE)

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """At once: what asks is a condition or a label, which is the same set twice."""
        return 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        """Show that nothing is wanted any more, where that can come in time."""
        return self._asking.recall(carried_out=carried_out)

    def progress(self) -> str:
        """What the node shows. BackendBusy: nothing has come of it for so long that a person should look."""
        mark, shown = parse(self._read()), self._asking.shown()
        said = f"the node shows {shown}"
        if mark is None or mark.remedy is None or mark.asked is None:
            return said
        if not self._asking.stands(mark.remedy):
            said = f"{said}, not what healthd asked for: {self._asking.platform} or a person has moved on"
        if self._clock() - mark.asked > timedelta(seconds=UNHEARD_S):
            raise BackendBusy(f"{said}; nothing came of it for {UNHEARD_S / 60:g} minutes: {self._hint}")
        return said

    def dry_run(self, remedy: Remedy) -> str:
        """What the node would show. Raises BackendRefused for what cannot be."""
        if why := self.why_not(remedy) or self.stands_down():
            raise BackendRefused(why)
        return self._asking.would(remedy)
