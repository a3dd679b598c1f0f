"""A program that is wrong on purpose, the real driver's line about it, and a whole daemon that reads it.

Only with HEALTHD_TEST_GPU_FAULTS=1, where no jobs run: the line stays in the kernel log until the next boot.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.probe.child import module_path
from healthd.sources.machine import Machine
from tests.support.limits import limit_s
from tests.support.running import QUARANTINES, RunningNode

PROGRAM = Path(__file__).with_name("wrong_program.py")
ENVIRON = {"PYTHONPATH": module_path()}


@pytest.fixture
def node(machine: Machine, tmp_path: Path) -> Iterator[RunningNode]:
    """A daemon that reads this machine's kernel log, in mode quarantine."""
    if os.environ.get("TEST_GPU_FAULTS") != "1":
        pytest.skip("provokes an XID: HEALTHD_TEST_GPU_FAULTS=1 allows it")
    running = RunningNode(tmp_path / "node", "this-node", kmsg="/dev/kmsg", environ=ENVIRON, sections=QUARANTINES)
    running.start()
    yield running
    running.stop()


def test_the_fault_of_a_program_is_seen_and_takes_no_node_out(node: RunningNode, machine: Machine) -> None:
    """On the right GPU, with the process. It is the job's fault, so the node stays usable and in service."""
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, **ENVIRON},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said, _ = program.communicate(timeout=limit_s(60))
    assert program.returncode == 0, said

    def evidence_pids() -> set[int]:
        found = (each for check in node.check()["checks"] for each in check["findings"])
        return {each["evidence"].get("pid") for each in found if each["code"] == "gpu.xid.31"}

    node.wait(lambda: program.pid in evidence_pids(), 10, "the daemon sees the program's XID 31")
    report, (gpu, *_) = node.check(), machine.nvml.ask()
    fault = next(each for each in report["diagnoses"] if each["code"] == "gpu.xid.31")
    assert (fault["component"], fault["severity"], fault["remedy"]) == (f"gpu:{gpu.uuid}", "warning", "restart_app")
    status = node.status()
    assert status is not None
    assert (report["verdict"], status["remediation"]) == ("warning", None)
