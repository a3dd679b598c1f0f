"""Parsers of the kernel's and common tools' output about a host: one function for each form, text in, values out.

Pure, and it judges nothing; :func:`processes` alone takes the tree, as it reads a file of each. A text without the
expected form raises SourceUnreadable that quotes it: half a parse is no answer. Forms are cited in each function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from healthd.core.errors import SourceError, SourceUnreadable
from healthd.core.node import Tree

_PRESSURE = r"avg10=\S+ avg60=\S+ avg300=([0-9]{1,3}(?:\.[0-9]{1,6})?) total=[0-9]+"
_SHOWN = 120


class Process(Struct, frozen=True, kw_only=True):
    """One line of /proc/PID/stat: the name as the kernel cuts it (15 characters) and the state letter (D, Z, S …)."""

    pid: int
    name: str
    state: str


class Tracking(Struct, frozen=True, kw_only=True):
    """The state of chronyd's clock: ``offset_s`` of the system clock from true time as chronyd estimates it."""

    source: str
    synchronised: bool
    offset_s: float


_DIGITS = 20  # of 2**64, the largest that the kernel prints
_MOST_CPUS = 1 << 16  # eight times CONFIG_NR_CPUS of the largest kernel (arch/x86/Kconfig)


def cpu_list(text: str) -> frozenset[int]:
    """``0-3,8``: the CPUs. The empty text is none. (Linux, Documentation/admin-guide/cputopology.rst.)"""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        try:
            low, high = int(first), int(last or first)
        except ValueError as error:
            raise SourceUnreadable(f"CPU list {_cut(text)}: expected ranges such as 0-3,8") from error
        if high >= _MOST_CPUS:
            raise SourceUnreadable(f"CPU list {_cut(text)}: expected CPUs below {_MOST_CPUS}")
        found.update(range(low, high + 1))
    return frozenset(found)


def uptime_s(text: str) -> float:
    """Seconds since the boot, of /proc/uptime. (proc_uptime(5).)"""
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError) as error:
        raise SourceUnreadable(f"/proc/uptime: {_cut(text)}: expected seconds") from error


def process(text: str) -> Process:
    """``17 (a) b) D 2 …``: the name may hold anything, brackets too. (proc_pid_stat(5).)"""
    pid, opened, rest = text.partition(" (")
    name, closed, after = rest.rpartition(") ")
    if not (opened and closed and after and pid.isdecimal()):
        raise SourceUnreadable(f"/proc/PID/stat {_cut(text)}: expected 'PID (NAME) STATE …'")
    return Process(pid=int(pid), name=name, state=after[0])


def processes(proc: Tree) -> tuple[Process, ...]:
    """Every process, by ``/proc/PID/stat`` alone, which does not touch its memory and so cannot wait for it.

    A process that ends between the listing and the reading is skipped. Raises SourceError where a living one cannot be
    read, and SourceUnreadable where none is listed.
    """
    found = tuple(each for name in proc.names("") if name.isdecimal() and (each := _running(proc, name)) is not None)
    if not found:
        raise SourceUnreadable("/proc lists no process: is the host's /proc visible here?")
    return found


def _running(proc: Tree, pid: str) -> Process | None:
    try:
        return process(proc.read(f"{pid}/stat"))
    except SourceError:
        if proc.exists(f"{pid}/stat"):
            raise
        return None  # it ended before it was read, or while it was (ESRCH)


def pressure(text: str) -> Mapping[str, float]:
    """``some`` and ``full``: the share of the last 300 s, 0 to 1. (Linux, Documentation/accounting/psi.rst.)"""
    found = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if (parts := re.fullmatch(_PRESSURE, rest.strip())) is None:
            raise SourceUnreadable(f"/proc/pressure {_cut(line)}: expected 'some avg10=… avg60=… avg300=… total=…'")
        found[word] = float(parts[1]) / 100
    return found


def key_numbers(text: str) -> Mapping[str, int]:
    """``name 17`` and ``Name:  17 kB`` lines, as /proc/vmstat, /proc/meminfo and ``ethtool -S`` have them.

    Lines of another form (a heading, a value that is no whole number) are skipped. (proc_vmstat(5), ethtool(8).)
    """
    found = {}
    for line in text.splitlines():
        match line.replace(":", " ").split():
            case [name, number, *unit] if number.isdecimal() and len(number) <= _DIGITS and unit in ([], ["kB"]):
                found[name] = int(number)
    return found


def whole(text: str, what: str) -> int:
    """One whole number of the kernel, 0 or more. ``what`` names the file in the error."""
    if not (number := text.strip()).isdecimal() or len(number) > _DIGITS:
        raise SourceUnreadable(f"{what}: {_cut(text)}: expected a whole number")
    return int(number)


def units(text: str) -> tuple[Mapping[str, str], ...]:
    """The blocks that ``systemctl show UNIT…`` prints, one for each unit, divided by empty lines. (systemctl(1).)"""
    blocks = [dict(_pairs(block)) for block in re.split(r"\n\s*\n", text.strip()) if block.strip()]
    for block in blocks:
        if not {"Id", "LoadState", "ActiveState"} <= block.keys():
            raise SourceUnreadable(f"systemctl show {_cut(str(block))}: expected Id, LoadState and ActiveState")
    return tuple(blocks)


def _pairs(block: str) -> Iterator[tuple[str, str]]:
    for line in block.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            yield key, value


def tracking(text: str) -> Tracking:
    """The one line of ``chronyc -c tracking``. (chronyc(1), -c and tracking: 14 fields, the fifth the offset.)"""
    fields = text.strip().split(",")
    try:
        return Tracking(source=fields[1], synchronised=fields[13] != "Not synchronised", offset_s=float(fields[4]))
    except (IndexError, ValueError) as error:
        raise SourceUnreadable(f"chronyc -c tracking {_cut(text)}: expected 14 fields, the fifth a number") from error


def json_object(text: str, what: str) -> Mapping[str, Any]:
    """One JSON object. ``what`` names its source in the error."""
    value = _json(text, what)
    if not isinstance(value, dict):
        raise SourceUnreadable(f"{what}: {_cut(text)}: expected a JSON object")
    return value


def json_text(value: Mapping[str, Any]) -> str:
    """A parsed JSON object as JSON text again."""
    return json.dumps(value)


def json_objects(text: str, what: str) -> tuple[Mapping[str, Any], ...]:
    """A JSON list of objects. ``what`` names its source in the error."""
    value = _json(text, what)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SourceUnreadable(f"{what}: {_cut(text)}: expected a JSON list of objects")
    return tuple(value)


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceUnreadable(f"{what}: {_cut(text)}: expected JSON") from error


def _cut(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
