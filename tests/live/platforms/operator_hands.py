"""The operator's part in lives that are killed at every boundary, on any cluster: an approval, an undo, a freeze, the
first repair of a canary.

It is played from here, when the agent has come to rest and says what it waits for; the command itself is given to the
agent's process, and again for as long as it got no answer. A freeze is begun and ended by the verb of the command line,
and holds the whole cluster: its lives are played one at a time.

Each class stands before the life of a cluster among the bases of that cluster's own.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic

from tests.live.platforms.killed_agent import Rest
from tests.support.killing import Ending, Life
from tests.support.limits import limit_s

SECOND_FAULT = ("efa.missing", "reboot_node")
_OWN = itertools.count(50_000)


class Approved(Life[Ending], Generic[Ending]):
    """The reboot waits until an operator approves it."""

    mode: ClassVar[str] = "approve"
    canary: ClassVar[int] = 0

    @abstractmethod
    def requests(self) -> int:
        """How often a platform or a controller was asked for something."""

    def configuration(self) -> str:
        text = super().configuration()  # type: ignore[safe-super] # the life of a cluster is behind it, as below
        text = text.replace('mode = "repair"', f'mode = "{self.mode}"')
        return text.replace("canary_repairs = 0", f"canary_repairs = {self.canary}")

    def goes_on(self, rest: Rest) -> bool:
        if rest.refusal == "approval":
            assert self.requests() == 0, f"asked for without an approval: {rest.message}"
            self.is_asked()
            return True
        return super().goes_on(rest)  # type: ignore[safe-super]

    def is_asked(self) -> None:
        """The operator's answer."""
        self.commands("approve", "reboot_node")


class Undone(Approved[Ending]):
    """The operator undoes it instead, and the fault stays where it is."""

    def is_asked(self) -> None:
        self.commands("undo")

    def goes_on(self, rest: Rest) -> bool:
        return not (self.answers("undo") and not rest.step) and super().goes_on(rest)


class Frozen(Approved[Ending]):
    """A freeze of the fleet begins before the approval, and ends when everything waits for it."""

    was_met = False

    @abstractmethod
    def freezer(self) -> tuple[Path, Mapping[str, str]]:
        """The configuration and the environment of the operator's verb."""

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
        assert self.was_met, f"no freeze was met: {self._told()}"
        return super().ending()  # type: ignore[safe-super]

    def close(self) -> None:
        self._freeze("--end")
        super().close()  # type: ignore[safe-super]

    def _freeze(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        config, environ = self.freezer()
        argv = (sys.executable, "-m", "healthd", "freeze", "--config", str(config), *arguments)
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=limit_s(60), check=False)


class Canary(Approved[Ending]):
    """In mode repair: the first repair of this healthd waits for the operator, the second goes by itself. Each life has
    a revision of its own: a repair of another one beside it would be the first of the fleet."""

    mode, canary, has_second = "repair", 1, False

    @cached_property
    def _same_fault_nodes(self) -> int:
        return next(_OWN)

    def configuration(self) -> str:
        limit = "same_fault_nodes = 100_000"
        text = super().configuration()
        assert limit in text
        return text.replace(limit, f"same_fault_nodes = {self._same_fault_nodes}")

    def goes_on(self, rest: Rest) -> bool:
        if not (rest.step or rest.calling or self.has_second):
            self.has_second = True
            self.breaks(*SECOND_FAULT)
            return True
        return super().goes_on(rest)
