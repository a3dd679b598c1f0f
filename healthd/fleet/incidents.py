"""Incidents: one cause on many nodes, with an id, a beginning, a likely root and an end. Pure: nodes and time in,
values out.

A group of findings with one root becomes an incident when many nodes begin to have it inside minutes, when most of an
NVLink domain has it, or when over days far more nodes get it than before. It ends when fewer than two nodes have had it
for a while. A node that is silent or unknown is no new member, and is not healthy either: it keeps an incident open.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from math import comb

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.checklib.tables import is_ultraserver
from healthd.core.hostlist import folded
from healthd.fleet.nodes import FleetNode
from healthd.remediation.decide.remediation import ORDERED
from healthd.remediation.records.incident_notices import DOMAIN_ROOT, is_fabric, root_of
from healthd.remediation.records.summary import NodeState

ENDS_AFTER = timedelta(minutes=10)
"""How long fewer than two nodes must have it before an incident is over: nodes come back one by one."""
UNKNOWN_COUNTS = timedelta(days=1)
"""How long a member that says nothing keeps its incident open: one that stays dead is a node's own story."""
KEPT = timedelta(days=7)
"""How long an incident that is over is listed."""
TREND_WINDOW = timedelta(days=14)
"""The days over which a slow story is counted, in two halves."""
_BY_CHANCE = 100  # of so many groups one looks like a slow story by chance
_MOST_SIGHTINGS = 20_000  # in a memory; the oldest are dropped
_MOST_OF = 0.9  # of the members must share a cause, and twice as large a part of them as of the other nodes
_FAULTY = frozenset(NodeState) - {NodeState.OK, NodeState.UNKNOWN}


class CauseKind(StrEnum):
    """The kinds of things that nodes can share."""

    FILE_SYSTEM = "file system"
    NVLINK_DOMAIN = "NVLink domain"
    RACK = "rack"
    DRIVER = "driver"
    IMAGE = "image"
    KERNEL = "kernel"
    TYPE = "instance type"
    PARTITION = "partition"
    NOT_KNOWN = "not known"


class Trend(StrEnum):
    """Whether more nodes get it."""

    GROWING = "growing"
    STEADY = "steady"
    SHRINKING = "shrinking"


class IncidentRules(Struct, frozen=True, kw_only=True):
    """The limits: the same finding on ``nodes`` nodes within ``minutes`` is one incident."""

    nodes: int = 4
    minutes: float = 10.0


class Sighting(Struct, frozen=True, kw_only=True):
    """One node that has, or had, a finding. ``root``: what findings of one cause have in common. ``at``: since when,
    the last time. ``first``: since when, the first time of the days over which a slow story is counted. ``gone``: since
    when it no longer has it. ``seen``: when its agent said so last. ``grave``: it is more than a warning.
    ``with_many``: the node was in an incident of many at once, so that it counts for no slow story."""

    root: str
    code: str
    node: str
    at: datetime
    first: datetime
    seen: datetime
    gone: datetime | None = None
    grave: bool = False
    with_many: bool = False


class SharedCause(Struct, frozen=True, kw_only=True):
    """The thing that the nodes of an incident share and others do not: the likely cause, not a proven one."""

    kind: CauseKind
    value: str = ""

    @property
    def text(self) -> str:
        """``file system /fsx``."""
        return f"{self.kind} {self.value}".strip() if self.kind is not CauseKind.NOT_KNOWN else "no shared cause known"


class Incident(Struct, frozen=True, kw_only=True):
    """One incident. ``id``: the same from every reader of the same fleet. ``codes``: the findings, most frequent
    first. ``nodes``: those that have it, or had it while it was open; ``active``: those that have it now; ``unknown``:
    members of which that is not known. ``first``: the node that had it first. ``broken_domain``: the domain whose
    NVLink is broken in most of its nodes and in no node outside, else "". ``quiet``: since when fewer than two nodes
    have it. ``slow``: a story of days. ``fenced``: its domain has been fenced as one."""

    id: str
    root: str
    began: datetime
    codes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    active: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    first: str = ""
    cause: SharedCause = SharedCause(kind=CauseKind.NOT_KNOWN)
    trend: Trend = Trend.STEADY
    grave: bool = False
    slow: bool = False
    broken_domain: str = ""
    fenced: bool = False
    quiet: datetime | None = None
    ended: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.ended is None

    @property
    def hosts(self) -> str:
        """The nodes that have it now, or where it is over, all that had it, as a host list."""
        return folded(self.active if self.is_open and self.active else self.nodes)


