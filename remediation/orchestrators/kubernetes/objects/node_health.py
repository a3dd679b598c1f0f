"""A NodeHealth as healthd reads it, and what each of its two writers sets in it. Pure.

One object of the cluster for each node with a state or a record, under the node's name:

    status   for kubectl: state, code, since, step, waitsFor; its agent's reporter writes it with the Node's labels
    record   the handoff record (``decide.handoff``), field by field; the agent and the controller write it

The name alone says which node it is about. Neither part's writer names the other part, so that none overwrites the
other; a part is set whole, with null for each field without a value. Evidence, never permission: an odd field is
reported and ignored, and hides no other field and no other node.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.core.model import Action, Decision, Refusal, Step
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.orchestrators.kubernetes.objects.conditions import LONGEST_RETRY_S, RETRY_S
from healthd.remediation.orchestrators.kubernetes.objects.labels import GAP_S, Labels
from healthd.remediation.orchestrators.kubernetes.objects.node import rfc3339
from healthd.remediation.records.handoff import HandoffRecord, PastRepair, is_ahead, parse
from healthd.remediation.records.summary import NodeState

STATUS, RECORD = "status", "record"
TEXT_CHARACTERS = 8000
"""How long a handoff record may be as a line of text: longer than any whose fields the schema takes, each with its own
bound. One with a full history of long codes has 3,400."""

AHEAD = "a time in the future"
"""The oddity of a record whose node's clock is wrong, as a rule."""

_AWARE = Annotated[datetime, msgspec.Meta(tz=True)] | None
_CAMEL = {"given_up": "givenUp", "remediation_id": "remediationID"}  # ID in capitals, as in Kubernetes
_FIELDS: Mapping[str, tuple[str, Any]] = {
    _CAMEL.get(name, name): (name, _AWARE if kind == datetime | None else kind)
    for name, kind in get_type_hints(HandoffRecord).items()
    if name != "history"
}
_TIMES = [own for own, kind in _FIELDS.values() if kind is _AWARE]
_PAST = {each.name for each in fields(PastRepair)}
FIELDS = frozenset({*_FIELDS, "history"})
"""The fields of a record; the schema of the CustomResourceDefinition has the same."""


class HealthStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The row of a node in ``kubectl get nodehealth``. "" is a field that is not there; ``since``: RFC 3339."""

    state: str = ""
    code: str = ""
    since: str = ""
    step: str = ""
    waits_for: str = ""

    @property
    def patch(self) -> dict[str, Any]:
        """The merge patch that sets it."""
        return {STATUS: {name: value or None for name, value in msgspec.to_builtins(self).items()}}

    @property
    def text(self) -> str:
        """For the log."""
        return ", ".join(f"{name}={value}" for name, value in msgspec.to_builtins(self).items() if value) or "nothing"

    @property
    def is_quiet(self) -> bool:
        """Whether it shows nothing that an operator needs to see."""
        return self.state in ("", NodeState.OK) and not self.code


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One object as it was read at ``version``. ``record`` None: it holds none."""

    name: str
    uid: str
    version: str
    status: HealthStatus | None
    record: Any

    @property
    def text(self) -> str:
        """The handoff record as text, or ""."""
        return text_of(self.record)


class ReadRecord(Struct, frozen=True, kw_only=True):
    """A record, read. ``odd``: its fields that no healthd of this version writes, as text; "" for none."""

    handoff: HandoffRecord
    odd: str


def record_of(handoff: HandoffRecord) -> dict[str, Any]:
    """A handoff record as fields, without those that have no value."""
    fields = msgspec.to_builtins(handoff)
    history = [{name: value for name, value in each.items() if value} for each in fields.pop("history")]
    fields = {_CAMEL.get(name, name): value for name, value in fields.items() if value}
    return {**fields, "history": history} if history else fields


