"""The fleet's budget in Leases: claims, the limit, the nodes that are out; and what each write may change. Pure.

One Lease for each scope, ``healthd-budget`` for the cluster's and ``healthd-budget-<scope>``, all in annotations:

    claim.healthd.io/<node>   one claim: {"node", "index", "at"} and, once the node is tainted, "text" and "stamp"
    healthd.io/limit          how many nodes may be out, a whole number
    healthd.io/nodes          how many there are
    healthd.io/out            those that are out and hold no claim, by name, separated by spaces
    healthd.io/counted        when the controller counted, RFC 3339
    healthd.io/fixed-limit    limit and number of nodes as Helm's values have them, in the place of the four above;
    healthd.io/fixed-nodes    empty where the controller counts
    healthd.io/freeze         a freeze of the fleet: {"until", "reason", "by"}; only an administrator may write it

An agent writes the key of its own node and no other. ``healthd controller`` writes limit and counts, Helm the fixed
numbers. No key has two writers, because server-side apply refuses to change what another manager wrote.
The key alone says which node a claim belongs to. The value repeats the name, which proves nothing.
Because claims, limit and counts are one object, one compare-and-swap on its resourceVersion sees all of them: a claim
that is granted fits, however many nodes claim at the same time. The admission policy enforces the cap against agents
that ignore it. A claim never ends by time: a node that died is still out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from healthd.core.encodable import NOT_JSON
from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.core.model import CLUSTER
from healthd.remediation.decide.freeze import Freeze
from healthd.remediation.orchestrators.kubernetes.objects.node import Stamp, rfc3339
from healthd.remediation.ports import HeldNode, Slot

LEASE = "healthd-budget"
STATUS_LEASE, STATUS = "healthd-status", "healthd.io/status"
"""Beside the budget: the Lease and its annotation with the last status of the controller that leads."""
LIMIT, NODES, OUT, COUNTED = "healthd.io/limit", "healthd.io/nodes", "healthd.io/out", "healthd.io/counted"
FIXED_LIMIT, FIXED_NODES = "healthd.io/fixed-limit", "healthd.io/fixed-nodes"
CLAIM = "claim.healthd.io/"
FREEZE = "healthd.io/freeze"

_NAME_CHARACTERS = 63  # of the name part of an annotation's key
_SCOPE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_UNREADABLE = -1
"""The index of a claim that cannot be read: the node of its key still holds a slot, and can give it back."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node's slot. ``at``: when it was claimed, RFC 3339. ``text`` and ``stamp``: its drain, once there is one."""

    node: str
    index: int
    at: str = ""
    text: str = ""
    stamp: Stamp = 0


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One scope's Lease as it was read at ``version``. ``out``: nodes that are out and hold no claim."""

    scope: str
    version: str
    limit: int
    total: int
    out: frozenset[str]
    claims: Mapping[str, Claim]
    counted: datetime | None = None

    @property
    def odd(self) -> frozenset[str]:
        """The nodes whose claim no healthd made."""
        return frozenset(claim.node for claim in self.claims.values() if claim.index == _UNREADABLE)

    def of(self, node: str) -> Claim | None:
        """The claim of this node, or None."""
        return next((claim for claim in self.claims.values() if claim.node == node), None)

    @property
    def held(self) -> tuple[HeldNode, ...]:
        """The nodes of the claims that healthd has drained."""
        claims = sorted(self.claims.values(), key=lambda claim: claim.node)
        return tuple(HeldNode(node=claim.node, text=claim.text, stamp=claim.stamp) for claim in claims if claim.text)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The claims, as the fleet's planner has them."""
        found = [Slot(scope=self.scope, index=claim.index, node=claim.node) for claim in self.claims.values()]
        return tuple(sorted(found, key=lambda slot: (slot.index, slot.node)))

    def room(self, node: str = "") -> int:
        """How many more nodes may claim now, below zero where too many are out already; as ``node`` sees it, which
        takes no further slot where it is out itself."""
        holders = {claim.node for claim in self.claims.values()} | {node}
        return self.limit - len(self.claims) - len(self.out - holders)


class FreezeNote(msgspec.Struct, frozen=True, kw_only=True):
    """A freeze as it stands in the cluster's Lease."""

    until: datetime
    reason: str
    by: str = ""