class IncidentMemory(Struct, frozen=True, kw_only=True):
    """The memory from one reading to the next. ``watched``: since when there is one; a slow story needs all its days.
    ``domains``: the NVLink domain of each node, also of one that does not report now. A reader that remembers nothing
    begins with an empty one, and finds the incidents of what nodes have now."""

    watched: datetime | None = None
    domains: Mapping[str, str] = field(default_factory=dict)
    sightings: tuple[Sighting, ...] = ()
    incidents: tuple[Incident, ...] = ()

    @property
    def open(self) -> tuple[Incident, ...]:
        """The incidents that have not ended."""
        return tuple(each for each in self.incidents if each.is_open)


class FleetReading(Struct, frozen=True, kw_only=True):
    """One reading of the fleet with what it is judged by. ``watched``: since when the fleet is remembered. ``unknown``:
    the nodes of whose health nothing is known."""

    nodes: Sequence[FleetNode]
    now: datetime
    rules: IncidentRules
    domains: Mapping[str, str]
    watched: datetime
    unknown: frozenset[str]

    @property
    def window(self) -> timedelta:
        """The minutes within which findings are of one time."""
        return timedelta(minutes=self.rules.minutes)


def observed(memory: IncidentMemory, nodes: Sequence[FleetNode], now: datetime, rules: IncidentRules) -> IncidentMemory:
    """The memory after this reading of the fleet."""
    names = {each.name for each in nodes}
    kept = {name: domain for name, domain in memory.domains.items() if name in names}
    domains = {**kept, **nvlink_domains(nodes)}
    seen = {(each.root, each.node): each for each in _sightings(nodes, now, rules, domains)}
    unknown = frozenset(each.name for each in nodes if _is_unknown(each))
    sightings = _merged(memory.sightings, seen, unknown, now)
    by_root: dict[str, list[Sighting]] = {}
    for each in sightings:
        by_root.setdefault(each.root, []).append(each)
    watched = memory.watched or now
    reading = FleetReading(nodes=nodes, now=now, rules=rules, domains=domains, watched=watched, unknown=unknown)
    known = {(each.root, each.slow): each for each in memory.open}
    ended = {each.id: each for each in memory.incidents if each.ended is not None and now - each.ended < KEPT}
    found: list[Incident] = []
    for root in sorted(by_root.keys() | {each.root for each in memory.open}):
        group = by_root.get(root, [])
        many = known.get((root, False)) or _resumed(_at_once(root, group, reading), ended)
        if many is not None:
            many = _updated(many, group, reading, sightings)
            found.append(many)
            group = by_root[root] = [
                replace(each, with_many=each.with_many or each.node in many.nodes) for each in group
            ]
        alone = [each for each in group if not each.with_many]
        story = known.get((root, True))
        if story is None and many is None:
            story = _resumed(_over_days(root, alone, reading), ended)
        if story is not None:
            found.append(_updated(story, alone, reading, sightings))
    sightings = tuple(each for root in sorted(by_root) for each in by_root[root])
    listed = sorted((*ended.values(), *found), key=lambda each: (each.began, each.id))
    return IncidentMemory(watched=watched, domains=domains, sightings=sightings, incidents=tuple(listed))


def tells_the_same(memory: IncidentMemory, before: IncidentMemory) -> bool:
    """Whether nothing is new in it but that nodes still have what they had."""
    return _without_seen(memory) == _without_seen(before)


def nvlink_domains(nodes: Collection[FleetNode]) -> dict[str, str]:
    """The NVLink domain of each node, where it is known: the block of Slurm's topology that holds instances of an
    UltraServer, to which a silent node belongs as well; and what its GPUs say, where there is no such block, or where
    its nodes say different things."""
    of_group: dict[str, list[FleetNode]] = {}
    for each in nodes:
        if each.listed.group:
            of_group.setdefault(each.listed.group, []).append(each)
    blocks = {
        group: {name for name in map(_own_domain, members) if name}
        for group, members in of_group.items()
        if any(is_ultraserver(one.instance_type) for one in members)
    }
    found = {each.name: _domain_name(each, blocks) for each in nodes}
    return {name: domain for name, domain in found.items() if domain}


