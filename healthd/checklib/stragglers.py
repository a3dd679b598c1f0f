"""Stragglers: busy GPUs whose SM clock or power draw is far below that of their busy siblings.

Every other GPU of a job waits for one. Pure over NVML's answers; ``gpu.throttle`` judges it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from healthd.checklib.gpus import GpuValues

REASONS, CLOCK = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetClockInfo(1)"  # 1: NVML_CLOCK_SM
_POWER, LOAD = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"
QUESTIONS = (REASONS, CLOCK, _POWER, LOAD)
"""The calls that the answers must hold."""

_COMPARED = {CLOCK: ("SM clock", "MHz", 1), _POWER: ("power draw", "W", 1000)}
_IDLE = 0x1  # nvmlClocksEventReasonGpuIdle (nvml.h)
_BUSY_PERCENT, _SIBLINGS = 90, 3  # healthd's choice


def stragglers(gpus: Sequence[GpuValues], ratio: float) -> Iterator[tuple[GpuValues, dict[str, float], str]]:
    """The busy GPUs below ``ratio`` of the median of their busy siblings: the values in MHz or W, and as text."""
    busy = [gpu for gpu in gpus if _is_busy(gpu)]
    for gpu in busy:
        values, words = dict[str, float](), []
        for call, (name, unit, per) in _COMPARED.items():
            usual = _median_of_siblings(gpu, busy, call)
            if usual is None or gpu.values[call] >= ratio * usual:
                continue
            values[name.replace(" ", "_").lower()] = value = gpu.values[call] / per
            words.append(f"{name} {value:g} {unit}, its siblings' median is {usual / per:g} {unit}")
        if values:
            yield gpu, values, "; ".join(words)


def _is_busy(gpu: GpuValues) -> bool:
    """Used nearly all the time, and not idle by its clocks. A GPU with MIG on does not report its utilization."""
    used = gpu.values.get(LOAD, {"gpu": 0})["gpu"]
    return used >= _BUSY_PERCENT and not int(gpu.values.get(REASONS, _IDLE)) & _IDLE


def _median_of_siblings(gpu: GpuValues, busy: Sequence[GpuValues], call: str) -> float | None:
    """None where the GPU did not answer this call, or too few of its siblings did."""
    others = sorted(other.values[call] for other in busy if other is not gpu and call in other.values)
    if call not in gpu.values or len(others) < _SIBLINGS:
        return None
    return float(others[len(others) // 2])
