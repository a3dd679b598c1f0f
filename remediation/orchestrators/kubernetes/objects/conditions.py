"""A node's verdict as Node conditions, and when they are written. Pure.

Four types: HealthdGPU, HealthdNetwork, HealthdStorage, HealthdNode. They are ready-positive, as ``Ready`` itself and
EKS's ``AcceleratedHardwareReady`` are:

    True       no critical fault is open (warnings are in the message), and every check could decide
    False      a critical fault is open; the reason is its code, GpuXid79 for gpu.xid.79
    Unknown    a check could not decide, or has not run yet; each is created so: absent never means healthy

The API server validates next to nothing of a condition (a status ``Maybe`` is accepted, measured), so this does. A
message names codes and components, never a count or a time: each new message is a write that every watcher of the node
gets. All four go in one strategic-merge patch, which merges by type; any other kind of patch would wipe the kubelet's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from healthd.core.model import Diagnosis, Outcome, Severity
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, one_line, rfc3339

GPU, NETWORK, STORAGE, NODE = "HealthdGPU", "HealthdNetwork", "HealthdStorage", "HealthdNode"
TYPES = (GPU, NETWORK, STORAGE, NODE)

DEBOUNCE_S = 12.0
"""How long a change must last before it is written; several within it are one write."""
FLIP_S = 30.0
"""How long each status is shown at least."""
HEARTBEAT_S = 300.0
"""How often the conditions are written without a change; up to a tenth longer, by the node's own phase, so never more
than twelve times an hour. (NPD's five minutes; at 10 s, 10,000 nodes cost each watcher 15 to 30 MB/s.)"""
RETRY_S, LONGEST_RETRY_S = 10.0, 300.0

_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")
_LAST_STAMP = 99_999_999_999  # as ``node.Stamp``
_FAULT = re.compile(r"(\S+) on (.+): (?:[a-z_]+|…)")
_UNDECIDED = "checks that could not decide: "
_MESSAGE_CHARACTERS = 1024
_BY_KIND = {
    **dict.fromkeys(("gpu", "nvlink", "nvswitch", "driver"), GPU),
    **dict.fromkeys(("efa", "interface", "port"), NETWORK),
    **dict.fromkeys(("mount", "lustre", "nvme", "disk"), STORAGE),
}
_BY_CODE = {
    **dict.fromkeys(("gpu", "nvml", "nvlink", "nvswitch", "nccl", "gdrcopy", "kernel.xid", "kernel.sxid"), GPU),
    **dict.fromkeys(("efa", "ena", "kernel.efa", "host.network", "host.reach"), NETWORK),
    **dict.fromkeys(("lustre", "storage", "ebs", "kernel.lustre", "host.filesystems"), STORAGE),
}


class ConditionState(Struct, frozen=True, kw_only=True):
    """One condition as it should be. ``status``: True, False or Unknown."""

    status: str
    reason: str
    message: str


class WrittenCondition(Struct, frozen=True, kw_only=True):
    """One condition as it is written: ``moved`` is when its status became what it is."""

    state: ConditionState
    moved: datetime


WITH_WARNINGS = "HealthyWithWarnings"
NOT_LOOKED = ConditionState(status="Unknown", reason="NotLookedYet", message="healthd has not run every check yet")


def states_of(
    diagnoses: Iterable[Diagnosis], outcomes: Mapping[str, Outcome], expected: Collection[str]
) -> dict[str, ConditionState]:
    """The four conditions of what is known now. ``expected``: the checks that run here, also those that have not run
    yet.

    A check that could not decide, and is not optional, makes its condition Unknown unless a critical fault is open
    there: an unknown hides no known fault.
    """
    open_by_type: dict[str, list[Diagnosis]] = {kind: [] for kind in TYPES}
    for diagnosis in diagnoses:
        open_by_type[type_of(diagnosis.code, diagnosis.component.kind)].append(diagnosis)
    undecided: dict[str, list[str]] = {kind: [] for kind in TYPES}
    for name in sorted(expected):
        outcome = outcomes.get(name)
        if outcome is None or outcome.counts_as_unknown:
            undecided[type_of(name)].append(name)
    has_looked = all(name in outcomes for name in expected)
    return {kind: _state(open_by_type[kind], undecided[kind], has_looked) for kind in TYPES}


def type_of(code: str, component_kind: str = "") -> str:
    """The condition that a finding's code, or a check's name, belongs to."""
    if component_kind in _BY_KIND:
        return _BY_KIND[component_kind]
    words = code.split(".")
    return _BY_CODE.get(".".join(words[:2])) or _BY_CODE.get(words[0]) or NODE


def reason_of(code: str) -> str:
    """A dotted code as a reason: ``gpu.xid.79`` is GpuXid79."""
    words = "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", code))
    return words[:128] if _REASON.fullmatch(words[:128]) else f"Code{words[:124]}"


