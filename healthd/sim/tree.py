"""A /sys, /proc and /dev as an EC2 GPU instance would show them, written into a folder.

CONSTRUCTED from published facts, not recorded on a machine: names, links and attributes that healthd reads, and nothing
else. The numbers of devices come from ``instance_types.toml``. The places of a p5.48xlarge's GPUs and EFA devices are
published (``nvidia-smi`` and ``lstopo -v`` listings of the type: four EFA devices in front of each GPU, at 4f to 52 and
the GPU at 53, and so on; EFA is 1d0f:efa1 there; RDMA devices are called ``rdmap<bus, decimal>s0``); those of other
types, of NVSwitches and of disks are made up. Real sysfs reaches devices through links; so does this one.
"""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

from msgspec import Struct

from healthd.checklib.tables import InstanceProfile, instance_profile
from healthd.core.model import pci_address
from healthd.sim.host import write_host
from healthd.sim.nvml_state import PROFILES

BOOT_ID = "51a1a7ed-b007-4000-8000-000000000001"
INSTANCE_ID = "i-0123456789abcdef0"
BOOT_TIME_S = 1_767_225_600
"""When the constructed machine booted: 2026-01-01T00:00:00Z, in seconds since the epoch."""

_GPU_DEVICE_IDS = {
    "V100": "0x1db5",
    "A100": "0x20b0",
    "H100": "0x2330",
    "H200": "0x2335",
    "B200": "0x2901",
    "B300": "0x3182",
    "T4": "0x1eb8",
    "A10G": "0x2237",
    "L4": "0x27b8",
    "L40S": "0x26b9",
}
"""PCI device ids by GPU model (pci-ids.ucw.cz, vendor 10de). Nothing in healthd reads them."""
_DEVICES = "devices/pci0000:00"
_EFA_COUNTERS = ("submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd", "reg_mr_err")
_EFA_PORT_COUNTERS = (
    *("tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops"),
    *("rdma_read_bytes", "rdma_read_wr_err", "rdma_write_bytes", "rdma_write_wr_err"),
)
_EFA_NITRO_V4_COUNTERS = (
    "retrans_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
)
"""Counters that healthd reads, and some others (amzn-drivers efa). The last five need Nitro v4, which p4d has not."""


class Layout(Struct, frozen=True, kw_only=True):
    """Where the devices of an instance are: PCI addresses with the function, in the order of the bus."""

    gpus: tuple[str, ...]
    nvswitches: tuple[str, ...]
    efa: tuple[str, ...]


def build(root: Path, instance_type: str = "p5.48xlarge", *, lustre: str = "2.15") -> Layout:
    """Write ``sys``, ``proc`` and ``dev`` of a healthy instance below ``root``, which must not hold them yet.

    ``lustre``: the release of the client that has an FSx for Lustre file system mounted on /fsx, as
    ``healthd.sim.host.IMPORTS_IN`` knows it; "" for none. Raises KeyError for a type or release that its table does not
    know, FileExistsError where something is in the way.
    """
    profile = instance_profile(instance_type)
    if profile is None:
        raise KeyError(f"instance type {instance_type!r}: not in checks/data/instance_types.toml")
    layout = layout_of(profile)
    for name in ("sys", "proc", "dev"):
        (root / name).mkdir(parents=True)
    _dmi(root, profile.type)
    _drivers(root)
    _pci(root, "0000:00:00.0", vendor="0x8086", device="0x1237", kind="0x060000")
    for index, address in enumerate(layout.gpus):
        _pci(root, address, vendor="0x10de", device=_gpu_id(profile), kind="0x030200", driver="nvidia")
        _write(root / f"dev/nvidia{index}")
    for address in layout.nvswitches:
        _pci(root, address, vendor="0x10de", device="0x22a3", kind="0x068000", driver="nvidia-nvswitch")
    for number, address in enumerate(layout.efa):
        _efa(root, number, address, nitro_v4=profile.gpu_model != "A100")
    imex = ("nvidia-caps-imex-channels/channel0",) if profile.nvlink == "nvl72" else ()
    for name in ("nvidiactl", "nvidia-uvm", "gdrdrv", *imex):
        _write(root / "dev" / name)
    _disk(root)
    _proc(root, lustre=bool(lustre))
    write_host(root, profile, lustre=lustre)
    return layout


