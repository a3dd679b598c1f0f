"""The check ``gpu.temperature``: how far each GPU is from the temperature at which it slows itself down."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from healthd.checklib.gpus import GpuValues, ask_gpus, undecided_of
from healthd.core.check import FindingCode, check, judged, not_applicable
from healthd.core.model import Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Amount

_CORE = "nvmlDeviceGetTemperature(0)"  # sensor 0: the GPU core
_SLOWDOWN = "nvmlDeviceGetTemperatureThreshold(1)"  # NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
_MEMORY_MAX = "nvmlDeviceGetTemperatureThreshold(2)"  # NVML_TEMPERATURE_THRESHOLD_MEM_MAX
_MARGIN = "nvmlDeviceGetMarginTemperature"
_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
_MEMORY, _SLOWDOWN_TLIMIT = "field:82", "field:194"  # NVML_FI_DEV_MEMORY_TEMP, …_TEMPERATURE_SLOWDOWN_TLIMIT
_SOURCE = "the GPU itself (NVML)"
_THERMAL = 0x20 | 0x40  # clocks event reasons: software and hardware thermal slowdown (nvml.h)
_READINGS = {_CORE: "gpu_temperature_c", _MEMORY: "gpu_memory_temperature_c", _MARGIN: "gpu_temperature_margin_c"}

SLOWDOWN = FindingCode(
    code="gpu.temperature.slowdown",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The GPU is so hot that it slows itself down",
)
MEMORY = FindingCode(
    code="gpu.temperature.memory",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The GPU's memory has reached its highest allowed temperature",
)


class GpuTemperatureSettings(Struct, frozen=True, kw_only=True):
    """How early ``gpu.temperature`` warns."""

    margin_c: Amount = 0.0
    """How many degrees Celsius below the GPU's own threshold the warning begins. Zero: at the threshold, where the GPU
    itself acts. NVIDIA publishes no lower number, so none is assumed."""


@check("gpu.temperature", interval_s=60, settings=GpuTemperatureSettings, codes=(SLOWDOWN, MEMORY))
def gpu_temperature(node: Node, settings: GpuTemperatureSettings) -> Result:
    """No GPU, and no GPU memory, is as hot as its own threshold.

    The GPU reports every limit. GPUs up to Hopper report temperatures and the threshold; newer ones the margin that is
    left and the margin at which they slow down (T.Limit). The margin alone is no evidence, since H100 shows zero and
    less while cool: it counts while the driver names heat as the reason of its clocks. Unproven on hardware, and a
    warning at most: the cooling of the room is the usual cause, and the next job may be cooler.

    Sources: nvml.h (thresholds 1 and 2, fields 82 and 194, clocks event reasons 0x20 and 0x40); gpud 4a8de33a (the
    margin of an H100 may be zero or less).
    """
    gpus = ask_gpus(node, _CORE, _SLOWDOWN, _MEMORY_MAX, _MARGIN, _REASONS, fields=[82, 194])
    if isinstance(gpus, Result):
        return gpus
    if all(gpu.unsupported.issuperset(_READINGS) for gpu in gpus):
        return not_applicable("no GPU of this node reports its temperature")
    findings = [finding for gpu in gpus for finding in _findings(gpu, settings.margin_c)]
    readings = [
        Reading(component=gpu.gpu, name=name, value=gpu.values[key])
        for gpu in gpus
        for key, name in _READINGS.items()
        if key in gpu.values
    ]
    return judged(findings, readings, undecided=undecided_of(gpus))


def _findings(gpu: GpuValues, margin_c: float) -> Iterator[Finding]:
    value = gpu.values.get
    if (limit := value(_SLOWDOWN)) and (core := value(_CORE)) is not None and core >= limit - margin_c:
        yield SLOWDOWN.at(
            gpu.gpu,
            f"{core} °C; the GPU slows itself down at {limit} °C",
            value_c=core,
            limit_c=limit,
            limit_source=_SOURCE,
        )
    elif _is_throttled_by_heat(gpu, margin_c):
        message = f"heat slows the GPU down; {value(_MARGIN)} °C are left to its limit"
        left, limit, reasons = (value(key) for key in (_MARGIN, _SLOWDOWN_TLIMIT, _REASONS))
        yield SLOWDOWN.at(gpu.gpu, message, margin_c=left, limit_c=limit, reasons=reasons, limit_source=_SOURCE)
    if (limit := value(_MEMORY_MAX)) and (memory := value(_MEMORY)) is not None and memory >= limit - margin_c:
        message = f"GPU memory is at {memory} °C; at most {limit} °C is allowed"
        yield MEMORY.at(gpu.gpu, message, value_c=memory, limit_c=limit, limit_source=_SOURCE)


def _is_throttled_by_heat(gpu: GpuValues, margin_c: float) -> bool:
    margin, limit = gpu.values.get(_MARGIN), gpu.values.get(_SLOWDOWN_TLIMIT)
    heat = int(gpu.values.get(_REASONS, 0)) & _THERMAL
    return bool(heat) and margin is not None and limit is not None and margin <= limit + margin_c
