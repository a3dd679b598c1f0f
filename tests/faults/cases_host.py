"""The host: processors, memory, the kernel's own record, processes, services, the clock, and the ordinary network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from healthd.checks import host_cpu, host_memory, host_network, host_services
from healthd.core.errors import SourceMissing
from healthd.core.model import Status
from healthd.core.node import KernelClock
from healthd.testing import FakeLink
from tests.faults.case import Case, Made
from tests.faults.cases_fabric import built, tool
from tests.faults.rig import Rig
from tests.support.healthy_node import ALLOWANCES, CHRONY, ETHTOOL, TRACKING

_PRESSURE = "some avg10=0.00 avg60=0.00 avg300={0:.2f} total=0\nfull avg10=0.00 avg60=0.00 avg300={0:.2f} total=0"
_TAINTED = (1 << 0) | (1 << 12) | (1 << 13)  # as NVIDIA's modules leave it
_HOUR_S = 3600.0


def put(path: str, text: str) -> Callable[[Rig], None]:
    """One file has another text."""
    return lambda rig: rig.put(path, text)


def tainted(bit: int) -> Callable[[Rig], None]:
    """The kernel has set one more bit."""
    return put("proc/sys/kernel/tainted", str(_TAINTED | 1 << bit))


def replaced(path: str, old: str, new: str) -> Callable[[Rig], None]:
    """One text in a file is another."""

    def arrange(rig: Rig) -> None:
        name, _, below = path.partition("/")
        rig.put(path, getattr(rig.node, name).read(below).replace(old, new))

    return arrange


# -- host.cpu, host.memory --------------------------------------------------------------------------------------------


def no_threads(rig: Rig) -> None:
    """Simultaneous multithreading was switched off: every second processor is offline by choice."""
    rig.put("sys/devices/system/cpu/online", "0-95")
    rig.put("sys/devices/system/cpu/smt/control", "off")


def edac(corrected: int, uncorrected: int) -> Callable[[Rig], None]:
    """A memory controller that counts."""

    def arrange(rig: Rig) -> None:
        rig.put("sys/devices/system/edac/mc/mc0/ce_count", str(corrected))
        rig.put("sys/devices/system/edac/mc/mc0/ue_count", str(uncorrected))

    return arrange


def many_corrected(rig: Rig) -> Iterator[float]:
    """Fifty corrected errors an hour."""
    for hour in range(4):
        edac(50 * hour, 0)(rig)
        yield _HOUR_S


def few_corrected(rig: Rig) -> Iterator[float]:
    """One corrected error an hour."""
    for hour in range(4):
        edac(hour, 0)(rig)
        yield _HOUR_S


CPU = (
    built(
        "host.cpu",
        "a processor offline",
        put("sys/devices/system/cpu/online", "0-16,18-191"),
        "host.cpu.offline@node warning ask_human",
    ),
    built("host.cpu", "multithreading switched off", no_threads),
    built(
        "host.cpu",
        "offline, as configured",
        put("sys/devices/system/cpu/online", "0-16,18-191"),
        settings={"host.cpu": host_cpu.HostCpuSettings(offline=(17,))},
    ),
    built(
        "host.cpu",
        "fewer than configured",
        no_threads,
        "host.cpu.count@node warning ask_human",
        settings={"host.cpu": host_cpu.HostCpuSettings(count=192)},
    ),
    built("host.memory", "uncorrected (EDAC)", edac(0, 1), "host.memory.uncorrected@memory:mc0 warning ask_human"),
    built(
        "host.memory",
        "pages given up",
        replaced("proc/meminfo", "HardwareCorrupted:     0", "HardwareCorrupted:     4"),
        "host.memory.uncorrected@node warning ask_human",
    ),
    built("host.memory", "corrected, many", many_corrected, "host.memory.corrected@memory:mc0 warning watch"),
    built("host.memory", "corrected, few", few_corrected),
    built(
        "host.memory",
        "out of memory",
        replaced("proc/vmstat", "oom_kill 0", "oom_kill 1"),
        "host.memory.out_of_memory@node info none",
    ),
    built(
        "host.memory",
        "programs wait for memory",
        put("proc/pressure/memory", _PRESSURE.format(35.0)),
        "host.memory.pressure@node warning watch",
        lasts_s=300.0,
    ),
    built("host.memory", "pressure for a minute", put("proc/pressure/memory", _PRESSURE.format(35.0)), lasts_s=60.0),
    built(
        "host.memory",
        "less than configured",
        replaced("proc/meminfo", "2113929216", "1056964608"),
        "host.memory.small@node warning ask_human",
        settings={"host.memory": host_memory.HostMemorySettings(min_total_bytes=2 * 10**12)},
    ),
    built(
        "host.memory",
        "a memory module of 128 GiB is lost",
        replaced("proc/meminfo", "2113929216", "1981808640"),
        "host.memory.missing@node warning ask_human",
    ),
    built("host.memory", "with a crash kernel", replaced("proc/meminfo", "2113929216", "2112880640")),
)

# -- host.kernel, host.processes --------------------------------------------------------------------------------------


_SYSCALL = "[<0>] do_syscall_64+0x5b/0x80\n"


def processes(*states: str) -> Callable[[Rig], None]:
    """Processes with these names and state letters, ``nvidia-smi D``, and the module in which one waits:
    ``python3 D nvidia``."""

    def arrange(rig: Rig) -> None:
        for pid, words in enumerate(states, start=4711):
            name, state, *module = words.split()
            rig.put(f"proc/{pid}/stat", f"{pid} ({name}) {state} 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0")
            rig.put(f"proc/{pid}/comm", name)
            rig.put(f"proc/{pid}/stack", "".join(f"[<0>] waits+0x3a/0x50 [{each}]\n" for each in module) + _SYSCALL)

    return arrange


KERNEL = (
    built("host.kernel", "oops since boot", tainted(7), "host.kernel.oops@node warning ask_human"),
    built("host.kernel", "soft lockup since boot", tainted(14), "host.kernel.soft_lockup@node warning watch"),
    built("host.kernel", "bad page since boot", tainted(5), "host.kernel.bad_page@node warning ask_human"),
    built("host.kernel", "machine check since boot", tainted(4), "host.kernel.machine_check@node warning ask_human"),
    built(
        "host.kernel",
        "a panic in pstore",
        put("sys/fs/pstore/dmesg-efi-176722560001001", "Panic#2 Part1"),
        "host.kernel.panic_recorded@node warning watch",
    ),
    built(
        "host.processes",
        "process in D state in the driver",
        processes("python3 D nvidia"),
        "host.processes.nvidia_stuck@process:4711 warning ask_human",
        lasts_s=300.0,
    ),
    built(
        "host.processes",
        "process in D state that only bears the driver's name",
        processes("nvidia-smi D"),
        lasts_s=300.0,
    ),
    built(
        "host.processes",
        "21 zombies",
        processes(*["sh Z"] * 21),
        "host.processes.zombies@node warning watch",
        lasts_s=300.0,
    ),
    built(
        "host.processes",
        "near the limit of pids",
        put("proc/loadavg", "0.20 0.18 0.12 1/3500000 11206"),
        "host.processes.near_limit@node warning watch",
    ),
    built(
        "host.processes",
        "near the limit of open files",
        put("proc/sys/fs/file-nr", "900\t0\t1000"),
        "host.processes.near_limit@node warning watch",
    ),
)

# -- host.services, host.clock ----------------------------------------------------------------------------------------


def unit(name: str, **properties: str) -> Callable[[Rig], None]:
    """A systemd unit is like this."""
    return lambda rig: rig.unit(name, **properties)


def crashing(rig: Rig) -> Iterator[float]:
    """slurmd is started again every five minutes."""
    for restarts in range(5):
        rig.unit("slurmd.service", NRestarts=str(restarts))
        yield 300.0


def kernel_clock(**clock: Any) -> Callable[[Rig], None]:
    """No chronyd; the kernel says this of its clock."""

    def arrange(rig: Rig) -> None:
        del rig.tools[TRACKING]
        rig.node.kernel_clock = KernelClock(**{"synchronised": True, "offset_s": 0.0, **clock})

    return arrange


_STOPPED = {"ActiveState": "inactive", "SubState": "dead", "UnitFileState": "enabled"}
SERVICES = (
    tool(
        "host.services",
        "failed",
        unit("slurmd.service", ActiveState="failed", Result="exit-code"),
        "host.service.failed@service:slurmd.service warning ask_human",
    ),
    tool(
        "host.services",
        "enabled and not running",
        unit("munge.service", **_STOPPED),
        "host.service.stopped@service:munge.service warning watch",
        lasts_s=300.0,
    ),
    tool(
        "host.services",
        "required and not installed",
        unit("kubelet.service", LoadState="not-found", ActiveState="inactive"),
        "host.service.missing@service:kubelet.service warning ask_human",
        lasts_s=120.0,
        settings={"host.services": host_services.HostServicesSettings(required=("kubelet.service",))},
    ),
    tool("host.services", "not installed", unit("kubelet.service", LoadState="not-found", ActiveState="inactive")),
    tool(
        "host.services",
        "started again and again",
        crashing,
        "host.service.restarting@service:slurmd.service warning watch",
    ),
    built("host.services", "no systemd", put("proc/1/comm", "tini"), status=Status.NOT_APPLICABLE),
    tool(
        "host.clock",
        "not synchronised (chronyd)",
        lambda rig: rig.answers(TRACKING, CHRONY.replace("Normal", "Not synchronised")),
        "host.clock.unsynchronised@node warning ask_human",
        lasts_s=600.0,
    ),
    tool(
        "host.clock",
        "not synchronised (the kernel)",
        kernel_clock(synchronised=False),
        "host.clock.unsynchronised@node warning ask_human",
        lasts_s=600.0,
        made=Made.FAKE,
    ),
    tool(
        "host.clock",
        "off by two seconds",
        lambda rig: rig.answers(TRACKING, CHRONY.replace("0.000001", "2.000001")),
        "host.clock.offset@node warning ask_human",
        lasts_s=300.0,
    ),
    tool("host.clock", "off for a minute", kernel_clock(offset_s=2.0), lasts_s=60.0, made=Made.FAKE),
    built(
        "host.clock",
        "a slow clock source",
        put("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
        "host.clock.source@node warning watch",
    ),
)

# -- host.network, ena.allowances -------------------------------------------------------------------------------------

_STATISTICS = "sys/class/net/eth0/statistics"
_ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"


def lossy(rig: Rig) -> Iterator[float]:
    """A thousand broken packets an hour."""
    for quarter in range(5):
        rig.put(f"{_STATISTICS}/rx_errors", str(250 * quarter))
        yield 900.0


def conntrack(rig: Rig) -> None:
    """The table of connections is nearly full."""
    rig.put("proc/sys/net/netfilter/nf_conntrack_count", "250000")
    rig.put("proc/sys/net/netfilter/nf_conntrack_max", "262144")


def exceeded(name: str, each: int) -> Callable[[Rig], Iterator[float]]:
    """An allowance that is exceeded again and again."""

    def arrange(rig: Rig) -> Iterator[float]:
        for minutes in range(5):
            rig.answers(ETHTOOL, ALLOWANCES.replace(f"{name}: 0", f"{name}: {each * minutes}"))
            yield 60.0

    return arrange


NETWORK = (
    built(
        "host.network",
        "a link is down",
        put("sys/class/net/eth0/operstate", "down"),
        "host.network.link_down@interface:eth0 warning ask_human",
    ),
    built(
        "host.network",
        "switched off on purpose",
        put("sys/class/net/eth0/flags", "0x1002"),
        status=Status.NOT_APPLICABLE,
    ),
    built(
        "host.network",
        "an interface that is configured is missing",
        lambda rig: None,
        "host.network.missing@interface:eth1 warning ask_human",
        settings={"host.network": host_network.HostNetworkSettings(interfaces=("eth0", "eth1"))},
    ),
    built(
        "host.network",
        "no default route",
        put("proc/net/route", _ROUTES),
        "host.network.no_route@node warning ask_human",
    ),
    built("host.network", "broken packets", lossy, "host.network.errors@interface:eth0 warning watch"),
    built("host.network", "connection table nearly full", conntrack, "host.network.conntrack@node warning watch"),
    tool(
        "ena.allowances",
        "bandwidth exceeded for long",
        exceeded("bw_in_allowance_exceeded", 10_000),
        "ena.allowance_exceeded@interface:eth0 warning watch",
    ),
    tool("ena.allowances", "a burst", exceeded("bw_in_allowance_exceeded", 100)),
    tool(
        "ena.allowances",
        "connections refused",
        exceeded("conntrack_allowance_exceeded", 1),
        "ena.allowance_exceeded@interface:eth0 warning watch",
    ),
    tool(
        "ena.allowances",
        "ethtool is missing",
        lambda rig: rig.tools.update({ETHTOOL: SourceMissing("ethtool: no such command")}),
        status=Status.NOT_APPLICABLE,
    ),
    built(
        "ena.allowances",
        "no ENA interface",
        lambda rig: rig.put("sys/class/net/eth0/device/driver", FakeLink("../../../bus/pci/drivers/virtio_net")),
        status=Status.NOT_APPLICABLE,
    ),
)

CASES: tuple[Case, ...] = (*CPU, *KERNEL, *SERVICES, *NETWORK)