def _domain_name(node: FleetNode, blocks: Mapping[str, Collection[str]]) -> str:
    """``rack-7``, ``rack-7/9f86d081`` in a block of several domains, ``9f86d081`` without a block, or ""."""
    own, group = _own_domain(node), node.listed.group
    if group not in blocks:
        return own
    if len(blocks[group]) < 2:
        return group
    return f"{group}/{own}" if own else ""


def _own_domain(node: FleetNode) -> str:
    return node.summary.domain if node.summary is not None else ""


# ---------------------------------------------------------------------------------------------------------------------


def _without_seen(memory: IncidentMemory) -> IncidentMemory:
    return replace(memory, sightings=tuple(replace(each, seen=each.at) for each in memory.sightings))


def _is_unknown(node: FleetNode) -> bool:
    """Whether nothing is known of its health: never a reason to count it as faulty, nor as healthy."""
    return node.summary is None or node.is_silent or node.summary.state is NodeState.UNKNOWN


def _sightings(
    nodes: Iterable[FleetNode], now: datetime, rules: IncidentRules, domains: Mapping[str, str]
) -> list[Sighting]:
    """The findings that nodes have now, without those that a single root in their NVLink domain explains."""
    found = []
    for node in nodes:
        summary = node.summary
        if summary is None or _is_unknown(node) or node.listed.asleep or summary.state not in _FAULTY:
            continue
        if summary.code and summary.code not in ORDERED:  # a command is no finding
            at = min(summary.since or summary.at or now, now)
            grave = summary.state is not NodeState.WARNING
            root = root_of(summary.code, summary.component, domains.get(node.name, ""))
            found.append(Sighting(root=root, code=summary.code, node=node.name, at=at, first=at, seen=now, grave=grave))
    roots = [each for each in found if each.grave and each.node in domains and _is_gpu(each.code)]
    return [each for each in found if not _is_sympathetic(each, roots, domains, timedelta(minutes=rules.minutes))]


def _domain_of(root: str) -> str:
    """The NVLink domain that a root names, or ""."""
    kind, _, domain = root.partition(DOMAIN_ROOT)
    return "" if kind else domain


def _is_gpu(code: str) -> bool:
    return is_fabric(code) or code.startswith("gpu.xid.")


def _is_sympathetic(each: Sighting, roots: Iterable[Sighting], domains: Mapping[str, str], window: timedelta) -> bool:
    """Whether it is a warning of a GPU beside a grave fault of another node in its NVLink domain, of the same time."""
    if each.grave or not _is_gpu(each.code) or each.node not in domains:
        return False
    domain = domains[each.node]
    return any(domains[root.node] == domain and abs(root.at - each.at) <= window for root in roots)


def _merged(
    before: Iterable[Sighting], seen: Mapping[tuple[str, str], Sighting], unknown: Collection[str], now: datetime
) -> tuple[Sighting, ...]:
    """The sightings with those of now: one for each root and node. One that was away for less than it takes to end an
    incident was never gone."""
    merged = dict(seen)
    for old in before:
        key = (old.root, old.node)
        if key in seen:
            new = seen[key]
            goes_on = old.gone is None or now - old.gone < ENDS_AFTER
            at = min(old.at, new.at) if goes_on else new.at
            is_counted = goes_on or (now - old.first < TREND_WINDOW and not old.with_many)
            merged[key] = replace(
                new,
                at=at,
                first=min(old.first, at) if is_counted else at,
                grave=new.grave or (goes_on and old.grave),
                with_many=goes_on and old.with_many,
            )
        elif old.node in unknown and old.gone is None and now - old.seen < UNKNOWN_COUNTS:
            merged[key] = old
        elif now - old.at < TREND_WINDOW:
            merged[key] = replace(old, gone=old.gone or now)
    ordered = sorted(merged.values(), key=lambda each: (each.at, each.root, each.node))
    return tuple(ordered[-_MOST_SIGHTINGS:])


