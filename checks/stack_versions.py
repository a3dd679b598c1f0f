"""The check ``stack.versions``: whether the parts of the GPU software stack fit each other and a site's pins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from healthd.checklib.gpu_driver import told_by_gpu_driver
from healthd.checklib.versions import DRIVER_LIBRARY, Stack, matches, minimums, older, parts, read_stack
from healthd.core.check import FindingCode, check, judged, not_applicable, ok
from healthd.core.errors import SourceError
from healthd.core.model import Component, Finding, Remedy, Result, Severity
from healthd.core.node import Node
from healthd.core.setting_types import AbsolutePath, Word

_EFAS_OWN = frozenset({"efa_installer", "aws_ofi_nccl"})  # efa.provider judges these

MISMATCH = FindingCode(
    code="stack.mismatch",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="A kernel module and its library have different versions",
)
BELOW_MINIMUM = FindingCode(
    code="stack.below_minimum",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="A part of the stack is older than this instance family needs",
)
OFF_PIN = FindingCode(
    code="stack.off_pin",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="A part of the stack does not have the version that the site pinned",
)
ABSENT = FindingCode(
    code="stack.absent",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="A part of the stack that the site pinned is not installed",
)


class StackVersionsSettings(Struct, frozen=True, kw_only=True):
    """The site's pins, and where ``stack.versions`` finds Python packages."""

    pin: Mapping[Word, Word] = field(default_factory=dict)
    """Part to version, as in ``{driver = "580.95.05", efa = "3.1", nccl = "2.27"}``; a shorter version pins its whole
    line. Parts: driver, driver_library, efa, efa_installer, libfabric, aws_ofi_nccl, nccl, cuda, gdrcopy, nvidia_fs,
    lustre, container_toolkit, ucx, kernel, torch_nccl (PyTorch's own NCCL), nixl. Empty: nothing is pinned, since
    versions are a site's choice."""

    python_homes: tuple[AbsolutePath, ...] = ("/opt/pytorch", "/opt/conda", "/opt/conda/envs/pytorch", "/usr/local")
    """The Python installations whose ``lib/python3*/site-packages`` may have torch_nccl and nixl; the first that has
    one counts. healthd starts no Python. The AWS Deep Learning AMIs have PyTorch in these folders. Empty: the check
    skips Python."""

    def __post_init__(self) -> None:
        """Refuse a pin of no part: it would be reported as not installed, on every node."""
        for part in sorted(self.pin.keys() - parts()):
            raise ValueError(f"pin: no part is named {part!r}; expected one of: {', '.join(parts())}")


_CODES = (MISMATCH, BELOW_MINIMUM, OFF_PIN, ABSENT)


@check("stack.versions", interval_s=600, timeout_s=60, settings=StackVersionsSettings, codes=_CODES)
def stack_versions(node: Node, settings: StackVersionsSettings) -> Result:
    """The parts of the software stack fit each other, the instance family, and the site's pins.

    The result lists the installed versions. A missing part is no fault unless it is pinned: jobs bring most of the
    stack in containers. If a file or command that should report a version fails, the outcome is unknown. Nothing here
    drains a node.

    Sources: the rows of stack.csv and minimum_versions.csv; nvml.h (the library answers its own driver version).
    """
    node.sys.names("module")  # without the host's /sys nothing below would mean anything
    stack = _with_library(node, read_stack(node, python_homes=settings.python_homes), settings.pin)
    if not stack.versions and not settings.pin and not stack.undecided:
        return not_applicable("no part of the stack is installed here")
    findings = [*_mismatched(stack), *_too_old(stack, node.instance_type), *_unpinned(stack, settings.pin)]
    if findings or stack.undecided:
        return judged(findings, undecided=stack.undecided)
    return ok(reason=", ".join(f"{part} {version}" for part, version in stack.versions.items()))


def _with_library(node: Node, stack: Stack, pins: Mapping[str, str]) -> Stack:
    """The stack with the version of NVML, asked only where a driver is loaded. One that is pinned and not asked is a
    gap: it may well be installed."""
    why, is_gap = "NVML is not asked without a loaded driver", DRIVER_LIBRARY in pins
    if "driver" in stack.versions:
        try:
            version = str(node.nvml.system()["driver_version"])
            return Stack(versions={**stack.versions, DRIVER_LIBRARY: version}, undecided=stack.undecided)
        except SourceError as error:
            why, is_gap = str(error), is_gap or not told_by_gpu_driver(node, error)
    gap = f"{DRIVER_LIBRARY}: {why}"
    return Stack(versions=stack.versions, undecided=(*stack.undecided, gap)) if is_gap else stack


def _mismatched(stack: Stack) -> Iterator[Finding]:
    module, library = stack.versions.get("driver"), stack.versions.get(DRIVER_LIBRARY)
    if module and library and module != library:
        message = (
            f"kernel module nvidia {module}, library {library}: an upgrade is half done; reload the driver or reboot"
        )
        yield MISMATCH.at(Component(kind="driver", id="nvidia"), message, module=module, library=library)


def _too_old(stack: Stack, instance_type: str | None) -> Iterator[Finding]:
    rows = [row for row in minimums(instance_type) if row.part in stack.versions and row.part not in _EFAS_OWN]
    for row in rows:
        if older(version := stack.versions[row.part], row.minimum):
            message = f"{row.part} {version}; {instance_type} needs {row.minimum} or newer"
            where = Component(kind="software", id=row.part)
            yield BELOW_MINIMUM.at(where, message, version=version, limit=row.minimum, limit_source=row.source)


def _unpinned(stack: Stack, pins: Mapping[str, str]) -> Iterator[Finding]:
    for part, pin in pins.items():
        version = stack.versions.get(part)
        where = Component(kind="software", id=part)
        if version is None and not any(gap.startswith(f"{part}:") for gap in stack.undecided):
            yield ABSENT.at(
                where, f"{part} is not installed; the site pins {pin}", limit=pin, limit_source="settings.pin"
            )
        elif version is not None and not matches(version, pin):
            message = f"{part} {version}; the site pins {pin}"
            yield OFF_PIN.at(where, message, version=version, limit=pin, limit_source="settings.pin")
