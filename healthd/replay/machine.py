"""What would reboot, replace and reset a node of the past: each takes as long as ``[replay]`` assumes, and works.

It is a node's ``Provisioner`` and its ``Resetter``. It does nothing by itself: ``due`` says when something comes, and
``arrived`` what that is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from healthd.config.schema.replay import ReplaySection
from healthd.core.errors import BackendBusy
from healthd.core.model import Remedy
from healthd.remediation.ports import StateOwner

LET_GO_S = 300.0
"""How much longer than a reset takes the engine waits for it, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """A repair that was begun."""

    at: datetime
    remedy: Remedy


class PastMachine:
    """The machine behind one node's name. ``made`` lists the repairs that were begun, on each machine of that name."""

    kind = "replay"
    state_owner = StateOwner.ENGINE
    delegates = False

    def __init__(self, assumed: ReplaySection, clock: Callable[[], datetime]) -> None:
        self._assumed, self._clock = assumed, clock
        self._number = 1
        self._coming: tuple[Remedy, datetime] | None = None
        self._reset_at: datetime | None = None
        self.made: list[Act] = []

    # -- as a provisioner ---------------------------------------------------------------------------------------------

    def why_not(self, remedy: Remedy = Remedy.RESET_GPU) -> str:
        """Nothing: every repair can be made."""
        return ""

    def dry_run(self, remedy: Remedy) -> str:
        """What would be asked."""
        return f"{remedy} would be asked for"

    def stands_down(self) -> str:
        """Nobody else acts."""
        return ""

    def machine(self) -> str:
        """Which machine it is now: no log tells its instance id."""
        return f"machine-{self._number}"

    def reboot(self) -> None:
        """Another boot comes."""
        self._begin(Remedy.REBOOT_NODE, self._assumed.reboot_s)

    def replace(self) -> None:
        """Another machine comes."""
        self._begin(Remedy.REPLACE_NODE, self._assumed.replace_s)

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """Never: what was asked for once comes."""
        return None

    def take_back(self, *, carried_out: bool) -> bool:
        """Never: what was asked for comes."""
        return False

    def progress(self) -> str:
        """Nothing is said."""
        return ""

    # -- as a resetter ------------------------------------------------------------------------------------------------

    def holders(self) -> tuple[str, ...]:
        """No log tells the services that hold the GPUs."""
        return ()

    def reset(self, stop: tuple[str, ...]) -> str:
        """It is over once it has taken its time; until then BackendBusy."""
        now, takes = self._clock(), timedelta(seconds=self._assumed.reset_s)
        if self._reset_at is None or now - self._reset_at > takes + timedelta(seconds=LET_GO_S):
            self._reset_at = now
            self.made.append(Act(at=now, remedy=Remedy.RESET_GPU))
        if now - self._reset_at < takes:
            raise BackendBusy(f"it takes {self._assumed.reset_s:g} s ([replay] reset_s)")
        self._reset_at = None
        return "assumed to have worked"

    def start(self, services: tuple[str, ...]) -> str:
        """Nothing was stopped."""
        return ""

    # -- what comes of it ---------------------------------------------------------------------------------------------

    @property
    def due(self) -> datetime | None:
        """When the next of what was begun comes to its end, or None."""
        ends = [self._coming[1]] if self._coming is not None else []
        ends += [self._reset_at + timedelta(seconds=self._assumed.reset_s)] if self._reset_at is not None else []
        return min(ends, default=None)

    def arrived(self, now: datetime) -> Remedy | None:
        """The reboot or the replacement that is there by now, once; None without one."""
        if self._coming is None or now < self._coming[1]:
            return None
        remedy, self._coming = self._coming[0], None
        self._number += remedy is Remedy.REPLACE_NODE
        return remedy

    def was_rebooted(self) -> None:
        """The log shows a reboot: the one that was asked for is over."""
        if self._coming is not None and self._coming[0] is Remedy.REBOOT_NODE:
            self._coming = None

    def _begin(self, remedy: Remedy, takes_s: float) -> None:
        now = self._clock()
        self._coming = (remedy, now + timedelta(seconds=takes_s))
        self.made.append(Act(at=now, remedy=remedy))
