"""The check ``nvml.probe``: whether the GPU driver's library answers at all."""

from __future__ import annotations

from dataclasses import dataclass

from healthd.checklib.gpus import ask_gpus
from healthd.core.check import FindingCode, check, judged, ok
from healthd.core.errors import SourceBusy, SourceTimeout
from healthd.core.model import Component, Remedy, Result, Severity
from healthd.core.node import Node

DRIVER = Component(kind="driver", id="nvidia")

UNRESPONSIVE = FindingCode(
    code="nvml.unresponsive",
    severity=Severity.CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    meaning="The GPU driver's library does not answer",
    symptom_of=("gpu.xid.119", "gpu.xid.120", "gpu.xid.79"),
)


@dataclass(frozen=True, kw_only=True)
class NvmlProbeSettings:
    """When ``nvml.probe`` stops waiting."""

    unresponsive_after_s: float = 20.0
    """How long NVML may leave questions unanswered, in seconds, before that is a fault. One time-out of the GPU's
    firmware holds a call up for 6 s by default and ends by itself; three in a row mark the GPU as in need of a reset
    (NVIDIA driver 580), so 20 s is past what passes."""


@check("nvml.probe", interval_s=15, timeout_s=12, settings=NvmlProbeSettings, codes=(UNRESPONSIVE,))
def nvml_probe(node: Node, settings: NvmlProbeSettings) -> Result:
    """The GPU driver's library answers.

    Asks one light question. No answer before the deadline is unknown, and a fault only once nothing has been answered
    for long enough: NVML has one lock for all GPUs, so one that hangs silences every one, and the calls of the next job
    with them. While healthd itself keeps NVML paused (after XID 79, 119 or 120) silence means nothing, and a worker of
    healthd's that crashes, or that is still initialising NVML (half a minute is left for that), is unknown and no
    silence. What single GPUs answer is the business of the gpu checks.

    Sources: open-gpu-kernel-modules (GSP RPC time-out 6 s; reset required after three, from branch 580); DCGM 4.6
    DcgmCacheManager.cpp (stops all NVML calls after XID 119).
    """
    try:
        gpus = ask_gpus(node, "nvmlDeviceGetPersistenceMode")
    except (SourceTimeout, SourceBusy) as error:
        state = node.nvml.state()
        if state.paused_s > 0 or state.stalled_s < settings.unresponsive_after_s:
            raise
        message = f"NVML has answered nothing for {state.stalled_s:.0f} s"
        finding = UNRESPONSIVE.at(
            DRIVER,
            message,
            stalled_s=state.stalled_s,
            limit_s=settings.unresponsive_after_s,
            last_error=str(error),
            abandoned_workers=state.abandoned,
        )
        return judged([finding])
    return gpus if isinstance(gpus, Result) else ok()
