"""gpu.fabric: joined, healthy, one domain. Answers are constructed from nvml.h, not recorded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.checklib.fabric_health import faults_of
from healthd.checks.gpu_fabric import gpu_fabric
from healthd.core.check import NoSettings
from healthd.core.model import REMEDY_RANK, Remedy, Result, Severity, Status
from healthd.core.node import GpuAnswer
from healthd.testing import (
    HEALTHY_GPU,
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

INFO, MIG = "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMigMode"
GB200 = "p6e-gb200.36xlarge"


def run(
    *gpus: GpuAnswer,
    instance_type: str | None = "p5.48xlarge",
    severity: Severity = Severity.CRITICAL,
    modules: tuple[str, ...] = (),
) -> Result:
    sys = {**pci_tree(gpus=[fake_pci(0)]), **{f"module/{name}/initstate": "live" for name in modules}}
    result = gpu_fabric(FakeNode(sys=sys, nvml=FakeNvml(*gpus), instance_type=instance_type), NoSettings())
    for finding in result.findings:  # unproven on hardware
        joined = finding.code.removeprefix("gpu.fabric.") not in ("not_ready", "no_partition", "failed")
        assert finding.severity is (Severity.WARNING if joined else severity)
        assert REMEDY_RANK[finding.remedy] < REMEDY_RANK[Remedy.RESET_GPU]
    return result


def fabric(index: int, **changes: Any) -> GpuAnswer:
    return gpu_with(index, {INFO: {**HEALTHY_GPU[INFO], **changes}})


def test_joined() -> None:
    """A GPU that has joined a healthy fabric is ok, and its clique is a reading."""
    result = run(healthy_gpu(0))
    assert result.status is Status.OK
    assert [reading.name for reading in result.readings] == ["gpu_fabric_clique_id"]


def test_the_nodes_of_one_ultraserver_have_the_same_domain_and_others_have_another() -> None:
    """A node that is in none, or whose GPUs are in several, has no such reading; nor has a type without domains."""
    ours = [fabric(index, clusterUuid=[7] * 16, cliqueId=1) for index in range(2)]
    other = fabric(1, clusterUuid=[7] * 16, cliqueId=2)
    none = fabric(0, clusterUuid=[0] * 16)
    kind = "p6e-gb200.36xlarge"
    first, second, elsewhere = (domains(run(*gpus, instance_type=kind)) for gpus in (ours, ours[:1], [other]))
    assert first == second
    assert len(first) == 1
    assert elsewhere
    assert elsewhere != first
    assert domains(run(none, instance_type=kind)) == domains(run(ours[0], other, instance_type=kind)) == []
    assert domains(run(ours[0])) == []


def domains(result: Result) -> list[float]:
    return [reading.value for reading in result.readings if reading.name == "gpu_fabric_domain"]


@pytest.mark.parametrize(("state", "word"), [(1, "not started"), (2, "in progress"), (7, "state 7")])
def test_not_joined(state: int, word: str) -> None:
    """A GPU that is not in the fabric is found once that has lasted for five minutes."""
    result = run(healthy_gpu(0), fabric(1, state=state))
    (finding,) = result.findings
    assert (finding.code, finding.component.id) == ("gpu.fabric.not_ready", gpu_uuid(1))
    assert word in finding.message
    after = open_codes("gpu.fabric", [result] * 6)
    assert (after[4], after[5]) == (set(), {"gpu.fabric.not_ready"})


@given(st.integers(0, 2**16 - 1), st.integers(1, 3))
def test_a_gpu_without_a_partition_is_told_as_that(mask: int, state: int) -> None:
    """One that has not joined and has no partition lacks that and no service; assigned, untold or joined is no such."""
    found = codes(run(fabric(0, state=state, healthMask=mask)))
    assert ("gpu.fabric.no_partition" in found) is (state != 3 and mask >> 12 & 3 == 2)
    assert ("gpu.fabric.not_ready" in found) is (state != 3 and mask >> 12 & 3 != 2)


@pytest.mark.parametrize("changes", [{"state": 1}, {"status": 999}])
@pytest.mark.parametrize(
    ("instance_type", "modules", "named"),
    [
        ("p6-b200.48xlarge", (), True),
        ("p6-b300.48xlarge", ("ib_uverbs",), True),
        ("p6-b200.48xlarge", ("ib_umad",), False),
        ("p5.48xlarge", (), False),
        (GB200, (), False),
    ],
)
def test_ib_umad_is_named_where_it_is_needed(
    changes: dict[str, int], instance_type: str, modules: tuple[str, ...], named: bool
) -> None:
    """On an NVLink 5 board of one node the message says that the module is missing; joined, nothing is found."""
    (finding,) = run(fabric(0, **changes), instance_type=instance_type, modules=modules).findings
    assert ("ib_umad" in finding.message) is named
    assert run(healthy_gpu(0), instance_type=instance_type, modules=modules).findings == ()


def test_joining_failed() -> None:
    """Completed with an error is a failure, and not the same as not ready."""
    assert codes(run(fabric(0, status=999))) == ["gpu.fabric.failed"]
    assert codes(run(fabric(0, status=999, state=2))) == ["gpu.fabric.not_ready"]


@pytest.mark.parametrize("changes", [{"state": 2}, {"status": 999}])
def test_a_gpu_in_mig_needs_no_fabric(changes: dict[str, int]) -> None:
    """A job in a MIG instance uses no NVLink: it keeps no job off."""
    run(gpu_with(0, {INFO: {**HEALTHY_GPU[INFO], **changes}, MIG: [1, 1]}), severity=Severity.WARNING)


# Two bits each from 0 on: degraded bandwidth, route recovery, route unhealthy, access time-out; from 8 on four bits.
FINE = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8 | 1 << 12 | 1 << 14


@pytest.mark.parametrize("mask", [0, FINE, FINE & ~(0xF << 8), 2 << 12, 2 << 14, 3, 3 << 4])
def test_masks_without_a_fault(mask: int) -> None:
    """Two is fine, zero is not told, and partition and manager are no health."""
    assert run(fabric(0, healthMask=mask)).status is Status.OK


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (1, ["lost bandwidth"]),
        (1 << 2, ["another route"]),
        (1 << 4, ["broken"]),
        (1 << 6, ["timed out"]),
        (2 << 8, ["configured wrongly (reason 2)"]),
        (8 << 8, ["(reason 8)"]),
        (FINE & ~3 | 1, ["lost bandwidth"]),
        (1 | 1 << 4 | 5 << 8, ["lost bandwidth", "broken", "(reason 5)"]),
    ],
)
def test_masks_with_faults(mask: int, words: list[str]) -> None:
    """One is a fault, in each part by itself, and all of them are told in one finding."""
    (finding,) = run(fabric(0, healthMask=mask)).findings
    assert finding.code == "gpu.fabric.unhealthy"
    assert len(finding.message.split("; ")) == len(words)
    assert all(word in finding.message for word in words)


@given(st.integers(0, 2**32 - 1))
def test_any_mask_can_be_read(mask: int) -> None:
    """Whatever the mask, each part speaks at most once."""
    faults = list(faults_of(mask))
    assert len(faults) == len(set(faults)) <= 5


@pytest.mark.parametrize(("summary", "found"), [(0, False), (1, False), (2, True), (3, True)])
def test_the_summary(summary: int, found: bool) -> None:
    """The newer struct's summary counts as well."""
    assert codes(run(fabric(0, healthSummary=summary))) == ["gpu.fabric.unhealthy"] * found


