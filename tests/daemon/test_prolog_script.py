"""The Prolog that refuses a job, with clients that take their time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.limits import limit_s
from tests.support.running import ROOT

SCRIPT = ROOT / "packaging/slurm/prolog.sh"
CLIENT = """#!/bin/sh
echo "${0##*/} $1" >>{folder}/calls
echo $(($(cat {folder}/now) + 2)) >{folder}/now
echo '(null)|'
"""


@pytest.mark.process
def test_a_slow_slurmctld_delays_the_refusal_by_a_bounded_time(tmp_path: Path) -> None:
    """The comment is not there however often it is written, and each client takes 2 s by the clock of the script: after
    6 s none is run, and the job is refused all the same."""
    (tmp_path / "now").write_text("1795000000\n")
    for name, text in {
        "scontrol": CLIENT,
        "squeue": CLIENT,
        "date": "#!/bin/sh\ncat {folder}/now\n",
        "healthd": "#!/bin/sh\necho print healthd: node n1 is not fit\nexit 1\n",
    }.items():
        (tmp_path / name).write_text(text.replace("{folder}", str(tmp_path)))
        (tmp_path / name).chmod(0o755)
    script = tmp_path / "prolog.sh"
    script.write_text(SCRIPT.read_text().replace("\nPATH=", f"\nPATH={tmp_path}:", 1))
    done = subprocess.run(
        ["sh", script],
        env={"SLURM_JOB_ID": "4711"},
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "print healthd: node n1 is not fit\n", "")
    assert (tmp_path / "calls").read_text().splitlines() == ["scontrol notify", "squeue -h", "scontrol update"]
