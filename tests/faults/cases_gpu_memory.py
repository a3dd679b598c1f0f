"""GPUs as such, and their memory: how many there are, ECC, row remapping, on-chip memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from healthd.checks import gpu_count
from healthd.core.errors import SourceUnreadable
from healthd.core.model import Status
from tests.faults.case import Case, Made
from tests.faults.cases_gpu import EVERY_GPU, Arrange, case, on_gpu
from tests.faults.rig import Rig

_DAY_S, _HOUR_S = 86_400.0, 3_600.0

# -- gpu.count --------------------------------------------------------------------------------------------------------


def unlisted(rig: Rig, gpu: int = 7) -> None:
    """The driver no longer lists the last GPU; its file, which the driver did not make, stays."""
    for key in [key for key in rig.nvml if key.startswith(f"gpu{gpu}.")]:
        del rig.nvml[key]


def given_up(rig: Rig) -> None:
    """A GPU that the driver did not take at its start: there is no file either."""
    unlisted(rig)
    rig.take("dev/nvidia7", "sys/bus/pci/devices/0000:ca:00.0/driver")


def in_a_container(rig: Rig) -> None:
    """A process that was given seven of eight GPUs."""
    unlisted(rig)
    rig.take("dev/nvidia7")


def in_a_cgroup(rig: Rig) -> None:
    """The file is there, and a device cgroup keeps it from this process."""
    unlisted(rig)
    rig.put("dev/nvidia7", SourceUnreadable("/dev/nvidia7: EPERM"))


def off_the_bus(rig: Rig) -> None:
    """A GPU that did not come up."""
    unlisted(rig)
    rig.take("dev/nvidia7")
    rig.take("sys/bus/pci/devices/0000:ca:00.0")


def excluded(rig: Rig) -> None:
    """An administrator told the driver to leave a GPU out."""
    unlisted(rig)
    rig.state("lib.excluded_count = 1")


def of_unknown_type(rig: Rig) -> None:
    """A type that no table has."""
    rig.node.instance_type = "p99.metal"


def of_unknown_type_without_a_gpu(rig: Rig) -> None:
    """Only the configuration knows how many there must be."""
    of_unknown_type(rig)
    off_the_bus(rig)


def of_unknown_type_that_loses_one(rig: Rig) -> Iterator[float]:
    """Nobody knows how many there must be, but for how many there were."""
    of_unknown_type(rig)
    yield 60.0
    off_the_bus(rig)


_HIDDEN: dict[str, Any] = {"lasts_s": 60.0, "status": Status.UNKNOWN, "unknown": frozenset({"gpu.count"})}
COUNT = (
    case("gpu.count", "off the bus", off_the_bus, "gpu.count.off_bus@node critical reboot_node", made=Made.TREE),
    case("gpu.count", "driver lost it", unlisted, "gpu.count.driver_lost@gpu:7 critical reboot_node", lasts_s=60.0),
    case("gpu.count", "not listed for a look, as in a driver's reload", unlisted),
    case(
        "gpu.count",
        "driver did not take it",
        given_up,
        "gpu.count.driver_lost@gpu:7 critical reboot_node",
        lasts_s=60.0,
    ),
    case("gpu.count", "kept from this container", in_a_container, **_HIDDEN),
    case("gpu.count", "kept from this process by a device cgroup", in_a_cgroup, **_HIDDEN),
    case("gpu.count", "excluded", excluded, "gpu.count.excluded@node warning ask_human"),
    case(
        "gpu.count",
        "no device file",
        lambda rig: rig.take("dev/nvidia7"),
        "gpu.count.no_device_file@node warning ask_human",
        made=Made.TREE,
    ),
    case(
        "gpu.count",
        "more than configured",
        lambda rig: None,
        "gpu.count.unexpected@node warning none",
        settings={"gpu.count": gpu_count.GpuCountSettings(expected=4)},
    ),
    case("gpu.count", "type unknown", of_unknown_type, made=Made.FAKE),
    case(
        "gpu.count",
        "type unknown, fewer than there were",
        of_unknown_type_that_loses_one,
        "gpu.count.off_bus@node critical reboot_node",
        made=Made.TREE,
    ),
    case(
        "gpu.count",
        "type unknown, fewer than configured",
        of_unknown_type_without_a_gpu,
        "gpu.count.off_bus@node critical reboot_node",
        made=Made.TREE,
        settings={"gpu.count": gpu_count.GpuCountSettings(expected=8)},
    ),
)

# -- gpu.ecc ----------------------------------------------------------------------------------------------------------

_TOTAL = "nvmlDeviceGetTotalEccErrors"
_NO_COUNTERS = (f"{_TOTAL} = error 3", "nvmlDeviceGetMemoryErrorCounter = error 3")
CORRECTED = "gpu2.nvmlDeviceGetTotalEccErrors(0,1)"


def doubling(rig: Rig) -> Iterator[float]:
    """One corrected error on the first day, two on the second, and so on, spread over each day."""
    total = 0.0
    for day in range(6):
        for _ in range(4):
            total += 2**day / 4
            rig.state(f"{CORRECTED} = {int(total)}")
            yield 6 * _HOUR_S


def steady(rig: Rig) -> Iterator[float]:
    """Fifty corrected errors on each day."""
    for quarter in range(1, 25):
        rig.state(f"{CORRECTED} = {int(quarter * 50 / 4)}")
        yield 6 * _HOUR_S


def reset_counter(rig: Rig) -> Iterator[float]:
    """A counter that was high and starts at zero again."""
    rig.state(f"{CORRECTED} = 5000", f"gpu2.{_TOTAL}(0,0) = 5000")
    yield _HOUR_S
    rig.state(f"{CORRECTED} = 0", f"gpu2.{_TOTAL}(0,0) = 0")
    yield _HOUR_S


def then(before: str, after: str) -> Arrange:
    """One line of GPU 2, and another a minute later."""

    def arrange(rig: Rig) -> Iterator[float]:
        rig.state(f"gpu2.{before}")
        yield 60.0
        rig.state(f"gpu2.{after}")

    return arrange


ECC = (
    case(
        "gpu.ecc",
        "uncorrectable since the reset",
        on_gpu(f"{_TOTAL}(1,0) = 3", f"{_TOTAL}(1,1) = 3", "nvmlDeviceGetMemoryErrorCounter(1,0,2) = 3"),
        "gpu.ecc.uncorrected@gpu:2 critical reset_gpu",
        symptoms=("gpu.ecc.recorded@gpu:2",),
    ),
    case(
        "gpu.ecc",
        "in the lifelong record only",
        on_gpu(f"{_TOTAL}(1,1) = 1"),
        "gpu.ecc.recorded@gpu:2 warning watch",
    ),
    case("gpu.ecc", "corrected, doubling daily", doubling, "gpu.ecc.accelerating@gpu:2 warning ask_human"),
    case("gpu.ecc", "corrected, 50 a day", steady),
    case("gpu.ecc", "counter reset", reset_counter),
    case(
        "gpu.ecc",
        "Unknown Error while handling",
        on_gpu(f"{_TOTAL} = error 999"),
        status=Status.UNKNOWN,
        unknown=frozenset({"gpu.ecc"}),
    ),
    case(
        "gpu.ecc",
        "uncorrectable, then its counter is not told",
        then(f"{_TOTAL}(1,0) = 3", f"{_TOTAL}(1,0) = error 3"),
        "gpu.ecc.uncorrected@gpu:2 critical reset_gpu",
        unknown=frozenset({"gpu.ecc"}),
    ),
    case(
        "gpu.ecc",
        "MIG on, no volatile counter",
        on_gpu(f"{_TOTAL}(1,0) = error 3", f"{_TOTAL}(0,0) = error 3", "nvmlDeviceGetMigMode = 1 1", gpus=EVERY_GPU),
    ),
    case(
        "gpu.ecc",
        "ECC off on one GPU",
        on_gpu(*_NO_COUNTERS, "nvmlDeviceGetEccMode = 0 0"),
        "gpu.ecc.off@gpu:2 warning ask_human",
    ),
    case(
        "gpu.ecc",
        "ECC off",
        on_gpu(*_NO_COUNTERS, "nvmlDeviceGetEccMode = 0 0", gpus=EVERY_GPU),
        "gpu.ecc.off@node warning ask_human",
    ),
    case(
        "gpu.ecc",
        "GPUs without ECC",
        on_gpu(*_NO_COUNTERS, "nvmlDeviceGetEccMode = error 3", gpus=EVERY_GPU),
        status=Status.NOT_APPLICABLE,
    ),
)

# -- gpu.remap --------------------------------------------------------------------------------------------------------

_ROWS = "nvmlDeviceGetRemappedRows"


def pages(count: int) -> str:
    """So many retired pages."""
    return " ".join(f"{page:#x} 1700000000" for page in range(count))


def retires(rig: Rig) -> Iterator[float]:
    """Two more retired pages each day, from many on."""
    for day in range(4):
        rig.gpu(2, **{"nvmlDeviceGetRetiredPages_v2(1)": pages(16 + 2 * day), "nvmlDeviceGetRetiredPages_v2(0)": ""})
        yield _DAY_S


def remapped(rows: str, diagnosis: str, state: str, *more: str, symptoms: tuple[str, ...] = ()) -> Case:
    """A case of the row remapper: corrected rows, uncorrected rows, pending, failure."""
    return case("gpu.remap", state, on_gpu(f"{_ROWS} = {rows}", *more), diagnosis, symptoms=symptoms)


REMAP = (
    remapped("0 1 1 0", "gpu.remap.pending@gpu:2 warning reset_gpu", "pending"),
    remapped("0 8 0 1", "gpu.remap.failure@gpu:2 critical replace_node", "failure"),
    remapped(
        "0 8 0 1",
        "gpu.remap.failure@gpu:2 critical replace_node",
        "failure, and no spare row in a bank",
        "nvmlDeviceGetRowRemapperHistogram = 639 0 0 0 1",
        symptoms=("gpu.remap.no_spare@gpu:2",),
    ),
    remapped("6 5 0 0", "gpu.remap.many@gpu:2 warning watch", "11 rows"),
    remapped("6 4 0 0", "", "10 rows"),
    case(
        "gpu.remap",
        "no spare row in a bank",
        on_gpu("nvmlDeviceGetRowRemapperHistogram = 639 0 0 0 1"),
        "gpu.remap.no_spare@gpu:2 warning watch",
    ),
    case(
        "gpu.remap",
        "channel repair pending",
        on_gpu("nvmlDeviceGetRepairStatus = 1 0"),
        "gpu.repair.pending@gpu:2 warning reset_gpu",
    ),
    case(
        "gpu.remap",
        "TPC repair pending",
        on_gpu("nvmlDeviceGetRepairStatus = 0 1"),
        "gpu.repair.pending@gpu:2 warning reset_gpu",
    ),
    case(
        "gpu.remap",
        "unrepairable",
        on_gpu("nvmlDeviceGetUnrepairableMemoryFlag_v1 = 1"),
        "gpu.repair.impossible@gpu:2 warning ask_human",
    ),
    case(
        "gpu.remap",
        "page retirement pending",
        on_gpu("nvmlDeviceGetRetiredPagesPendingStatus = 1"),
        "gpu.pages.pending@gpu:2 warning reset_gpu",
    ),
    case(
        "gpu.remap",
        "63 retired pages",
        on_gpu(f"nvmlDeviceGetRetiredPages_v2(0) = {pages(63)}"),
        "gpu.pages.full@gpu:2 warning ask_human",
    ),
    case("gpu.remap", "pages retired every day", retires, "gpu.pages.growing@gpu:2 warning ask_human"),
    case(
        "gpu.remap",
        "Unknown Error while handling",
        on_gpu(f"{_ROWS} = error 999"),
        status=Status.UNKNOWN,
        unknown=frozenset({"gpu.remap"}),
    ),
    case(
        "gpu.remap",
        "failure, then it is not told",
        then(f"{_ROWS} = 0 8 0 1", f"{_ROWS} = error 3"),
        "gpu.remap.failure@gpu:2 critical replace_node",
        unknown=frozenset({"gpu.remap"}),
    ),
    case("gpu.remap", "one GPU in MIG does not tell", on_gpu(f"{_ROWS} = error 3", "nvmlDeviceGetMigMode = 1 1")),
    case(
        "gpu.remap",
        "MIG does not tell",
        on_gpu(f"{_ROWS} = error 3", gpus=EVERY_GPU),
        status=Status.NOT_APPLICABLE,
    ),
)

# -- gpu.sram ----------------------------------------------------------------------------------------------------------

SRAM = (
    case(
        "gpu.sram",
        "threshold exceeded",
        on_gpu("nvmlDeviceGetSramEccErrorStatus = 0 3 0 0 3 0 0 3 0 0 0 1"),
        "gpu.sram.threshold@gpu:2 critical replace_node",
    ),
    case("gpu.sram", "errors below the threshold", on_gpu("nvmlDeviceGetSramEccErrorStatus = 0 1 0 0 1 0 0 1 0 0 0 0")),
    case(
        "gpu.sram",
        "threshold exceeded, then it is not told",
        then("nvmlDeviceGetSramEccErrorStatus = 0 3 0 0 3 0 0 3 0 0 0 1", "nvmlDeviceGetSramEccErrorStatus = error 3"),
        "gpu.sram.threshold@gpu:2 critical replace_node",
        unknown=frozenset({"gpu.sram"}),
    ),
    case(
        "gpu.sram",
        "not told",
        on_gpu("nvmlDeviceGetSramEccErrorStatus = error 3", gpus=EVERY_GPU),
        status=Status.NOT_APPLICABLE,
    ),
)

CASES: tuple[Case, ...] = (*COUNT, *ECC, *REMAP, *SRAM)
