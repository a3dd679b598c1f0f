"""The check ``gpu.ecc``: memory errors as the GPU's own counters have them."""

from __future__ import annotations

from collections.abc import Iterator

from healthd.check import FindingCode, Limit, check, judged, not_applicable
from healthd.gpus import GpuValues, ask_gpus, driver_epoch, gaps_of
from healthd.model import ClearsBy, Finding, Reading, ReadingKind, Remedy, Result, Severity
from healthd.node import Node

# nvmlDeviceGetTotalEccErrors(type, counter): type 0 corrected, 1 uncorrected; counter 0 volatile, 1 aggregate (nvml.h).
_CALLS = {
    "nvmlDeviceGetTotalEccErrors(0, 0)": "gpu_ecc_corrected_volatile_total",
    "nvmlDeviceGetTotalEccErrors(1, 0)": "gpu_ecc_uncorrected_volatile_total",
    "nvmlDeviceGetTotalEccErrors(0, 1)": "gpu_ecc_corrected_aggregate_total",
    "nvmlDeviceGetTotalEccErrors(1, 1)": "gpu_ecc_uncorrected_aggregate_total",
}
_UNCORRECTED_NOW = "nvmlDeviceGetTotalEccErrors(1, 0)"

UNCORRECTED = FindingCode(
    code="gpu.ecc.uncorrected",
    severity=Severity.CRITICAL,
    remedy=Remedy.RESET_GPU,
    meaning="Uncorrectable memory errors since the GPU was last reset",
    symptom_of=(
        "gpu.xid.94",
        "gpu.xid.63",
        "gpu.xid.48",
        "gpu.xid.95",
        "gpu.xid.64",
        "gpu.xid.140",
        "gpu.remap.pending",
        "gpu.remap.failure",
    ),
)
RECORDED = FindingCode(
    code="gpu.ecc.recorded",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="An uncorrectable memory error was added to the GPU's lifelong record",
    clears_by=ClearsBy.NOTHING,
    symptom_of=(UNCORRECTED.code, *UNCORRECTED.symptom_of),
)
_SOURCE = "NVIDIA, GPU memory error management: every uncorrectable error calls for a GPU reset"
GROWTH = Limit(reading="gpu_ecc_uncorrected_aggregate_total", max_increase=0, code=RECORDED, source=_SOURCE)


@check("gpu.ecc", interval_s=60, codes=(UNCORRECTED, RECORDED), limits=(GROWTH,))
def gpu_ecc(node: Node, _settings: object) -> Result:
    """No GPU has had an uncorrectable memory error since its last reset.

    Two counters tell two things. *Volatile* starts at zero with each driver load and GPU reset: above zero, the GPU has
    not been reset since its error; *Aggregate* lives in the board's InfoROM for ever: only its growth means anything,
    and growth without a volatile count is an error whose GPU was reset before we looked, which is news and no fault.
    Corrected errors are readings only. A GPU with ECC off, or without ECC, has no such counters, which is no fault.
    Where the kernel log or the row remapper explains it, their finding decides and this one is its symptom.

    Sources: nvml.h (counter types); NVIDIA, GPU memory error management; while errors are being handled these queries
    can answer Unknown Error (field report, driver 550.90.07), which is unknown and not zero.
    """
    gpus = ask_gpus(node, *_CALLS)
    if isinstance(gpus, Result):
        return gpus
    if all(gpu.unsupported.issuperset(_CALLS) for gpu in gpus):
        return not_applicable("no GPU here counts ECC errors: ECC is off, or the GPUs have none")
    epoch = driver_epoch(node)
    readings = [reading for gpu in gpus for reading in _readings(gpu, epoch)]
    return judged([finding for gpu in gpus for finding in _findings(gpu)], readings, gaps=gaps_of(gpus))


def _readings(gpu: GpuValues, epoch: str) -> Iterator[Reading]:
    for call, name in _CALLS.items():
        if call in gpu.values:
            belongs_to = epoch if "volatile" in name else "inforom"
            value = float(gpu.values[call])
            yield Reading(component=gpu.gpu, name=name, value=value, kind=ReadingKind.COUNTER, epoch=belongs_to)


def _findings(gpu: GpuValues) -> Iterator[Finding]:
    count = gpu.values.get(_UNCORRECTED_NOW, 0)
    if count > 0:
        message = f"{count} uncorrectable memory errors since the last GPU reset"
        yield UNCORRECTED.at(gpu.gpu, message, volatile_uncorrected=count, limit=0, limit_source=_SOURCE)
