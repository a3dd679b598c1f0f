"""The active tests: what they make of an all-reduce and of copies whose results are constructed.

An active check puts load on GPUs, so it is no part of the looks: it runs once, after them, where a case is about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from healthd.checks import nccl_loopback, nccl_nvlink
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout
from healthd.core.model import Status
from healthd.core.node import AllReduce, GdrCopy
from healthd.testing import FakeActive
from tests.faults.case import Case, Made
from tests.faults.rig import Rig

_FAST = AllReduce(
    gpus=8, size_bytes=1 << 30, busbw_gb_s=480.0, wrong=0, way="nccl4py", nccl_version="2.27.3", network="Libfabric"
)
_SLOW = replace(_FAST, busbw_gb_s=50.0)
_PATHS = {"nccl.nvlink": "nvlink", "nccl.loopback": "network"}
_SETTINGS = {
    "nccl.nvlink": nccl_nvlink.NcclNvlinkSettings(min_busbw_gb_s=430.0, size_bytes=1 << 30),
    "nccl.loopback": nccl_loopback.NcclLoopbackSettings(min_busbw_gb_s=80.0, size_bytes=1 << 30),
}
_SILENT = SourceTimeout("all-reduce: no answer within 180 s; killed")
_NO_NCCL = SourceMissing("neither nccl4py nor all_reduce_perf is installed")


def active(check: str, state: str, found: FakeActive, diagnosis: str = "", **more: Any) -> Case:
    """A case of an active check and what the hardware gave it."""

    def arrange(rig: Rig) -> None:
        rig.node.active = replace(found, asked=[])

    return Case(
        **{
            "check": check,
            "state": state,
            "made": Made.FAKE,
            "arrange": arrange,
            "diagnosis": diagnosis,
            "settings": {check: _SETTINGS[check]} if check in _SETTINGS else {},
            **more,
        }
    )


def reduces(check: str) -> Callable[..., Case]:
    """Cases of all-reduces, by the answers of the one or two runs."""

    def case(state: str, answers: Sequence[AllReduce | SourceError], diagnosis: str = "", **more: Any) -> Case:
        return active(check, state, FakeActive(reduces={_PATHS[check]: answers}), diagnosis, **more)

    return case


def of_all_reduce(check: str) -> Sequence[Case]:
    """What both all-reduces tell apart."""
    case, blind = reduces(check), {"status": Status.UNKNOWN, "unknown": frozenset({check})}
    return (
        case("fast and right", [_FAST]),
        case("slow twice", [_SLOW, _SLOW], f"{check}.slow@node warning ask_human"),
        case("slow, and then fast", [_SLOW, _FAST]),
        case("wrong once", [replace(_FAST, wrong=3), _FAST], f"{check}.wrong@node warning ask_human"),
        case("failed twice", [replace(_FAST, failed="ncclSystemError")] * 2, f"{check}.failed@node warning ask_human"),
        case("hung twice", [_SILENT, _SILENT], f"{check}.hung@node warning ask_human"),
        case("hung, and then fast", [_SILENT, _FAST]),
        case("NCCL is missing", [_NO_NCCL], **blind),
    )


def copies(**changes: Any) -> tuple[GdrCopy, ...]:
    """A copy on each GPU; that of GPU 2 is like this."""
    pci = ("53", "64", "75", "86", "97", "a8", "b9", "ca")
    good = [GdrCopy(index=index, pci=f"0000:{bus}:00", size_bytes=1 << 18) for index, bus in enumerate(pci)]
    return tuple(replace(copy, **changes) if copy.index == 2 else copy for copy in good)


CASES: tuple[Case, ...] = (
    *of_all_reduce("nccl.nvlink"),
    *of_all_reduce("nccl.loopback"),
    reduces("nccl.loopback")(
        "over sockets instead of EFA",
        [replace(_FAST, network="Socket")],
        "nccl.loopback.fallback@node warning ask_human",
    ),
    active("gdrcopy.copy", "as it was written", FakeActive(copies=copies())),
    active(
        "gdrcopy.copy",
        "other bytes come back",
        FakeActive(copies=copies(wrong_bytes=17)),
        "gdrcopy.wrong@gpu:2 warning ask_human",
    ),
    active(
        "gdrcopy.copy",
        "pinning is refused",
        FakeActive(copies=copies(refused="gdr_pin_buffer: 22")),
        "gdrcopy.refused@gpu:2 warning ask_human",
    ),
    active(
        "gdrcopy.copy",
        "hung twice",
        FakeActive(copies=SourceTimeout("gdrcopy: no answer within 60 s; killed")),
        "gdrcopy.hung@driver:gdrdrv warning ask_human",
    ),
)
