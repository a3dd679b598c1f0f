"""The check ``gpu.recovery``: the recovery that the driver itself recommends for a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from healthd.checklib.gpus import MIG, GpuValues, ask_gpus, not_reported, withheld
from healthd.checklib.nvml_codes import NvmlReturn
from healthd.checklib.xids import xid_cases, xid_table
from healthd.core.check import FindingCode, check, judged
from healthd.core.model import REMEDY_RANK, SEVERITY_RANK, ClearsBy, Finding, Remedy, Result, Severity
from healthd.core.node import Node

_FIELD, _ACTION = 230, "field:230"  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_ANY_CALL = "nvmlDeviceGetPersistenceMode"  # for drivers without the field: shows whether the GPU answers at all


def _code(slug: str, severity: Severity, remedy: Remedy, meaning: str) -> FindingCode:
    """An XID explains a recovery action only if it is as severe and its remedy as far-reaching; one with less hides
    nothing."""
    rank = max(REMEDY_RANK[remedy], REMEDY_RANK[Remedy.RESET_GPU])
    causes = tuple(
        f"gpu.xid.{row.xid}"
        for row in xid_table().values()
        if REMEDY_RANK[row.remedy] >= rank and SEVERITY_RANK[row.severity] >= SEVERITY_RANK[severity]
    )
    return FindingCode(code=slug, severity=severity, remedy=remedy, meaning=meaning, symptom_of=causes)


def _action(number: int, slug: str) -> FindingCode:
    """The field has the same actions as XID 154 in the log: one table judges both."""
    remediation = xid_cases()[154, f"to:{number}"]
    return _code(slug, remediation.severity, remediation.remedy, remediation.meaning)


_CRITICAL = Severity.CRITICAL
LOST = _code("gpu.lost", _CRITICAL, Remedy.REBOOT_NODE, "The driver lists the GPU but can no longer reach it")
MUST_RESET = _code("gpu.reset_required", _CRITICAL, Remedy.RESET_GPU, "The GPU refuses work until it is reset")
_REFUSED = {NvmlReturn.GPU_IS_LOST.value: LOST, NvmlReturn.RESET_REQUIRED.value: MUST_RESET}
OWED = FindingCode(
    code="gpu.reset.owed",
    severity=_CRITICAL,
    remedy=Remedy.RESET_GPU,
    meaning="The Fabric Manager was stopped for a GPU reset that did not happen",
    clears_by=ClearsBy.GPU_RESET,
)
"""healthd's own reset reports it, and no check run: NVLink SHARP (NVLS) fails until the GPUs are reset."""
OTHER = _code("gpu.recovery.other", Severity.WARNING, Remedy.ASK_HUMAN, "A recovery action that healthd does not know")
ACTIONS = {
    1: _action(1, "gpu.recovery.reset"),
    2: _action(2, "gpu.recovery.reboot"),
    3: _action(3, "gpu.recovery.drain_p2p"),
    4: _action(4, "gpu.recovery.drain_and_reset"),
    5: _action(5, "gpu.recovery.imex"),
    6: _action(6, "gpu.recovery.bus_reset"),
    7: _action(7, "gpu.recovery.system_reboot"),
}


@check("gpu.recovery", interval_s=30, codes=(LOST, MUST_RESET, OWED, *ACTIONS.values(), OTHER))
def gpu_recovery(node: Node, _settings: object) -> Result:
    """The driver recommends no recovery for any GPU.

    From branch 565 on the driver names the recovery that a GPU needs, in a field that starts at 0, *none*. An older
    driver answers NOT_SUPPORTED, or INVALID_ARGUMENT, with the value 0: that is no answer, never *none*, and ends no
    action. Two return codes mean as much on any driver, and older drivers have only these: GPU_IS_LOST (it does not
    answer on PCIe; only a reboot helps) and RESET_REQUIRED, on whatever call of any check they came. While one of them
    is open, the other GPU checks are not unknown for that GPU. Any other refusal is unknown for that GPU alone. One
    lost GPU hides no other.

    Sources: nvml.h (return codes 15 and 16, field 230); open-gpu-kernel-modules 595.45.04 gpu.c (actions 0 to 5);
    pynvml 13.615.71 (6 and 7); DCGM issue 263 (DCGM can say Healthy while this field says Reset).
    """
    gpus = ask_gpus(node, _ANY_CALL, MIG, fields=[_FIELD])
    if isinstance(gpus, Result):
        return gpus
    findings = {gpu.gpu: tuple(_findings(gpu)) for gpu in gpus}
    found = [finding for each in findings.values() for finding in each]
    undecided = [gap for gpu in gpus for gap in gpu.undecided if not findings[gpu.gpu]]
    undecided += withheld([gpu for gpu in gpus if not findings[gpu.gpu]], (_ACTION,))
    left_out = "this driver does not report the recovery action (565 and newer do)"
    reported = any(_ACTION in gpu.values for gpu in gpus)
    not_told = not_reported(gpus, {_ACTION: (*ACTIONS.values(), OTHER)})
    return judged(found, undecided=undecided, not_reported=not_told, left_out="" if reported or undecided else left_out)


def _findings(gpu: GpuValues) -> Iterator[Finding]:
    """A GPU that is out of reach reports no action, and an earlier one would be stale."""
    if gpu.refused is not None:
        code, failure = _REFUSED[gpu.refused.failure.code], gpu.refused.failure
        message = f"NVML answers {failure.name} ({failure.code}) to {gpu.refused.call}"
        yield code.at(gpu.gpu, message, nvml_return=failure.code, call=gpu.refused.call)
    elif action := gpu.values.get(_ACTION, 0):
        code = ACTIONS.get(action, OTHER)
        yield code.at(gpu.gpu, f"{code.meaning} (recovery action {action})", recovery_action=action)
