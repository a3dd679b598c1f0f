"""The news in a reading of one node: faults that began or ended, repairs, returns, another state. Pure.

A reading that says what the one before said adds nothing. Everything else is written under natural keys, so that a
controller that died before, in or after the write does the same again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from healthd.ledger.entries import (
    UNKNOWN_MACHINE,
    EntryKind,
    GpuSighting,
    LedgerEntry,
    MachineIdentity,
    NodeSpan,
    SpanState,
)
from healthd.remediation.records.handoff import PastAct, PastRepair, RepairResult

_OLDEST = datetime(2000, 1, 1, tzinfo=UTC)
"""No fault is older. A user may answer for a node, and a time of the year 1 cannot be read from the file again."""
_NUMBER = re.compile(r"\d+")
_KINDS = {PastAct.RETURN: EntryKind.RETURN, PastAct.REPLACE: EntryKind.REPLACEMENT}


class SeenFault(Struct, frozen=True, kw_only=True):
    """One open fault. ``since`` None: not reported. ``component``: ``gpu:GPU-…``, ``GPU 3``, or "" for the node."""

    code: str
    component: str = ""
    since: datetime | None = None
    critical: bool = True


class NodeReading(Struct, frozen=True, kw_only=True):
    """One node as the cluster shows it now.

    ``faults``: the open ones that are known; ``is_whole``: there are no others. ``history``: the acts in its handoff
    record. ``evidence``: the address of the bundle that was uploaded before the newest replacement. ``machine``: the
    identity of its machine, as far as this reading has it.
    """

    node: str
    state: SpanState
    cause: str = ""
    faults: tuple[SeenFault, ...] = ()
    is_whole: bool = True
    history: tuple[PastRepair, ...] = ()
    evidence: str = ""
    machine: MachineIdentity = UNKNOWN_MACHINE

    def tells_the_same(self, before: NodeReading | None) -> bool:
        """Whether nothing is new in it but times of open faults, which move with the steps of a repair, and numbers in
        the reason of another owner, which may be written every minute."""
        return self == before or (before is not None and _without_times(self) == _without_times(before))


class NodeMemory(Struct, frozen=True, kw_only=True):
    """The open rows of one node: its machine, its span, and the faults that are not over."""

    machine: MachineIdentity = UNKNOWN_MACHINE
    span: NodeSpan | None = None
    faults: tuple[LedgerEntry, ...] = ()


class NodeChanges(Struct, frozen=True, kw_only=True):
    """Rows to write, each inserted or replaced by its key, and what is open after that."""

    after: NodeMemory
    entries: tuple[LedgerEntry, ...] = ()
    spans: tuple[NodeSpan, ...] = ()
    gpus: tuple[GpuSighting, ...] = ()


def node_changes(
    before: NodeMemory, reading: NodeReading, now: datetime, *, known_until: datetime | None = None
) -> NodeChanges:
    """The changes by one reading at ``now``. ``known_until``: where the ledger did not watch until now, the end of the
    time that it did: what ended in between ended for it then."""
    machine = reading.machine.completed_by(before.machine)
    ended = known_until or now
    spans = _spans(before.span, reading, machine, now, ended)
    going_on, changed = _faults(before.faults, reading, machine, now, ended)
    given_away, earlier = _given_away(before.machine, machine, reading.history)
    past = tuple(_past(reading, each, earlier if each.at <= given_away else machine) for each in reading.history)
    sightings = machine.sightings(reading.node, now) if reading.machine.gpus else ()  # not those of an earlier reading
    after = NodeMemory(machine=machine, span=spans[-1] if spans else before.span, faults=going_on)
    return NodeChanges(after=after, entries=(*changed, *past), spans=spans, gpus=sightings)


def with_inventory(reading: NodeReading, machine: MachineIdentity, faults: tuple[SeenFault, ...]) -> NodeReading:
    """A reading completed by what the node says of itself: its machine, and every open fault by its component. A fault
    that the cluster shows alone stays, because the node may have had it repaired by now; a warning for which it shows
    the node out, or in need of an operator, is more than that."""
    messages, out_for = {each.code for each in faults}, {each.code for each in reading.faults if each.critical}
    own = tuple(replace(each, critical=each.critical or each.code in out_for) for each in faults)
    shown = tuple(each for each in reading.faults if each.code not in messages)
    whole = machine.completed_by(reading.machine)
    return replace(reading, machine=whole, faults=(*own, *shown), is_whole=True)


def gone_changes(before: NodeMemory, ended: datetime) -> NodeChanges:
    """The changes where a node is no longer listed: its span and its faults end."""
    spans = () if before.span is None else (replace(before.span, until=ended),)
    entries = tuple(replace(each, until=ended) for each in before.faults)
    return NodeChanges(after=NodeMemory(machine=before.machine), entries=entries, spans=spans)


def placed(
    reading: NodeReading, known: MachineIdentity, *, network: tuple[str, ...], capacity_block: str
) -> NodeReading:
    """A reading of the machine that is known, with its place in EC2's network. A node that says that it is another
    machine loses the place again."""
    instance = reading.machine.instance or known.instance
    machine = replace(reading.machine, instance=instance, network=network, capacity_block=capacity_block)
    return replace(reading, machine=machine)


# ---------------------------------------------------------------------------------------------------------------------


def _without_times(reading: NodeReading) -> NodeReading:
    faults = tuple(sorted((replace(each, since=None) for each in reading.faults), key=str))
    return replace(reading, faults=faults, cause=_without_numbers(reading.cause))


def _without_numbers(cause: str) -> str:
    """A cause without the numbers in the text of another owner; one of healthd's is a code, without such a text."""
    owner, is_text, text = cause.partition(": ")
    return f"{owner}{is_text}{_NUMBER.sub('', text)}"


