"""The host's own part of a constructed instance: processors, memory, processes, disks, network, Lustre client.

CONSTRUCTED from published facts and from the documentation of each file's form; nothing was recorded on a machine. It
has only the files that the ``host``, ``storage``, ``ena`` and ``lustre`` checks read, and all of them are healthy.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from healthd.checklib.tables import InstanceProfile

_CPUS = 192
_GRACE_MIB = 960 << 10
"""Main memory of a tray of an UltraServer, for which EC2 publishes no MemoryInfo."""
_ENA = "devices/pci0000:00/0000:00:05.0"
_STATISTICS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
_MODULES_TAINT = (1 << 0) | (1 << 12) | (1 << 13)  # proprietary, out-of-tree, unsigned: as NVIDIA's modules leave it
_PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0"
_ROUTE = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t512\t00000000\t0\t0\t0"""
_IMPORT = """import:
    name: {device}
    target: {target}_UUID
    state: {state}
    connection:
       current_connection: 192.168.50.246@tcp
       connection_attempts: 1"""
IMPORTS_IN: Mapping[str, str] = {
    "2.12": "proc/fs/lustre",
    "2.15": "proc/fs/lustre",
    "2.17": "sys/kernel/debug/lustre",
}
"""Where a Lustre release has the ``import`` files of mdc and osc (lustre-release, lproc_mdc.c and lproc_osc.c; mgc has
its own in debugfs in all of them). Amazon Linux and FSx for Lustre clients are 2.12, 2.15 or newer."""

_PROC: Mapping[str, str] = {
    "1/comm": "systemd",
    "1/stat": "1 (systemd) S 0 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0",
    "2/stat": "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0",
    "loadavg": "0.20 0.18 0.12 1/2048 11206",
    "net/route": _ROUTE,
    "pressure/cpu": _PRESSURE,
    "pressure/memory": _PRESSURE,
    "sys/fs/file-nr": "4096\t0\t9223372036854775807",
    "sys/kernel/pid_max": "4194304",
    "sys/kernel/tainted": str(_MODULES_TAINT),
    "sys/kernel/threads-max": "16514058",
    "vmstat": "nr_free_pages 503482304\noom_kill 0",
}
_SYS: Mapping[str, str] = {
    "devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "devices/system/cpu/online": f"0-{_CPUS - 1}",
    "devices/system/cpu/present": f"0-{_CPUS - 1}",
    "devices/system/cpu/smt/control": "on",
    "class/net/eth0/flags": "0x1003",
    "class/net/eth0/operstate": "up",
    "class/net/lo/flags": "0x9",
    "class/net/lo/operstate": "unknown",
    **{f"class/net/eth0/statistics/{name}": "0" for name in _STATISTICS},
}


def write_host(root: Path, profile: InstanceProfile, *, lustre: str) -> None:
    """Add the host's part to ``sys`` and ``proc`` below ``root``; ``lustre``: the client's release, "" for none."""
    entries = {f"proc/{path}": text for path, text in {**_PROC, "meminfo": _meminfo(profile)}.items()}
    entries |= {f"sys/{path}": text for path, text in {**_SYS, **_disks(profile)}.items()}
    for path, text in {**entries, **lustre_files(lustre)}.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", encoding="ascii")
    (root / "sys" / _ENA).mkdir(parents=True, exist_ok=True)
    (root / "sys/bus/pci/drivers/ena").mkdir(parents=True, exist_ok=True)
    (root / "sys" / _ENA / "driver").symlink_to("../../../bus/pci/drivers/ena")
    (root / "sys/class/net/eth0/device").symlink_to(f"../../../{_ENA}")


def _meminfo(profile: InstanceProfile) -> str:
    """EC2's figure less what the kernel takes: 64 bytes for each page of 4 KiB."""
    total_kib = (profile.memory_mib or _GRACE_MIB) * 1024 * 63 // 64
    return f"MemTotal:       {total_kib} kB\nMemAvailable:   {total_kib * 9 // 10} kB\nHardwareCorrupted:     0 kB"


def disk_names(profile: InstanceProfile) -> tuple[str, ...]:
    """The controllers of the local disks: nvme0 is the root volume, an EBS volume."""
    return tuple(f"nvme{number + 1}" for number in range(profile.nvme_count))


def _disks(profile: InstanceProfile) -> Mapping[str, str]:
    models = {"nvme0": "Amazon Elastic Block Store"}
    models |= dict.fromkeys(disk_names(profile), "Amazon EC2 NVMe Instance Storage")
    facts: dict[str, str] = {}
    for number, (name, model) in enumerate(models.items()):
        facts |= {f"class/nvme/{name}/model": model, f"class/nvme/{name}/state": "live"}
        facts[f"class/nvme/{name}/serial"] = f"AWS{number:017}"
    return facts


def lustre_files(release: str) -> Mapping[str, str]:
    """The files of a client of this release (see :data:`IMPORTS_IN`): path from the root to text. "": none."""
    if not release:
        return {}
    files = {"sys/module/lustre/initstate": "live", "sys/fs/lustre/health_check": "healthy"}
    for kind, target, state in (("mdc", "6cz4zbev-MDT0000", "FULL"), ("osc", "6cz4zbev-OST0000", "IDLE")):
        device = f"{target}-{kind}-ffff8f1c0a5b8800"
        files[f"sys/fs/lustre/{kind}/{device}/active"] = "1"
        files[f"sys/kernel/debug/lustre/{kind}/{device}/stats"] = "snapshot_time 1767225600.0 secs.nsecs"
        text = _IMPORT.format(device=device, target=target, state=state)
        files[f"{IMPORTS_IN[release]}/{kind}/{device}/import"] = text
    manager = {"device": "MGC192.168.50.246@tcp", "target": "MGS", "state": "FULL"}
    files[f"sys/kernel/debug/lustre/mgc/{manager['device']}/import"] = _IMPORT.format(**manager)
    return files