def _state(found: Sequence[Diagnosis], undecided: Sequence[str], has_looked: bool) -> ConditionState:
    critical = [each for each in found if each.severity is Severity.CRITICAL]
    if critical:
        return ConditionState(status="False", reason=reason_of(_worst(critical).code), message=_message(critical))
    if undecided and not has_looked:
        return NOT_LOOKED
    if undecided:
        return ConditionState(
            status="Unknown", reason="CouldNotTell", message=_told(f"{_UNDECIDED}{', '.join(undecided)}")
        )
    if found:
        return ConditionState(status="True", reason=WITH_WARNINGS, message=_message(found))
    return ConditionState(status="True", reason="Healthy", message="no fault is open")


def faults_in(message: str) -> tuple[tuple[str, str], ...]:
    """The faults that a condition's message names, as code and component; of a condition that could not decide the
    checks, without a component. None for another message."""
    if message.startswith(_UNDECIDED):
        return tuple((name, "") for name in message.removeprefix(_UNDECIDED).split(", "))
    found = (_FAULT.fullmatch(each) for each in message.split("; "))
    return tuple((each[1], each[2]) for each in found if each is not None)


def _worst(found: Sequence[Diagnosis]) -> Diagnosis:
    """The worst diagnosis; of several equal ones always the same."""
    return min(found, key=lambda each: (each.code, str(each.component)))


def _message(found: Sequence[Diagnosis]) -> str:
    return _told("; ".join(sorted({f"{each.code} on {each.component}: {each.remedy}" for each in found})))


def _told(message: str) -> str:
    return one_line(message, _MESSAGE_CHARACTERS)


# -- when it is written -----------------------------------------------------------------------------------------------


def heartbeat_s(uid: str) -> float:
    """How often this node writes, in seconds: 300 to 330, always the same for one UID."""
    return HEARTBEAT_S * (1 + 0.1 * _share(uid))


def first_heartbeat_s(uid: str) -> float:
    """How long after its start a node's first heartbeat is: a rollout of 1,000 pods must not beat in step."""
    return heartbeat_s(uid) * _share(f"{uid} phase")


def _share(seed: str) -> float:
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4]) / 2**32


