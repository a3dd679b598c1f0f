"""The straggler and the hang of a running job, by hand-made readings; bench/bench_job_compare.py has whole jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from healthd.core.model import REMEDY_RANK, Component, Remedy, Severity
from healthd.judge import job_patterns
from healthd.judge.job_patterns import CODES, QUIET_S, all_wait, found, hangs, stragglers
from healthd.judge.peers import DeviceReadings, Samples

POWER, CLOCK, LOAD = "gpu_power_w", "gpu_sm_clock_mhz", "gpu_utilization_ratio"
HEAT, MOVED = "gpu_throttled_hardware_heat_seconds_total", "gpu_nvlink_transmitted_bytes_total"
TX, RESENT = "efa_tx_bytes_total", "efa_retrans_bytes_total"
AT_WORK = {POWER: 600.0, CLOCK: 1700.0, LOAD: 1.0, HEAT: 0.0, MOVED: 2e10}
SPINS = {POWER: 190.0, CLOCK: 1900.0, LOAD: 1.0, HEAT: 0.0, MOVED: 0.0}
IDLE = {**SPINS, POWER: 95.0, LOAD: 0.0}
COMPUTES = {**SPINS, POWER: 610.0}
NODES = ("n1", "n2", "n3", "n4")


def samples(before: float, since: float, since_s: float, minutes: int = 30) -> Samples:
    """A sample a minute: ``before``, and for the last ``since_s`` the other value."""
    ages = (30.0 + 60.0 * minute for minute in range(minutes - 1, -1, -1))
    return [(age_s, since if age_s < since_s else before) for age_s in ages]


def device(
    kind: str, index: int, node: str, *, now: Mapping[str, float], before: Mapping[str, float], since_s: float
) -> DeviceReadings:
    series = {name: samples(before[name], now[name], since_s) for name in now}
    label = f"{kind.upper()} {index}"
    return DeviceReadings(node=node, kind=kind, component=f"{kind}:{index}", label=label, series=series)


def job(
    others: Mapping[tuple[str, int], Mapping[str, float]],
    *,
    usual: Mapping[str, float] = AT_WORK,
    since_s: float = 600.0,
    nodes: Sequence[str] = NODES,
) -> list[DeviceReadings]:
    """Nodes of four GPUs and four NICs; ``others``: what some GPUs read for so long, by node and index."""
    gpus = [
        device("gpu", at, node, now={**usual, **others.get((node, at), {})}, before=AT_WORK, since_s=since_s)
        for node in nodes
        for at in range(4)
    ]
    nic = {TX: 1e9 if usual[MOVED] else 0.0, RESENT: 0.0}
    return gpus + [
        device("efa", at, node, now=nic, before={TX: 1e9, RESENT: 0.0}, since_s=since_s)
        for node in nodes
        for at in range(4)
    ]


def with_nic(devices: Sequence[DeviceReadings], node: str, at: int, **series: float) -> list[DeviceReadings]:
    return [
        replace(each, series={**each.series, **{name: samples(0, rate, 1e9) for name, rate in series.items()}})
        if (each.node, each.component) == (node, f"efa:{at}")
        else each
        for each in devices
    ]


def named(devices: Sequence[DeviceReadings]) -> list[tuple[str, str, str]]:
    return [(each.finding.code, each.node, each.label) for each in found(devices)]


def test_a_healthy_job_has_neither() -> None:
    """Whatever the threshold."""
    assert found(job({})) == ()
    assert stragglers(job({}), threshold=0.5) == ()


@pytest.mark.parametrize(
    "slow",
    [{CLOCK: 1000.0}, {HEAT: 0.6}, {LOAD: 0.6}, {CLOCK: 1200.0, HEAT: 0.9, POWER: 300.0}],
)
def test_one_slow_gpu_is_a_straggler(slow: Mapping[str, float]) -> None:
    """By its clock, by heat, or because its host feeds it late; a warning with its numbers, for which nothing is
    done."""
    (only,) = found(job({("n3", 2): slow}))
    assert (only.finding.code, only.node, only.label) == ("job.straggler", "n3", "GPU 2")
    assert str(only.finding.component) == "gpu:2"
    assert "GPU 2 is slower than its peers for 10 min: " in only.finding.message
    assert only.finding.evidence["node"] == "n3"
    assert all({"value", "usual", "score", "peers"} == set(each) for each in only.finding.evidence["traits"].values())


def test_shadow() -> None:
    """Both codes warn and call for nothing: no rule takes a node out for them."""
    for code in CODES:
        assert code.severity is Severity.WARNING
        assert REMEDY_RANK[code.remedy] == REMEDY_RANK[Remedy.NONE]


@pytest.mark.parametrize(
    "harmless",
    [
        {POWER: 350.0},  # a rank with less work
        {CLOCK: 1980.0},  # faster than the others
        {CLOCK: 1400.0},  # by less than a fifth
        {LOAD: 0.85},  # a first rank that logs
        {HEAT: 0.1},
    ],
)
def test_what_a_rank_may_do(harmless: Mapping[str, float]) -> None:
    """Ranks differ by their work; power alone names none."""
    assert found(job({("n3", 2): harmless})) == ()


def test_a_burst_is_no_straggler() -> None:
    """It lasts for both halves of the window, or it is none: the last six minutes alone do not count."""
    assert found(job({("n3", 2): {CLOCK: 1000.0}}, since_s=240.0)) == ()
    assert named(job({("n3", 2): {CLOCK: 1000.0}}, since_s=540.0)) == [("job.straggler", "n3", "GPU 2")]


def test_a_device_without_samples_in_one_half_is_none() -> None:
    """Six of ten samples make a value for the window, and five in one half none for the other."""
    devices = job({("n3", 2): {CLOCK: 1000.0}})
    young = [
        replace(each, series={**each.series, CLOCK: [(age_s, 1000.0) for age_s, _ in samples(0, 0, 0, 8)][:1] * 7})
        if (each.node, each.component) == ("n3", "gpu:2")
        else each
        for each in devices
    ]
    assert found(young) == ()


def test_a_rank_that_writes_a_checkpoint_is_no_straggler() -> None:
    """It uses its GPU less than the others that wait for it in NCCL's kernel: no data moves meanwhile. It hangs,
    if that lasts."""
    assert named(job({("n1", 0): {LOAD: 0.1}}, usual=SPINS)) == [("job.hang", "n1", "GPU 0")]
    assert named(job({("n1", 0): {LOAD: 0.1}})) == [("job.straggler", "n1", "GPU 0")]


def test_a_clock_says_nothing_while_the_job_is_idle() -> None:
    """Idle GPUs lower their clocks each in its own time; so it is where no GPU reports its use."""
    idle = {**AT_WORK, LOAD: 0.1}
    assert found(job({("n3", 2): {CLOCK: 345.0}}, usual=idle)) == ()
    silent = [
        replace(each, series={name: some for name, some in each.series.items() if name != LOAD})
        for each in job({("n3", 2): {CLOCK: 345.0}})
    ]
    assert found(silent) == ()


def test_what_many_do_is_the_way_of_the_job() -> None:
    """A pipeline's stage of two nodes at a lower clock, or one GPU of each node, is no straggler."""
    assert found(job({(node, at): {CLOCK: 1000.0} for node in NODES[:2] for at in (0, 1)})) == ()
    assert found(job({(node, 0): {CLOCK: 1000.0} for node in NODES})) == ()


