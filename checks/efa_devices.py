"""The check ``efa.devices``: the node's Elastic Fabric Adapters, from the PCI bus up to user space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from healthd.checklib.host_text import uptime_s
from healthd.checklib.pci import efa_functions, has_pci, pci_attribute, pci_children, pci_gpus, require_pci
from healthd.checklib.tables import instance_profile
from healthd.core.check import SOON, FindingCode, Learned, check, judged, none_there, unknown
from healthd.core.model import NODE, Component, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Count, GraceSeconds

_CRITICAL, _WARNING, _ASK = Severity.CRITICAL, Severity.WARNING, Remedy.ASK_HUMAN

MISSING = FindingCode(
    code="efa.missing",
    severity=_CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    meaning="Fewer EFA devices than configured, or than this instance had",
)
BELOW_USUAL = FindingCode(
    code="efa.below_usual",
    severity=_WARNING,
    remedy=Remedy.WATCH,
    meaning="Fewer EFA devices than usual for the type",
    symptom_of=("efa.missing",),
)
DRIVER_LOST = FindingCode(
    code="efa.driver_lost",
    severity=_CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    meaning="The EFA driver gave up on a device",
    lasting_s=60.0,
)
DRIVER_ABSENT = FindingCode(
    code="efa.driver_absent", severity=_CRITICAL, remedy=_ASK, meaning="The EFA driver is not loaded", lasting_s=60.0
)
NO_VERBS = FindingCode(
    code="efa.no_verbs", severity=_CRITICAL, remedy=_ASK, meaning="No program can open this EFA device", lasting_s=60.0
)
NO_GPUDIRECT = FindingCode(
    code="efa.no_gpudirect",
    severity=_WARNING,
    remedy=Remedy.WATCH,
    meaning="EFA cannot reach GPU memory directly",
    symptom_of=("gpu.peermem.no_route",),
)


class EfaDevicesSettings(Struct, frozen=True, kw_only=True):
    """The number of devices that ``efa.devices`` expects, and from when on."""

    expected: Count | None = None
    """How many EFA devices this node must have. Default: the most ever seen on this instance. Fewer than usual for the
    instance type is only a warning, because the launch of an instance chooses the number. Set it to the number in your
    launch template. After a change on purpose, ``healthd relearn efa.devices --reason TEXT`` starts the count again."""

    gpudirect: bool = True
    """Whether a driver without the ``p2p`` attribute is a warning on nodes with GPUs. Switch it off for the driver of
    the mainline kernel, which reaches GPU memory through dma-buf and has no such attribute."""

    startup_grace_s: GraceSeconds = 120.0
    """For how long after boot, in seconds, trouble is unknown and not yet a finding: on p5en EFA can start late (AWS's
    own launch scripts retry for that reason)."""


_LEARNED = Learned(
    reading="efa_device_count",
    code=MISSING,
    source="the most EFA devices ever seen on the PCI bus of this instance, as this instance type",
)
_CODES = (MISSING, BELOW_USUAL, DRIVER_LOST, DRIVER_ABSENT, NO_VERBS, NO_GPUDIRECT)


@check("efa.devices", settings=EfaDevicesSettings, codes=_CODES, limits=[_LEARNED])
def efa_devices(node: Node, settings: EfaDevicesSettings) -> Result:
    """All EFA devices are there and can be used.

    Off the PCI bus: a reboot enumerates the bus again. On the bus without an RDMA device: the driver gave up on it, and
    a reboot resets it. Without the driver, or without a uverbs device: the installation is at fault, and no reboot
    repairs it. All three must last a minute, because a driver reload looks the same. The check never reads the port
    state: the driver always reports ACTIVE.

    Sources: amzn-drivers (ids 0x1d0f:0xefa0 to 0xefa4; efa_verbs.c efa_query_port); EC2 DescribeInstanceTypes.
    """
    usual = profile.efa_usual if (profile := instance_profile(node.instance_type)) else 0
    functions = efa_functions(node)
    if not functions and (usual <= 1 if settings.expected is None else settings.expected == 0):
        reason = "no EFA device is attached, and none is expected"
        return none_there(reason, _to_learn(node, settings, 0), settings.expected)
    if not functions:
        require_pci(node)
    findings = [*_counted(len(functions), usual, settings), *_examined(node, functions, settings)]
    if findings and (uptime_s := _uptime_s(node)) < settings.startup_grace_s:
        return unknown(f"{findings[0].message}; booted {uptime_s:.0f} s ago, EFA may still be starting", SOON)
    return judged(findings, _to_learn(node, settings, len(functions)))


def _to_learn(node: Node, settings: EfaDevicesSettings, there: int) -> Iterator[Reading]:
    """The count that history compares with the highest one; none while EFA may still be starting."""
    if settings.expected is None and has_pci(node) and _uptime_s(node) >= settings.startup_grace_s:
        yield Reading(component=NODE, name=_LEARNED.reading, value=there, epoch=node.instance_type or "")


def _uptime_s(node: Node) -> float:
    return uptime_s(node.proc.read("uptime"))


def _counted(there: int, usual: int, settings: EfaDevicesSettings) -> Iterator[Finding]:
    if settings.expected is not None and there < settings.expected:
        message = f"{there} of {settings.expected} EFA devices are on the PCI bus"
        yield MISSING.at(NODE, message, found=there, limit=settings.expected, limit_source="settings.expected")
    elif settings.expected is None and there < usual:
        message = f"{there} EFA devices; {usual} are usual for this type. Set 'expected' to the number you launch"
        yield BELOW_USUAL.at(NODE, message, found=there, limit=usual, limit_source="instance_types.toml")


def _examined(node: Node, functions: Sequence[str], settings: EfaDevicesSettings) -> Iterator[Finding]:
    rdma = {name: pci_children(node, name, "infiniband") for name in functions}
    lost = [name for name in functions if not rdma[name]]
    loaded = bool(lost) and node.sys.exists("module/efa")
    if lost and not loaded:
        message = f"the efa driver is not loaded; {len(lost)} EFA devices are on the PCI bus"
        yield DRIVER_ABSENT.at(NODE, message, pci=lost)

    for name in lost if loaded else ():
        yield DRIVER_LOST.at(Component(kind="efa", id=name), f"EFA {name} is on the PCI bus without an RDMA device")
    there = {device: name for name in functions for device in rdma[name]}
    for device in (d for d, name in there.items() if not pci_children(node, name, "infiniband_verbs")):
        part = Component(kind="efa", id=device, aliases=(there[device],))
        yield NO_VERBS.at(part, f"{device} has no uverbs device: is module ib_uverbs loaded?")
    deaf = [device for device, name in there.items() if not pci_attribute(node, name, "p2p")]
    if deaf and settings.gpudirect and pci_gpus(node):
        yield NO_GPUDIRECT.at(NODE, f"{len(deaf)} of {len(there)} EFA devices have no GPUDirect", devices=deaf)
