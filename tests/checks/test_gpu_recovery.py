"""gpu.recovery: the driver's own word, and never a silence taken for it."""

from __future__ import annotations

import pytest

from healthd.checklib.gpus import MIG
from healthd.checklib.nvml_codes import NvmlReturn
from healthd.checklib.xids import xid_row
from healthd.checks.gpu_recovery import ACTIONS, LOST, MUST_RESET, gpu_recovery
from healthd.core.check import NoSettings
from healthd.core.errors import SourceUnreadable
from healthd.core.model import REMEDY_RANK, SEVERITY_RANK, Remedy, Result, Severity, Status, Verdict, gpu_component
from healthd.core.node import GpuAnswer, NvmlFailure
from healthd.judge.diagnose import diagnose, judge
from healthd.testing import (
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    FakeNode,
    FakeNvml,
    failed_gpu,
    fake_pci,
    gpu_uuid,
    gpu_with,
    healthy_gpu,
    pci_tree,
    refusal,
)
from tests.support.judgement import fault, history
from tests.support.over_time import open_codes

ACTION = "field:230"


def run(*gpus: GpuAnswer) -> Result:
    node = FakeNode(sys=pci_tree(gpus=[fake_pci(index) for index in range(len(gpus))]), nvml=FakeNvml(*gpus))
    return gpu_recovery(node, NoSettings())


def test_none() -> None:
    """Action 0 on every GPU is ok."""
    assert run(healthy_gpu(0), healthy_gpu(1)).status is Status.OK


@pytest.mark.parametrize(
    ("action", "code", "remedy"),
    [
        (1, "gpu.recovery.reset", Remedy.RESET_GPU),
        (2, "gpu.recovery.reboot", Remedy.REBOOT_NODE),
        (3, "gpu.recovery.drain_p2p", Remedy.ASK_HUMAN),
        (4, "gpu.recovery.drain_and_reset", Remedy.RESET_GPU),
        (5, "gpu.recovery.imex", Remedy.ASK_HUMAN),
        (6, "gpu.recovery.bus_reset", Remedy.REBOOT_NODE),
        (7, "gpu.recovery.system_reboot", Remedy.REBOOT_NODE),
        (8, "gpu.recovery.other", Remedy.ASK_HUMAN),
        (4711, "gpu.recovery.other", Remedy.ASK_HUMAN),
    ],
)
def test_each_action(action: int, code: str, remedy: Remedy) -> None:
    """Every action has its code and remedy, on its GPU; an action of a future driver asks a person."""
    (finding,) = run(healthy_gpu(0), gpu_with(1, {ACTION: action})).findings
    assert (finding.code, finding.remedy, finding.component.id) == (code, remedy, gpu_uuid(1))
    assert finding.evidence["recovery_action"] == action


@pytest.mark.parametrize("refusal", [NOT_SUPPORTED, INVALID_ARGUMENT])
def test_not_supported_is_not_none(refusal: NvmlFailure) -> None:
    """A driver that does not know the field, in either of its words, says so: what is judged is the rest."""
    old = [gpu_with(index, {ACTION: refusal}) for index in range(2)]
    result = run(*old)
    assert (result.status, result.reason) == (
        Status.OK,
        "this driver does not report the recovery action (565 and newer do)",
    )
    assert len(result.not_reported) == 2 * 8


def test_a_lost_gpu_that_is_back_is_well_on_an_older_driver() -> None:
    """What a return code said is over when the GPU answers again; an action is not, where nobody tells it."""
    old = gpu_with(0, {ACTION: NOT_SUPPORTED})
    assert open_codes("gpu.recovery", [run(failed_gpu(0, named=True)), run(old)])[-1] == set()
    asks = run(gpu_with(0, {ACTION: 1}))
    assert open_codes("gpu.recovery", [asks, run(old)])[-1] == {"gpu.recovery.reset"}
    assert open_codes("gpu.recovery", [asks, run(healthy_gpu(0))])[-1] == set()


def test_one_gpu_that_does_not_know_what_its_sibling_does_is_a_gap() -> None:
    """They have the same driver; only MIG makes a difference."""
    silent = gpu_with(0, {ACTION: NOT_SUPPORTED})
    result = run(silent, healthy_gpu(1))
    assert result.undecided == (f"gpu:{gpu_uuid(0)}: {ACTION} is not supported, but its siblings answer it",)
    assert run(gpu_with(0, {ACTION: NOT_SUPPORTED, MIG: [1, 1]}), healthy_gpu(1)).status is Status.OK


def test_a_call_with_an_invalid_argument_is_a_gap() -> None:
    """Only a field has a number that can be unknown; a call that is refused so was asked wrongly."""
    result = run(gpu_with(0, {"nvmlDeviceGetPersistenceMode": INVALID_ARGUMENT}))
    assert result.status is Status.UNKNOWN
    assert "INVALID_ARGUMENT (2)" in result.reason


