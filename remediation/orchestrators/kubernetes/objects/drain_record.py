"""The controller's record of a drain, so that no pod that comes back is evicted a second time. Pure.

Pods like a DaemonSet's, static pods, pods with ``nodeName`` set and pods that ignore taints come back to a node that is
out: evicted in every sync, they would never run. So a drain concerns the pods that were made before the controller
first read the node; a later pod came back, or ignores the taint.

The record is an annotation of the controller's own Lease, written before the first eviction: the next controller finds
it. It ends with the node's claim, or with another hold of the node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from healthd.core.encodable import NOT_JSON
from healthd.remediation.orchestrators.kubernetes.objects.node import OwnershipAnnotation, Stamp

RECORDS = "healthd.io/drains"
"""The annotation."""

SKEW_S = 5.0
"""How far apart, in seconds, the clocks of controller and API servers may be. A pod that was made within that time
before or after the first reading is known by its uid."""

_CHARACTERS = 10  # of a digest: 40 bits


class DrainRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One drain as it began. ``hold``: which hold of the node, as a digest. ``began``: the controller's first reading,
    by its own clock, in seconds since the epoch. ``young``: digests of the uids of the pods of the first reading that
    are so new that their age does not decide."""

    hold: Annotated[str, msgspec.Meta(max_length=64)]
    began: Stamp
    young: frozenset[str] = frozenset()

    @property
    def began_at(self) -> datetime:
        """The time of the first reading."""
        return datetime.fromtimestamp(self.began, UTC)

    def concerns(self, uid: str, made: datetime | None) -> bool:
        """Whether this drain concerns the pod of this uid. ``made``: its creationTimestamp; without one it is old."""
        return not _is_young(made, self.began_at) or _digest(uid) in self.young


_READS_RECORDS = msgspec.json.Decoder(dict[str, DrainRecord])  # made by one thread, see ``node``


def record_of(held: OwnershipAnnotation, pods: Mapping[str, datetime | None], now: datetime) -> DrainRecord:
    """The record of a drain that begins now. ``pods``: uid to creationTimestamp of those that are on the node, and of
    the members of their gangs."""
    began = now.replace(microsecond=0)  # as the record keeps it: its age tells of a pod then and later the same
    young = frozenset(_digest(uid) for uid, made in pods.items() if _is_young(made, began))
    return DrainRecord(hold=hold_digest(held), began=int(began.timestamp()), young=young)


def hold_digest(held: OwnershipAnnotation) -> str:
    """The digest of one hold of a node: its text, its owner, its time."""
    return _digest(f"{held.stamp}\n{held.by}\n{held.text}")


def records_in(text: str) -> dict[str, DrainRecord] | None:
    """The records that an annotation holds, by node; none in ""; None where it is no such annotation."""
    try:
        return _READS_RECORDS.decode(text) if text else {}
    except NOT_JSON:
        return None


def records_text(records: Mapping[str, DrainRecord]) -> str:
    """The annotation that holds these records."""
    return msgspec.json.encode(dict(sorted(records.items())), order="sorted").decode()


def still_held(records: Mapping[str, DrainRecord], claimed: Collection[str]) -> dict[str, DrainRecord]:
    """The records of nodes that hold a claim: without one the hold is over."""
    return {node: record for node, record in records.items() if node in claimed}


def _is_young(made: datetime | None, began: datetime) -> bool:
    return made is not None and made >= began - timedelta(seconds=SKEW_S)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_CHARACTERS]
