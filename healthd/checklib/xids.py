"""The error numbers of the NVIDIA driver, XID and (of NVSwitches) SXid: the lines that report them, and their meaning.

Pure. A number is read from a line of any driver branch; its meaning is a row of ``checks/data/xid.csv``,
``xid_cases.csv`` where the text decides, ``nvlink5_rules.csv`` and ``xid74_bits.csv`` where registers do, and
``sxid.csv``. A check knows what that means for the node.

The shapes of the lines are those of krcReportXid in kernel_rc.c (open-gpu-kernel-modules 515.43.04 to 595.45.04),
osinit.c, osapi.c, gpu.c and the NVSwitch's error_nvswitch.c and intr_nvswitch.h of the same. A line is recognised at
the start of its record's words only (``loglines``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache, lru_cache, partial
from types import MappingProxyType

from msgspec import Struct

from healthd.checklib.loglines import NAME_BYTES, after_lead, split_line
from healthd.checklib.tables import as_row, filled, keyed_rows
from healthd.core.model import REMEDY_RANK, ClearsBy, Remedy, Severity, pci_address

NVLINK5_XIDS = range(144, 151)
RECOVERY_ACTION_XID = 154
BUS_DROP_XID = 79
GSP_TIMEOUT_XID = 119
NVLINK_XID = 74

_CODE = "gpu.xid."
_NVRM = "NVRM: "
_NO_PROCESS = "<unknown>"
_FIRST = "XGlTifR"  # the first letters of known lines: the driver writes many others, on healthy nodes too
_PCI = r"(?:PCI:)?([0-9a-fA-F:.]{1,20})"
_XID = re.compile(
    rf"Xid \({_PCI}(?: GPU-I:(\d{{1,4}}))?(?: GPU-CI:(\d{{1,4}}))?\): (\d{{1,9}})(?:, ?(.*))?\Z", re.DOTALL
)
_WHO = re.compile(r"pid=(?:(\d{1,10})|[^,]*)(?:, name=(.*?)(?=, |\Z))?(?:, (.*))?\Z", re.DOTALL)
_DROPPED = re.compile(rf"GPU {_PCI}: GPU has fallen off the bus")
_PROBED = re.compile(rf"The NVIDIA GPU {_PCI}(?![0-9a-fA-F:.])")
_OTHERWISE = "installed in this "  # such as "and not supported": the next lines do not concern that GPU
_NOT_RESPONDING = "fallen off the bus and is not responding"
_IDENTITY = re.compile(rf"GPU at {_PCI}: (GPU-[0-9a-fA-F-]{{8,64}})")
_LOADING = re.compile(r"loading NVIDIA UNIX .{0,80}?\s(\d+(?:\.\d+)+)")
_CAUSE = re.compile(r"caused by previous Xid (\d{1,9})")
_HEX = re.compile(r"0x([0-9a-fA-F]{1,16})")
_FATAL = re.compile(r"(?<!non-)(?<!non )(?<!\w)fatal\b", re.IGNORECASE)
_NO_SPARE = re.compile(
    r"Row Remapper Error: .{0,40} - (?:All reserved rows for bank are remapped|Row Remapping table is full"
    r"|Attempting to remap a reserved row)|DRAM Retirement failed due to (?:no spare|HW limit)"
)
_LINK_DOWN_NONFATAL = re.compile(r"NVLINK_SW_DEFINED_ERROR\s+Non-?fatal\b", re.IGNORECASE)
_RATE_LIMIT = re.compile(rf"Rate limiting GSP RPC error prints for GPU at {_PCI} \(printing 1 of every (\d{{1,6}})\)")
_REGISTERS = re.compile(r"link (-?\d{1,3}) ?\(((?:0x[0-9a-fA-F]{1,16}(?:, ?|(?=\))))+)\)")
_SXID = re.compile(r"nvidia-nvswitch(\d{1,3}): SXid \(PCI:([0-9a-fA-F:.]{1,20})\): (\d{1,9}),\s*(.*)\Z", re.DOTALL)
_SXID_TEXT = re.compile(r"(Fatal|Non-fatal|Correctable), (?:Link (-?\d{1,3}) )?(.*)\Z", re.DOTALL)
_SXID_MORE = re.compile(r"Severity \d+ Engine instance|Data \{")
_NVLINK5 = re.compile(
    r"(\S{1,64})\s+(Fatal|Nonfatal)\s+XC(\d{1,2})\s+i(\d{1,3})\s+Link\s+(-?\d{1,3})\s+\(((?:0x[0-9a-fA-F]{1,16}\s*)+)"
)
_NUMBER = re.compile(r"(?:gpu\.)?xid[. ]?(\d{1,9})|(\d{1,9})", re.IGNORECASE)


# ---------------------------------------------------------------------------------------------------------------------
# the lines


class XidLine(Struct, frozen=True, kw_only=True):
    """One XID. ``pci`` is None where the line does not name its GPU; ``numbered`` is False where it carries no code.

    ``process`` ends at the first comma and space: a command name may itself hold those, so it is a hint and no key.
    ``prints_one_of``: the driver announces here that from now on it prints one of so many.
    """

    xid: int
    pci: str | None
    text: str
    pid: int | None = None
    process: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    numbered: bool = True
    prints_one_of: int | None = None


class GpuIdentity(Struct, frozen=True, kw_only=True):
    """The UUID of the GPU at a PCI address; logged before its first XID, and still there when NVML is not."""

    pci: str
    uuid: str


class DriverLoad(Struct, frozen=True, kw_only=True):
    """The driver was loaded."""

    version: str


class ProbeHead(Struct, frozen=True, kw_only=True):
    """The first of three lines, where the third reports that the GPU does not respond."""

    pci: str | None


class NvLink5(Struct, frozen=True, kw_only=True):
    """The tail of an XID 144 to 150. ``words``: intrinfo, error status and four more registers."""

    unit: str
    fatal: bool
    link: int
    words: tuple[int, ...]


class SxidLine(Struct, frozen=True, kw_only=True):
    """One SXid of the NVSwitch at ``pci``. ``word``: Fatal, Non-fatal or Correctable, None where the line has none.

    ``continues``: it only adds registers to the SXid before it, and is no fault of its own.
    """

    sxid: int
    pci: str | None
    switch: int
    text: str
    word: str | None = None
    link: int | None = None
    continues: bool = False


Parsed = XidLine | GpuIdentity | DriverLoad | ProbeHead | None


def parse_line(text: str) -> Parsed:
    """One kernel record, parsed; None where it is not the NVIDIA driver's, or of another form. Never raises."""
    at = after_lead(text)
    if not text.startswith(_NVRM, at) or text[at + len(_NVRM) : at + len(_NVRM) + 1] not in _FIRST:
        return None
    parsed = _parsed(text, at + len(_NVRM))
    return parsed if parsed is not None and split_line(text).at == at else None


