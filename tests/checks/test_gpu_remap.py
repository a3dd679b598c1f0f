"""gpu.remap: pending waits for a reset, failure is an exchange, many is watched."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checklib.gpus import MIG
from healthd.checks.gpu_remap import GpuRemapSettings, gpu_remap
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import GpuAnswer, NvmlFailure
from healthd.testing import (
    NOT_SUPPORTED,
    UNKNOWN,
    FakeNode,
    FakeNvml,
    codes,
    failed_gpu,
    fake_pci,
    gpu_uuid,
    gpu_with,
    healthy_gpu,
    pci_tree,
)
from tests.support.over_time import open_codes

ROWS = "nvmlDeviceGetRemappedRows"


def run(*gpus: GpuAnswer, **settings: Any) -> Result:
    node = FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=FakeNvml(*gpus))
    return gpu_remap(node, GpuRemapSettings(**settings))


def with_rows(index: int, *rows: int) -> GpuAnswer:
    return gpu_with(index, {ROWS: list(rows)})


def test_no_remaps() -> None:
    """A GPU without remaps is ok, and its rows are counted."""
    result = run(healthy_gpu(0))
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "gpu_remapped_rows_correctable_total": 0,
        "gpu_remapped_rows_uncorrectable_total": 0,
        "gpu_banks_with_max_spare_rows_count": 640,
        **{f"gpu_banks_with_{word}_spare_rows_count": 0 for word in ("high", "partial", "low", "none")},
    }


def test_finished_remaps_are_ok() -> None:
    """Rows that were remapped and took effect are no fault: that is what spare rows are for."""
    assert run(with_rows(0, 3, 5, 0, 0)).status is Status.OK


def test_pending() -> None:
    """A pending remap lets jobs run, so it is a warning, and calls for a GPU reset."""
    (finding,) = run(healthy_gpu(0), with_rows(1, 0, 1, 1, 0)).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "gpu.remap.pending",
        Severity.WARNING,
        Remedy.RESET_GPU,
    )
    assert finding.component.id == gpu_uuid(1)


def test_failure() -> None:
    """A failed remap is NVIDIA's criterion for an exchange."""
    (finding,) = run(with_rows(0, 0, 8, 0, 1)).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "gpu.remap.failure",
        Severity.CRITICAL,
        Remedy.REPLACE_NODE,
    )


def test_pending_and_failed_at_once() -> None:
    """Both flags give both findings."""
    assert {finding.code for finding in run(with_rows(0, 0, 8, 1, 1)).findings} == {
        "gpu.remap.pending",
        "gpu.remap.failure",
    }


@pytest.mark.parametrize(("correctable", "uncorrectable", "found"), [(5, 5, False), (5, 6, True), (0, 11, True)])
def test_many(correctable: int, uncorrectable: int, found: bool) -> None:
    """Ten rows are not many, eleven are, whichever kind they are."""
    result = run(with_rows(0, correctable, uncorrectable, 0, 0))
    assert [finding.code for finding in result.findings] == ["gpu.remap.many"] * found
    assert all(finding.remedy is Remedy.WATCH for finding in result.findings)


def test_many_is_a_setting() -> None:
    """The limit is the operator's."""
    assert run(with_rows(0, 0, 3, 0, 0), many=2).status is Status.FINDINGS
    assert run(with_rows(0, 0, 600, 0, 0), many=600).status is Status.OK


@pytest.mark.parametrize("code", [3, 13])
def test_gpus_without_a_row_remapper(code: int) -> None:
    """Where no GPU or driver knows the question the check does not apply; where one does, the other is a gap."""
    old = gpu_with(0, {ROWS: NvmlFailure(code=code, name="…")})
    assert run(old).status is Status.NOT_APPLICABLE
    assert run(old, healthy_gpu(1)).undecided == (
        f"gpu:{gpu_uuid(0)}: {ROWS} is not supported, but its siblings answer it",
    )
    assert run(old, with_rows(1, 0, 1, 1, 0)).status is Status.FINDINGS


SICK = with_rows(0, 0, 8, 0, 1)


@pytest.mark.parametrize("code", [3, 13])
@pytest.mark.parametrize("siblings", [(), (healthy_gpu(1),)])
def test_a_flag_that_is_not_told_any_more_is_not_over(code: int, siblings: tuple[GpuAnswer, ...]) -> None:
    """A GPU whose remap has failed stays so until it says otherwise, alone or among siblings that answer."""
    silent = gpu_with(0, {ROWS: NvmlFailure(code=code, name="…")})
    assert "gpu.remap.failure" in open_codes("gpu.remap", [run(SICK, *siblings), run(silent, *siblings)])[-1]
    assert open_codes("gpu.remap", [run(SICK, *siblings), run(healthy_gpu(0), *siblings)])[-1] == set()


def test_mig_is_no_gap_and_ends_nothing() -> None:
    """With MIG on for some GPUs their rows are not told: said, not unknown, and no fault of theirs is over."""
    mig = gpu_with(0, {ROWS: NOT_SUPPORTED, MIG: [1, 1]})
    result = run(mig, healthy_gpu(1))
    assert (result.status, result.reason) == (Status.OK, "with MIG on, 1 of 2 GPUs do not report their remapped rows")
    assert "gpu.remap.failure" in open_codes("gpu.remap", [run(SICK, healthy_gpu(1)), result])[-1]


