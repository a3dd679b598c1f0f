"""NVIDIA XID errors, read from the kernel log: the primary source of GPU faults, and the one that outlives the driver.

The meaning and the remedy of a code are a row of ``checks/data/xid.csv`` (``xid_cases.csv`` where the text decides,
``nvlink5_rules.csv`` where registers do); this file must not know a code's meaning. A burst is one finding: distinct
faults count, never log lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.checklib import xids
from healthd.checklib.jobs import owner_of
from healthd.checklib.loglines import Burst, BurstFold, label
from healthd.core.check import CodeForm, FindingCode, check, judged
from healthd.core.model import (
    NODE,
    Clearance,
    ClearsBy,
    Component,
    Finding,
    Reading,
    Remedy,
    Repeats,
    Result,
    Severity,
    gpu_component,
)
from healthd.core.node import KernelRecord, Node
from healthd.core.setting_types import AtLeastOne, WindowSeconds

FAMILY = FindingCode(
    code="gpu.xid.*",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The NVIDIA driver reported an error (XID); its number and its text decide the remedy",
)
ACROSS_JOBS = FindingCode(
    code="gpu.xid.repeated_across_jobs.*",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="Different jobs met the same job-level error (its number is the last part of the code) on the same GPU",
    clears_by=ClearsBy.GPU_RESET,
)
_PIDS = 16
_NO_RULE = "no published rule fits"
_Judgement = xids.XidRow | xids.XidCase


class KernelXidSettings(Struct, frozen=True, kw_only=True):
    """When ``kernel.xid`` suspects a GPU because several jobs met the same error."""

    same_error_jobs: AtLeastOne = 3
    """How many different jobs must meet the same job-level XID (13, 31, …) on the same GPU for a warning. One job's
    error is its own; if three jobs meet it, the GPU is suspect. Only jobs and pods with a known name count."""

    same_error_window_s: WindowSeconds = 86_400.0
    """Within how many seconds. A day is NVSentinel's default."""


def explain(code: str) -> tuple[CodeForm, ...]:
    """The rows of ``gpu.xid.79``, ``xid 79`` or ``79``: its own, those of its text, and those of its registers where
    they judge otherwise; none for another code."""
    xid = xids.xid_number(code)
    if xid is None:
        return ()
    row = xids.xid_row(xid)
    rules = [rule for rule in xids.nvlink5_rules() if rule.xid == xid]
    notes = (
        *((f"Its unit, sub-code and status decide where one of {len(rules)} rules fits.",) if rules else ()),
        *(("NVML calls may hang after it, so healthd pauses them.",) if row.pauses_nvml else ()),
        *((_on_job(row),) if row.ends_process else ()),
    )
    meaning = f"{row.meaning} ({row.mnemonic})" if row.mnemonic else row.meaning
    cases: list[tuple[str, _Judgement]] = [
        (case, found) for (number, case), found in xids.xid_cases().items() if number == xid
    ]
    judgements: list[_Judgement] = [row, *(found for _, found in cases)]
    listed = {(found.severity, found.remedy) for found in judgements}
    by_registers = {(each.severity, each.remedy): each for each in (rule.verdict for rule in rules)}
    cases += [("registers", found) for verdict, found in by_registers.items() if verdict not in listed]
    plain = _form(xid, row, meaning=meaning, notes=notes)
    return (plain, *(_form(xid, found, meaning=found.meaning, form=case) for case, found in cases))


def _on_job(row: xids.XidRow) -> str:
    contained = f", unless XID {row.contained_by} is open on the same GPU" if row.contained_by else ""
    return f"The process that had the GPU cannot go on{contained}: on_job of the policy holds for its job."


def _form(xid: int, found: _Judgement, *, meaning: str, form: str = "", notes: tuple[str, ...] = ()) -> CodeForm:
    return CodeForm(
        code=f"gpu.xid.{xid}",
        form=form,
        meaning=meaning,
        severity=found.severity,
        remedy=found.remedy,
        clears_by=found.clears_by,
        reason=found.reason,
        source=found.source,
        notes=notes,
    )


def _wants(text: str, _settings: KernelXidSettings) -> bool:
    return _read(text)[0] is not None


