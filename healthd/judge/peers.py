"""The devices of one job beside each other: how far each is from its peers, by median and MAD.

Pure. The GPUs of a synchronous job do the same work at the same time, so their readings differ by little, and a device
that differs stands out without any published limit. Of each reading the median over a window counts, which a
checkpoint or a stall of the input that is shorter than half of it does not move. The peers' median and their median
absolute deviation (MAD) are moved by no minority. The score is the distance from the median in standard deviations, for
which 1.4826 MAD stands (exact for a normal distribution), with a floor for each reading: peers that are all equal would
make any difference infinite.

It ranks, and names nothing: ``job_patterns`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isnan, nan
from statistics import median
from typing import NamedTuple

from msgspec import Struct, field

WINDOW_S = 600.0
"""The window that is compared, in seconds: ten runs of a check that runs once a minute."""
LEAST_SAMPLES = 6
"""Fewer samples in the window say nothing: more than half of ten must be there."""
LEAST_PEERS = 4
"""Of fewer devices no median says which one is the odd one."""

_MAD_TO_SIGMA = 1.4826
_BYTES = ("B/s", "kB/s", "MB/s", "GB/s")

Samples = Sequence[tuple[float, float]]
"""(Age in seconds, value), the oldest first. The values of a counter are its growth a second."""


class DeviceReadings(Struct, frozen=True, kw_only=True):
    """The recent readings of one device, by name. ``kind``: gpu, efa or node. ``label``: GPU 3, EFA rdmap0s6."""

    node: str
    kind: str
    component: str
    label: str
    series: Mapping[str, Samples] = field(default_factory=dict)


class Trait(NamedTuple):
    """One value that is compared. ``readings``: their values are added. ``per``: and divided by the sum of these.
    ``floor``: the least standard deviation that is taken; ``floor_ratio``: as a share of the peers' median.
    ``of_node``: a value is divided by the median of its node's devices, because nodes of one job may differ by their
    place in it."""

    name: str
    unit: str
    kind: str
    readings: tuple[str, ...]
    floor: float = 0.0
    floor_ratio: float = 0.0
    per: tuple[str, ...] = ()
    of_node: bool = False


_EFA_BYTES = ("efa_tx_bytes_total", "efa_rx_bytes_total", "efa_rdma_read_bytes_total", "efa_rdma_write_bytes_total")
POWER = Trait("power draw", "W", "gpu", ("gpu_power_w",), floor=5.0, floor_ratio=0.02)
CLOCK = Trait("SM clock", "MHz", "gpu", ("gpu_sm_clock_mhz",), floor_ratio=0.01)
LOAD = Trait("utilization", "%", "gpu", ("gpu_utilization_ratio",), floor=0.02)
THROTTLED = Trait(
    "time slowed down by heat or power brake",
    "%",
    "gpu",
    ("gpu_throttled_hardware_heat_seconds_total", "gpu_throttled_power_brake_seconds_total"),
    floor=0.02,
)
NVLINK = Trait(
    "NVLink traffic",
    "B/s",
    "gpu",
    ("gpu_nvlink_transmitted_bytes_total", "gpu_nvlink_received_bytes_total"),
    floor=1e6,
    floor_ratio=0.05,
)
EFA = Trait("EFA traffic", "B/s", "efa", _EFA_BYTES, floor=1e6, floor_ratio=0.05)
EFA_SHARE = Trait("EFA traffic beside the node's others", "%", "efa", _EFA_BYTES, floor=0.03, of_node=True)
RESENT = Trait("bytes sent again", "%", "efa", ("efa_retrans_bytes_total",), floor=0.0001, per=("efa_tx_bytes_total",))
PRESSURE = Trait("time a task waits for a processor", "%", "node", ("cpu_pressure_some_ratio",), floor=0.05)
TRAITS = (POWER, CLOCK, LOAD, THROTTLED, NVLINK, EFA, EFA_SHARE, RESENT, PRESSURE)

COMPARED = frozenset(name for trait in TRAITS for name in (*trait.readings, *trait.per))
"""The readings that a node keeps for a comparison."""


class Deviation(Struct, frozen=True, kw_only=True):
    """One device, or a node as a whole, and the trait by which it differs. ``usual``: the median of ``peers`` devices.
    ``score``: in standard deviations of the peers, negative below them."""

    node: str
    component: str
    label: str
    trait: Trait
    value: float
    usual: float
    score: float
    peers: int

    def __str__(self) -> str:
        value, usual = shown(self.value, self.trait.unit), shown(self.usual, self.trait.unit)
        return f"{self.trait.name} {value}, peers {usual} (score {self.score:+.1f})"


class Peers(Struct, frozen=True, kw_only=True):
    """All values of one trait: by device its value, their median, and the standard deviation that is taken."""

    values: Mapping[str, float]
    usual: float
    scale: float

    def score(self, key: str) -> float:
        """How far a device is from the median; 0 for one without a value."""
        return (self.values[key] - self.usual) / self.scale if key in self.values else 0.0


def shown(value: float, unit: str) -> str:
    """The value with its unit, as an operator writes it: 1,755 MHz, 0.31 %, 48.2 GB/s."""
    if unit == "%":
        return f"{100 * value:.3g} %"
    if unit != "B/s":
        return f"{value:,.0f} {unit}"
    thousands = 0
    while abs(value) >= 1000 and thousands < len(_BYTES) - 1:
        value, thousands = value / 1000, thousands + 1
    return f"{value:.3g} {_BYTES[thousands]}"


def key_of(device: DeviceReadings) -> str:
    """The name of a device in its job."""
    return f"{device.node}/{device.component}"


def typical(samples: Samples, oldest_s: float = WINDOW_S, newest_s: float = 0.0, least: int = LEAST_SAMPLES) -> float:
    """The median of the samples between two ages; NaN where there are fewer than ``least``."""
    values = [value for age_s, value in samples if newest_s <= age_s < oldest_s]
    return median(values) if len(values) >= least else nan


def value_of(
    device: DeviceReadings,
    trait: Trait,
    *,
    oldest_s: float = WINDOW_S,
    newest_s: float = 0.0,
    least: int = LEAST_SAMPLES,
) -> float | None:
    """A device's value of a trait in a window, before ``of_node``; None where a reading is missing or too short.

    A counter that the device does not have is left out of a sum; one of a sum must be there.
    """
    found = [
        typical(device.series[name], oldest_s, newest_s, least) for name in trait.readings if name in device.series
    ]
    total = sum(found) if found else nan
    if trait.per:
        below = [typical(device.series[name], oldest_s, newest_s, least) for name in trait.per if name in device.series]
        total = total / sum(below) if sum(below) > 0 else nan
    return None if isnan(total) else total


def among_peers(
    devices: Sequence[DeviceReadings],
    trait: Trait,
    *,
    oldest_s: float = WINDOW_S,
    newest_s: float = 0.0,
    least: int = LEAST_SAMPLES,
) -> Peers | None:
    """The devices of the trait's kind beside each other; None where there are too few."""
    values = {
        key_of(each): value
        for each in devices
        if each.kind == trait.kind
        and (value := value_of(each, trait, oldest_s=oldest_s, newest_s=newest_s, least=least)) is not None
    }
    if trait.of_node:
        values = _shares(devices, values)
    if len(values) < LEAST_PEERS:
        return None
    usual = median(values.values())
    spread = _MAD_TO_SIGMA * median([abs(value - usual) for value in values.values()])
    return Peers(values=values, usual=usual, scale=max(spread, trait.floor, trait.floor_ratio * usual, 1e-9))


