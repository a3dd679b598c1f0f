"""The check ``host.processes``: stuck processes, zombies, and how near the kernel is to its limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from healthd.checklib.host_text import Process, process, processes, whole
from healthd.core.check import FindingCode, check, judged
from healthd.core.errors import SourceError, SourceUnreadable
from healthd.core.model import NODE, Component, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Count, Ratio, Word

_UNINTERRUPTIBLE, _ZOMBIE = "D", "Z"
_MODULE = r"(?m)^\[<[0-9a-fx]+>\] \S+ \[(\w+)\]$"
_STACK_CHARACTERS = 2000

STUCK = FindingCode(
    code="host.processes.nvidia_stuck",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="A process has been in uninterruptible sleep inside the NVIDIA driver for minutes",
    lasting_s=300.0,
    symptom_of=("nvml.unresponsive", "gpu.lost", "gpu.xid.79", "gpu.xid.119", "gpu.xid.120"),
)
ZOMBIES = FindingCode(
    code="host.processes.zombies",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="Many zombies: their parents have not waited for them",
    lasting_s=300.0,
)
NEAR_LIMIT = FindingCode(
    code="host.processes.near_limit",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The kernel is near a limit past which it refuses new processes or files",
)


class HostProcessesSettings(Struct, frozen=True, kw_only=True):
    """The limits of ``host.processes``."""

    near_ratio: Ratio = 0.7
    """The share of a limit (processes, open files) above which the check warns. The EKS node agent warns at 70 %."""

    zombies: Count = 20
    """The most zombies without a warning; more than this for minutes means a parent that does not wait for its
    children. The EKS node monitoring agent has the same limit."""

    stuck_modules: tuple[Word, ...] = ("nvidia",)
    """Beginnings of the names of kernel modules in which uninterruptible sleep is a finding: the driver's, where a
    process waits that asks a GPU that does not answer. Other processes sleep so for their disks."""


@check("host.processes", interval_s=120, settings=HostProcessesSettings, codes=(STUCK, ZOMBIES, NEAR_LIMIT))
def host_processes(node: Node, settings: HostProcessesSettings) -> Result:
    """No process is stuck in the driver, and processes and open files are far from their limits.

    The check reads ``/proc/PID/stat``, which does not touch the memory of a process and so cannot wait for it. The
    kernel stack shows where one in uninterruptible sleep waits (``/proc/PID/stack``, for root): only a frame of the
    driver's modules counts. Its name does not, because any user can choose it. A process that was killed is a zombie
    until its last thread has ended: there the threads count. A stack that cannot be read is no evidence either way. A
    process in the driver waits for a GPU that does not answer, which the GPU checks report too; here it is a warning,
    unproven on hardware.

    Sources: proc_pid_stat(5), proc_pid_stack(5) (a frame of a module ends in its name, ``[nvidia]``); Linux,
    Documentation/admin-guide/sysctl/fs.rst (file-nr) and kernel.rst (pid_max, threads-max); gpud (nvidia processes in D
    state); EKS node monitoring agent (ApproachingKernelPidMax, ApproachingMaxOpenFiles, ExcessiveZombieProcesses).
    """
    found = processes(node.proc)
    readings = list(_levels(node, found))
    folders = {each: _asleep(node, each) for each in found if each.state in (_UNINTERRUPTIBLE, _ZOMBIE)}
    stacks = {
        each: "\n".join(filter(None, (_stack(node, one) for one in within)))
        for each, within in folders.items()
        if within
    }
    findings = [*_stuck(stacks, settings), *_zombies(found, settings), *_near(readings, settings)]
    return judged(findings, readings, not_reported=[(_where(each), STUCK.code) for each in stacks if not stacks[each]])


def _asleep(node: Node, each: Process) -> list[str]:
    """The folder of a process in uninterruptible sleep; of one that was killed those of its threads that sleep so. It
    is a zombie until the last of them has ended."""
    if each.state == _UNINTERRUPTIBLE:
        return [str(each.pid)]
    try:
        threads = [f"{each.pid}/task/{name}" for name in node.proc.names(f"{each.pid}/task")]
        return [one for one in threads if process(node.proc.read(f"{one}/stat")).state == _UNINTERRUPTIBLE]
    except SourceError:  # they have ended
        return []


def _stack(node: Node, folder: str) -> str:
    """Where in the kernel it waits, or "" where that is not reported: only root, and not every kernel, has it."""
    try:
        return node.proc.read(f"{folder}/stack")
    except SourceError:
        return ""


def _where(each: Process) -> Component:
    return Component(kind="process", id=str(each.pid))


def _stuck(stacks: Mapping[Process, str], settings: HostProcessesSettings) -> Iterator[Finding]:
    for each, stack in stacks.items():
        modules = re.findall(_MODULE, stack)
        if inside := next((module for module in modules if module.startswith(settings.stuck_modules)), ""):
            message = f"{each.name} (pid {each.pid}) hangs in the kernel module {inside} (uninterruptible sleep)"
            yield STUCK.at(_where(each), message, process=each.name, module=inside, stack=stack[:_STACK_CHARACTERS])


def _zombies(found: tuple[Process, ...], settings: HostProcessesSettings) -> Iterator[Finding]:
    zombies = sum(each.state == _ZOMBIE for each in found)
    if zombies > settings.zombies:
        message = f"{zombies} zombies, more than {settings.zombies}: a parent does not wait for its children"
        yield ZOMBIES.at(NODE, message, zombies=zombies, limit=settings.zombies)


def _levels(node: Node, found: tuple[Process, ...]) -> Iterator[Reading]:
    """Shares of the limits. Every thread takes a pid, so threads are what counts against pid_max."""
    pid_max = whole(node.proc.read("sys/kernel/pid_max"), "sys/kernel/pid_max")
    threads_max = whole(node.proc.read("sys/kernel/threads-max"), "sys/kernel/threads-max")
    match node.proc.read("loadavg").split(), node.proc.read("sys/fs/file-nr").split():
        case [_, _, _, running, _], [files, _, files_max]:
            threads = whole(running.partition("/")[2], "loadavg")
            limit = max(1, min(pid_max, threads_max))
            yield Reading(component=NODE, name="threads_used_ratio", value=threads / limit)
            used = whole(files, "file-nr") / max(1, whole(files_max, "file-nr"))
            yield Reading(component=NODE, name="open_files_used_ratio", value=used)
        case other:
            raise SourceUnreadable(f"/proc/loadavg, /proc/sys/fs/file-nr: {other}: expected five and three numbers")
    yield Reading(component=NODE, name="zombies_count", value=sum(each.state == _ZOMBIE for each in found))


def _near(readings: list[Reading], settings: HostProcessesSettings) -> Iterator[Finding]:
    over = {reading.name: round(reading.value, 3) for reading in readings if reading.name.endswith("_used_ratio")}
    near = {name: value for name, value in over.items() if value > settings.near_ratio}
    if near:
        uses = ", ".join(f"{name.removesuffix('_used_ratio').replace('_', ' ')} {near[name]:.0%}" for name in near)
        yield NEAR_LIMIT.at(NODE, f"{uses} of the limit", used=near, limit_ratio=settings.near_ratio)
