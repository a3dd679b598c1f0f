"""healthd's Leases for a reader of the fleet: the budget, every claim, and the controller's last messages. Pure.

No decision reads this. Numbers that are missing or too old hide no node: they become a remark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from healthd.core.errors import BackendUnknown
from healthd.core.model import CLUSTER
from healthd.remediation.decide.freeze import Freeze
from healthd.remediation.orchestrators.kubernetes.objects.budget import (
    FIXED_LIMIT,
    LEASE,
    STATUS,
    STATUS_LEASE,
    annotations_of,
    budget_of,
    check_counted,
    freeze_in,
)
from healthd.remediation.orchestrators.kubernetes.objects.conditions import stamp_of, time_of
from healthd.remediation.orchestrators.kubernetes.objects.count import budget_before
from healthd.remediation.orchestrators.kubernetes.objects.domain_fences import FENCES, WrittenFence, fences_in
from healthd.remediation.orchestrators.kubernetes.objects.incident_notes import INCIDENTS_LEASE
from healthd.remediation.ports import Slot

_NO_LEASE = (
    f"there is no Lease {LEASE} in the namespace, so healthd takes no node out; set [orchestrator.kubernetes] namespace"
    " to the one of healthd"
)


class ReadLeases(Struct, frozen=True, kw_only=True):
    """``limit``: of the cluster's budget; None where it is not known. ``slots``: the claims of every scope; ``times``:
    when each was made, in epoch seconds, by scope and index; 0: not known. ``only_slots``: see ``FleetPicture``.
    ``messages``: the controller's, by node; the cluster's own are among the ``remarks``. ``freeze``: of the fleet.
    ``fences``: those of NVLink domains, as they are written down."""

    limit: int | None
    slots: tuple[Slot, ...]
    times: Mapping[tuple[str, int], int]
    only_slots: bool
    messages: Mapping[str, str]
    remarks: tuple[str, ...]
    freeze: Freeze | None = None
    fences: tuple[WrittenFence, ...] = ()


def leases_in(page: bytes) -> tuple[Mapping[str, Any], ...]:
    """The Leases in one page of a list. Raises msgspec.MsgspecError for anything else."""
    return _READS_LEASES.decode(page).items


def read_leases(leases: Iterable[Mapping[str, Any]], now: datetime, *, counts_age_s: float) -> ReadLeases:
    """All of healthd's Leases. ``counts_age_s``: with an older count agents take no node out."""
    named = {str(lease.get("metadata", {}).get("name", "")): lease for lease in leases}
    limit, only_slots, remarks = _limit(named.get(LEASE), now, counts_age_s)
    slots: list[Slot] = []
    times: dict[tuple[str, int], int] = {}
    for name, lease in sorted(named.items()):
        if name != LEASE and not name.startswith(f"{LEASE}-"):
            continue
        scope = name.removeprefix(LEASE).removeprefix("-") or CLUSTER
        budget = budget_before(scope, lease)
        slots += budget.slots
        times |= {(scope, claim.index): stamp_of(time_of(claim.at)) for claim in budget.claims.values()}
    messages, of_cluster = _messages(named.get(STATUS_LEASE))
    return ReadLeases(
        limit=limit,
        slots=tuple(slots),
        times=times,
        only_slots=only_slots,
        messages=messages,
        remarks=(*remarks, *of_cluster),
        freeze=_freeze(named.get(LEASE), now),
        fences=_fences(named.get(INCIDENTS_LEASE)),
    )


def _freeze(lease: Mapping[str, Any] | None, now: datetime) -> Freeze | None:
    return freeze_in(annotations_of(lease)[1], now) if lease is not None else None


def _fences(lease: Mapping[str, Any] | None) -> tuple[WrittenFence, ...]:
    return fences_in(annotations_of(lease)[1].get(FENCES, "")) if lease is not None else ()


def _limit(lease: Mapping[str, Any] | None, now: datetime, counts_age_s: float) -> tuple[int | None, bool, list[str]]:
    """The limit, whether it holds slots alone, and a remark where agents can take no node out."""
    if lease is None:
        return None, False, [_NO_LEASE]
    try:
        budget = budget_of(CLUSTER, lease)
    except BackendUnknown as error:
        return None, False, [f"{error}; healthd takes no node out"]
    only_slots = bool(annotations_of(lease)[1].get(FIXED_LIMIT))
    try:
        check_counted(budget, now, max_age_s=counts_age_s)
    except BackendUnknown as error:
        return budget.limit, only_slots, [f"{error}; healthd takes no further node out"]
    return budget.limit, only_slots, []


def _messages(lease: Mapping[str, Any] | None) -> tuple[dict[str, str], list[str]]:
    """The controller's message for each node, and those for the whole cluster; none where its status cannot be read."""
    try:
        status = json.loads(annotations_of(lease or {"metadata": {"resourceVersion": ""}})[1].get(STATUS, "{}"))
    except ValueError:
        return {}, []
    listed = status.get("nodes") if isinstance(status, Mapping) else None
    entries = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, Sequence) else []
    pairs = [(str(each.get("node") or ""), str(each.get("message") or "")) for each in entries]
    return {node: message for node, message in pairs if node and message}, [
        message for node, message in pairs if message and not node
    ]


class _Leases(msgspec.Struct, frozen=True):
    items: tuple[dict[str, Any], ...]


_READS_LEASES = msgspec.json.Decoder(_Leases)  # made by one thread, see ``node``