@check(
    "kernel.xid",
    on="kernel",
    needles=("^NVRM: ",),
    wants=_wants,
    settings=KernelXidSettings,
    codes=(FAMILY, ACROSS_JOBS),
    explain=explain,
)
def kernel_xid(node: Node, settings: KernelXidSettings) -> Result:
    """NVIDIA driver errors (XID) in the kernel log.

    The check reads the lines of every driver branch, codes that no table knows, and bus drops without a number. Lines
    of one code on one GPU within a batch are one finding. NVLink errors of Blackwell (144 to 150) are decoded by unit
    and registers, in the layouts before and from driver 575. When the driver reports the recovery action none again, or
    is loaded again, earlier faults end.

    The evidence has the Slurm job or pod of the process that a line names, while the process still lives; healthd never
    guesses the job of a process that is gone. The same job-level error in several jobs on one GPU is a finding of its
    own.

    Sources: rows of xid.csv, xid_cases.csv and nvlink5_rules.csv; NVSentinel (the same error again within a day).
    """
    lines = _XidFold()
    for record in node.kernel_records:
        lines.take(record)
    findings = [found for burst in lines.faults() for found in _findings(node, settings, burst)]
    return judged(findings, lines.readings(), clearances=lines.ended())


class _XidBurst(Burst, kw_only=True):
    line: xids.XidLine
    judgement: _Judgement
    pci: str | None = None
    component: Component = NODE
    prints_one_of: int | None = None
    named: xids.XidLine | None = None
    """The first line that names a process: of an XID 13 it is the last of three."""
    pids: list[int] = field(default_factory=list)

    def take(self, record: KernelRecord, line: xids.XidLine) -> None:
        self.add(record)
        self.prints_one_of = line.prints_one_of or self.prints_one_of
        if self.named is None and line.pid is not None:
            self.named = line
        if line.pid is not None and line.pid not in self.pids and len(self.pids) < _PIDS:
            self.pids.append(line.pid)


class _XidFold(BurstFold[_XidBurst]):
    """The fold of one batch. GPUs go by their PCI address until its end: their UUIDs may come last."""

    def __init__(self) -> None:
        super().__init__()
        self._uuids: dict[str, str] = {}
        self._probed: xids.ProbeHead | None = None

    def take(self, record: KernelRecord) -> None:
        """Fold one record in."""
        line, judgement, case = _read(record.text)
        match line:
            case xids.XidLine() if judgement is not None:
                self._take_xid(record, line, judgement, case)
            case xids.GpuIdentity():
                self._uuids[line.pci] = line.uuid
            case xids.DriverLoad():
                self.over(record, NODE, f"NVIDIA driver {line.version} was loaded", by=ClearsBy.DRIVER_RELOAD)
        if line is not None:
            self._probed = line if isinstance(line, xids.ProbeHead) else None

    def _take_xid(self, record: KernelRecord, line: xids.XidLine, judgement: _Judgement, case: str | None) -> None:
        pci = line.pci
        if pci is None and not line.numbered and self._probed is not None:
            pci = self._probed.pci
        if case == "to:0" and pci is not None:
            self.over(record, _gpu(pci), "the driver no longer recommends a recovery", by=ClearsBy.GPU_RESET)
        era = self.era(_gpu(pci)) if self.clearances else 0
        key = (pci, line.xid, case, record.trusted, era)
        burst = self.bursts.get(key)
        if burst is None:
            burst = self.bursts[key] = _XidBurst(line=line, judgement=judgement, first=record, pci=pci)
        burst.take(record, line)

    def faults(self) -> Iterator[_XidBurst]:
        """One burst per fault, in the order of their first lines."""
        for burst in self.bursts.values():
            burst.component = self._known(_gpu(burst.pci))
            yield burst

    def readings(self) -> Iterator[Reading]:
        """Passes learned identities on, so that later lines, which carry only the PCI address, find their GPU."""
        for pci in self._uuids:
            yield Reading(component=self._known(_gpu(pci)), name="kernel_log_identity_known", value=1.0)

    def ended(self) -> Iterator[Clearance]:
        """The clearances of the batch."""
        return (replace(over, component=self._known(over.component)) for over in self.clearances)

    def _known(self, gpu: Component) -> Component:
        """A GPU by its UUID, where a line names it."""
        uuid = self._uuids.get(gpu.id)
        return gpu_component(uuid=uuid, pci=gpu.id) if uuid else gpu


def _gpu(pci: str | None) -> Component:
    return gpu_component(pci=pci) if pci else NODE


@lru_cache(maxsize=1024)
def _read(text: str) -> tuple[xids.Parsed, _Judgement | None, str | None]:
    """The parsed line, its row, and the name of the row's case. Cached, because a storm repeats few lines."""
    line = xids.parse_line(text)
    return (line, *_judgement(line)) if isinstance(line, xids.XidLine) else (line, None, None)


def _judgement(line: xids.XidLine) -> tuple[_Judgement, str | None]:
    """The row that judges a line, and the name of the row's case. Where registers and the driver's word disagree about
    fatal, the word wins: some events become fatal at run time."""
    case = xids.case_of(line)
    link = xids.nvlink5(line.text) if line.xid in xids.NVLINK5_XIDS else None
    rule = xids.nvlink5_rule(line.xid, link.unit, link.words) if link else None
    if rule is not None and not (rule.nonfatal and case == "fatal"):
        return rule.verdict, rule.verdict.case
    return xids.xid_cases().get((line.xid, case or "")) or xids.xid_row(line.xid), case


