"""The check ``gpu.count``: whether all GPUs of the node are on the bus, in the driver and in /dev."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from healthd.checklib.gpus import Inventory, component_of, not_listed, take_inventory
from healthd.checklib.pci import has_pci, pci_driver
from healthd.core.check import FindingCode, Learned, check, judged, none_there
from healthd.core.model import NODE, Finding, Reading, Remedy, Result, Severity, gpu_component
from healthd.core.node import Node
from healthd.core.setting_types import Count

OFF_BUS = FindingCode(
    code="gpu.count.off_bus",
    severity=Severity.CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    meaning="Fewer GPUs on the PCI bus than this node must have",
    symptom_of=("gpu.xid.79",),
)
DRIVER_LOST = FindingCode(
    code="gpu.count.driver_lost",
    severity=Severity.CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    meaning="A GPU is on the PCI bus, but the driver does not list it",
    symptom_of=("gpu.xid.79",),
    lasting_s=60.0,
)
EXCLUDED = FindingCode(
    code="gpu.count.excluded",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The driver's settings exclude GPUs that are installed",
)
NO_DEVICE_FILE = FindingCode(
    code="gpu.count.no_device_file",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="Fewer /dev/nvidia<N> files than the driver lists GPUs",
)
UNEXPECTED = FindingCode(
    code="gpu.count.unexpected",
    severity=Severity.WARNING,
    remedy=Remedy.NONE,
    meaning="More GPUs than expected: healthd's table or its configuration is out of date",
)


class GpuCountSettings(Struct, frozen=True, kw_only=True):
    """The number of GPUs that ``gpu.count`` expects."""

    expected: Count | None = None
    """How many GPUs this node must have. Default: the most ever seen on this instance, and at least the number of its
    instance type. For a type that is not in healthd's table the first check run sets the number: a guess would drain
    good nodes. After a change on purpose, ``healthd relearn gpu.count --reason TEXT`` starts the count again."""


_LEARNED = Learned(
    reading="gpu_pci_count",
    code=OFF_BUS,
    source="the most GPUs ever seen on the PCI bus of this instance, as this instance type",
)
_CODES = (OFF_BUS, DRIVER_LOST, EXCLUDED, NO_DEVICE_FILE, UNEXPECTED)


@check("gpu.count", interval_s=30, settings=GpuCountSettings, codes=_CODES, limits=[_LEARNED])
def gpu_count(node: Node, settings: GpuCountSettings) -> Result:
    """All GPUs are there: on the PCI bus, in the driver, as device files.

    Off the PCI bus: the hardware or its link failed. On the bus and not in NVML, for a minute, since a loading driver
    lists GPUs one after the other: the driver gave up on it, or its settings exclude it. Only the file missing: the
    installation is at fault. More than expected is news about a table and never acts. MIG never changes the count. A
    GPU that NVML lists and cannot reach is ``gpu.lost`` of gpu.recovery. In a container, or under a device cgroup, NVML
    lists only the GPUs whose files the process may open: where the driver has the others, the outcome is partial.

    Sources: EKS node monitoring agent 1.7.0, dcgm_devices.go; NVIDIA Health Validation (a count mismatch is critical).
    """
    gpus = take_inventory(node, settings.expected)
    if isinstance(gpus, Result):
        return none_there(gpus.reason, _to_learn(node, settings, 0), settings.expected)
    listed = gpus.listed or ()
    there = max(len(gpus.pci), sum(answer.failure is None for answer in listed))
    hidden = _kept_away(node, gpus)
    findings = [*_against_expected(gpus, there), *_against_driver(gpus, is_hidden=bool(hidden))]
    if gpus.files is not None and gpus.files < len(listed):
        message = f"{gpus.files} /dev/nvidia<N> files for {len(listed)} GPUs; nvidia-modprobe creates them"
        findings.append(NO_DEVICE_FILE.at(NODE, message))
    readings = [Reading(component=component_of(answer), name="gpu_index", value=answer.index) for answer in listed]
    if there == len(gpus.pci) >= (gpus.expected or 0):  # else it is found already, or sysfs shows less than there is
        readings += _to_learn(node, settings, there)
    parts = [NODE, *(gpu_component(pci=address) for address in gpus.pci)] if gpus.trouble else []
    not_reported = [(part, code.code) for part in parts for code in (DRIVER_LOST, EXCLUDED, NO_DEVICE_FILE)]
    undecided = [*gpus.undecided, hidden] if hidden else gpus.undecided
    return judged(findings, readings, undecided=undecided, not_reported=not_reported, left_out=gpus.trouble)


def _to_learn(node: Node, settings: GpuCountSettings, there: int) -> Iterator[Reading]:
    """The count that history compares with the highest one, where nothing is configured and the bus is visible."""
    if settings.expected is None and has_pci(node):
        yield Reading(component=NODE, name=_LEARNED.reading, value=there, epoch=node.instance_type or "")


def _against_expected(gpus: Inventory, there: int) -> Iterator[Finding]:
    """A GPU that answers is there, whatever sysfs shows."""
    if gpus.expected is not None and there != gpus.expected:
        code, word = (OFF_BUS, "of") if there < gpus.expected else (UNEXPECTED, "instead of")
        message = f"{there} {word} {gpus.expected} GPUs are on the PCI bus"
        yield code.at(NODE, message, found=list(gpus.pci), expected=gpus.expected)


def _kept_away(node: Node, gpus: Inventory) -> str:
    """Why NVML lists fewer GPUs than the bus has, where a container or a device cgroup hides the others from this
    process: their driver has them, and NVML lists exactly those whose files may be opened. Else ""."""
    missing, unexplained = not_listed(gpus)
    if gpus.listed is None or unexplained <= gpus.excluded or gpus.openable != len(gpus.listed):
        return ""
    if any(pci_driver(node, f"{address}.0") != "nvidia" for address in missing):
        return ""
    return (
        f"this process sees {len(gpus.listed)} of {len(gpus.pci)} GPUs: it may not open the other /dev/nvidia<N>; "
        "run `healthd check`, which asks this node's daemon"
    )


def _against_driver(gpus: Inventory, *, is_hidden: bool) -> Iterator[Finding]:
    """GPUs on the bus that NVML does not list."""
    if gpus.listed is None:
        return
    missing, unexplained = not_listed(gpus)
    excluded = min(gpus.excluded, unexplained)
    if excluded:
        yield EXCLUDED.at(NODE, f"the driver's settings exclude {excluded} GPUs", missing=missing)
    lost = unexplained - excluded
    if lost > 0 and not is_hidden:
        message = f"NVML does not list {lost} of {len(gpus.pci)} GPUs on the PCI bus; no setting excludes them"
        for part in [gpu_component(pci=address) for address in missing] if lost == len(missing) else [NODE]:
            yield DRIVER_LOST.at(part, message, missing=missing, excluded=gpus.excluded)
