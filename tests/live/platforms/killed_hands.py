"""Lives on a platform with Slurm in which an operator has a hand: see ``operator_hands``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.live.platforms.killed_agent import Rest
from tests.live.platforms.killed_lives import Ending, Life
from tests.live.platforms.operator_hands import Approved, Canary, Frozen, Undone


class ApprovedLife(Approved[Ending], Life):
    """The platform is asked for the reboot only after an approval."""

    def requests(self) -> int:
        return self.owner.asked()


class UndoneLife(Undone[Ending], ApprovedLife):
    """Undone instead of approved."""


class UndoneTooLateLife(ApprovedLife):
    """The operator undoes it once the reboot was asked for: that is refused, and the repair goes on to its end."""

    def goes_on(self, rest: Rest) -> bool:
        if self._is_due() and not self.answers("undo"):
            self.commands("undo")
            return True
        assert set(self.answers("undo")) <= {(False, "cannot")}
        return super().goes_on(rest)


class FrozenLife(Frozen[Ending], ApprovedLife):
    """Frozen by a reservation."""

    def freezer(self) -> tuple[Path, Mapping[str, str]]:
        return self.machine / "config.toml", {**os.environ, "KILLED_STORY": str(self.folder)}


class CanaryLife(Canary[Ending], ApprovedLife):
    """The first of two repairs waits."""


HANDS: dict[str, type[ApprovedLife]] = {
    "approve": ApprovedLife,
    "undo": UndoneLife,
    "undo-too-late": UndoneTooLateLife,
    "canary": CanaryLife,
}
