"""Simulated jobs for bench_job_compare: what each device of a training job reads, minute by minute, and known culprits.

CONSTRUCTED: no number here was measured on hardware. A job has 2 to 32 nodes of eight GPUs and four NICs. What makes
healthy devices differ is drawn for each job:

- *noise*: GPUs differ by their silicon and their place (clock 2.5 %, power 3 %), samples by 2 %; a sample meets a node
  in a computing or a communicating part of its step, and its eight GPUs meet it together; one sample in a hundred is
  missing; bursts of bytes sent again;
- *uneven ranks*: pipeline stages that draw 80 to 115 % of the power, at other clocks and traffic; ranks of uneven load
  (up to 8 %); one to three ranks with more work, whose clocks are 2 to 9 % lower for it; a first rank that logs and so
  is used less; a rail that carries 65 to 100 % of the others' traffic on every node;
- *data loading*: minutes in which some nodes wait for their input and all others for them; jobs bound by their input,
  and one node of them more (up to 12 %);
- *checkpoints*: by one rank, by one a node (all others spin at low power without traffic), or by all; up to 9 minutes;
- *evaluations* at less power and traffic, and *warm-up*: up to 12 minutes in which each node does what it likes.

Gaussian draws come from one pool at random offsets, which is what makes ten thousand hours affordable.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf, nan
from typing import NamedTuple

from msgspec import Struct, field

from healthd.judge.peers import DeviceReadings

GPUS, NICS = 8, 4
SIZES, WEIGHTS = (2, 4, 8, 16, 32), (4, 4, 3, 2, 1)
LONGEST_CHECKPOINT_MIN = 9
_POOL = 1 << 18
POWER, CLOCK, LOAD = "gpu_power_w", "gpu_sm_clock_mhz", "gpu_utilization_ratio"
HEAT, BRAKE = "gpu_throttled_hardware_heat_seconds_total", "gpu_throttled_power_brake_seconds_total"
NVLINK, EFA, RESENT = "gpu_nvlink_transmitted_bytes_total", "efa_tx_bytes_total", "efa_retrans_bytes_total"
PRESSURE = "cpu_pressure_some_ratio"
_AGES_S = tuple(minute * 60.0 + 30.0 for minute in range(63, -1, -1))
_SPIN_W, _IDLE_W = 0.32, 0.17  # of the power at work: in NCCL's kernel, and without any


class Culprit(StrEnum):
    """What is wrong with one device, or with one node."""

    HEAT = "one GPU slowed down by heat"
    BRAKE = "a node slowed down by its power brake"
    LOCKED = "one GPU at a lower clock, without a reason"
    HOST = "a node whose host feeds its GPUs late"
    NIC_SLOW = "one NIC that carries less than its neighbours"
    NIC_RESENDS = "one NIC that sends bytes again"
    HANG_IDLE = "hang: one rank waits on its host"
    HANG_NODE = "hang: the ranks of one node have ended"
    HANG_COMPUTES = "hang: one rank computes for ever"

    @property
    def hangs(self) -> bool:
        """Whether the job stands still."""
        return self.name.startswith("HANG")


class Minute(NamedTuple):
    """What the whole job does in one minute: factors of power and traffic, the use, who writes (``first``, ``one``: one
    rank, or one a node; ``all``), and the nodes that wait for input."""

    power: float
    load: float
    traffic: float
    writers: str = ""
    starved: frozenset[int] = frozenset()
    warming: bool = False


class Place(NamedTuple):
    """What the devices of one node have in common, minute by minute: their part of the job by power, clock and traffic,
    where the node's step is, what it does while it warms up, and for how much of its time it works."""

    node: int
    power: float
    clock: float
    traffic: float
    step: Sequence[float]
    warming: Sequence[tuple[float, float, float]]
    working: Sequence[float]


class Device(Struct, kw_only=True):
    """One device and its values, a minute each; None: that sample is missing."""

    node: str
    kind: str
    component: str
    label: str
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def view(self, end: int, minutes: int, missing: frozenset[int]) -> DeviceReadings:
        """Its readings as healthd has them at the end of a minute."""
        begin = max(end - minutes, 0)
        ages = _AGES_S[begin - end :]
        lost = [minute - begin for minute in missing if begin <= minute < end]
        series = {}
        for name, values in self.series.items():
            found = list(zip(ages, values[begin:end], strict=True))
            for at in lost:
                found[at] = (inf, nan)
            series[name] = found
        return DeviceReadings(node=self.node, kind=self.kind, component=self.component, label=self.label, series=series)


