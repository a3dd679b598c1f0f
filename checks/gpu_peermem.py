"""The check ``gpu.peermem``: whether network adapters can reach GPU memory (GPUDirect RDMA)."""

from __future__ import annotations

import re

from msgspec import Struct

from healthd.checklib.gpu_driver import has_no_driver
from healthd.checklib.pci import AMAZON, pci_gpus
from healthd.core.check import FindingCode, check, judged, not_applicable, ok
from healthd.core.errors import SourceMissing
from healthd.core.model import Component, Remedy, Result, Severity
from healthd.core.node import Node

_DMA_BUF_SINCE = (5, 12)
_DRIVER = Component(kind="driver", id="nvidia_peermem")

NO_ROUTE = FindingCode(
    code="gpu.peermem.no_route",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="Network adapters cannot reach GPU memory: every byte goes through the host",
)
NOT_LOADED = FindingCode(
    code="gpu.peermem.not_loaded",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="nvidia_peermem is required here, and is not loaded",
)


class GpuPeermemSettings(Struct, frozen=True, kw_only=True):
    """Whether ``gpu.peermem`` requires the module."""

    module_required: bool = False
    """Whether the module nvidia_peermem itself must be loaded, for software that knows neither dma-buf nor EFA's own
    way. Off by default: NVIDIA advises dma-buf, and EFA on AWS needs neither."""


@check("gpu.peermem", interval_s=300, settings=GpuPeermemSettings, codes=(NO_ROUTE, NOT_LOADED))
def gpu_peermem(node: Node, settings: GpuPeermemSettings) -> Result:
    """Network adapters can reach GPU memory.

    One of three ways is enough: the module nvidia_peermem; EFA's driver with its own provider (attribute ``p2p``); or
    dma-buf, which takes NVIDIA's open kernel module and Linux 5.12 or newer. The job chooses its way, so the absence of
    all three is a warning. Without an RDMA device, or without a GPU, the check does not apply. On a node with EFA
    devices, others do not count: those of an NVLink 5 switch board are for its management, and reach no GPU.

    Sources: NVIDIA GPU Operator documentation, GPUDirect RDMA (dma-buf: open kernel module, Linux 5.12; the legacy
    module nvidia_peermem); amzn-drivers (efa ``p2p``: NVIDIA, NVIDIA peermem, NEURON).
    """
    every = _rdma(node)
    devices = [device for device in every if _is_efa(node, device)] or every
    if not devices or not pci_gpus(node):
        return not_applicable("no RDMA device, or no NVIDIA GPU, on this node")
    if has_no_driver(node):
        return not_applicable("the NVIDIA driver has no GPU; see gpu.driver")
    peermem = node.sys.exists("module/nvidia_peermem")
    if settings.module_required and not peermem:
        return judged([NOT_LOADED.at(_DRIVER, "module nvidia_peermem is not loaded; modprobe nvidia-peermem")])
    ways = [
        *(["nvidia_peermem"] if peermem else []),
        *(["EFA's own provider"] if all(_has_p2p(node, device) for device in devices) else []),
        *(["dma-buf"] if _has_dma_buf(node) else []),
    ]
    if ways:
        return ok(reason=f"by {', '.join(ways)}")
    message = f"{len(devices)} RDMA devices cannot reach GPU memory; load nvidia_peermem, or use NVIDIA's open driver"
    return judged([NO_ROUTE.at(_DRIVER, message, devices=list(devices))])


def _rdma(node: Node) -> tuple[str, ...]:
    try:
        return node.sys.names("class/infiniband")
    except SourceMissing:
        if not node.sys.exists("bus"):
            raise  # /sys itself is hidden
        return ()


def _is_efa(node: Node, device: str) -> bool:
    try:
        return node.sys.read(f"class/infiniband/{device}/device/vendor") == AMAZON
    except SourceMissing:
        return False


def _has_p2p(node: Node, device: str) -> bool:
    try:
        return "NVIDIA" in node.sys.read(f"class/infiniband/{device}/device/p2p")
    except SourceMissing:
        return False


def _has_dma_buf(node: Node) -> bool:
    try:
        is_open = "Open Kernel Module" in node.proc.read("driver/nvidia/version")
    except SourceMissing:
        return False
    release = re.match(r"(\d+)\.(\d+)", node.proc.read("sys/kernel/osrelease"))
    return is_open and release is not None and (int(release[1]), int(release[2])) >= _DMA_BUF_SINCE
