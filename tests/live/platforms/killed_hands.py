"""Lives in which an operator has a hand: an approval, an undo, a freeze, the first repair of a canary.

The operator's part is played from here, when the agent has come to rest and says what it waits for; the command itself
is given to the agent's process, and again for as long as it got no answer. A freeze is begun and ended by the verb of
the command line, and holds the whole cluster: its lives are played one at a time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import ClassVar

from tests.live.platforms.killed_agent import Rest
from tests.live.platforms.killed_lives import Ending, Life
from tests.support.limits import limit_s

SECOND_FAULT = ("efa.missing", "reboot_node")


class ApprovedLife(Life):
    """The reboot waits until an operator approves it."""

    mode: ClassVar[str] = "approve"
    canary: ClassVar[int] = 0

    def configuration(self) -> str:
        text = super().configuration().replace('mode = "repair"', f'mode = "{self.mode}"')
        return text.replace("canary_repairs = 0", f"canary_repairs = {self.canary}")

    def goes_on(self, rest: Rest) -> bool:
        if rest.refusal == "approval":
            assert self.owner.asked() == 0, f"asked for without an approval: {rest.message}"
            self.is_asked()
            return True
        return super().goes_on(rest)

    def is_asked(self) -> None:
        """The operator's answer."""
        self.commands("approve", "reboot_node")


class UndoneLife(ApprovedLife):
    """The operator undoes it instead, and the fault stays where it is."""

    def is_asked(self) -> None:
        self.commands("undo")

    def goes_on(self, rest: Rest) -> bool:
        return not (self.answers("undo") and not rest.step) and super().goes_on(rest)


class UndoneTooLateLife(ApprovedLife):
    """The operator undoes it once the reboot was asked for: that is refused, and the repair goes on to its end."""

    def goes_on(self, rest: Rest) -> bool:
        if self._is_due() and not self.answers("undo"):
            self.commands("undo")
            return True
        assert set(self.answers("undo")) <= {(False, "cannot")}
        return super().goes_on(rest)


class FrozenLife(ApprovedLife):
    """A freeze of the fleet begins before the approval, and ends when everything waits for it."""

    was_met = False

    def is_asked(self) -> None:
        if "there is one already" not in self._freeze("--for", "2h", "--reason", "rollout").stderr:
            assert "rollout" in self._freeze().stdout
        super().is_asked()

    def goes_on(self, rest: Rest) -> bool:
        if "freeze until" in rest.message:
            assert self.owner.asked() == 0, f"asked for in a freeze: {rest.message}"
            self.was_met = True
            self._freeze("--end")
            return True
        return super().goes_on(rest)

    def ending(self) -> Ending:
        assert self.was_met, f"no freeze was met: {self._told()}"
        return super().ending()

    def close(self) -> None:
        self._freeze("--end")
        super().close()

    def _freeze(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = (sys.executable, "-m", "healthd", "freeze", "--config", str(self.machine / "config.toml"), *arguments)
        environ = {**os.environ, "KILLED_STORY": str(self.folder)}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=limit_s(60), check=False)


class CanaryLife(ApprovedLife):
    """In mode repair: the first repair of this healthd waits for the operator, the second goes by itself."""

    mode, canary, has_second = "repair", 1, False

    def goes_on(self, rest: Rest) -> bool:
        if not (rest.step or rest.calling or self.has_second):
            self.has_second = True
            self.breaks(*SECOND_FAULT)
            return True
        return super().goes_on(rest)


HANDS: dict[str, type[ApprovedLife]] = {
    "approve": ApprovedLife,
    "undo": UndoneLife,
    "undo-too-late": UndoneTooLateLife,
    "canary": CanaryLife,
}
