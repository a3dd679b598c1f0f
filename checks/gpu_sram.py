"""The check ``gpu.sram``: errors in the GPU's on-chip memory, which has no spare rows."""

from __future__ import annotations

from collections.abc import Iterator

from healthd.checklib.gpus import MIG, GpuValues, ask_gpus, driver_epoch, judged_gpus
from healthd.core.check import FindingCode, check, not_applicable
from healthd.core.model import Finding, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import Node

_STATUS = "nvmlDeviceGetSramEccErrorStatus"
_UNIQUE = "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts"
# Members of nvmlEccSramErrorStatus_v1_t (nvml.h), and the readings they become.
_COUNTERS = {
    "volatileCor": "gpu_sram_corrected_volatile_total",
    "volatileUncParity": "gpu_sram_uncorrected_parity_volatile_total",
    "volatileUncSecDed": "gpu_sram_uncorrected_secded_volatile_total",
    "aggregateCor": "gpu_sram_corrected_aggregate_total",
    "aggregateUncParity": "gpu_sram_uncorrected_parity_aggregate_total",
    "aggregateUncSecDed": "gpu_sram_uncorrected_secded_aggregate_total",
}
_BUCKETS = ("L2", "Sm", "Pcie", "Mcu", "Other")
_SOURCE = "NVIDIA, GPU memory error management: over 4 unique errors in one bank (parity SRAM), over 2 (SECDED SRAM)"

THRESHOLD = FindingCode(
    code="gpu.sram.threshold",
    severity=Severity.CRITICAL,
    remedy=Remedy.REPLACE_NODE,
    meaning="More uncorrectable errors in one bank of on-chip memory than NVIDIA allows",
)


@check("gpu.sram", interval_s=60, codes=(THRESHOLD,))
def gpu_sram(node: Node, _settings: object) -> Result:
    """No bank of a GPU's on-chip memory has failed more often than NVIDIA allows.

    The hardware does not remap SRAM (caches, register files): a bank that keeps failing stays bad, and the driver
    raises a flag once too many different addresses of one bank have failed. The flag alone decides; healthd counts no
    banks of its own. The counters are readings, split by kind, with the number of different addresses that failed. A
    driver without the call (before 535), or a GPU without ECC, does not answer, which is no fault; the addresses need
    driver 580. If a GPU does not answer while its siblings do, the outcome is partial, unless MIG is on; it ends no
    fault in either case.

    Sources: NVIDIA, GPU memory error management (SRAM error threshold); nvml.h nvmlEccSramErrorStatus_v1_t.
    """
    gpus = ask_gpus(node, _STATUS, _UNIQUE, MIG)
    if isinstance(gpus, Result):
        return gpus
    if all(_STATUS in gpu.unsupported for gpu in gpus):
        return not_applicable("no GPU of this node, or its driver, reports the state of its SRAM")
    epoch = driver_epoch(node)
    readings = [reading for gpu in gpus for reading in _readings(gpu, epoch)]
    findings = [finding for gpu in gpus for finding in _findings(gpu)]
    rests_on, what = {_STATUS: (THRESHOLD,)}, "the state of their SRAM"
    return judged_gpus(gpus, findings, readings, questions=(_STATUS,), rests_on=rests_on, what=what)


def _findings(gpu: GpuValues) -> Iterator[Finding]:
    status = gpu.values.get(_STATUS, {})
    if status.get("bThresholdExceeded"):
        where = {bucket: status[f"aggregateUncBucket{bucket}"] for bucket in _BUCKETS}
        worst = max(where, key=lambda bucket: where[bucket])
        message = f"SRAM error threshold exceeded; most uncorrectable errors are in {worst}"
        unique = gpu.values.get(_UNIQUE, [])[:16]
        yield THRESHOLD.at(gpu.gpu, message, uncorrected_by_unit=where, unique=unique, limit_source=_SOURCE)


def _readings(gpu: GpuValues, epoch: str) -> Iterator[Reading]:
    status = gpu.values.get(_STATUS, {})
    for member, name in _COUNTERS.items() if status else ():
        belongs_to = epoch if "volatile" in name else "inforom"
        value = float(status[member])
        yield Reading(component=gpu.gpu, name=name, value=value, kind=ReadingKind.COUNTER, epoch=belongs_to)
    for word, is_parity in (("parity", 1), ("secded", 0)) if _UNIQUE in gpu.values else ():
        addresses = sum(row["isParity"] == is_parity for row in gpu.values[_UNIQUE])
        yield Reading(component=gpu.gpu, name=f"gpu_sram_unique_{word}_count", value=addresses)
