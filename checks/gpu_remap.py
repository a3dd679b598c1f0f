"""The check ``gpu.remap``: rows and pages that a GPU took out of use, and its spare rows for the next failure."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from msgspec import Struct

from healthd.checklib.gpus import MIG, GpuValues, ask_gpus, judged_gpus
from healthd.core.check import FindingCode, Rate, check, not_applicable
from healthd.core.model import Finding, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Count

_ROWS, _HISTOGRAM = "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRowRemapperHistogram"
_REPAIR, _UNREPAIRABLE = "nvmlDeviceGetRepairStatus", "nvmlDeviceGetUnrepairableMemoryFlag_v1"
_PAGES_PENDING = "nvmlDeviceGetRetiredPagesPendingStatus"
_PAGES = {"nvmlDeviceGetRetiredPages_v2(0)": "single_bit", "nvmlDeviceGetRetiredPages_v2(1)": "double_bit"}
_FAIL_PAGES, _MANY_DOUBLE_BIT, _WEEK_S = 63, 15, 604_800.0
_DCGM = (
    "NVIDIA DCGM 4.6 DcgmGPUHardwareLimits.h: fails at 63 pages (64 are the most), or over 15 DBE pages and 1 a week"
)


def _code(code: str, remedy: Remedy, meaning: str, *causes: str) -> FindingCode:
    return FindingCode(code=code, severity=Severity.WARNING, remedy=remedy, meaning=meaning, symptom_of=causes)


_RESET, _WATCH, _HUMAN = Remedy.RESET_GPU, Remedy.WATCH, Remedy.ASK_HUMAN
FAILURE = FindingCode(
    code="gpu.remap.failure",
    severity=Severity.CRITICAL,
    remedy=Remedy.REPLACE_NODE,
    meaning="A row could not be remapped: the bank of the failed row has no spare row left",
)
PENDING = _code("gpu.remap.pending", _RESET, "A row remap is recorded and waits for a GPU reset")
MANY = _code("gpu.remap.many", _WATCH, "Many rows are remapped")
NO_SPARE = _code("gpu.remap.no_spare", _WATCH, "A bank has no spare row left", FAILURE.code)
REPAIR = _code("gpu.repair.pending", _RESET, "A repair of memory or a TPC waits for a GPU reset", "gpu.xid.160")
UNREPAIRABLE = _code("gpu.repair.impossible", _HUMAN, "The GPU has memory that it cannot repair", "gpu.xid.161")
PAGES_PENDING = _code("gpu.pages.pending", _RESET, "A page retirement is recorded and waits for a driver reload")
PAGES_FULL = _code("gpu.pages.full", _HUMAN, "Almost no further page of memory can be retired")
PAGES_GROWING = _code("gpu.pages.growing", _HUMAN, "Many pages are retired, and more every week", PAGES_FULL.code)
_CODES = (PENDING, FAILURE, MANY, NO_SPARE, REPAIR, UNREPAIRABLE, PAGES_PENDING, PAGES_FULL, PAGES_GROWING)
_GROWING = "gpu_retired_pages_double_bit_total"
_RESTS_ON = {
    _ROWS: (FAILURE, PENDING, MANY),
    _HISTOGRAM: (NO_SPARE,),
    _REPAIR: (REPAIR,),
    _UNREPAIRABLE: (UNREPAIRABLE,),
    _PAGES_PENDING: (PAGES_PENDING,),
    **dict.fromkeys(_PAGES, (PAGES_FULL, PAGES_GROWING)),
}
_LIMITS = (Rate(reading=_GROWING, max_increase=1, window_s=_WEEK_S, code=PAGES_GROWING, source=_DCGM),)


class GpuRemapSettings(Struct, frozen=True, kw_only=True):
    """The number of remapped rows at which ``gpu.remap`` warns."""

    many: Count = 10
    """The most remapped rows of one GPU without a warning. Of nodes with more than 10, 83 % showed a performance
    regression, of those with 1 to 10 only 6 % (Microsoft, SuperBench paper)."""


@check("gpu.remap", interval_s=60, settings=GpuRemapSettings, codes=_CODES, limits=_LIMITS)
def gpu_remap(node: Node, settings: GpuRemapSettings) -> Result:
    """Every failed memory row has been replaced by a spare one.

    *Pending*: the remap is recorded and takes effect at the next GPU reset; jobs may run until then, so it is a
    warning, and healthd drains the node when it is convenient. *Failure*: no spare row was left, which is NVIDIA's
    criterion for exchanging the GPU. Neither is the same as XID 63 (recorded) or 64 (recording failed): the flags show
    the state now. The histogram shows how many banks have how many spare rows left. Blackwell repairs channels as well;
    its flags, and those of the page retirement of GPUs before Ampere, are unproven on hardware and warnings. GPUs with
    active MIG instances do not report their rows, which is no fault, and ends none; if any other GPU does not report a
    value that its siblings do, the outcome is partial.

    Sources: NVIDIA, GPU memory error management (A100 and newer); nvml.h (rows, histogram, repair status, retired
    pages); NVIDIA DCGM 4.6 (limits of page retirement).
    """
    gpus = ask_gpus(node, *_RESTS_ON, MIG)
    if isinstance(gpus, Result):
        return gpus
    if all(gpu.unsupported.issuperset((_ROWS, *_PAGES)) for gpu in gpus):
        return not_applicable("no GPU of this node remaps rows or retires pages, or all are in MIG mode")
    findings = [finding for gpu in gpus for finding in (*_rows(gpu, settings), *_repairs(gpu), *_pages(gpu))]
    readings = [reading for gpu in gpus for reading in _readings(gpu)]
    what = "their remapped rows"
    return judged_gpus(gpus, findings, readings, questions=(_ROWS,), rests_on=_RESTS_ON, what=what)


def _rows(gpu: GpuValues, settings: GpuRemapSettings) -> Iterator[Finding]:
    correctable, uncorrectable, pending, failure = gpu.values.get(_ROWS, (0, 0, 0, 0))
    rows, seen = correctable + uncorrectable, {"correctable": correctable, "uncorrectable": uncorrectable}
    spare = gpu.values.get(_HISTOGRAM, {})
    if failure:
        yield FAILURE.at(gpu.gpu, f"row remapping has failed; {rows} rows are remapped", **seen)
    if pending:
        yield PENDING.at(gpu.gpu, "a row remap is pending until the GPU is reset", **seen)
    if rows > settings.many:
        message = f"{rows} rows are remapped, more than {settings.many}"
        yield MANY.at(gpu.gpu, message, **seen, limit=settings.many, limit_source="SuperBench paper; settings.many")
    if spare.get("none"):
        yield NO_SPARE.at(gpu.gpu, f"{spare['none']} banks have no spare row left", banks_by_spare_rows=spare)


def _repairs(gpu: GpuValues) -> Iterator[Finding]:
    if any(flags := gpu.values.get(_REPAIR, ())):
        waiting = [word for word, flag in zip(("channel", "TPC"), flags, strict=False) if flag]
        yield REPAIR.at(gpu.gpu, f"a {' and '.join(waiting)} repair is pending until the GPU is reset")
    if gpu.values.get(_UNREPAIRABLE):
        yield UNREPAIRABLE.at(gpu.gpu, "the driver has set its flag for unrepairable memory")


def _pages(gpu: GpuValues) -> Iterator[Finding]:
    pages = sum(len(gpu.values.get(call, ())) for call in _PAGES)
    if gpu.values.get(_PAGES_PENDING):
        yield PAGES_PENDING.at(gpu.gpu, "a page retirement is pending until the driver is reloaded", pages=pages)
    if pages >= _FAIL_PAGES:
        yield PAGES_FULL.at(gpu.gpu, f"{pages} pages are retired", value=pages, limit=_FAIL_PAGES, limit_source=_DCGM)


def _readings(gpu: GpuValues) -> Iterator[Reading]:
    for kind, rows in zip(("correctable", "uncorrectable"), gpu.values.get(_ROWS, ()), strict=False):
        name = f"gpu_remapped_rows_{kind}_total"
        yield Reading(component=gpu.gpu, name=name, value=rows, kind=ReadingKind.COUNTER, epoch="inforom")
    for word, banks in gpu.values.get(_HISTOGRAM, {}).items():
        yield Reading(component=gpu.gpu, name=f"gpu_banks_with_{word}_spare_rows_count", value=banks)
    for call, kind in _PAGES.items():
        if call in gpu.values:
            name, count = f"gpu_retired_pages_{kind}_total", len(gpu.values[call])
            few = inf if count <= _MANY_DOUBLE_BIT else None
            counter = ReadingKind.COUNTER
            yield Reading(component=gpu.gpu, name=name, value=count, kind=counter, epoch="inforom", limit=few)
