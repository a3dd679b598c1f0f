"""`healthd fleet` on Slurm is a process of its own, whose time is that of its imports and of its slowest request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import limit_s

NODES = "NodeName=gpu-1 Arch=x86_64 State=IDLE ThreadsPerCore=1 Partitions=main\n"
CONFIG = "Configuration data as of 2026-11-26T04:00:00\nClusterName             = train-a\n"
ANSWERS = {"nodes": NODES, "reservation": "No reservations in the system\n", "config": CONFIG, "topology": ""}
SCONTROL = """#!/bin/sh
for last; do :; done
touch "{folder}/asked-$last"
for each in {together}; do
    until [ -e "{folder}/asked-$each" ]; do sleep 0.01; done
done
cat "{folder}/$last"
"""
"""Prints an answer once every request has begun."""
LIST_MODULES = """
import json, sys
from healthd.__main__ import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""
NOT_LOADED = (
    "boto3",
    "healthd.checklib",
    "healthd.checks",
    "healthd.controller",
    "healthd.core.check",
    "healthd.judge.history",
    "healthd.ledger",
    "healthd.remediation.decide.rules",
    "healthd.remediation.engine",
    "lightkube",
    "sqlite3",
    "ssl",
    "structlog",
    "urllib.request",
)
"""What runs or judges checks, acts, asks a node, or reads the ledger."""


def fleet(folder: Path, *arguments: str, together: str) -> tuple[Any, list[str]]:
    """The document of the command, and its modules."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(SCONTROL.format(folder=folder, together=together))
    (tools / "scontrol").chmod(0o755)
    for name, text in ANSWERS.items():
        (folder / name).write_text(text)
    slurm = f'conf = "{folder}/slurm.conf"\nbin_dir = "{tools}"\ntimeout_s = {limit_s(6)}\n'
    (folder / "config.toml").write_text(f'[orchestrator]\nkind = "slurm"\n[orchestrator.slurm]\n{slurm}')
    argv = [sys.executable, "-c", LIST_MODULES, "fleet", "--config", str(folder / "config.toml"), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=limit_s(30), env={**os.environ})
    assert done.stdout, done.stderr
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 1  # the node has never reported
    return done.stdout, modules


@pytest.mark.process
def test_it_loads_nothing_that_judges_and_asks_slurmctld_side_by_side(tmp_path: Path) -> None:
    """Three requests: none waits for the answer of another."""
    shown, modules = fleet(tmp_path, together="nodes reservation config")
    assert shown.startswith("cluster train-a  ·  1 nodes")
    assert [each for each in modules if each in NOT_LOADED or each.startswith(tuple(f"{n}." for n in NOT_LOADED))] == []


@pytest.mark.process
def test_the_racks_are_a_fourth_request_beside_them(tmp_path: Path) -> None:
    """As --json has them."""
    shown, _ = fleet(tmp_path, "--json", together="nodes reservation config topology")
    assert [each["name"] for each in json.loads(shown)["nodes"]] == ["gpu-1"]
