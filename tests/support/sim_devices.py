"""Devices and mounts that a simulated tree loses."""

from __future__ import annotations

import shutil
from pathlib import Path

from healthd.core.model import pci_address
from healthd.sim.tree import _DEVICES, _rdma_names, _replace


def remove_gpu(root: Path, pci: str) -> None:
    """Take a GPU off the PCI bus, as after a reboot in which it did not come up; ``pci`` as in ``0000:53:00``.

    Its device file goes too: the driver makes them for what it finds, from 0 on, so the last number is missing.
    """
    _remove_device(root, f"{pci_address(pci)}.0")
    max((root / "dev").glob("nvidia[0-9]*"), key=lambda path: int(path.name.removeprefix("nvidia"))).unlink()


def remove_efa(root: Path) -> str:
    """Take the last EFA device off the PCI bus; returns the name that its RDMA device had."""
    name = _rdma_names(root)[-1]
    _remove_device(root, _pci_of(root, name))
    (root / "sys/class/infiniband" / name).unlink()
    return name


def unbind_efa(root: Path) -> str:
    """Leave the last EFA device on the bus without a driver; returns its PCI address."""
    name = _rdma_names(root)[-1]
    address = _pci_of(root, name)
    (root / "sys/class/infiniband" / name).unlink()
    for part in ("infiniband", "infiniband_verbs"):
        shutil.rmtree(root / "sys" / _DEVICES / address / part)
    (root / "sys" / _DEVICES / address / "driver").unlink()
    return address


def unmount(root: Path, point: str) -> None:
    """Take every mount on a point out of the mount table."""
    table = root / "proc/self/mountinfo"
    _replace(table, "".join(line for line in table.read_text().splitlines(True) if line.split(" ")[4] != point))


def _pci_of(root: Path, name: str) -> str:
    return (root / "sys/class/infiniband" / name / "device").resolve().name


def _remove_device(root: Path, address: str) -> None:
    (root / "sys/bus/pci/devices" / address).unlink()
    shutil.rmtree(root / "sys" / _DEVICES / address)
