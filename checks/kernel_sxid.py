"""NVSwitch errors (SXid), read from the kernel log.

The meaning of a number is a row of ``checks/data/sxid.csv``; the severity word of a line comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import field

from healthd.checklib import xids
from healthd.checklib.loglines import LINE_CHARS, Burst, BurstFold, label
from healthd.checklib.xids import SxidRow, sxid_rows
from healthd.core.check import CodeForm, FindingCode, NoSettings, check, judged
from healthd.core.errors import SourceError
from healthd.core.model import NODE, ClearsBy, Component, Finding, Remedy, Result, Severity
from healthd.core.node import KernelRecord, Node

FAMILY = FindingCode(
    code="nvswitch.sxid.*",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The driver reported an NVSwitch error (SXid); its severity word decides, else its number",
)
_LINKS = 16
_NO_ROW = "not in checks/data/sxid.csv for this driver"
_LOADING = "NVRM: loading NVIDIA"
_Verdict = tuple[Severity, Remedy, ClearsBy, str]
_FATAL_WHY = (
    "The driver itself says Fatal. NVIDIA's guide wants a reset of the GPU on the link (H100), a restart of the"
    " machine (A100, or a link between switches) or of all GPUs and switches: a reboot is all of them."
)
_WORDS: Mapping[str, _Verdict] = {
    "Fatal": (Severity.CRITICAL, Remedy.REBOOT_NODE, ClearsBy.REBOOT, _FATAL_WHY),
    "Non-fatal": (
        Severity.WARNING,
        Remedy.WATCH,
        ClearsBy.NOTHING,
        "The driver itself says Non-fatal: traffic goes on, at worst slower.",
    ),
    "Correctable": (Severity.INFO, Remedy.NONE, ClearsBy.NOTHING, "The switch corrected it itself."),
}


def explain(code: str) -> tuple[CodeForm, ...]:
    """The judgements of ``nvswitch.sxid.20034`` or ``sxid 20034``: of a line without a severity word, then by each
    word; none for another code."""
    prefix, _, number = code.strip().lower().replace(" ", ".").rpartition(".")
    if prefix not in ("nvswitch.sxid", "sxid") or not number.isdecimal():
        return ()
    sxid = int(number)
    return tuple(_form(sxid, word, row) for word in (None, *_WORDS) for row in sxid_rows(sxid) or (None,))


def _form(sxid: int, word: str | None, row: SxidRow | None) -> CodeForm:
    severity, remedy, clears_by, why = _verdict(word, row)
    drivers = f"drivers {row.drivers}" if row is not None and row.drivers else ""
    return CodeForm(
        code=_code(sxid),
        form=", ".join(filter(None, (word, drivers))),
        meaning=row.meaning if row is not None else _unknown(sxid),
        severity=severity,
        remedy=remedy,
        clears_by=clears_by,
        reason=why,
        source=row.source if row is not None else _NO_ROW,
        notes=() if word else ("The severity word of its line goes before this.",),
    )


def _wants(text: str, _settings: NoSettings) -> bool:
    return xids.parse_sxid(text) is not None or _LOADING in text


@check(
    "kernel.sxid",
    on="kernel",
    needles=("^nvidia-nvswitch", f"^{_LOADING}"),
    wants=_wants,
    codes=(FAMILY,),
    explain=explain,
)
def kernel_sxid(node: Node, _settings: NoSettings) -> Result:
    """NVSwitch errors (SXid) in the kernel log.

    NVSwitches that report themselves exist on Hopper and older boards; on Blackwell their faults are XID 144 to 150.
    Fatal beats any table: some errors become fatal at run time, and one number differs between generations of the
    switch. Non-fatal is a warning, or news where NVIDIA's guide says to ignore the number: healthy switches print such
    lines (22013, and corrected bits). The number decides about lines without a word. Lines that only add registers to
    the one before are no faults. Driver 550 gave the numbers 28xxx and 29xxx to other errors: without the driver's
    version, from the log or /sys, such a number is ambiguous and never guessed.

    Sources: open-gpu-kernel-modules, error_nvswitch.c and ctrl_dev_nvswitch.h at 525 to 595; NVIDIA, Fabric Manager
    user guide, SXid tables. Unproven on hardware: no NVSwitch was at hand.
    """
    lines = _SxidFold()
    for record in node.kernel_records:
        lines.take(record)
    running = _running(node) if lines.bursts and not lines.loaded else None
    return judged([_finding(burst, running) for burst in lines.bursts.values()], clearances=lines.clearances)


class _SxidBurst(Burst, kw_only=True):
    line: xids.SxidLine
    major: int | None
    links: list[int] = field(default_factory=list)
    more: list[str] = field(default_factory=list)


class _SxidFold(BurstFold[_SxidBurst]):
    """The fold of one batch, with the driver's version as the log goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: int | None = None

    def take(self, record: KernelRecord) -> None:
        """Fold one record in."""
        line = xids.parse_sxid(record.text)
        if line is None:
            if _LOADING in record.text and isinstance(load := xids.parse_line(record.text), xids.DriverLoad):
                self.loaded = _major(load.version)
            return
        if line.continues:
            self._continue(line)
            return
        era = self.era(_switch(line)) if self.clearances else 0
        key = (line.pci, line.sxid, line.word, record.trusted, era)
        burst = self.bursts.get(key)
        if burst is None:
            burst = self.bursts[key] = _SxidBurst(line=line, first=record, major=self.loaded)
            self._end(record, line)
        burst.add(record)
        if line.link is not None and line.link not in burst.links and len(burst.links) < _LINKS:
            burst.links.append(line.link)

    def _continue(self, line: xids.SxidLine) -> None:
        """Keep the registers beside the error that they belong to: the last one of that number on that switch."""
        mine = [each for each in self.bursts.values() if (each.line.pci, each.line.sxid) == (line.pci, line.sxid)]
        if mine and len(mine[-1].more) < 4:
            mine[-1].more.append(line.text[:LINE_CHARS])

    def _end(self, record: KernelRecord, line: xids.SxidLine) -> None:
        rows = sxid_rows(line.sxid)
        if line.word is None and len(rows) == 1 and rows[0].ends is not None:
            note = f"SXid {line.sxid}: {rows[0].meaning}"
            self.over(record, _switch(line), note, by=ClearsBy.LOG_LINE, code=_code(rows[0].ends))


