"""gpu.pcie: width always, generation under load, replays by lane and generation. Constructed from nvml.h."""

from __future__ import annotations

import pytest

from healthd.checks.gpu_pcie import gpu_pcie
from healthd.core.check import NoSettings, discover
from healthd.core.model import Reading, Remedy, Result, Severity, Status
from healthd.core.node import GpuAnswer
from healthd.testing import (
    NOT_SUPPORTED,
    UNKNOWN,
    FakeNode,
    FakeNvml,
    codes,
    fake_pci,
    gpu_uuid,
    gpu_with,
    healthy_gpu,
    pci_tree,
)
from tests.support.over_time import open_codes

WIDTH, MAX_WIDTH = "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth"
GENERATION, MAX_GENERATION = "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration"
REPLAYS, REASONS = "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetCurrentClocksEventReasons"
IDLE, WORKING = 0x1, 0x4


def run(*gpus: GpuAnswer) -> Result:
    return gpu_pcie(FakeNode(sys=pci_tree(gpus=[fake_pci(0)]), nvml=FakeNvml(*gpus)), NoSettings())


def replays(result: Result) -> Reading:
    return next(reading for reading in result.readings if reading.name == "gpu_pcie_replays_total")


def test_full_width_and_speed() -> None:
    """A link at its best is ok, with three readings."""
    result = run(healthy_gpu(0))
    assert result.status is Status.OK
    assert [reading.value for reading in result.readings] == [16, 5, 0]


@pytest.mark.parametrize("reasons", [IDLE, WORKING])
@pytest.mark.parametrize(("width", "found"), [(16, False), (8, True), (1, True)])
def test_width(width: int, reasons: int, found: bool) -> None:
    """Fewer lanes than possible are wrong, idle or not, on that GPU only."""
    result = run(healthy_gpu(0), gpu_with(1, {WIDTH: width, REASONS: reasons}))
    assert codes(result) == ["gpu.pcie.width"] * found
    for finding in result.findings:
        assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.ASK_HUMAN)
        assert finding.component.id == gpu_uuid(1)
        assert (finding.evidence["value"], finding.evidence["limit"]) == (width, 16)


@pytest.mark.parametrize(("reasons", "found"), [(IDLE, False), (IDLE | WORKING, False), (WORKING, True), (0, True)])
def test_generation_only_under_load(reasons: int, found: bool) -> None:
    """An idle GPU saves power; one that works at a low generation is slow, if it stays so."""
    result = run(gpu_with(0, {GENERATION: 1, REASONS: reasons}))
    assert codes(result) == ["gpu.pcie.generation"] * found
    assert all(finding.lasting_s == 120 for finding in result.findings)


def test_load_that_is_not_known_is_no_load() -> None:
    """Without the reasons of the clocks nobody knows whether the GPU works."""
    assert run(gpu_with(0, {GENERATION: 1, REASONS: NOT_SUPPORTED})).status is Status.OK
    assert run(gpu_with(0, {GENERATION: 1, REASONS: UNKNOWN})).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("generation", "lanes", "allowed"), [(3, 16, 7.68), (4, 16, 15.36), (5, 16, 30.72), (5, 8, 15.36), (6, 16, 61.44)]
)
def test_replays_by_lane_and_generation(generation: int, lanes: int, allowed: float) -> None:
    """What is allowed a minute follows from the link, as DCGM has it."""
    result = run(gpu_with(0, {MAX_GENERATION: generation, MAX_WIDTH: lanes}))
    assert replays(result).limit == pytest.approx(allowed)


def test_a_generation_without_a_published_number() -> None:
    """Then the most of all generations is allowed, by the limit that the check declares."""
    assert replays(run(gpu_with(0, {MAX_GENERATION: 7}))).limit is None
    (limit,) = discover()["gpu.pcie"].limits
    assert getattr(limit, "max_increase", None) == pytest.approx(61.44)


@pytest.mark.parametrize(("per_minute", "found"), [(0, False), (30, False), (31, True), (500, True)])
def test_replays_over_time(per_minute: int, found: bool) -> None:
    """A Gen5 x16 link may repeat 30 packets a minute and not 31; what it had before does not count."""
    looks = [run(gpu_with(0, {REPLAYS: 1000 + minute * per_minute})) for minute in range(5)]
    after = open_codes("gpu.pcie", looks)
    assert after[0] == set()
    assert after[-1] == ({"gpu.pcie.replays"} if found else set())


def test_a_slow_link_must_stay_slow() -> None:
    """A look at a link that is just speeding up is not yet a finding; three looks are."""
    after = open_codes("gpu.pcie", [run(gpu_with(0, {GENERATION: 1, REASONS: WORKING}))] * 4)
    assert after == [set(), set(), {"gpu.pcie.generation"}, {"gpu.pcie.generation"}]


def test_a_gpu_that_tells_nothing() -> None:
    """Out of scope if no GPU knows its link, unknown if one fails to tell."""
    assert run(gpu_with(0, dict.fromkeys((WIDTH, GENERATION, REPLAYS), NOT_SUPPORTED))).status is Status.NOT_APPLICABLE
    assert run(gpu_with(0, {WIDTH: UNKNOWN}), gpu_with(1, {WIDTH: 8})).undecided
