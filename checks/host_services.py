"""The check ``host.services``: the systemd units that a GPU node needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from healthd.checklib.host_text import units
from healthd.checklib.tables import instance_profile
from healthd.core.check import FindingCode, Rate, check, judged, not_applicable, nothing_expected
from healthd.core.errors import SourceUnreadable
from healthd.core.model import Component, Finding, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Word

_PROPERTIES = "--property=Id,LoadState,ActiveState,SubState,Result,UnitFileState,NRestarts"
# By unit the kinds of NVLink for which it has something to do: IMEX joins the nodes of an UltraServer.
_FABRIC = {"nvidia-fabricmanager.service": ("nvswitch", "nvl72"), "nvidia-imex.service": ("nvl72",)}
_WARNING, _ASK, _WATCH = Severity.WARNING, Remedy.ASK_HUMAN, Remedy.WATCH
# Faults that a stopped service causes in other checks: there is the fault, and here its reason.
_SEEN_AS: Mapping[str, tuple[str, ...]] = {
    "nvidia-fabricmanager.service": ("gpu.fabric.not_ready", "gpu.fabric.no_partition", "gpu.fabric.failed"),
    "nvidia-imex.service": ("gpu.fabric.no_imex", "gpu.imex.not_up"),
    **dict.fromkeys(("chronyd.service", "chrony.service"), ("host.clock.unsynchronised",)),
}

FAILED = FindingCode(
    code="host.service.failed", severity=_WARNING, remedy=_ASK, meaning="A systemd service of this node has failed"
)
MISSING = FindingCode(
    code="host.service.missing",
    severity=_WARNING,
    remedy=_ASK,
    meaning="A required service does not run",
    lasting_s=120.0,
)
_IDLE = "An enabled service does not run"
STOPPED = FindingCode(code="host.service.stopped", severity=_WARNING, remedy=_WATCH, meaning=_IDLE, lasting_s=300.0)
RESTARTING = FindingCode(
    code="host.service.restarting", severity=_WARNING, remedy=_WATCH, meaning="A service restarts again and again"
)

_FEW = "healthd's choice: an update restarts a service once or twice, one that crashes is restarted many times"


class HostServicesSettings(Struct, frozen=True, kw_only=True):
    """The systemd units that ``host.services`` reads."""

    units: tuple[Word, ...] = (
        "nvidia-persistenced.service",
        "nvidia-fabricmanager.service",
        "nvidia-imex.service",
        "slurmd.service",
        "munge.service",
        "kubelet.service",
        "containerd.service",
        "chronyd.service",
        "chrony.service",
    )
    """The units to read where they are installed. One that is not installed, or that the image disables, is no
    finding."""

    required: tuple[Word, ...] = ()
    """Units that must run here, such as ``["slurmd.service"]``. One that does not is a finding, whatever the reason."""


@check(
    "host.services",
    interval_s=60,
    settings=HostServicesSettings,
    codes=(FAILED, MISSING, STOPPED, RESTARTING),
    limits=(Rate(reading="service_restarts_total", max_increase=3, window_s=3600.0, code=RESTARTING, source=_FEW),),
)
def host_services(node: Node, settings: HostServicesSettings) -> Result:
    """The services that a GPU node needs are running.

    The check asks systemd itself, with a deadline. A unit that failed, one that should run and does not, and one that
    restarts again and again are three findings. None is critical: the checks of the GPUs, the scheduler and the clock
    report what suffers from it. The Fabric Manager is skipped on types without NVSwitch, where it ends with an error by
    design, and IMEX on all but UltraServers. On a machine without systemd the check does not apply; with systemd, and
    without an answer, it is unknown.

    Sources: systemctl(1) ``show``; systemd.service(5) ``Result``, ``NRestarts``; EKS node monitoring agent
    (KubeletFailed, FabricManagerNotRunning, RepeatedRestart); NVIDIA Fabric Manager user guide (ends without NVSwitch).
    """
    if (first := node.proc.read("1/comm")) != "systemd":
        return not_applicable(f"process 1 is {first!r}, not systemd")
    names = tuple(dict.fromkeys((*_wanted(node, settings), *settings.required)))
    if not names:
        return nothing_expected("no unit is configured")
    answer = node.command("systemctl", "show", _PROPERTIES, "--", *names)
    if answer.code != 0:
        raise SourceUnreadable(f"systemctl show: exit {answer.code}: {answer.stderr.strip()[:200]}; expected exit 0")
    blocks = units(answer.stdout)
    if len(blocks) < len(names):
        raise SourceUnreadable(f"systemctl show answered for {len(blocks)} units; expected {len(names)}")
    required = {unit["Id"] for name, unit in zip(names, blocks, strict=False) if name in settings.required}
    found = {unit["Id"]: unit for unit in blocks}  # chrony.service and chronyd.service may be two names of one unit
    findings = [
        replace(finding, symptom_of=_SEEN_AS.get(name, ()))
        for name, unit in found.items()
        for finding in _judge(name, unit, name in required)
    ]
    boot_id = node.boot_id
    readings = [reading for name, unit in found.items() for reading in _readings(name, unit, boot_id)]
    return judged(findings, readings)


def _wanted(node: Node, settings: HostServicesSettings) -> tuple[str, ...]:
    profile = instance_profile(node.instance_type)
    return tuple(
        name for name in settings.units if profile is None or profile.nvlink in _FABRIC.get(name, (profile.nvlink,))
    )


def _judge(name: str, unit: Mapping[str, str], required: bool) -> Iterator[Finding]:
    state, load, result = unit["ActiveState"], unit["LoadState"], unit.get("Result", "")
    where = Component(kind="service", id=name)
    if state == "failed":
        yield FAILED.at(where, f"{name} has failed ({result}); see journalctl -u {name}", result=result)
    elif required and state != "active":
        yield MISSING.at(where, f"{name} is required, but is {state} ({load})", load=load, state=state)
    elif load == "loaded" and state == "inactive" and unit.get("UnitFileState") == "enabled":
        yield STOPPED.at(where, f"{name} is enabled but does not run", state=state, sub_state=unit.get("SubState", ""))


def _readings(name: str, unit: Mapping[str, str], boot_id: str) -> Iterator[Reading]:
    where = Component(kind="service", id=name)
    if unit["LoadState"] == "loaded":
        yield Reading(component=where, name="service_active_bool", value=unit["ActiveState"] == "active")
        if (restarts := unit.get("NRestarts", "")).isdecimal():
            total = float(restarts)
            kind = ReadingKind.COUNTER
            yield Reading(component=where, name="service_restarts_total", value=total, kind=kind, epoch=boot_id)