class Fault(Struct, kw_only=True):
    """A culprit, where it is, and from which minute on. ``strength``: how slow, 0 to 1."""

    culprit: Culprit
    node: int
    device: int
    begins: int
    strength: float

    def names(self, node: str, component: str) -> bool:
        """Whether a finding at this node and component names it."""
        if node != node_name(self.node):
            return False
        match self.culprit:
            case Culprit.BRAKE | Culprit.HOST | Culprit.HANG_NODE:
                return True
            case Culprit.NIC_SLOW | Culprit.NIC_RESENDS:
                return component == f"efa:{self.device}"
            case _:
                return component == f"gpu:{self.device}"


def node_name(number: int) -> str:
    return f"n{number:02d}"


class Jobs:
    """Makes jobs from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a simulation is repeated by its seed
        self._pool = [self.chance.gauss(0.0, 1.0) for _ in range(_POOL)]

    def noise(self, count: int) -> list[float]:
        """So many Gaussian numbers."""
        at = self.chance.randrange(_POOL - count)
        return self._pool[at : at + count]

    def job(self, minutes: int, culprit: Culprit | None = None, begins: int = 0) -> Job:
        """A job of so many minutes. ``culprit`` comes at the minute ``begins``."""
        chance = self.chance
        nodes = chance.choices(SIZES, WEIGHTS)[0]
        fault = None
        if culprit is not None:
            nodes = max(nodes, 2)
            device = chance.randrange(NICS if culprit.name.startswith("NIC") else GPUS)
            at = chance.randrange(nodes)
            fault = Fault(culprit=culprit, node=at, device=device, begins=begins, strength=chance.random())
        return Job(self, nodes, minutes, fault)


class Job:
    """One job: its devices, and what it does minute by minute."""

    def __init__(self, jobs: Jobs, nodes: int, minutes: int, fault: Fault | None) -> None:
        chance = jobs.chance
        self._jobs, self.nodes, self.minutes, self.fault = jobs, nodes, minutes, fault
        self._power_w, self._clock_mhz = chance.uniform(380, 660), chance.uniform(1250, 1950)
        self._load = chance.choice((1.0, 1.0, 0.99, chance.uniform(0.7, 0.95)))
        self._nvlink, self._efa = 10 ** chance.uniform(9.5, 11.3), 10 ** chance.uniform(8.5, 10.0)
        self._uneven = chance.choice(("", "", "stages", "ranks"))
        self._stages = chance.choice((2, 4, 8)) if self._uneven == "stages" else 1
        self._by_stage = [
            (chance.uniform(0.8, 1.15), chance.uniform(0.96, 1.04), chance.uniform(0.6, 1.3))
            for _ in range(self._stages)
        ]
        self._first_logs = chance.choice((0.0, chance.uniform(0.0, 0.12)))
        self._rail = chance.uniform(0.65, 1.0) if chance.random() < 0.2 else 1.0
        heavy = chance.choice((0, 0, 1, 3))
        self._heavy = {
            (chance.randrange(nodes), chance.randrange(GPUS)): chance.uniform(0.02, 0.09) for _ in range(heavy)
        }
        self._late = (chance.randrange(nodes), chance.uniform(0.0, 0.12) if chance.random() < 0.2 else 0.0)
        self._hot = chance.random() < 0.2
        self._duty = chance.uniform(0.7, 0.95)
        self.did = list(self._days_work(chance))
        self.missing = frozenset(minute for minute in range(minutes) if chance.random() < 0.01)
        self.devices = [device for node in range(nodes) for device in self._node(node)]

    def view(self, end: int, minutes: int) -> list[DeviceReadings]:
        """All devices at the end of a minute, with the samples of the last ``minutes``."""
        return [device.view(end, minutes, self.missing) for device in self.devices]

    def _days_work(self, chance: random.Random) -> Iterator[Minute]:
        """What it does, minute by minute."""
        warm = min(round(chance.lognormvariate(1.0, 0.7)), 12)
        writers = chance.choice(("first", "one", "all", "none"))
        every, until, left, what = chance.randrange(15, 90), 0, 0, "train"
        until = every
        stalls = chance.choice((0.0, 0.01, 0.03))
        for minute in range(self.minutes):
            if minute < warm:
                yield Minute(1.0, 1.0, 1.0, warming=True)
                continue
            if self.fault is not None and self.fault.culprit.hangs and minute >= self.fault.begins:
                yield Minute(_SPIN_W, 1.0, 0.0)
                continue
            if left:
                left -= 1
            elif minute >= until:
                what = chance.choices(("checkpoint", "evaluation"), (5, 1))[0]
                left = min(int(chance.lognormvariate(0.0, 1.0)), LONGEST_CHECKPOINT_MIN - 1)
                until = minute + every
            else:
                what = "train"
            if what == "checkpoint" and writers != "none":
                yield Minute(_SPIN_W, 1.0, 0.0, writers=writers)
            elif what == "evaluation":
                yield Minute(0.8, self._load, 0.6)
            elif chance.random() < stalls:
                share = chance.choice((1, 1, max(self.nodes // 2, 1), self.nodes))
                yield Minute(0.45, 1.0, 0.3, starved=frozenset(chance.sample(range(self.nodes), share)))
            else:
                yield Minute(1.0, self._load, 1.0)

    # -- one node -----------------------------------------------------------------------------------------------------

    def _node(self, node: int) -> Iterator[Device]:
        jobs, chance, minutes = self._jobs, self._jobs.chance, self.minutes
        power, clock, traffic = self._by_stage[node * self._stages // self.nodes]
        place = Place(
            node=node,
            power=power,
            clock=clock,
            traffic=traffic,
            step=[1.0 if chance.random() < self._duty else 0.6 for _ in range(minutes)],
            warming=[(chance.uniform(0.15, 0.9), chance.random(), chance.uniform(0, 0.5)) for _ in range(minutes)],
            working=self._peers_wait(minutes),
        )
        yield from (self._gpu(place, gpu) for gpu in range(GPUS))
        yield from (self._nic(place, nic) for nic in range(NICS))
        pressure = [abs(0.03 * z) for z in jobs.noise(minutes)]
        fault = self.fault
        if fault is not None and fault.culprit is Culprit.HOST and fault.node == node:
            pressure = [each + (0.4 if at >= fault.begins else 0.0) for at, each in enumerate(pressure)]
        yield Device(node=node_name(node), kind="node", component="node", label="host", series={PRESSURE: pressure})

    def _peers_wait(self, minutes: int) -> list[float]:
        """The share of their time in which all others work; they wait for the culprit in the rest."""
        fault = self.fault
        if fault is None or fault.culprit.hangs:
            return [1.0] * minutes
        share = 1.0 - 0.45 * fault.strength
        return [share if minute >= fault.begins else 1.0 for minute in range(minutes)]

    def _gpu(self, place: Place, gpu: int) -> Device:
        jobs, minutes, node = self._jobs, self.minutes, place.node
        silicon, rack, own = jobs.noise(3)
        uneven = 1.0 + (0.04 * max(min(own, 2.0), -2.0) if self._uneven == "ranks" else 0.0)
        watts = self._power_w * place.power * uneven * (1 + 0.03 * rack)
        mhz = min(self._clock_mhz * place.clock * (1 + 0.025 * silicon) * (2 - uneven), 1980.0)
        more = self._heavy.get((node, gpu), 0.0)
        watts, mhz = watts * (1 + more), mhz * (1 - more)
        late = self._late[1] if self._late[0] == node else 0.0
        is_first = node == 0 and gpu == 0
        power, clock, load, moved = [], [], [], []
        for minute, did, phase, warm, wait, noise, jitter in zip(
            range(minutes), self.did, *place[4:], jobs.noise(minutes), jobs.noise(minutes), strict=True
        ):
            share, used, traffic = did.power, did.load, did.traffic
            if did.warming:
                share, used, traffic = warm
            elif (did.writers == "all") or (gpu == 0 and did.writers and (is_first or did.writers == "one")):
                share, used = _IDLE_W, 0.05
            elif node in did.starved:
                share, used = 0.25, 0.3
            elif traffic:
                used -= late + (self._first_logs if is_first else 0.0)
            working = share if traffic == 0.0 else share * phase * (wait + (1 - wait) * _SPIN_W)
            power.append(watts * working * (1 + 0.02 * noise))
            clock.append(mhz * (1 + 0.012 * jitter + (0.03 if phase < 1 else 0.0)))
            load.append(min(max(used + 0.01 * jitter, 0.0), 1.0) if traffic else used)
            moved.append(self._nvlink * place.traffic * traffic * wait * (1 + 0.05 * jitter))
            if minute and did.warming:
                clock[-1] *= 0.7 + 0.3 * used
        heat = [max(0.01 * z, 0.0) if self._hot and node % 3 == 0 else 0.0 for z in jobs.noise(minutes)]
        series = {POWER: power, CLOCK: clock, LOAD: load, NVLINK: moved, HEAT: heat, BRAKE: [0.0] * minutes}
        if self.fault is not None and self.fault.node == node:
            self._break_gpu(self.fault, gpu, series, watts)
        return Device(node=node_name(node), kind="gpu", component=f"gpu:{gpu}", label=f"GPU {gpu}", series=series)

    def _break_gpu(self, fault: Fault, gpu: int, series: dict[str, list[float]], watts: float) -> None:
        strength, after = fault.strength, range(fault.begins, self.minutes)
        mine = fault.device == gpu
        noise = self._jobs.noise(self.minutes)
        for minute in after:
            match fault.culprit:
                case Culprit.HEAT if mine:
                    series[CLOCK][minute] *= 0.85 - 0.4 * strength
                    series[POWER][minute] = watts * (0.8 - 0.3 * strength) * (1 + 0.03 * noise[minute])
                    series[HEAT][minute] = min(0.5 + 0.5 * strength + 0.05 * noise[minute], 1.0)
                case Culprit.BRAKE:
                    series[CLOCK][minute] *= 0.7 - 0.3 * strength
                    series[POWER][minute] = watts * (0.6 - 0.2 * strength) * (1 + 0.03 * noise[minute])
                    series[BRAKE][minute] = min(0.7 + 0.3 * strength, 1.0)
                case Culprit.LOCKED if mine:
                    series[CLOCK][minute] *= 0.9 - 0.4 * strength
                    series[POWER][minute] = watts * (0.9 - 0.3 * strength) * (1 + 0.03 * noise[minute])
                case Culprit.HOST:
                    series[LOAD][minute] = min(max(0.85 - 0.5 * strength + 0.05 * noise[minute], 0.0), 1.0)
                case Culprit.HANG_IDLE if mine:
                    series[POWER][minute], series[LOAD][minute] = watts * _IDLE_W, 0.0
                case Culprit.HANG_NODE:
                    series[POWER][minute], series[LOAD][minute] = watts * _IDLE_W * 0.8, 0.0
                case Culprit.HANG_COMPUTES if mine:
                    series[POWER][minute] = watts * (0.9 + 0.02 * noise[minute])
                case _:
                    return

    def _nic(self, place: Place, nic: int) -> Device:
        jobs, minutes, node = self._jobs, self.minutes, place.node
        (own,) = jobs.noise(1)
        usual = self._efa * place.traffic * (1 + 0.03 * own) * (self._rail if nic == 0 else 1.0)
        moved = [
            usual * (warm[2] if did.warming else did.traffic) * wait * (1 + 0.06 * noise)
            for did, warm, wait, noise in zip(self.did, *place[5:], jobs.noise(minutes), strict=True)
        ]
        lost = [
            1e-5 * abs(noise) if jobs.chance.random() > 0.01 else 10 ** jobs.chance.uniform(-4, -2)
            for noise in jobs.noise(minutes)
        ]
        fault = self.fault
        if fault is not None and fault.node == node and fault.device == nic:
            for minute in range(fault.begins, minutes):
                if fault.culprit is Culprit.NIC_SLOW:
                    moved[minute] *= 0.75 - 0.5 * fault.strength
                elif fault.culprit is Culprit.NIC_RESENDS:
                    lost[minute] += 10 ** (-2.5 + 1.5 * fault.strength)
        resent = [bytes_s * share for bytes_s, share in zip(moved, lost, strict=True)]
        return Device(
            node=node_name(node),
            kind="efa",
            component=f"efa:{nic}",
            label=f"EFA {nic}",
            series={EFA: moved, RESENT: resent},
        )
