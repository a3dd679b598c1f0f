"""The devices of one job beside each other, by median and MAD."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import pytest

from healthd.judge import peers
from healthd.judge.peers import (
    COMPARED,
    DeviceReadings,
    Samples,
    Trait,
    among_peers,
    key_of,
    peers_of,
    ranked,
    shown,
    value_of,
)

AGES = tuple(30.0 + 60.0 * minute for minute in range(9, -1, -1))
POWER, CLOCK = "gpu_power_w", "gpu_sm_clock_mhz"
SENT, RECEIVED = "gpu_nvlink_transmitted_bytes_total", "gpu_nvlink_received_bytes_total"
TX, RESENT, PRESSURE = "efa_tx_bytes_total", "efa_retrans_bytes_total", "cpu_pressure_some_ratio"


def steady(value: float, ages: tuple[float, ...] = AGES) -> Samples:
    return [(age_s, value) for age_s in ages]


def gpu(index: int, series: Mapping[str, Samples], node: str = "n1") -> DeviceReadings:
    return DeviceReadings(node=node, kind="gpu", component=f"gpu:{index}", label=f"GPU {index}", series=series)


def nic(index: int, series: Mapping[str, Samples], node: str = "n1") -> DeviceReadings:
    return DeviceReadings(node=node, kind="efa", component=f"efa:{index}", label=f"EFA {index}", series=series)


def powers(*watts: float) -> list[DeviceReadings]:
    return [gpu(index, {POWER: steady(value)}) for index, value in enumerate(watts)]


def test_the_odd_one_is_far_from_the_median_of_its_peers() -> None:
    """In standard deviations, for which 1.4826 MAD stands; a minority moves neither median."""
    found = among_peers(powers(600, 610, 590, 620, 580, 300), peers.POWER)
    assert found is not None
    assert found.usual == 595.0
    assert found.scale == pytest.approx(1.4826 * 15)
    assert found.score("n1/gpu:5") == pytest.approx(-295 / (1.4826 * 15))
    assert found.score("n1/gpu:77") == 0.0


def test_equal_peers_make_no_small_difference_infinite() -> None:
    """The floor of the trait stands for the standard deviation of GPUs that read the same: 2 % of the power, or 5 W."""
    found = among_peers(powers(600, 600, 600, 600, 606), peers.POWER)
    assert found is not None
    assert found.score("n1/gpu:4") == 0.5
    idle = among_peers(powers(70, 70, 70, 70, 75), peers.POWER)
    assert idle is not None
    assert idle.score("n1/gpu:4") == 1.0


def test_of_three_devices_none_is_the_odd_one() -> None:
    """Four are needed, and a device without enough samples of the window is none of them."""
    assert among_peers(powers(600, 600, 300), peers.POWER) is None
    young = gpu(3, {POWER: steady(600, AGES[-5:])})
    assert among_peers([*powers(600, 600, 300), young], peers.POWER) is None
    assert among_peers([*powers(600, 600, 300, 600), young], peers.POWER) is not None


def test_the_median_over_the_window_forgets_a_checkpoint() -> None:
    """Four minutes of ten at low power move nothing, and what is older than the window is not looked at."""
    busy = gpu(0, {POWER: [(700.0, 1.0), *steady(600, AGES[:6]), *steady(120, AGES[6:])]})
    assert value_of(busy, peers.POWER) == 600
    assert value_of(busy, peers.POWER, oldest_s=300.0, least=3) == 120
    assert value_of(busy, peers.POWER, newest_s=300.0, least=3) == 600
    assert value_of(busy, peers.CLOCK) is None


def test_readings_are_added_and_divided() -> None:
    """NVLink traffic is both directions, whichever the GPU counts; what is sent again is a share of what is sent."""
    assert value_of(gpu(0, {SENT: steady(2e9), RECEIVED: steady(1e9)}), peers.NVLINK) == 3e9
    assert value_of(gpu(0, {SENT: steady(2e9)}), peers.NVLINK) == 2e9
    assert value_of(nic(0, {TX: steady(1e9), RESENT: steady(1e6)}), peers.RESENT) == 0.001
    assert value_of(nic(0, {TX: steady(0.0), RESENT: steady(0.0)}), peers.RESENT) is None
    assert value_of(nic(0, {RESENT: steady(1e6)}), peers.RESENT) is None


def test_a_nic_is_compared_as_a_share_of_its_own_node() -> None:
    """A node of which all NICs carry half has another place in the job; one NIC that carries half of its neighbours'
    stands out. A node without traffic has no shares."""
    rates = {"n1": [1e9] * 4, "n2": [5e8] * 4, "n3": [1e9, 1e9, 5e8, 1e9], "n4": [0.0] * 4}
    nics = [nic(at, {TX: steady(rate)}, node) for node, some in rates.items() for at, rate in enumerate(some)]
    found = among_peers(nics, peers.EFA_SHARE)
    assert found is not None
    assert {key: value for key, value in found.values.items() if value != 1.0} == {"n3/efa:2": 0.5}
    assert not any(key.startswith("n4") for key in found.values)


def test_ranking() -> None:
    """Each device by the trait in which it differs most, the farthest first; a node by the median of its devices."""
    healthy = {POWER: steady(600), CLOCK: steady(1700)}
    devices = [gpu(at, healthy, node) for node in ("n1", "n2") for at in range(4)]
    devices += [gpu(at, {**healthy, POWER: steady(500)}, "n3") for at in range(3)]
    devices.append(gpu(3, {POWER: steady(500), CLOCK: steady(900)}, "n3"))
    devices.append(DeviceReadings(node="n1", kind="node", component="node", label="host"))
    found = ranked(devices, peers_of(devices))
    assert [(each.node, each.component, each.trait.name) for each in found.devices[:2]] == [
        ("n3", "gpu:3", "SM clock"),
        ("n3", "gpu:0", "power draw"),
    ]
    assert str(found.devices[0]) == "SM clock 900 MHz, peers 1,700 MHz (score -47.1)"
    assert found.devices[0].peers == 11
    assert [(each.node, each.trait.name, each.score) for each in found.nodes] == [
        ("n3", "power draw", pytest.approx(-100 / 12)),
        ("n1", "power draw", 0.0),
        ("n2", "power draw", 0.0),
    ]


def test_a_node_is_ranked_by_its_host_too() -> None:
    """The host's own reading is compared among the hosts, and a share of a node's own says nothing of the node."""
    hosts = [
        DeviceReadings(
            node=f"n{at}", kind="node", component="node", label="host", series={PRESSURE: steady(0.9 * (at == 3))}
        )
        for at in range(5)
    ]
    nics = [nic(at, {TX: steady(1e9)}, "n0") for at in range(4)]
    found = ranked([*hosts, *nics], peers_of([*hosts, *nics]))
    assert (found.nodes[0].node, found.nodes[0].trait) == ("n3", peers.PRESSURE)
    assert peers.EFA_SHARE not in {each.trait for each in found.nodes}


def test_nothing_older_than_the_job() -> None:
    """Of a young job only its own minutes count, and too few of them are none."""
    devices = powers(600, 600, 600, 600)
    assert peers.POWER in peers_of(devices, oldest_s=400.0)
    assert peers_of(devices, oldest_s=200.0) == {}
    assert peers_of(devices, oldest_s=inf).keys() == {peers.POWER}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1755.2, "MHz", "1,755 MHz"),
        (0.0031, "%", "0.31 %"),
        (12.0, "B/s", "12 B/s"),
        (4.82e10, "B/s", "48.2 GB/s"),
        (3.1e12, "B/s", "3.1e+03 GB/s"),
    ],
)
def test_values_are_shown_with_their_unit(value: float, unit: str, text: str) -> None:
    """As an operator writes them."""
    assert shown(value, unit) == text


def test_what_a_node_keeps_is_what_is_compared() -> None:
    """Every reading of every trait, and what it is divided by."""
    assert {POWER, CLOCK, SENT, RECEIVED, TX, RESENT, PRESSURE} <= COMPARED
    assert key_of(gpu(3, {}, "n7")) == "n7/gpu:3"
    assert isinstance(peers.TRAITS[0], Trait)
