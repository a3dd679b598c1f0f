"""Puts the fault of a drill where the real one would enter, for the drill alone.

A line goes to the reader of the kernel log. For every other fault the drill's check gets a copy of the machine in which
one source answers differently; the node's own checks never see that copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from healthd.checklib.pci import efa_functions, nvswitch_functions, pci_children, pci_gpus
from healthd.checklib.xids import xid_row
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable, UsageError
from healthd.core.model import pci_address
from healthd.core.node import GpuAnswer, Mount, Tree
from healthd.drill.chain import DrillRequest, sxid_line, xid_line
from healthd.sources.filesystem import FilesystemSource
from healthd.sources.machine import Machine
from healthd.sources.mounts import parse_mountinfo
from healthd.sources.nvml import NvmlSource

_SILENCE = "healthd.probe.silence"
_MOUNTS = "self/mountinfo"
_PCI = "bus/pci/devices"
_ROWS = "nvmlDeviceGetRemappedRows"


class Injection(Struct, frozen=True, kw_only=True):
    """The fault that is played. ``what``: the fault and its component, as text. ``where``: where it enters, as text.

    ``machine``: the copy that the check reads. ``line``: the text of the kernel record, or "". ``close`` ends the
    workers of the drill. ``note``: an effect of a real fault that this one lacks.
    """

    what: str
    where: str
    machine: Machine
    line: str = ""
    note: str = ""
    close: Callable[[], None] = lambda: None


class Overlay:
    """A file tree in which some paths are missing, with all below them, and some files have another text."""

    def __init__(self, under: Tree, *, hidden: Collection[str] = (), texts: Mapping[str, str] | None = None) -> None:
        self._under, self._hidden, self._texts = under, frozenset(hidden), texts or {}

    def read(self, path: str) -> str:
        """The text of a file. Raises as the tree below, and SourceMissing for a hidden path."""
        self._refuse(path)
        return self._texts[path] if path in self._texts else self._under.read(path)

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a folder, but for those that are hidden. Raises as :meth:`read`."""
        self._refuse(path)
        return tuple(name for name in self._under.names(path) if f"{path}/{name}" not in self._hidden)

    def exists(self, path: str) -> bool:
        """Whether the path exists and is not hidden. Raises SourceUnreadable."""
        return not self._is_hidden(path) and self._under.exists(path)

    def target(self, path: str) -> str:
        """The last part of where a link leads. Raises as :meth:`read`."""
        self._refuse(path)
        return self._under.target(path)

    def may_open(self, path: str) -> bool:
        """Whether the path may be opened and is not hidden."""
        return not self._is_hidden(path) and self._under.may_open(path)

    def _refuse(self, path: str) -> None:
        if self._is_hidden(path):
            raise SourceMissing(f"{path}: missing in this drill")

    def _is_hidden(self, path: str) -> bool:
        return any(path == each or path.startswith(f"{each}/") for each in self._hidden)


def prepare(request: DrillRequest, machine: Machine, settings: Any) -> Injection:
    """The fault to play on this machine. ``settings``: of the check that must find it.

    Raises UsageError for a component that this machine does not have, SourceError where the machine does not report it.
    """
    number = request.number or 0
    match request.kind.name:
        case "xid":
            return _xid(machine, number, request.gpu)
        case "sxid":
            return _sxid(machine, number)
        case "efa-loss":
            return _efa_loss(machine)
        case "lustre-hang":
            return _hang(machine, request.mount, settings)
        case "nvml-hang":
            _gpu(machine, "")  # raises where the node has no GPU, and so no NVML
            silent = NvmlSource(module=_SILENCE)
            what, where = "NVML does not answer", "the boundary of the NVML worker"
            return Injection(what=what, where=where, machine=replace(machine, nvml=silent), close=silent.end)
        case "remap-pending":
            return _remap_pending(machine, request.gpu)
        case "read-only":
            return _read_only(machine, request.mount or "/")
        case unreachable:
            raise UsageError(f"healthd drill: {unreachable!r} cannot be played; see healthd drill --list")


# ---------------------------------------------------------------------------------------------------------------------
# the kernel log


def _xid(machine: Machine, xid: int, asked: str) -> Injection:
    index, pci = _gpu(machine, asked)
    pauses = "a real one also pauses NVML calls for a while" if xid_row(xid).pauses_nvml else ""
    line = xid_line(pci, xid)
    return Injection(
        what=f"XID {xid} on GPU {index} ({pci})", where="the reader of the kernel log", machine=machine, line=line,
        note=pauses,
    )  # fmt: skip


def _sxid(machine: Machine, sxid: int) -> Injection:
    switches = nvswitch_functions(machine)
    if not switches:
        message = "this node has no NVSwitch on its PCI bus; on Blackwell their faults are XID 144 to 150"
        raise UsageError(f"healthd drill: {message}")
    line, what = sxid_line(switches[0], sxid), f"SXid {sxid}, Fatal, on NVSwitch {switches[0]}"
    return Injection(what=what, where="the reader of the kernel log", machine=machine, line=line)