def _shares(devices: Iterable[DeviceReadings], values: Mapping[str, float]) -> dict[str, float]:
    """Each value as a share of the median of its node's."""
    by_node: dict[str, list[float]] = {}
    nodes = {key_of(each): each.node for each in devices}
    for key, value in values.items():
        by_node.setdefault(nodes[key], []).append(value)
    usual = {node: median(some) for node, some in by_node.items() if len(some) >= LEAST_PEERS}
    return {key: value / usual[nodes[key]] for key, value in values.items() if usual.get(nodes[key], 0.0) > 0.0}


class Ranking(Struct, frozen=True, kw_only=True):
    """The devices and the nodes, the farthest from their peers first, each by the trait in which it differs most."""

    devices: tuple[Deviation, ...]
    nodes: tuple[Deviation, ...]


def ranked(devices: Sequence[DeviceReadings], of_job: Mapping[Trait, Peers]) -> Ranking:
    """The ranking of a job. ``of_job``: the result of ``peers_of``. A node's score is the median of its devices'."""
    worst = [found for each in devices if (found := _worst(each, of_job)) is not None]
    by_node: dict[str, list[DeviceReadings]] = {}
    for each in devices:
        by_node.setdefault(each.node, []).append(each)
    nodes = [found for node, some in by_node.items() if (found := _worst_of_node(node, some, of_job)) is not None]
    return Ranking(devices=_by_score(worst), nodes=_by_score(nodes))


def peers_of(devices: Sequence[DeviceReadings], *, oldest_s: float = inf) -> dict[Trait, Peers]:
    """Every trait that enough devices have. ``oldest_s``: nothing older counts, such as the job's first minutes."""
    found = {trait: among_peers(devices, trait, oldest_s=min(oldest_s, WINDOW_S)) for trait in TRAITS}
    return {trait: peers for trait, peers in found.items() if peers is not None}


def _by_score(deviations: Iterable[Deviation]) -> tuple[Deviation, ...]:
    return tuple(sorted(deviations, key=lambda each: (-abs(each.score), each.node, each.component)))


def _worst(device: DeviceReadings, of_job: Mapping[Trait, Peers]) -> Deviation | None:
    key = key_of(device)
    found = [
        Deviation(
            node=device.node,
            component=device.component,
            label=device.label,
            trait=trait,
            value=peers.values[key],
            usual=peers.usual,
            score=peers.score(key),
            peers=len(peers.values) - 1,
        )
        for trait, peers in of_job.items()
        if key in peers.values
    ]
    return max(found, key=lambda each: abs(each.score), default=None)


def _worst_of_node(node: str, devices: Iterable[DeviceReadings], of_job: Mapping[Trait, Peers]) -> Deviation | None:
    found = list(_of_node(node, [key_of(each) for each in devices], of_job))
    return max(found, key=lambda each: abs(each.score), default=None)


def _of_node(node: str, keys: Sequence[str], of_job: Mapping[Trait, Peers]) -> Iterator[Deviation]:
    for trait, peers in of_job.items():
        values = [peers.values[key] for key in keys if key in peers.values]
        if values and not trait.of_node:
            value = median(values)
            yield Deviation(
                node=node,
                component="node",
                label="",
                trait=trait,
                value=value,
                usual=peers.usual,
                score=(value - peers.usual) / peers.scale,
                peers=len(peers.values) - len(values),
            )
