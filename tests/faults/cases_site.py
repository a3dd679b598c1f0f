"""What a site configures: what must be here, what must be reachable, rooms of XFS, EBS volumes, IMEX domains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from healthd.checks import gpu_imex, host_cpu, host_expect, host_memory, host_reach
from healthd.core.model import Status
from tests.faults.case import Case
from tests.faults.cases_fabric import built, tool
from tests.faults.cases_host import processes, put
from tests.faults.cases_nvlink import GB200
from tests.faults.rig import Rig
from tests.faults.together import together
from tests.support.healthy_node import EBS_STATS

_CPU = "sys/devices/system/cpu"


def expected(**settings: Any) -> dict[str, Any]:
    """What host.expect is told."""
    return {"host.expect": host_expect.HostExpectSettings(**settings)}


def governed(*governors: str) -> Callable[[Rig], None]:
    """Frequency policies under these governors."""

    def arrange(rig: Rig) -> None:
        for number, governor in enumerate(governors):
            rig.put(f"{_CPU}/cpufreq/policy{number}/scaling_governor", governor)

    return arrange


def sockets(count: int) -> Callable[[Rig], None]:
    """So many packages for the 192 processors."""

    def arrange(rig: Rig) -> None:
        for cpu in range(192):
            rig.put(f"{_CPU}/cpu{cpu}/topology/physical_package_id", str(cpu * count // 192))

    return arrange


EXPECT = (
    built("host.expect", "nothing configured", lambda rig: None, status=Status.NOT_APPLICABLE),
    built(
        "host.expect",
        "a module is not loaded",
        lambda rig: None,
        "host.expect.module@driver:nvidia_fs warning ask_human",
        settings=expected(modules=("nvidia_fs", "efa")),
    ),
    built(
        "host.expect",
        "a process does not run",
        lambda rig: None,
        "host.expect.process@process:node_exporter warning ask_human",
        lasts_s=120.0,
        settings=expected(processes=("node_exporter",)),
    ),
    built(
        "host.expect",
        "a process that must not run",
        processes("xmrig R"),
        "host.expect.forbidden_process@process:xmrig warning watch",
        lasts_s=120.0,
        settings=expected(forbidden_processes=("xmrig",)),
    ),
    built(
        "host.expect",
        "a mount is missing",
        lambda rig: None,
        "host.expect.mount@mount:/home warning ask_human",
        settings=expected(mounts=("/home nfs4", "/fsx lustre")),
    ),
    built(
        "host.expect",
        "booted a moment ago",
        put("proc/uptime", "200.00 1600.00"),
        "host.expect.uptime@node warning watch",
        settings=expected(min_uptime_s=300.0),
    ),
    built(
        "host.cpu",
        "another number of sockets than configured",
        sockets(1),
        "host.cpu.sockets@node warning ask_human",
        settings={"host.cpu": host_cpu.HostCpuSettings(sockets=2)},
    ),
    built(
        "host.cpu",
        "another governor than configured",
        governed("performance", "powersave"),
        "host.cpu.governor@node warning ask_human",
        settings={"host.cpu": host_cpu.HostCpuSettings(governor="performance")},
    ),
    built(
        "host.memory",
        "swap where none may be",
        lambda rig: rig.put("proc/meminfo", f"{rig.node.proc.read('meminfo')}\nSwapTotal:    8388604 kB"),
        "host.memory.swap@node warning ask_human",
        settings={"host.memory": host_memory.HostMemorySettings(swap=False)},
    ),
)

# -- host.reach -------------------------------------------------------------------------------------------------------

_NAME, _PORT, _FILE = "fsx.example.com", "slurmctl:6817", "/etc/kubernetes/pki/kubelet.crt"
_ASK_NAME = ("getent", "ahosts", _NAME)
_ASK_PORT = ("bash", "-c", 'exec 3<>"/dev/tcp/$0/$1"', "slurmctl", "6817")
_ASK_FILE = ("openssl", "x509", "-checkend", "604800", "-noout", "-enddate", "-in", _FILE)
_REACH = {"host.reach": host_reach.HostReachSettings(names=(_NAME,), ports=(_PORT,), certificates=(_FILE,))}


def reached(argv: tuple[str, ...] = (), stdout: str = "", *, code: int = 0, stderr: str = "") -> Callable[[Rig], None]:
    """All of it is well, but for the answer of one command."""

    def arrange(rig: Rig) -> None:
        for each in (_ASK_NAME, _ASK_PORT, _ASK_FILE):
            rig.answers(each, "")
        if argv:
            rig.answers(argv, stdout, code=code, stderr=stderr)

    return arrange


_REFUSED = "bash: connect: Connection refused\nbash: line 1: /dev/tcp/slurmctl/6817: Connection refused"
REACH = (
    tool("host.reach", "all is reached", reached(), settings=_REACH),
    tool(
        "host.reach",
        "a name does not resolve",
        reached(_ASK_NAME, code=2),
        f"host.reach.name@name:{_NAME} warning ask_human",
        lasts_s=120.0,
        settings=_REACH,
    ),
    tool(
        "host.reach",
        "a port refuses",
        reached(_ASK_PORT, code=1, stderr=_REFUSED),
        f"host.reach.port@port:{_PORT} warning ask_human",
        lasts_s=120.0,
        settings=_REACH,
    ),
    tool(
        "host.reach",
        "a certificate ends soon",
        reached(_ASK_FILE, "notAfter=Jan  4 12:00:00 2026 GMT\nCertificate will expire", code=1),
        f"host.reach.certificate@file:{_FILE} warning ask_human",
        settings=_REACH,
    ),
)

# -- storage.xfs, ebs.allowances, gpu.imex ----------------------------------------------------------------------------

_EBS_COUNTERS = tuple(
    f"{whose}_exceeded_{what}"
    for whose in ("ebs_volume_performance", "ec2_instance_ebs_performance")
    for what in ("iops", "tp")
)


def xfs(average: str) -> Callable[[Rig], None]:
    """An XFS file system whose free extents have this size on average."""

    def arrange(rig: Rig) -> None:
        rig.mounted("96 26 259:9 / /scratch rw,relatime shared:51 - xfs /dev/nvme1n1 rw,attr2,inode64")
        rig.node.spaces = {**rig.node.spaces, "/scratch": rig.node.spaces["/"]}
        message = f"total free extents 6\ntotal free blocks 24\naverage free extent size {average}"
        rig.answers(("xfs_spaceman", "-c", "freesp -s", "/scratch"), message)

    return arrange


def throttled(each_s: int) -> Callable[[Rig], Iterator[float]]:
    """The root volume is asked for too much, for so many seconds of every five minutes."""

    def arrange(rig: Rig) -> Iterator[float]:
        for look in range(5):
            counts = dict.fromkeys(_EBS_COUNTERS, 0) | {_EBS_COUNTERS[0]: each_s * look * 1_000_000}
            rig.answers(EBS_STATS, json.dumps(counts))
            yield 300.0

    return arrange


def imex(*nodes: str, status: str = "UP") -> Callable[[Rig], None]:
    """A domain of nodes in these states."""
    domain = {
        "status": status,
        "nodes": {str(number): {"status": state, "host": f"10.0.0.{number}"} for number, state in enumerate(nodes)},
    }
    return lambda rig: rig.answers(("nvidia-imex-ctl", "-N", "-j"), json.dumps(domain))


def no_channel(rig: Rig) -> None:
    """No IMEX channel is there."""
    rig.take("dev/nvidia-caps-imex-channels")


def job(rig: Rig) -> None:
    """A job has the first GPU."""
    rig.gpu(0, nvmlDeviceGetComputeRunningProcesses="1 1024 0 0")


_WHOLE = {"gpu.imex": gpu_imex.GpuImexSettings(domain_gpus=36)}
STORAGE = (
    tool(
        "storage.xfs",
        "free space in small pieces",
        xfs("4"),
        "storage.xfs.fragmented@mount:/scratch warning ask_human",
    ),
    tool("storage.xfs", "free space in one piece", xfs("35204.7")),
    tool(
        "ebs.allowances",
        "a volume is asked for too much",
        throttled(240),
        "ebs.allowance_exceeded@nvme:nvme0 warning watch",
    ),
    tool("ebs.allowances", "a burst", throttled(10)),
    tool(
        "gpu.imex",
        "the domain is not up",
        imex("READY", "UNAVAILABLE", status="DEGRADED"),
        "gpu.imex.not_up@node warning ask_human",
        lasts_s=300.0,
        instance_type=GB200,
    ),
    tool(
        "gpu.imex",
        "fewer GPUs than the UltraServer has",
        imex(*["READY"] * 8),
        "gpu.imex.incomplete@node warning ask_human",
        lasts_s=300.0,
        instance_type=GB200,
        settings=_WHOLE,
    ),
    tool("gpu.imex", "the whole domain is up", imex(*["READY"] * 9), instance_type=GB200, settings=_WHOLE),
    tool(
        "gpu.imex",
        "a job without a channel",
        together(imex(*["READY"] * 9), no_channel, job),
        "gpu.fabric.no_imex@node warning ask_human",
        instance_type=GB200,
    ),
    tool("gpu.imex", "no channel, and no job", together(imex(*["READY"] * 9), no_channel), instance_type=GB200),
    tool(
        "gpu.imex",
        "a job without a channel, where no domain is set up",
        together(no_channel, job),
        status=Status.NOT_APPLICABLE,
        instance_type=GB200,
    ),
    tool("gpu.imex", "no domain is set up", lambda rig: None, status=Status.NOT_APPLICABLE, instance_type=GB200),
    tool(
        "gpu.imex",
        "a domain must be, and cannot be asked",
        lambda rig: None,
        status=Status.UNKNOWN,
        unknown=frozenset({"gpu.imex"}),
        instance_type=GB200,
        settings=_WHOLE,
    ),
)

CASES: tuple[Case, ...] = (*EXPECT, *REACH, *STORAGE)
