"""The check ``gpu.inforom``: the GPU's configuration memory, read from its flash and verified."""

from __future__ import annotations

from healthd.checklib.gpus import ask_gpus, undecided_of
from healthd.checklib.nvml_codes import NvmlReturn
from healthd.core.check import FindingCode, check, judged
from healthd.core.model import Remedy, Result, Severity
from healthd.core.node import Node

_CALL = "nvmlDeviceValidateInforom"

CORRUPTED = FindingCode(
    code="gpu.inforom.corrupted",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The GPU's configuration memory (InfoROM) is corrupted",
)


@check("gpu.inforom", interval_s=3600, codes=(CORRUPTED,))
def gpu_inforom(node: Node, _settings: object) -> Result:
    """The InfoROM of every GPU has the right checksums.

    The InfoROM holds the GPU's configuration and its record of errors, such as rows that were remapped. NVML reads all
    of it from the flash for this one question, which took 68 ms for one H200: half a second for eight, while no other
    question to NVML is answered. So it is asked once an hour. A GPU without an InfoROM has nothing to verify.

    Sources: nvml.h (nvmlDeviceValidateInforom; return code 14); gpud 4a8de33a (InfoROM);
    docs/reference/on-gpus.md (what it costs).
    """
    gpus = ask_gpus(node, _CALL)
    if isinstance(gpus, Result):
        return gpus
    corrupted = [gpu for gpu in gpus if NvmlReturn.CORRUPTED_INFOROM in gpu.codes]
    findings = [
        CORRUPTED.at(gpu.gpu, "NVML answers CORRUPTED_INFOROM (14)", nvml_return=NvmlReturn.CORRUPTED_INFOROM.value)
        for gpu in corrupted
    ]
    return judged(findings, undecided=undecided_of(gpu for gpu in gpus if gpu not in corrupted))
