"""The GPUs and EFA devices of a node as two strips: each device with its state and why. Pure: outcomes and faults in.

A device is *ok* only if the last complete check run lists it. An expected device that no check lists is *missing* where
its check found too few, and *unknown* where its check could not decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

from healthd.core.model import SEVERITY_RANK, Component, Outcome, Severity
from healthd.judge.devices import KINDS, DeviceKind, device_range, known_devices
from healthd.judge.history import Fault

State = Literal["ok", "warning", "critical", "unknown", "missing"]
_ABSENT = {"missing": "was listed before, and is gone", "unknown": "not listed by a complete check run yet"}


def strips(
    outcomes: Mapping[str, Outcome],
    faults: Iterable[Fault],
    names: Mapping[str, Component],
    expected: Mapping[str, int | None],
) -> list[dict[str, Any]]:
    """A strip for each kind that this node has, or must have.

    ``names``: from other names of a component to its canonical one, as in ``History``. ``expected``: the required
    number by kind.
    """
    faults = [each for each in faults if each.severity is not Severity.INFO]
    made = (_strip(kind, outcomes, faults, names, expected.get(kind.kind) or 0) for kind in KINDS)
    return [strip for strip in made if strip["parts"]]


def _strip(
    kind: DeviceKind,
    outcomes: Mapping[str, Outcome],
    faults: list[Fault],
    names: Mapping[str, Component],
    expected: int,
) -> dict[str, Any]:
    known = known_devices(kind, outcomes, faults, names)
    not_seen: State = "missing" if _tells(outcomes.get(kind.listed_by)) else "unknown"
    parts = [
        _part(
            number,
            part,
            list(known.faults.get(str(part), ())),
            outcomes,
            absent="" if str(part) in known.listed else not_seen,
        )
        for number, part in zip(known.numbers, known.parts, strict=True)
    ]
    can_tell = _tells(outcomes.get(kind.counted_by))
    free = (str(number) for number in range(len(known.parts) + expected) if str(number) not in known.numbers)
    parts += [_absent(next(free), can_tell=can_tell) for _ in range(expected - len(parts))]
    parts.sort(key=lambda part: int(part["label"]))
    bad = set(known.faults)
    undecided = _folded_undecided(
        kind, [part for part in parts if part["state"] != "ok" and part["component"] not in bad]
    )
    notes = [fault.message for fault in faults if fault.component.kind == "node" and fault.code.startswith(kind.codes)]
    as_of = _as_of(outcomes.get(kind.listed_by))
    return {
        "kind": kind.kind,
        "title": kind.title,
        "expected": expected or None,
        "parts": parts,
        "summary": _counts(parts),
        "undecided": undecided,
        "as_of": as_of,
        "notes": [*notes, *([as_of] if as_of else [])],
    }


def _counts(parts: Iterable[Mapping[str, Any]]) -> str:
    """How many devices are in each state: ``6 ok, 1 warning, 1 critical``."""
    counts = Counter(part["state"] for part in parts)
    return ", ".join(f"{counts[state]} {state}" for state in get_args(State) if counts[state])


def _folded_undecided(kind: DeviceKind, parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The devices that are missing or unknown without a finding, one entry for all of the same reason."""
    alike: dict[tuple[str, str], list[str]] = {}
    for part in parts:
        alike.setdefault((part["state"], "; ".join(part["messages"])), []).append(f"{kind.title} {part['label']}")
    return [
        {"state": state, "where": device_range(labels), "message": message}
        for (state, message), labels in alike.items()
    ]


def _as_of(listed: Outcome | None) -> str:
    """The time of the strip's readings, where their source is paused."""
    if listed is None or listed.read_at is None:
        return ""
    age_s = (listed.at - listed.read_at).total_seconds()
    return f"as of {listed.read_at:%H:%M:%S} UTC ({age_s:.0f} s before the last run): {listed.result.reason}"


def _tells(outcome: Outcome | None) -> bool:
    """Whether the check read everything that it covers."""
    return outcome is not None and outcome.result.is_whole


def _part(
    label: str, part: Component, faults: list[Fault], outcomes: Mapping[str, Outcome], absent: State | Literal[""]
) -> dict[str, Any]:
    """``absent``: the state of a device that the last check run did not list; "" for one that it did."""
    faults.sort(key=lambda fault: SEVERITY_RANK[fault.severity], reverse=True)
    undecided = list(_undecided(part, outcomes))
    state: State = absent or ("unknown" if undecided else "ok")
    words = undecided or ([_ABSENT[absent]] if absent else [])
    if faults:
        state = "critical" if faults[0].severity is Severity.CRITICAL else "warning"
        words = [fault.message for fault in faults]
    return {"label": label, "component": str(part), "name": part.id, "state": state, "messages": words}


def _undecided(part: Component, outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """The values of a device that checks could not read: each begins with the device's name."""
    starts = tuple(f"{name}:" for name in part.all_names())
    for outcome in outcomes.values():
        yield from (f"{outcome.check}: {gap}" for gap in outcome.result.undecided if gap.startswith(starts))


def _absent(label: str, *, can_tell: bool) -> dict[str, Any]:
    state: State = "missing" if can_tell else "unknown"
    message = "expected, not found" if can_tell else "expected; the check that counts the devices could not decide"
    return {"label": label, "component": "", "name": "", "state": state, "messages": [message]}
