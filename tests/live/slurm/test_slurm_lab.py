"""The lab itself: what the other tests here rest on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.slurm.slurm_lab import SlurmLab

pytestmark = pytest.mark.slurm


def _processes_of(lab: SlurmLab) -> list[str]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as cmdline, open(f"/proc/{pid}/environ", "rb") as environ:
                text = (cmdline.read() + environ.read()).decode(errors="replace")
        except OSError:  # ended meanwhile
            continue
        if str(lab.root) in text and int(pid) != os.getpid():
            found.append(text[:60])
    return found


def test_labs_run_side_by_side_and_leave_nothing(slurm: SlurmLab) -> None:
    """A second cluster has its own controller; after its end no process, not even a job's, and no file is left."""
    with SlurmLab(nodes=2) as other:
        job = other.run_job("n0002")
        other.update("n0001", "state=drain", "reason=x")
        assert slurm.state("n0001") == "IDLE"
        assert other.job(job)["NodeList"] == "n0002"
        other.ctld_pause()
        other.munged_pause()
        assert _processes_of(other)
    assert _processes_of(other) == []
    assert not other.root.exists()


def test_reset_undoes_everything(slurm: SlurmLab) -> None:
    """Jobs, drains, downs, reservations and dead or paused daemons: after reset every node is idle and answers."""
    slurm.run_job("n0001")
    slurm.update("n0001", "state=drain", "reason=x")
    slurm.update("n0002", "state=down", "reason=x")
    slurm.update("n0003", "state=fail", "reason=x")
    options = ("nodes=n0004", "starttime=now", "duration=UNLIMITED", "users=root", "flags=MAINT")
    assert slurm.scontrol("create", "reservation", "reservationname=r", *options).returncode == 0
    slurm.slurmd_stop("n0005")
    slurm.munged_pause()
    slurm.ctld_pause()
    slurm.reset()
    assert set(slurm.states().values()) == {"IDLE"}
    assert slurm.client("squeue", "-h").stdout == ""


def test_hooks_run_and_a_reboot_is_one(slurm_lab_factory: Callable[..., SlurmLab], tmp_path: Path) -> None:
    """A Prolog given as a setting runs before the job; a reboot gives the node a new boot time."""
    prolog = tmp_path / "prolog"
    prolog.write_text(f"#!/bin/sh\necho $SLURM_JOB_ID > {tmp_path}/seen\n")
    prolog.chmod(0o755)
    lab = slurm_lab_factory(nodes=1, conf={"Prolog": str(prolog), "PrologFlags": "Alloc"})
    job = lab.run_job("n0001")
    seen = tmp_path / "seen"
    lab.wait(lambda: seen.exists() and seen.read_text() == f"{job}\n", 20, "the Prolog to run")
    lab.cancel()
    before = lab.shows("n0001", "BootTime")
    lab.reboot("n0001")
    lab.wait(lambda: lab.shows("n0001", "BootTime") != before, 10, "a new boot time")
