"""A machine without a provider: you configure the command that reboots it, and there is no replacement.

It must not wait for the reboot or claim that it happened: the evidence is a changed boot id.
"""

from __future__ import annotations

from typing import Protocol

from healthd.core.errors import BackendRefused, BackendUnknown, SourceError, SourceMissing
from healthd.core.model import Remedy
from healthd.core.node import CommandResult
from healthd.remediation.ports import StateOwner
from healthd.sources.command import run_command


class RunReboot(Protocol):
    """The runner of the command: run_command, or a test's own."""

    def __call__(self, argv: tuple[str, ...], *, timeout_s: float) -> CommandResult:
        """As run_command."""


class LocalProvisioner:
    """The Provisioner of a machine whose reboot is ``reboot_command``; where that is empty, no remedy is possible.

    ``state_owner``: PLATFORM where another service here replaces every drained node.
    """

    kind = "local"
    delegates = acts_late = False

    def __init__(
        self,
        *,
        reboot_command: tuple[str, ...] = (),
        timeout_s: float = 30.0,
        run: RunReboot = run_command,
        state_owner: StateOwner = StateOwner.ENGINE,
    ) -> None:
        self.state_owner = state_owner
        self._command, self._timeout_s, self._run = reboot_command, timeout_s, run

    def reason_against(self, remedy: Remedy) -> str:
        if remedy is not Remedy.REBOOT_NODE:
            return f"the local provisioner has no {remedy}: see [provisioner] kind"
        return "" if self._command else "no reboot command is configured for the local provisioner"

    def dry_run(self, remedy: Remedy) -> str:
        if why := self.reason_against(remedy):
            raise BackendRefused(why)
        return f"would run: {' '.join(self._command)}"

    def stands_down(self) -> str:
        """Always "": no other service provides this machine."""
        return ""

    def machine(self) -> str:
        """Always the same: there is one machine behind this node."""
        return "local"

    def replace(self) -> None:
        raise BackendRefused("no replacement: the local provisioner has no other machine; see [provisioner] kind")

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """Never: only its owner knows whether the command may be run twice."""
        return None

    def take_back(self, *, carried_out: bool) -> bool:
        """A command that was run cannot be taken back."""
        return False

    def progress(self) -> str:
        """Always "": the boot id is the evidence, and there is no service to ask."""
        return ""

    def reboot(self) -> None:
        """Run the command. Raises BackendRefused if it failed or is not there, BackendUnknown if it did not end."""
        if not self._command:
            raise BackendRefused("no reboot: no reboot command is configured for the local provisioner")
        shown = " ".join(self._command)
        try:
            result = self._run(self._command, timeout_s=self._timeout_s)
        except SourceMissing as error:
            raise BackendRefused(f"no reboot: {error}") from error
        except SourceError as error:
            raise BackendUnknown(f"unknown whether the machine reboots: {error}") from error
        if result.code:
            output = (result.stderr or result.stdout).strip()[-200:]
            raise BackendRefused(f"no reboot: {shown}: exit status {result.code}: {output}")
