"""The two patterns of a running job that have a name: the straggler, and the hang.

Pure. A **straggler** is a device that is slower than its peers for the whole window: its score and its effect are
beyond the limits in both halves of the window. A clock below the peers' while all are busy, heat or a power brake that
slows it down, or a GPU that waits for its host while the others are used all the time (in NCCL's own waiting kernels
too: they count as use); of a NIC, traffic far below its neighbours', or bytes sent again. Power alone names none, for
ranks differ by their work; and what more than a quarter of the devices or nodes do is the job's own way.

A **hang** is the picture of a collective that one rank does not enter: after traffic, none of the job's devices moves a
byte for ``QUIET_S``, every GPU spins at low power in NCCL's kernel, and the GPUs of one node at most do not. A job that
never had traffic, or a device without readings, is not judged.

Both are in shadow: they are shown with their numbers, and healthd does nothing about them. Where a job is uneven, or
all of its ranks wait for one that computes, only its author can say what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from healthd.core.check import FindingCode
from healthd.core.model import NODE, Component, Finding, Remedy, Severity
from healthd.judge import peers
from healthd.judge.peers import WINDOW_S, DeviceReadings, Peers, Trait, among_peers, key_of, shown

STRAGGLER = FindingCode(
    code="job.straggler",
    severity=Severity.WARNING,
    remedy=Remedy.NONE,
    meaning="A GPU or a NIC of a running job is slower than its peers for minutes: the others wait for it",
)
HANG = FindingCode(
    code="job.hang",
    severity=Severity.WARNING,
    remedy=Remedy.NONE,
    meaning="All GPUs of a running job but one wait in a collective: the rank that is not in it holds the job up",
)
CODES = (STRAGGLER, HANG)

THRESHOLD = 6.0
"""From which score a device is a straggler: bench/bench_job_compare.py gives the false findings of each."""
QUIET_S = 600.0
"""For how long a job must have been without traffic to hang: a checkpoint that one rank writes looks the same, and is
shorter."""
WARM_UP_S = 600.0
"""After a job's start its ranks compile, load and fill caches, each in its own time. Nothing of that is compared."""

_SHARE = 0.25
_BUSY = 0.5
_SPINS, _SPARES = 0.95, 0.5
_LOW_POWER, _AT_WORK = 0.6, 0.9  # of the power that it drew at work: in the busiest tenth of its samples
_STILL = 0.01
_HAD_TRAFFIC_B_S = 1e6
_HALVES = ((WINDOW_S, WINDOW_S / 2), (WINDOW_S / 2, 0.0))
_LEAST_IN_HALF = 3


class _SlowBy(NamedTuple):
    """A trait that makes a device a straggler. ``side``: -1 below its peers, +1 above. ``effect``: by how much at
    least; with ``relative`` as a share of the peers' median. ``busy``: only while the peers are; ``moving``: only while
    they also move data, for a rank that writes a checkpoint uses its GPU less than those that wait for it."""

    trait: Trait
    side: int
    effect: float
    relative: bool
    busy: bool
    moving: bool = False


_SLOW = (
    _SlowBy(peers.CLOCK, -1, 0.20, relative=True, busy=True),
    _SlowBy(peers.THROTTLED, +1, 0.20, relative=False, busy=True),
    _SlowBy(peers.LOAD, -1, 0.30, relative=False, busy=True, moving=True),
    _SlowBy(peers.EFA_SHARE, -1, 0.45, relative=True, busy=False),
    _SlowBy(peers.RESENT, +1, 0.002, relative=False, busy=False),
)


class JobFinding(Struct, frozen=True, kw_only=True):
    """A pattern at one node of a job; ``label``: its device, in the operator's words."""

    node: str
    label: str
    finding: Finding


def stragglers(
    devices: Sequence[DeviceReadings], *, oldest_s: float = inf, threshold: float = THRESHOLD
) -> tuple[JobFinding, ...]:
    """The stragglers of a job. ``oldest_s``: nothing older counts. Of a node that is slow as a whole, one."""
    window_s = min(oldest_s, WINDOW_S)
    of_job = {rule.trait: among_peers(devices, rule.trait, oldest_s=window_s) for rule in _SLOW}
    nodes, moves = {key_of(each): each.node for each in devices}, _moves(devices, window_s)
    slow: dict[str, list[tuple[_SlowBy, Peers]]] = {}
    for rule in _SLOW:
        of_trait = of_job[rule.trait]
        if of_trait is None or (rule.busy and not _is_busy(of_job)) or (rule.moving and not moves):
            continue
        hits = [key for key in of_trait.values if _is_beyond(rule, of_trait, key, threshold)]
        if not hits or not _are_few(hits, of_trait, nodes):
            continue
        for key in _lasting(rule, devices, hits, threshold):
            slow.setdefault(key, []).append((rule, of_trait))
    return tuple(_found(devices, slow))


