"""NVIDIA XID errors, read from the kernel log: the primary source of GPU faults, and the one that outlives the driver.

What a code means and calls for is a row of ``checks/data/xid.csv`` (and ``xid_cases.csv`` where the text decides); this
file must not know a code's meaning. A burst is one finding: what counts is distinct faults, never log lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from healthd import nvrm, tables
from healthd.check import FindingCode, NoSettings, check, judged
from healthd.model import (
    NODE,
    Clearance,
    ClearsBy,
    Component,
    Finding,
    Reading,
    Remedy,
    Result,
    Severity,
    gpu_component,
)
from healthd.node import KernelRecord, Node

FAMILY = FindingCode(
    code="gpu.xid.*",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The NVIDIA driver reported an error (XID); its number and its text decide what it calls for",
)
_PIDS = 16
_LINE_CHARS = 1024
_NOT_KERNEL = " (not from the kernel: trust_user_kmsg)"
_Key = tuple[object, ...]


def explain(code: str) -> str | None:
    """The table's words on ``gpu.xid.79``, ``xid 79`` or ``79``; None for what is no XID."""
    xid = tables.xid_number(code)
    if xid is None:
        return None
    row = tables.xid_row(xid)
    lines = [
        f"XID {xid} {row.mnemonic}".rstrip() + f": {row.meaning}.",
        f"{row.severity}; calls for: {row.remedy}; ends by: {row.clears_by}. {row.reason}",
    ]
    lines += [
        f"{case.case}: {case.meaning}. {case.severity}; calls for: {case.remedy}. {case.reason}"
        for (number, _), case in tables.xid_cases().items()
        if number == xid
    ]
    if row.pauses_nvml:
        lines.append("NVML calls may hang after it, so healthd pauses them.")
    return "\n".join([*lines, f"Source: {row.source}"])


@check("kernel.xid", on="kernel", needles=("NVRM:",), codes=(FAMILY,), explain=explain)
def kernel_xid(node: Node, _settings: NoSettings) -> Result:
    """NVIDIA driver errors (XID) in the kernel log.

    Accepts the lines of every driver branch, codes that no table knows, and bus drops that carry no number. Lines of
    one code on one GPU within a batch are one finding. A driver that says the recovery action is none again, or that is
    loaded anew, is evidence that earlier faults are over.
    """
    batch = _Batch()
    for record in node.kernel_records:
        batch.take(record)
    return judged(batch.findings(), batch.readings(), clearances=batch.clearances())


@dataclass(kw_only=True, slots=True)
class _Group:
    """Lines that are one fault. The first one stands for all."""

    line: nvrm.XidLine
    judgement: tables.XidRow | tables.XidCase
    first: KernelRecord
    last: KernelRecord
    count: int = 0
    pids: list[int] = field(default_factory=list)

    def add(self, record: KernelRecord, line: nvrm.XidLine) -> None:
        self.count += 1
        self.last = record
        if line.pid is not None and line.pid not in self.pids and len(self.pids) < _PIDS:
            self.pids.append(line.pid)


