"""The check ``gpu.gdrcopy``: GDRCopy, with which the CPU reads and writes GPU memory without the GPU's help."""

from __future__ import annotations

import re

from msgspec import Struct

from healthd.checklib.gpu_driver import has_no_driver
from healthd.checklib.pci import pci_gpus
from healthd.checklib.tables import instance_profile
from healthd.core.check import FindingCode, check, judged, not_applicable, nothing_expected
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.core.model import Component, Finding, Remedy, Result, Severity
from healthd.core.node import Node

_MODULE, _DEVICE = "module/gdrdrv", "gdrdrv"
_DRIVER = Component(kind="driver", id="gdrdrv")
_LIBRARY = re.compile(r"libgdrapi\.so\S* .*=> (\S+)")
_VERSION = re.compile(r"(\d+)\.(\d+)")

ABSENT = FindingCode(
    code="gdrcopy.absent",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The GDRCopy driver (gdrdrv) is not loaded: small messages are slow",
)
NO_DEVICE = FindingCode(
    code="gdrcopy.no_device",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The GDRCopy driver is loaded, but /dev/gdrdrv is missing: no program can use it",
)
MISMATCH = FindingCode(
    code="gdrcopy.mismatch",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The GDRCopy library does not work with the loaded driver",
)


class GpuGdrcopySettings(Struct, frozen=True, kw_only=True):
    """Whether ``gpu.gdrcopy`` is required."""

    required: bool | None = None
    """Whether this node must have GDRCopy. Default: on types that join their GPUs by NVSwitch (p4d, p5 and p6), where
    AWS uses it; p5.4xlarge and the g types do without."""


@check("gpu.gdrcopy", interval_s=300, settings=GpuGdrcopySettings, codes=(ABSENT, NO_DEVICE, MISMATCH))
def gpu_gdrcopy(node: Node, settings: GpuGdrcopySettings) -> Result:
    """GDRCopy is loaded, can be opened, and its library fits.

    Without it NCCL and libfabric still work, slower, so all findings are warnings. The library works only with a driver
    of its own major version; it may be missing here, since jobs bring theirs in containers. This check does not touch a
    GPU: only an active test on an idle GPU (gdrcopy.copy) proves that memory can be pinned and copied.

    Sources: gdrcopy gdrdrv.c (MODULE_VERSION, /dev/gdrdrv), gdrapi.c (gdr_open_safe: minimum driver version of the same
    major); AWS's cluster health checks (gdrdrv on p4d and p5, a miss is a warning).
    """
    profile = instance_profile(node.instance_type)
    usual = profile is not None and profile.nvlink in ("nvswitch", "nvl72")
    loaded = node.sys.exists(_MODULE)
    required = usual if settings.required is None else settings.required
    if not loaded and not required:
        is_certain = settings.required is not None or profile is not None
        return (nothing_expected if is_certain else not_applicable)("gdrdrv is not loaded, and none is required here")
    if not loaded and not pci_gpus(node):
        return not_applicable("no NVIDIA GPU on the PCI bus; see gpu.count")
    if not loaded and has_no_driver(node):
        return not_applicable("the NVIDIA driver has no GPU; see gpu.driver")
    if not loaded:
        return judged([ABSENT.at(_DRIVER, "module gdrdrv is not loaded; install package gdrdrv-dkms")])
    if not node.dev.exists(_DEVICE):
        return judged([NO_DEVICE.at(_DRIVER, "/dev/gdrdrv is missing; start gdrcopy.service, or add its udev rule")])
    return _compared(node)


def _compared(node: Node) -> Result:
    try:
        driver, library = node.sys.read(f"{_MODULE}/version"), _library(node)
    except SourceMissing as error:
        return judged([], undecided=[f"cannot compare the versions of GDRCopy: {error}"])
    findings: list[Finding] = []
    if library and _major(driver) != _major(library):
        message = f"driver gdrdrv {driver}, library libgdrapi {library}: the major versions must agree"
        findings.append(MISMATCH.at(_DRIVER, message, driver=driver, library=library))
    return judged(findings)


def _library(node: Node) -> str:
    """The version in the full name of the library that programs would load; "" where the host has none."""
    listing = node.command("/sbin/ldconfig", "-p")
    found = _LIBRARY.search(listing.stdout)
    if listing.code:
        raise SourceUnreadable(f"ldconfig -p: exit {listing.code}: {listing.stderr.strip()[:200]}")
    return "" if found is None else node.command("readlink", "-f", found[1]).stdout.strip().rpartition(".so.")[2]


def _major(version: str) -> str:
    number = _VERSION.match(version)
    if number is None:
        raise SourceUnreadable(f"GDRCopy version {version!r}: expected one like 2.5")
    return number[1]
