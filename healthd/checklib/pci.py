"""The PCI bus as sysfs shows it: the list of devices, and the attributes of one. Pure over the Node protocol.

sysfs answers from the kernel's memory: a device that died stays listed with its last identity until the bus is scanned
again, so a device that is missing here is gone, and one that is here need not live.
"""

from __future__ import annotations

from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.core.model import pci_address
from healthd.core.node import Node

_DEVICES = "bus/pci/devices"
AMAZON, _EFA = "0x1d0f", "0xefa"
"""Amazon as a vendor, and the beginning of an EFA's device id. Source: amzn-drivers (ids 0x1d0f:0xefa0 to 0xefa4)."""

NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""PCI base class and subclass of a GPU: VGA and 3D controller.
Source: PCI Code and ID Assignment Specification 1.11, class 03h; NVIDIA data-centre GPUs report 0302h."""

_BRIDGE = "0x0680"
"""PCI base class and subclass of an NVSwitch: other bridge device (same specification, class 06h)."""


def pci_functions(node: Node, vendor: str, attribute: str, begins: str | tuple[str, ...]) -> tuple[str, ...]:
    """The addresses with the function (``0000:53:00.0``), in order, of the devices of one vendor (``0x10de``) whose
    attribute, ``device`` or ``class``, begins so. Raises SourceError.

    A machine whose sysfs has buses but no PCI has no PCI device; a sysfs without buses is not there at all.
    """
    try:
        names = node.sys.names(_DEVICES)
    except SourceMissing:
        if not node.sys.exists("bus"):
            raise
        return ()
    return tuple(
        name
        for name in names
        if pci_attribute(node, name, "vendor") == vendor and pci_attribute(node, name, attribute).startswith(begins)
    )


def pci_gpus(node: Node) -> tuple[str, ...]:
    """The PCI addresses of the NVIDIA GPUs, whether a driver has them or not. Raises SourceError as
    ``pci_functions``."""
    return tuple(map(pci_address, pci_functions(node, NVIDIA, "class", DISPLAY_CLASSES)))


def nvswitch_functions(node: Node) -> tuple[str, ...]:
    """The functions of the NVSwitches, with or without a driver. Raises SourceError as ``pci_functions``."""
    return pci_functions(node, NVIDIA, "class", _BRIDGE)


def efa_functions(node: Node) -> tuple[str, ...]:
    """The Elastic Fabric Adapters, whether a driver has them or not. Raises SourceError as ``pci_functions``."""
    return pci_functions(node, AMAZON, "device", _EFA)


def pci_driver(node: Node, name: str) -> str:
    """The driver that a device is bound to; "" where it is bound to none. Raises SourceUnreadable."""
    try:
        return node.sys.target(f"{_DEVICES}/{name}/driver")
    except SourceMissing:
        return ""


def has_pci(node: Node) -> bool:
    """Whether the bus lists any device at all. Where it does, one that it does not list is gone. Raises SourceError."""
    return node.sys.exists(_DEVICES) and bool(node.sys.names(_DEVICES))


def require_pci(node: Node) -> None:
    """Raise SourceUnreadable where the bus lists no device at all: on a node that must have some, /sys is hidden."""
    if not node.sys.names(_DEVICES):
        raise SourceUnreadable("/sys/bus/pci/devices lists no device of any kind: is the host's /sys visible here?")


def pci_attribute(node: Node, name: str, attribute: str) -> str:
    """One attribute of a device; "" where the device has none of that name, or is gone. Raises SourceUnreadable."""
    try:
        return node.sys.read(f"{_DEVICES}/{name}/{attribute}")
    except SourceMissing:
        return ""


def pci_children(node: Node, name: str, folder: str) -> tuple[str, ...]:
    """The entries that a driver made below a device, such as ``infiniband``; none if none did. Raises
    SourceUnreadable."""
    try:
        return node.sys.names(f"{_DEVICES}/{name}/{folder}")
    except SourceMissing:
        return ()
