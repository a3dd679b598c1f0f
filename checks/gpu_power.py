"""The check ``gpu.power``: what power each GPU may draw, and whether its driver stays loaded."""

from __future__ import annotations

from collections.abc import Iterator

from healthd.checklib.gpus import GpuValues, ask_gpus, of_the_node, undecided_of
from healthd.core.check import FindingCode, check, judged, not_applicable
from healthd.core.model import Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Node

_USAGE, _ENFORCED = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit"
_DEFAULT, _PERSISTENCE = "nvmlDeviceGetPowerManagementDefaultLimit", "nvmlDeviceGetPersistenceMode"
_READINGS = {_USAGE: "gpu_power_w", _ENFORCED: "gpu_power_limit_enforced_w", _DEFAULT: "gpu_power_limit_default_w"}
_MILLIWATTS = 1000

LIMITED = FindingCode(
    code="gpu.power.limited",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The GPU may draw less power than its default: it runs slower than its siblings",
)
NOT_PERSISTENT = FindingCode(
    code="gpu.persistence.off",
    severity=Severity.INFO,
    remedy=Remedy.NONE,
    meaning="Persistence mode is off: the driver forgets the GPU's state whenever no process uses it",
    symptom_of=("host.service.failed", "host.service.missing", "host.service.stopped"),
)


@check("gpu.power", interval_s=60, codes=(LIMITED, NOT_PERSISTENT))
def gpu_power(node: Node, _settings: object) -> Result:
    """Every GPU may draw its default power.

    The enforced limit is the lowest of all limits, of an administrator or of the board itself. Below the default it
    slows every job down, and nothing else shows it. It may be intended, so the operator decides. The power draw is a
    reading only: no limit is published that holds for all models. Persistence mode that is off is news: settings, and
    error counters between two jobs, are lost with the driver's state. A limit that all GPUs share is one finding of the
    node.

    Sources: nvml.h (nvmlDeviceGetEnforcedPowerLimit, nvmlDeviceGetPowerManagementDefaultLimit); NVIDIA Health
    Validation and Meta's gcm compare with a power limit, Azure's health checks with persistence mode.
    """
    gpus = ask_gpus(node, *_READINGS, _PERSISTENCE)
    if isinstance(gpus, Result):
        return gpus
    if all(gpu.unsupported.issuperset((*_READINGS, _PERSISTENCE)) for gpu in gpus):
        return not_applicable("no GPU of this node reports its power limits")
    readings = [
        Reading(component=gpu.gpu, name=name, value=gpu.values[call] / _MILLIWATTS)
        for gpu in gpus
        for call, name in _READINGS.items()
        if call in gpu.values
    ]
    findings = of_the_node((finding for gpu in gpus for finding in _findings(gpu)), len(gpus))
    return judged(findings, readings, undecided=undecided_of(gpus))


def _findings(gpu: GpuValues) -> Iterator[Finding]:
    enforced, default = gpu.values.get(_ENFORCED), gpu.values.get(_DEFAULT)
    if enforced is not None and default is not None and enforced < default:
        enforced_w, default_w = enforced / _MILLIWATTS, default / _MILLIWATTS
        message = f"power limit {enforced_w:g} W, below the default of {default_w:g} W (nvidia-smi -q -d POWER)"
        yield LIMITED.at(gpu.gpu, message, value_w=enforced_w, limit_w=default_w, limit_source="the GPU itself (NVML)")
    if gpu.values.get(_PERSISTENCE) == 0:
        yield NOT_PERSISTENT.at(gpu.gpu, "persistence mode is off; nvidia-persistenced keeps it on")
