"""Every GPU check on what real GPUs have answered; and the simulated GPU answers in their shape."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.core.check import Check, discover
from healthd.core.model import Status
from healthd.core.node import NvmlFailure
from healthd.observe.runner import run_check
from healthd.testing import HEALTHY_GPU, FakeNode, FakeNvml, FakeTree, pci_tree
from tests.faults.cases_gpu import ASK_NVML
from tests.support.recorded_gpus import Recorded, recorded

RECORDS = recorded()
CHECKS = {name: check for name, check in discover().items() if name in ASK_NVML}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_real_gpu_that_is_fine_is_found_fine(record: Recorded, check: Check) -> None:
    """Nothing is found, nothing is unknown, and no value is left out."""
    pci = pci_tree(gpus=[str(gpu.pci) for gpu in record.gpus])
    files = FakeTree({f"nvidia{gpu.index}": "" for gpu in record.gpus})
    node = FakeNode(sys=pci, dev=files, nvml=FakeNvml(*record.gpus, driver_version=record.driver))
    result = run_check(check, node, check.settings()).result
    assert result.status in (Status.OK, Status.NOT_APPLICABLE), result.reason
    assert (result.findings, result.undecided) == ((), ())


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_the_simulated_gpu_answers_in_the_shape_of_a_real_one(record: Recorded) -> None:
    """The tests' healthy GPU and a real one have values of the same type, and members of the same names."""
    different = {
        call: (answer, HEALTHY_GPU[call])
        for gpu in record.gpus
        for call, answer in gpu.values.items()
        if not isinstance(answer, NvmlFailure) and not isinstance(HEALTHY_GPU[call], NvmlFailure)
        if shape(answer) != shape(HEALTHY_GPU[call])
    }
    assert different == {}


def shape(value: Any) -> Any:
    """The type of a value; of an object its members too, of a list its length where it has one."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items()}
    return [shape(member) for member in value] if isinstance(value, list) else type(value)