def _is_busy(of_job: Mapping[Trait, Peers | None]) -> bool:
    """Whether the job's GPUs are used; a clock says nothing on an idle one, nor where no GPU reports its use."""
    load = of_job[peers.LOAD]
    return load is not None and load.usual >= _BUSY


def _is_beyond(rule: _SlowBy, of_trait: Peers, key: str, threshold: float) -> bool:
    if key not in of_trait.values:
        return False
    away = rule.side * (of_trait.values[key] - of_trait.usual)
    effect = rule.effect * of_trait.usual if rule.relative else rule.effect
    return away >= effect and away >= threshold * of_trait.scale


def _moves(devices: Sequence[DeviceReadings], window_s: float) -> bool:
    """Whether the usual GPU, or NIC, moved data for most of the window. False where none reports it."""
    rates = (among_peers(devices, trait, oldest_s=window_s) for trait in (peers.NVLINK, peers.EFA))
    return any(rate is not None and rate.usual > 0.0 for rate in rates)


def _are_few(hits: Sequence[str], of_trait: Peers, nodes: Mapping[str, str]) -> bool:
    """Whether it is a matter of few: a quarter of the devices at most, on a quarter of the nodes at most, or on one.
    What more of them do is the way of the job: a pipeline's stages, a rail with less traffic."""
    on, of = {nodes[key] for key in hits}, {nodes[key] for key in of_trait.values}
    return len(hits) <= _SHARE * len(of_trait.values) and len(on) <= max(_SHARE * len(of), 1)


def _lasting(rule: _SlowBy, devices: Sequence[DeviceReadings], keys: Iterable[str], threshold: float) -> list[str]:
    """Those that are beyond the limits in both halves of the window as well: for minutes, not in one burst."""
    halves = [
        among_peers(devices, rule.trait, oldest_s=oldest_s, newest_s=newest_s, least=_LEAST_IN_HALF)
        for oldest_s, newest_s in _HALVES
    ]
    return [key for key in keys if all(half and _is_beyond(rule, half, key, threshold) for half in halves)]


def _found(
    devices: Sequence[DeviceReadings], slow: Mapping[str, Sequence[tuple[_SlowBy, Peers]]]
) -> Iterator[JobFinding]:
    kinds: dict[tuple[str, str], list[DeviceReadings]] = {}
    for each in devices:
        kinds.setdefault((each.node, each.kind), []).append(each)
    for (node, _), some in kinds.items():
        bad = [each for each in some if key_of(each) in slow]
        if len(bad) > 1 and len(bad) == len(some):
            first = min(bad, key=lambda each: each.component)
            yield _straggler(first, slow[key_of(first)], f"all {len(bad)} of {node}: {first.label}", NODE)
        else:
            for each in bad:
                yield _straggler(each, slow[key_of(each)], each.label, Component.named(each.component))


def _straggler(
    device: DeviceReadings, why: Sequence[tuple[_SlowBy, Peers]], label: str, component: Component
) -> JobFinding:
    key, text, numbers = key_of(device), [], dict[str, dict[str, float]]()
    for rule, of_trait in why:
        value, trait = of_trait.values[key], rule.trait
        text.append(
            f"{trait.name} {shown(value, trait.unit)}, its peers' median is {shown(of_trait.usual, trait.unit)}"
        )
        numbers[trait.name] = {
            "value": round(value, 6),
            "usual": round(of_trait.usual, 6),
            "score": round(of_trait.score(key), 1),
            "peers": len(of_trait.values) - 1,
        }
    message = f"{label} is slower than its peers for {WINDOW_S / 60:g} min: {'; '.join(text)}"
    finding = STRAGGLER.at(
        component, message, node=device.node, traits=numbers, limit_source="healthd's simulated fleet"
    )
    return JobFinding(node=device.node, label=label, finding=finding)


# ---------------------------------------------------------------------------------------------------------------------
# the hang


def hangs(
    devices: Sequence[DeviceReadings], *, oldest_s: float = inf, quiet_s: float = QUIET_S
) -> tuple[JobFinding, ...]:
    """The hang of a job: the devices of one node that are not in the collective, as one finding; or none."""
    gpus = [each for each in devices if each.kind == "gpu"]
    if len(gpus) < peers.LEAST_PEERS or not _went_quiet(devices, oldest_s, quiet_s):
        return ()
    states = {key_of(each): _state(each, oldest_s, quiet_s) for each in gpus}
    odd = [each for each in gpus if states[key_of(each)] in _ODD]
    spins = sum(state is _State.SPINS for state in states.values())
    if not odd or spins + len(odd) < len(gpus) or spins < len(odd) or len({each.node for each in odd}) > 1:
        return ()
    return (_hang(odd, states, len(gpus), quiet_s),)