@lru_cache(maxsize=1024)
def parse_sxid(text: str) -> SxidLine | None:
    """One kernel record of an NVSwitch, parsed; None where it concerns none. Never raises.

    The forms: a severity word with a link, one without (``…, instance=2, chiplet=1``), no severity word at all (heat,
    the switch's own controller, optical modules), and lines that continue the one before with the same number.
    """
    at = after_lead(text)
    match = _SXID.match(text, at)
    if match is None or split_line(text).at != at:
        return None
    switch, pci, sxid, rest = match.groups()
    parsed = _SXID_TEXT.match(rest)
    return SxidLine(
        sxid=int(sxid),
        pci=_pci(pci),
        switch=int(switch),
        text=parsed[3] if parsed else rest,
        word=parsed[1] if parsed else None,
        link=int(parsed[2]) if parsed and parsed[2] else None,
        continues=_SXID_MORE.match(rest) is not None,
    )


def case_of(line: XidLine) -> str | None:
    """The text's addition to the code: ``fatal``, ``to:<recovery action>``, or None. The cases of ``xid_cases.csv``."""
    text = own_text(line)
    match line.xid:
        case 64:
            return "no_spare" if _NO_SPARE.search(text) else None
        case 155:
            return "nonfatal" if _LINK_DOWN_NONFATAL.search(text) else None
        case 154:
            action = recovery_action(text)
            return None if action is None else f"to:{action}"
    if line.xid in NVLINK5_XIDS and (link := nvlink5(text)):
        return "fatal" if link.fatal else None
    if line.xid in NVLINK5_XIDS or line.xid == NVLINK_XID:
        return "fatal" if _FATAL.search(text) else None
    return None


