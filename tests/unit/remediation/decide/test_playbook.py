"""Which steps answer which remedy."""

from __future__ import annotations

import pytest

from healthd.core.model import REPAIRS, Remedy, Step
from healthd.remediation.decide.rules import QUARANTINE, STEPS, without_drain


def test_a_quarantine_repairs_nothing() -> None:
    """A place in the budget, drained, watched until the fault is gone, back."""
    assert QUARANTINE == (Step.SLOT, Step.DRAIN, Step.VERIFY, Step.RELEASE)
    assert not REPAIRS.intersection(QUARANTINE)


@pytest.mark.parametrize(
    ("remedy", "act"),
    [
        (Remedy.RESET_GPU, Step.RESET),
        (Remedy.REBOOT_NODE, Step.REBOOT),
        (Remedy.REPLACE_NODE, Step.REPLACE),
    ],
)
def test_a_repair_waits_for_the_job_and_keeps_the_evidence(remedy: Remedy, act: Step) -> None:
    """A place and a drain before anything, idle and recorded before the act, proven before it is back; one act each."""
    out, back = (Step.SLOT, Step.DRAIN), (Step.VERIFY, Step.RELEASE)
    assert STEPS[remedy] == (*out, Step.WAIT_IDLE, Step.COLLECT, act, *back)


def test_only_what_needs_the_node_has_steps() -> None:
    """Nothing of ours is done for a watch, a restart of the application, or what a person must settle."""
    assert set(STEPS) == {Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE}


def test_where_a_drain_is_a_replacement_there_is_none() -> None:
    """The same steps in the same order: the place in the budget alone keeps jobs off."""
    assert without_drain(QUARANTINE) == (Step.SLOT, Step.VERIFY, Step.RELEASE)
    for steps in STEPS.values():
        assert without_drain(steps) == tuple(step for step in steps if step is not Step.DRAIN)
