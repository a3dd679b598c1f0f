"""The check ``gpu.health``: GPUs that NVML cannot open, and GPUs that differ from their siblings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from healthd.checklib.gpus import GpuValues, ask_gpus
from healthd.checklib.nvml_codes import NvmlReturn
from healthd.core.check import FindingCode, check, judged
from healthd.core.model import NODE, Finding, Remedy, Result, Severity
from healthd.core.node import Node

_MODEL, _VBIOS = "nvmlDeviceGetName", "nvmlDeviceGetVbiosVersion"

_CAUSES = ("gpu.xid.79", "gpu.xid.119", "gpu.xid.120", "gpu.count.driver_lost")
FAILING = FindingCode(
    code="gpu.failing",
    severity=Severity.CRITICAL,
    remedy=Remedy.ASK_HUMAN,
    meaning="NVML answers Unknown Error for the handle of a GPU while others can be opened",
    lasting_s=300.0,
    symptom_of=_CAUSES,
)
REFUSED = FindingCode(
    code="gpu.refused",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="One GPU cannot be opened while others can",
    lasting_s=300.0,
    symptom_of=_CAUSES,
)
MIXED_MODELS = FindingCode(
    code="gpu.mixed.model",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The GPUs of one node are of different models",
)
MIXED_VBIOS = FindingCode(
    code="gpu.mixed.vbios",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="GPUs of one model in one node run different firmware (VBIOS)",
)


@check("gpu.health", interval_s=60, codes=(FAILING, REFUSED, MIXED_MODELS, MIXED_VBIOS))
def gpu_health(node: Node, _settings: object) -> Result:
    """NVML opens every GPU, and the GPUs of the node are alike.

    A GPU that NVML cannot open must stay so for five minutes, since a reset looks like that. If NVML as a whole
    refuses, the outcome is unknown. gpu.recovery reports a GPU that is lost or waits for a reset; this check reports
    one whose handle is refused for another reason while a sibling answers. Unknown Error (999) there keeps jobs off: no
    program can use that GPU. gpud calls for a reboot then; healthd asks the operator. NO_PERMISSION makes the outcome
    partial and is no fault of a GPU: a device cgroup may answer so. All else is a warning at most, and everything here
    is unproven on hardware.

    Sources: nvml.h (return codes 4, 999); gpud 4a8de33a (Unknown Error at the handle: reboot);
    NVIDIA Health Validation, Azure NHC (VBIOS must agree between the GPUs of a node).
    """
    gpus = ask_gpus(node, _MODEL, _VBIOS)
    if isinstance(gpus, Result):
        return gpus
    findings = {gpu.gpu: tuple(_of_one(gpu, gpus)) for gpu in gpus}
    undecided = [gap for gpu in gpus for gap in gpu.undecided if not findings[gpu.gpu]]
    return judged([*(each for some in findings.values() for each in some), *_odd_ones(gpus)], undecided=undecided)


def _of_one(gpu: GpuValues, all_gpus: Sequence[GpuValues]) -> Iterator[Finding]:
    if (
        not gpu.values
        and gpu.codes
        and not gpu.unsupported
        and gpu.refused is None
        and NvmlReturn.NO_PERMISSION not in gpu.codes
    ):
        answering = sum(bool(other.values) for other in all_gpus)
        if answering:
            message = (
                f"NVML cannot open this GPU ({'; '.join(map(str, gpu.undecided))}), while {answering} others answer"
            )
            whole = len(gpu.undecided) == 1  # one refusal of its handle, not one for each question
            code = FAILING if whole and gpu.codes == {NvmlReturn.UNKNOWN} else REFUSED
            yield code.at(gpu.gpu, message, nvml_return=sorted(gpu.codes))


def _odd_ones(gpus: Sequence[GpuValues]) -> Iterator[Finding]:
    models: dict[str, list[GpuValues]] = {}
    for gpu in gpus:
        models.setdefault(str(gpu.values.get(_MODEL, "")), []).append(gpu)
    models.pop("", None)
    if len(models) > 1:
        counts = {model: len(of_model) for model, of_model in models.items()}
        yield MIXED_MODELS.at(NODE, f"the GPUs of this node are of different models: {counts}", models=counts)
    for model, of_model in models.items():
        versions = sorted({str(gpu.values[_VBIOS]) for gpu in of_model if _VBIOS in gpu.values})
        if len(versions) > 1:
            gpus_of = {v: [str(gpu.gpu) for gpu in of_model if gpu.values.get(_VBIOS) == v] for v in versions}
            message = f"{model}: GPUs of this node run different VBIOS: {', '.join(versions)}"
            yield MIXED_VBIOS.at(NODE, message, gpus=gpus_of)