def _at_once(root: str, group: Sequence[Sighting], reading: FleetReading) -> Incident | None:
    """The incident that this group is now, by many nodes at once or by most of an NVLink domain; or None."""
    active = [each for each in group if each.gone is None and each.seen == reading.now]
    began = _burst(active, reading.rules) or _of_domain(root, active, reading.domains, reading.nodes)
    return None if began is None else Incident(id=_id(root, began), root=root, began=began)


def _over_days(root: str, alone: Sequence[Sighting], reading: FleetReading) -> Incident | None:
    """The slow story of nodes that get it one by one, or None."""
    if not _is_growing(alone, reading.now, reading.watched):
        return None
    began = min(each.first for each in alone)
    return Incident(id=_id(f"slow {root}", began), root=root, began=began, slow=True)


def _resumed(incident: Incident | None, ended: dict[str, Incident]) -> Incident | None:
    """The same, or the one of this id that had ended: it came back on the day on which it began."""
    again = ended.pop(incident.id, None) if incident is not None else None
    return incident if again is None else replace(again, ended=None, quiet=None, fenced=False)


def _burst(active: Iterable[Sighting], rules: IncidentRules) -> datetime | None:
    """When the first of many nodes inside minutes began to have it, or None."""
    times = sorted(each.at for each in active)
    for first, last in zip(times, times[rules.nodes - 1 :], strict=False):
        if last - first <= timedelta(minutes=rules.minutes):
            return first
    return None


def _of_domain(
    root: str, active: Sequence[Sighting], domains: Mapping[str, str], nodes: Sequence[FleetNode]
) -> datetime | None:
    """The same for most nodes of one NVLink domain, which may be fewer."""
    domain = _domain_of(root)
    is_most = bool(domain) and _is_most(domain, {each.node for each in active if each.grave}, domains, nodes)
    return min(each.at for each in active) if is_most else None


def _is_most(domain: str, faulty: Collection[str], domains: Mapping[str, str], nodes: Iterable[FleetNode]) -> bool:
    """Whether more than half of the machines of a domain, and at least two, are faulty. A machine of which nothing is
    known is not faulty, and counts as one of the domain."""
    size = sum(domains.get(each.name) == domain and not each.listed.asleep for each in nodes)
    return len(faulty) > max(size / 2, 1)


def _is_growing(group: Sequence[Sighting], now: datetime, watched: datetime) -> bool:
    """Whether far more nodes got it in the second half of the window than in the first: more than chance explains in
    one of a hundred groups (binomial test, p = 1/2). Both halves must have been watched."""
    if now - watched < TREND_WINDOW:
        return False
    half = now - TREND_WINDOW / 2
    late = sum(each.first >= half for each in group)
    total = sum(each.first >= now - TREND_WINDOW for each in group)
    if late <= total - late:
        return False
    tail = term = comb(total, late)
    for each in range(late, total):
        term = term * (total - each) // (each + 1)
        tail += term
    return tail * _BY_CHANCE < 1 << total


def _id(root: str, began: datetime) -> str:
    """``1124-3f2a9c``: the day and the root."""
    day = f"{began:%Y-%m-%d}"
    return f"{began:%m%d}-{hashlib.sha256(f'{day} {root}'.encode()).hexdigest()[:6]}"


def _updated(
    incident: Incident, group: Sequence[Sighting], reading: FleetReading, sightings: Iterable[Sighting]
) -> Incident:
    """The incident with what its nodes say now, and its end where it is over."""
    now = reading.now
    now_in = [each for each in group if each.gone is None and each.seen == now]
    silent = [each.node for each in group if each.gone is None and each.seen != now and each.node in reading.unknown]
    since = incident.began if incident.slow else incident.began - reading.window
    joined = {each.node for each in group if each.at >= since or each.gone is None}
    members = joined.union(incident.nodes)
    is_story = incident.slow and _is_growing(group, now, reading.watched)
    few = len(now_in) + len(silent) < 2 and not is_story
    quiet = min(incident.quiet or now, now) if few else None  # one that is to come is of a clock that was ahead
    is_over = quiet is not None and now - quiet >= ENDS_AFTER
    counted = Counter(each.code for each in group if each.node in members)
    first = min((each for each in group if each.node in members), key=lambda each: (each.at, each.node), default=None)
    after = replace(
        incident,
        codes=tuple(code for code, _ in sorted(counted.items(), key=lambda each: (-each[1], each[0])))
        or incident.codes,
        nodes=tuple(sorted(members)),
        active=tuple(sorted(each.node for each in now_in)),
        unknown=tuple(sorted(silent)),
        first=first.node if first is not None else incident.first,
        trend=_trend(group, now, TREND_WINDOW / 2 if incident.slow else reading.window),
        grave=incident.grave or any(each.grave for each in now_in),
        quiet=quiet,
        ended=now if is_over else None,
    )
    cause = shared_cause(after, reading.nodes, reading.domains) if len(now_in) > 1 else incident.cause
    return replace(after, cause=cause, broken_domain=_broken_domain(after, now_in, reading, sightings))