def _spans(
    before: NodeSpan | None, reading: NodeReading, machine: MachineIdentity, now: datetime, ended: datetime
) -> tuple[NodeSpan, ...]:
    """The span that ends, if one does, and the one that begins; none where the state goes on. One that began by a clock
    that was ahead ends where it began."""
    began = NodeSpan(
        node=reading.node,
        start=now,
        state=reading.state,
        cause=reading.cause,
        instance_type=machine.instance_type,
        rack=machine.place,
    )
    if before is None:
        return (began,)
    if replace(before, start=now, until=None, cause=_without_numbers(before.cause)) == replace(
        began, cause=_without_numbers(began.cause)
    ):
        return ()
    return (replace(before, until=max(ended, before.start)), began) if before.start != now else (began,)


def _faults(
    open_before: Sequence[LedgerEntry], reading: NodeReading, machine: MachineIdentity, now: datetime, ended: datetime
) -> tuple[tuple[LedgerEntry, ...], tuple[LedgerEntry, ...]]:
    """(the faults that are open after this reading, the entries that are new or changed).

    While a node is silent, or a check of it cannot tell, no fault is over because it is not named.
    """
    going_on: list[LedgerEntry] = []
    changed: list[LedgerEntry] = []
    left = list(reading.faults)
    for entry in open_before:
        seen = _same(entry, left, reading.machine)
        if seen is not None:
            left.remove(seen)
            reported = _identified(replace(entry, critical=entry.critical or seen.critical), seen, machine)
            going_on.append(reported)
            changed += [reported] if reported != entry else []
        elif not reading.is_whole or reading.state in (SpanState.SILENT, SpanState.UNKNOWN):
            going_on.append(entry)
        else:
            changed.append(replace(entry, until=max(ended, entry.at)))
    begun = [_begun(reading, each, machine, now) for each in left]
    return (*going_on, *begun), (*changed, *begun)


def _same(entry: LedgerEntry, seen: Iterable[SeenFault], machine: MachineIdentity) -> SeenFault | None:
    """The fault that an open entry is about: same code and component, or the same code where one side names the
    component otherwise (an index, or nothing). ``machine``: of this reading, which tells which GPU an index is."""
    gpu = machine.gpu_of(entry.component)
    alike = [
        each
        for each in seen
        if each.code == entry.code and (gpu is None or machine.gpu_of(each.component) in (None, gpu))
    ]
    exact = next((each for each in alike if each.component == entry.component), None)
    return exact or next(
        (each for each in alike if not (_is_exact(each.component) and _is_exact(entry.component))), None
    )


def _is_exact(component: str) -> bool:
    return ":" in component


def _identified(entry: LedgerEntry, seen: SeenFault, machine: MachineIdentity) -> LedgerEntry:
    """The entry with the GPU that a later reading told. Its key stays: it is the same fault."""
    if entry.serial or not (_is_exact(seen.component) or _is_exact(entry.component)):
        return entry
    gpu = machine.gpu_of(seen.component if _is_exact(seen.component) else entry.component)
    return entry if gpu is None else replace(entry, gpu=gpu.uuid, serial=gpu.serial)


def _begun(reading: NodeReading, seen: SeenFault, machine: MachineIdentity, now: datetime) -> LedgerEntry:
    """The entry of a fault. An index names a GPU only beside the inventory of this very reading: an earlier one may be
    of another machine."""
    since = seen.since if seen.since is not None and _OLDEST <= seen.since <= now else now
    gpu = (machine if _is_exact(seen.component) else reading.machine).gpu_of(seen.component)
    uuid = seen.component.partition(":")[2].partition("/")[0]
    return replace(
        machine.entry(EntryKind.FAULT, reading.node, since, seen.code),
        component=seen.component,
        critical=seen.critical,
        gpu=gpu.uuid if gpu is not None else uuid if uuid.startswith("GPU-") else "",
        serial=gpu.serial if gpu is not None else "",
    )


def _given_away(
    before: MachineIdentity, machine: MachineIdentity, history: Sequence[PastRepair]
) -> tuple[datetime, MachineIdentity]:
    """(when a machine of this name was last given away, that machine): the one that was known before, where another is
    there now; else an unknown one of this type and rack. A replacement whose end is not known may not have come."""
    is_another = before.instance not in ("", machine.instance)
    acts = (each for each in history if each.act is PastAct.REPLACE)
    over = [each.at for each in acts if is_another or each.outcome is RepairResult.HELPED]
    earlier = before if is_another else MachineIdentity(instance_type=machine.instance_type, rack=machine.rack)
    return max(over, default=_OLDEST), earlier


def _past(reading: NodeReading, past: PastRepair, machine: MachineIdentity) -> LedgerEntry:
    """The entry of an act in a handoff record. The store keeps the machine of its first writing, and an address."""
    kind = _KINDS.get(past.act, EntryKind.REPAIR)
    entry = machine.entry(kind, reading.node, past.at, past.code)
    newest = max((each.at for each in reading.history if each.act is PastAct.REPLACE), default=None)
    evidence = reading.evidence if kind is EntryKind.REPLACEMENT and past.at == newest else ""
    return replace(entry, act=past.act.value, outcome=past.outcome.value, until=past.back, evidence=evidence)
