"""What takes a node out, and which steps answer it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from healthd.model import REMEDY_RANK, Mode, Remedy, Severity, Step

QUARANTINE: tuple[Step, ...] = (Step.DRAIN, Step.VERIFY, Step.RELEASE)
"""Out, until the fault is gone for a reason that others brought about; then back."""

REBOOT: tuple[Step, ...] = (Step.DRAIN, Step.WAIT_IDLE, Step.COLLECT, Step.REBOOT, Step.VERIFY, Step.RELEASE)
"""Drain, let the job end, save the evidence, reboot, prove it, back. It answers RESET_GPU too: a reboot resets them."""


class Judged(Protocol):
    """A fault or a diagnosis, as far as it matters here."""

    @property
    def severity(self) -> Severity:
        """Whether a job may start now."""

    @property
    def remedy(self) -> Remedy:
        """What it calls for."""


def takes_node_out(judged: Judged) -> bool:
    """Whether new jobs must be kept off: no job may start here now, or the remedy needs the node to itself.

    A critical fault that only a person can mend keeps jobs off as well, until it is gone.
    """
    return judged.severity is Severity.CRITICAL or REMEDY_RANK[judged.remedy] >= REMEDY_RANK[Remedy.RESET_GPU]


def steps_for(judged: Judged, mode: Mode, can: Callable[[Remedy], bool]) -> tuple[Step, ...]:
    """The steps that a diagnosis calls for, as far as ``mode`` and the provisioner go; empty when none are allowed."""
    if mode is Mode.OBSERVE or not takes_node_out(judged):
        return ()
    if mode is Mode.REPAIR and judged.remedy in (Remedy.RESET_GPU, Remedy.REBOOT_NODE) and can(judged.remedy):
        return REBOOT
    return QUARANTINE
