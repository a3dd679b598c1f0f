"""The check ``gpu.remap``: the GPU's spare memory rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from healthd.check import FindingCode, check, judged, not_applicable
from healthd.gpus import GpuValues, ask_gpus, gaps_of
from healthd.model import Finding, Reading, ReadingKind, Remedy, Result, Severity
from healthd.node import Node

_CALL = "nvmlDeviceGetRemappedRows"

PENDING = FindingCode(
    code="gpu.remap.pending",
    severity=Severity.WARNING,
    remedy=Remedy.RESET_GPU,
    meaning="A row remap is recorded and waits for a GPU reset",
)
FAILURE = FindingCode(
    code="gpu.remap.failure",
    severity=Severity.CRITICAL,
    remedy=Remedy.REPLACE_NODE,
    meaning="A row could not be remapped: this GPU's spare rows are used up where they are needed",
)
MANY = FindingCode(
    code="gpu.remap.many",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="Many rows are remapped",
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """When ``gpu.remap`` calls remapped rows many."""

    many: int = 10
    """The most remapped rows of one GPU without a warning. Of nodes with more than 10, 83 % showed a performance
    regression, of those with 1 to 10 only 6 % (Microsoft, SuperBench paper)."""


@check("gpu.remap", interval_s=60, settings=Settings, codes=(PENDING, FAILURE, MANY))
def gpu_remap(node: Node, settings: Settings) -> Result:
    """Every failed memory row has been replaced by a spare one.

    *Pending*: the remap is recorded and takes effect at the next GPU reset; jobs may run until then, so it is a warning
    that takes the node out when it is convenient. *Failure*: no spare row was left, which is NVIDIA's criterion for
    exchanging the GPU. Neither is the same as XID 63 (recorded) or 64 (recording failed): the flags say what holds now.
    GPUs before Ampere, and GPUs with active MIG instances, do not answer this question, which is no fault.

    Sources: NVIDIA, GPU memory error management (A100 and newer); nvml.h nvmlDeviceGetRemappedRows.
    """
    gpus = ask_gpus(node, _CALL)
    if isinstance(gpus, Result):
        return gpus
    if all(_CALL in gpu.unsupported for gpu in gpus):
        return not_applicable("no GPU here has a row remapper, or all are in MIG mode")
    findings = [finding for gpu in gpus for finding in _findings(gpu, settings)]
    readings = [reading for gpu in gpus for reading in _readings(gpu)]
    return judged(findings, readings, gaps=gaps_of(gpus))


def _findings(gpu: GpuValues, settings: Settings) -> Iterator[Finding]:
    if _CALL not in gpu.values:
        return
    correctable, uncorrectable, pending, failure = gpu.values[_CALL]
    rows, seen = correctable + uncorrectable, {"correctable": correctable, "uncorrectable": uncorrectable}
    if failure:
        yield FAILURE.at(gpu.gpu, f"row remapping has failed; {rows} rows are remapped", **seen)
    if pending:
        yield PENDING.at(gpu.gpu, "a row remap is pending until the GPU is reset", **seen)
    if rows > settings.many:
        message = f"{rows} rows are remapped, more than {settings.many}"
        yield MANY.at(gpu.gpu, message, **seen, limit=settings.many, limit_source="SuperBench paper; settings.many")


def _readings(gpu: GpuValues) -> Iterator[Reading]:
    for kind, rows in zip(("correctable", "uncorrectable"), gpu.values.get(_CALL, ()), strict=False):
        name = f"gpu_remapped_rows_{kind}_total"
        yield Reading(component=gpu.gpu, name=name, value=rows, kind=ReadingKind.COUNTER, epoch="inforom")
