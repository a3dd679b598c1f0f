"""The check ``nccl.nvlink``: an all-reduce over all GPUs of the node, its result and its speed."""

from __future__ import annotations

from msgspec import Struct

from healthd.checklib.nccl import codes_of, demand, outcome, own_best, reduce
from healthd.checklib.pci import pci_gpus
from healthd.core.check import check, not_applicable
from healthd.core.model import Result
from healthd.core.node import Node
from healthd.core.setting_types import Amount, AtLeastOne, Seconds

_TEST = "nvlink"
_CODES = codes_of(_TEST, "over NVLink")
_LIMITS = (own_best(_TEST, _CODES),)


class NcclNvlinkSettings(Struct, frozen=True, kw_only=True):
    """The bandwidth that ``nccl.nvlink`` expects, and the size of its runs."""

    min_busbw_gb_s: Amount | None = None
    """The least bus bandwidth in 10^9 bytes per second. Default: 90 % of the measured value of this instance type, from
    nccl_limits.csv; for a type without one, 90 % of this node's own best."""

    size_bytes: AtLeastOne | None = None
    """How much each GPU contributes; it needs twice as much memory and 1 GiB more (three times with nccl-tests).
    Default: the size with which the limit of the type was measured, 8 or 16 GiB; else 1 GiB. With another size the
    limit of the type does not apply."""

    run_timeout_s: Seconds = 180.0
    """How long one run may take; most of it is filling and comparing the memory over PCIe. There are at most two
    runs."""


@check(
    "nccl.nvlink",
    interval_s=3600,
    timeout_s=400,
    settings=NcclNvlinkSettings,
    codes=_CODES.all(),
    limits=_LIMITS,
    on="active",
)
def nccl_nvlink(node: Node, settings: NcclNvlinkSettings) -> Result:
    """An all-reduce over all GPUs of this node is right in every element, and fast enough.

    It runs as a job would run it: NCCL picks the way, which is NVLink where there is one, else PCIe. A bad run is
    repeated once before it is a finding, except for wrong numbers: those are a finding even if the second run is right.
    One time-out, two different results, or a missing tool are *unknown*. With one GPU no data crosses a link: only the
    numbers count. All findings are warnings and ask the operator: unproven on hardware, and no run shows which GPU or
    link is at fault; gpu.nvlink and the kernel log do.

    Sources: rows of nccl_limits.csv; nccl-tests doc/PERFORMANCE.md (bus bandwidth); Azure/azurehpc-health-checks
    check_nccl_allreduce (one repeat).
    """
    if not pci_gpus(node):
        return not_applicable("no NVIDIA GPU on the PCI bus")
    asked = demand(
        node,
        "nvlink",
        _TEST,
        size_bytes=settings.size_bytes,
        min_busbw_gb_s=settings.min_busbw_gb_s,
        timeout_s=settings.run_timeout_s,
    )
    return outcome(node, asked, reduce(node, asked), _CODES)
