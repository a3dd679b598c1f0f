"""Which steps answer which remedy. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from healthd.model import Remedy, Step

_OUT = (Step.SLOT, Step.DRAIN)
_BACK = (Step.VERIFY, Step.RELEASE)

QUARANTINE: tuple[Step, ...] = (*_OUT, *_BACK)
"""A place in the budget, out, until the fault is gone for a reason that others brought about; then back."""

REBOOT: tuple[Step, ...] = (*_OUT, Step.WAIT_IDLE, Step.COLLECT, Step.REBOOT, *_BACK)
"""A place, drain, let the job end, save the evidence, reboot, prove it, back."""

RESET: tuple[Step, ...] = (*_OUT, Step.WAIT_IDLE, Step.COLLECT, Step.RESET, *_BACK)
"""The same with a reset of all GPUs in the place of the reboot: a board joined by NVSwitch is reset as one."""

REPLACE: tuple[Step, ...] = (*_OUT, Step.WAIT_IDLE, Step.COLLECT, Step.REPLACE, *_BACK)
"""The same with another machine behind the name; it proves itself and is let in."""

STEPS: Mapping[Remedy, tuple[Step, ...]] = {
    Remedy.RESET_GPU: RESET,
    Remedy.REBOOT_NODE: REBOOT,
    Remedy.REPLACE_NODE: REPLACE,
}
REPAIRS = frozenset({Step.RESET, Step.REBOOT, Step.REPLACE})


def kept_out(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same, but the node stays out where it would be verified, until a person says otherwise."""
    verify = steps.index(Step.VERIFY)
    return (*steps[:verify], Step.STAY, *steps[verify:])


def without_drain(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same where a drain would be a replacement, or the platform has the node's state: the slot alone fences it."""
    return tuple(step for step in steps if step is not Step.DRAIN)
