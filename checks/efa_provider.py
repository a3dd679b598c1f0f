"""The check ``efa.provider``: EFA as programs see it, through libfabric and NCCL's plug-in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from healthd.checklib.host_text import key_numbers
from healthd.checklib.jobs import owner
from healthd.checklib.pci import efa_functions, pci_children, pci_gpus
from healthd.checklib.versions import minimums, older, read_stack
from healthd.core.check import FindingCode, check, judged, not_applicable
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import NODE, Component, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import CommandResult, Node

_FI_INFO = "/opt/amazon/efa/bin/fi_info"
_PARTS = ("efa_installer", "aws_ofi_nccl")
_DOMAIN = re.compile(r"^[ \t]*domain:[ \t]*(\S+?)(?:-(?:rdm|dgrm|dgram))?[ \t]*$", re.MULTILINE)
_LOCKED = re.compile(r"^Max locked memory\s+(\S+)", re.MULTILINE)
_STARTS_JOBS = frozenset({"slurmd", "containerd"})
_MEMLOCK_BYTES = 16 << 30
_MEMLOCK_SOURCE = "AWS, EFA documentation: memlock unlimited, or 16 GiB at least"

_W, _HUMAN = Severity.WARNING, Remedy.ASK_HUMAN
NO_DOMAIN = FindingCode(
    code="efa.provider.no_domain", severity=_W, remedy=_HUMAN, meaning="libfabric does not see an EFA device"
)
FAILED = FindingCode(
    code="efa.provider.failed", severity=_W, remedy=_HUMAN, meaning="libfabric finds no EFA provider at all"
)
NO_PLUGIN = FindingCode(
    code="efa.provider.no_plugin", severity=_W, remedy=_HUMAN, meaning="NCCL's EFA plug-in (aws-ofi-nccl) is missing"
)
TOO_OLD = FindingCode(
    code="efa.provider.too_old", severity=_W, remedy=_HUMAN, meaning="EFA's software is too old for the instance type"
)
MEMLOCK = FindingCode(
    code="efa.provider.memlock", severity=_W, remedy=_HUMAN, meaning="The memlock limit of jobs is too low for EFA"
)
_CODES = (NO_DOMAIN, FAILED, NO_PLUGIN, TOO_OLD, MEMLOCK)


@check("efa.provider", interval_s=600, timeout_s=60, codes=_CODES)
def efa_provider(node: Node, _settings: object) -> Result:
    """libfabric sees every EFA device, NCCL's plug-in is there, and jobs may lock memory.

    The driver (efa.devices) and programs can disagree: fi_info asks as a program does. Without EFA's software on the
    host, jobs bring it in containers, and the check does not apply. Huge pages are a reading: libfabric uses them where
    there are some. Jobs inherit the limit on locked memory from slurmd and containerd. Unproven on hardware, and a
    warning at most.

    Sources: libfabric fi_info(1); AWS, EFA documentation (memlock, installer); rows of stack.csv, minimum_versions.csv.
    """
    functions = efa_functions(node)
    devices = [device for name in functions for device in pci_children(node, name, "infiniband")]
    if not devices:
        return not_applicable("no EFA device with a driver; see efa.devices")
    try:
        info = node.command(_FI_INFO, "-p", "efa", timeout_s=20.0)
    except SourceMissing:
        return not_applicable(f"{_FI_INFO} is not installed: jobs bring libfabric themselves")
    if info.code < 0:
        raise SourceUnreadable(f"fi_info -p efa was killed by signal {-info.code}")
    stack = read_stack(node, _PARTS)
    findings = [*_seen(info, devices), *_judged(node, stack.versions)]
    undecided = list(stack.undecided)
    readings = [Reading(component=NODE, name="efa_domain_count", value=len(_domains(info)))]
    try:
        findings.extend(_locked(node))
        readings.extend(_huge_pages(node))
    except SourceError as error:
        undecided.append(str(error))
    return judged(findings, readings, undecided=undecided)


def _domains(info: CommandResult) -> frozenset[str]:
    return frozenset(_DOMAIN.findall(info.stdout))


def _seen(info: CommandResult, devices: Sequence[str]) -> Iterator[Finding]:
    domains = _domains(info)
    unseen = [device for device in devices if device not in domains]
    if info.code or not domains:
        message = f"fi_info -p efa: exit {info.code}: {(info.stderr or info.stdout).strip()[:200]}"
        yield FAILED.at(NODE, message, devices=list(devices))
    elif unseen:
        for device in unseen:
            yield NO_DOMAIN.at(Component(kind="efa", id=device), f"fi_info -p efa does not list {device}")


def _judged(node: Node, versions: Mapping[str, str]) -> Iterator[Finding]:
    if "efa_installer" in versions and "aws_ofi_nccl" not in versions and pci_gpus(node):
        installer = versions["efa_installer"]
        yield NO_PLUGIN.at(NODE, f"EFA installer {installer} without package libnccl-ofi", installer=installer)
    for row in minimums(node.instance_type):
        if row.part in versions and row.part in _PARTS and older(version := versions[row.part], row.minimum):
            message = f"{row.part} {version}; {node.instance_type} needs {row.minimum} or newer"
            yield TOO_OLD.at(NODE, message, version=version, limit=row.minimum, limit_source=row.source)


def _locked(node: Node) -> Iterator[Finding]:
    """Findings about the memlock limit of each process whose children are jobs."""
    for pid in (name for name in node.proc.names("") if name.isdigit()):
        try:
            if (name := node.proc.read(f"{pid}/comm")) not in _STARTS_JOBS or not _is_the_hosts(node, pid):
                continue
            found = _LOCKED.search(node.proc.read(f"{pid}/limits"))
        except SourceMissing:
            continue  # it has ended
        if found and found[1] != "unlimited" and int(found[1]) < _MEMLOCK_BYTES:
            locked, where = int(found[1]), Component(kind="process", id=name)
            message = f"{name} (pid {pid}) may lock only {locked >> 20} MiB, as may its jobs; set LimitMEMLOCK=infinity"
            yield MEMLOCK.at(
                where, message, value_bytes=locked, limit_bytes=_MEMLOCK_BYTES, limit_source=_MEMLOCK_SOURCE
            )


def _is_the_hosts(node: Node, pid: str) -> bool:
    """Whether root runs it, outside of jobs and pods: any user may give a process that name."""
    return "\nUid:\t0\t" in node.proc.read(f"{pid}/status") and not owner(node.proc.read(f"{pid}/cgroup"))


def _huge_pages(node: Node) -> Iterator[Reading]:
    meminfo = key_numbers(node.proc.read("meminfo"))
    for word, name in (("HugePages_Total", "total"), ("HugePages_Free", "free")):
        if word in meminfo:
            yield Reading(component=NODE, name=f"host_huge_pages_{name}_count", value=meminfo[word])