def test_a_node_that_is_slow_as_a_whole_is_one_finding() -> None:
    """One cause, one line."""
    (only,) = found(job({("n3", at): {HEAT: 0.9} for at in range(4)}))
    assert (only.node, str(only.finding.component)) == ("n3", "node")
    assert only.label == "all 4 of n3: GPU 0"
    assert len(found(job({("n3", at): {HEAT: 0.9} for at in range(2)}))) == 2


def test_a_slow_nic() -> None:
    """It carries far less than its neighbours, or sends much again."""
    assert named(with_nic(job({}), "n2", 1, **{TX: 5e8})) == [("job.straggler", "n2", "EFA 1")]
    assert named(with_nic(job({}), "n2", 1, **{RESENT: 2e7})) == [("job.straggler", "n2", "EFA 1")]
    assert named(with_nic(job({}), "n2", 1, **{TX: 8e8, RESENT: 1e5})) == []
    rail = job({})
    for node in NODES:
        rail = with_nic(rail, node, 0, **{TX: 5e8})
    assert named(rail) == []


def test_the_threshold_and_the_age_of_the_job() -> None:
    """A higher threshold names fewer; what is older than the job's own minutes names none."""
    devices = job({("n3", 2): {CLOCK: 1300.0}})
    assert len(stragglers(devices, threshold=6.0)) == 1
    assert stragglers(devices, threshold=30.0) == ()
    assert stragglers(devices, oldest_s=200.0) == ()


# ---------------------------------------------------------------------------------------------------------------------
# the hang


