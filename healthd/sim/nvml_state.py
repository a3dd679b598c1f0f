"""States for the simulated NVML: a healthy machine, and its faults.

Pure functions from state to state; ``healthd.sim.nvml`` says what the lines mean and writes them to a file. The
machine is constructed: no UUID, serial number or counter here was read from hardware.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from healthd.sim.nvml import State

RECOVERY_ACTION_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset (nvml.h)."""

NVLINK_ERROR_FIELDS = (38, 52, 59, 206, 207, 208, 211, 213, 214, 215)
"""NVLink error counters: CRC flits, replays and recoveries of a whole GPU, then one for each link (nvml.h)."""


NVLINK_TRAFFIC_FIELDS = (138, 139)
"""Payload that a GPU sent and received over all its links, in KiB (nvml.h)."""


class Profile(Struct, frozen=True, kw_only=True):
    """One instance type as NVML would show it. ``pci``: bus ids in index order."""

    gpu: str
    vbios: str
    pci: tuple[str, ...]
    driver_version: str
    nvml_version: str


PROFILES: Mapping[str, Profile] = {
    "p5.48xlarge": Profile(
        gpu="NVIDIA H100 80GB HBM3",
        vbios="96.00.A5.00.01",
        pci=tuple(f"00000000:{bus}:00.0" for bus in ("53", "64", "75", "86", "97", "A8", "B9", "CA")),
        driver_version="580.95.05",
        nvml_version="13.580.95.05",
    ),
}

# The answers of a healthy Hopper, by line. Page retirement has none: Ampere and later remap rows instead.
_HEALTHY: Mapping[str, str] = {
    "nvmlDeviceGetPersistenceMode": "1",
    "nvmlDeviceGetMigMode": "0 0",
    "nvmlDeviceGetEccMode": "1 1",
    "nvmlDeviceGetTotalEccErrors": "0",
    "nvmlDeviceGetMemoryErrorCounter": "0",
    "nvmlDeviceGetRemappedRows": "0 0 0 0",
    "nvmlDeviceGetRowRemapperHistogram": "640 0 0 0 0",
    "nvmlDeviceGetSramEccErrorStatus": "0 0 0 0 0 0 0 0 0 0 0 0",
    "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts": "",
    "nvmlDeviceGetGpuFabricInfoV": "0 0 3 0 1",
    "nvmlDeviceValidateInforom": "0",
    "nvmlDeviceGetNvLinkState": "1",
    "nvmlDeviceGetP2PStatus": "0",
    "nvmlDeviceGetTemperature": "34",
    "nvmlDeviceGetTemperatureThreshold": "90",
    "nvmlDeviceGetMarginTemperature": "53",
    "nvmlDeviceGetPowerUsage": "71000",
    "nvmlDeviceGetEnforcedPowerLimit": "700000",
    "nvmlDeviceGetPowerManagementDefaultLimit": "700000",
    "nvmlDeviceGetCurrentClocksEventReasons": "1",
    "nvmlDeviceGetClockInfo": "345",
    "nvmlDeviceGetMaxClockInfo": "1980",
    "nvmlDeviceGetUtilizationRates": "0 0",
    "nvmlDeviceGetMemoryInfo": "85520809984 85029027840 491782144",
    "nvmlDeviceGetComputeRunningProcesses": "",
    "nvmlDeviceGetGraphicsRunningProcesses": "",
    "nvmlDeviceGetCurrPcieLinkWidth": "16",
    "nvmlDeviceGetMaxPcieLinkWidth": "16",
    "nvmlDeviceGetCurrPcieLinkGeneration": "5",
    "nvmlDeviceGetMaxPcieLinkGeneration": "5",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": "5",
    "nvmlDeviceGetPcieReplayCounter": "0",
    "nvmlDeviceGetNvLinkErrorCounter": "0",
    **{f"field.{field}": "ull:0" for field in (3, 4, 5, 6)},  # ECC totals: SBE, DBE, volatile then aggregate
    **{f"field.{field}": "0" for field in (142, 143, 144, 145)},  # remapped rows
    f"field.{RECOVERY_ACTION_FIELD}": "0",
    "field.82": "41",  # memory temperature, degrees Celsius
    **{f"field.{field}": f"int:{limit}" for field, limit in ((193, -7), (194, -2), (195, 0), (196, 0))},  # T.Limits
    **{f"field.{field}": "ull:0" for field in (74, 75, 269, 270, 271)},  # throttled time, nanoseconds
    **{f"field.{field}": "ull:0" for field in NVLINK_ERROR_FIELDS},
    **{f"field.{field}": "ull:0" for field in NVLINK_TRAFFIC_FIELDS},
}


def healthy_state(profile: str = "p5.48xlarge") -> dict[str, str]:
    """A healthy machine of a profile. Raises KeyError for one that is not in PROFILES."""
    machine = PROFILES[profile]
    state = {
        "lib.driver_version": machine.driver_version,
        "lib.nvml_version": machine.nvml_version,
        "lib.excluded_count": "0",
        "lib.fault": "none",
    }
    for index, pci in enumerate(machine.pci):
        lines = {
            "uuid": uuid(index),
            "pci": pci,
            "fault": "none",
            "nvmlDeviceGetName": machine.gpu,
            "nvmlDeviceGetVbiosVersion": machine.vbios,
            "nvmlDeviceGetSerial": f"16500000000{index:02d}",
            **_HEALTHY,
        }
        state.update({f"gpu{index}.{name}": value for name, value in lines.items()})
    return state


def uuid(index: int) -> str:
    """The constructed UUID of a simulated GPU."""
    return f"GPU-51a1a7ed-0000-4000-8000-{index:012d}"


def with_line(state: State, key: str, value: object) -> dict[str, str]:
    """The state with one line set: any call of any GPU, as in ``gpu2.nvmlDeviceGetEccMode``, ``error 3``."""
    return {**state, key: str(value)}


def with_gpu_fault(state: State, gpu: int, fault: str) -> dict[str, str]:
    """``none``, ``lost``, ``reset_required``, ``unknown_error``, ``hang SECONDS`` or ``crash``."""
    return with_line(state, f"gpu{gpu}.fault", fault)