# ---------------------------------------------------------------------------------------------------------------------
# devices


def _efa_loss(machine: Machine) -> Injection:
    there = efa_functions(machine)
    if not there:
        raise UsageError("healthd drill: this node has no EFA device on its PCI bus")
    gone = there[-1]
    names = pci_children(machine, gone, "infiniband")
    hidden = [f"{_PCI}/{gone}", *(f"class/infiniband/{name}" for name in names)]
    return Injection(
        what=f"EFA device {' '.join((*names, gone))} is missing, {len(there) - 1} of {len(there)} are left",
        where="the files of /sys",
        machine=replace(machine, sys=Overlay(machine.sys, hidden=hidden)),
    )


def _remap_pending(machine: Machine, asked: str) -> Injection:
    index, pci = _gpu(machine, asked)

    def pending(answer: GpuAnswer) -> GpuAnswer:
        rows = answer.values.get(_ROWS)
        if answer.pci != pci or not isinstance(rows, Sequence) or len(rows) != 4:
            return answer
        correctable, uncorrectable, _, failure = rows
        return replace(answer, values={**answer.values, _ROWS: (correctable, uncorrectable, 1, failure)})

    return Injection(
        what=f"a row remap is pending on GPU {index} ({pci})",
        where="the answer of the NVML worker",
        machine=replace(machine, nvml=machine.nvml.altered(pending)),
    )


def _gpu(machine: Machine, asked: str) -> tuple[int, str]:
    """(index, PCI address) of a GPU by either; the first without a wish. Raises UsageError, SourceError."""
    gpus = _gpus(machine)
    if not gpus:
        raise UsageError("healthd drill: this node has no NVIDIA GPU on its PCI bus")
    if not asked:
        return min(gpus.items())
    try:
        index = int(asked) if re.fullmatch(r"[0-9]{1,3}", asked) else _index_of(gpus, pci_address(asked))
        return index, gpus[index]
    except (KeyError, ValueError) as error:
        listed = ", ".join(f"{index} ({pci})" for index, pci in gpus.items())
        raise UsageError(f"healthd drill: this node has no GPU {asked!r}; expected one of: {listed}") from error


def _gpus(machine: Machine) -> dict[int, str]:
    """The GPUs by NVML's index, or in the order of the bus where NVML does not answer."""
    try:
        answered = {answer.index: answer.pci for answer in machine.nvml.ask()}
    except SourceError:
        answered = {}
    named = {index: pci for index, pci in answered.items() if pci}
    return named or dict(enumerate(pci_gpus(machine)))


def _index_of(gpus: Mapping[int, str], pci: str) -> int:
    return {address: index for index, address in gpus.items()}[pci]


# ---------------------------------------------------------------------------------------------------------------------
# file systems


def _hang(machine: Machine, asked: str, settings: Any) -> Injection:
    wanted = [
        mount
        for mount in machine.mounts()
        if mount.fstype in settings.fstypes
        and not any(mount.point == point or mount.point.startswith(f"{point}/") for point in settings.ignore)
    ]
    kinds = ", ".join(settings.fstypes)
    mount = _chosen(wanted, asked, f"a mount of type {kinds} that lustre.io asks")
    silent = FilesystemSource(module=_SILENCE)
    alone = Overlay(
        machine.proc, texts={_MOUNTS: _line_of(machine, mount)}
    )  # keeps the other mounts out of the check run
    return Injection(
        what=f"{mount.point} ({mount.fstype}, {mount.source}) does not answer",
        where="the boundary of the mount's worker",
        machine=replace(machine, proc=alone, file_systems=silent),
        close=silent.close,
    )


def _read_only(machine: Machine, point: str) -> Injection:
    mount = _chosen(machine.mounts(), point, "a mount point of this node")
    line = f"{_line_of(machine, mount)},emergency_ro"  # as Linux 6.18 shows an ext4 that stopped after an error
    return Injection(
        what=f"{mount.point} ({mount.fstype}, {mount.source}) takes no writes after an error",
        where="the mount table",
        machine=replace(machine, proc=Overlay(machine.proc, texts={_MOUNTS: line})),
    )


def _chosen(mounts: Sequence[Mount], asked: str, expected: str) -> Mount:
    """The mount that programs see at a point: the last one on it. Raises UsageError."""
    tops = {mount.point: mount for mount in mounts}
    if not tops:
        raise UsageError(f"healthd drill: this node has no {expected.removeprefix('a ')}")
    if asked and asked not in tops:
        raise UsageError(f"healthd drill: {asked!r} is not {expected}; expected one of: {', '.join(tops)}")
    return tops[asked] if asked else next(iter(tops.values()))


def _line_of(machine: Machine, mount: Mount) -> str:
    lines = machine.proc.read(_MOUNTS).split("\n")  # no other character ends a line: a user may have named a mount
    for line in reversed(lines):
        if parse_mountinfo(line) == (mount,):
            return line
    raise SourceUnreadable(f"{mount.point}: the mount table has changed meanwhile; ask again")
