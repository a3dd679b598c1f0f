"""gpu.imex: the domain across nodes. Its JSON is constructed, in the form that NVIDIA tells of live domains."""

from __future__ import annotations

import json
from typing import Any

import pytest

from healthd.checks.gpu_imex import GpuImexSettings, gpu_imex
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import CommandResult, GpuAnswer
from healthd.testing import Entry, FakeNode, FakeNvml, codes, gpu_with, healthy_gpu, pci_tree
from tests.support.over_time import open_codes

ASK = ("nvidia-imex-ctl", "-N", "-j")
GB200 = "p6e-gb200.36xlarge"


def answered(stdout: str, *, code: int = 0, stderr: str = "") -> CommandResult:
    return CommandResult(argv=ASK, code=code, stdout=stdout, stderr=stderr, duration_s=0.0)


def domain(ready: int, unready: int = 0, *, status: str = "UP") -> CommandResult:
    nodes: dict[str, Any] = {}
    for number in range(ready + unready):
        state = "READY" if number < ready else "UNAVAILABLE"
        nodes[str(number)] = {"status": state, "host": f"10.0.0.{number}", "connections": {}, "version": "580.95.05"}
    return answered(json.dumps({"nodes": nodes, "timestamp": "9/4/2026 00:37:39.905", "status": status}))


def run(
    answer: CommandResult | SourceError, *, instance_type: str | None = GB200, domain_gpus: int | None = None
) -> Result:
    channel: dict[str, Entry] = {"nvidia-caps-imex-channels/channel0": ""}
    node = FakeNode(instance_type=instance_type, commands={ASK: answer}, dev=channel)
    return gpu_imex(node, GpuImexSettings(domain_gpus=domain_gpus))


@pytest.mark.parametrize(("nodes", "gpus"), [(18, 72), (9, 36), (1, 4)])
def test_a_domain_that_is_up(nodes: int, gpus: int) -> None:
    """Whole UltraServers of either size, and the part that one job was given, are ok and counted."""
    result = run(domain(nodes), domain_gpus=gpus)
    assert (result.status, [reading.value for reading in result.readings]) == (Status.OK, [gpus])
    assert run(domain(nodes)).status is Status.OK


def test_fewer_gpus_than_the_ultraserver_has() -> None:
    """17 of 18 nodes are 68 of 72 GPUs: a warning for a person, since it may be another node's fault."""
    (finding,) = run(domain(17), domain_gpus=72).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "gpu.imex.incomplete",
        Severity.WARNING,
        Remedy.ASK_HUMAN,
    )
    assert finding.message == "68 of 72 GPUs are in the IMEX domain (17 nodes)"


@pytest.mark.parametrize("status", ["DOWN", "DEGRADED", "degraded", "SOMETHING_NEW"])
def test_a_domain_that_is_not_up(status: str) -> None:
    """Whatever is not UP is said with the nodes that are not ready; the configured ones are all counted."""
    (finding,) = run(domain(16, 2, status=status), domain_gpus=72).findings
    assert (finding.code, finding.remedy) == ("gpu.imex.not_up", Remedy.ASK_HUMAN)
    assert finding.message == (
        f"IMEX domain {status.upper()}: 16 of 18 nodes are ready; not ready: 10.0.0.16, 10.0.0.17"
    )


def test_a_domain_that_comes_up_is_no_fault_yet() -> None:
    """Nodes start one after the other: it counts after five minutes."""
    coming = run(domain(3, 15, status="DOWN"))
    assert open_codes("gpu.imex", [coming] * 5 + [run(domain(18))]) == [set()] * 6
    assert open_codes("gpu.imex", [coming] * 6)[-1] == {"gpu.imex.not_up"}


@pytest.mark.parametrize(
    "answer",
    [
        SourceMissing("nvidia-imex-ctl is not installed"),
        answered("", code=255, stderr="Failed to read node configuration file"),
        answered("", code=1),
    ],
)
def test_without_a_domain(answer: CommandResult | SourceError) -> None:
    """A node whose jobs need no IMEX has none; where GPUs are expected in one, it is unknown, never a fault."""
    assert run(answer).status is Status.NOT_APPLICABLE
    result = run(answer, domain_gpus=72)
    assert (result.status, "72 GPUs are expected" in result.reason) == (Status.UNKNOWN, True)


@pytest.mark.parametrize(
    "text",
    ["", "UP", "[]", "{}", '{"status": "UP"}', '{"status": "UP", "nodes": [1]}', '{"status": 3, "nodes": {}}',
     '{"status": "UP", "nodes": {"0": {}}}', '{"status": "UP", "nodes": {"0": 7}}'],
)  # fmt: skip
def test_an_answer_that_is_none_is_unknown(text: str) -> None:
    """Another form of the answer is neither a domain that is up nor one that is down."""
    with pytest.raises(SourceUnreadable, match="nvidia-imex-ctl -N -j"):
        run(answered(text))


def test_a_service_that_hangs_is_unknown() -> None:
    """No answer in time is not a domain that is down, nor is a tool that was killed a node without a domain."""
    with pytest.raises(SourceTimeout):
        run(SourceTimeout("10 s"))
    with pytest.raises(SourceUnreadable, match="killed by signal 9"):
        run(answered("", code=-9))


JOB = gpu_with(1, {"nvmlDeviceGetComputeRunningProcesses": [{"pid": 7, "usedGpuMemory": 1}]})
EMPTY: tuple[dict[str, Entry], ...] = ({"null": ""}, {"nvidia-caps-imex-channels/": ""})


def claimed(*gpus: GpuAnswer, answer: CommandResult | SourceError, dev: dict[str, Entry]) -> Result:
    """An UltraServer's node with these GPUs, this answer of IMEX, and these device files."""
    node = FakeNode(instance_type=GB200, commands={ASK: answer}, dev=dev, nvml=FakeNvml(*gpus), sys=pci_tree())
    return gpu_imex(node, GpuImexSettings())


@pytest.mark.parametrize("dev", EMPTY)
def test_a_channel_is_missed_only_by_a_job_in_a_domain(dev: dict[str, Entry]) -> None:
    """Nothing is told of a node that no job has, or whose jobs have no domain: schedulers make channels for a job."""
    assert codes(claimed(healthy_gpu(0), JOB, answer=domain(18), dev=dev)) == ["gpu.fabric.no_imex"]
    assert claimed(healthy_gpu(0), healthy_gpu(1), answer=domain(18), dev=dev).status is Status.OK
    absent = SourceMissing("nvidia-imex-ctl is not installed")
    assert claimed(healthy_gpu(0), JOB, answer=absent, dev=dev).status is Status.NOT_APPLICABLE
    with_channel: dict[str, Entry] = {"nvidia-caps-imex-channels/channel7": ""}
    assert claimed(healthy_gpu(0), JOB, answer=domain(18), dev=with_channel).status is Status.OK


def test_whether_a_job_has_the_gpus_may_not_be_told() -> None:
    """Without an answer of NVML a missing channel is unknown, and what the domain says is told all the same."""
    assert claimed(answer=domain(18), dev={"null": ""}).status is Status.UNKNOWN
    result = claimed(answer=domain(16, 2, status="DOWN"), dev={"null": ""})
    assert (len(result.undecided), codes(result)) == (1, ["gpu.imex.not_up"])


@pytest.mark.parametrize("instance_type", [None, "p5.48xlarge", "p6-b200.48xlarge"])
def test_other_types_are_not_asked(instance_type: str | None) -> None:
    """Only UltraServers have a domain across nodes."""
    assert run(SourceTimeout("never"), instance_type=instance_type).status is Status.NOT_APPLICABLE
