"""A node on which one cause has many findings: 32 EFA devices, 8 GPUs, 15 checks that are unknown, or all of them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from healthd.core.check import judged, not_applicable, ok, unknown
from healthd.core.model import Component, Diagnosis, Outcome, Reading, Remedy, Severity, Verdict, gpu_component
from healthd.judge.devices import DeviceNames, device_names
from healthd.judge.diagnose import diagnose
from healthd.judge.history import Fault, History
from healthd.observe.report import CheckView, Report
from tests.support.judgement import at, fault, history

EFA, GPUS, UNKNOWN = "efa.counters.keep_alive", "gpu.xid.79", "gpu.ecc"
CASES = {"32 EFA devices": (EFA,), "8 GPUs": (GPUS,), "15 unknowns": (UNKNOWN,), "all": (EFA, GPUS, UNKNOWN)}
MINUTES = 180.0
_GPU_PARTS = tuple(
    gpu_component(uuid=f"GPU-51a1a7ed-0000-4000-8000-00000000000{n}", pci=f"0000:{n}6:00", index=n) for n in range(8)
)
_EFA_PARTS = tuple(Component(kind="efa", id=f"rdmap{79 + n}s0") for n in range(32))
_BLIND = (
    "gpu.ecc", "gpu.count", "gpu.health", "gpu.nvlink", "gpu.pcie", "gpu.power", "gpu.processes", "gpu.recovery",
    "gpu.remap", "gpu.sram", "gpu.temperature", "gpu.throttle", "gpu.fabric", "gpu.c2c", "gpu.imex",
)  # fmt: skip
NO_DRIVER = "NVML: nvmlInit answered DRIVER_NOT_LOADED (9)"


def silent_devices() -> list[Fault]:
    """No EFA device has had a keep-alive, each for another time."""
    return [
        fault(
            EFA,
            part,
            check="efa.counters",
            severity=Severity.WARNING,
            remedy=Remedy.ASK_HUMAN,
            message=f"No keep-alive from the network for {187 + n} s (limit 180 s)",
        )
        for n, part in enumerate(_EFA_PARTS)
    ]


def lost_gpus() -> list[Fault]:
    """Every GPU has fallen off the bus; the kernel names each by its address."""
    return [
        fault(
            GPUS,
            part,
            check="kernel.xid",
            remedy=Remedy.REBOOT_NODE,
            message=f"XID 79 on GPU {part.aliases[0]}: The GPU does not answer on PCIe: it has fallen off the bus",
        )
        for part in _GPU_PARTS
    ]


def faults_of(codes: Iterable[str]) -> list[Fault]:
    """The open faults of these codes."""
    return [*(silent_devices() if EFA in codes else []), *(lost_gpus() if GPUS in codes else [])]


def history_of(codes: Iterable[str]) -> History:
    """What judgement remembers of them, with the other names of each GPU."""
    names = {f"gpu:{alias}": part for part in _GPU_PARTS for alias in part.aliases}
    return replace(history(*faults_of(codes)), names=names)


def outcomes_of(codes: Iterable[str]) -> dict[str, Outcome]:
    """The last run of 40 checks, of which 8 are not applicable."""
    listed = judged([], [Reading(component=part, name="efa_rx_bytes", value=1) for part in _EFA_PARTS])
    plain = {f"host.{n}": ok() for n in range(15)} | {f"absent.{n}": not_applicable("not here") for n in range(8)}
    blind = {name: unknown(NO_DRIVER) if UNKNOWN in codes else ok() for name in _BLIND}
    results = {**blind, "efa.counters": listed, "kernel.xid": ok(), **plain}
    return {name: Outcome(check=name, result=result, at=at(170), duration_s=0.1) for name, result in results.items()}


def names_of(codes: Iterable[str]) -> DeviceNames:
    """The operator's names of its devices."""
    remembered = history_of(codes)
    return device_names(outcomes_of(codes), remembered.faults.values(), remembered.names)


def diagnoses_of(codes: Iterable[str]) -> tuple[Diagnosis, ...]:
    """One for each device."""
    return diagnose(history_of(codes))


def report_of(codes: Iterable[str]) -> Report:
    """The report of that node, three minutes after it began."""
    faults = faults_of(codes)
    verdict = Verdict.CRITICAL if GPUS in codes else Verdict.UNKNOWN if UNKNOWN in codes else Verdict.WARNING
    return Report(
        node="gpu-51",
        boot_id="b007b007-0000-4000-8000-000000000001",
        instance_type="p5.48xlarge",
        generated_at=at(MINUTES),
        source="daemon",
        verdict=verdict,
        checks=tuple(
            CheckView(outcome=each, age_s=10.0, faults=tuple(one for one in faults if one.check == each.check))
            for each in outcomes_of(codes).values()
        ),
        diagnoses=diagnoses_of(codes),
        names=names_of(codes),
    )