def _finding(group: _SxidBurst, running: int | None) -> Finding:
    """``running``: the driver that is loaded now, for lines from before the first that names one."""
    line, record, major = group.line, group.first, group.major or running
    row = _row(line.sxid, major)
    severity, remedy, clears_by, why = _verdict(line.word, row)
    meaning = row.meaning if row else _unknown(line.sxid)
    word = f" {line.word}" if line.word else ""
    evidence: dict[str, Any] = {
        **group.seen(),
        "sxid": line.sxid,
        "switch": line.switch,
        "severity_word": line.word or "none",
        "links": group.links,
        "registers": group.more,
        "driver": major,
        "why": why,
        "source": row.source if row else _NO_ROW,
    }
    return Finding(
        code=_code(line.sxid),
        severity=severity,
        component=_switch(line),
        message=f"SXid {line.sxid}{word} on NVSwitch {line.pci or line.switch}{group.times}: {meaning}{label(record)}",
        remedy=remedy,
        evidence={name: value for name, value in evidence.items() if value not in (None, "", [])},
        time=record.time,
        clears_by=clears_by,
    )


def _verdict(word: str | None, row: SxidRow | None) -> _Verdict:
    """The word decides. For a Non-fatal line the row decides where NVIDIA's guide says more, or says to ignore it.
    Without a word the row decides; without either, the remedy is watch."""
    if word is not None:
        severity, remedy, clears_by, why = _WORDS[word]
        if word != "Non-fatal" or row is None:
            return severity, remedy, clears_by, why
        if row.nonfatal_remedy is not None:
            return severity, row.nonfatal_remedy, row.clears_by, row.reason
        if row.severity is Severity.INFO:
            return row.severity, row.remedy, row.clears_by, row.reason
        return severity, remedy, clears_by, why
    if row is None:
        return Severity.WARNING, Remedy.WATCH, ClearsBy.NOTHING, "An unknown number is recorded and drains no node."
    return row.severity, row.remedy, row.clears_by, row.reason


def _row(sxid: int, major: int | None) -> SxidRow | None:
    """The row of a number under a driver. None: not in the table, or ambiguous as long as the driver is not known."""
    rows = {row.drivers: row for row in sxid_rows(sxid)}
    if "" in rows or major is None:
        return rows.get("")
    return rows.get("<550" if major < 550 else ">=550")


def _unknown(sxid: int) -> str:
    rows = sxid_rows(sxid)
    if not rows:
        return "a number that is not in healthd's table"
    either = " or ".join(f"{row.meaning} (drivers {row.drivers})" for row in rows)
    return f"ambiguous, because the driver's version is unknown or has no such number: {either}"


def _running(node: Node) -> int | None:
    """The major version of the driver that is loaded now; None where /sys does not report it."""
    try:
        return _major(node.sys.read("module/nvidia/version"))
    except SourceError:
        return None


def _major(version: str) -> int | None:
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else None


def _code(sxid: int) -> str:
    return f"nvswitch.sxid.{sxid}"


def _switch(line: xids.SxidLine) -> Component:
    return Component(kind="nvswitch", id=line.pci) if line.pci else NODE
