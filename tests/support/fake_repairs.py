"""A provisioner and a resetter in memory, which count what is asked of them."""

from __future__ import annotations

from collections.abc import Callable

from healthd.core.errors import BackendBusy, BackendRefused
from healthd.core.model import Remedy
from healthd.remediation.ports import StateOwner


class FakeProvisioner:
    """A ``Provisioner`` that counts its requests.

    ``reboots`` is called for each reboot; it may raise what a back end raises. ``replaces``, where given, for each
    replacement; ``instance`` is the machine behind the name now. ``recalls``: whether a request can be taken back;
    ``too_late``: only what is not to come again, for the platform may have begun.
    ``repeats_s``: the answer of ``repeats_after_s`` for either remedy.
    """

    kind = "fake"
    state_owner = StateOwner.ENGINE
    delegates = acts_late = False

    def __init__(self, reboots: Callable[[], None], replaces: Callable[[], None] | None = None) -> None:
        self._reboots, self._replaces = reboots, replaces
        self.requests = 0
        self.replacements = 0
        self.instance = "i-0fake0"
        self.others = ""
        self.says = ""
        self.recalls = self.too_late = False
        self.repeats_s: float | None = None
        self.taken_back = 0

    def reason_against(self, remedy: Remedy) -> str:
        """Nothing for a reboot, nor for a replacement where one was given."""
        can = remedy is Remedy.REBOOT_NODE or (remedy is Remedy.REPLACE_NODE and self._replaces is not None)
        return "" if can else f"the fake provisioner has no {remedy}"

    def dry_run(self, remedy: Remedy) -> str:
        """The request that it would get."""
        if why := self.reason_against(remedy):
            raise BackendRefused(why)
        return f"would be asked for {remedy}"

    def stands_down(self) -> str:
        """As given."""
        return self.others

    def machine(self) -> str:
        """As given."""
        return self.instance

    def reboot(self) -> None:
        """Count, and pass on."""
        self.requests += 1
        self._reboots()

    def replace(self) -> None:
        """Count, and pass on."""
        if self._replaces is None:
            raise BackendRefused("this provisioner has no other machine")
        self.replacements += 1
        self._replaces()

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """As given."""
        return self.repeats_s

    def take_back(self, *, carried_out: bool) -> bool:
        """As given, and counted."""
        is_taken = self.recalls and (carried_out or not self.too_late)
        self.taken_back += is_taken
        return is_taken

    def progress(self) -> str:
        """As given."""
        return self.says


class FakeResetter:
    """A ``Resetter`` that counts. ``resets`` None: no reset tool. ``held_by``: services that are still ending."""

    def __init__(self, resets: Callable[[], None] | None = None) -> None:
        self._resets = resets
        self.requests = 0
        self.running: tuple[str, ...] = ("nvidia-persistenced",)
        self.stopped: list[str] = []
        self.held_by = ""

    def reason_against(self) -> str:
        """Nothing, where it can."""
        return "" if self._resets else "nvidia-smi: not found"

    def holders(self) -> tuple[str, ...]:
        """The services that run and were not stopped."""
        return tuple(name for name in self.running if name not in self.stopped)

    def reset(self, stop: tuple[str, ...]) -> str:
        """Stop these, count, and pass on."""
        if self._resets is None:
            raise BackendRefused("nvidia-smi: not found")
        self.stopped += [name for name in stop if name not in self.stopped]
        if self.held_by:
            raise BackendBusy(f"the GPUs are still held by {self.held_by}")
        self.requests += 1
        self._resets()
        return "reset"

    def start(self, services: tuple[str, ...]) -> str:
        """Start these."""
        self.stopped = [name for name in self.stopped if name not in services]
        return ""
