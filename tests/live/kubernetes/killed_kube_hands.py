"""Lives of a node's agent on Kubernetes in which an operator has a hand: see ``tests.live.platforms.operator_hands``.

The controller's part is played as in ``killed_kube_lives``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from healthd.core.model import Remedy
from healthd.remediation.decide.remediation import with_act
from healthd.remediation.records.handoff import HandoffRecord
from tests.live.kubernetes.killed_kube_lives import AgentLife, Ending
from tests.live.platforms.killed_agent import Rest
from tests.live.platforms.operator_hands import Approved, Canary, Frozen, Undone


class ApprovedKubeLife(Approved[Ending], AgentLife):
    """The controller is asked for the reboot only after an approval."""

    def requests(self) -> int:
        """Whether the controller has answered or not."""
        return self.answered + int(self.asks())


class UndoneKubeLife(Undone[Ending], ApprovedKubeLife):
    """Undone instead of approved."""


class BegunKubeLife(ApprovedKubeLife):
    """The operator approves it, and undoes it: the request is withdrawn. But a controller had begun it and answers
    then: the reboot is awaited, once, and the node comes back behind it."""

    def goes_on(self, rest: Rest) -> bool:
        if self.asks() and not self.answers("undo"):
            self.commands("undo")
            return True
        if self.answers("undo") and not self.answered:
            withdrawn = self.record()
            assert withdrawn is not None
            assert withdrawn.is_withdrawn, withdrawn.text
            self.is_answered(replace(withdrawn, asks=True, remedy=Remedy.REBOOT_NODE))
            return True
        return super().goes_on(rest)


class FrozenKubeLife(Frozen[Ending], ApprovedKubeLife):
    """Frozen by an administrator, to whom the admission policy leaves the freeze."""

    def freezer(self) -> tuple[Path, Mapping[str, str]]:
        admin = self.folder / "admin.toml"
        kubeconfig = self.stage.plane.kubeconfig
        admin.write_text(
            f'[orchestrator]\nkind = "kubernetes"\n[orchestrator.kubernetes]\nkubeconfig = "{kubeconfig}"\n'
        )
        return admin, dict(os.environ)


class CanaryKubeLife(Canary[Ending], ApprovedKubeLife):
    """The first of two repairs waits."""

    def as_begun(self, record: HandoffRecord) -> HandoffRecord:
        assert record.revision, "a request names the revision that decided about it"
        return with_act(record, Remedy.REBOOT_NODE, datetime.now(UTC), boot_id="")


KUBE_HANDS: dict[str, type[ApprovedKubeLife]] = {
    "approve": ApprovedKubeLife,
    "undo": UndoneKubeLife,
    "undo-of-what-was-begun": BegunKubeLife,
    "canary": CanaryKubeLife,
}
