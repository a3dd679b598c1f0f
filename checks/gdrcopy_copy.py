"""The check ``gdrcopy.copy``: the CPU writes into the memory of each GPU through GDRCopy, and reads it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from healthd.checklib.pci import pci_gpus
from healthd.core.check import FindingCode, check, judged, not_applicable
from healthd.core.errors import SourceTimeout
from healthd.core.model import NODE, Component, Finding, Reading, Remedy, Result, Severity, gpu_component
from healthd.core.node import GdrCopy, Node
from healthd.core.setting_types import AtLeastOne, Seconds

_DRIVER = Component(kind="driver", id="gdrdrv")
_W, _HUMAN = Severity.WARNING, Remedy.ASK_HUMAN
REFUSED = FindingCode(
    code="gdrcopy.refused",
    severity=_W,
    remedy=_HUMAN,
    meaning="GDRCopy cannot pin, map or copy the memory of a GPU",
    symptom_of=("gdrcopy.no_device", "gdrcopy.mismatch"),
)
WRONG = FindingCode(
    code="gdrcopy.wrong", severity=_W, remedy=_HUMAN, meaning="GDRCopy reads back other bytes than it wrote"
)
HUNG = FindingCode(
    code="gdrcopy.hung", severity=_W, remedy=_HUMAN, meaning="A copy with GDRCopy did not end, twice in a row"
)


class GdrcopyCopySettings(Struct, frozen=True, kw_only=True):
    """How much ``gdrcopy.copy`` copies, and for how long."""

    size_bytes: AtLeastOne = 1 << 18
    """Size of the buffer on each GPU: four pages of 64 KiB. Reading it back takes milliseconds."""

    run_timeout_s: Seconds = 60.0
    """How long all GPUs together may take. There are two runs at most."""


@check(
    "gdrcopy.copy",
    interval_s=3600,
    timeout_s=150,
    settings=GdrcopyCopySettings,
    codes=(REFUSED, WRONG, HUNG),
    on="active",
)
def gdrcopy_copy(node: Node, settings: GdrcopyCopySettings) -> Result:
    """On every GPU, the CPU writes through GDRCopy and reads back the same bytes.

    Without libgdrapi, gdrcopy_sanity runs instead, under either of its names. A failed copy is tried once more; wrong
    bytes are a finding even if the second run is right. One time-out is *unknown*, two are a finding. gpu.gdrcopy
    judges whether the driver must be loaded. Without GDRCopy NCCL still works, slower: all findings are warnings,
    unproven on hardware.

    Sources: gdrcopy include/gdrapi.h (the calls), tests (gdrcopy_sanity, formerly sanity); awslabs cluster health
    checks (a failure is a warning).
    """
    if not pci_gpus(node):
        return not_applicable("no NVIDIA GPU on the PCI bus")
    if not node.sys.exists("module/gdrdrv"):
        return not_applicable("gdrdrv is not loaded; gpu.gdrcopy judges whether it must be")
    first = _copies(node, settings)
    if isinstance(first, tuple) and all(_is_good(copy) for copy in first):
        return _judged(first, first)
    second = _copies(node, settings)
    if isinstance(first, SourceTimeout) and isinstance(second, SourceTimeout):
        return judged([HUNG.at(_DRIVER, f"two runs timed out: {second}", limit_s=settings.run_timeout_s)])
    if isinstance(second, SourceTimeout):
        wrong = [_wrong(copy) for copy in first if copy.wrong_bytes] if isinstance(first, tuple) else []
        return judged(wrong, undecided=[str(second)])
    return _judged(first if isinstance(first, tuple) else second, second)


def _copies(node: Node, settings: GdrcopyCopySettings) -> tuple[GdrCopy, ...] | SourceTimeout:
    try:
        return node.active.gdr_copies(size_bytes=settings.size_bytes, timeout_s=settings.run_timeout_s)
    except SourceTimeout as error:
        return error


def _is_good(copy: GdrCopy) -> bool:
    return not copy.wrong_bytes and not copy.refused


def _judged(first: Sequence[GdrCopy], second: Sequence[GdrCopy]) -> Result:
    """Wrong bytes of either run, refusals of the second. Without a tested GPU the result is unknown."""
    wrong = {copy.index: _wrong(copy) for copy in (*first, *second) if copy.wrong_bytes}
    refused = [
        REFUSED.at(_gpu(copy), copy.refused, size_bytes=copy.size_bytes)
        for copy in second
        if copy.refused and copy.index not in wrong
    ]
    undecided = () if second else ("no GPU was tested: CUDA lists none",)
    return judged([*wrong.values(), *refused], _readings(second), undecided=undecided)


def _wrong(copy: GdrCopy) -> Finding:
    message = f"{copy.wrong_bytes} of {copy.size_bytes} bytes came back wrong"
    return WRONG.at(_gpu(copy), message, value=copy.wrong_bytes, limit=0, size_bytes=copy.size_bytes)


def _gpu(copy: GdrCopy) -> Component:
    return gpu_component(pci=copy.pci or None, index=copy.index)


def _readings(copies: Sequence[GdrCopy]) -> Iterator[Reading]:
    tested = sum(_is_good(copy) for copy in copies)
    yield Reading(component=NODE, name="gdrcopy_good_gpus_count", value=tested)
