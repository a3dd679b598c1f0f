"""The check ``gpu.recovery``: what the driver itself says a GPU needs."""

from __future__ import annotations

from collections.abc import Iterator

from healthd.check import FindingCode, check, judged, not_applicable
from healthd.gpus import GPU_IS_LOST, NO_SUCH_QUESTION, RESET_REQUIRED, ask_gpus, failure_codes, named, sort_out
from healthd.model import Finding, Remedy, Result, Severity
from healthd.node import GpuAnswer, Node

_FIELD, _ANSWER = 230, "field:230"  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, driver 565 and newer


def _code(slug: str, severity: Severity, remedy: Remedy, meaning: str, *causes: int) -> FindingCode:
    """``causes``: XIDs that call for at least as much; one that calls for less must not hide what the driver asks for."""
    symptom_of = tuple(f"gpu.xid.{xid}" for xid in causes)
    return FindingCode(code=slug, severity=severity, remedy=remedy, meaning=meaning, symptom_of=symptom_of)


LOST = _code(
    "gpu.lost", Severity.CRITICAL, Remedy.REBOOT_NODE, "The driver lists the GPU and cannot reach it any more", 79
)
