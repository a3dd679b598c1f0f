"""The check ``gpu.imex``: the NVLink domain of an UltraServer across its nodes, as the IMEX service reports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from healthd.checklib.gpus import ask_gpus
from healthd.checklib.host_text import json_object
from healthd.checklib.tables import instance_profile
from healthd.core.check import FindingCode, check, judged, not_applicable, ok, unknown
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.core.model import NODE, Finding, Reading, Remedy, Result, Severity, Status
from healthd.core.node import CommandResult, Node
from healthd.core.setting_types import AtLeastOne

_ASK = ("nvidia-imex-ctl", "-N", "-j")
_CHANNELS, _PROCESSES = "nvidia-caps-imex-channels", "nvmlDeviceGetComputeRunningProcesses"
_UP, _READY = "UP", "READY"
_NAMED = 8  # of up to 18 nodes

NOT_UP = FindingCode(
    code="gpu.imex.not_up",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The IMEX domain is not up: its nodes cannot all share GPU memory over NVLink",
    lasting_s=300.0,
)
INCOMPLETE = FindingCode(
    code="gpu.imex.incomplete",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="Fewer GPUs in the IMEX domain than this UltraServer must have",
    lasting_s=300.0,
)
NO_CHANNEL = FindingCode(
    code="gpu.fabric.no_imex",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="A job runs in an IMEX domain without a channel: it shares no memory across nodes",
)


class GpuImexSettings(Struct, frozen=True, kw_only=True):
    """The number of GPUs that ``gpu.imex`` expects."""

    domain_gpus: AtLeastOne | None = None
    """How many GPUs the domain must have: 72 on a u-p6e-gb200x72 UltraServer, 36 on a u-p6e-gb200x36. Default: those of
    the nodes in IMEX's configuration, because some sites configure IMEX for every job, and EC2 does not report the
    UltraServer of a node."""


@check("gpu.imex", interval_s=60, timeout_s=15, settings=GpuImexSettings, codes=(NOT_UP, INCOMPLETE, NO_CHANNEL))
def gpu_imex(node: Node, settings: GpuImexSettings) -> Result:
    """The IMEX domain of an UltraServer is up, and has all 36 or 72 GPUs.

    A node sees the clique and cluster of its own GPUs only (gpu.fabric); the IMEX service knows the configured nodes,
    and whether each is ready. GPUs are counted as nodes times the GPUs of the type. A domain whose nodes come up one
    after the other is a finding only after five minutes. Without IMEX, or without a configuration of it, the check does
    not apply; with ``domain_gpus`` set it is then unknown. A missing channel is a finding only where a domain is set up
    and a job uses the GPUs: Slurm and ComputeDomains create channels for a job. Another node may be at fault, so all
    findings are warnings and healthd does nothing. Unproven on hardware.

    Sources: NVIDIA IMEX guide, command service (-N, -j) and channels (/dev/nvidia-caps-imex-channels); Slurm 24.05,
    switch/nvidia_imex (a channel for each job); DCGM 4 DcgmImexManager.cpp (UP, DEGRADED, DOWN, and the messages
    of a missing configuration); NVIDIA's IMEX domain test for AWS (2026-09: the JSON of live domains, exit status 255).
    """
    profile = instance_profile(node.instance_type)
    if profile is None or profile.nvlink != "nvl72":
        return not_applicable("this instance type is not part of an UltraServer, or is not in healthd's table")
    try:
        answer = node.command(*_ASK, timeout_s=10.0)
    except SourceMissing as error:
        return _without_imex(settings, f"{error}; install nvidia-imex")
    if answer.code < 0:
        raise SourceUnreadable(f"{' '.join(_ASK)} was killed by signal {-answer.code}")
    if answer.code:
        return _without_imex(settings, _failure(answer))
    domain = _domain(answer)
    nodes, status = domain["nodes"], str(domain["status"]).upper()
    gpus = len(nodes) * profile.gpus
    channel = _without_channel(node)
    findings = [*_not_up(nodes, status), *_incomplete(gpus, len(nodes), settings.domain_gpus), *channel.findings]
    return judged(
        findings, [Reading(component=NODE, name="imex_domain_gpu_count", value=gpus)], undecided=channel.undecided
    )


def _without_imex(settings: GpuImexSettings, why: str) -> Result:
    if settings.domain_gpus is None:
        return not_applicable(f"no IMEX domain is set up on this node: {why}")
    message = f"cannot ask the IMEX domain, in which {settings.domain_gpus} GPUs are expected: {why}"
    return unknown(message, "see why IMEX does not answer: `systemctl status nvidia-imex`")


def _failure(answer: CommandResult) -> str:
    output = (answer.stderr.strip() or answer.stdout.strip())[:200] or "no output"
    return f"{' '.join(_ASK)}: exit status {answer.code}: {output}; is nvidia-imex running and configured?"


def _domain(answer: CommandResult) -> Mapping[str, Any]:
    """The domain with its nodes. Raises SourceUnreadable for anything else."""
    domain = json_object(answer.stdout, " ".join(_ASK))
    nodes = domain.get("nodes")
    parts = (domain, *nodes.values()) if isinstance(nodes, dict) else ()
    if not parts or not all(isinstance(each, dict) and isinstance(each.get("status"), str) for each in parts):
        raise SourceUnreadable(f"{' '.join(_ASK)}: expected nodes, each with a status, got {answer.stdout[:200]!r}")
    return domain


def _not_up(nodes: Mapping[str, Mapping[str, Any]], status: str) -> Iterator[Finding]:
    if status == _UP:
        return
    missing = sorted(str(each.get("host", number)) for number, each in nodes.items() if each["status"] != _READY)
    named = ", ".join(missing[:_NAMED]) + (" …" if len(missing) > _NAMED else "")
    message = f"IMEX domain {status}: {len(nodes) - len(missing)} of {len(nodes)} nodes are ready"
    yield NOT_UP.at(NODE, f"{message}; not ready: {named}" if named else message, status=status, not_ready=missing)


def _without_channel(node: Node) -> Result:
    """A finding if a job uses the GPUs of this node and no channel exists; unknown where NVML does not list jobs."""
    if _has_channel(node):
        return ok()
    gpus = ask_gpus(node, _PROCESSES)
    if isinstance(gpus, Result):
        return judged([], undecided=[gpus.reason] if gpus.status is Status.UNKNOWN else [])
    jobs = sum(bool(gpu.values.get(_PROCESSES)) for gpu in gpus)
    message = f"a job uses {jobs} GPUs, but /dev/{_CHANNELS} has no channel: nvidia-modprobe or the scheduler makes one"
    return judged([NO_CHANNEL.at(NODE, message, gpus_in_use=jobs)] if jobs else [])


def _has_channel(node: Node) -> bool:
    try:
        return any(name.startswith("channel") for name in node.dev.names(_CHANNELS))
    except SourceMissing:
        return False


def _incomplete(gpus: int, nodes: int, expected: int | None) -> Iterator[Finding]:
    if expected is not None and gpus < expected:
        message = f"{gpus} of {expected} GPUs are in the IMEX domain ({nodes} nodes)"
        yield INCOMPLETE.at(NODE, message, found=gpus, limit=expected, limit_source="settings.domain_gpus")
