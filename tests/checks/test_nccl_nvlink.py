"""nccl.nvlink: right, in time, and if not, twice."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.nccl_nvlink import NcclNvlinkSettings, nccl_nvlink
from healthd.core.errors import SourceBusy, SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Finding, Remedy, Result, Severity, Status
from healthd.core.node import AllReduce
from healthd.testing import FakeActive, FakeNode, fake_pci, pci_tree
from tests.support.over_time import open_codes

HUNG = SourceTimeout("all_reduce.py: no end within 180 s, ended: no output")


def did(busbw_gb_s: float | None = 478.0, *, wrong: int = 0, failed: str = "", gpus: int = 8) -> AllReduce:
    return AllReduce(
        gpus=gpus,
        size_bytes=16 << 30,
        busbw_gb_s=None if failed else busbw_gb_s,
        wrong=wrong,
        way="nccl4py",
        nccl_version="2.27.5",
        failed=failed,
    )


FAILED = did(failed="NCCLError: SystemError (2): unhandled system error; NCCL's log: Cuda failure 'ECC'")


def node_with(*answers: AllReduce | SourceError, instance_type: str | None = "p5.48xlarge") -> FakeNode:
    gpus = [fake_pci(index) for index in range(8)]
    return FakeNode(
        instance_type=instance_type, sys=pci_tree(gpus=gpus), active=FakeActive(reduces={"nvlink": answers})
    )


def run(*answers: AllReduce | SourceError, instance_type: str | None = "p5.48xlarge", **settings: Any) -> Result:
    return nccl_nvlink(node_with(*answers, instance_type=instance_type), NcclNvlinkSettings(**settings))


def readings(result: Result) -> dict[str, float]:
    return {reading.name: reading.value for reading in result.readings}


def the_finding(result: Result) -> Finding:
    (finding,) = result.findings
    assert (finding.severity, finding.remedy) == (Severity.WARNING, Remedy.ASK_HUMAN)
    assert str(finding.component) == "node"
    return finding


def test_right_and_fast() -> None:
    """A good run is ok after one look; figures, size and limit are readings, and the reason names the source."""
    node = node_with(did())
    result = nccl_nvlink(node, NcclNvlinkSettings())
    assert result.status is Status.OK
    assert isinstance(node.active, FakeActive)
    assert node.active.asked == ["nvlink"]
    assert readings(result) == {
        "nccl_nvlink_wrong_count": 0,
        "nccl_nvlink_size_bytes": 16 << 30,
        "nccl_nvlink_busbw_gb_s": 478.0,
    }
    limits = {reading.name: (reading.limit, reading.limit_source[:5]) for reading in result.readings if reading.limit}
    assert limits == {"nccl_nvlink_busbw_gb_s": (414.0, "Azure")}
    assert "478.0 GB/s, limit 414: Azure" in result.reason


def test_no_gpu() -> None:
    """A node without NVIDIA GPUs has nothing to test."""
    assert nccl_nvlink(FakeNode(sys=pci_tree()), NcclNvlinkSettings()).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("error", [SourceMissing("no"), SourceBusy("held"), SourceUnreadable("torn")])
def test_what_could_not_be_run_is_unknown(error: SourceError) -> None:
    """A missing tool, held memory or half an output passes as an error of the source, at once, and finds nothing."""
    node = node_with(error, did())
    with pytest.raises(SourceError, match=str(error)):
        nccl_nvlink(node, NcclNvlinkSettings())
    assert isinstance(node.active, FakeActive)
    assert node.active.asked == ["nvlink"]


@pytest.mark.parametrize(
    ("bad", "code"),
    [(HUNG, "nccl.nvlink.hung"), (FAILED, "nccl.nvlink.failed"), (did(300.0), "nccl.nvlink.slow")],
)
def test_twice_is_a_finding_and_once_is_not(bad: AllReduce | SourceError, code: str) -> None:
    """Two runs of a kind are a finding with its evidence; a bad one and a good one are ok, and the reason tells."""
    finding = the_finding(run(bad, bad))
    assert finding.code == code
    assert finding.evidence["limit_gb_s"] == 414
    assert "Azure" in finding.evidence["limit_source"]
    assert finding.evidence["size_bytes"] == 16 << 30
    once = run(bad, did())
    assert once.status is Status.OK
    assert "the first of two runs: " in once.reason


@pytest.mark.parametrize(
    ("first", "second"),
    [(HUNG, FAILED), (FAILED, HUNG), (did(300.0), HUNG), (FAILED, did(300.0)), (HUNG, SourceUnreadable("torn"))],
)
def test_two_runs_that_differ_are_unknown(first: Any, second: Any) -> None:
    """Bad in two ways is no finding, and not ok either: both are told."""
    result = run(first, second)
    assert result.status is Status.UNKNOWN
    assert "two runs gave two results" in result.reason


@pytest.mark.parametrize(
    "answers",
    [
        (did(wrong=3), did(wrong=3)),
        (did(wrong=3), did()),
        (did(wrong=3), HUNG),
        (did(300.0), did(wrong=3)),
        (did(wrong=3), FAILED),
        (did(wrong=3), SourceUnreadable("torn")),
    ],
)
def test_wrong_numbers_once_are_enough(answers: tuple[Any, Any]) -> None:
    """Wrong elements in either run are the finding, whatever the other one was."""
    finding = the_finding(run(*answers))
    assert finding.code == "nccl.nvlink.wrong"
    assert finding.evidence["value"] == 3


def test_slow_says_what_it_measured() -> None:
    """Both bandwidths are in the evidence, and the reading is the second one's."""
    result = run(did(300.0), did(310.0))
    assert the_finding(result).evidence["busbw_gb_s"] == [300.0, 310.0]
    assert readings(result)["nccl_nvlink_busbw_gb_s"] == 310.0