def own_text(line: XidLine) -> str:
    """The text without a possible end of the process' name: a name with a comma extends into it, and its user would
    choose the severity of the error."""
    rest_of_name = max(0, NAME_BYTES - len(line.process or _NO_PROCESS))  # with the comma and the blank behind it
    comma = line.text.rfind(", ", 0, rest_of_name)
    return line.text if comma < 0 else line.text[comma + 2 :]


def recovery_action(text: str) -> int | None:
    """The number that XID 154 changed *to*: the second one. The words beside it differ from driver to driver."""
    numbers = _HEX.findall(text)
    return int(numbers[1], 16) if len(numbers) > 1 else None


def nvlink5(text: str) -> NvLink5 | None:
    """The unit, severity, link and registers of an XID 144 to 150. Unit names hold slashes, digits; link may be -1."""
    match = _NVLINK5.search(text)
    if match is None:
        return None
    words = tuple(int(word, 16) for word in match[6].split())
    return NvLink5(unit=match[1], fatal=match[2] == "Fatal", link=int(match[5]), words=words)


def link_registers(text: str) -> tuple[int, tuple[int, ...]] | None:
    """The link and the registers at the end of an XID 74, seven of them as a rule; None where there are none."""
    match = _REGISTERS.search(text)
    return (int(match[1]), tuple(int(word, 16) for word in match[2].replace(",", " ").split())) if match else None


def caused_by(text: str) -> int | None:
    """The XID that an XID 45 names as its cause (drivers from 575)."""
    match = _CAUSE.search(text)
    return int(match[1]) if match else None


def _parsed(text: str, at: int) -> Parsed:
    if match := _XID.match(text, at):
        return _xid_line(match)
    if match := _IDENTITY.match(text, at):
        pci = _pci(match[1])
        return GpuIdentity(pci=pci, uuid=match[2]) if pci else None
    if match := _LOADING.match(text, at):
        return DriverLoad(version=match[1])
    return _unnumbered(text, at)


def _xid_line(match: re.Match[str]) -> XidLine:
    pci, gpu_instance, compute_instance, xid, rest = match.groups()
    rest = rest or ""
    who = _WHO.match(rest) if rest.startswith("pid=") else None
    pid, process, text = who.groups() if who else (None, None, rest)
    return XidLine(
        xid=int(xid),
        pci=_pci(pci),
        text=text or "",
        pid=int(pid) if pid else None,
        process=None if process == _NO_PROCESS else process,
        gpu_instance=int(gpu_instance) if gpu_instance else None,
        compute_instance=int(compute_instance) if compute_instance else None,
    )


def _unnumbered(text: str, at: int) -> XidLine | ProbeHead | None:
    """The forms without a number: a bus drop at run time, one when the driver probes, whole or in three lines; and the
    notice that GSP timeouts are printed one in so many from now on, which only follows timeouts."""
    if match := _DROPPED.match(text, at):
        return XidLine(xid=BUS_DROP_XID, pci=_pci(match[1]), text=text[at:], numbered=False)
    if match := _PROBED.match(text, at):
        if _NOT_RESPONDING in text:
            return XidLine(xid=BUS_DROP_XID, pci=_pci(match[1]), text=text[at:], numbered=False)
        return ProbeHead(pci=_pci(match[1]))
    if text.startswith(_OTHERWISE, at):
        return ProbeHead(pci=None)
    if text.startswith(_NOT_RESPONDING, at):
        return XidLine(xid=BUS_DROP_XID, pci=None, text=text[at:], numbered=False)
    if match := _RATE_LIMIT.match(text, at):
        every = int(match[2])
        return XidLine(xid=GSP_TIMEOUT_XID, pci=_pci(match[1]), text=text[at:], numbered=False, prints_one_of=every)
    return None


@lru_cache(maxsize=256)
def _pci(text: str) -> str | None:
    try:
        return pci_address(text)
    except ValueError:
        return None


# ---------------------------------------------------------------------------------------------------------------------
# the meaning of a number


class XidRow(Struct, frozen=True, kw_only=True):
    """The meaning of one XID and its remedy. ``pauses_nvml``: NVML calls may hang after it. ``ends_process``: the
    process that had the GPU cannot go on, unless the XID ``contained_by`` is open on the same GPU (0: whatever is).

    ``reason`` says why this remedy, in a sentence; ``source`` names the source of the fact.
    """

    xid: int
    mnemonic: str
    meaning: str
    category: str
    severity: Severity
    remedy: Remedy
    clears_by: ClearsBy
    pauses_nvml: bool
    reason: str
    source: str
    ends_process: bool = False
    contained_by: int = 0


