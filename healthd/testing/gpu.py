"""The answers of NVML for one healthy H100, question by question: tests change the ones that they are about.

CONSTRUCTED from nvml.h and published facts; nothing was recorded from hardware. Values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from healthd.checklib.nvml_codes import NvmlReturn, field_key
from healthd.core.node import NvmlFailure


def refusal(code: NvmlReturn) -> NvmlFailure:
    """The answer to a question that NVML refuses with this code."""
    return NvmlFailure(code=code.value, name=code.name)


NOT_SUPPORTED = refusal(NvmlReturn.NOT_SUPPORTED)
INVALID_ARGUMENT = refusal(NvmlReturn.INVALID_ARGUMENT)

_SRAM_MEMBERS = ("aggregateUncParity", "aggregateUncSecDed", "aggregateCor", "volatileUncParity", "volatileUncSecDed")
_SRAM_BUCKETS = tuple(f"aggregateUncBucket{unit}" for unit in ("L2", "Sm", "Pcie", "Mcu", "Other"))
HEALTHY_SRAM: Mapping[str, Any] = {
    "nvmlDeviceGetSramEccErrorStatus": dict.fromkeys(
        (*_SRAM_MEMBERS, "volatileCor", *_SRAM_BUCKETS, "bThresholdExceeded"), 0
    ),
    "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts": [],
}
HEALTHY_PHYSICS: Mapping[str, Any] = {
    "nvmlDeviceValidateInforom": None,
    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
    "nvmlDeviceGetVbiosVersion": "96.00.A5.00.01",
    "nvmlDeviceGetTemperature(0)": 34,
    "nvmlDeviceGetTemperatureThreshold(1)": 90,
    "nvmlDeviceGetTemperatureThreshold(2)": 95,
    "nvmlDeviceGetMarginTemperature": 53,
    "field:82": 41,
    "field:194": -2,
    "nvmlDeviceGetPowerUsage": 71_000,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetCurrentClocksEventReasons": 1,
    "nvmlDeviceGetClockInfo(1)": 345,
    "nvmlDeviceGetUtilizationRates": {"gpu": 0, "memory": 0},
    "nvmlDeviceGetMemoryInfo": {"total": 85_520_809_984, "free": 85_029_027_840, "used": 491_782_144},
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetGraphicsRunningProcesses": [],
    **{f"field:{field}": 0 for field in (74, 269, 270, 271)},
}
HEALTHY_LINKS: Mapping[str, Any] = {
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetPcieReplayCounter": 0,
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetP2PStatus(2)": [0] * 8,
    **{f"nvmlDeviceGetNvLinkState({link})": 1 for link in range(18)},
    **{f"nvmlDeviceGetNvLinkErrorCounter({link}, {kind})": 0 for kind in (0, 1, 2) for link in range(18)},
    **{f"field:{field}": 0 for field in (38, 52, 59)},
    **{field_key(field, 0xFFFFFFFF): 0 for field in (138, 139)},
    **{field_key(field, link): 0 for field in (208, 213, 214) for link in range(18)},
    **dict.fromkeys(("field:170", "field:171"), NOT_SUPPORTED),
    "nvmlDeviceGetGpuFabricInfoV": {
        "clusterUuid": [1] * 16,
        "status": 0,
        "cliqueId": 0,
        "state": 3,
        "healthMask": 0,
        "healthSummary": 1,
    },
}
HEALTHY_GPU: Mapping[str, Any] = {
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetTotalEccErrors(0, 0)": 0,
    "nvmlDeviceGetTotalEccErrors(1, 0)": 0,
    "nvmlDeviceGetTotalEccErrors(0, 1)": 0,
    "nvmlDeviceGetTotalEccErrors(1, 1)": 0,
    **{f"nvmlDeviceGetMemoryErrorCounter({type_}, 0, {location})": 0 for type_ in (0, 1) for location in (1, 2, 3, 7)},
    "nvmlDeviceGetRemappedRows": [0, 0, 0, 0],
    "nvmlDeviceGetRowRemapperHistogram": {"max": 640, "high": 0, "partial": 0, "low": 0, "none": 0},
    **{f"nvmlDeviceGetRetiredPages_v2({cause})": NOT_SUPPORTED for cause in (0, 1)},
    "nvmlDeviceGetRetiredPagesPendingStatus": NOT_SUPPORTED,
    "nvmlDeviceGetRepairStatus": NOT_SUPPORTED,
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": NOT_SUPPORTED,
    "field:230": 0,
    **HEALTHY_SRAM,
    **HEALTHY_PHYSICS,
    **HEALTHY_LINKS,
}
"""The answers of a healthy GPU to each question of the shipped checks."""
OLDER_DRIVER: Mapping[str, Any] = {
    **{
        key: INVALID_ARGUMENT for key in HEALTHY_GPU if key.partition("/")[0] in ("field:208", "field:213", "field:214")
    },
    **{f"field:{field}": INVALID_ARGUMENT for field in (230, 269, 270, 271)},
    "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts": refusal(NvmlReturn.FUNCTION_NOT_FOUND),
}
"""The other answers of a driver, 535 or 550, that is older than a field: it calls the number itself invalid."""
