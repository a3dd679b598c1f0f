"""Every check on the real machine: whatever it comes to, it is no defect of ours, and no fault that is not there."""

from __future__ import annotations

import pytest

from healthd.core.check import Check, discover
from healthd.core.model import Severity
from healthd.observe.runner import run_check
from healthd.sources.machine import Machine

LOOKING = {name: check for name, check in discover().items() if check.on != "kernel"}


@pytest.mark.parametrize("check", LOOKING.values(), ids=LOOKING)
def test_the_outcome_is_sane(machine: Machine, check: Check) -> None:
    """The check ends by itself, in time, without a defect, and finds nothing critical on a machine that works."""
    outcome = run_check(check, machine, check.settings())
    assert "defect" not in outcome.result.reason
    assert not any("defect" in gap for gap in outcome.result.undecided)
    assert [finding for finding in outcome.result.findings if finding.severity is Severity.CRITICAL] == []
    assert outcome.duration_s < check.timeout_s
