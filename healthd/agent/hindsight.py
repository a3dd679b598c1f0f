"""Facts about a fault that a daemon without a memory finds named in a drain, and cannot see any more.

A line of the kernel's log is seen once. After the ring has rolled over, only what ends such a fault says that it is
over: a boot of later than the drain, another machine, or nothing. The journal may still have the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from healthd.checklib.xids import nvlink5_rules, xid_cases, xid_number, xid_row, xid_table
from healthd.core.check import discover
from healthd.core.errors import SourceError
from healthd.core.model import ClearsBy
from healthd.core.node import Tree
from healthd.observe.checkup import Checkup
from healthd.remediation.decide.remediation import ORDERED
from healthd.sources.identity import boot_time
from healthd.sources.journal import JournalBatch, read_kernel_since

_ENDS = (ClearsBy.GPU_RESET, ClearsBy.DRIVER_RELOAD, ClearsBy.REBOOT, ClearsBy.REPLACE)
_SXID, _XID = "nvswitch.sxid.", "gpu.xid."


def ends_by(code: str) -> ClearsBy | None:
    """The event that alone ends faults of this code, the most far-reaching where that depends on the line; None where a
    check sees the fault again, where it ends with its job, and for a command of an operator. A code that neither a
    check of this version nor a table knows needs a boot at least: this version may be older than the drain."""
    declared = [each.clears_by for check in discover().values() for each in check.codes if each.code == code]
    if code.startswith(_SXID):
        declared.append(ClearsBy.REBOOT)  # a fatal line, whatever the number: checks/kernel_sxid.py
    elif (xid := xid_number(code)) is not None and xid in xid_table():
        declared.append(xid_row(xid).clears_by)
        declared += [case.clears_by for (number, _), case in xid_cases().items() if number == xid]
        declared += [rule.verdict.clears_by for rule in nvlink5_rules() if rule.xid == xid]
    if not (declared or _is_known(code)):
        return ClearsBy.REBOOT
    return _largest(each for each in declared if each is not None)


def _is_known(code: str) -> bool:
    """Whether it needs no check of ours: no code, a command, or one of a family that a check judges again."""
    families = (
        each.code.removesuffix("*") for check in discover().values() for each in check.codes if "*" in each.code
    )
    named = (family for family in families if family not in (_XID, _SXID))
    return code in ("", *ORDERED) or code.startswith(tuple(named))


def _largest(ends: Iterable[ClearsBy]) -> ClearsBy | None:
    return max((each for each in ends if each in _ENDS), key=_ENDS.index, default=None)


class JournalHindsight:
    """The hindsight of this machine: its own boot time, and its journal, read by ``read``."""

    def __init__(
        self, checkup: Checkup, proc: Tree, *, read: Callable[[datetime], JournalBatch] = read_kernel_since
    ) -> None:
        self._checkup, self._proc, self._read = checkup, proc, read

    def ends_by(self, code: str) -> ClearsBy | None:
        return ends_by(code)

    def booted_at(self) -> datetime | None:
        try:
            return boot_time(self._proc)
        except SourceError:
            return None

    def reread_log(self, code: str, since: datetime) -> str:
        """Judge what the kernel said since then, as far as it tells of this code. Returns what came of it, in words."""
        try:
            past = self._read(since)
        except SourceError as error:
            return f"the journal could not be read: {error}"
        self._checkup.judge_past_kernel(past.records, code)
        left_out = ", of which the older ones were left out" if past.cut else ""
        left_out += f"; journalctl did not read all of it: {past.unread}" if past.unread else ""
        return f"the journal was read from {since:%Y-%m-%d %H:%M:%S} UTC on: {len(past.records)} kernel lines{left_out}"