def all_wait(devices: Sequence[DeviceReadings], *, oldest_s: float = inf) -> bool:
    """Whether every GPU waits in a collective, so that no rank stands out: a mismatch of the ranks, or the network."""
    gpus = [each for each in devices if each.kind == "gpu"]
    if len(gpus) < peers.LEAST_PEERS or not _went_quiet(devices, oldest_s, QUIET_S):
        return False
    return all(_state(each, oldest_s, QUIET_S) is _State.SPINS for each in gpus)


def _went_quiet(devices: Sequence[DeviceReadings], oldest_s: float, quiet_s: float) -> bool:
    """Whether the job moved bytes over NVLink or EFA before, and no device moves any now. A NIC that a job of one node
    does not use is quiet."""
    carried = [
        samples
        for each in devices
        for trait in (peers.NVLINK, peers.EFA)
        if each.kind == trait.kind
        for name in trait.readings
        if (samples := each.series.get(name)) is not None
    ]
    before = [value for samples in carried for age_s, value in samples if quiet_s <= age_s < oldest_s]
    busiest = max(before, default=0.0)
    if busiest < _HAD_TRAFFIC_B_S:
        return False
    since = [[value for age_s, value in samples if age_s < quiet_s] for samples in carried]
    return all(len(some) >= _least(quiet_s) and max(some) <= _STILL * busiest for some in since)


def _least(quiet_s: float) -> int:
    """How many samples of a minute such a time must have: one may be missing."""
    return max(int(quiet_s / 60.0) - 1, 2)


class _State(StrEnum):
    """The work of a GPU since the job became quiet. UNCLEAR: its readings are missing, or between the others."""

    SPINS = "spins"
    IDLE = "idle"
    COMPUTES = "computes"
    UNCLEAR = "unclear"


_ODD = frozenset({_State.IDLE, _State.COMPUTES})


def _state(device: DeviceReadings, oldest_s: float, quiet_s: float) -> _State:
    loads, powers = (_recent(device, name, quiet_s) for name in ("gpu_utilization_ratio", "gpu_power_w"))
    before = sorted(value for age_s, value in device.series.get("gpu_power_w", ()) if quiet_s <= age_s < oldest_s)
    if min(len(loads), len(powers)) < _least(quiet_s) or len(before) < _LEAST_IN_HALF:
        return _State.UNCLEAR
    if max(loads) < _SPARES:
        return _State.IDLE
    if min(loads) < _SPINS:
        return _State.UNCLEAR
    low = _LOW_POWER * before[int(_AT_WORK * (len(before) - 1))]
    if max(powers) <= low:
        return _State.SPINS
    return _State.COMPUTES if median(powers) > low else _State.UNCLEAR


def _recent(device: DeviceReadings, name: str, quiet_s: float) -> list[float]:
    return [value for age_s, value in device.series.get(name, ()) if age_s < quiet_s]


def _hang(odd: Sequence[DeviceReadings], states: Mapping[str, _State], gpus: int, quiet_s: float) -> JobFinding:
    first = odd[0]
    doing = "does nothing" if states[key_of(first)] is _State.IDLE else "computes on"
    powers = [value for each in odd for value in _recent(each, "gpu_power_w", quiet_s)]
    label = ", ".join(each.label for each in odd)
    power = f"at {median(powers):.0f} W"
    message = (
        f"no device of the job moved data for {quiet_s / 60:g} min; {gpus - len(odd)} of {gpus} GPUs wait in a "
        f"collective, and {label} of {first.node} {doing} {power}: the rank there is not in it"
    )
    finding = HANG.at(
        Component.named(first.component) if len(odd) == 1 else NODE,
        message,
        node=first.node,
        not_in_it=[each.component for each in odd],
        state=states[key_of(first)],
        waiting=gpus - len(odd),
        gpus=gpus,
        quiet_s=quiet_s,
    )
    return JobFinding(node=first.node, label=label, finding=finding)


def found(devices: Sequence[DeviceReadings], *, oldest_s: float = inf) -> tuple[JobFinding, ...]:
    """Both patterns, the hang first: a job that hangs has no straggler. ``oldest_s``: the age of the job without its
    warm-up."""
    return hangs(devices, oldest_s=oldest_s) or stragglers(devices, oldest_s=oldest_s)