class XidCase(Struct, frozen=True, kw_only=True):
    """How the text of a line changes the judgement of its XID.

    ``case`` is ``fatal`` (the text says Fatal) or ``to:<n>`` (XID 154: the recovery action it changed to).
    """

    xid: int
    case: str
    meaning: str
    severity: Severity
    remedy: Remedy
    clears_by: ClearsBy
    reason: str
    source: str


class NvLink5Rule(Struct, frozen=True, kw_only=True):
    """NVIDIA's verdict on one error of one unit of NVLink5 (XID 144 to 150).

    ``patterns``: the required 32 bits of intrinfo, as (mask, value): first as drivers before 575 write them, then as
    drivers from 575 on. No word fits a rule of each (a test proves it), so the driver's version is not needed.
    ``immediate`` and ``investigate``: NVIDIA's own words for the steps at once, and afterwards.
    """

    xid: int
    units: frozenset[str]
    subcode: int
    patterns: tuple[tuple[int, int], tuple[int, int]]
    error_status: int
    nonfatal: bool
    immediate: str
    investigate: str
    verdict: XidCase


class SxidRow(Struct, frozen=True, kw_only=True):
    """The meaning of one SXid, and the judgement of a line of it *without* a severity word.

    ``drivers``: ``<550`` or ``>=550`` where the number means different things; else empty. ``nonfatal_remedy``: the
    remedy for a Non-fatal line where that is more than watching. ``ends``: the SXid whose fault this one ends.
    """

    sxid: int
    drivers: str
    meaning: str
    severity: Severity
    remedy: Remedy
    clears_by: ClearsBy
    nonfatal_remedy: Remedy | None
    ends: int | None
    reason: str
    source: str


# The row of a code that NVIDIA had not published when the table was written.
UNKNOWN_XID = XidRow(
    xid=0,
    mnemonic="",
    meaning="a code that is not in healthd's table",
    category="unknown",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    clears_by=ClearsBy.NOTHING,
    pauses_nvml=False,
    reason="NVIDIA adds codes with every driver branch; an unknown code is recorded and never takes a node out.",
    source="open-gpu-kernel-modules nverror.h per tag: last code 121 in branch 515, 176 in branch 595, 179 after it",
)


@cache
def xid_table() -> Mapping[int, XidRow]:
    """``xid.csv`` by XID number. Raises ValueError naming the line that cannot be read."""
    return keyed_rows("xid.csv", _xid_row, lambda row: row.xid)


@cache
def xid_cases() -> Mapping[tuple[int, str], XidCase]:
    """``xid_cases.csv`` by XID number and case. Raises ValueError naming the line that cannot be read."""
    return keyed_rows("xid_cases.csv", partial(as_row, kind=XidCase), lambda row: (row.xid, row.case))


def xid_row(xid: int) -> XidRow:
    """The row of an XID, or :data:`UNKNOWN_XID`."""
    return xid_table().get(xid, UNKNOWN_XID)


def xid_number(code: str) -> int | None:
    """79 from ``gpu.xid.79``, ``xid 79``, ``XID79`` or ``79``; None for anything else."""
    match = _NUMBER.fullmatch(code.strip())
    return int(match[1] or match[2]) if match else None


def ends_process(code: str, beside: Collection[str] | None) -> bool:
    """Whether the process that had the GPU cannot go on after this finding. ``beside``: the codes that are open on the
    same GPU; None where they are not known: then one that may be contained does not say so. Nor does a code that is no
    XID."""
    if not code.startswith(_CODE) or (number := xid_number(code)) is None:
        return False
    row = xid_row(number)
    if not row.contained_by:
        return row.ends_process
    return beside is not None and f"{_CODE}{row.contained_by}" not in beside


@cache
def nvlink5_rules() -> tuple[NvLink5Rule, ...]:
    """``nvlink5_rules.csv`` in its order. Raises ValueError naming the line that cannot be read."""
    rules = keyed_rows("nvlink5_rules.csv", _nvlink5_rule, lambda rule: (rule.xid, rule.patterns, rule.error_status))
    return tuple(rules.values())


