"""Which steps answer which remedy."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from healthd.model import Mode, Remedy, Severity, Step
from healthd.remediation.playbook import QUARANTINE, REBOOT, steps_for, takes_node_out


@dataclass(frozen=True)
class Fault:
    """As much of a diagnosis as the playbook looks at."""

    remedy: Remedy
    severity: Severity = Severity.WARNING


def test_a_reboot_waits_for_the_job_and_keeps_the_evidence() -> None:
    """Drained before anything, idle and recorded before the reboot, proven before it is back."""
    assert REBOOT == (Step.DRAIN, Step.WAIT_IDLE, Step.COLLECT, Step.REBOOT, Step.VERIFY, Step.RELEASE)
    assert QUARANTINE == (Step.DRAIN, Step.VERIFY, Step.RELEASE)


@pytest.mark.parametrize("remedy", [Remedy.RESET_GPU, Remedy.REBOOT_NODE])
def test_repair_reboots_where_the_provider_can(remedy: Remedy) -> None:
    """A GPU reset is answered by a reboot as well; a provider that cannot leaves the node quarantined."""
    assert steps_for(Fault(remedy), Mode.REPAIR, lambda asked: asked is remedy) == REBOOT
    assert steps_for(Fault(remedy), Mode.REPAIR, lambda _: False) == QUARANTINE


def test_a_replacement_is_not_a_reboot() -> None:
    """What needs another machine is kept out, even by a provider that says it can do everything."""
    assert steps_for(Fault(Remedy.REPLACE_NODE), Mode.REPAIR, lambda _: True) == QUARANTINE


@pytest.mark.parametrize("remedy", [Remedy.NONE, Remedy.WATCH, Remedy.RESTART_APP, Remedy.ASK_HUMAN])
def test_critical_keeps_jobs_off_whatever_it_calls_for(remedy: Remedy) -> None:
    """No job may start on a critical node, so it is quarantined, though no step of ours mends it."""
    assert not takes_node_out(Fault(remedy))
    assert takes_node_out(Fault(remedy, Severity.CRITICAL))
    assert steps_for(Fault(remedy, Severity.CRITICAL), Mode.REPAIR, lambda _: True) == QUARANTINE


@pytest.mark.parametrize("severity", Severity)
@pytest.mark.parametrize("remedy", Remedy)
def test_lower_modes_do_less(remedy: Remedy, severity: Severity) -> None:
    """Observe has no steps; quarantine never reboots, and does not ask what the provider can."""

    def never_asked(asked: Remedy) -> bool:
        raise AssertionError(f"asked about {asked}")

    fault = Fault(remedy, severity)
    assert steps_for(fault, Mode.OBSERVE, never_asked) == ()
    assert steps_for(fault, Mode.QUARANTINE, never_asked) == (QUARANTINE if takes_node_out(fault) else ())