def test_the_older_struct() -> None:
    """A driver that knows no mask and no summary is judged by the state."""
    info = {"clusterUuid": [0] * 16, "status": 0, "cliqueId": 0, "state": 3}
    assert run(gpu_with(0, {INFO: info})).status is Status.OK


@pytest.mark.parametrize("instance_type", ["p5.4xlarge", "g6e.48xlarge", "p99.metal", None])
def test_types_without_nvswitch(instance_type: str | None) -> None:
    """Without NVSwitch there is no fabric to join."""
    assert run(fabric(0, state=1), instance_type=instance_type).status is Status.NOT_APPLICABLE


def test_gpus_that_do_not_tell() -> None:
    """A100 has no such answer; one that fails to answer is unknown."""
    assert run(gpu_with(0, {INFO: NOT_SUPPORTED}), instance_type="p4d.24xlarge").status is Status.NOT_APPLICABLE
    assert run(fabric(0, state=0), instance_type="p4d.24xlarge").status is Status.NOT_APPLICABLE
    assert run(gpu_with(0, {INFO: UNKNOWN})).status is Status.UNKNOWN


@pytest.mark.parametrize("quiet", [fabric(1, state=0), gpu_with(1, {INFO: NOT_SUPPORTED})])
def test_one_that_does_not_tell_beside_siblings_that_do(quiet: GpuAnswer) -> None:
    """A GPU that stops telling its state is a gap, and what it had is not over."""
    result = run(healthy_gpu(0), quiet)
    assert result.status is Status.UNKNOWN
    assert result.undecided == (f"gpu:{gpu_uuid(1)}: {INFO} is not supported, but its siblings answer it",)
    sick = run(healthy_gpu(0), fabric(1, healthMask=1))
    assert open_codes("gpu.fabric", [sick, result]) == [{"gpu.fabric.unhealthy"}] * 2


def test_one_that_does_not_tell_with_mig_on() -> None:
    """That is the rule and no gap; it is said, and what it had is not over either."""
    split = gpu_with(1, {INFO: {**HEALTHY_GPU[INFO], "state": 0}, MIG: [1, 1]})
    result = run(healthy_gpu(0), split)
    assert (result.status, result.reason) == (
        Status.OK,
        "with MIG on, 1 of 2 GPUs do not report the state of the fabric",
    )
    sick = run(healthy_gpu(0), fabric(1, healthMask=1))
    assert open_codes("gpu.fabric", [sick, result]) == [{"gpu.fabric.unhealthy"}] * 2


@pytest.mark.parametrize("other", [{"cliqueId": 4}, {"clusterUuid": [2] * 16}])
def test_a_split_domain(other: dict[str, Any]) -> None:
    """On an UltraServer all GPUs of a node share cluster and clique; inside one p5 there is no such domain."""
    assert run(healthy_gpu(0), healthy_gpu(1), instance_type=GB200).status is Status.OK
    assert codes(run(healthy_gpu(0), fabric(1, **other), instance_type=GB200)) == ["gpu.fabric.split"]
    assert run(healthy_gpu(0), fabric(1, **other)).status is Status.OK
