"""What each NVML call of the checks costs on this machine; written to docs/reference when HEALTHD_WRITE_COSTS=1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import structs

from healthd.core.check import discover
from healthd.core.node import GpuAnswer, Nvml, ProbeState
from healthd.observe.runner import run_check
from healthd.probe.child import module_path
from healthd.sources.machine import Machine
from tests.support.limits import limit_s

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "nvml-costs.md"
SCRIPT = Path(__file__).with_name("nvml_costs.py")
HEAD = """# What NVML calls cost

Measured on a real machine by `tests/gpu/test_gpu_costs.py` (see `tests/gpu/README.md`), not made from the code: the
median of 20 rounds in the NVML worker, over all GPUs of the machine, less the cost of asking nothing.

| machine | value |
| --- | --- |
| GPUs | {gpus} |
| driver | {driver} |
| date | {date} |

| call or field | ms |
| --- | --- |
"""
SLOW_MS = 1000.0


class Listening:
    """The machine's NVML, and every question that was put to it."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self.calls: set[str] = set()
        self.fields: set[tuple[int, int]] = set()

    def ask(self, *calls: str, fields: Sequence[int | tuple[int, int]] = ()) -> tuple[GpuAnswer, ...]:
        """As the machine answers."""
        self.calls.update(calls)
        self.fields.update(field if isinstance(field, tuple) else (field, 0) for field in fields)
        return self._nvml.ask(*calls, fields=fields)

    def system(self) -> Mapping[str, Any]:
        """As the machine answers."""
        return self._nvml.system()

    def state(self) -> ProbeState:
        """As the machine's worker is."""
        return self._nvml.state()


def test_no_call_of_a_check_is_slow(machine: Machine) -> None:
    """Every call and field that a check asks for answers within a second on all GPUs; the figures are a page."""
    nvml = Listening(machine.nvml)
    listening = structs.replace(machine, nvml=nvml)  # Machine names its own class
    for check in discover().values():
        if check.on == "interval":
            run_check(check, listening, check.settings())
    calls, fields = sorted(nvml.calls), sorted(nvml.fields)
    assert calls
    questions: list[dict[str, Any]] = [{"calls": [call], "fields": []} for call in calls]
    questions += [{"calls": [], "fields": [list(field)]} for field in fields]
    names = [*calls, *(f"field {field}, scope {scope}" for field, scope in fields)]
    costs_ms = dict(zip(names, _measured(questions), strict=True))
    if os.environ.get("HEALTHD_WRITE_COSTS") == "1":
        PAGE.write_text(_page(machine, costs_ms), encoding="utf-8")
    assert {name: cost_ms for name, cost_ms in costs_ms.items() if cost_ms > SLOW_MS} == {}


def _measured(questions: Sequence[Mapping[str, Any]]) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT)],
        input="\n".join(map(json.dumps, questions)),
        env={**os.environ, "PYTHONPATH": module_path()},
        check=True,
        capture_output=True,
        text=True,
        timeout=limit_s(90),
    )
    costs_ms: list[float] = json.loads(done.stdout)
    return costs_ms


def _page(machine: Machine, costs_ms: Mapping[str, float]) -> str:
    answers = machine.nvml.ask("nvmlDeviceGetName")
    names = sorted({str(answer.values["nvmlDeviceGetName"]) for answer in answers})
    head = HEAD.format(
        gpus=f"{len(answers)} x {', '.join(names)}",
        driver=machine.nvml.system()["driver_version"],
        date=datetime.now(UTC).date(),
    )
    rows = sorted(costs_ms.items(), key=lambda item: -item[1])
    return head + "".join(f"| `{name}` | {cost_ms:.3f} |\n" for name, cost_ms in rows)
