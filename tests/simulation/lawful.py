"""A fleet that fails by a known law, as a ledger sees it: summaries, handoff records and inventories of its nodes.

GPUs fail by themselves at a constant rate while their node serves, lemons far more often. A fault is rebooted, and
where that does not help, the machine is replaced by the one that has waited longest in the provider's pool: so
machines, and their GPUs, come back under other names. Everything is said in the texts of production (``NodeSummary``,
``HandoffRecord``) and read by its readers. The seed decides all.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random

from msgspec import Struct, field

from healthd.core.model import Mode, Step
from healthd.fleet.nodes import fleet_nodes
from healthd.fleet.readings import reading_of
from healthd.ledger.changes import NodeReading, SeenFault, with_inventory
from healthd.ledger.entries import LedgerGpu, MachineIdentity
from healthd.remediation.decide.remediation import PREFIX
from healthd.remediation.ports import Hold, ListedNode
from healthd.remediation.records.handoff import (
    HandoffRecord,
    PastAct,
    PastRepair,
    RepairResult,
    remembering,
    with_outcome,
)
from healthd.remediation.records.summary import NodeState, NodeSummary

START = datetime(2026, 1, 1, tzinfo=UTC)
CODES = ("gpu.xid.79", "gpu.xid.95", "gpu.xid.119")
HOUR = 3600.0
SILENT_AFTER_S = 1500.0
GPUS, RACK = 8, 16


class FailureLaw(Struct, frozen=True, kw_only=True):
    """Mean hours between two faults of one node, by instance type; how many GPUs are lemons, and how much more often
    those fail; how many of all reboots help; how often a node falls silent, and for how long."""

    mtbf_h: Mapping[str, float] = field(default_factory=lambda: {"p5.48xlarge": 400.0, "p4d.24xlarge": 900.0})
    lemons: int = 3
    lemon_times: float = 200.0
    reboot_helps: float = 0.5
    silence_every_h: float = 2000.0
    silence_h: float = 8.0


class TrueFault(Struct, frozen=True, kw_only=True):
    """A fault as nature had it. ``silent``: its node did not report then."""

    at: datetime
    node: str
    code: str
    serial: str
    silent: bool


class _Machine(Struct, eq=False):
    instance: str
    instance_type: str
    gpus: tuple[LedgerGpu, ...]
    rates: tuple[float, ...]  # faults an hour, of each GPU


class _Node(Struct, eq=False):
    name: str
    rack: str
    machine: _Machine
    version: int = 0
    fault: TrueFault | None = None
    gpu: int = 0
    step: Step | None = None
    history: tuple[PastRepair, ...] = ()
    silent: bool = False
    reported: tuple[NodeSummary, str] | None = None  # the last summary, and the handoff record


class LawfulFleet:
    """``nodes`` of them. ``advance`` moves time; ``listed`` and ``completed`` are what a ``LedgerFeed`` wants."""

    def __init__(self, seed: int, nodes: int, law: FailureLaw | None = None, *, spare: int = 10) -> None:
        self._random, self.law, self.now_s = Random(seed), law or FailureLaw(), 0.0  # noqa: S311 - a fleet, no secret
        self._queue: list[tuple[float, int, str, str, int]] = []
        self._count = 0
        types = tuple(self.law.mtbf_h)
        self._made = 0
        self.pools = {kind: deque(self._machine(kind) for _ in range(spare)) for kind in types}
        self.nodes: dict[str, _Node] = {}
        for number in range(nodes):
            kind = types[number % len(types)]
            name = f"n{number:03}"
            self.nodes[name] = _Node(name=name, rack=f"r{number // RACK:02}", machine=self._machine(kind))
        self.lemons = self._choose_lemons()
        self.faults: list[TrueFault] = []
        self.repairs: list[tuple[str, PastAct, datetime]] = []
        self.places: dict[str, set[str]] = {}
        self.serving_h = 0.0
        self._served_since: dict[str, float] = {}
        self._cached: dict[str, NodeReading] = {}
        for node in self.nodes.values():
            self._place(node)
            self._serve(node)
            self._later(self._in_h(self.law.silence_every_h), "silence", node)

    # -- what the cluster shows ---------------------------------------------------------------------------------------

    def listed(self, now: datetime) -> Mapping[str, NodeReading]:
        """Every node at this moment. One about which nothing changed is the reading of before."""
        for name, node in self.nodes.items():
            if name not in self._cached or node.silent:
                self._cached[name] = self._reading(node, now)
        return dict(self._cached)

    def completed(self, readings: Sequence[NodeReading]) -> Mapping[str, NodeReading]:
        """The answers of the nodes themselves: a machine that reboots, or whose agent is silent, has none."""
        return {
            each.node: with_inventory(each, self._identity(node), self._open(node))
            for each in readings
            if not (node := self.nodes[each.node]).silent and node.step not in (Step.REBOOT, Step.REPLACE)
        }

    def _identity(self, node: _Node) -> MachineIdentity:
        machine = node.machine
        return MachineIdentity(
            instance=machine.instance, instance_type=machine.instance_type, rack=node.rack, gpus=machine.gpus
        )

    def _open(self, node: _Node) -> tuple[SeenFault, ...]:
        if node.fault is None:
            return ()
        component = f"gpu:{node.machine.gpus[node.gpu].uuid}"
        return (SeenFault(code=node.fault.code, component=component, since=node.fault.at),)

    def _reading(self, node: _Node, now: datetime) -> NodeReading:
        if node.reported is None or not node.silent:
            node.reported = (self._summary(node, now), HandoffRecord(
                code=node.fault.code if node.fault is not None else "",
                since=node.fault.at if node.fault is not None else None,
                history=node.history,
            ).text)  # fmt: skip
        summary, record = node.reported
        is_out = node.step is not None
        text = f"{PREFIX}{summary.code} {summary.component} [k]"
        listed = ListedNode(
            name=node.name,
            state="IDLE+DRAIN" if is_out else "IDLE",
            flags=frozenset({"IDLE", "DRAIN"} if is_out else {"IDLE"}),
            out=is_out,
            hold=Hold(text=text, user="root", stamp=1) if is_out else None,
            record=record,
            summary=summary.text,
            group=node.rack,
        )
        (found,) = fleet_nodes([listed], [], {}, now, silent_after_s=SILENT_AFTER_S)
        return reading_of(found)

    def _summary(self, node: _Node, now: datetime) -> NodeSummary:
        kind = node.machine.instance_type
        if node.fault is None:
            return NodeSummary(state=NodeState.OK, at=now, mode=Mode.REPAIR, instance_type=kind)
        return NodeSummary(
            state=NodeState.REPAIRING,
            at=now,
            mode=Mode.REPAIR,
            code=node.fault.code,
            component=f"GPU {node.gpu}",
            since=now,  # of the step
            step=str(node.step),
            instance_type=kind,
        )

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        return _at(self.now_s)

    def advance(self, until_s: float) -> None:
        """Let everything happen until then."""
        while self._queue and self._queue[0][0] <= until_s:
            self.now_s, _, what, name, version = heapq.heappop(self._queue)
            node = self.nodes[name]
            if what in ("silence", "speech") or version == node.version:
                getattr(self, f"_{what}")(node)
                self._cached.pop(name, None)
        self.now_s = until_s

    def _later(self, after_s: float, what: str, node: _Node) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now_s + after_s, self._count, what, node.name, node.version))

    def _in_h(self, mean_h: float) -> float:
        return self._random.expovariate(1.0 / mean_h) * HOUR

    def _serve(self, node: _Node) -> None:
        node.version += 1
        node.fault, node.step = None, None
        self._served_since[node.name] = self.now_s
        self._later(self._in_h(1.0 / sum(node.machine.rates)), "fails", node)

    def _fails(self, node: _Node) -> None:
        (node.gpu,) = self._random.choices(range(GPUS), node.machine.rates)
        serial = node.machine.gpus[node.gpu].serial
        at = datetime.fromtimestamp(int(self.now.timestamp()), UTC)
        node.fault = TrueFault(
            at=at, node=node.name, code=self._random.choice(CODES), serial=serial, silent=node.silent
        )
        self.faults.append(node.fault)
        self.serving_h += (self.now_s - self._served_since.pop(node.name)) / HOUR
        node.version += 1
        if not node.silent:  # else its agent sees it once it runs again
            self._begins(node)

    def _begins(self, node: _Node) -> None:
        node.step = Step.WAIT_IDLE
        self._later(HOUR, "reboots", node)

    def _reboots(self, node: _Node) -> None:
        node.step = Step.REBOOT
        self._acts(node, PastAct.REBOOT)
        self._later(0.5 * HOUR, "rebooted", node)

    def _rebooted(self, node: _Node) -> None:
        if self._random.random() < self.law.reboot_helps:
            node.history = with_outcome(node.history, RepairResult.HELPED, self.now)
            self._serve(node)
            return
        node.history = with_outcome(node.history, RepairResult.FAILED)
        node.step = Step.REPLACE
        self._acts(node, PastAct.REPLACE)
        self._later(2 * HOUR, "replaced", node)

    def _replaced(self, node: _Node) -> None:
        pool = self.pools[node.machine.instance_type]
        pool.append(node.machine)
        node.machine = pool.popleft()
        self._place(node)
        node.history = with_outcome(node.history, RepairResult.HELPED, self.now)
        self._serve(node)

    def _silence(self, node: _Node) -> None:
        if node.step is None and node.fault is None and not node.silent:
            self._cached[node.name] = self._reading(node, self.now)  # the last that it says
            node.silent = True
            self._later(self._in_h(self.law.silence_h), "speech", node)
        self._later(self._in_h(self.law.silence_every_h), "silence", node)

    def _speech(self, node: _Node) -> None:
        node.silent = False
        if node.fault is not None:
            self._begins(node)

    def _acts(self, node: _Node, act: PastAct) -> None:
        assert node.fault is not None
        at = datetime.fromtimestamp(int(self.now.timestamp()), UTC)
        node.history = remembering(node.history, PastRepair(act=act, at=at, code=node.fault.code))
        self.repairs.append((node.name, act, at))

    # -- machines -----------------------------------------------------------------------------------------------------

    def _machine(self, kind: str) -> _Machine:
        self._made += 1
        gpus = tuple(
            LedgerGpu(uuid=f"GPU-{self._made:04}-{index}", serial=f"16{self._made:06}{index:02}", index=str(index))
            for index in range(GPUS)
        )
        rate = 1.0 / self.law.mtbf_h[kind] / GPUS
        return _Machine(instance=f"i-{self._made:017x}", instance_type=kind, gpus=gpus, rates=(rate,) * GPUS)

    def _choose_lemons(self) -> set[str]:
        chosen = self._random.sample(list(self.nodes.values()), self.law.lemons)
        for node in chosen:
            first, *others = node.machine.rates
            node.machine.rates = (first * self.law.lemon_times, *others)
        return {node.machine.gpus[0].serial for node in chosen}

    def _place(self, node: _Node) -> None:
        for gpu in node.machine.gpus:
            self.places.setdefault(gpu.serial, set()).add(node.name)


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)
