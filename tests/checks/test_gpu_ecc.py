"""gpu.ecc: errors since the last reset count; what a board has had in its life does not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from healthd.checklib.gpus import MIG
from healthd.checks.gpu_ecc import GROWTH, UNCORRECTED, gpu_ecc
from healthd.core.check import NoSettings
from healthd.core.errors import SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import ClearsBy, Outcome, ReadingKind, Remedy, Result, Severity, Status
from healthd.core.node import GpuAnswer
from healthd.judge.diagnose import diagnose
from healthd.judge.history import History, observe
from healthd.testing import (
    GPU_IS_LOST,
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

VOLATILE, AGGREGATE = "nvmlDeviceGetTotalEccErrors(1, 0)", "nvmlDeviceGetTotalEccErrors(1, 1)"
ALL = [f"nvmlDeviceGetTotalEccErrors({kind}, {counter})" for kind in (0, 1) for counter in (0, 1)]
WHERE = [f"nvmlDeviceGetMemoryErrorCounter({kind}, 0, {place})" for kind in (0, 1) for place in (1, 2, 3, 7)]
MODE = "nvmlDeviceGetEccMode"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def run(*gpus: GpuAnswer, driver: str = "580.95.05", boot: str = "boot-1") -> Result:
    sys = {**pci_tree(gpus=[fake_pci(0)]), "module/nvidia/version": driver}
    return gpu_ecc(FakeNode(sys=sys, boot=boot, nvml=FakeNvml(*gpus)), NoSettings())


def fold(*results: Result) -> History:
    history = History()
    for number, result in enumerate(results):
        at = NOON + timedelta(minutes=number)
        outcome = Outcome(check="gpu.ecc", result=result, at=at, duration_s=0)
        history, _ = observe(history, outcome, [GROWTH], at)
    return history


def test_no_errors() -> None:
    """Four counters per GPU, and eight that tell where, are read as counters, and zero is ok."""
    result = run(healthy_gpu(0), healthy_gpu(1))
    assert result.status is Status.OK
    assert len(result.readings) == 2 * (4 + 8)
    assert {reading.kind for reading in result.readings} == {ReadingKind.COUNTER}
    assert all(reading.name.endswith("_total") for reading in result.readings)


def test_an_error_since_the_last_reset() -> None:
    """A volatile uncorrected error is critical and calls for a reset of that GPU alone."""
    result = run(healthy_gpu(0), gpu_with(1, {VOLATILE: 2}))
    (finding,) = result.findings
    assert (finding.code, finding.severity, finding.remedy) == (UNCORRECTED.code, Severity.CRITICAL, Remedy.RESET_GPU)
    assert finding.component.id == gpu_uuid(1)
    assert finding.evidence["volatile_uncorrected"] == 2


def test_the_past_of_a_board_condemns_nothing() -> None:
    """Any number of aggregate errors that does not grow is ok for ever."""
    result = run(gpu_with(0, {AGGREGATE: 5000}))
    assert result.status is Status.OK
    assert not fold(result, result, result).faults


def test_corrected_errors_are_readings_only() -> None:
    """A corrected error is counted and is no finding."""
    assert run(gpu_with(0, {"nvmlDeviceGetTotalEccErrors(0, 0)": 10_000})).status is Status.OK


def test_growth_and_level_are_one_diagnosis() -> None:
    """One error that shows in both counters is one diagnosis: the level, with the growth as its symptom."""
    history = fold(run(gpu_with(0, {AGGREGATE: 3})), run(gpu_with(0, {AGGREGATE: 4, VOLATILE: 1})))
    (diagnosis,) = diagnose(history)
    assert diagnosis.codes == ("gpu.ecc.uncorrected", "gpu.ecc.recorded")


def test_growth_alone_is_found() -> None:
    """An error whose volatile count was reset before we looked is news from the aggregate, and takes no node out."""
    history = fold(run(gpu_with(0, {AGGREGATE: 3})), run(gpu_with(0, {AGGREGATE: 4}), driver="590.10", boot="boot-2"))
    (fault,) = history.faults.values()
    assert (fault.code, fault.remedy, fault.clears_by) == ("gpu.ecc.recorded", Remedy.WATCH, ClearsBy.NOTHING)


def test_a_reset_ends_it() -> None:
    """Once the volatile counter is back at zero the fault is over."""
    assert not fold(run(gpu_with(0, {VOLATILE: 1, AGGREGATE: 4})), run(gpu_with(0, {AGGREGATE: 4}))).faults


def test_which_memory() -> None:
    """The finding tells in which memory the errors are, as far as the GPU tells."""
    sick = {
        VOLATILE: 3,
        "nvmlDeviceGetMemoryErrorCounter(1, 0, 2)": 3,
        "nvmlDeviceGetMemoryErrorCounter(1, 0, 7)": UNKNOWN,
    }
    (finding,) = run(gpu_with(0, sick)).findings
    assert finding.evidence["by_location"] == {"dram": 3}


def corrected_over_days(*by_day: int) -> set[str]:
    """What is open after so many corrected errors on each day, spread over its hours, looked at hourly."""
    total, looks = 0.0, [0.0]
    for errors in by_day:
        looks += [total + errors * (hour + 1) / 24 for hour in range(24)]
        total += errors
    results = [run(gpu_with(0, {"nvmlDeviceGetTotalEccErrors(0, 1)": int(count)})) for count in looks]
    return open_codes("gpu.ecc", results, every_s=3600.0)[-1]


def test_corrected_errors_that_accelerate() -> None:
    """One a day that doubles daily is found by the sixth day; a steady fifty a day never, nor an old total."""
    assert corrected_over_days(1, 2, 4, 8, 16, 32) == {"gpu.ecc.accelerating"}
    assert corrected_over_days(*[50] * 14) == set()
    assert corrected_over_days(0, 0, 400, 0, 0, 0, 0) == set()


def test_volatile_counters_belong_to_boot_and_driver() -> None:
    """The volatile epoch changes with boot and driver version, the aggregate epoch with neither."""
    epochs = {
        (reading.name, reading.epoch)
        for result in (run(healthy_gpu(0)), run(healthy_gpu(0), boot="boot-2"), run(healthy_gpu(0), driver="590.10"))
        for reading in result.readings
        if reading.name in ("gpu_ecc_uncorrected_volatile_total", "gpu_ecc_uncorrected_aggregate_total")
    }
    assert len([1 for name, _ in epochs if "volatile" in name]) == 3
    assert len([1 for name, _ in epochs if "aggregate" in name]) == 1


def test_no_ecc_is_no_fault() -> None:
    """GPUs without ECC have no counters and no mode, and the check does not apply."""
    without = [gpu_with(index, dict.fromkeys((MODE, *ALL, *WHERE), NOT_SUPPORTED)) for index in range(2)]
    assert run(*without).status is Status.NOT_APPLICABLE


def test_a_gpu_without_counters_among_others_is_a_gap() -> None:
    """ECC is off on one, or it is in trouble: nobody can tell which, and the others are judged."""
    result = run(gpu_with(0, dict.fromkeys((*ALL, *WHERE), NOT_SUPPORTED)), healthy_gpu(1))
    assert (result.status, len(result.undecided)) == (Status.UNKNOWN, 1)
    assert result.undecided[0].startswith(f"gpu:{gpu_uuid(0)}: nvmlDeviceGetTotalEccErrors(0, 0), ")
    assert result.undecided[0].endswith("is not supported, but its siblings answer it")
    assert {reading.component.id for reading in result.readings} == {gpu_uuid(1)}


@pytest.mark.parametrize("siblings", [(), (healthy_gpu(1),), (gpu_with(1, {VOLATILE: NOT_SUPPORTED}),)])
def test_a_counter_that_is_not_told_ends_nothing(siblings: tuple[GpuAnswer, ...]) -> None:
    """A volatile counter that goes missing while errors are handled is no zero, whatever siblings say."""
    sick, missing = run(gpu_with(0, {VOLATILE: 3}), *siblings), run(gpu_with(0, {VOLATILE: NOT_SUPPORTED}), *siblings)
    assert set(fold(sick, missing).faults) == {(f"gpu:{gpu_uuid(0)}", "gpu.ecc.uncorrected")}
    assert not fold(sick, missing, run(healthy_gpu(0), healthy_gpu(1))).faults


def test_what_mig_hides_is_said_and_no_fault() -> None:
    """With MIG on, on one GPU or all, a counter that is not told is neither a gap nor the end of a fault."""
    hidden = [gpu_with(index, {VOLATILE: NOT_SUPPORTED, MIG: [1, 1]}) for index in range(2)]
    for gpus, count in ((hidden, 2), ([hidden[0], healthy_gpu(1)], 1)):
        result = run(*gpus)
        assert (result.status, result.undecided) == (Status.OK, ())
        assert result.reason == f"with MIG on, {count} of 2 GPUs do not report all of their ECC counters"
        assert fold(run(gpu_with(0, {VOLATILE: 3}), healthy_gpu(1)), result).faults


def test_unknown_error_is_unknown_and_not_zero() -> None:
    """Unknown Error, as seen while errors are being handled, is a gap of that GPU; the others are judged."""
    result = run(gpu_with(0, dict.fromkeys((*ALL, *WHERE), UNKNOWN)), healthy_gpu(1))
    assert result.status is Status.UNKNOWN
    assert f"gpu:{gpu_uuid(0)}" in result.reason
    assert len(result.readings) == 12


def test_ecc_that_is_off_is_said() -> None:
    """Off on every GPU is one warning of the node; off after the next reset only, or a GPU without ECC, is none."""
    off = {MODE: [0, 0], **dict.fromkeys((*ALL, *WHERE), NOT_SUPPORTED)}
    (finding,) = run(gpu_with(0, off), gpu_with(1, off)).findings
    assert (finding.code, str(finding.component), finding.severity) == ("gpu.ecc.off", "node", Severity.WARNING)
    assert codes(run(gpu_with(0, off), healthy_gpu(1))) == ["gpu.ecc.off"]
    assert run(gpu_with(0, {MODE: [1, 0]})).status is Status.OK


def test_a_lost_gpu_hides_no_other() -> None:
    """The error of one GPU is found while another is lost, which gpu.recovery tells: no gap, and nothing of it ends."""
    result = run(failed_gpu(0, GPU_IS_LOST, named=True), gpu_with(1, {VOLATILE: 1}))
    assert [finding.component.id for finding in result.findings] == [gpu_uuid(1)]
    assert result.undecided == ()
    assert result.reason == f"gpu:{gpu_uuid(0)}: its handle was refused with GPU_IS_LOST (15): gpu.recovery reports it"
    looks = [
        run(gpu_with(0, {VOLATILE: 1}), healthy_gpu(1)),
        run(failed_gpu(0, GPU_IS_LOST, named=True), healthy_gpu(1)),
    ]
    assert open_codes("gpu.ecc", looks)[-1] == {"gpu.ecc.uncorrected"}


def test_without_a_library() -> None:
    """No library: unknown where the bus has GPUs or the type has them, else not applicable."""
    missing = FakeNvml(error=SourceMissing("NVML: libnvidia-ml.so.1 is not there"))
    there = FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=missing)
    assert gpu_ecc(there, NoSettings()).status is Status.UNKNOWN
    assert gpu_ecc(FakeNode(sys=pci_tree(), nvml=missing), NoSettings()).status is Status.NOT_APPLICABLE
    lost = FakeNode(sys=pci_tree(), nvml=missing, instance_type="p5.48xlarge")
    assert gpu_ecc(lost, NoSettings()).status is Status.UNKNOWN


def test_a_library_that_lists_no_gpu() -> None:
    """NVML without a GPU is unknown where the bus has one."""
    assert gpu_ecc(FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=FakeNvml()), NoSettings()).status is Status.UNKNOWN


@pytest.mark.parametrize("error", [SourceTimeout("no answer"), SourceUnreadable("DRIVER_NOT_LOADED (9)")])
def test_a_driver_that_does_not_answer_is_unknown(error: Exception) -> None:
    """Time-outs and library errors pass through, and the runner makes unknown of them."""
    with pytest.raises(type(error)):
        gpu_ecc(FakeNode(nvml=FakeNvml(error=error)), NoSettings())  # type: ignore[arg-type]  # both are SourceErrors
