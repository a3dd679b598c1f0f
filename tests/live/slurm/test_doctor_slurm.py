"""`healthd doctor` and a real slurmctld: it answers, it does not know the node, it sleeps, its tools are gone."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.limits import limit_s
from tests.support.running import RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]
SECTIONS = """
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
timeout_s = 2
"""


def asked(lab: SlurmLab, folder: Path, name: str, more: str = "") -> tuple[int, dict[str, Any], float]:
    """(exit code, the line about slurmctld, seconds)."""
    node = RunningNode(folder / name, name, sections=SECTIONS + more, environ=lab.env())
    began = time.monotonic()
    done = node.healthd("doctor", "--json", "--config", str(node.config))
    took_s = time.monotonic() - began
    (line,) = (each for each in json.loads(done.stdout)["lines"] if each["about"] == "slurmctld")
    return done.returncode, line, took_s


def test_a_slurmctld_that_answers_and_a_node_that_it_does_not_know(slurm: SlurmLab, tmp_path: Path) -> None:
    """Its version and the node's state; a wrong name is missing, with the setting that mends it."""
    before = slurm.states()
    _, line, _ = asked(slurm, tmp_path, "n0001")
    assert line["status"] == "ok"
    assert re.fullmatch(r"slurmctld answers \(slurm\S* \d+\.\d+\S*\); n0001 is idle", line["why"])
    _, line, _ = asked(slurm, tmp_path, "n9999")
    assert line["status"] == "missing"
    assert "NodeName of slurm.conf" in line["fix"]
    assert slurm.states() == before


def test_a_slurmctld_that_sleeps_could_not_be_told(slurm: SlurmLab, tmp_path: Path) -> None:
    """It costs a deadline and nothing else: silence is no evidence that something is missing."""
    slurm.ctld_pause()
    try:
        _, line, took_s = asked(slurm, tmp_path, "n0001")
    finally:
        slurm.ctld_resume()
    assert line["status"] == "could not tell"
    assert "scontrol ping" in line["fix"]
    assert took_s < limit_s(20)


def test_clients_that_are_not_where_they_should_be(slurm: SlurmLab, tmp_path: Path) -> None:
    """The folder that is configured holds none of Slurm's commands: it could not be asked, and the setting is named."""
    (tmp_path / "empty").mkdir()
    _, line, _ = asked(slurm, tmp_path, "n0001", more=f'bin_dir = "{tmp_path}/empty"\n')
    assert line["status"] == "could not tell"
    assert "[orchestrator.slurm] bin_dir" in line["fix"]
