"""What joins nodes: EFA from the PCI bus to libfabric, GDRCopy, GPUDirect RDMA. NVLink is in ``cases_nvlink``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from healthd.checks import efa_devices, gpu_gdrcopy, gpu_peermem
from healthd.core.model import Status
from healthd.sim import tree
from tests.faults.case import Case, Made
from tests.faults.cases_gpu import case, over
from tests.faults.rig import Rig
from tests.support.healthy_node import FABRIC_TOOLS, FI_INFO, GDRAPI, INSTALLED, LDCONFIG, domains_of, fi_info

_LAST, _LAST_PCI = "rdmap201s0", "0000:c9:00.0"
_OF_LAST = f"sys/bus/pci/devices/{_LAST_PCI}"
_COUNTERS = f"{_OF_LAST}/infiniband/{_LAST}"


def built(check: str, state: str, arrange: Callable[[Rig], Any], diagnosis: str = "", **more: Any) -> Case:
    """A case of the constructed tree."""
    return case(check, state, arrange, diagnosis, **{"made": Made.TREE, **more})


def tool(check: str, state: str, arrange: Callable[[Rig], Any], diagnosis: str = "", **more: Any) -> Case:
    """A case of what a tool answers."""
    return case(check, state, arrange, diagnosis, **{"made": Made.TOOL, **more})


# -- EFA --------------------------------------------------------------------------------------------------------------


def efa_gone(rig: Rig) -> None:
    """The last EFA device is off the bus."""
    rig.take(_OF_LAST, f"sys/class/infiniband/{_LAST}")
    rig.answers(FI_INFO, fi_info(domains_of(rig.profile)[:-1]))


def efa_unbound(rig: Rig) -> None:
    """The last EFA device is on the bus, and its driver has given it up."""
    rig.take(
        f"{_OF_LAST}/infiniband", f"{_OF_LAST}/infiniband_verbs", f"{_OF_LAST}/driver", f"sys/class/infiniband/{_LAST}"
    )
    rig.answers(FI_INFO, fi_info(domains_of(rig.profile)[:-1]))


def efa_driver_absent(rig: Rig) -> None:
    """The driver is not loaded: no device of any kind."""
    rig.take("sys/module/efa")
    for address, name in zip(tree.layout_of(rig.profile).efa, domains_of(rig.profile), strict=True):
        device = f"sys/bus/pci/devices/{address}"
        rig.take(f"{device}/infiniband", f"{device}/infiniband_verbs", f"sys/class/infiniband/{name}")


def launched_with_fewer(rig: Rig) -> None:
    """An instance that never had more, to a daemon that sees it for the first time."""
    efa_gone(rig)
    rig.forget()


def just_booted(rig: Rig) -> None:
    """A device that is not there yet."""
    efa_gone(rig)
    rig.put("proc/uptime", "60.00 5760.00")


def without_p2p(rig: Rig) -> None:
    """The driver of the mainline kernel, which has no attribute p2p."""
    for address, name in zip(tree.layout_of(rig.profile).efa, domains_of(rig.profile), strict=True):
        rig.take(f"sys/bus/pci/devices/{address}/p2p", f"sys/class/infiniband/{name}/device/p2p")


def grows(path: str, each: int, *, times: int = 3) -> Any:
    """A counter of the last device that grows each minute."""
    return over(60.0, lambda rig, minute: rig.put(f"{_COUNTERS}/{path}", str(each * minute)), times=times)


def silent(rig: Rig) -> Iterator[float]:
    """No keep-alive comes any more."""
    rig.silent_efa = frozenset({_LAST})
    for _ in range(8):
        yield 60.0


def all_silent(rig: Rig) -> Iterator[float]:
    """No keep-alive comes to any device: a machine that was stopped, or a driver that counts none."""
    rig.silent_efa = frozenset(domains_of(rig.profile))
    for _ in range(8):
        yield 60.0


def unanswered(rig: Rig) -> None:
    """A command that was never answered, and the device refuses those that follow."""
    rig.put(f"{_COUNTERS}/hw_counters/no_completion_cmds", "1")
    rig.put(f"{_COUNTERS}/hw_counters/cmds_err", "300")


EFA = (
    built(
        "efa.devices",
        "off the bus, where there was one",
        efa_gone,
        "efa.missing@node critical reboot_node",
        symptoms=("efa.below_usual@node",),
    ),
    built(
        "efa.devices",
        "fewer than configured",
        efa_gone,
        "efa.missing@node critical reboot_node",
        settings={"efa.devices": efa_devices.EfaDevicesSettings(expected=32)},
    ),
    built(
        "efa.devices",
        "fewer than usual from the beginning",
        launched_with_fewer,
        "efa.below_usual@node warning watch",
    ),
    built(
        "efa.devices",
        "as many as configured, fewer than usual",
        launched_with_fewer,
        settings={"efa.devices": efa_devices.EfaDevicesSettings(expected=31)},
    ),
    built(
        "efa.devices",
        "missing a minute after boot",
        just_booted,
        status=Status.UNKNOWN,
        unknown=frozenset({"efa.devices"}),
    ),
    built(
        "efa.devices",
        "the driver gave a device up",
        efa_unbound,
        "efa.driver_lost@efa:0000:c9:00.0 critical reboot_node",
        lasts_s=60.0,
    ),
    built("efa.devices", "a device unbound for a look", efa_unbound),
    built(
        "efa.devices",
        "driver not loaded",
        efa_driver_absent,
        "efa.driver_absent@node critical ask_human",
        lasts_s=60.0,
    ),
    built("efa.devices", "driver not loaded for a look, as in its reload", efa_driver_absent),
    built(
        "efa.devices",
        "no uverbs device",
        lambda rig: rig.take(f"{_OF_LAST}/infiniband_verbs"),
        f"efa.no_verbs@efa:{_LAST} critical ask_human",
        lasts_s=60.0,
    ),
    built("efa.devices", "no uverbs device for a look", lambda rig: rig.take(f"{_OF_LAST}/infiniband_verbs")),
    built("efa.devices", "no GPUDirect", without_p2p, "efa.no_gpudirect@node warning watch"),
    built(
        "efa.devices",
        "the port is not ACTIVE, which no port ever says",
        lambda rig: rig.put(f"{_COUNTERS}/ports/1/state", "1: DOWN"),
    ),
    built("efa.counters", "no sign of life", silent, f"efa.counters.keep_alive@efa:{_LAST} warning ask_human"),
    built("efa.counters", "no sign of life of any device", all_silent),
    built(
        "efa.counters",
        "a command unanswered",
        grows("hw_counters/no_completion_cmds", 1, times=1),
        f"efa.counters.no_completion@efa:{_LAST} warning ask_human",
    ),
    built(
        "efa.counters",
        "a command refused",
        grows("hw_counters/cmds_err", 1, times=1),
    ),
    built(
        "efa.counters",
        "hundreds of commands refused",
        grows("hw_counters/cmds_err", 200, times=1),
        f"efa.counters.command_error@efa:{_LAST} warning watch",
    ),
    built(
        "efa.counters",
        "a command unanswered, and the others refused",
        unanswered,
        f"efa.counters.no_completion@efa:{_LAST} warning ask_human",
        symptoms=(f"efa.counters.command_error@efa:{_LAST}",),
    ),
    built(
        "efa.counters",
        "retransmits",
        grows("ports/1/hw_counters/retrans_timeout_events", 100_000),
        f"efa.counters.fabric@efa:{_LAST} warning watch",
    ),
    built(
        "efa.counters",
        "remote ends do not answer",
        grows("ports/1/hw_counters/unresponsive_remote_events", 100_000),
        f"efa.counters.fabric@efa:{_LAST} warning watch",
    ),
    built(
        "efa.counters",
        "connections impaired",
        grows("ports/1/hw_counters/impaired_remote_conn_events", 100_000),
        f"efa.counters.fabric@efa:{_LAST} warning watch",
    ),
    built("efa.counters", "no retransmission counters (p4d)", lambda rig: None, instance_type="p4d.24xlarge"),
)

# -- libfabric --------------------------------------------------------------------------------------------------------

_INSTALLED = FABRIC_TOOLS[INSTALLED]


def memlock(limit: str) -> Callable[[Rig], None]:
    """slurmd may lock so much memory."""

    def arrange(rig: Rig) -> None:
        rig.put("proc/1200/comm", "slurmd")
        rig.put("proc/1200/stat", "1200 (slurmd) S 1 1200 1200 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0")
        rig.put("proc/1200/status", "Name:\tslurmd\nUid:\t0\t0\t0\t0")
        rig.put("proc/1200/cgroup", "0::/system.slice/slurmd.service")
        rig.put("proc/1200/limits", f"Limit  Soft Limit  Hard Limit  Units\nMax locked memory  {limit}  {limit}  bytes")

    return arrange


def in_containers(rig: Rig) -> None:
    """Jobs bring libfabric themselves; the host has none."""
    del rig.tools[FI_INFO]


PROVIDER = (
    tool(
        "efa.provider",
        "one device is no domain",
        lambda rig: rig.answers(FI_INFO, fi_info(domains_of(rig.profile)[:-1])),
        f"efa.provider.no_domain@efa:{_LAST} warning ask_human",
    ),
    tool(
        "efa.provider",
        "no provider at all",
        lambda rig: rig.answers(FI_INFO, "", code=61, stderr="fi_getinfo: -61 (No data available)"),
        "efa.provider.failed@node warning ask_human",
    ),
    tool(
        "efa.provider",
        "aws-ofi-nccl missing",
        lambda rig: rig.answers(INSTALLED, _INSTALLED.partition(" libnccl")[0]),
        "efa.provider.no_plugin@node warning ask_human",
    ),
    tool(
        "efa.provider",
        "older than the type needs (B300)",
        lambda rig: rig.answers(INSTALLED, _INSTALLED.replace("1.44.0", "1.41.0")),
        "efa.provider.too_old@node warning ask_human",
        instance_type="p6-b300.48xlarge",
    ),
    built(
        "efa.provider",
        "little locked memory",
        memlock("8388608"),
        "efa.provider.memlock@process:slurmd warning ask_human",
    ),
    built("efa.provider", "unlimited locked memory", memlock("unlimited")),
    tool(
        "efa.provider",
        "libfabric only in containers",
        in_containers,
        status=Status.NOT_APPLICABLE,
    ),
)

# -- GDRCopy and GPUDirect RDMA ---------------------------------------------------------------------------------------


def another_gdrcopy(rig: Rig) -> None:
    """The library is of another major version."""
    rig.answers(("readlink", "-f", GDRAPI), f"{GDRAPI.removesuffix('2')}3.0")


def no_way(rig: Rig) -> None:
    """Neither nvidia_peermem, nor EFA's own provider, nor the open kernel module."""
    without_p2p(rig)
    rig.take("sys/module/nvidia_peermem")
    rig.put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05")