@lru_cache(maxsize=1024)
def nvlink5_rule(xid: int, unit: str, words: tuple[int, ...]) -> NvLink5Rule | None:
    """The rule that an NVLink5 error fits: its unit, intrinfo (the first word) and error status (the second).

    A status of several bits, of a unit whose statuses are single bits, is as bad as the worst of them; None where no
    rule fits, or one of the bits has none.
    """
    if len(words) < 2:
        return None
    fitting = {
        rule.error_status: rule
        for rule in nvlink5_rules()
        if rule.xid == xid
        and rule.units.intersection(unit.split("/"))
        and any(words[0] & mask == value for mask, value in rule.patterns)
    }
    status = words[1]
    bits = [1 << bit for bit in range(status.bit_length()) if status >> bit & 1]
    if status in fitting or not all(bit in fitting for bit in (bits or [-1])) or any(_several(s) for s in fitting):
        return fitting.get(status)
    return max((fitting[bit] for bit in bits), key=lambda rule: REMEDY_RANK[rule.verdict.remedy])


def _several(status: int) -> bool:
    return status.bit_count() != 1


@cache
def xid74_bits() -> Mapping[tuple[int, int], str]:
    """The published registers of XID 74: the meaning of a set bit, by (register, bit), both from 0."""
    rows = keyed_rows("xid74_bits.csv", dict, lambda cells: (int(cells["register"]), int(cells["bit"])))
    return MappingProxyType({key: filled(cells, "meaning") for key, cells in rows.items()})


@cache
def sxid_table() -> Mapping[tuple[int, str], SxidRow]:
    """``sxid.csv`` by number and drivers (mostly ""). Raises ValueError naming the line that cannot be read."""
    return keyed_rows("sxid.csv", _sxid_row, lambda row: (row.sxid, row.drivers))


@cache
def sxid_rows(sxid: int) -> tuple[SxidRow, ...]:
    """The rows of one SXid: none, one, or two where its meaning differs for drivers before and from 550."""
    return tuple(row for (number, _), row in sxid_table().items() if number == sxid)


def _xid_row(cells: Mapping[str, str]) -> XidRow:
    ends, _, contained_by = cells["ends_process"].partition(":")
    return as_row(
        cells,
        XidRow,
        mnemonic=cells["mnemonic"],
        pauses_nvml={"yes": True, "no": False}[cells["pauses_nvml"]],
        ends_process={"yes": True, "unless": True, "no": False}[ends],
        contained_by=int(contained_by or 0),
    )


def _nvlink5_rule(cells: Mapping[str, str]) -> NvLink5Rule:
    xid, unit, subcode = int(cells["xid"]), filled(cells, "unit"), int(cells["subcode"])
    status, severity = int(cells["error_status"], 16), filled(cells, "nvidia_severity")
    return NvLink5Rule(
        xid=xid,
        units=frozenset(unit.split("/")),
        subcode=subcode,
        patterns=(_bits(cells["intrinfo_before_575"]), _bits(cells["intrinfo_from_575"])),
        error_status=status,
        nonfatal=severity.startswith("Non-fatal"),
        immediate=filled(cells, "nvidia_immediate"),
        investigate=filled(cells, "nvidia_investigate"),
        verdict=as_row(
            cells,
            XidCase,
            case=f"{unit}/{subcode}/{status:#x}",
            meaning=f"NVLink5 {unit}, sub-code {subcode}, status {status:#x}: {severity}, {filled(cells, 'origin')}",
        ),
    )


def _bits(pattern: str) -> tuple[int, int]:
    """``--01`` as (mask 0b0011, value 0b0001). Raises ValueError for what is not 32 of ``-01``."""
    if len(pattern) != 32 or set(pattern) - set("-01"):
        raise ValueError(f"{pattern!r}: expected 32 of '-', '0' and '1'")
    mask = int("".join("0" if bit == "-" else "1" for bit in pattern), 2)
    return mask, int(pattern.replace("-", "0"), 2)


def _sxid_row(cells: Mapping[str, str]) -> SxidRow:
    return as_row(
        cells,
        SxidRow,
        drivers={"": "", "<550": "<550", ">=550": ">=550"}[cells["drivers"]],
        nonfatal_remedy=Remedy(cells["nonfatal_remedy"]) if cells["nonfatal_remedy"] else None,
        ends=int(cells["ends"]) if cells["ends"] else None,
    )
