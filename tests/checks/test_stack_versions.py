"""stack.versions: parts against each other, the family, and the site's pins. Trees are constructed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from healthd.checks.stack_versions import StackVersionsSettings, stack_versions
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout
from healthd.core.model import REMEDY_RANK, Remedy, Result, Severity, Status
from healthd.core.node import CommandResult
from healthd.testing import Entry, FakeNode, FakeNvml, healthy_gpu

TREE: dict[str, Entry] = {"module/nvidia/version": "580.95.05", "module/efa/version": "3.1.0g"}
CUDA = ("cat", "/usr/local/cuda/version.json")


def run(
    tree: Mapping[str, Entry] | None = None,
    *,
    library: str = "580.95.05",
    nvml: SourceError | None = None,
    instance_type: str | None = "p5.48xlarge",
    cuda: str | SourceError = "",
    **settings: Any,
) -> Result:
    message = CommandResult(argv=CUDA, code=0, stdout=str(cuda), stderr="", duration_s=0.0)
    node = FakeNode(
        instance_type=instance_type,
        sys=TREE if tree is None else tree,
        proc={"sys/kernel/osrelease": "6.8.0-1015-aws"},
        nvml=FakeNvml(healthy_gpu(0), driver_version=library, error=nvml),
        commands={CUDA: cuda if isinstance(cuda, SourceError) else message},
    )
    result = stack_versions(node, StackVersionsSettings(**settings))
    for finding in result.findings:  # software is a person's business
        assert finding.severity is Severity.WARNING
        assert REMEDY_RANK[finding.remedy] < REMEDY_RANK[Remedy.RESET_GPU]
    return result


def test_what_is_there_is_told() -> None:
    """A stack that fits is ok, and the result says what it is; parts that are not there are no fault."""
    result = run()
    assert result.status is Status.OK
    assert result.reason == "driver 580.95.05, efa 3.1.0g, kernel 6.8.0-1015-aws, driver_library 580.95.05"


def test_module_and_library() -> None:
    """A kernel module and a library of different versions are a half-done upgrade."""
    (finding,) = run(library="580.105.08").findings
    assert (finding.code, str(finding.component)) == ("stack.mismatch", "driver:nvidia")
    assert finding.evidence == {"module": "580.95.05", "library": "580.105.08"}


def test_below_the_minimum_of_the_family() -> None:
    """B300 needs R580 and CUDA 13; a p5 has no published minimum."""
    old = {"module/nvidia/version": "570.86.15"}
    cuda = '{"cuda" : {"name" : "CUDA SDK", "version" : "12.8.1"}}'
    result = run(old, library="570.86.15", instance_type="p6-b300.48xlarge", cuda=cuda)
    assert [(finding.code, finding.component.id) for finding in result.findings] == [
        ("stack.below_minimum", "driver"),
        ("stack.below_minimum", "cuda"),
    ]
    assert result.findings[0].evidence["limit"] == "580"
    assert run(old, library="570.86.15").status is Status.OK


def test_pins() -> None:
    """A part of another version, and one that is not there, are told apart; the pinned line is fine."""
    assert run(pin={"driver": "580.95.05", "efa": "3.1.0g"}).status is Status.OK
    assert run(pin={"driver": "580"}).status is Status.OK
    result = run(pin={"driver": "575", "nccl": "2.27"})
    assert [(finding.code, finding.component.id) for finding in result.findings] == [
        ("stack.off_pin", "driver"),
        ("stack.absent", "nccl"),
    ]


def test_a_pin_that_could_not_be_looked_at_is_unknown() -> None:
    """A place that does not answer is unknown, and no missing part."""
    result = run(pin={"cuda": "12"}, cuda=SourceTimeout("5 s"))
    assert (result.status, result.findings) == (Status.UNKNOWN, ())


@pytest.mark.parametrize("tree", [TREE, {"module/efa/version": "3.1.0g"}])
def test_a_pinned_library_that_is_not_asked_is_unknown(tree: dict[str, Entry]) -> None:
    """NVML is busy, or no driver is loaded: the library may well be installed."""
    result = run(tree, nvml=SourceTimeout("5 s"), pin={"driver_library": "580"})
    assert (result.status, result.findings) == (Status.UNKNOWN, ())


@pytest.mark.parametrize("error", [SourceMissing("no libnvidia-ml.so.1"), SourceTimeout("5 s")])
def test_a_library_that_does_not_answer_is_unknown(error: SourceError) -> None:
    """With the driver loaded, a library that is missing or silent is unknown; without, it is not asked."""
    assert run(nvml=error).status is Status.UNKNOWN
    assert run({"module/efa/version": "3.1.0g"}, nvml=error).status is Status.OK


def test_a_hidden_sys_is_unknown() -> None:
    """Without the host's /sys there is no telling what is loaded."""
    with pytest.raises(SourceMissing):
        run({})
