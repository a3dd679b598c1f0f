"""The check ``storage.nvme``: the local NVMe disks of the instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from healthd.checklib.host_text import json_object
from healthd.checklib.tables import instance_profile
from healthd.core.check import FindingCode, Limit, check, judged, not_applicable, nothing_expected
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import NODE, ClearsBy, Component, Finding, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import Node

_CLASS = "class/nvme"
# EC2 user guide, "Identify instance store volumes"; EBS has another.
_INSTANCE_STORE = "Amazon EC2 NVMe Instance Storage"
_WARNING, _ASK, _WATCH = Severity.WARNING, Remedy.ASK_HUMAN, Remedy.WATCH

MISSING = FindingCode(
    code="storage.nvme.missing", severity=_WARNING, remedy=_ASK, meaning="A local disk of the instance type is missing"
)
NOT_LIVE = FindingCode(
    code="storage.nvme.not_live", severity=_WARNING, remedy=_ASK, meaning="A disk's controller is dead", lasting_s=60.0
)
SMART = FindingCode(
    code="storage.nvme.smart", severity=_WARNING, remedy=_ASK, meaning="A disk's SMART log warns of its failure"
)
MEDIA = FindingCode(
    code="storage.nvme.media",
    severity=_WARNING,
    remedy=_WATCH,
    meaning="A disk had media errors",
    clears_by=ClearsBy.NOTHING,
)

# NVM Express Base Specification 1.4, figure 196: bits of Critical Warning.
_BITS = {0: "spare below threshold", 1: "temperature", 2: "reliability degraded", 3: "read-only", 4: "backup failed"}
_EVERY = "an unrecovered media error is data that a job lost: none is acceptable"


class StorageNvmeSettings(Struct, frozen=True, kw_only=True):
    """The number of disks that ``storage.nvme`` expects, and whether it reads SMART logs."""

    count: Annotated[int, Meta(ge=-1, description="a whole number of at least 0, or -1")] = -1
    """How many instance-store disks the node must have. -1: the number of the instance type."""

    smart: bool = True
    """Whether the check reads the SMART log of each local disk, with nvme-cli; without nvme-cli it skips the log.
    Switch it off where the disks have no such log: otherwise those are unknown."""


@check(
    "storage.nvme",
    interval_s=600,
    timeout_s=60,
    settings=StorageNvmeSettings,
    codes=(MISSING, NOT_LIVE, SMART, MEDIA),
    limits=(Limit(reading="nvme_media_errors_total", max_increase=0, code=MEDIA, source=_EVERY),),
)
def storage_nvme(node: Node, settings: StorageNvmeSettings) -> Result:
    """All local disks are present, their controllers live, and no SMART log warns of a failure.

    The check compares the number of disks with the instance type's; a type that the table does not know is not judged.
    A disk that is gone or dead is a warning: jobs that need it fail by themselves, and others may run. ``kernel.rules``
    reads resets and I/O errors in the log, at once; a SMART log changes slowly (smartd reads it every 30 minutes).
    Without nvme-cli the SMART log is not reported, and the rest is: a missing tool is no fault of a disk. Unproven on
    hardware: whether Nitro's disks fill in all of their SMART log.

    Sources: Linux, Documentation/ABI/testing/sysfs-nvme and drivers/nvme/host/sysfs.c (state); nvme-smart-log(1);
    smartd(8), --interval; EC2 DescribeInstanceTypes (number of disks); EC2 user guide, "Identify instance store
    volumes".
    """
    disks = tuple(_disks(node))
    local = tuple(name for name, model in disks if model == _INSTANCE_STORE)
    profile = instance_profile(node.instance_type)
    expected = settings.count if settings.count >= 0 else profile.nvme_count if profile else 0
    if not disks and not expected:
        reason = "no NVMe controller, and none is expected"
        return nothing_expected(reason) if settings.count == 0 else not_applicable(reason)
    findings, undecided, readings, without = [], list[str](), list[Reading](), ""
    if len(local) < expected:
        message = f"{len(local)} of {expected} instance-store disks are present"
        findings.append(MISSING.at(NODE, message, found=local, expected=expected, instance_type=node.instance_type))
    for name, _ in disks:
        findings.extend(_state(name, node.sys.read(f"{_CLASS}/{name}/state")))
    for name in local if settings.smart else ():
        try:
            log = _smart_log(node, name)
            findings.extend(_warnings(name, log))
            readings.extend(_readings(name, log, node.sys.read(f"{_CLASS}/{name}/serial")))
        except SourceMissing as error:  # no nvme-cli; or the disk went meanwhile, and the next run counts one fewer
            without = f"SMART logs are not read: {error}; install nvme-cli"
        except SourceError as error:
            undecided.append(f"SMART log of {name}: {error}; set smart = false if the disk has none")
    not_reported = [(_disk(name), SMART.code) for name in local] if without else []
    return judged(findings, readings, undecided=undecided, not_reported=not_reported, left_out=without)


def _disks(node: Node) -> Iterator[tuple[str, str]]:
    """Each controller and its model. Raises SourceError where /sys is not visible."""
    if not node.sys.exists(_CLASS):
        node.sys.names("class")
        return
    for name in node.sys.names(_CLASS):
        try:
            yield name, node.sys.read(f"{_CLASS}/{name}/model")
        except SourceMissing:
            continue  # it was removed between the listing and the reading


def _state(name: str, state: str) -> Iterator[Finding]:
    if state != "live":
        yield NOT_LIVE.at(_disk(name), f"the controller of {name} is {state!r}; expected 'live'", state=state)


def _smart_log(node: Node, name: str) -> Mapping[str, int]:
    answer = node.command("nvme", "smart-log", "-o", "json", f"/dev/{name}")
    if answer.code != 0:
        raise SourceUnreadable(f"nvme smart-log: exit {answer.code}: {answer.stderr.strip()[:200]}; expected exit 0")
    log = json_object(answer.stdout, "nvme smart-log")
    return {key: _number(log, key) for key in ("critical_warning", "media_errors")}


def _number(log: Mapping[str, Any], key: str) -> int:
    """nvme-cli 2 writes critical_warning as an object with a value, and numbers past 2^53 as text."""
    value = log.get(key)
    value = value.get("value") if isinstance(value, Mapping) else value
    if not str(value).isdecimal():
        raise SourceUnreadable(f"{key} is {value!r}; expected a whole number")
    return int(str(value))


def _warnings(name: str, log: Mapping[str, int]) -> Iterator[Finding]:
    if bits := log["critical_warning"]:
        warnings = ", ".join(warning for bit, warning in _BITS.items() if bits >> bit & 1) or "unknown bits"
        yield SMART.at(_disk(name), f"SMART critical warning of {name}: {warnings}", critical_warning=bits)


def _readings(name: str, log: Mapping[str, int], serial: str) -> Iterator[Reading]:
    kind, value = ReadingKind.COUNTER, log["media_errors"]
    yield Reading(component=_disk(name), name="nvme_media_errors_total", value=value, kind=kind, epoch=serial)


def _disk(name: str) -> Component:
    return Component(kind="nvme", id=name)
