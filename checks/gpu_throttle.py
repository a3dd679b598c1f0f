"""The check ``gpu.throttle``: GPUs that run slower because of heat or the power supply, and stragglers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from healthd.checklib.gpus import GpuValues, ask_gpus, driver_epoch, undecided_of
from healthd.checklib.nvml_codes import field_key
from healthd.checklib.stragglers import CLOCK, LOAD, QUESTIONS, REASONS, stragglers
from healthd.core.check import FindingCode, Rate, check, judged, not_applicable
from healthd.core.model import Finding, Reading, ReadingKind, Remedy, Repeats, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Ratio

_HARDWARE = {0x8: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}  # nvml.h
# Fields of nvml.h that count the nanoseconds for which a reason held, and the readings they become.
_FIELDS = {
    74: "gpu_throttled_software_power_seconds_total",
    269: "gpu_throttled_software_heat_seconds_total",
    270: "gpu_throttled_hardware_heat_seconds_total",
    271: "gpu_throttled_power_brake_seconds_total",
}
_NANO = 1e-9
_WINDOW_S = 600.0
_SOURCE = "gpud 4a8de33a: 0.6 events a minute over 10 minutes, with a sample a minute: 6 of 10 samples, or 360 of 600 s"

HEAT = FindingCode(
    code="gpu.throttle.heat",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The GPU's hardware slows it down for heat, most of the time",
)
BRAKE = FindingCode(
    code="gpu.throttle.power_brake",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The power supply slows the GPU down (power brake), most of the time",
)
SLOWDOWN = FindingCode(
    code="gpu.throttle.hardware",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The GPU's hardware slows it down again and again",
    symptom_of=(HEAT.code, BRAKE.code),
    repeats=Repeats(times=6, window_s=_WINDOW_S),
)
SLOW = FindingCode(
    code="gpu.throttle.slower_than_siblings",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="A straggler: a busy GPU's clock or power draw is far below that of its busy siblings",
    symptom_of=(HEAT.code, BRAKE.code, SLOWDOWN.code),
    lasting_s=_WINDOW_S,
)
_LIMITS = (
    Rate(reading=_FIELDS[270], max_increase=360.0, window_s=_WINDOW_S, code=HEAT, source=_SOURCE),
    Rate(reading=_FIELDS[271], max_increase=360.0, window_s=_WINDOW_S, code=BRAKE, source=_SOURCE),
)


class GpuThrottleSettings(Struct, frozen=True, kw_only=True):
    """When ``gpu.throttle`` calls a GPU slow."""

    siblings_ratio: Ratio = 0.8
    """A busy GPU whose SM clock or power draw stays below this share of the median of its busy siblings, for ten
    minutes, is a warning. healthd does nothing about it in any mode: GPUs of different jobs differ as well, and no
    limit is published. 0: not judged."""


@check("gpu.throttle", interval_s=60, settings=GpuThrottleSettings, codes=(HEAT, BRAKE, SLOWDOWN, SLOW), limits=_LIMITS)
def gpu_throttle(node: Node, settings: GpuThrottleSettings) -> Result:
    """No GPU's hardware slows it down for long.

    From driver 575 on the GPU counts for how long each reason held, and history judges the growth: that covers the time
    between two check runs. The check reads the current reasons as well; a single one is noise, six in ten minutes are
    not. Software power capping is normal for a busy GPU, and a reading. A straggler, for which every other GPU of a job
    waits, shows only beside its siblings: a busy GPU is one that the driver calls 90 % used, and three busy siblings
    make a median. Unproven on hardware, and a warning at most: the room and the rack are the usual causes.

    Sources: nvml.h (fields 74 and 269 to 271, clocks event reasons 0x8, 0x40, 0x80); gpud 4a8de33a (0.6 a minute);
    NVIDIA resiliency extension (a straggler's score is relative to its siblings).
    """
    gpus = ask_gpus(node, *QUESTIONS, fields=list(_FIELDS))
    if isinstance(gpus, Result):
        return gpus
    if all(gpu.unsupported.issuperset((REASONS, *map(field_key, _FIELDS))) for gpu in gpus):
        return not_applicable("no GPU of this node reports the reasons of its clocks")
    epoch = driver_epoch(node)
    readings = [reading for gpu in gpus for reading in _readings(gpu, epoch)]
    findings = [*(finding for gpu in gpus for finding in _held_back(gpu)), *_slow(gpus, settings.siblings_ratio)]
    return judged(findings, readings, undecided=undecided_of(gpus))


def _held_back(gpu: GpuValues) -> Iterator[Finding]:
    reasons = int(gpu.values.get(REASONS, 0))
    if active := [reason for bit, reason in _HARDWARE.items() if reasons & bit]:
        yield SLOWDOWN.at(gpu.gpu, f"slowed down by {', '.join(active)}", reasons=reasons, limit_source=_SOURCE)


def _slow(gpus: Sequence[GpuValues], ratio: float) -> Iterator[Finding]:
    for gpu, behind, comparison in stragglers(gpus, ratio):
        message = f"{comparison}, while all are busy"
        yield SLOW.at(gpu.gpu, message, behind=behind, limit_ratio=ratio, limit_source="settings")


def _readings(gpu: GpuValues, epoch: str) -> Iterator[Reading]:
    for field, name in _FIELDS.items():
        if (value := gpu.values.get(field_key(field))) is not None:
            seconds = value * _NANO
            yield Reading(component=gpu.gpu, name=name, value=seconds, kind=ReadingKind.COUNTER, epoch=epoch)
    if CLOCK in gpu.values:
        yield Reading(component=gpu.gpu, name="gpu_sm_clock_mhz", value=gpu.values[CLOCK])
    if LOAD in gpu.values:
        yield Reading(component=gpu.gpu, name="gpu_utilization_ratio", value=gpu.values[LOAD]["gpu"] / 100)
