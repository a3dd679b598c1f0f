"""The check ``gpu.pcie``: each GPU's link to the host."""

from __future__ import annotations

from collections.abc import Iterator

from healthd.checklib.gpus import GpuValues, ask_gpus, driver_epoch, undecided_of
from healthd.checklib.tables import filled, keyed_rows
from healthd.core.check import FindingCode, Rate, check, judged, not_applicable
from healthd.core.model import Finding, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import Node

_WIDTH, _MAX_WIDTH = "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth"
_GENERATION, _MAX_GENERATION = "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration"
_REPLAYS, _REASONS = "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetCurrentClocksEventReasons"
_GAUGES = {_WIDTH: "gpu_pcie_lane_count", _GENERATION: "gpu_pcie_generation"}
_IDLE = 0x1  # clocks event reason: nothing is running on the GPU (nvml.h)
_PER_MINUTE = 60.0

# Replays that a healthy link has, per lane and minute, by PCIe generation.
EXPECTED = keyed_rows(
    "pcie_replays.csv",
    lambda cells: (int(cells["generation"]), float(cells["per_lane_per_minute"]), filled(cells, "source")),
    lambda row: row[0],
)
_MOST_LANES = 16

WIDTH = FindingCode(
    code="gpu.pcie.width",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The GPU's PCIe link has fewer lanes than it could have",
    lasting_s=120.0,
)
GENERATION = FindingCode(
    code="gpu.pcie.generation",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The GPU's PCIe link is slower than it could be, under load",
    lasting_s=120.0,
)
REPLAYS = FindingCode(
    code="gpu.pcie.replays",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The GPU's PCIe link repeats more packets than a healthy one",
)
_LIMITS = (
    Rate(
        reading="gpu_pcie_replays_total",
        max_increase=max(row[1] for row in EXPECTED.values()) * _MOST_LANES,
        window_s=_PER_MINUTE,
        code=REPLAYS,
        calm_s=600.0,
        source="NVIDIA DCGM 4.6: replays per lane and minute, by generation (pcie_replays.csv); here the most of all",
    ),
)


@check("gpu.pcie", interval_s=60, codes=(WIDTH, GENERATION, REPLAYS), limits=_LIMITS)
def gpu_pcie(node: Node, _settings: object) -> Result:
    """Every GPU's PCIe link is as wide and as fast as it can be, and repeats few packets.

    Fewer lanes than the maximum must last for two minutes: a link in training has few for a moment. The generation
    drops while a GPU idles, so it is judged only while the driver reports load, and must last as long. NVML reports the
    maximum for this GPU in this machine. Unproven on hardware, and a warning at most: EC2 does not publish what it
    shows of a link inside an instance.

    Sources: nvml.h (nvmlDeviceGetMaxPcieLinkWidth: the most of GPU and system together); NVIDIA DCGM 4.6 (replays).
    """
    gpus = ask_gpus(node, *_GAUGES, _MAX_WIDTH, _MAX_GENERATION, _REPLAYS, _REASONS)
    if isinstance(gpus, Result):
        return gpus
    if all(gpu.unsupported.issuperset((*_GAUGES, _REPLAYS)) for gpu in gpus):
        return not_applicable("no GPU of this node reports its PCIe link")
    epoch = driver_epoch(node)
    readings = [reading for gpu in gpus for reading in _readings(gpu, epoch)]
    return judged([finding for gpu in gpus for finding in _findings(gpu)], readings, undecided=undecided_of(gpus))


def _findings(gpu: GpuValues) -> Iterator[Finding]:
    width, most = gpu.values.get(_WIDTH), gpu.values.get(_MAX_WIDTH)
    if width is not None and most is not None and width < most:
        message = f"PCIe link x{width}; x{most} is possible"
        yield WIDTH.at(gpu.gpu, message, value=width, limit=most, limit_source="the GPU itself (NVML)")
    generation, newest = gpu.values.get(_GENERATION), gpu.values.get(_MAX_GENERATION)
    works = _REASONS in gpu.values and not int(gpu.values[_REASONS]) & _IDLE
    if works and generation is not None and newest is not None and generation < newest:
        message = f"PCIe generation {generation} under load; {newest} is possible"
        yield GENERATION.at(gpu.gpu, message, value=generation, limit=newest, limit_source="the GPU itself (NVML)")


def _readings(gpu: GpuValues, epoch: str) -> Iterator[Reading]:
    for call, name in _GAUGES.items():
        if call in gpu.values:
            yield Reading(component=gpu.gpu, name=name, value=gpu.values[call])
    if _REPLAYS in gpu.values:
        row = EXPECTED.get(gpu.values.get(_MAX_GENERATION, 0))
        allowed = None if row is None or _MAX_WIDTH not in gpu.values else row[1] * gpu.values[_MAX_WIDTH]
        yield Reading(
            component=gpu.gpu,
            name="gpu_pcie_replays_total",
            value=gpu.values[_REPLAYS],
            kind=ReadingKind.COUNTER,
            epoch=epoch,
            limit=allowed,
        )