def layout_of(profile: InstanceProfile) -> Layout:
    """The addresses of a type's devices. EFA devices stand in front of the GPU whose PCIe switch they share."""
    known = PROFILES.get(profile.type)
    buses = [int(pci_address(pci).split(":")[1], 16) for pci in known.pci] if known else _buses(profile.gpus)
    each, rest = divmod(profile.efa_usual, len(buses))
    counts = [each + (index < rest) for index in range(len(buses))]
    efa = [bus - count + step for bus, count in zip(buses, counts, strict=True) for step in range(count)]
    return Layout(
        gpus=tuple(_address(bus) for bus in buses),
        nvswitches=tuple(_address(0xD0 + number) for number in range(profile.nvswitches)),
        efa=tuple(_address(bus) for bus in efa),
    )


# ---------------------------------------------------------------------------------------------------------------------
# what can change


def new_boot(root: Path) -> str:
    """Start a new boot: a new boot id, which is returned, and an uptime that starts again at a minute."""
    boot_id = str(uuid.uuid4())
    _replace(root / "proc/sys/kernel/random/boot_id", f"{boot_id}\n")
    _replace(root / "proc/uptime", "60.00 5760.00\n")
    return boot_id


def keep_alives(root: Path, count: int) -> None:
    """Have every EFA device that is there show so many keep-alives since the boot: about one a second is right."""
    for name in _rdma_names(root):
        with contextlib.suppress(FileNotFoundError):  # a device that is just being taken away
            _replace(root / "sys/class/infiniband" / name / "hw_counters/keep_alive_rcvd", f"{count}\n")


def mount(root: Path, line: str) -> None:
    """Add a line to the mount table, in the format of ``/proc/self/mountinfo``."""
    table = root / "proc/self/mountinfo"
    _replace(table, f"{table.read_text()}{line}\n")


# ---------------------------------------------------------------------------------------------------------------------
# /sys and /dev


def _buses(gpus: int) -> list[int]:
    return [0x20 + 0x11 * index for index in range(gpus)]


def _address(bus: int) -> str:
    return f"0000:{bus:02x}:00.0"


def _gpu_id(profile: InstanceProfile) -> str:
    return _GPU_DEVICE_IDS.get(profile.gpu_model, "0x2330")


def _dmi(root: Path, instance_type: str) -> None:
    facts = {"product_name": instance_type, "sys_vendor": "Amazon EC2", "board_asset_tag": INSTANCE_ID}
    for name, text in facts.items():
        _write(root / "sys/devices/virtual/dmi/id" / name, f"{text}\n")


def _drivers(root: Path) -> None:
    versions = {
        "nvidia": PROFILES["p5.48xlarge"].driver_version,
        "efa": "3.1.0g",
        "gdrdrv": "2.5",
        "ib_uverbs": "",
        "nvidia_peermem": "",
    }
    for name, version in versions.items():
        _write(root / "sys/module" / name / "initstate", "live\n")
        if version:
            _write(root / "sys/module" / name / "version", f"{version}\n")
    for name in ("nvidia", "nvidia-nvswitch", "efa"):
        (root / "sys/bus/pci/drivers" / name).mkdir(parents=True)