@pytest.mark.parametrize(("odd", "words"), [(IDLE, "does nothing at 95 W"), (COMPUTES, "computes on at 610 W")])
def test_one_rank_that_is_not_in_the_collective(odd: Mapping[str, float], words: str) -> None:
    """All others spin at low power, and nothing moves: the finding names it with its numbers, and no straggler is
    named beside it."""
    (only,) = found(job({("n2", 3): odd}, usual=SPINS))
    assert (only.finding.code, only.node, only.label) == ("job.hang", "n2", "GPU 3")
    assert only.finding.message == (
        "no device of the job moved data for 10 min; 15 of 16 GPUs wait in a collective, and GPU 3 of n2 "
        f"{words}: the rank there is not in it"
    )
    assert only.finding.evidence["waiting"] == 15


def test_the_ranks_of_one_node() -> None:
    """A process that died takes the GPUs of its node; one finding of the node. In a job of two nodes as well."""
    for nodes in (NODES, NODES[:2]):
        (only,) = found(job({("n2", at): IDLE for at in range(4)}, usual=SPINS, nodes=nodes))
        assert (only.node, str(only.finding.component)) == ("n2", "node")
        assert only.finding.evidence["not_in_it"] == [f"gpu:{at}" for at in range(4)]


def test_no_rank_stands_out() -> None:
    """All wait, or the odd ones are on several nodes, or more than those that wait: no finding, and the first is
    said."""
    assert (found(job({}, usual=SPINS)), all_wait(job({}, usual=SPINS))) == ((), True)
    spread = job({("n1", 0): IDLE, ("n2", 0): IDLE}, usual=SPINS)
    assert (found(spread), all_wait(spread)) == ((), False)
    assert hangs(job({}, usual=IDLE)) == ()
    assert hangs(job({("n1", 0): SPINS}, usual=IDLE, nodes=NODES[:1])) == ()


@pytest.mark.parametrize(
    "odd",
    [
        {**SPINS, LOAD: 0.7},  # neither used nor unused
        {**SPINS, POWER: 95.0, LOAD: 0.9},
        {**SPINS, MOVED: 1e9},  # something moves
    ],
)
def test_what_is_not_clear_is_no_hang(odd: Mapping[str, float]) -> None:
    """A GPU between the two pictures, and traffic, leave it undecided."""
    assert hangs(job({("n2", 3): odd}, usual=SPINS)) == ()


def test_power_that_swings_is_not_clear() -> None:
    """Neither low all the time nor high for half of it."""
    devices = job({("n2", 3): COMPUTES}, usual=SPINS)
    swing = [(age_s, 610.0 if age_s < 100 else 190.0) for age_s, _ in samples(0, 0, 0)]
    unclear = [
        replace(each, series={**each.series, POWER: [*samples(600, 600, 0)[:-10], *swing[-10:]]})
        if (each.node, each.component) == ("n2", "gpu:3")
        else each
        for each in devices
    ]
    assert hangs(unclear) == ()


def test_a_checkpoint_is_no_hang() -> None:
    """One rank writes and the others wait for it in a barrier: the same picture, for less than ten minutes."""
    assert hangs(job({("n1", 0): IDLE}, usual=SPINS, since_s=QUIET_S - 120)) == ()
    assert len(hangs(job({("n1", 0): IDLE}, usual=SPINS, since_s=QUIET_S - 120), quiet_s=300.0)) == 1


def test_a_job_that_never_had_traffic_is_not_judged() -> None:
    """Tasks that do not talk to each other hang by no collective; nor does a job whose start is younger than its
    traffic, nor one of which a device has no samples, nor one of three GPUs."""
    quiet = job({("n2", 3): IDLE}, usual=SPINS, since_s=1e9)
    assert hangs(quiet) == ()
    hanging = job({("n2", 3): IDLE}, usual=SPINS)
    assert len(hangs(hanging)) == 1
    assert hangs(hanging, oldest_s=QUIET_S) == ()
    assert hangs([replace(hanging[0], series={}), *hanging[1:]]) == ()
    late = replace(hanging[0], series={**hanging[0].series, POWER: samples(600, 190, 600, minutes=9)})
    assert hangs([late, *hanging[1:]]) == ()
    short = replace(hanging[0], series={**hanging[0].series, MOVED: samples(2e10, 0, 600, minutes=5)})
    assert hangs([short, *hanging[1:]]) == ()
    few = [each for each in hanging if each.node == "n2" and each.component != "gpu:0"]
    assert (hangs(few), all_wait(few)) == ((), False)
    assert all_wait(quiet) is False


def test_components_keep_their_names() -> None:
    """As the node wrote them."""
    assert str(Component.named("gpu:GPU-7")) == "gpu:GPU-7"
    assert str(Component.named("node")) == "node"
    assert job_patterns.QUIET_S == 600.0