def freeze_in(notes: Mapping[str, str], now: datetime) -> Freeze | None:
    """The freeze that is on. A text that cannot be read is one without an end: what its writer wanted is not known."""
    if not (text := notes.get(FREEZE, "")):
        return None
    try:
        note = _READS_FREEZE.decode(text)
    except NOT_JSON:
        return Freeze(reason=f"annotation {FREEZE} is not readable: {text[:80]!r}")
    until = note.until if note.until.tzinfo else note.until.replace(tzinfo=UTC)
    return Freeze(reason=note.reason, until=until, by=note.by) if now < until else None


def freeze_patch(freeze: Freeze | None) -> dict[str, Any]:
    """The change of the cluster's Lease that begins a freeze, or ends it."""
    text = None
    if freeze is not None and freeze.until is not None:
        text = msgspec.json.encode(FreezeNote(until=freeze.until, reason=freeze.reason, by=freeze.by)).decode()
    return {"metadata": {"annotations": {FREEZE: text}}}


def lease_name(scope: str) -> str:
    """The Lease of this scope. Raises BackendRefused for a scope that cannot be part of such a name."""
    if scope == CLUSTER:
        return LEASE
    name = f"{LEASE}-{scope}"
    if not _SCOPE.fullmatch(scope) or len(name) > 253:
        expected = "lower-case letters, digits, '.' and '-', with a letter or digit at either end"
        raise BackendRefused(f"[[budget.scope]] name = {scope!r} cannot name a Lease: expected {expected}")
    return name


def key_of(node: str) -> str:
    """The annotation of this node: its name as it is, which the admission policy compares with the node of the token.

    Raises BackendRefused for more than 63 characters, which no kubelet registers: its hostname label has that limit.
    """
    if len(node) > _NAME_CHARACTERS:
        raise BackendRefused(
            f"{node} has {len(node)} characters, but an annotation's name has at most {_NAME_CHARACTERS}"
        )
    return f"{CLAIM}{node}"


def annotations_of(lease: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """resourceVersion and annotations in an answer of the API server. Raises BackendUnknown for anything else."""
    metadata = lease.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("resourceVersion"), str):
        raise BackendUnknown(f"the API server's answer is no Lease: {str(lease)[:200]}")
    notes = metadata.get("annotations") or {}
    if not isinstance(notes, Mapping) or not all(isinstance(text, str) for text in notes.values()):
        raise BackendUnknown(f"the API server's answer is no Lease: its annotations are {str(notes)[:200]}")
    return metadata["resourceVersion"], dict(notes)


def budget_of(scope: str, lease: Mapping[str, Any]) -> Budget:
    """The budget in a Lease. Raises BackendUnknown where limit or counts are not there, or are no numbers."""
    version, notes = annotations_of(lease)
    # Where no controller counts, what one counted before it was switched off says nothing any more.
    counted = not notes.get(FIXED_LIMIT)
    return Budget(
        scope=scope,
        version=version,
        limit=_number(scope, notes, LIMIT if counted else FIXED_LIMIT),
        total=_number(scope, notes, NODES if counted else FIXED_NODES),
        out=frozenset(notes.get(OUT, "").split()) if counted else frozenset(),
        claims={key: _claim(key.removeprefix(CLAIM), text) for key, text in notes.items() if key.startswith(CLAIM)},
        counted=_time(scope, notes.get(COUNTED, "")) if counted else None,
    )


def check_counted(budget: Budget, now: datetime, *, max_age_s: float) -> None:
    """Raise BackendUnknown for counts that are too old to say which nodes are out. Counts without a time do not age: no
    controller counts in that cluster, and only claims are held to the limit."""
    if budget.counted is None or abs((now - budget.counted).total_seconds()) <= max_age_s:
        return
    when = f"{budget.counted:%Y-%m-%d %H:%M:%S} UTC; this node's clock says {now:%H:%M:%S}"
    raise BackendUnknown(
        f"Lease {lease_name(budget.scope)}: the nodes that are out were counted at {when}, allowed are {max_age_s:g} s:"
        " check that `healthd controller` runs, and that the clocks agree"
    )