def _trend(group: Iterable[Sighting], now: datetime, window: timedelta) -> Trend:
    """By those that began and those that were repaired within the window."""
    came = went = 0
    for each in group:
        came += each.gone is None and now - each.at <= window
        went += each.gone is not None and now - each.gone <= window
    return Trend.GROWING if came > went else Trend.SHRINKING if went > came else Trend.STEADY


def _broken_domain(
    incident: Incident, now_in: Iterable[Sighting], reading: FleetReading, sightings: Iterable[Sighting]
) -> str:
    """The NVLink domain whose own hardware is at fault in most of its nodes, and in no node outside at that time;
    else ""."""
    domain = _domain_of(incident.root)
    if not domain or incident.ended is not None:
        return ""
    outside = any(
        is_fabric(each.code)
        and reading.domains.get(each.node) != domain
        and abs(each.at - incident.began) <= reading.window
        for each in sightings
    )
    faulty = {each.node for each in now_in if each.grave}
    return domain if not outside and _is_most(domain, faulty, reading.domains, reading.nodes) else ""


def shared_cause(incident: Incident, nodes: Sequence[FleetNode], domains: Mapping[str, str]) -> SharedCause:
    """The thing that its nodes share and other nodes do not. A file system or an NVLink domain is in the root itself;
    of the rest, the thing that most members have, and that tells them best from the others."""
    _, is_mount, path = incident.root.partition(" mount:")
    if is_mount:
        return SharedCause(kind=CauseKind.FILE_SYSTEM, value=path)
    if domain := _domain_of(incident.root):
        return SharedCause(kind=CauseKind.NVLINK_DOMAIN, value=domain)
    active = set(incident.active)
    best: tuple[float, SharedCause] = (2.0, SharedCause(kind=CauseKind.NOT_KNOWN))
    for kind, values in _TRAITS.items():
        with_it = Counter(value for each in nodes if each.name in active for value in set(values(each, domains)))
        others = Counter(value for each in nodes if each.name not in active for value in set(values(each, domains)))
        known = sum(each.name not in active and bool(values(each, domains)) for each in nodes)
        if not with_it or not known:  # nothing to compare with
            continue
        value, count = min(with_it.items(), key=lambda each: (-each[1], others[each[0]], each[0]))
        contrast = count / len(active) / max(others[value] / known, 1 / (2 * known))
        if count >= _MOST_OF * len(active) and contrast > best[0]:
            best = (contrast, SharedCause(kind=kind, value=value))
    return best[1]


_TRAITS: Mapping[CauseKind, Callable[[FleetNode, Mapping[str, str]], tuple[str, ...]]] = {
    CauseKind.NVLINK_DOMAIN: lambda node, domains: (domains[node.name],) if node.name in domains else (),
    CauseKind.DRIVER: lambda node, _: (_driver(node),) if _driver(node) else (),
    CauseKind.IMAGE: lambda node, _: (node.record.image,) if node.record.image else (),
    CauseKind.KERNEL: lambda node, _: (node.record.kernel,) if node.record.kernel else (),
    CauseKind.RACK: lambda node, _: (node.listed.group,) if node.listed.group else (),
    CauseKind.TYPE: lambda node, _: (node.instance_type,) if node.instance_type else (),
    CauseKind.PARTITION: lambda node, _: node.listed.partitions,
}


def _driver(node: FleetNode) -> str:
    return (node.summary.driver if node.summary is not None else "") or node.record.driver
