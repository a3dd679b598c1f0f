"""The check ``nvml.probe``: whether NVML, the GPU driver's library, answers at all."""

from __future__ import annotations

from msgspec import Struct

from healthd.checklib.gpus import ask_gpus
from healthd.core.check import FindingCode, check, judged, ok
from healthd.core.errors import SourceBusy, SourceTimeout
from healthd.core.model import Component, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import Seconds

DRIVER = Component(kind="driver", id="nvidia")

UNRESPONSIVE = FindingCode(
    code="nvml.unresponsive",
    severity=Severity.CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    meaning="NVML, the GPU driver's library, does not answer",
    symptom_of=("gpu.xid.119", "gpu.xid.120", "gpu.xid.79"),
)


class NvmlProbeSettings(Struct, frozen=True, kw_only=True):
    """For how long ``nvml.probe`` tolerates silence."""

    unresponsive_after_s: Seconds = 20.0
    """For how long NVML may leave requests unanswered, in seconds, before that is a fault. One time-out of the GPU's
    firmware delays a call by 6 s by default and ends by itself; three in a row mark the GPU as in need of a reset
    (NVIDIA driver 580), so no passing delay takes 20 s."""


@check("nvml.probe", interval_s=15, timeout_s=12, settings=NvmlProbeSettings, codes=(UNRESPONSIVE,))
def nvml_probe(node: Node, settings: NvmlProbeSettings) -> Result:
    """NVML, the GPU driver's library, answers.

    The check makes one light request. No answer before the deadline is unknown, and a fault only once NVML has been
    silent for long enough: NVML has one lock for all GPUs, so a call that hangs blocks all others, and those of the
    next job with them. While healthd itself keeps NVML paused (after XID 79, 119 or 120) silence means nothing. A
    worker of healthd's that crashes, or that is still initialising NVML and the GPUs (it may take a minute), is unknown
    and no silence. The gpu checks judge the answers of single GPUs.

    Sources: open-gpu-kernel-modules (GSP RPC time-out 6 s; reset required after three, from branch 580); DCGM 4.6
    DcgmCacheManager.cpp (stops all NVML calls after XID 119).
    """
    try:
        gpus = ask_gpus(node, "nvmlDeviceGetPersistenceMode")
    except (SourceTimeout, SourceBusy) as error:
        state = node.nvml.state()
        if state.paused_s > 0 or state.stalled_s < settings.unresponsive_after_s:
            raise
        message = f"NVML has not answered for {state.stalled_s:.0f} s"
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
