"""Lives of a node's agent on Kubernetes in which an operator has a hand: an approval, an undo, a freeze, a canary.

As ``tests.live.platforms.killed_hands``; the controller's part is played as in ``killed_kube_lives``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar

from healthd.core.model import Remedy
from healthd.remediation.decide.handoff import HandoffRecord
from healthd.remediation.decide.remediation import with_act
from tests.live.kubernetes.killed_kube_lives import AgentLife, Ending
from tests.live.platforms.killed_agent import Rest
from tests.live.platforms.killed_hands import SECOND_FAULT


class ApprovedKubeLife(AgentLife):
    """The reboot is asked of the controller only after an operator approved it."""

    mode: ClassVar[str] = "approve"
    canary: ClassVar[int] = 0

    def configuration(self) -> str:
        text = super().configuration().replace('mode = "repair"', f'mode = "{self.mode}"')
        return text.replace("canary_repairs = 0", f"canary_repairs = {self.canary}")

    def goes_on(self, rest: Rest) -> bool:
        if rest.refusal == "approval":
            assert self.requests() == 0, f"asked for without an approval: {rest.message}"
            self.is_asked()
            return True
        return super().goes_on(rest)

    def requests(self) -> int:
        """How often the controller was asked for something, whether it has answered or not."""
        return self.answered + int(self.asks())

    def is_asked(self) -> None:
        """The operator's answer."""
        self.commands("approve", "reboot_node")


class UndoneKubeLife(ApprovedKubeLife):
    """The operator undoes it instead, and the fault stays where it is."""

    def is_asked(self) -> None:
        self.commands("undo")

    def goes_on(self, rest: Rest) -> bool:
        return not (self.answers("undo") and not rest.step) and super().goes_on(rest)


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


class FrozenKubeLife(ApprovedKubeLife):
    """A freeze of the fleet begins before the approval, and ends when everything waits for it."""

    was_met = False

    def is_asked(self) -> None:
        if "there is one already" not in self._freeze("--for", "2h", "--reason", "rollout").stderr:
            assert "rollout" in self._freeze().stdout
        super().is_asked()

    def goes_on(self, rest: Rest) -> bool:
        if "freeze until" in rest.message:
            assert self.requests() == 0, f"asked for in a freeze: {rest.message}"
            self.was_met = True
            self._freeze("--end")
            return True
        return super().goes_on(rest)

    def ending(self) -> Ending:
        assert self.was_met, "no freeze was met"
        return super().ending()

    def close(self) -> None:
        self._freeze("--end")
        super().close()

    def _freeze(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """By an administrator, to whom the admission policy leaves the freeze."""
        admin = self.folder / "admin.toml"
        kubeconfig = self.stage.plane.kubeconfig
        admin.write_text(
            f'[orchestrator]\nkind = "kubernetes"\n[orchestrator.kubernetes]\nkubeconfig = "{kubeconfig}"\n'
        )
        argv = (sys.executable, "-m", "healthd", "freeze", "--config", str(admin), *arguments)
        return subprocess.run(argv, env=dict(os.environ), capture_output=True, text=True, timeout=60, check=False)


class CanaryKubeLife(ApprovedKubeLife):
    """In mode repair: the first repair of this healthd waits for the operator, the second goes by itself."""

    mode, canary, has_second = "repair", 1, False

    def goes_on(self, rest: Rest) -> bool:
        if not (rest.step or rest.calling or self.has_second):
            self.has_second = True
            self.breaks(*SECOND_FAULT)
            return True
        return super().goes_on(rest)

    def as_begun(self, record: HandoffRecord) -> HandoffRecord:
        assert record.revision, "a request names the revision that decided about it"
        return with_act(record, Remedy.REBOOT_NODE, datetime.now(UTC), boot_id="")


KUBE_HANDS: dict[str, type[ApprovedKubeLife]] = {
    "approve": ApprovedKubeLife,
    "undo": UndoneKubeLife,
    "undo-of-what-was-begun": BegunKubeLife,
    "canary": CanaryKubeLife,
}
