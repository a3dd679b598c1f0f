"""The grammar of the NVIDIA driver's kernel lines: XIDs of every driver branch, bus drops, identities, driver loads,
and the SXids of its NVSwitches.

Pure, and only grammar: ``checks/data/xid.csv`` and ``sxid.csv`` have the meaning of each code. Shapes are those of
krcReportXid in kernel_rc.c (open-gpu-kernel-modules 515.43.04 to 595.45.04), osinit.c, osapi.c, gpu.c and the
NVSwitch's error_nvswitch.c and intr_nvswitch.h of the same.

A line is recognised at the start of its record's words only (``record_text``). Facility 0 proves that the kernel
wrote a record, not that it chose the words: an unprivileged user can have it echo a text (``tmpfs: Unknown parameter
'…'`` from a mount in a user namespace, measured on 6.18), and begin a record with the name of a process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from healthd.checklib.record_text import NAME_BYTES, after_lead, words_of
from healthd.core.model import pci_address

NVLINK5_XIDS = range(144, 151)
RECOVERY_ACTION_XID = 154
BUS_DROP_XID = 79
GSP_TIMEOUT_XID = 119
NVLINK_XID = 74

_NVRM = "NVRM: "
_NOBODY = "<unknown>"
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


@dataclass(frozen=True, kw_only=True, slots=True)
class XidLine:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuIdentity:
    """The UUID of the GPU at a PCI address; logged before its first XID, and still there when NVML is not."""

    pci: str
    uuid: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverLoad:
    """The driver was loaded."""

    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeHead:
    """The first of three lines, where the third reports that the GPU does not respond."""

    pci: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class NvLink5:
    """The tail of an XID 144 to 150. ``words``: intrinfo, error status and four more registers."""

    unit: str
    fatal: bool
    link: int
    words: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SxidLine:
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


Said = XidLine | GpuIdentity | DriverLoad | ProbeHead | None


def parse_line(text: str) -> Said:
    """One kernel record, parsed; None where it is not the NVIDIA driver's, or of another form. Never raises."""
    at = after_lead(text)
    if not text.startswith(_NVRM, at) or text[at + len(_NVRM) : at + len(_NVRM) + 1] not in _FIRST:
        return None
    said = _said(text, at + len(_NVRM))
    return said if said is not None and words_of(text).at == at else None


@lru_cache(maxsize=1024)
def parse_sxid(text: str) -> SxidLine | None:
    """One kernel record of an NVSwitch, parsed; None where it concerns none. Never raises.

    The forms: a severity word with a link, one without (``…, instance=2, chiplet=1``), no severity word at all (heat,
    the switch's own controller, optical modules), and lines that continue the one before with the same number.
    """
    at = after_lead(text)
    match = _SXID.match(text, at)
    if match is None or words_of(text).at != at:
        return None
    switch, pci, sxid, rest = match.groups()
    said = _SXID_TEXT.match(rest)
    return SxidLine(
        sxid=int(sxid),
        pci=_pci(pci),
        switch=int(switch),
        text=said[3] if said else rest,
        word=said[1] if said else None,
        link=int(said[2]) if said and said[2] else None,
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
    rest_of_name = max(0, NAME_BYTES - len(line.process or _NOBODY))  # with the comma and the blank behind it
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


# ---------------------------------------------------------------------------------------------------------------------


def _said(text: str, at: int) -> Said:
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
        process=None if process == _NOBODY else process,
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