class Conditions:
    """The conditions of one node over time: what is shown, what is to be written, and when. No clock and no I/O.

    ``uid``: of the Node. ``now_s``: monotonic. ``shown``: ours that are there already, as ``shown_on`` finds them.
    """

    def __init__(self, *, uid: str, now_s: float, shown: Mapping[str, WrittenCondition] | None = None) -> None:
        self._period_s = heartbeat_s(uid)
        self._shown = dict(shown or {})
        self._beat_s = now_s + first_heartbeat_s(uid)
        self._changed: dict[str, tuple[str, float, datetime]] = {}
        self._flipped_s: dict[str, float] = {}
        self._not_before_s, self._pause_s = now_s, 0.0

    def wanted(self, states: Mapping[str, ConditionState], now_s: float, now: datetime) -> dict[str, WrittenCondition]:
        """All conditions as they would be written now. ``now_s``: monotonic; ``now``: the same moment by the clock. A
        condition of an earlier daemon stays until every check has run."""
        return {kind: self._next(kind, states[kind], now_s, now) for kind in TYPES}

    def is_due(self, wanted: Mapping[str, WrittenCondition], now_s: float, *, more: bool = False) -> bool:
        """Whether to write them now; the caller then calls ``written`` or ``failed``. A condition that is not
        there yet is written at once. ``more``: what else the same patch writes has changed."""
        is_new = any(kind not in self._shown for kind in TYPES)
        has_changed = any(wanted[kind] != self._shown.get(kind) for kind in TYPES)
        return now_s >= self._not_before_s and (more or is_new or has_changed or now_s >= self._beat_s)

    def written(self, sent: Mapping[str, WrittenCondition], now_s: float) -> None:
        """The API server acknowledged the write."""
        for kind, shown in sent.items():
            before = self._shown.get(kind)
            if before is not None and before.state.status != shown.state.status:
                self._flipped_s[kind] = now_s
        self._shown = dict(sent)
        self._beat_s, self._pause_s = now_s + self._period_s, 0.0

    def failed(self, now_s: float, *, random: float) -> float:
        """The write failed or its result is unknown: send all again after this pause in seconds, longer each time.

        ``random``: a number in [0, 1).
        """
        self._pause_s = min(LONGEST_RETRY_S, max(RETRY_S, 2 * self._pause_s))
        pause_s = self._pause_s * (0.5 + random)
        self._not_before_s = now_s + pause_s
        return pause_s

    def _next(self, kind: str, state: ConditionState, now_s: float, now: datetime) -> WrittenCondition:
        """One condition to write: the one shown until now, while the change or the last flip is young."""
        shown = self._shown.get(kind)
        if shown is None:
            return WrittenCondition(state=NOT_LOOKED, moved=now)
        if state in (shown.state, NOT_LOOKED):
            self._changed.pop(kind, None)
            return shown
        status, since_s, since = self._changed.get(kind, ("", now_s, now))
        if status != state.status:
            since_s, since = now_s, now
        self._changed[kind] = (state.status, since_s, since)
        is_flip = state.status != shown.state.status
        wait_s = max(since_s + DEBOUNCE_S, self._flipped_s.get(kind, -FLIP_S) + FLIP_S if is_flip else 0.0)
        if now_s < wait_s:
            return shown
        return WrittenCondition(state=state, moved=since if is_flip else shown.moved)


# -- as the API has them ----------------------------------------------------------------------------------------------


def shown_on(node: KubeNode) -> dict[str, WrittenCondition]:
    """Our conditions that a node shows already: a daemon that starts continues from them."""
    found = {}
    for kind in TYPES:
        there = node.condition(kind)
        if there is None or there.status not in ("True", "False", "Unknown"):
            continue
        moved = time_of(there.lastTransitionTime)
        if moved is not None:
            state = ConditionState(status=there.status, reason=there.reason, message=there.message)
            found[kind] = WrittenCondition(state=state, moved=moved)
    return found


def patch_of(shown: Mapping[str, WrittenCondition], now: datetime) -> dict[str, Any]:
    """The strategic-merge patch of a node's status that writes these, and no other."""
    conditions = [
        {
            "type": kind,
            "status": each.state.status,
            "reason": each.state.reason,
            "message": each.state.message,
            "lastTransitionTime": rfc3339(each.moved),
            "lastHeartbeatTime": rfc3339(now),
        }
        for kind, each in sorted(shown.items())
    ]
    return {"status": {"conditions": conditions}}


def time_of(text: str | None) -> datetime | None:
    """A time of a condition; None for anything else."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def stamp_of(at: datetime | None) -> int:
    """A time in epoch seconds; 0 for none, or for one that is no time of a node: any client may have written it."""
    stamp = int(at.timestamp()) if at is not None else 0
    return stamp if 0 < stamp <= _LAST_STAMP else 0
