"""A node of a replay, of which only kernel lines are left: a ``Node`` for kernel checks, and its lines in batches.

A process id of the past must not be looked up among today's processes, so every source but the records is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from healthd.checklib.loglines import after_lead
from healthd.config.schema.config import CheckConfig
from healthd.core.check import Check
from healthd.core.errors import SourceMissing
from healthd.core.model import Outcome
from healthd.core.node import (
    ActiveTests,
    AllReduce,
    CommandResult,
    FileProbe,
    GdrCopy,
    GpuAnswer,
    Holders,
    KernelClock,
    KernelLogState,
    KernelRecord,
    Mount,
    Nvml,
    ProbeState,
    Space,
    Tree,
)
from healthd.observe.runner import run_check
from healthd.sources.pastlines import LogLine

BOOTED = "Linux version "
"""The beginning of the kernel's first line of a boot."""

_BATCH_RECORDS = 1024
_BATCH_S = 1.0
_HEAD_CHARS = 3
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class _Nothing:
    """A tree, an NVML and active tests that are missing."""

    def read(self, path: str) -> str:
        _missing(path)

    def names(self, path: str) -> tuple[str, ...]:
        _missing(path)

    def exists(self, path: str) -> bool:
        """Raises SourceMissing: the files of that time are not known."""
        _missing(path)

    def target(self, path: str) -> str:
        _missing(path)

    def may_open(self, path: str) -> bool:
        _missing(path)

    def ask(self, *calls: str, fields: Sequence[int | tuple[int, int]] = ()) -> tuple[GpuAnswer, ...]:
        _missing("NVML")

    def system(self) -> Mapping[str, Any]:
        _missing("NVML")

    def state(self) -> ProbeState:
        return ProbeState()

    def all_reduce(self, path: Literal["nvlink", "network"], *, size_bytes: int, timeout_s: float) -> AllReduce:
        _missing("all-reduce")

    def gdr_copies(self, *, size_bytes: int, timeout_s: float) -> tuple[GdrCopy, ...]:
        _missing("GDRCopy")


def _missing(what: str) -> NoReturn:
    raise SourceMissing(f"{what}: only the kernel lines of this node are left")


_NOTHING = _Nothing()


class PastNode(Struct, frozen=True, kw_only=True):
    """One node of the past."""

    name: str
    instance_type: str | None = None
    boot_id: str = ""
    kernel_records: Sequence[KernelRecord] = ()
    sys: Tree = _NOTHING
    proc: Tree = _NOTHING
    dev: Tree = _NOTHING
    nvml: Nvml = _NOTHING
    active: ActiveTests = _NOTHING

    @property
    def kernel_log(self) -> KernelLogState:
        """The state of a log that was read."""
        return KernelLogState(source="a past log", alive=True)

    def mounts(self) -> tuple[Mount, ...]:
        _missing("mounts")

    def space(self, point: str) -> Space:
        _missing(point)

    def holders(self, point: str) -> Holders:
        _missing(point)

    def file_probe(self, point: str, folder: str = "", *, size_bytes: int = 1 << 18) -> FileProbe:
        _missing(point)

    def mount_state(self, point: str) -> ProbeState:
        return ProbeState()

    def clock(self) -> KernelClock:
        _missing("clock")

    def metadata(self, path: str) -> str | None:
        _missing(path)

    def command(self, *argv: str, timeout_s: float = 5.0) -> CommandResult:
        """Raises SourceMissing: a command shows the present, not the past."""
        _missing(argv[0])


class ReplayBatch:
    """Kernel records that the daemon would have read at once: of one boot, within a second, up to a number."""

    def __init__(self) -> None:
        self.records: list[KernelRecord] = []
        self.until = _LONG_AGO
        self._boot = ""

    def is_over(self, line: LogLine) -> bool:
        """Whether this line belongs to the next batch."""
        records = self.records
        return bool(records) and (
            line.time > self.until
            or line.boot != self._boot
            or len(records) >= _BATCH_RECORDS
            or line.text.startswith(BOOTED)
        )

    def add(self, line: LogLine) -> None:
        """Add a record."""
        if not self.records:
            self.until, self._boot = line.time + timedelta(seconds=_BATCH_S), line.boot
        self.records.append(
            KernelRecord(
                boot_id=line.boot, sequence=len(self.records), time=line.time, text=line.text, trusted=line.trusted
            )
        )

    def taken(self) -> tuple[KernelRecord, ...]:
        """Return the records, and begin the next batch."""
        records, self.records = tuple(self.records), []
        return records


def wanted_by(checks: Mapping[str, Check], settings: Mapping[str, CheckConfig]) -> Callable[[str], bool]:
    """A function: whether any check wants a line, or it is the first of a boot. It asks only checks whose needles can
    begin so. A check without needles wants every line."""
    asked: dict[str, list[tuple[Callable[[str, Any], bool], Any]]] = {"": []}
    for name, check in checks.items():
        own = settings[name].settings
        if check.wants is None:
            return lambda _text: True
        for head in _heads(check.needles_with(own)):
            asked.setdefault(head, []).append((check.wants, own))
    anything = tuple(asked.pop(""))
    by_head = {head: (*asked_so, *anything) for head, asked_so in asked.items()}

    def is_wanted(text: str) -> bool:
        at = after_lead(text)
        for wants, own in by_head.get(text[at : at + _HEAD_CHARS], anything):  # a generator costs half as much again
            if wants(text, own):
                return True
        return text.startswith(BOOTED)

    return is_wanted


def _heads(needles: Sequence[str]) -> set[str]:
    """The possible beginnings of lines that hold these needles; "" for any."""
    heads = {needle[1 : 1 + _HEAD_CHARS] if needle.startswith("^") else "" for needle in needles}
    return {""} if any(len(head) < _HEAD_CHARS for head in heads) else heads


def outcomes_of(
    checks: Mapping[str, Check], settings: Mapping[str, CheckConfig], node: PastNode, records: Sequence[KernelRecord]
) -> Iterator[Outcome]:
    """The outcome of each kernel check that reads a line of the batch, at the time of its last line."""
    then = replace(node, kernel_records=records)
    at = max(record.time for record in records)
    for name, check in checks.items():
        own = settings[name].settings
        if check.reads(records, own):
            yield replace(run_check(check, then, own), at=at)