def read_record(record: Any, now: datetime | None = None) -> ReadRecord:
    """The handoff record in these fields. ``now``: times that are ahead of it are odd; they stay, and the counting
    ignores them, see ``handoff.by_now``."""
    if not isinstance(record, Mapping):
        return ReadRecord(handoff=HandoffRecord(), odd="it is not a record")
    odd = sorted(str(name) for name in record if name not in FIELDS)
    known: dict[str, Any] = {}
    for name, (own, kind) in _FIELDS.items():
        try:
            known |= {own: msgspec.convert(record[name], kind)} if name in record else {}
        except msgspec.ValidationError:
            odd.append(name)
    history, odd_entries = _history(record.get("history", []))
    handoff = HandoffRecord(**known, history=history)
    ahead = [AHEAD] if now is not None and any(is_ahead(at, now) for at in _times(handoff)) else []
    return ReadRecord(handoff=handoff, odd=", ".join([*odd, *odd_entries, *ahead]))


def text_of(record: Any) -> str:
    """A record as the line of text that the ports speak, or "" for one that says nothing."""
    handoff = read_record(record).handoff if record is not None else HandoffRecord()
    return "" if handoff == HandoffRecord() else handoff.text


def record_patch(node: str, text: str) -> dict[str, Any]:
    """The merge patch that writes this handoff record. Raises BackendRefused for a text that is none."""
    handoff = parse(text)
    if handoff is None or not text.isprintable() or len(text) > TEXT_CHARACTERS:
        expected = f"a line of at most {TEXT_CHARACTERS} characters that healthd made"
        raise BackendRefused(f"handoff record of {node} not written: the text is {text[:200]!r}, expected {expected}")
    return {RECORD: {**dict.fromkeys(sorted(FIELDS)), **record_of(handoff)}}