def test_the_limit_is_a_setting() -> None:
    """A configured limit takes the table's place, on any type."""
    assert run(did(300.0), min_busbw_gb_s=250.0).status is Status.OK
    finding = the_finding(run(did(100.0), did(100.0), instance_type=None, min_busbw_gb_s=150.0))
    assert finding.evidence["limit_source"] == "settings.min_busbw_gb_s"


def test_one_gpu_is_right_or_wrong_and_never_slow() -> None:
    """With one GPU the numbers are judged, bandwidth is not applicable, and there is no reading of it."""
    result = run(did(None, gpus=1), instance_type="p5.4xlarge")
    assert result.status is Status.OK
    assert "with one GPU there is no bandwidth to judge" in result.reason
    assert readings(result).keys() == {"nccl_nvlink_wrong_count", "nccl_nvlink_size_bytes"}
    wrong = run(did(None, gpus=1, wrong=1), did(None, gpus=1, wrong=1), instance_type="p5.4xlarge")
    assert the_finding(wrong).code == "nccl.nvlink.wrong"


def test_too_few_gpus_are_unknown() -> None:
    """Seven GPUs of a type with eight prove nothing of the eighth."""
    result = run(did(480.0, gpus=7))
    assert result.status is Status.UNKNOWN
    assert "only 7 of the 8 GPUs" in result.reason


def test_without_a_limit_a_node_is_compared_with_itself() -> None:
    """Where no figure is known the node's own best is learned, 90 % of it is enough, and less is slow."""
    looks = [run(did(figure), instance_type="p6-b200.48xlarge") for figure in (800.0, 730.0, 700.0, 790.0)]
    assert [look.status for look in looks] == [Status.OK] * 4
    assert open_codes("nccl.nvlink", looks, every_s=3600.0) == [set(), set(), {"nccl.nvlink.slow"}, set()]
    assert "no limit: 90% of the node's own best" in looks[0].reason


def test_another_size_is_learned_anew() -> None:
    """A smaller message is slower by nature: its first figure is a new beginning."""
    small = AllReduce(gpus=8, size_bytes=1 << 20, busbw_gb_s=40.0, wrong=0, way="nccl4py")
    looks = [run(answer, instance_type=None) for answer in (did(800.0), small)]
    assert open_codes("nccl.nvlink", looks, every_s=3600.0) == [set(), set()]


def test_a_type_with_a_limit_learns_nothing() -> None:
    """The reading that is learned is left out where a limit says what there must be."""
    assert "nccl_nvlink_own_busbw_gb_s" not in readings(run(did()))
    assert "nccl_nvlink_own_busbw_gb_s" in readings(run(did(), instance_type=None))