def by_dma_buf(rig: Rig) -> None:
    """The open kernel module is one way, and enough."""
    rig.take("sys/module/nvidia_peermem")


DIRECT = (
    built(
        "gpu.gdrcopy",
        "driver not loaded",
        lambda rig: rig.take("sys/module/gdrdrv"),
        "gdrcopy.absent@driver:gdrdrv warning ask_human",
    ),
    built(
        "gpu.gdrcopy",
        "no device file",
        lambda rig: rig.take("dev/gdrdrv"),
        "gdrcopy.no_device@driver:gdrdrv warning ask_human",
    ),
    tool(
        "gpu.gdrcopy",
        "library of another major version",
        another_gdrcopy,
        "gdrcopy.mismatch@driver:gdrdrv warning ask_human",
    ),
    tool("gpu.gdrcopy", "library only in containers", lambda rig: rig.answers(LDCONFIG, "")),
    built(
        "gpu.gdrcopy",
        "not loaded, and not needed",
        lambda rig: rig.take("sys/module/gdrdrv"),
        status=Status.NOT_APPLICABLE,
        settings={"gpu.gdrcopy": gpu_gdrcopy.GpuGdrcopySettings(required=False)},
    ),
    built(
        "gpu.peermem",
        "no way into GPU memory",
        no_way,
        "gpu.peermem.no_route@driver:nvidia_peermem warning ask_human",
        symptoms=("efa.no_gpudirect@node",),
    ),
    built("gpu.peermem", "by dma-buf", by_dma_buf),
    built(
        "gpu.peermem",
        "the module is required, and not loaded",
        by_dma_buf,
        "gpu.peermem.not_loaded@driver:nvidia_peermem warning ask_human",
        settings={"gpu.peermem": gpu_peermem.GpuPeermemSettings(module_required=True)},
    ),
)

CASES: tuple[Case, ...] = (*EFA, *PROVIDER, *DIRECT)
