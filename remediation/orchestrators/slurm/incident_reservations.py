"""Notices of incidents, and fences of NVLink domains, as reservations. Text only.

A notice is a reservation without nodes: it keeps no job off, slurmctld ends it by itself, and every node reads all of
them before it acts anyway. The name holds the notice, because Comment= came with 23.02; slurmctld 22.05.8 takes names
of 60,000 characters, with brackets (tests/live/slurm/test_slurm_incidents.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from urllib.parse import quote, unquote

from healthd.core.hostlist import folded, unfolded
from healthd.remediation.orchestrators.slurm.slots import HEAD, creation, ends_of, freeze_creation, records
from healthd.remediation.records.domain_fence import DomainFence
from healthd.remediation.records.handoff import epoch_time
from healthd.remediation.records.incident_notices import LASTS, IncidentNotice, IncidentNotices

WATCH = "healthd-incidents"
"""The name of the reservation that says that a controller reports incidents."""
INCIDENT = "healthd-incident:"
"""The beginning of the name of a notice."""
FENCE = "healthd-fence:"
"""The beginning of the name of a fence: one reservation of all nodes of a domain, with the flags of a slot. New jobs
stay off, running ones go on, and neither the nodes' states nor their reasons are touched."""
MOST_HOSTS = 8_000
"""Characters of a host list: some 2,000 nodes at random. Nodes beyond it send their own messages."""
_NODES = re.compile(r" Nodes=(\S+) ")
_SAFE = "/:._-"
_CRITICAL, _WARNING = "critical", "warning"
_MINUTES = int(LASTS.total_seconds() // 60)


def notice_name(notice: IncidentNotice) -> str:
    """``healthd-incident:1124-3f2a9c:critical:1764000000:gpu-[001-500+702]:lustre%20mount:/fsx``. A comma would make
    it two reservations in a job's ``--reservation``."""
    nodes = sorted(notice.nodes)
    while len(hosts := folded(nodes)) > MOST_HOSTS:
        nodes = nodes[: len(nodes) * MOST_HOSTS // len(hosts)]
    severity = _CRITICAL if notice.critical else _WARNING
    fields = (notice.id, severity, str(int(notice.began.timestamp())), hosts.replace(",", "+"))
    return f"{INCIDENT}{':'.join(fields)}:{quote(notice.root, safe=_SAFE)}"


def parse_notices(answer: str) -> IncidentNotices:
    """The notices in the output of ``scontrol -o show reservation``. Another reservation is none."""
    ends = dict(_ends(answer))
    found = (_notice(name, until) for name, until in ends.items() if name.startswith(INCIDENT))
    return IncidentNotices(watched_until=ends.get(WATCH), open=tuple(each for each in found if each is not None))


def updates(answer: str, wanted: Iterable[IncidentNotice], now: datetime) -> tuple[tuple[str, ...], ...]:
    """The calls of scontrol after which exactly the ``wanted`` notices stand there, and that a controller watches, each
    for ``LASTS`` from now on. New ones are created before old ones are deleted: no incident is without a notice."""
    names = [WATCH, *(notice_name(each) for each in wanted)]
    ends = dict(_ends(answer))
    old = (("delete", f"reservationname={each}") for each in ends if each not in names)
    return (*_shown(names, ends, now), *old)


def fence_name(fence: DomainFence) -> str:
    """``healthd-fence:1124-3f2a9c:rack-7``: it says in `sinfo` and `scontrol` why the nodes are out."""
    return f"{FENCE}{fence.incident}:{quote(fence.domain, safe=_SAFE)}"


def fence_creation(fence: DomainFence) -> tuple[str, ...]:
    """The arguments of scontrol that fence a domain."""
    return creation(fence_name(fence), folded(fence.nodes))


def parse_fences(answer: str) -> tuple[DomainFence, ...]:
    """The fences in the output of ``scontrol -o show reservation``."""
    found = []
    for record in records(answer):
        name, nodes = record.removeprefix(HEAD).partition(" StartTime=")[0], _NODES.search(record)
        incident, _, domain = name.removeprefix(FENCE).partition(":")
        if name.startswith(FENCE) and nodes is not None and domain:
            members = frozenset(unfolded(nodes[1]))
            found.append(DomainFence(domain=unquote(domain), incident=incident, nodes=members))
    return tuple(found)


def _shown(names: Iterable[str], ends: Mapping[str, datetime], now: datetime) -> Iterator[tuple[str, ...]]:
    for name in names:
        if name not in ends:
            yield freeze_creation(name, _MINUTES)
        elif ends[name] - now < LASTS * 0.9:
            yield "update", f"reservationname={name}", f"endtime=now+{_MINUTES}minutes"


def _ends(answer: str) -> Iterator[tuple[str, datetime]]:
    for name, end in ends_of(answer):
        if end is not None and (name == WATCH or name.startswith(INCIDENT)):
            yield name, end


def _notice(name: str, until: datetime) -> IncidentNotice | None:
    fields = name.removeprefix(INCIDENT).split(":", 4)
    if len(fields) < 5 or fields[1] not in (_CRITICAL, _WARNING):
        return None
    id_, severity, began, hosts, root = fields
    if (at := epoch_time(began)) is None:
        return None
    return IncidentNotice(
        id=id_,
        root=unquote(root),
        began=at,
        nodes=frozenset(unfolded(hosts.replace("+", ","))),
        critical=severity == _CRITICAL,
        until=until,
    )
