"""Real NVML values against nvidia-smi, which asks the same driver in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from healthd.core.model import pci_address
from healthd.core.node import NvmlFailure
from healthd.sources.machine import Machine
from tests.gpu.conftest import Smi


class Value(Struct, frozen=True, kw_only=True):
    """One number both ways. ``within``: how much it may move between the two questions; ``part``: of a list."""

    query: str
    call: str
    scale: float = 1.0
    within: float = 0.0
    part: int | None = None

    def of(self, values: Any) -> float | None:
        """What NVML answered healthd; None where this GPU does not have it."""
        answer = values[self.call]
        if isinstance(answer, NvmlFailure):
            return None
        return float(answer if self.part is None else answer[self.part]) * self.scale


ROWS = "nvmlDeviceGetRemappedRows"
VALUES = (
    Value(query="ecc.errors.corrected.volatile.total", call="nvmlDeviceGetTotalEccErrors(0, 0)"),
    Value(query="ecc.errors.uncorrected.volatile.total", call="nvmlDeviceGetTotalEccErrors(1, 0)"),
    Value(query="ecc.errors.corrected.aggregate.total", call="nvmlDeviceGetTotalEccErrors(0, 1)"),
    Value(query="ecc.errors.uncorrected.aggregate.total", call="nvmlDeviceGetTotalEccErrors(1, 1)"),
    Value(query="remapped_rows.correctable", call=ROWS, part=0),
    Value(query="remapped_rows.uncorrectable", call=ROWS, part=1),
    Value(query="remapped_rows.pending", call=ROWS, part=2),
    Value(query="remapped_rows.failure", call=ROWS, part=3),
    Value(query="temperature.gpu", call="nvmlDeviceGetTemperature(0)", within=5),
    Value(query="enforced.power.limit", call="nvmlDeviceGetEnforcedPowerLimit", scale=1e-3, within=0.01),
    Value(query="power.default_limit", call="nvmlDeviceGetPowerManagementDefaultLimit", scale=1e-3, within=0.01),
    Value(query="clocks.max.sm", call="nvmlDeviceGetMaxClockInfo(1)"),
    Value(query="clocks.max.mem", call="nvmlDeviceGetMaxClockInfo(2)"),
    Value(query="pcie.link.width.current", call="nvmlDeviceGetCurrPcieLinkWidth"),
    Value(query="pcie.link.width.max", call="nvmlDeviceGetMaxPcieLinkWidth"),
)


def number(text: str) -> float | None:
    """What nvidia-smi prints: a number, a word for a flag, or one of its ways to say that there is none."""
    words = {"no": 0.0, "yes": 1.0}
    if text.strip("[]").lower() in ("n/a", "not supported"):
        return None
    return words[text.lower()] if text.lower() in words else float(text)


def test_who_the_gpus_are(machine: Machine, smi: Smi) -> None:
    """UUIDs, PCI addresses, names and the driver's version are those of nvidia-smi, in its order."""
    answers, system = machine.nvml.ask("nvmlDeviceGetName"), machine.nvml.system()
    rows = smi.query(["uuid", "pci.bus_id", "name", "driver_version"])
    assert [(answer.uuid, answer.pci, answer.values["nvmlDeviceGetName"]) for answer in answers] == [
        (row["uuid"], pci_address(row["pci.bus_id"]), row["name"]) for row in rows
    ]
    assert {row["driver_version"] for row in rows} == {system["driver_version"]}
    assert system["gpu_count"] == len(rows)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.query)
def test_what_the_gpus_say(machine: Machine, smi: Smi, value: Value) -> None:
    """Each number is nvidia-smi's, or neither has it."""
    rows, answers = smi.query([value.query]), machine.nvml.ask(value.call)
    pairs = [(value.of(answer.values), number(row[value.query])) for answer, row in zip(answers, rows, strict=True)]
    assert all(agree(ours, theirs, value.within) for ours, theirs in pairs), pairs


def agree(ours: float | None, theirs: float | None, within: float) -> bool:
    """Both have none, or both have nearly the same."""
    if ours is None or theirs is None:
        return ours is None and theirs is None
    return abs(ours - theirs) <= within
