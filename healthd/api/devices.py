"""The GPUs and EFA devices of a node as two strips: each device with its state and why. Pure: outcomes and faults in.

A device is *ok* only if the last complete check run lists it. An expected device that no check lists is *missing* where
its check found too few, and *unknown* where its check could not decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from healthd.core.model import SEVERITY_RANK, Component, Outcome, Severity
from healthd.judge.history import Fault

State = Literal["ok", "warning", "critical", "unknown", "missing"]
_ABSENT = {"missing": "was listed before, and is gone", "unknown": "not listed by a complete check run yet"}
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceKind:
    """One kind of device. ``counted_by``: the check that counts them; ``listed_by``: the check whose readings name
    them; ``codes``: the prefixes of the codes that concern all of them when their component is the node."""

    kind: str
    title: str
    counted_by: str
    listed_by: str
    codes: str


KINDS = (
    DeviceKind(kind="gpu", title="GPU", counted_by="gpu.count", listed_by="gpu.count", codes="gpu."),
    DeviceKind(kind="efa", title="EFA", counted_by="efa.devices", listed_by="efa.counters", codes="efa."),
)


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


def label_of(component: str, strips_: Iterable[Mapping[str, Any]]) -> str:
    """``GPU 3`` for the component of a device in a strip; for any other component its own name."""
    for strip in strips_:
        for part in strip["parts"]:
            if part["component"] == component:
                return f"{strip['title']} {part['label']}"
    return component


def _strip(
    kind: DeviceKind,
    outcomes: Mapping[str, Outcome],
    faults: list[Fault],
    names: Mapping[str, Component],
    expected: int,
) -> dict[str, Any]:
    seen = _seen(kind, outcomes, names)
    known = dict(seen)
    for part in names.values():
        if part.kind == kind.kind and _is_lasting(part):
            best = known.setdefault(str(part), part)
            known[str(part)] = best if _index(best) is not None else part
    of: dict[str, list[Fault]] = {}
    for fault in faults:
        if fault.component.kind == kind.kind and fault.component.id:
            part = _resolved(fault.component, names, [each for each in known.values() if str(each) not in seen])
            known.setdefault(str(part), part)
            of.setdefault(str(part), []).append(fault)
    not_seen: State = "missing" if _tells(outcomes.get(kind.listed_by)) else "unknown"
    ordered = sorted(known.values(), key=_place)
    labels = _labels(kind, ordered)
    parts = [
        _part(label, part, of.get(str(part), []), outcomes, absent="" if str(part) in seen else not_seen)
        for label, part in zip(labels, ordered, strict=True)
    ]
    can_tell = _tells(outcomes.get(kind.counted_by))
    free = (str(number) for number in range(len(ordered) + expected) if str(number) not in labels)
    parts += [_absent(next(free), can_tell=can_tell) for _ in range(expected - len(parts))]
    parts.sort(key=lambda part: int(part["label"]))
    notes = [fault.message for fault in faults if fault.component.kind == "node" and fault.code.startswith(kind.codes)]
    notes += _kept(outcomes.get(kind.listed_by))
    return {"kind": kind.kind, "title": kind.title, "expected": expected or None, "parts": parts, "notes": notes}


def _kept(listed: Outcome | None) -> Iterator[str]:
    """The time of the strip's readings, where their source is paused."""
    if listed is not None and listed.read_at is not None:
        age_s = (listed.at - listed.read_at).total_seconds()
        yield f"as of {listed.read_at:%H:%M:%S} UTC ({age_s:.0f} s before the last run): {listed.result.reason}"


def _seen(kind: DeviceKind, outcomes: Mapping[str, Outcome], names: Mapping[str, Component]) -> dict[str, Component]:
    """The devices that the last check run listed under a lasting name: a failed or old run listed none."""
    readings = outcomes[kind.listed_by].result.readings if kind.listed_by in outcomes else ()
    parts = (names.get(str(reading.component), reading.component) for reading in readings)
    return {str(part): part for part in parts if part.kind == kind.kind and _is_lasting(part)}


def _resolved(part: Component, names: Mapping[str, Component], unseen: Iterable[Component]) -> Component:
    """The device under its lasting name. A lost GPU may be known by its index alone: then it is the one that had this
    index and is no longer listed."""
    if _is_lasting(part):
        return names.get(str(part), part)
    return next((each for each in unseen if _index(each) == int(part.id)), part)


def _tells(outcome: Outcome | None) -> bool:
    """Whether the check read everything that it covers."""
    return outcome is not None and outcome.result.is_whole


def _is_lasting(part: Component) -> bool:
    """Whether the name outlives the next driver load: an index alone may then name another GPU."""
    return not _NUMBER.fullmatch(part.id)


def _place(part: Component) -> tuple[int, int, str]:
    """GPUs by their index, everything else by the first number in its name: ``rdmap79s0`` is on bus 79."""
    if (index := _index(part)) is not None:
        return 0, index, part.id
    numbers = _NUMBER.findall(part.id)
    return 1, int(numbers[0]) if numbers else 0, part.id


def _index(part: Component) -> int | None:
    return next((int(name) for name in (part.id, *part.aliases) if _NUMBER.fullmatch(name)), None)


def _labels(kind: DeviceKind, parts: list[Component]) -> list[str]:
    """The operator's name for each: a GPU by NVML's index where that is known, the others by their position."""
    known = [_index(part) if kind.kind == "gpu" else place for place, part in enumerate(parts)]
    free = (number for number in range(2 * len(parts)) if number not in known)
    used: set[int] = set()
    labels = []
    for index in known:
        number = next(free) if index is None or index in used else index
        used.add(number)
        labels.append(str(number))
    return labels


def _part(
    label: str, part: Component, faults: list[Fault], outcomes: Mapping[str, Outcome], absent: State | Literal[""]
) -> dict[str, Any]:
    """``absent``: the state of a device that the last check run did not list; "" for one that it did."""
    faults.sort(key=lambda fault: SEVERITY_RANK[fault.severity], reverse=True)
    gaps = list(_gaps(part, outcomes))
    state: State = absent or ("unknown" if gaps else "ok")
    words = gaps or ([_ABSENT[absent]] if absent else [])
    if faults:
        state = "critical" if faults[0].severity is Severity.CRITICAL else "warning"
        words = [fault.message for fault in faults]
    return {"label": label, "component": str(part), "name": part.id, "state": state, "words": words}


def _gaps(part: Component, outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """The values of a device that checks could not read: each begins with the device's name."""
    starts = tuple(f"{name}:" for name in part.all_names())
    for outcome in outcomes.values():
        yield from (f"{outcome.check}: {gap}" for gap in outcome.result.gaps if gap.startswith(starts))


def _absent(label: str, *, can_tell: bool) -> dict[str, Any]:
    state: State = "missing" if can_tell else "unknown"
    words = "expected, not found" if can_tell else "expected; the check that counts the devices could not decide"
    return {"label": label, "component": "", "name": "", "state": state, "words": [words]}