def _findings(node: Node, settings: KernelXidSettings, group: _XidBurst) -> Iterator[Finding]:
    line, judgement, record = group.line, group.judgement, group.first
    cause = xids.caused_by(line.text)
    where = f"GPU {group.pci}" if group.pci else "a GPU that the line does not name"
    owners = [found for pid in group.pids if (found := owner_of(node, pid, group.last.time))]
    finding = Finding(
        code=f"gpu.xid.{line.xid}",
        severity=judgement.severity,
        component=group.component,
        message=f"XID {line.xid} on {where}{group.times}: {judgement.meaning}{label(record)}",
        remedy=judgement.remedy,
        evidence={name: value for name, value in _evidence(group, cause, owners) if value not in (None, "", [])},
        time=record.time,
        clears_by=judgement.clears_by,
        symptom_of=() if cause is None else (f"gpu.xid.{cause}",),
    )
    yield finding
    if owners and judgement.clears_by is ClearsBy.JOB_END and group.component != NODE:
        yield _across_jobs(finding, line.xid, owners, settings)


def _across_jobs(
    finding: Finding, xid: int, owners: Sequence[Mapping[str, str]], settings: KernelXidSettings
) -> Finding:
    jobs = sorted({f"{kind}:{name}" for owner in owners for kind, name in owner.items()})
    return Finding(
        code=f"gpu.xid.repeated_across_jobs.{xid}",
        severity=ACROSS_JOBS.severity,
        component=finding.component,
        message=f"XID {xid} on the same GPU in different jobs, the last of them {', '.join(jobs)}",
        remedy=ACROSS_JOBS.remedy,
        evidence={"jobs": jobs, "xid": xid, "line": finding.evidence["line"], "limit": settings.same_error_jobs},
        time=finding.time,
        clears_by=ACROSS_JOBS.clears_by,
        repeats=Repeats(times=settings.same_error_jobs, window_s=settings.same_error_window_s, distinct="jobs"),
    )


def _evidence(group: _XidBurst, cause: int | None, owners: Sequence[Mapping[str, str]]) -> Sequence[tuple[str, Any]]:
    line, named = group.line, group.named or group.line
    pods, jobs, sluids = ([owner[kind] for owner in owners if kind in owner] for kind in ("pod_uid", "job", "sluid"))
    return (
        *group.seen().items(),
        ("xid", line.xid),
        ("form", "xid" if line.numbered else "number-less"),
        ("gpu", group.pci or "unknown"),
        ("pid", named.pid),
        ("pids", group.pids if len(group.pids) > 1 else None),
        ("process", named.process),
        ("job", jobs[0] if jobs else None),
        ("jobs", sorted(set(jobs)) if len(set(jobs)) > 1 else None),
        ("sluid", sluids[0] if sluids else None),
        ("pod_uid", pods[0] if pods else None),
        ("gpu_instance", line.gpu_instance),
        ("compute_instance", line.compute_instance),
        ("caused_by_xid", cause),
        (
            "recovery_action",
            xids.recovery_action(xids.own_text(line)) if line.xid == xids.RECOVERY_ACTION_XID else None,
        ),
        *_link(line),
        ("count_is_at_least", f"1 in {group.prints_one_of} printed" if group.prints_one_of else None),
        ("why", group.judgement.reason),
        ("source", group.judgement.source),
    )


def _link(line: xids.XidLine) -> Iterator[tuple[str, Any]]:
    """The decoded registers of an NVLink error, as far as they are published."""
    link = xids.nvlink5(line.text) if line.xid in xids.NVLINK5_XIDS else None
    if link is not None:
        rule = xids.nvlink5_rule(line.xid, link.unit, link.words)
        yield "nvlink_unit", link.unit
        yield "nvlink_link", link.link
        yield "nvlink_words", [f"0x{word:08x}" for word in link.words]
        yield "nvlink_subcode", link.words[0] >> 20 & 0x3F
        yield "nvlink_immediate", rule.immediate if rule else _NO_RULE
        yield "nvlink_investigate", rule.investigate if rule else _NO_RULE
    if line.xid == xids.NVLINK_XID and (found := xids.link_registers(line.text)):
        number, registers = found
        bits = [where for where in xids.xid74_bits() if where[0] < len(registers)]
        yield "nvlink_link", number
        yield "nvlink_words", [f"0x{word:08x}" for word in registers]
        yield ("nvlink_hint", sorted({xids.xid74_bits()[at, bit] for at, bit in bits if registers[at] >> bit & 1}))
