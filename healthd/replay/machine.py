"""The machine of a node in a replay: its repairs take as long as ``[replay]`` assumes, and work.

It is a node's ``Provisioner`` and its ``Resetter``. It does nothing by itself: ``due`` is the time of the next result,
and ``arrived`` the result.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import Struct

from healthd.config.schema.replay import ReplaySection
from healthd.core.errors import BackendBusy
from healthd.core.model import Remedy
from healthd.remediation.ports import StateOwner

LET_GO_S = 300.0
"""How much longer than a reset the engine waits for it, in seconds."""


class Act(Struct, frozen=True, kw_only=True):
    """A repair that has begun."""

    at: datetime
    remedy: Remedy


class PastMachine:
    """The machine of one node. ``made`` lists the repairs that have begun, on each machine of that name."""

    kind = "replay"
    state_owner = StateOwner.ENGINE
    delegates = acts_late = False

    def __init__(self, assumed: ReplaySection, clock: Callable[[], datetime]) -> None:
        self._assumed, self._clock = assumed, clock
        self._number = 1
        self._coming: tuple[Remedy, datetime] | None = None
        self._reset_at: datetime | None = None
        self.made: list[Act] = []

    # -- as a provisioner ---------------------------------------------------------------------------------------------

    def reason_against(self, remedy: Remedy = Remedy.RESET_GPU) -> str:
        return ""

    def dry_run(self, remedy: Remedy) -> str:
        return f"would request {remedy}"

    def stands_down(self) -> str:
        return ""

    def machine(self) -> str:
        """An id of the current machine: no log has its instance id."""
        return f"machine-{self._number}"

    def reboot(self) -> None:
        self._begin(Remedy.REBOOT_NODE, self._assumed.reboot_s)

    def replace(self) -> None:
        self._begin(Remedy.REPLACE_NODE, self._assumed.replace_s)

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """Never: every request is answered."""
        return None

    def take_back(self, *, carried_out: bool) -> bool:
        return False

    def progress(self) -> str:
        return ""

    # -- as a resetter ------------------------------------------------------------------------------------------------

    def holders(self) -> tuple[str, ...]:
        """None: no log names the services that hold the GPUs."""
        return ()

    def reset(self, stop: tuple[str, ...]) -> str:
        """Reset the GPUs. Raises BackendBusy until the assumed time is over."""
        now, takes = self._clock(), timedelta(seconds=self._assumed.reset_s)
        if self._reset_at is None or now - self._reset_at > takes + timedelta(seconds=LET_GO_S):
            self._reset_at = now
            self.made.append(Act(at=now, remedy=Remedy.RESET_GPU))
        if now - self._reset_at < takes:
            raise BackendBusy(f"the reset takes {self._assumed.reset_s:g} s ([replay] reset_s)")
        self._reset_at = None
        return "assumed to have worked"

    def start(self, services: tuple[str, ...]) -> str:
        return ""

    # -- results ------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> datetime | None:
        """The time at which the next repair ends, or None."""
        ends = [self._coming[1]] if self._coming is not None else []
        ends += [self._reset_at + timedelta(seconds=self._assumed.reset_s)] if self._reset_at is not None else []
        return min(ends, default=None)

    def arrived(self, now: datetime) -> Remedy | None:
        """The reboot or replacement that has completed by now, once; None without one."""
        if self._coming is None or now < self._coming[1]:
            return None
        remedy, self._coming = self._coming[0], None
        self._number += remedy is Remedy.REPLACE_NODE
        return remedy

    def was_rebooted(self) -> None:
        """Note a reboot in the log: the requested one is over."""
        if self._coming is not None and self._coming[0] is Remedy.REBOOT_NODE:
            self._coming = None

    def _begin(self, remedy: Remedy, takes_s: float) -> None:
        now = self._clock()
        self._coming = (remedy, now + timedelta(seconds=takes_s))
        self.made.append(Act(at=now, remedy=remedy))
