"""The end of freezes and fences in Slurm, whose reservations may end by themselves at that moment."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from healthd.core.errors import BackendError
from healthd.core.node import CommandResult
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from tests.unit.remediation.decide.test_freeze import LISTED


class Slurmctld:
    """Lists two freezes, and answers the deletion of the first with ``error``."""

    def __init__(self, error: str) -> None:
        self.error, self.deleted = error, list[str]()

    def __call__(
        self, argv: list[str], *, timeout_s: float, env: Mapping[str, str], limit_bytes: int = 0
    ) -> CommandResult:
        out, stderr = LISTED + LISTED.replace("driver_rollout", "fabric_work"), ""
        if "delete" in argv:
            out = ""
            self.deleted.append(argv[-1])
            stderr = self.error if "driver_rollout" in argv[-1] else ""
        return CommandResult(argv=tuple(argv), code=1 if stderr else 0, stdout=out, stderr=stderr, duration_s=0.0)


def test_a_freeze_that_has_just_ended_keeps_no_other() -> None:
    """Its reservation ended between the list and the deletion: the other one is ended all the same."""
    slurmctld = Slurmctld("Error deleting reservation: Requested reservation is invalid")
    SlurmOrchestrator(node="n1", run=slurmctld).unfreeze()
    assert len(slurmctld.deleted) == 2


def test_a_freeze_that_cannot_be_ended_is_named() -> None:
    """Any other answer is one."""
    slurmctld = Slurmctld("slurm_load_reservations error: Access/permission denied")
    with pytest.raises(BackendError, match=r"deletion of freeze .*:driver_rollout:alice.*permission denied"):
        SlurmOrchestrator(node="n1", run=slurmctld).unfreeze()
