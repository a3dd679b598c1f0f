"""What other people's reservations are to healthd on a real slurmctld: no slots, and maintenance windows."""

from __future__ import annotations

import pytest

from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.ports import Slot
from tests.live.slurm.slurm_lab import SlurmLab

pytestmark = pytest.mark.slurm

NODE, OTHER = "n0001", "n0002"
OURS = Slot(scope="cluster", index=0, node=NODE)
WORDS = "ask ann\nor bob\nUsers=x State=ACTIVE Flags=MAINT\nReservationName=course"


def _of(lab: SlurmLab, node: str = NODE) -> SlurmOrchestrator:
    return SlurmOrchestrator(node=node, conf=str(lab.conf))


FORMS = (
    ("has space", f"nodes={OTHER}", "starttime=now+7hour"),
    ("float", f"nodes={NODE}", "starttime=now+60", "flags=TIME_FLOAT"),
    ("daily", "nodes=n0003", "starttime=now+5hour", "flags=DAILY"),
    ("cores", "corecnt=2", "nodes=n0004", "starttime=now+3hour"),
    ("all", "nodes=ALL", "starttime=now+30hour", "flags=MAINT,IGNORE_JOBS"),
    ("course", "nodes=n0005", "starttime=now+50hour", f"comment={WORDS}"),  # Slurm 23.02 and newer
)


def _accepts(lab: SlurmLab, name: str, *words: str) -> bool:
    times = () if any(word.startswith("starttime=") for word in words) else ("starttime=now",)
    options = (f"reservationname={name}", *times, "duration=60", "users=root", *words)
    return lab.scontrol("create", "reservation", *options).returncode == 0


def test_reservations_of_every_form_neither_hide_nor_add_a_slot(slurm: SlurmLab) -> None:
    """Names with blanks, floating, daily and by cores; comments of several lines where this Slurm has comments."""
    orchestrator = _of(slurm)
    orchestrator.claim(OURS.scope, OURS.index)
    accepted = [form[0] for form in FORMS if _accepts(slurm, *form)]
    assert len(accepted) >= len(FORMS) - 1, accepted
    shown = slurm.scontrol("-o", "show", "reservation").stdout
    assert (WORDS in shown) == ("course" in accepted)
    assert orchestrator.slots() == (OURS,)
    assert orchestrator.view(jobs=True).maintenance == ""


def test_a_maintenance_of_somebody_else_is_a_window_and_a_slot_is_none(slurm: SlurmLab) -> None:
    """It is named on the nodes that it has, from its beginning on; our own slot is not, nor is a course."""
    mine, other = _of(slurm), _of(slurm, OTHER)
    mine.claim(OURS.scope, OURS.index)
    assert _accepts(slurm, "course", "nodes=n[0001-0003]", "flags=IGNORE_JOBS")
    assert _accepts(slurm, "later", "nodes=ALL", "starttime=now+1hour", "flags=MAINT,IGNORE_JOBS")
    assert (mine.view(jobs=True).maintenance, other.view(jobs=True).maintenance) == ("", "")
    assert _accepts(slurm, "rack 7", "nodes=n[0001,0003-0004]", "flags=MAINT,IGNORE_JOBS")
    slurm.wait(lambda: mine.view(jobs=True).maintenance == "rack 7", 10, "the window on n0001")
    assert other.view(jobs=True).maintenance == ""
    assert mine.slots() == (OURS,)


@pytest.mark.parametrize("stops", ["suspend", "SIGSTOP"])
def test_a_job_that_was_suspended_or_stopped_is_work(slurm: SlurmLab, stops: str) -> None:
    """A suspended job leaves the drained node IDLE with no CPU allocated: squeue alone has it."""
    orchestrator = _of(slurm)
    job = slurm.run_job(NODE)
    orchestrator.quarantine("healthd: x gpu:0 [abcd1234]")
    if stops == "suspend":
        assert slurm.scontrol("suspend", job).returncode == 0
        slurm.wait(lambda: orchestrator.view().idle, 20, "no CPU to be allocated")
    else:
        slurm.client("scancel", "-s", "STOP", "--full", job)
        slurm.wait(lambda: "STOPPED" in slurm.client("squeue", "-h", "-o", "%T").stdout, 20, "the job to be stopped")
    view = orchestrator.view(jobs=True)
    assert (view.idle, view.jobs) == (False, (job,))
    slurm.scontrol("resume", job)
