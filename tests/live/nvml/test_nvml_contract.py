"""One contract, two simulated libraries: the same state file gives the same answers, struct by struct."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.core.node import NvmlFailure
from healthd.sim import nvml_state as sim
from tests.support.nvml_states import (
    with_ecc,
    with_recovery_action,
    with_remap,
    with_sram_threshold_exceeded,
    without_last_gpus,
)

pytestmark = pytest.mark.nvml

CALLS = (
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetTotalEccErrors(0, 0)",
    "nvmlDeviceGetTotalEccErrors(1, 0)",
    "nvmlDeviceGetTotalEccErrors(0,1)",
    "nvmlDeviceGetMemoryErrorCounter(1, 0, 7)",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetRetiredPages_v2(0)",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetTemperature(0)",
    "nvmlDeviceGetTemperatureThreshold(1)",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceValidateInforom",
    "nvmlDeviceGetP2PStatus(2)",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetClockInfo(1)",
    "nvmlDeviceGetMaxClockInfo(1)",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGetNvLinkState(3)",
    "nvmlDeviceGetRepairStatus",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlSystemGetDriverVersion",
)
FIELDS = (3, 4, 142, 145, 230, (208, 3), 208, 99999)
HEALTHY = sim.healthy_state()
REMAPPED = with_remap(HEALTHY, 0, uncorrectable=3, pending=True)
SORE = {
    **with_sram_threshold_exceeded(with_ecc(REMAPPED, 0, uncorrected=7), 0),
    "gpu0.field.208/3": "ull:18446744073709551615",
    "gpu0.field.208": "double:0.5",
    "gpu0.field.145": "int:-1",
    "gpu0.field.142": "ushort:65535",
    "gpu0.field.3": "sll:-5",
    "gpu0.field.4": "ulong:4294967296",
    "gpu0.nvmlDeviceGetMemoryErrorCounter(1,0,7)": "11",
    "gpu0.nvmlDeviceGetRetiredPages_v2(0)": "0x1000 1700000000 0x2000 1700000001",
    "gpu0.nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts": "1 2 3 4 5 1 9 6 7 8 9 10 0 2",
    "gpu0.nvmlDeviceGetGpuFabricInfoV": "15 2 3 85 2",
    "gpu0.nvmlDeviceValidateInforom": "error 14",
    "gpu0.nvmlDeviceGetP2PStatus(1,2)": "5",
    "gpu0.nvmlDeviceGetMarginTemperature": "-3",
    "gpu0.nvmlDeviceGetComputeRunningProcesses": "4711 1048576 0 0 4712 2097152 1 2",
    "gpu0.nvmlDeviceGetNvLinkState(3)": "0",
    "gpu0.nvmlDeviceGetRepairStatus": "1 0",
    "gpu0.nvmlDeviceGetUnrepairableMemoryFlag_v1": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    "state",
    [
        HEALTHY,
        SORE,
        sim.with_gpu_fault(SORE, 0, "lost"),
        sim.with_gpu_fault(SORE, 0, "reset_required"),
        sim.with_gpu_fault(SORE, 0, "unknown_error"),
        sim.with_line(HEALTHY, "gpu0.nvmlDeviceGetName", "error 3"),
        with_recovery_action(HEALTHY, 0, 2),
        sim.with_gpu_fault(SORE, 3, "lost"),
        without_last_gpus(HEALTHY, 8),
    ],
    ids=["healthy", "sore", "lost", "reset_required", "unknown_error", "refused", "recovery", "peer_lost", "no_gpus"],
)
def test_both_libraries_answer_the_same(real_pynvml: Any, python_sim: Any, state: dict[str, str]) -> None:
    """The real pynvml on the C library and the Python library tell no difference, values and failures alike."""
    real_pynvml.becomes(state)
    real, simulated = real_pynvml.source(), python_sim.source()
    assert real.ask(*CALLS, fields=FIELDS) == simulated.ask(*CALLS, fields=FIELDS)
    assert real.system() == simulated.system()


def test_structs_by_reference_come_back_whole(machine: Any) -> None:
    """Struct-filling calls are passed by reference: they answer with every field, and the worker survives."""
    machine.becomes(SORE)
    source = machine.source()
    values = source.ask(*CALLS, fields=FIELDS)[0].values
    assert values["nvmlDeviceGetSramEccErrorStatus"]["bThresholdExceeded"] == 1
    assert values["nvmlDeviceGetSramEccErrorStatus"]["aggregateUncParity"] == 0
    assert values["nvmlDeviceGetSramEccErrorStatus"]["aggregateUncSecDed"] == 3
    assert values["nvmlDeviceGetRowRemapperHistogram"] == {"max": 640, "high": 0, "partial": 0, "low": 0, "none": 0}
    fabric = values["nvmlDeviceGetGpuFabricInfoV"]
    assert (fabric["status"], fabric["cliqueId"], fabric["state"]) == (15, 2, 3)
    assert (fabric["healthMask"], fabric["healthSummary"]) == (85, 2)
    entries = values["nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts"]
    assert [(entry["unit"], entry["count"]) for entry in entries] == [(1, 9), (6, 2)]
    assert values["nvmlDeviceGetP2PStatus(2)"] == [0, 5, 0, 0, 0, 0, 0, 0]
    assert values["nvmlDeviceGetMarginTemperature"] == -3
    assert [row["pid"] for row in values["nvmlDeviceGetComputeRunningProcesses"]] == [4711, 4712]
    assert (values["nvmlDeviceGetRepairStatus"], values["nvmlDeviceGetUnrepairableMemoryFlag_v1"]) == ([1, 0], 1)
    assert values["nvmlDeviceGetRetiredPages_v2(0)"][1] == {"address": 0x2000, "timestamp": 1700000001}


def test_field_values_are_read_by_their_own_type(machine: Any) -> None:
    """Each member of the value union is read as the type that NVML says, at its limits."""
    machine.becomes(SORE)
    values = machine.source().ask(fields=FIELDS)[0].values
    assert (values["field:3"], values["field:4"]) == (-5, 2**32)
    assert (values["field:142"], values["field:145"]) == (65535, -1)
    assert (values["field:208/3"], values["field:208"]) == (2**64 - 1, 0.5)
    assert values["field:99999"] == NvmlFailure(code=3, name="NOT_SUPPORTED")


def test_every_library_knows_every_line_of_a_healthy_state(machine: Any) -> None:
    """No line of the healthy profile is dead: each call answers, and none is refused."""
    calls = sorted({key.partition(".")[2] for key in HEALTHY if key.startswith("gpu0.nvmlDevice")})
    arguments = {"nvmlDeviceGetTotalEccErrors": "(0,0)", "nvmlDeviceGetMemoryErrorCounter": "(0,0,2)"}
    arguments["nvmlDeviceGetNvLinkErrorCounter"] = "(0,0)"
    arguments |= dict.fromkeys(("nvmlDeviceGetTemperature", "nvmlDeviceGetNvLinkState"), "(0)")
    of_one = ("nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo")
    arguments |= dict.fromkeys((*of_one, "nvmlDeviceGetP2PStatus"), "(1)")
    values = machine.source().ask(*[call + arguments.get(call, "") for call in calls])[0].values
    assert not [call for call, value in values.items() if isinstance(value, NvmlFailure)]
    assert len(values) == len(calls)
