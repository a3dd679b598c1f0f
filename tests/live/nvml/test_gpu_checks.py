"""The GPU checks through the real worker: one line of a simulated machine's state is one finding, and nothing else.

The states are constructed from nvml.h; the real pynvml reads them from the C library, and again from the Python one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from healthd.core.check import Check, discover
from healthd.core.model import Result, Status
from healthd.observe.runner import run_check
from healthd.sim import nvml_state as sim
from healthd.sim import tree
from healthd.sources.trees import FileTree
from healthd.testing import FakeNode
from tests.faults.cases_gpu import OF_HEALTH
from tests.support.nvml_states import with_library_fault

pytestmark = pytest.mark.nvml

NAMES = (
    *(
        "driver",
        "ecc",
        "fabric",
        "health",
        "inforom",
        "nvlink",
        "pcie",
        "power",
        "processes",
        "remap",
        "sram",
        "temperature",
    ),
    "throttle",
)
CHECKS: Mapping[str, Check] = {name: discover()[name] for name in (f"gpu.{word}" for word in NAMES)}
HEALTHY = sim.healthy_state()
RETIRED = " ".join(f"{page:#x} 1700000000" for page in range(63))
# Lines of GPU 2 that change, and the one finding that follows.
FAULTS: tuple[tuple[list[str], str], ...] = (
    (["nvmlDeviceGetTotalEccErrors(1,0) = 3"], "gpu.ecc.uncorrected"),
    (["nvmlDeviceGetSramEccErrorStatus = 0 3 0 0 3 0 0 3 0 0 0 1"], "gpu.sram.threshold"),
    (["nvmlDeviceGetEccMode = 0 0"], "gpu.ecc.off"),
    (["nvmlDeviceGetRemappedRows = 0 1 1 0"], "gpu.remap.pending"),
    (["nvmlDeviceGetRemappedRows = 0 8 0 1"], "gpu.remap.failure"),
    (["nvmlDeviceGetRemappedRows = 6 5 0 0"], "gpu.remap.many"),
    (["nvmlDeviceGetRowRemapperHistogram = 639 0 0 0 1"], "gpu.remap.no_spare"),
    (["nvmlDeviceGetRepairStatus = 1 0"], "gpu.repair.pending"),
    (["nvmlDeviceGetUnrepairableMemoryFlag_v1 = 1"], "gpu.repair.impossible"),
    (["nvmlDeviceGetRetiredPagesPendingStatus = 1"], "gpu.pages.pending"),
    ([f"nvmlDeviceGetRetiredPages_v2(0) = {RETIRED}"], "gpu.pages.full"),
    (["nvmlDeviceValidateInforom = error 14"], "gpu.inforom.corrupted"),
    (["fault = unknown_error"], "gpu.failing"),
    ([f"{call} = error 17" for call in OF_HEALTH], "gpu.refused"),
    (["nvmlDeviceGetVbiosVersion = 96.00.00.00.00"], "gpu.mixed.vbios"),
    (["nvmlDeviceGetName = NVIDIA H200"], "gpu.mixed.model"),
    (["nvmlDeviceGetTemperature = 90"], "gpu.temperature.slowdown"),
    (["field.82 = 90"], "gpu.temperature.memory"),
    (["nvmlDeviceGetEnforcedPowerLimit = 500000"], "gpu.power.limited"),
    (["nvmlDeviceGetPersistenceMode = 0"], "gpu.persistence.off"),
    (["nvmlDeviceGetCurrentClocksEventReasons = 0x48"], "gpu.throttle.hardware"),
    (["nvmlDeviceGetCurrPcieLinkWidth = 8"], "gpu.pcie.width"),
    (["nvmlDeviceGetCurrPcieLinkGeneration = 1", "nvmlDeviceGetCurrentClocksEventReasons = 0"], "gpu.pcie.generation"),
    (["nvmlDeviceGetNvLinkState(17) = 0"], "gpu.nvlink.down"),
    (["nvmlDeviceGetNvLinkErrorCounter(5,1) = 505"], "gpu.nvlink.stands_out"),
    (["nvmlDeviceGetP2PStatus(5,2) = 5"], "gpu.nvlink.no_p2p"),
    (["nvmlDeviceGetGpuFabricInfoV = 0 0 2 0 1"], "gpu.fabric.not_ready"),
    (["nvmlDeviceGetGpuFabricInfoV = 0 0 1 0x2000 1"], "gpu.fabric.no_partition"),
    (["nvmlDeviceGetGpuFabricInfoV = 999 0 3 0 1"], "gpu.fabric.failed"),
    (["nvmlDeviceGetGpuFabricInfoV = 0 0 3 0x12a9 1"], "gpu.fabric.unhealthy"),
    (["nvmlDeviceGetComputeRunningProcesses = 4711 1048576 0 0"], "gpu.processes.ended"),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree.build(tmp_path / "p5")
    return tmp_path / "p5"


def look(machine: Any, root: Path) -> dict[str, Result]:
    """What each check finds on the machine as it is now."""
    sys, proc, dev = (FileTree(root / name) for name in ("sys", "proc", "dev"))
    nvml = machine.source()
    node = FakeNode(sys=sys, proc=proc, dev=dev, nvml=nvml, instance_type="p5.48xlarge")
    return {name: run_check(check, node, check.settings()).result for name, check in CHECKS.items()}


def changed(lines: list[str]) -> dict[str, str]:
    """The healthy state with these lines of GPU 2 changed."""
    pairs = (line.split(" = ") for line in lines)
    return {**HEALTHY, **{f"gpu2.{key}": value for key, value in pairs}}


def found(results: Mapping[str, Result]) -> set[str]:
    return {finding.code for result in results.values() for finding in result.findings}


def test_a_healthy_machine_is_silent(machine: Any, root: Path) -> None:
    """Every GPU check is ok on a healthy machine, and says something in numbers or in words."""
    assert {name: (result.status, result.reason) for name, result in look(machine, root).items()} == dict.fromkeys(
        CHECKS, (Status.OK, "")
    )


@pytest.mark.parametrize(("lines", "code"), FAULTS, ids=[code for _, code in FAULTS])
def test_one_fault_is_one_finding(machine: Any, root: Path, lines: list[str], code: str) -> None:
    """One change of one GPU is found by the check that it is about, on that GPU, and by no other check."""
    machine.source().ask()  # so that a GPU that will not answer has a name
    machine.becomes(changed(lines))
    results = look(machine, root)
    assert found(results) == {code}
    (finding,) = [finding for result in results.values() for finding in result.findings]
    assert finding.component.kind == "node" or sim.uuid(2) in str(finding.component) or "0000:75:00" in str(finding)


def test_every_level_is_in_the_matrix() -> None:
    """No code of these checks that one look can find is left out."""
    levels = {code.code for check in CHECKS.values() for code in check.codes}
    over_time = {limit.code.code for check in CHECKS.values() for limit in check.limits}
    elsewhere = {  # needs a setting, busy siblings, another instance type, or NVML as a whole
        "gpu.processes.leftover",
        "gpu.processes.memory",
        "gpu.throttle.slower_than_siblings",
        "gpu.nvlink.dead",
        "gpu.fabric.split",
        "gpu.driver.absent",
        "gpu.driver.mismatch",
    }
    assert {code for _, code in FAULTS} == levels - over_time - elsewhere


@pytest.mark.parametrize(
    ("fault", "code"), [("version_mismatch", "gpu.driver.mismatch"), ("driver_not_loaded", "gpu.driver.absent")]
)
def test_a_library_without_its_driver(machine: Any, root: Path, fault: str, code: str) -> None:
    """NVML as a whole, on a host: one check tells it, and no other one is unknown; in a container all are."""
    machine.becomes(with_library_fault(HEALTHY, fault))
    assert {result.status for result in look(machine, root).values()} == {Status.UNKNOWN}
    namespaces = root / "proc/self/ns"
    namespaces.mkdir()
    for kind, number in (("pid", 836), ("ipc", 839), ("cgroup", 835)):
        (namespaces / kind).symlink_to(f"{kind}:[4026531{number}]")
    results = look(machine, root)
    assert found(results) == {code}
    assert Status.UNKNOWN not in {result.status for result in results.values()}
