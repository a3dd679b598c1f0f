"""gpu.c2c: links between a GPU and its processor. Answers are constructed from nvml.h, not recorded."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checklib.tables import instance_types
from healthd.checks.gpu_c2c import gpu_c2c
from healthd.core.check import NoSettings
from healthd.core.errors import SourceTimeout
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.core.node import GpuAnswer
from healthd.testing import (
    NOT_SUPPORTED,
    UNKNOWN,
    FakeNode,
    FakeNvml,
    fake_pci,
    gpu_uuid,
    gpu_with,
    healthy_gpu,
    pci_tree,
)
from tests.support.over_time import open_codes

GB200, LINKS = "p6e-gb200.36xlarge", 10
ULTRASERVERS = {name for name, profile in instance_types().items() if profile.nvlink == "nvl72"}


def status(link: int) -> str:
    return f"field:171/{link}" if link else "field:171"


def superchip(index: int, **changes: Any) -> GpuAnswer:
    """A GPU with ten links that are up, but for the changes."""
    return gpu_with(index, {"field:170": LINKS, **{status(link): 1 for link in range(LINKS)}, **changes})


def run(*gpus: GpuAnswer, instance_type: str = GB200) -> Result:
    sys = pci_tree(gpus=[fake_pci(index) for index in range(4)])
    return gpu_c2c(FakeNode(sys=sys, nvml=FakeNvml(*gpus), instance_type=instance_type), NoSettings())


@pytest.mark.parametrize("instance_type", sorted(ULTRASERVERS))
def test_all_up(instance_type: str) -> None:
    """Links that are all up are ok, and their number is a reading."""
    result = run(superchip(0), superchip(1), instance_type=instance_type)
    assert (result.status, [reading.value for reading in result.readings]) == (Status.OK, [LINKS, LINKS])


def test_links_down() -> None:
    """Links that are down are one warning of their GPU that names them, once it lasts."""
    result = run(superchip(0), superchip(1, **{status(0): 0, status(7): 0}))
    (finding,) = result.findings
    assert (finding.component.id, finding.severity, finding.remedy) == (
        gpu_uuid(1),
        Severity.WARNING,
        Remedy.ASK_HUMAN,
    )
    assert finding.message == "8 of 10 NVLink-C2C links are up; down: 0, 7"
    assert open_codes("gpu.c2c", [result] * 3) == [set(), set(), {"gpu.c2c.down"}]


@pytest.mark.parametrize("quiet", [{"field:170": NOT_SUPPORTED}, {"field:170": 0}, {status(7): NOT_SUPPORTED}])
def test_a_gpu_that_stops_telling_ends_nothing(quiet: dict[str, Any]) -> None:
    """A fault that is open stays while its GPU does not tell, and ends when its links are up."""
    sick = run(superchip(0), superchip(1, **{status(7): 0}))
    silent, well = run(superchip(0), superchip(1, **quiet)), run(superchip(0), superchip(1))
    assert silent.findings == ()
    assert open_codes("gpu.c2c", [sick] * 3 + [silent, well])[2:] == [{"gpu.c2c.down"}, {"gpu.c2c.down"}, set()]


def test_what_has_no_such_links_is_not_judged() -> None:
    """Other types are not asked; a driver that does not know the question is silent; an error is unknown."""
    for name in instance_types().keys() - ULTRASERVERS:
        assert run(superchip(0, **{status(7): 0}), instance_type=name).status is Status.NOT_APPLICABLE
    assert run(healthy_gpu(0), healthy_gpu(1)).status is Status.NOT_APPLICABLE
    assert run(superchip(0), superchip(1, **{"field:170": UNKNOWN})).status is Status.UNKNOWN
    assert run(superchip(0, **{"field:170": UNKNOWN})).status is Status.UNKNOWN


def test_an_absurd_number_of_links_is_bounded() -> None:
    """A number that no chip has costs no more than thirty-two questions."""
    answers = {"field:170": 2**63, **{status(link): 1 for link in range(32)}}
    assert run(gpu_with(0, answers)).status is Status.OK


def test_a_library_that_does_not_answer_is_unknown() -> None:
    """Its error is the runner's to judge."""
    node = FakeNode(sys=pci_tree(), nvml=FakeNvml(error=SourceTimeout("5 s")), instance_type=GB200)
    with pytest.raises(SourceTimeout):
        gpu_c2c(node, NoSettings())
