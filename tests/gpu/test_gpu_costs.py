"""What the checks cost on a real GPU: each NVML call of theirs, and a program that computes beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.bench_idle import BETWEEN_S, judged, look
from healthd.probe.child import module_path
from healthd.sources.machine import Machine
from tests.gpu.conftest import Questions, run_every_check
from tests.support.limits import limit_s
from tests.support.recorded_gpus import Recorded
from tests.support.running import RunningNode

HERE = Path(__file__).parent
SLOW_MS = 1000.0
COMPUTES_S = 5
SETTLES_S, LOOKS = 30.0, 6
MOST_PERCENT = 1.0  # of a core; bench_idle has the aim, for a simulated NVML
MOST_TIMES = 1.5  # as long a kernel may take beside the checks, in the median


def test_no_call_of_a_check_is_slow(questions: Questions, record: Recorded) -> None:
    """Every call and field that a check asks for answers within a second on all GPUs."""
    calls, fields = questions
    asked: list[dict[str, Any]] = [{"calls": [call], "fields": []} for call in calls]
    asked += [{"calls": [], "fields": [list(field)]} for field in fields]
    names = [*calls, *(f"field {field}, scope {scope}" for field, scope in fields)]
    costs_ms = _run("nvml_costs.py", said="\n".join(map(json.dumps, asked)))
    record.costs_ms.update(zip(names, costs_ms, strict=True))
    assert {name: cost_ms for name, cost_ms in record.costs_ms.items() if cost_ms > SLOW_MS} == {}


def test_a_program_computes_as_fast_beside_the_checks(machine: Machine, record: Recorded) -> None:
    """Kernels that do nothing, one after the other, end as soon while every check runs again and again."""
    record.kernel_us["alone"] = alone = _run("kernel_latency.py", str(COMPUTES_S))
    with checked_again_and_again(machine):
        record.kernel_us["beside every check"] = beside = _run("kernel_latency.py", str(COMPUTES_S))
    assert beside["p50"] < MOST_TIMES * alone["p50"]


def test_a_daemon_at_rest_takes_little(machine: Machine, record: Recorded, tmp_path: Path) -> None:
    """The whole daemon with its workers, by bench_idle's measure, for a minute after half a minute."""
    if os.environ.get("TEST_GPU_RECORD") != "1":
        pytest.skip("takes two minutes: HEALTHD_TEST_GPU_RECORD=1 asks for it")
    node = RunningNode(tmp_path / "node", "this-node", kmsg="/dev/kmsg", environ={"PYTHONPATH": module_path()})
    node.as_program = True
    node.start()
    try:
        pid = node.process.pid if node.process is not None else 0
        time.sleep(SETTLES_S)
        seen = [look(pid)]
        for _ in range(LOOKS):
            time.sleep(BETWEEN_S)
            seen.append(look(pid))
    finally:
        node.stop()
    record.at_rest.update(judged(seen))
    assert record.at_rest["cpu_percent"] < MOST_PERCENT


@contextmanager
def checked_again_and_again(machine: Machine) -> Iterator[None]:
    """Every check of the daemon, one after the other, without a pause."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            run_every_check(machine)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _run(script: str, *arguments: str, said: str = "") -> Any:
    """The JSON that a script beside this file prints, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / script), *arguments],
        input=said,
        env={**os.environ, "PYTHONPATH": module_path()},
        check=True,
        capture_output=True,
        text=True,
        timeout=limit_s(90),
    )
    return json.loads(done.stdout)