@pytest.mark.parametrize("failure", [UNKNOWN, refusal(NvmlReturn.NOT_READY)])
def test_a_refusal_is_unknown(failure: NvmlFailure) -> None:
    """Any other return code of the field is unknown for that GPU, and the others are judged."""
    assert run(gpu_with(0, {ACTION: failure}), healthy_gpu(1)).status is Status.UNKNOWN
    result = run(gpu_with(0, {ACTION: failure}), gpu_with(1, {ACTION: 1}))
    assert [finding.component.id for finding in result.findings] == [gpu_uuid(1)]
    assert len(result.undecided) == 1


def test_a_lost_gpu_hides_no_other() -> None:
    """One lost GPU is gpu.lost there, the second GPU's action is found, and no gap remains to hold others open."""
    result = run(failed_gpu(0, named=True), gpu_with(1, {ACTION: 2}), healthy_gpu(2))
    assert {(finding.code, finding.component.id) for finding in result.findings} == {
        ("gpu.lost", gpu_uuid(0)),
        ("gpu.recovery.reboot", gpu_uuid(1)),
    }
    assert result.undecided == ()
    assert result.findings[0].severity is Severity.CRITICAL


def test_a_lost_gpu_without_a_name_is_named_by_what_is_left() -> None:
    """A GPU lost before anyone asked its name has the one PCI address that no other GPU has."""
    (finding,) = run(healthy_gpu(0), failed_gpu(1), healthy_gpu(2)).findings
    assert (finding.code, finding.component.id) == ("gpu.lost", fake_pci(1))


def test_two_nameless_gpus_keep_their_index() -> None:
    """With two lost and unnamed it cannot be told which is which, so neither is given an address."""
    result = run(failed_gpu(0), failed_gpu(1), healthy_gpu(2))
    assert [finding.component.id for finding in result.findings] == ["0", "1"]


def test_a_nameless_gpu_and_an_unreadable_bus() -> None:
    """Where the bus cannot be read the lost GPU is still found, under its index."""
    node = FakeNode(sys={"": SourceUnreadable("/sys: EIO")}, nvml=FakeNvml(failed_gpu(0), healthy_gpu(1)))
    (finding,) = gpu_recovery(node, NoSettings()).findings
    assert (finding.code, finding.component.id) == ("gpu.lost", "0")


@pytest.mark.parametrize(
    "gpu",
    [
        failed_gpu(0, RESET_REQUIRED, named=True),
        gpu_with(0, {ACTION: RESET_REQUIRED}),
        gpu_with(0, {ACTION: NOT_SUPPORTED, "nvmlDeviceGetPersistenceMode": RESET_REQUIRED}),
    ],
)
def test_reset_required(gpu: GpuAnswer) -> None:
    """RESET_REQUIRED from the handle, the field or any call is a finding, on old drivers too."""
    (finding,) = run(gpu).findings
    assert (finding.code, finding.remedy) == ("gpu.reset_required", Remedy.RESET_GPU)


def test_no_cause_hides_something_worse() -> None:
    """Every XID that explains an action away is as severe and calls for at least as much itself."""
    for action in (LOST, MUST_RESET, *ACTIONS.values()):
        for cause in action.symptom_of:
            row = xid_row(int(cause.rpartition(".")[2]))
            assert REMEDY_RANK[row.remedy] >= REMEDY_RANK[action.remedy], cause
            assert SEVERITY_RANK[row.severity] >= SEVERITY_RANK[action.severity], cause


@pytest.mark.parametrize(
    ("xid", "gpu"), [(63, failed_gpu(0, RESET_REQUIRED, named=True)), (168, failed_gpu(0, named=True))]
)
def test_a_warning_from_before_lets_no_job_on_a_gpu_that_is_unusable(xid: int, gpu: GpuAnswer) -> None:
    """A row remap that waits for a reset is a warning; a GPU that refuses all work afterwards is critical."""
    row = xid_row(xid)
    before = fault(f"gpu.xid.{xid}", gpu_component(uuid=gpu.uuid), severity=row.severity, remedy=row.remedy)
    (refused,) = run(gpu).findings
    now = fault(refused.code, refused.component, remedy=refused.remedy, symptom_of=refused.symptom_of)
    assert judge(diagnose(history(before)), ()) is Verdict.WARNING
    assert judge(diagnose(history(before, now)), ()) is Verdict.CRITICAL


def test_the_bus_drop_explains_the_lost_gpu() -> None:
    """XID 79 on the same GPU explains gpu.lost."""
    (finding,) = run(failed_gpu(0, named=True)).findings
    assert "gpu.xid.79" in finding.symptom_of
