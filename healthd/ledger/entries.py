"""The rows of a fleet's ledger: entries, spans of node states, watch intervals, and sightings of GPUs. Pure.

Each has a natural key, so that the same fact written twice is one row. Times are aware UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field


class EntryKind(StrEnum):
    """The kinds of entries. RETURN: a node that went out came back without a repair for that finding. JOB: a device of
    a running job differed from its peers: a finding in shadow."""

    FAULT = "fault"
    REPAIR = "repair"
    REPLACEMENT = "replacement"
    RETURN = "return"
    JOB = "job"


class SpanState(StrEnum):
    """The state of a node over a span of time.

    SERVING: in service, and its agent reports no critical fault: only this is exposure. FAULTY: in service with one.
    UNKNOWN: in service, and a check cannot tell. OUT: gets no new jobs. SILENT: its agent does not report, so that
    nothing is known. ASLEEP: a name without a machine.
    """

    SERVING = "serving"
    FAULTY = "faulty"
    UNKNOWN = "unknown"
    OUT = "out"
    SILENT = "silent"
    ASLEEP = "asleep"


class LedgerGpu(Struct, frozen=True, kw_only=True):
    """One GPU of a node. ``serial``: the serial number of its board; "" where the driver does not tell it."""

    uuid: str
    serial: str = ""
    index: str = ""


class MachineIdentity(Struct, frozen=True, kw_only=True):
    """The machine behind a node's name, as far as it is known; "" for what is not.

    ``rack``: the leaf switch, block or rack that the cluster knows it in. ``network``: its network nodes by EC2, the
    top layer first; ``capacity_block``: of an UltraServer, its NVLink domain by EC2.
    """

    instance: str = ""
    instance_type: str = ""
    rack: str = ""
    image: str = ""
    driver: str = ""
    gpus: tuple[LedgerGpu, ...] = ()
    network: tuple[str, ...] = ()
    capacity_block: str = ""

    @property
    def place(self) -> str:
        """Its rack; where the cluster knows none, its Capacity Block, else the network node that it is connected to."""
        return self.rack or self.capacity_block or (self.network[-1] if self.network else "")

    def completed_by(self, earlier: MachineIdentity) -> MachineIdentity:
        """This identity, with what an earlier one of the same machine knew beside it. Another instance is another
        machine: of that one only type and rack stay."""
        is_same = not (self.instance and earlier.instance and self.instance != earlier.instance)
        return MachineIdentity(
            instance=self.instance or earlier.instance,
            instance_type=self.instance_type or earlier.instance_type,
            rack=self.rack or earlier.rack,
            image=self.image or (earlier.image if is_same else ""),
            driver=self.driver or (earlier.driver if is_same else ""),
            gpus=self.gpus or (earlier.gpus if is_same else ()),
            network=self.network or (earlier.network if is_same else ()),
            capacity_block=self.capacity_block or (earlier.capacity_block if is_same else ""),
        )

    def gpu_of(self, component: str) -> LedgerGpu | None:
        """The GPU that a component names: ``gpu:GPU-…``, or a part of it such as ``nvlink:GPU-…/3``, or ``GPU 3``."""
        name = component.partition(":")[2].partition("/")[0]
        index = component.removeprefix("GPU ") if component.startswith("GPU ") else None
        return next((each for each in self.gpus if each.uuid == name or (index and each.index == index)), None)

    def entry(self, kind: EntryKind, node: str, at: datetime, code: str) -> LedgerEntry:
        """An entry about this machine, behind the name ``node``."""
        return LedgerEntry(
            kind=kind,
            node=node,
            at=at,
            code=code,
            instance=self.instance,
            instance_type=self.instance_type,
            rack=self.place,
            image=self.image,
            driver=self.driver,
        )

    def sightings(self, node: str, now: datetime) -> tuple[GpuSighting, ...]:
        """Its GPUs, behind the name ``node``, as they are seen now."""
        return tuple(
            GpuSighting(gpu=each.uuid, serial=each.serial, node=node, instance=self.instance, first=now, last=now)
            for each in self.gpus
        )


UNKNOWN_MACHINE = MachineIdentity()


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """One thing that happened to a node.

    ``until``: when it was over; None while it lasts, or where that is not known. ``critical``: of a fault, whether it
    takes a node out. ``act`` and ``outcome``: of a repair, ``reset``, ``reboot`` or ``replace``, and ``helped``,
    ``failed`` or "" for not known; of a job, its number and the device, and the finding with its numbers. ``evidence``:
    of a replacement, the address of the bundle that was uploaded before it. ``instance`` to ``driver``: the machine
    that the node had then.
    """

    kind: EntryKind
    node: str
    at: datetime
    until: datetime | None = None
    code: str = ""
    component: str = ""
    critical: bool = False
    act: str = ""
    outcome: str = ""
    gpu: str = ""
    serial: str = ""
    instance: str = ""
    instance_type: str = ""
    rack: str = ""
    image: str = ""
    driver: str = ""
    evidence: str = ""

    @property
    def key(self) -> str:
        """Its natural key: the same thing reported again has the same one. Times count in whole seconds."""
        what = f"{self.code}|{self.component}" if self.kind is EntryKind.FAULT else self.act
        return f"{self.kind}|{self.node}|{int(self.at.timestamp())}|{what}"


class LedgerJob(Struct, frozen=True, kw_only=True):
    """One run of a job that ended badly, and whose fault that was. ``at``: when it ended, or where the cluster does not
    say, when the controller saw it. ``run``: how often it ran before. ``state``: the cluster's word. ``verdict``:
    ``node``, ``job`` or ``unknown``; ``sentence`` says why, ``code`` is the fault's. ``notice``: the sentence that
    its owner has not got yet, "" for none."""

    job: str
    run: int
    at: datetime
    user: str = ""
    nodes: str = ""
    state: str = ""
    ending: str = ""
    verdict: str = ""
    sentence: str = ""
    code: str = ""
    notice: str = ""


class NodeSpan(Struct, frozen=True, kw_only=True):
    """A node was in one state from ``start`` to ``until``, None while it is. ``cause``: why it was not SERVING."""

    node: str
    start: datetime
    state: SpanState
    cause: str = ""
    until: datetime | None = None
    instance_type: str = ""
    rack: str = ""


class WatchInterval(Struct, frozen=True, kw_only=True):
    """The ledger read the fleet from ``start`` to ``until`` without a gap. Outside such intervals nothing is known."""

    start: datetime
    until: datetime


class GpuSighting(Struct, frozen=True, kw_only=True):
    """One GPU was in one node from ``first`` to ``last``, as far as it was seen."""

    gpu: str
    serial: str
    node: str
    instance: str
    first: datetime
    last: datetime


class LedgerContents(Struct, frozen=True, kw_only=True):
    """All that a report or a history is made from. ``machines``: the last one known behind each node's name."""

    entries: tuple[LedgerEntry, ...] = ()
    spans: tuple[NodeSpan, ...] = ()
    watched: tuple[WatchInterval, ...] = ()
    gpus: tuple[GpuSighting, ...] = ()
    machines: Mapping[str, MachineIdentity] = field(default_factory=dict)
