"""The check ``gpu.nvswitch``: the NVSwitches that join the GPUs of one node are on its PCI bus."""

from __future__ import annotations

from collections.abc import Iterator

from healthd.checklib.pci import nvswitch_functions, require_pci
from healthd.checklib.tables import InstanceProfile, instance_profile
from healthd.core.check import FindingCode, Learned, check, judged, not_applicable
from healthd.core.model import NODE, Finding, Reading, Remedy, Result, Severity, pci_address
from healthd.core.node import Node

MISSING = FindingCode(
    code="gpu.nvswitch.missing",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="Fewer NVSwitches on the PCI bus than the instance type has, or than this instance had",
)
_LEARNED = Learned(
    reading="nvswitch_count",
    code=MISSING,
    source="the most NVSwitches ever seen on the PCI bus of this instance, as this instance type",
)


@check("gpu.nvswitch", codes=(MISSING,), limits=[_LEARNED])
def gpu_nvswitch(node: Node, _settings: object) -> Result:
    """All NVSwitches of the instance type are on the PCI bus.

    P4 and P5 show each switch as a bridge. The switches of P6 are no such devices, and those of an UltraServer are in
    other trays: those types are not judged. A guest that sees no switch is not judged either, unless it saw some
    before. Without a switch the Fabric Manager joins no GPU, or some with less bandwidth, which gpu.fabric reports; so
    this is a warning, unproven on hardware.

    Sources: instance_types.toml (nvswitches); PCI Code and ID Assignment Specification 1.11 (class 0680h); NVIDIA
    Fabric Manager user guide (six NVSwitches on an HGX A100 board, four on HGX H100 and H200).
    """
    profile = instance_profile(node.instance_type)
    if profile is None or not profile.nvswitches:
        return not_applicable("this instance type shows no NVSwitch on PCI, or is not in healthd's table")
    require_pci(node)
    there = tuple(map(pci_address, nvswitch_functions(node)))
    findings = [*_missing(there, profile)]
    counted = [] if findings else [Reading(component=NODE, name=_LEARNED.reading, value=len(there), epoch=profile.type)]
    return judged(findings, counted, left_out="" if there else "this machine shows no NVSwitch")


def _missing(there: tuple[str, ...], profile: InstanceProfile) -> Iterator[Finding]:
    if 0 < len(there) < profile.nvswitches:
        message = f"{len(there)} of {profile.nvswitches} NVSwitches are on the PCI bus"
        source = "instance_types.toml"
        yield MISSING.at(NODE, message, found=list(there), limit=profile.nvswitches, limit_source=source)
