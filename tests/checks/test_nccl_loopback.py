"""nccl.loopback: as nccl.nvlink, but it must have gone over EFA. What both judge alike is tested there."""

from __future__ import annotations

import pytest

from healthd.checks.nccl_loopback import NcclLoopbackSettings, nccl_loopback
from healthd.core.errors import SourceError, SourceTimeout
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import AllReduce
from healthd.testing import FakeActive, FakeNode, fake_pci, pci_tree
from tests.support.over_time import open_codes

EFA = ["0000:4f:00", "0000:50:00"]


def did(busbw_gb_s: float | None = 30.0, *, network: str = "Libfabric", wrong: int = 0, gpus: int = 8) -> AllReduce:
    return AllReduce(
        gpus=gpus,
        size_bytes=1 << 30,
        busbw_gb_s=busbw_gb_s,
        wrong=wrong,
        way="nccl4py",
        nccl_version="2.27.5",
        network=network,
    )


def run(*answers: AllReduce | SourceError, efa: bool = True, limit: float | None = None) -> Result:
    node = FakeNode(
        instance_type="p5.48xlarge",
        sys=pci_tree(gpus=[fake_pci(index) for index in range(8)], efa=EFA if efa else []),
        active=FakeActive(reduces={"network": answers}),
    )
    return nccl_loopback(node, NcclLoopbackSettings(min_busbw_gb_s=limit))


def codes(result: Result) -> list[str]:
    assert all((f.severity, f.remedy) == (Severity.WARNING, Remedy.ASK_HUMAN) for f in result.findings)
    return [finding.code for finding in result.findings]


@pytest.mark.parametrize("network", ["Libfabric", "AWS Libfabric"])
def test_over_efa(network: str) -> None:
    """Under either name of the plug-in a right run over EFA is ok, and its bandwidth is learned."""
    result = run(did(network=network))
    assert result.status is Status.OK
    values = {reading.name: reading.value for reading in result.readings}
    assert values["nccl_loopback_own_busbw_gb_s"] == values["nccl_loopback_busbw_gb_s"] == 30.0


@pytest.mark.parametrize("network", ["Socket", "IB"])
def test_over_another_network(network: str) -> None:
    """A run over sockets proves nothing of EFA: a finding of its own, and its bandwidth is not learned."""
    result = run(did(5.0, network=network))
    assert codes(result) == ["nccl.loopback.fallback"]
    assert result.findings[0].evidence["network"] == network
    assert "nccl_loopback_own_busbw_gb_s" not in {reading.name for reading in result.readings}


def test_slow_over_another_network_is_that_alone() -> None:
    """What went the wrong way is not also called slow."""
    assert codes(run(did(5.0, network="Socket"), limit=25.0)) == ["nccl.loopback.fallback"]


def test_a_network_that_is_not_named_is_unknown() -> None:
    """Without NCCL's word for it nothing is known of EFA."""
    result = run(did(network=""))
    assert result.status is Status.UNKNOWN
    assert "did not report its network" in result.reason


def test_wrong_numbers_come_first() -> None:
    """Wrong numbers are the finding, whatever network they came over."""
    assert codes(run(did(wrong=1, network="Socket"), did())) == ["nccl.loopback.wrong"]


def test_slower_than_configured() -> None:
    """A site's own limit, twice missed, is a finding; missed once it is not."""
    assert codes(run(did(20.0), limit=25.0)) == ["nccl.loopback.slow"]
    assert run(did(20.0), did(30.0), limit=25.0).status is Status.OK


def test_slower_than_it_was() -> None:
    """Less than 90 % of the node's own best is slow until it is back."""
    looks = [run(did(figure)) for figure in (30.0, 28.0, 26.0, 30.0)]
    assert open_codes("nccl.loopback", looks, every_s=3600.0) == [set(), set(), {"nccl.loopback.slow"}, set()]


def test_hung_twice() -> None:
    """Two time-outs in a row are a finding, one is not."""
    hung = SourceTimeout("no end within 180 s")
    assert codes(run(hung)) == ["nccl.loopback.hung"]
    assert run(hung, did()).status is Status.OK


def test_one_gpu_uses_no_network() -> None:
    """With one GPU nothing leaves it: right numbers are ok whatever network NCCL opened."""
    node = FakeNode(
        instance_type="p5.4xlarge",
        sys=pci_tree(gpus=[fake_pci(0)], efa=EFA[:1]),
        active=FakeActive(reduces={"network": [did(None, network="Socket", gpus=1)]}),
    )
    assert nccl_loopback(node, NcclLoopbackSettings()).status is Status.OK


def test_where_there_is_nothing_to_test() -> None:
    """Without an EFA device, or without a GPU, the check does not apply and no test is begun."""
    assert run(efa=False).status is Status.NOT_APPLICABLE
    assert nccl_loopback(FakeNode(sys=pci_tree(efa=EFA)), NcclLoopbackSettings()).status is Status.NOT_APPLICABLE