def test_a_gpu_that_retires_pages_ends_what_it_tells() -> None:
    """Rows are not told by GPUs before Ampere, which keeps no page open."""
    looks = [run(gpu_with(0, {**TURING, PAGES_PENDING: 1})), run(gpu_with(0, TURING))]
    assert open_codes("gpu.remap", looks) == [{"gpu.pages.pending"}, set()]


def test_unknown_error_is_a_gap() -> None:
    """Unknown Error on one GPU is unknown for it, and hides no finding of another."""
    broken = gpu_with(0, {ROWS: UNKNOWN})
    assert run(broken, healthy_gpu(1)).status is Status.UNKNOWN
    result = run(broken, with_rows(1, 0, 1, 1, 0))
    assert result.status is Status.FINDINGS
    assert result.undecided == (f"gpu:{gpu_uuid(0)}: {ROWS} answered UNKNOWN (999)",)


def test_unsupported_and_broken_is_not_applicable_nowhere() -> None:
    """One GPU without a remapper and one that fails to answer is unknown."""
    assert run(gpu_with(0, {ROWS: NOT_SUPPORTED}), failed_gpu(1, UNKNOWN)).status is Status.UNKNOWN


HISTOGRAM, PAGES_PENDING = "nvmlDeviceGetRowRemapperHistogram", "nvmlDeviceGetRetiredPagesPendingStatus"
REPAIR, UNREPAIRABLE = "nvmlDeviceGetRepairStatus", "nvmlDeviceGetUnrepairableMemoryFlag_v1"
SINGLE, DOUBLE = "nvmlDeviceGetRetiredPages_v2(0)", "nvmlDeviceGetRetiredPages_v2(1)"
TURING = {ROWS: NOT_SUPPORTED, HISTOGRAM: NOT_SUPPORTED, SINGLE: [], DOUBLE: [], PAGES_PENDING: 0}


def pages(count: int) -> list[dict[str, int]]:
    return [{"address": 4096 * number, "timestamp": 1_700_000_000 + number} for number in range(count)]


@pytest.mark.parametrize("word", ["max", "high", "partial", "low", "none"])
def test_headroom(word: str) -> None:
    """How many banks have how much left is read; only a bank without any spare row is a warning."""
    spare = {**dict.fromkeys(("max", "high", "partial", "low", "none"), 0), word: 2}
    result = run(gpu_with(0, {HISTOGRAM: spare}))
    assert codes(result) == ["gpu.remap.no_spare"] * (word == "none")
    assert {r.name: r.value for r in result.readings}[f"gpu_banks_with_{word}_spare_rows_count"] == 2


@pytest.mark.parametrize("flags", [[1, 0], [0, 1], [1, 1]])
def test_a_repair_that_waits(flags: list[int]) -> None:
    """Blackwell's repair of a channel or a TPC waits for a reset, as a row remap does."""
    (finding,) = run(gpu_with(0, {REPAIR: flags, UNREPAIRABLE: 0})).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "gpu.repair.pending",
        Severity.WARNING,
        Remedy.RESET_GPU,
    )
    assert run(gpu_with(0, {REPAIR: [0, 0]})).status is Status.OK


def test_memory_that_cannot_be_repaired() -> None:
    """The driver's flag is a warning for a person, as XID 161 is."""
    (finding,) = run(gpu_with(0, {UNREPAIRABLE: 1})).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "gpu.repair.impossible",
        Severity.WARNING,
        Remedy.ASK_HUMAN,
    )


def test_before_ampere() -> None:
    """A GPU that retires pages is judged by its pages, and needs no row remapper."""
    result = run(gpu_with(0, {**TURING, SINGLE: pages(3), DOUBLE: pages(2)}))
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "gpu_retired_pages_single_bit_total": 3,
        "gpu_retired_pages_double_bit_total": 2,
    }


def test_a_retirement_that_waits() -> None:
    """A page whose retirement is recorded waits for the driver to be loaded again."""
    (finding,) = run(gpu_with(0, {**TURING, PAGES_PENDING: 1})).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "gpu.pages.pending",
        Severity.WARNING,
        Remedy.RESET_GPU,
    )


@pytest.mark.parametrize(("single", "double", "found"), [(62, 0, False), (60, 3, True), (0, 64, True)])
def test_pages_used_up(single: int, double: int, found: bool) -> None:
    """Sixty-three pages of either kind are DCGM's limit."""
    result = run(gpu_with(0, {**TURING, SINGLE: pages(single), DOUBLE: pages(double)}))
    assert codes(result) == ["gpu.pages.full"] * found


@pytest.mark.parametrize(
    ("by_day", "found"),
    [([14, 15], False), ([16, 16, 16], False), ([16, 17], False), ([16, 17, 18], True), ([3, 9, 15], False)],
)
def test_pages_that_keep_failing(by_day: list[int], found: bool) -> None:
    """Over fifteen pages with double-bit errors, and more than one more within a week, is DCGM's other limit."""
    looks = [run(gpu_with(0, {**TURING, DOUBLE: pages(count)})) for count in by_day]
    assert ("gpu.pages.growing" in open_codes("gpu.remap", looks, every_s=86_400.0)[-1]) is found


def test_a_gpu_that_does_neither() -> None:
    """Neither rows nor pages: out of scope; a failure to tell is unknown."""
    neither = {**TURING, SINGLE: NOT_SUPPORTED, DOUBLE: NOT_SUPPORTED}
    assert run(gpu_with(0, neither)).status is Status.NOT_APPLICABLE
    assert run(gpu_with(0, {**neither, DOUBLE: UNKNOWN})).status is Status.UNKNOWN
