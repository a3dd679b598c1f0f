"""The check ``nccl.loopback``: an all-reduce of the node's GPUs through its own EFA devices."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from healthd.checklib.nccl import codes_of, demand, outcome, own_best, reduce
from healthd.checklib.pci import efa_functions, pci_gpus
from healthd.core.check import FindingCode, check, not_applicable
from healthd.core.model import NODE, Finding, Remedy, Result, Severity
from healthd.core.node import AllReduce, Node
from healthd.core.setting_types import Amount, AtLeastOne, Seconds

_TEST = "loopback"
_CODES = codes_of(_TEST, "through the node's own EFA devices")
_LIMITS = (own_best(_TEST, _CODES),)
_OF_EFA = "libfabric"  # the plug-in is "Libfabric", up to version 1.11 "AWS Libfabric" (aws-ofi-nccl)

FALLBACK = FindingCode(
    code="nccl.loopback.fallback",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="NCCL does not use EFA on this node, but another network",
    symptom_of=("efa.provider.no_plugin", "efa.provider.failed"),
)


class NcclLoopbackSettings(Struct, frozen=True, kw_only=True):
    """The bandwidth that ``nccl.loopback`` expects, and the size of its runs."""

    min_busbw_gb_s: Amount | None = None
    """The least bus bandwidth in 10^9 bytes per second. Left out: 90 % of this node's own best, since no figure for
    EFA within one node has been published."""

    size_bytes: AtLeastOne | None = None
    """How much each GPU contributes; it needs twice as much memory and 1 GiB more. Left out: 1 GiB."""

    run_timeout_s: Seconds = 180.0
    """How long one run may take. There are at most two runs."""


@check(
    "nccl.loopback",
    interval_s=3600,
    timeout_s=400,
    settings=NcclLoopbackSettings,
    codes=(*_CODES.all(), FALLBACK),
    limits=_LIMITS,
    on="active",
)
def nccl_loopback(node: Node, settings: NcclLoopbackSettings) -> Result:
    """An all-reduce through this node's own EFA devices gives the right result, as fast as before.

    Peer-to-peer, shared memory and NVLink SHARP are off, so every byte leaves its GPU through an EFA device and comes
    back through one: this tests GPUDirect, the PCIe switches and the EFA devices without a second node. A run over
    sockets proves none of that, and is a finding of its own. A bad run is repeated once, as in nccl.nvlink. efa.devices
    judges whether the node must have EFA devices. All findings are warnings and ask the operator: unproven on hardware,
    and no run shows which device is at fault.

    Sources: facebookresearch/gcm check-nccl, Azure/azurehpc-health-checks check_nccl_allreduce_ib_loopback (the
    variables); aws-ofi-nccl (the plug-in's name).
    """
    if not pci_gpus(node):
        return not_applicable("no NVIDIA GPU on the PCI bus")
    if not efa_functions(node):
        return not_applicable("no EFA device on the PCI bus; efa.devices judges whether it must have one")
    asked = demand(
        node,
        "network",
        _TEST,
        size_bytes=settings.size_bytes,
        min_busbw_gb_s=settings.min_busbw_gb_s,
        timeout_s=settings.run_timeout_s,
    )
    return outcome(node, asked, reduce(node, asked), _CODES, _network)


def _network(measured: AllReduce) -> tuple[Sequence[Finding], Sequence[str]]:
    """A finding if NCCL used another network than EFA. With one GPU it used none, whatever it chose."""
    if _OF_EFA in measured.network.lower() or measured.gpus == 1:
        return (), ()
    if not measured.network:
        return (), ("NCCL did not report its network, so EFA is untested; read NCCL_DEBUG's output",)
    message = f"NCCL {measured.nccl_version} used the network {measured.network!r}, not EFA; is aws-ofi-nccl installed?"
    finding = FALLBACK.at(
        NODE,
        message,
        network=measured.network,
        expected="Libfabric",
        busbw_gb_s=measured.busbw_gb_s,
        nccl=measured.nccl_version,
        way=measured.way,
    )
    return (finding,), ()
