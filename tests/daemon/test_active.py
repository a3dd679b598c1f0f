"""``healthd check --active`` as a person runs it: through a real daemon, with a stand-in for nccl-tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from healthd.sim.machine import SimulatedMachine
from healthd.sim.nvml import write_state
from healthd.sim.nvml_state import healthy_state, with_line
from tests.support.limits import limit_s
from tests.support.running import NOBODY, ROOT, RunningNode

pytestmark = pytest.mark.process

PERF = ROOT / "tests/support/active_sim/all_reduce_perf.py"


@pytest.fixture
def machine(tmp_path: Path) -> SimulatedMachine:
    return SimulatedMachine(tmp_path / "machine")


class ActiveNode(RunningNode):
    """A simulated p5.48xlarge whose all_reduce_perf is the stand-in, broken as ``fault`` says."""

    def __init__(self, folder: Path, machine: SimulatedMachine, fault: str = "") -> None:
        perf = folder / "all_reduce_perf"
        folder.mkdir()
        perf.write_text(f"#!{sys.executable}\n{PERF.read_text()}")
        perf.chmod(0o755)
        sections = f'[orchestrator]\nkind = "local"\n{machine.sections(all_reduce_perf=perf)}'
        environ = {"ACTIVE_SIM_FAULT": fault, "ACTIVE_SIM_NOTE": str(folder / "note")}
        super().__init__(folder, "p5", sections=sections, kmsg=str(machine.kmsg), environ=environ)
        self.note = folder / "note"

    def ask(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """The exit code, the JSON and what was said meanwhile."""
        answer = self.healthd("check", "--active", "--json", "--socket", str(self.socket), *arguments)
        return answer.returncode, json.loads(answer.stdout), answer.stderr


@pytest.fixture
def node(tmp_path: Path, machine: SimulatedMachine, request: pytest.FixtureRequest) -> Iterator[ActiveNode]:
    made = ActiveNode(tmp_path / "node", machine, getattr(request, "param", ""))
    made.start()
    yield made
    made.stop()


def test_the_daemon_runs_the_test_and_gives_the_figures(node: ActiveNode) -> None:
    """The answer has each figure with its limit and where the limit comes from; progress goes to standard error."""
    code, verdict, message = node.ask("nccl.nvlink")
    (check,) = verdict["checks"]
    figures = {figure["name"]: figure for figure in check["figures"]}
    assert (code, check["outcome"], verdict["source"]) == (0, "ok", "daemon")
    assert figures["nccl_nvlink_busbw_gb_s"]["value"] == 478.12
    assert figures["nccl_nvlink_busbw_gb_s"]["limit"] == 414
    assert "azurehpc-health-checks" in figures["nccl_nvlink_busbw_gb_s"]["limit_source"]
    assert message.startswith("healthd: nccl.nvlink: ")


def test_an_active_test_never_runs_unasked(node: ActiveNode) -> None:
    """A plain verdict neither runs nor names it; naming it without the option, or a code in the place of its check, is
    refused with the way to do it."""
    assert not any(check["name"].startswith("nccl.") for check in node.check()["checks"])
    refused = node.healthd("check", "nccl.nvlink", "--socket", str(node.socket))
    assert (refused.returncode, "add --active" in refused.stderr) == (64, True)
    assert not node.note.exists()
    code = node.healthd("check", "gpu.xid.79", "--socket", str(node.socket))
    assert (code.returncode, "kernel.xid finds this code: `healthd check kernel.xid`" in code.stderr) == (64, True)


@pytest.mark.parametrize("node", ["perf_slow"], indirect=True)
def test_what_an_active_test_found_stays_in_the_verdict(node: ActiveNode) -> None:
    """A slow all-reduce is a warning of the node from then on, until the test is run again and is well."""
    _, verdict, _ = node.ask("nccl.nvlink")
    assert verdict["verdict"] == "warning"
    plain = node.check()
    assert [check["findings"][0]["code"] for check in plain["checks"] if check["name"] == "nccl.nvlink"] == [
        "nccl.nvlink.slow"
    ]


def test_nothing_is_run_on_a_gpu_in_use(node: ActiveNode, machine: SimulatedMachine) -> None:
    """A process on one GPU makes every active test unknown, and none is begun. The next step is to wait for it: nothing
    is missing that `healthd doctor` could name."""
    call = "gpu3.nvmlDeviceGetComputeRunningProcesses"
    write_state(machine.nvml, with_line(healthy_state("p5.48xlarge"), call, "4711 1048576 0 0"))
    code, verdict, message = node.ask("nccl.nvlink")
    assert (code, verdict["checks"][0]["outcome"]) == (2, "unknown")
    assert "GPU 3 by process 4711" in verdict["checks"][0]["reason"]
    assert "active tests do not run" in message
    shown = node.healthd("check", "--active", "nccl.nvlink", "--socket", str(node.socket)).stdout
    assert "    do: run it again when the node is idle" in shown.splitlines()
    assert not node.note.exists()
    assert node.check()["verdict"] == "ok", "what could not be run leaves the node as it was"


def test_boot_is_active(node: ActiveNode) -> None:
    """``--context boot`` runs every active test: a node that has just come up is idle. What is not installed is
    unknown, so the exit code is 2."""
    answer = node.healthd("check", "--context", "boot", "--json", "--socket", str(node.socket))
    outcomes = {check["name"]: check["outcome"] for check in json.loads(answer.stdout)["checks"]}
    assert {"nccl.nvlink", "nccl.loopback", "gdrcopy.copy"} <= set(outcomes)
    assert outcomes["nccl.nvlink"] == "ok"
    assert "boot asked for the verdict" in node.log_text()


@pytest.mark.parametrize("node", ["perf_hang"], indirect=True)
def test_who_gives_up_waiting_ends_the_test(node: ActiveNode) -> None:
    """Ctrl-C at the client: within seconds nothing of the test is left on the node."""
    argv = [sys.executable, "-m", "healthd", "check", "--active", "nccl.nvlink", "--socket", str(node.socket)]
    client = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL, cwd="/")
    node.wait(node.note.exists, 20, "the test runs")
    pids = json.loads(node.note.read_text())["pids"]
    client.kill()
    client.wait(limit_s(10))
    node.wait(lambda: not any(psutil.pid_exists(pid) for pid in pids), 25, "all of it has ended")


@pytest.mark.parametrize("node", ["perf_hang"], indirect=True)
def test_a_daemon_that_is_killed_leaves_nothing(node: ActiveNode) -> None:
    """kill -9 of the daemon in the middle of a test: every process of the test goes with it."""
    argv = [sys.executable, "-m", "healthd", "check", "--active", "nccl.nvlink", "--socket", str(node.socket)]
    client = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, cwd="/")
    node.wait(node.note.exists, 20, "the test runs")
    pids = json.loads(node.note.read_text())["pids"]
    node.kill()
    _, output = client.communicate(timeout=limit_s(20))
    assert client.returncode == 69
    assert b"incomplete" in output
    until = time.monotonic() + limit_s(10)
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_without_a_daemon_it_looks_for_itself(tmp_path: Path, machine: SimulatedMachine) -> None:
    """The same test, the same figures, from a look of the command's own."""
    node = ActiveNode(tmp_path / "node", machine)
    answer = node.healthd("check", "--active", "nccl.nvlink", "--json", "--config", str(node.config))
    verdict = json.loads(answer.stdout)
    assert (verdict["source"], verdict["checks"][0]["figures"][-1]["name"][:5]) == ("local", "nccl_")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to ask as another user")
def test_a_stranger_may_not_put_load_on_the_node(node: ActiveNode) -> None:
    """Everybody may read; a test of the hardware is an act."""
    answer = node.as_nobody("check", "--active", "nccl.nvlink")
    assert (answer.returncode, f"uid {NOBODY} may not run active tests" in answer.stderr) == (77, True), answer.stderr
    assert not node.note.exists()
