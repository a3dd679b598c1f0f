"""The check ``gpu.ecc``: memory errors, by the GPU's own counters."""

from __future__ import annotations

from collections.abc import Iterator

from healthd.checklib.gpus import MIG, GpuValues, ask_gpus, driver_epoch, judged_gpus, of_the_node
from healthd.core.check import Accelerating, FindingCode, Limit, check, not_applicable
from healthd.core.model import ClearsBy, Finding, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import Node

# nvmlDeviceGetTotalEccErrors(type, counter): type 0 corrected, 1 uncorrected; counter 0 volatile, 1 aggregate (nvml.h).
_CALLS = {
    "nvmlDeviceGetTotalEccErrors(0, 0)": "gpu_ecc_corrected_volatile_total",
    "nvmlDeviceGetTotalEccErrors(1, 0)": "gpu_ecc_uncorrected_volatile_total",
    "nvmlDeviceGetTotalEccErrors(0, 1)": "gpu_ecc_corrected_aggregate_total",
    "nvmlDeviceGetTotalEccErrors(1, 1)": "gpu_ecc_uncorrected_aggregate_total",
}
_MODE = "nvmlDeviceGetEccMode"  # now, and after the next reset
_UNCORRECTED_NOW, _CORRECTED_EVER = "nvmlDeviceGetTotalEccErrors(1, 0)", "nvmlDeviceGetTotalEccErrors(0, 1)"
# nvmlDeviceGetMemoryErrorCounter(type, counter, location), locations as nvml.h has them; volatile counters.
_LOCATIONS = {1: "l2_cache", 2: "dram", 3: "register_file", 7: "sram"}
_DETAILS = {
    f"nvmlDeviceGetMemoryErrorCounter({type_}, 0, {location})": f"gpu_ecc_{kind}_volatile_{word}_total"
    for type_, kind in enumerate(("corrected", "uncorrected"))
    for location, word in _LOCATIONS.items()
}

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
OFF = FindingCode(
    code="gpu.ecc.off",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="ECC is switched off: memory errors go unnoticed",
)
GROWTH = Limit(reading="gpu_ecc_uncorrected_aggregate_total", max_increase=0, code=RECORDED, source=_SOURCE)
ACCELERATING = FindingCode(
    code="gpu.ecc.accelerating",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="Corrected memory errors come faster from day to day",
    symptom_of=(UNCORRECTED.code, *UNCORRECTED.symptom_of),
)
FASTER = Accelerating(
    reading="gpu_ecc_corrected_aggregate_total",
    code=ACCELERATING,
    source="healthd.judge.trends: a likelihood ratio that noise passes in one of 10,000 node-days at most",
)
_RESTS_ON = {_UNCORRECTED_NOW: (UNCORRECTED,), _CORRECTED_EVER: (ACCELERATING,), _MODE: (OFF,)}


@check("gpu.ecc", interval_s=60, codes=(UNCORRECTED, RECORDED, ACCELERATING, OFF), limits=(GROWTH, FASTER))
def gpu_ecc(node: Node, _settings: object) -> Result:
    """No GPU has had an uncorrectable memory error since its last reset.

    Two counters mean two things. *Volatile* starts at zero with each driver load and GPU reset: above zero, the GPU was
    not reset since its error. *Aggregate* lives in the board's InfoROM for ever: only its growth means anything. Growth
    without a volatile count is an error whose GPU was reset before the check ran: news, and no fault. ECC repairs
    corrected errors: only a rate that grows from day to day is a warning. Readings show which memory has the errors.
    GPUs without ECC have no such counters, which is no fault; with MIG on, some counters are not reported. ECC that is
    switched off is a warning: wrong results look like right ones. A counter that is not reported ends no fault; if a
    sibling reports it, the outcome is partial. Where the kernel log or the row remapper explains the error, their
    finding decides and this one is its symptom.

    Sources: nvml.h (counter types); NVIDIA, GPU memory error management; while errors are being handled these queries
    can answer Unknown Error (field report, driver 550.90.07), which is unknown and not zero.
    """
    gpus = ask_gpus(node, *_CALLS, *_DETAILS, _MODE, MIG)
    if isinstance(gpus, Result):
        return gpus
    off = of_the_node((OFF.at(gpu.gpu, "ECC is off") for gpu in gpus if gpu.values.get(_MODE, (1,))[0] == 0), len(gpus))
    if not off and all(gpu.unsupported.issuperset(_CALLS) for gpu in gpus):
        return not_applicable("no GPU of this node counts ECC errors")
    epoch = driver_epoch(node)
    readings = [reading for gpu in gpus for reading in _readings(gpu, epoch)]
    findings = [*off, *(finding for gpu in gpus for finding in _findings(gpu))]
    what = "all of their ECC counters"
    return judged_gpus(gpus, findings, readings, questions=_CALLS, rests_on=_RESTS_ON, what=what)


def _readings(gpu: GpuValues, epoch: str) -> Iterator[Reading]:
    for call, name in (*_CALLS.items(), *_DETAILS.items()):
        if call in gpu.values:
            belongs_to = epoch if "volatile" in name else "inforom"
            value = float(gpu.values[call])
            yield Reading(component=gpu.gpu, name=name, value=value, kind=ReadingKind.COUNTER, epoch=belongs_to)


def _findings(gpu: GpuValues) -> Iterator[Finding]:
    count = gpu.values.get(_UNCORRECTED_NOW, 0)
    if count > 0:
        message = f"{count} uncorrectable memory errors since the last GPU reset"
        counts = {
            word: gpu.values.get(f"nvmlDeviceGetMemoryErrorCounter(1, 0, {at})") for at, word in _LOCATIONS.items()
        }
        where = {word: errors for word, errors in counts.items() if errors}
        yield UNCORRECTED.at(
            gpu.gpu, message, volatile_uncorrected=count, by_location=where, limit=0, limit_source=_SOURCE
        )
