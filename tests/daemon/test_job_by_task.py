"""``healthd job`` for a task of an array or a part of a heterogeneous job, which squeue prints as 4711_3 and 4711+3,
and which healthd knows by its number.

The clients of Slurm are stand-ins: no job of that number ran here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from healthd.ledger.database import LEDGER, Ledger
from healthd.ledger.entries import LedgerJob
from tests.support.fleet_readings import NOW
from tests.support.running import command_line

pytestmark = [pytest.mark.process]

SQUEUE = """#!/bin/sh
case "$*" in
*admin_comment*) echo '{job}|768|(null)|' ;;
*) echo '{job}|4714|FAILED|alice|n[1-2]|0|1|1|N/A|1795000000|1795000060|1|N/A|None|' ;;
esac
"""


@pytest.mark.parametrize("job_id", ["4711_3", "4711+3"])
def test_a_task_of_an_array_has_the_verdict_of_its_number(tmp_path: Path, job_id: str) -> None:
    """The ledger has the task as 4714, as slurmctld's own number."""
    squeue = SQUEUE.replace("{job}", job_id)
    for name, script in {"scontrol": "#!/bin/sh\nexit 1\n", "squeue": squeue}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    config = tmp_path / "head.toml"
    config.write_text(
        f'[orchestrator]\nkind = "slurm"\n[orchestrator.slurm]\nbin_dir = "{tmp_path}"\n'
        f'[controller]\nstate_dir = "{tmp_path}/state"\n'
    )
    end = LedgerJob(job="4714", run=0, at=NOW, state="FAILED", ending="exit code 3", verdict="node", sentence="node n2")
    ledger = Ledger(tmp_path / "state" / LEDGER, now=NOW)
    ledger.put_jobs([end])
    ledger.close()
    found = {}
    for job in (job_id, "4714"):
        done = command_line(["job", job, "--json", "--config", str(config)], {"PATH": "/usr/bin:/bin"}, 60.0)
        data = json.loads(done.stdout)
        found[job] = data["verdict"], len(data["ledger"]), done.returncode
    assert found == dict.fromkeys((job_id, "4714"), ("node", 1, 1))