def _pci(root: Path, address: str, *, vendor: str, device: str, kind: str, driver: str = "") -> Path:
    folder = root / "sys" / _DEVICES / address
    for name, text in {"vendor": vendor, "device": device, "class": kind}.items():
        _write(folder / name, f"{text}\n")
    if driver:
        (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    _link(root / "sys/bus/pci/devices" / address, f"../../../{_DEVICES}/{address}")
    return folder


def _efa(root: Path, number: int, address: str, *, nitro_v4: bool) -> None:
    folder = _pci(root, address, vendor="0x1d0f", device="0xefa1", kind="0x020000", driver="efa")
    name = f"rdmap{int(address.split(':')[1], 16)}s0"
    _write(folder / "p2p", "NVIDIA\n")
    _write(folder / "infiniband" / name / "node_type", "4: unspecified\n")
    _write(folder / "infiniband" / name / "ports/1/state", "4: ACTIVE\n")
    for counter in _EFA_COUNTERS:
        _write(folder / "infiniband" / name / "hw_counters" / counter, "0\n")
    for counter in (*_EFA_PORT_COUNTERS, *(_EFA_NITRO_V4_COUNTERS if nitro_v4 else ())):
        _write(folder / "infiniband" / name / "ports/1/hw_counters" / counter, "0\n")
    (folder / "infiniband" / name / "device").symlink_to("../../../" + address)
    _write(folder / f"infiniband_verbs/uverbs{number}/ibdev", f"{name}\n")
    _link(root / "sys/class/infiniband" / name, f"../../{_DEVICES}/{address}/infiniband/{name}")
    _write(root / f"dev/infiniband/uverbs{number}")


def _disk(root: Path) -> None:
    _write(root / "sys/devices/virtual/block/nvme0n1p1/dev", "259:1\n")
    _link(root / "sys/dev/block/259:1", "../../devices/virtual/block/nvme0n1p1")
    _write(root / "sys/fs/ext4/nvme0n1p1/errors_count", "0\n")


def _rdma_names(root: Path) -> tuple[str, ...]:
    folder = root / "sys/class/infiniband"
    return tuple(sorted((path.name for path in folder.iterdir()), key=lambda name: int(name[5:].partition("s")[0])))


# ---------------------------------------------------------------------------------------------------------------------
# /proc


def _proc(root: Path, *, lustre: bool) -> None:
    _write(root / "proc/sys/kernel/random/boot_id", f"{BOOT_ID}\n")
    _write(root / "proc/stat", f"cpu  0 0 0 0 0 0 0 0 0 0\nbtime {BOOT_TIME_S}\n")
    _write(root / "proc/uptime", "86400.00 8294400.00\n")
    _write(root / "proc/sys/kernel/osrelease", "6.14.0-1011-aws\n")
    _write(root / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module (constructed)\n")
    lines = [
        "21 26 0:20 / /proc rw,nosuid,nodev,noexec,relatime shared:1 - proc proc rw",
        "22 26 0:21 / /sys rw,nosuid,nodev,noexec,relatime shared:2 - sysfs sysfs rw",
        "23 26 0:5 / /dev rw,nosuid shared:3 - devtmpfs devtmpfs rw,size=4096k,mode=755",
        "26 1 259:1 / / rw,relatime shared:4 - ext4 /dev/nvme0n1p1 rw,discard,errors=remount-ro",
        "27 26 0:24 / /run rw,nosuid,nodev shared:5 - tmpfs tmpfs rw,mode=755",
    ]
    if lustre:
        options = "rw,checksum,flock,user_xattr,lruresize,lazystatfs,nouser_fid2path,verbose,encrypt"
        lines += [
            "90 26 0:50 / /fsx rw,relatime shared:40 - autofs systemd-1 rw,fd=55,pgrp=1,timeout=0,direct",
            f"91 90 0:51 / /fsx rw,noatime shared:41 - lustre 192.168.50.246@tcp:/6cz4zbev {options}",
        ]
    _write(root / "proc/self/mountinfo", "".join(f"{line}\n" for line in lines))


def _write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def _replace(path: Path, text: str) -> None:
    """Replace the text in one step: a reader sees the old text or the new one, as with a real file of the kernel."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="ascii")
    fresh.replace(path)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