class _Batch:
    """The fold of one batch. Evidence that a fault is over starts a new fault: nothing folds across it."""

    def __init__(self) -> None:
        self._groups: dict[_Key, _Group] = {}
        self._uuids: dict[str, str] = {}
        self._over: list[tuple[ClearsBy, str | None, KernelRecord, str]] = []
        self._probed: nvrm.ProbeHead | None = None

    def take(self, record: KernelRecord) -> None:
        """Fold one record in."""
        said = nvrm.parse_line(record.text)
        match said:
            case nvrm.XidLine():
                self._take_xid(record, said)
            case nvrm.Identity():
                self._uuids[said.pci] = said.uuid
            case nvrm.DriverLoad():
                note = f"NVIDIA driver {said.version} was loaded{_label(record)}"
                self._over.append((ClearsBy.DRIVER_RELOAD, None, record, note))
        if said is not None and not (isinstance(said, nvrm.Other) and said.joins):
            self._probed = said if isinstance(said, nvrm.ProbeHead) else None

    def _take_xid(self, record: KernelRecord, line: nvrm.XidLine) -> None:
        pci = line.pci
        if pci is None and not line.numbered and self._probed is not None:
            pci = self._probed.pci
        case = nvrm.case_of(line)
        if case == "to:0" and pci is not None:
            note = f"the driver no longer recommends a recovery{_label(record)}"
            self._over.append((ClearsBy.GPU_RESET, pci, record, note))
        era = sum(where in (None, pci) for _, where, _, _ in self._over)
        key = (pci, line.xid, case, record.trusted, era)
        group = self._groups.get(key)
        if group is None:
            judgement = tables.xid_cases().get((line.xid, case or "")) or tables.xid_row(line.xid)
            group = self._groups[key] = _Group(line=line, judgement=judgement, first=record, last=record)
        group.add(record, line)

    def findings(self) -> Iterator[Finding]:
        """One finding per group, in the order of their first lines."""
        for (pci, *_), group in self._groups.items():
            yield _finding(group, self._component(pci), pci)

    def readings(self) -> Iterator[Reading]:
        """Passes learned identities on, so that later lines, which carry only the PCI address, find their GPU."""
        for pci in self._uuids:
            yield Reading(component=self._component(pci), name="kernel_log_identity_known", value=1.0)

    def clearances(self) -> Iterator[Clearance]:
        """What was seen to be over."""
        for by, pci, record, note in self._over:
            yield Clearance(by=by, component=self._component(pci), time=record.time, note=note)

    def _component(self, pci: object) -> Component:
        return gpu_component(uuid=self._uuids.get(pci), pci=pci) if isinstance(pci, str) else NODE


def _finding(group: _Group, component: Component, pci: object) -> Finding:
    line, judgement, record = group.line, group.judgement, group.first
    cause = nvrm.caused_by(line.text)
    times = f", {group.count} times" if group.count > 1 else ""
    where = f"GPU {pci}" if pci else "a GPU that the line does not name"
    return Finding(
        code=f"gpu.xid.{line.xid}",
        severity=judgement.severity,
        component=component,
        message=f"XID {line.xid} on {where}{times}: {judgement.meaning}{_label(record)}",
        remedy=judgement.remedy,
        evidence={name: value for name, value in _evidence(group, pci, cause) if value not in (None, "", [])},
        time=record.time,
        clears_by=judgement.clears_by,
        symptom_of=() if cause is None else (f"gpu.xid.{cause}",),
    )


def _evidence(group: _Group, pci: object, cause: int | None) -> Sequence[tuple[str, Any]]:
    line, record = group.line, group.first
    link = nvrm.nvlink5(line.text) if line.xid in nvrm.NVLINK5_XIDS else None
    return (
        ("line", record.text[:_LINE_CHARS]),
        ("xid", line.xid),
        ("form", "xid" if line.numbered else "number-less"),
        ("gpu", pci or "unknown"),
        ("pid", line.pid),
        ("pids", group.pids if len(group.pids) > 1 else None),
        ("process", line.process),
        ("gpu_instance", line.gpu_instance),
        ("compute_instance", line.compute_instance),
        ("caused_by_xid", cause),
        ("recovery_action", nvrm.recovery_action(line.text) if line.xid == nvrm.RECOVERY_ACTION_XID else None),
        ("nvlink_unit", link.unit if link else None),
        ("nvlink_link", link.link if link else None),
        ("nvlink_words", [f"0x{word:08x}" for word in link.words] if link else None),
        ("count", group.count),
        ("sequence", record.sequence),
        ("last_sequence", group.last.sequence),
        ("last_time", group.last.time.isoformat()),
        ("boot_id", record.boot_id),
        ("trusted", record.trusted),
        ("why", group.judgement.reason),
        ("source", group.judgement.source),
    )


def _label(record: KernelRecord) -> str:
    return "" if record.trusted else _NOT_KERNEL
