"""NVLink between the GPUs of a node, and the fabric that it is part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from healthd.core.model import Status
from tests.faults.case import Case
from tests.faults.cases_fabric import built
from tests.faults.cases_gpu import EVERY_GPU, case, on_gpu, over
from tests.faults.rig import Rig

GB200 = "p6e-gb200.36xlarge"
_FABRIC = "nvmlDeviceGetGpuFabricInfoV"

# -- NVLink -----------------------------------------------------------------------------------------------------------


def counted(line: str, each: int, *, times: int) -> Any:
    """A counter of GPU 2 that grows by so much each minute."""
    kind = "ull:" if line.startswith("field.") else ""
    return over(60.0, lambda rig, minute: rig.gpu(2, **{line: f"{kind}{each * minute}"}), times=times)


def mig(rig: Rig) -> None:
    """MIG is on: GPUs do not reach each other, and no process of one sees another."""
    for gpu in EVERY_GPU:
        rig.gpu(gpu, nvmlDeviceGetMigMode="1 1", nvmlDeviceGetP2PStatus="5")


def mig_on_one(rig: Rig) -> None:
    """GPU 3 is split, and its siblings cannot reach it."""
    for gpu in EVERY_GPU:
        rig.gpu(gpu, **{"nvmlDeviceGetP2PStatus(3,2)": "5"})
    rig.gpu(3, nvmlDeviceGetMigMode="1 1", nvmlDeviceGetP2PStatus="5")


def asleep(rig: Rig) -> None:
    """MIG on A100: no GPU has a link that is up."""
    mig(rig)
    for gpu in EVERY_GPU:
        rig.gpu(gpu, nvmlDeviceGetNvLinkState="0")
        for key in [key for key in rig.nvml if key.startswith(f"gpu{gpu}.nvmlDeviceGetNvLinkState(")]:
            rig.nvml[key] = "0"


def dead_fabric(rig: Rig) -> None:
    """No GPU of the node has joined, and none has a link."""
    for gpu in range(rig.profile.gpus):
        rig.gpu(gpu, **{_FABRIC: "0 0 1 0 1", "nvmlDeviceGetNvLinkState": "0"})


NVLINK = (
    case(
        "gpu.nvlink",
        "a link down",
        on_gpu("nvmlDeviceGetNvLinkState(17) = 0"),
        "gpu.nvlink.down@gpu:2 warning ask_human",
        lasts_s=120.0,
    ),
    case(
        "gpu.nvlink",
        "a link that the driver does not know",
        on_gpu("nvmlDeviceGetNvLinkState(17) = error 3"),
        "gpu.nvlink.down@gpu:2 warning ask_human",
        lasts_s=120.0,
    ),
    case(
        "gpu.nvlink",
        "all links down, and no way to the siblings",
        on_gpu("nvmlDeviceGetNvLinkState = 0", "nvmlDeviceGetP2PStatus = 5"),
        "gpu.nvlink.dead@gpu:2 critical ask_human",
        symptoms=("gpu.nvlink.down@gpu:2", "gpu.nvlink.no_p2p@gpu:2"),
        lasts_s=120.0,
    ),
    case(
        "gpu.nvlink",
        "all links down, MIG on",
        on_gpu("nvmlDeviceGetNvLinkState = 0", "nvmlDeviceGetP2PStatus = 5", "nvmlDeviceGetMigMode = 1 1"),
        "gpu.nvlink.down@gpu:2 warning ask_human",
        lasts_s=120.0,
    ),
    case(
        "gpu.nvlink",
        "no P2P to a sibling",
        on_gpu("nvmlDeviceGetP2PStatus(5,2) = 5"),
        "gpu.nvlink.no_p2p@gpu:2 warning ask_human",
        lasts_s=120.0,
    ),
    case("gpu.nvlink", "no P2P, MIG on", mig, lasts_s=120.0),
    case("gpu.nvlink", "no P2P to one GPU with MIG on", mig_on_one, lasts_s=120.0),
    case("gpu.nvlink", "MIG on, and the links of A100 are down", asleep, lasts_s=120.0, instance_type="p4d.24xlarge"),
    case(
        "gpu.nvlink",
        "CRC errors in masses",
        counted("nvmlDeviceGetNvLinkErrorCounter(5,2)", 12_000, times=3),
        "gpu.nvlink.errors@gpu:2 warning ask_human",
    ),
    case(
        "gpu.nvlink",
        "CRC errors in masses, before Hopper",
        counted("field.38", 12_000, times=3),
        "gpu.nvlink.errors@gpu:2 warning ask_human",
        instance_type="p4d.24xlarge",
    ),
    case(
        "gpu.nvlink",
        "error counters not told",
        on_gpu("nvmlDeviceGetNvLinkErrorCounter = error 3", gpus=EVERY_GPU),
    ),
    case(
        "gpu.nvlink",
        "errors keep coming",
        counted("nvmlDeviceGetNvLinkErrorCounter(5,0)", 3, times=18),
        "gpu.nvlink.growing@gpu:2 warning watch",
    ),
    case("gpu.nvlink", "errors now and then", counted("nvmlDeviceGetNvLinkErrorCounter(5,0)", 3, times=5)),
    case(
        "gpu.nvlink",
        "a recovery failed",
        on_gpu("field.214/5 = ull:1"),
        "gpu.nvlink.recovery_failed@nvlink:2/5 warning ask_human",
    ),
    case(
        "gpu.nvlink",
        "a link that is recovered far more often than the others",
        on_gpu("nvmlDeviceGetNvLinkErrorCounter(5,1) = 505"),
        "gpu.nvlink.stands_out@nvlink:2/5 warning ask_human",
    ),
    case(
        "gpu.nvlink",
        "the same on Blackwell",
        on_gpu("field.213/5 = ull:505"),
        "gpu.nvlink.stands_out@nvlink:2/5 warning ask_human",
        instance_type="p6-b200.48xlarge",
    ),
    case(
        "gpu.nvlink",
        "all links are recovered as often",
        on_gpu(*(f"nvmlDeviceGetNvLinkErrorCounter({link},1) = 505" for link in range(18)), gpus=EVERY_GPU),
    ),
    case(
        "gpu.fabric",
        "not joined",
        on_gpu(f"{_FABRIC} = 0 0 2 0 1"),
        "gpu.fabric.not_ready@gpu:2 critical ask_human",
        lasts_s=300.0,
    ),
    case(
        "gpu.fabric",
        "not joined, and no partition is assigned",
        on_gpu(f"{_FABRIC} = 0 0 1 0x2000 1"),
        "gpu.fabric.no_partition@gpu:2 critical ask_human",
        lasts_s=300.0,
    ),
    case("gpu.fabric", "joined, and no partition is assigned", on_gpu(f"{_FABRIC} = 0 0 3 0x2000 1"), lasts_s=300.0),
    case("gpu.fabric", "joined, with a partition", on_gpu(f"{_FABRIC} = 0 0 3 0x1000 1"), lasts_s=300.0),
    case(
        "gpu.fabric",
        "not joined, on a board that needs ib_umad",
        on_gpu(f"{_FABRIC} = 0 0 1 0 1", gpus=EVERY_GPU),
        "gpu.fabric.not_ready@node critical ask_human",
        lasts_s=300.0,
        instance_type="p6-b200.48xlarge",
    ),
    case("gpu.fabric", "joining, for a minute", on_gpu(f"{_FABRIC} = 0 0 2 0 1"), lasts_s=60.0),
    case(
        "gpu.fabric",
        "joining failed",
        on_gpu(f"{_FABRIC} = 999 0 3 0 1"),
        "gpu.fabric.failed@gpu:2 critical ask_human",
    ),
    case(
        "gpu.fabric",
        "a fault in the health mask",
        on_gpu(f"{_FABRIC} = 0 0 3 0x12a9 1"),
        "gpu.fabric.unhealthy@gpu:2 warning ask_human",
    ),
    case("gpu.fabric", "a health mask in which 2 is well", on_gpu(f"{_FABRIC} = 0 0 3 0x1aa 1")),
    case(
        "gpu.fabric",
        "unhealthy by its summary",
        on_gpu(f"{_FABRIC} = 0 0 3 0 2"),
        "gpu.fabric.unhealthy@gpu:2 warning ask_human",
    ),
    case(
        "gpu.fabric",
        "the Fabric Manager has joined no GPU",
        on_gpu(f"{_FABRIC} = 0 0 1 0 1", gpus=EVERY_GPU),
        "gpu.fabric.not_ready@node critical ask_human",
        lasts_s=300.0,
    ),
    case(
        "gpu.fabric",
        "UltraServer: a dead fabric, and no link is up",
        dead_fabric,
        "gpu.fabric.not_ready@node critical ask_human",
        symptoms=("gpu.nvlink.dead@node", *(f"gpu.nvlink.{word}@gpu:{gpu}" for word in ("down",) for gpu in range(4))),
        lasts_s=300.0,
        instance_type=GB200,
    ),
    case(
        "gpu.fabric",
        "not told (before Hopper)",
        on_gpu(f"{_FABRIC} = error 3", gpus=EVERY_GPU),
        status=Status.NOT_APPLICABLE,
    ),
    case(
        "gpu.fabric",
        "UltraServer: GPUs in two cliques",
        on_gpu(f"{_FABRIC} = 0 7 3 0 1"),
        "gpu.fabric.split@node warning ask_human",
        instance_type=GB200,
    ),
)

SWITCHES = tuple(f"sys/bus/pci/devices/0000:{bus}:00.0" for bus in ("d0", "d1", "d2", "d3"))


def switchless_guest(rig: Rig) -> None:
    """A guest that was never shown its NVSwitches."""
    rig.take(*SWITCHES)
    rig.forget()


NVSWITCH = (
    built(
        "gpu.nvswitch",
        "one of four is off the bus",
        lambda rig: rig.take(SWITCHES[-1]),
        "gpu.nvswitch.missing@node warning ask_human",
    ),
    built(
        "gpu.nvswitch",
        "all are off the bus, where there were some",
        lambda rig: rig.take(*SWITCHES),
        "gpu.nvswitch.missing@node warning ask_human",
    ),
    built("gpu.nvswitch", "a guest that was never shown any", switchless_guest),
)


def superchips(**changes: str) -> Callable[[Rig], None]:
    """GPUs with ten links to their processors, all of them up; what is different on GPU 2."""

    def arrange(rig: Rig) -> None:
        for gpu in range(rig.profile.gpus):
            rig.gpu(gpu, **{"field.170": "10", "field.171": "1"})
        rig.gpu(2, **changes)

    return arrange


C2C = (
    case(
        "gpu.c2c",
        "a link to the processor down",
        superchips(**{"field.171/3": "0"}),
        "gpu.c2c.down@gpu:2 warning ask_human",
        lasts_s=120.0,
        instance_type=GB200,
    ),
    case("gpu.c2c", "all links up", superchips(), instance_type=GB200),
    case("gpu.c2c", "not told", lambda rig: None, status=Status.NOT_APPLICABLE, instance_type=GB200),
)

CASES: tuple[Case, ...] = (*NVLINK, *NVSWITCH, *C2C)
