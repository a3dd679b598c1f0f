"""Incidents for a terminal, for a message and as JSON (``healthd.incidents/v1``). Pure: incidents in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from healthd.core.ages import age, lasting
from healthd.core.hostlist import folded
from healthd.core.json_documents import json_fields
from healthd.core.name_lists import number_of
from healthd.fleet.incidents import CauseKind, Incident
from healthd.observe.text_lines import Level, TextLine, joined
from healthd.remediation.records.domain_fence import DomainFence

SCHEMA = "healthd.incidents/v1"


def incidents_text(
    incidents: Sequence[Incident],
    now: datetime,
    remembered: str,
    fences: Sequence[DomainFence] = (),
    unfenced: Mapping[str, str] | None = None,
    *,
    colour: bool = False,
) -> str:
    """A block for each incident, the open ones first. ``remembered``: by whom, or that nothing is remembered.
    ``fences``: the NVLink domains that are fenced as one; ``unfenced``: why a broken one is not, by its incident."""
    ordered = sorted(incidents, key=lambda each: (each.ended is not None, each.began, each.id))
    still_open = sum(each.is_open for each in ordered)
    head = f"{still_open} open, {len(ordered) - still_open} ended within 7 days  ·  {remembered}"
    blocks = [line for each in ordered for line in _block(each, now, fences, unfenced or {})]
    return joined([TextLine(head), *blocks], colour=colour)


def incident_data(incident: Incident) -> dict[str, Any]:
    """One incident as data. Times are ISO 8601; what is not known is null or ""."""
    return {
        "id": incident.id,
        "open": incident.is_open,
        **json_fields(incident, "root", "codes"),
        "cause": {"kind": incident.cause.kind.value, "value": incident.cause.value},
        **json_fields(incident, "began", "ended", "first", "nodes", "active", "unknown", "hosts", "trend", "slow"),
        "critical": incident.grave,
        "domain_broken": incident.broken_domain,
    }


def incidents_data(
    incidents: Iterable[Incident], now: datetime, *, remembered: bool, fences: Sequence[DomainFence] = ()
) -> dict[str, Any]:
    """All of them, and the fences. ``remembered``: by a controller; else only what nodes have now is known."""
    return {
        "schema": SCHEMA,
        "read_at": now.isoformat(),
        "remembered": remembered,
        "incidents": [incident_data(each) for each in incidents],
        "fences": [
            {"domain": each.domain, "incident": each.incident, "nodes": sorted(each.nodes), "hosts": folded(each.nodes)}
            for each in fences
            if each.stands
        ],
    }


def sentence(incident: Incident) -> str:
    """``lustre.missing on 500 nodes (gpu-[001-500]), first gpu-017: file system /fsx [1124-3f2a9c]``."""
    code = incident.codes[0] if incident.codes else incident.root
    more = f" and {len(incident.codes) - 1} more codes" if len(incident.codes) > 1 else ""
    nodes = incident.active if incident.is_open else incident.nodes
    about = [cause_text(incident)]
    if incident.slow:
        about.append("more and more nodes over days")
    if incident.unknown:
        about.append(f"{len(incident.unknown)} of its nodes do not report")
    where = f"{number_of(len(nodes), 'node')} ({incident.hosts})"
    return f"{code}{more} on {where}, first {incident.first}: {'; '.join(about)} [{incident.id}]"


def cause_text(incident: Incident) -> str:
    """The likely cause: ``shared cause file system /fsx``."""
    if incident.broken_domain:
        return f"most of NVLink domain {incident.broken_domain} is broken, and no node outside"
    if incident.cause.kind is CauseKind.NOT_KNOWN:
        return "no shared cause is known"
    return f"shared cause {incident.cause.text}"


def _block(
    incident: Incident, now: datetime, fences: Sequence[DomainFence], unfenced: Mapping[str, str]
) -> list[TextLine]:
    if incident.ended is not None:
        lasts = lasting((incident.ended - incident.began).total_seconds())
        state = f"ENDED {age(incident.ended, now)} ago, lasted {lasts}"
    else:
        state = f"OPEN for {age(incident.began, now)}, {incident.trend}"
    fenced = [
        f"  fenced as one: {folded(each.nodes)}" for each in fences if each.incident == incident.id and each.nodes
    ]
    if incident.id in unfenced:
        fenced.append(f"  not fenced: {unfenced[incident.id]}")
    level: Level = "" if incident.ended is not None else "critical" if incident.grave else "warning"
    return [TextLine(f"{incident.id}  {state}", level), *map(TextLine, (f"  {sentence(incident)}", *fenced))]