def without_nulls(patch: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a merge patch creates where nothing was."""
    return {name: {key: each for key, each in part.items() if each is not None} for name, part in patch.items() if part}


def health_of(thing: Mapping[str, Any]) -> NodeHealth:
    """A NodeHealth as the API server has it. Raises BackendUnknown for anything else."""
    try:
        return _made(msgspec.convert(thing, _ListedObject))
    except msgspec.ValidationError as error:
        raise BackendUnknown(f"the API server's answer is no NodeHealth: {error}: {str(thing)[:200]}") from error


def healths_in(page: bytes) -> tuple[NodeHealth, ...]:
    """The objects of one page of a LIST. Raises msgspec.MsgspecError for anything else."""
    return tuple(_made(each) for each in _READS_PAGE.decode(page).items)


# ---------------------------------------------------------------------------------------------------------------------
# the status

_BY_REFUSAL: Mapping[Refusal, str] = {
    Refusal.BUDGET: "a slot in the budget",
    Refusal.NOT_IDLE: "its jobs to end",
    Refusal.NOT_WELL: "its checks to be healthy",
    Refusal.UNREADABLE: "an answer of the cluster or the platform",
    Refusal.REFUSED: "an answer of the cluster or the platform",
    Refusal.MANAGED: "the platform's own repair",
    Refusal.FROZEN: "the end of a freeze",
    Refusal.MAINTENANCE: "the end of a maintenance window",
    Refusal.CORRELATED: "the end of the same fault on other nodes",
    Refusal.HELD_BACK: "the end of the same fault on other nodes",
    Refusal.RATE: "room below the limit on replacements",
    Refusal.ORPHAN: "its orphaned drain to be explained",
}
_BY_STEP: Mapping[Step, str] = {
    Step.SLOT: "a slot in the budget",
    Step.DRAIN: "the drain",
    Step.WAIT_IDLE: "its jobs to end",
    Step.COLLECT: "the evidence bundle",
    Step.RESET: "the GPU reset",
    Step.REBOOT: "the reboot",
    Step.REPLACE: "the new machine",
    Step.STAY: "an operator",
    Step.VERIFY: "its checks to be healthy",
    Step.RELEASE: "its release",
}


def status_of(
    labels: Labels, remediation: Remediation | None, decision: Decision | None, shown: HealthStatus, now: datetime
) -> HealthStatus:
    """The status to be shown of a node. ``shown``: the one that is shown now. ``since``: of a remediation, when it was
    opened; else since when this state and this code are shown. No text changes by time alone: each change is news."""
    is_as_before = (shown.state, shown.code) == (labels.state, labels.code) and shown.since
    since = rfc3339(remediation.opened) if remediation is not None else (shown.since if is_as_before else rfc3339(now))
    status = HealthStatus(
        state=labels.state, code=labels.code, since=since, step=remediation.step if remediation is not None else ""
    )
    return status if status.is_quiet else msgspec.structs.replace(status, waits_for=_waits_for(remediation, decision))


def _waits_for(remediation: Remediation | None, decision: Decision | None) -> str:
    refusal = decision.refusal if decision is not None else None
    if decision is not None and decision.action is Action.PAGE:
        return f"an operator: {refusal}" if refusal is not None else "an operator"
    if refusal is not None and refusal in _BY_REFUSAL:
        return _BY_REFUSAL[refusal]
    return _BY_STEP[remediation.step] if remediation is not None else ""


class WrittenStatus:
    """The status of one NodeHealth over time: what is shown, and when a change is written. No clock and no I/O; times
    are monotonic seconds. ``shown`` None: not read yet."""

    def __init__(self) -> None:
        self.shown: HealthStatus | None = None
        self._is_there = False
        self._next_s, self._pause_s = float("-inf"), 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether a change may be written: no sooner after the one before than those of labels, or than a pause."""
        return now_s >= self._next_s

    def read(self, seen: NodeHealth | None) -> HealthStatus:
        """The status as it was read and is shown; ``seen`` None: no object."""
        self._is_there = seen is not None
        self.shown = (seen.status if seen is not None else None) or HealthStatus()
        return self.shown

    def is_news(self, wanted: HealthStatus) -> bool:
        """Whether this is to be written. A quiet node gets no object."""
        return wanted != self.shown and (self._is_there or not wanted.is_quiet)

    def written(self, status: HealthStatus, now_s: float) -> None:
        """The API server acknowledged this status."""
        self.shown, self._is_there = status, True
        self._next_s, self._pause_s = now_s + GAP_S, 0.0

    def failed(self, now_s: float, *, random: float) -> float:
        """The write failed: the seconds until it is tried again. ``random``: in [0, 1)."""
        self._pause_s = min(LONGEST_RETRY_S, max(RETRY_S, 2 * self._pause_s))
        pause_s = self._pause_s * (0.5 + random)
        self._next_s = now_s + pause_s
        return pause_s


# ---------------------------------------------------------------------------------------------------------------------


class _RecordMeta(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's own word


class _ListedObject(msgspec.Struct, frozen=True):
    metadata: _RecordMeta
    status: Any = None
    record: Any = None


class _RecordPage(msgspec.Struct, frozen=True):
    items: tuple[_ListedObject, ...]


_READS_PAGE = msgspec.json.Decoder(_RecordPage)
_KNOWN = [
    msgspec.json.Decoder(kind) for kind in (_ListedObject, HealthStatus, HandoffRecord, PastRepair)
]  # made by one thread, see ``node``


def _made(thing: _ListedObject) -> NodeHealth:
    try:
        status = msgspec.convert(thing.status, HealthStatus | None)
    except msgspec.ValidationError:
        status = HealthStatus()  # no healthd of this version wrote it: it is written again
    return NodeHealth(
        name=thing.metadata.name,
        uid=thing.metadata.uid,
        version=thing.metadata.resourceVersion,
        status=status,
        record=thing.record,
    )


def _history(entries: Any) -> tuple[tuple[PastRepair, ...], list[str]]:
    if not isinstance(entries, list):
        return (), ["history"]
    read = [_past(each) for each in entries]
    odd = [f"history[{n}]" for n, each in enumerate(read) if each is None or not set(entries[n]) <= _PAST]
    return tuple(each for each in read if each is not None), odd


def _past(entry: Any) -> PastRepair | None:
    """The entry, or None for one that is none. One with a field of a later version is an act like any other: the
    bounds of a fleet that is being upgraded count it."""
    try:
        past = msgspec.convert(entry, PastRepair)
    except msgspec.ValidationError:
        return None
    is_odd = past.at.tzinfo is None or (past.back is not None and past.back.tzinfo is None)
    return None if is_odd else past


def _times(handoff: HandoffRecord) -> list[datetime]:
    own = [value for name in _TIMES if (value := getattr(handoff, name)) is not None]
    return [
        *own,
        *(each.at for each in handoff.history),
        *(each.back for each in handoff.history if each.back is not None),
    ]