def counts(*, limit: int, total: int, out: Iterable[str], at: datetime | None) -> dict[str, str]:
    """The annotations that ``healthd controller`` keeps up to date; ``at`` None: without their time.

    ``out``: the nodes that are out and hold no claim. At most one over the limit are named: from there on no node may
    claim, whichever the others are.
    """
    named = sorted(set(out))[: limit + 1]
    noted = {LIMIT: str(limit), NODES: str(total), OUT: " ".join(named)}
    return noted if at is None else {**noted, COUNTED: rfc3339(at)}


def says(lease: Mapping[str, Any], noted: Mapping[str, str], *, max_age_s: float) -> bool:
    """Whether a Lease holds these annotations already, counted less than ``max_age_s`` seconds ago: every write of the
    Lease makes a node's claim try again. A time that cannot be read is too old."""
    there = annotations_of(lease)[1]
    if any(there.get(key) != text for key, text in noted.items() if key != COUNTED):
        return False
    try:
        now, then = (datetime.fromisoformat(notes.get(COUNTED, "")) for notes in (noted, there))
    except ValueError:
        return False
    return abs(now.timestamp() - then.timestamp()) < max_age_s


# -- what a write changes ---------------------------------------------------------------------------------------------


def claimed(budget: Budget, node: str, index: int, now: datetime) -> dict[str, str | None]:
    """The annotations that take this slot. Raises SlotTaken where it is taken, or no slot is free."""
    where = f"slot {budget.scope} {index}"
    if (own := budget.of(node)) is not None:
        raise SlotTaken(f"{where}: this node already holds slot {own.index}")
    if holder := next((claim.node for claim in budget.claims.values() if claim.index == index), ""):
        raise SlotTaken(f"{where} is held by {holder}")
    if budget.room(node) < 1:
        message = f"{len(budget.claims)} claims and {len(budget.out)} other nodes out, limit {budget.limit}"
        raise SlotTaken(f"{where}: the budget is full: {message}")
    return {key_of(node): _text(Claim(node=node, index=index, at=rfc3339(now)))}


def given_back(budget: Budget, node: str, index: int) -> dict[str, str | None]:
    """The annotations that give this slot back; none where no node holds it. Raises BackendRefused where another node
    holds it."""
    own = budget.of(node)
    if own is not None and own.index == index:
        return {key: None for key, claim in budget.claims.items() if claim.node == node}
    holder = next((claim.node for claim in budget.claims.values() if claim.index == index), "")
    if holder:
        raise BackendRefused(f"slot {budget.scope} {index} not given back: {holder} holds it, not {node}")
    return {}


def drained(budget: Budget, node: str, text: str, stamp: int) -> dict[str, str | None]:
    """The annotations by which a claim shows other nodes why its node is out; none without a claim, or where the claim
    shows it already."""
    own = budget.of(node)
    if own is None or own.text == text:
        return {}
    return {key_of(node): _text(msgspec.structs.replace(own, text=text, stamp=stamp))}


# ---------------------------------------------------------------------------------------------------------------------


# Made here, by one thread, see ``node``.
_READS_CLAIM = msgspec.json.Decoder(Claim)
_READS_FREEZE = msgspec.json.Decoder(FreezeNote)


def _claim(node: str, text: str) -> Claim:
    """The claim of the node that the key names. A claim that cannot be read, or that names another node, is still a
    slot of the key's node: that node's agent alone may write there."""
    try:
        claim = _READS_CLAIM.decode(text)
    except NOT_JSON:
        return Claim(node=node, index=_UNREADABLE)
    return claim if claim.node == node and claim.index >= 0 else Claim(node=node, index=_UNREADABLE)


def _text(claim: Claim) -> str:
    return json.dumps(msgspec.to_builtins(claim), ensure_ascii=False)


def _number(scope: str, notes: Mapping[str, str], key: str) -> int:
    text = notes.get(key, "")
    if not re.fullmatch(r"[0-9]{1,7}", text):
        there = f"{key} = {text!r}" if text else f"no {key}"
        help_ = "`healthd controller` writes it, or the Helm chart's value budget"
        raise BackendUnknown(f"Lease {lease_name(scope)} has {there}, expected a whole number: {help_}")
    return int(text)


def _time(scope: str, text: str) -> datetime | None:
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BackendUnknown(f"Lease {lease_name(scope)} has {COUNTED} = {text!r}, expected RFC 3339") from error
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
