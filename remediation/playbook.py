"""Which steps answer which remedy. Pure data and one function."""

from __future__ import annotations

from collections.abc import Callable

from healthd.model import REMEDY_RANK, Mode, Remedy, Step

QUARANTINE: tuple[Step, ...] = (Step.DRAIN, Step.VERIFY, Step.RELEASE)
"""Out, until the fault is gone for a reason that others brought about; then back."""

REBOOT: tuple[Step, ...] = (Step.DRAIN, Step.WAIT_IDLE, Step.COLLECT, Step.REBOOT, Step.VERIFY, Step.RELEASE)
"""Drain, let the job end, save the evidence, reboot, prove it, back. It answers RESET_GPU too: a reboot resets them."""


def takes_node_out(remedy: Remedy) -> bool:
    """Whether a remedy needs the node to itself. Restarting an application, watching or asking a person does not."""
    return REMEDY_RANK[remedy] >= REMEDY_RANK[Remedy.RESET_GPU]


def steps_for(remedy: Remedy, mode: Mode, can: Callable[[Remedy], bool]) -> tuple[Step, ...]:
    """The steps that ``remedy`` calls for, as far as ``mode`` and the provisioner go; empty when none are allowed."""
    if mode is Mode.OBSERVE or not takes_node_out(remedy):
        return ()
    if mode is Mode.REPAIR and remedy is not Remedy.REPLACE_NODE and can(remedy):
        return REBOOT
    return QUARANTINE
