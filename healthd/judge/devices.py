"""The devices of a node under the names that operators use: ``GPU 3``, ``32 EFA devices (0-31)``. Pure.

A stable name (a UUID, a bus address) is for programs: ``--json`` and ``-v`` show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct, field

from healthd.core.hostlist import ranges
from healthd.core.model import NODE, Component, Outcome, Severity
from healthd.core.name_lists import listed
from healthd.judge.history import Fault

_NUMBER = r"[0-9]+"
_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?"
_BEFORE, _BEHIND = r"(?<![\w/:.-])", r"(?![\w/-]|[.:]\w)"
_ALREADY_NAMED = r"(?<!GPU [0-9] \()(?<!GPU [0-9]{2} \()"
"""An address behind the name of its GPU stays: ``GPU 3 (0000:86:00)``."""
_NAMED = (
    rf"{_BEFORE}(?:GPU (?:[0-9a-f]{{4}}:[0-9a-f]{{2}}:[0-9a-f]{{2}}|[0-9]+)(?: NVLink [0-9]+)?|EFA [0-9]+"
    rf"|(?:gpu|efa|nvlink|nvswitch|nvme|disk|mount|interface|lustre|process|service|port):[^\s,;)]*[^\s,;):.])"
)
"""A device in a sentence, by the name that operators use, or by its own."""
_NUMBERS = r"[0-9]+(?:\.[0-9]+)?"
_NUMBERED = r"(GPU|EFA) ([0-9]+)"
_LINK = r"(GPU \S+) NVLink [0-9]+"
_MANY = {"GPU": "GPUs", "EFA": "EFA devices"}
_SPELT_OUT = 3
"""Parts without a number that are named one by one; of more, their number and the first of them."""


class DeviceKind(Struct, frozen=True, kw_only=True):
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


class KnownDevices(Struct, frozen=True, kw_only=True):
    """The devices of one kind in their order, each with a number: NVML's index of a GPU where that is known, else its
    place. ``listed``: the devices that the last check run listed. ``faults``: the open faults of each, by its name."""

    parts: tuple[Component, ...]
    numbers: tuple[str, ...]
    listed: frozenset[str]
    faults: Mapping[str, Sequence[Fault]]


def known_devices(
    kind: DeviceKind, outcomes: Mapping[str, Outcome], faults: Iterable[Fault], names: Mapping[str, Component]
) -> KnownDevices:
    """Every device of this kind that a check run, a fault or an earlier run has named. News of no weight name none.

    ``names``: from other names of a component to its canonical one, as in ``History``.
    """
    listed = _listed(kind, outcomes, names)
    known = dict(listed)
    for part in names.values():
        if part.kind == kind.kind and _is_lasting(part):
            best = known.setdefault(str(part), part)
            known[str(part)] = best if best.gpu_index is not None else part
    of: dict[str, list[Fault]] = {}
    for fault in faults:
        if fault.component.kind == kind.kind and fault.component.id and fault.severity is not Severity.INFO:
            part = _resolved(fault.component, names, known, listed)
            known.setdefault(str(part), part)
            of.setdefault(str(part), []).append(fault)
    ordered = sorted(known.values(), key=lambda part: _place(part, is_listed=str(part) in listed))
    return KnownDevices(
        parts=tuple(ordered), numbers=tuple(_numbers(kind, ordered)), listed=frozenset(listed), faults=of
    )


class DeviceNames(Struct, frozen=True, dict=True):
    """The operator's name of each device, by each of its own names: ``GPU 3`` by ``gpu:GPU-…`` and ``gpu:3``."""

    names: Mapping[str, str] = field(default_factory=dict)

    def of(self, component: Component | str) -> str:
        """The name of any component: ``GPU 3``, ``GPU 3 NVLink 5``; its own where operators have no other."""
        own = str(component)
        if own in self.names:
            return self.names[own]
        kind, _, rest = own.partition(":")
        device, _, link = rest.rpartition("/")
        if kind == "nvlink" and device:
            return f"{self.of(f'gpu:{device}')} NVLink {link}"
        address = next((each for each in _own_names(component) if re.fullmatch(_ADDRESS, each)), "")
        return f"GPU {address}" if kind == "gpu" and address else own

    def plain(self, text: str) -> str:
        """A text in which each device has the name that operators use. A path keeps what it has."""
        return self._pattern.sub(lambda found: self.of(found[1] or f"gpu:{found[2]}"), text)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        own = sorted(map(re.escape, self.names), key=len, reverse=True)
        bare = sorted(
            (
                re.escape(name[4:])
                for name in self.names
                if name.startswith("gpu:") and not re.fullmatch(_NUMBER, name[4:])
            ),
            key=len,
            reverse=True,
        )
        links = r"nvlink:[\w-]+/[0-9]+"
        alone = f"{_ALREADY_NAMED}(?:GPU )?({'|'.join(bare) or '(?!)'})"
        return re.compile(f"{_BEFORE}(?:({'|'.join([*own, links])})|{alone}){_BEHIND}")


def device_names(
    outcomes: Mapping[str, Outcome], faults: Iterable[Fault], names: Mapping[str, Component]
) -> DeviceNames:
    """The names of the GPUs whose index is known, and of the EFA devices that the last check run listed, which have the
    number of their position on the bus. A name that could be another device's tomorrow is none: any other GPU is named
    by its address."""
    found: dict[str, str] = {}
    faults = tuple(faults)
    for kind in KINDS:
        known = known_devices(kind, outcomes, faults, names)
        for number, part in zip(known.numbers, known.parts, strict=True):
            is_certain = number == str(part.gpu_index) if kind.kind == "gpu" else str(part) in known.listed
            label = f"{kind.title} {number}" if is_certain else DeviceNames().of(part)
            if label != str(part):
                found |= dict.fromkeys(part.all_names() if is_certain else (str(part),), label)
                found |= {str(fault.component): label for fault in known.faults.get(str(part), ())}
    found |= {name: found[str(part)] for name, part in names.items() if str(part) in found}
    return DeviceNames(found)


def device_range(labels: Iterable[str]) -> str:
    """``GPU 3``, ``8 GPUs (0-7)``, ``32 EFA devices (0-31)``, ``18 NVLinks of GPU 3``; "" for the node as a whole."""
    each = list(dict.fromkeys(label for label in labels if label != str(NODE)))
    if len(each) < 2:
        return "".join(each)
    numbered: dict[str, set[int]] = {}
    links: list[str] = []
    others: list[str] = []
    for label in each:
        if found := re.fullmatch(_NUMBERED, label):
            numbered.setdefault(found[1], set()).add(int(found[2]))
        elif found := re.fullmatch(_LINK, label):
            links.append(found[1])
        else:
            others.append(label)
    parts = [_of_kind(title, sorted(numbers)) for title, numbers in numbered.items()]
    parts += [f"{len(links)} NVLinks of {device_range(links)}"] if links else []
    parts += [listed(others, _SPELT_OUT)] if len(others) > _SPELT_OUT else others
    return ", ".join(parts)


def with_range(text: str, code: str, devices: Iterable[str]) -> str:
    """The text with all devices of a code where it names one of them: ``gpu.xid.79 on 8 GPUs (0-7)``."""
    devices = sorted(devices, key=len, reverse=True)
    one_of_them = rf"{_BEFORE}{re.escape(code)} on (?:{'|'.join(map(re.escape, devices))}){_BEHIND}"
    return re.sub(one_of_them, lambda _: f"{code} on {device_range(devices)}", text) if len(devices) > 1 else text


class FoldedText(Struct, frozen=True, kw_only=True):
    """One sentence for several that differ in their device and in numbers alone. ``devices``: their range; the numbers
    are those of the first. ``members``: which of the given ones it stands for."""

    text: str
    devices: str
    members: tuple[int, ...]


def folded_texts(texts: Iterable[str]) -> list[FoldedText]:
    """Each of these sentences once, in the order of the first: the device is the one that it names first."""
    return folded_about((found[0] if (found := re.search(_NAMED, text)) else "", text) for text in texts)


def folded_about(texts: Iterable[tuple[str, str]]) -> list[FoldedText]:
    """The same for sentences about a device, which they need not name. One about no device is alike only where it is
    the same."""
    groups: dict[tuple[str, bool], list[tuple[int, str, str]]] = {}
    for at, (device, text) in enumerate(texts):
        shape = re.sub(_NUMBERS, "#", renamed(text, device, "@")) if device else text
        groups.setdefault((shape, bool(device)), []).append((at, device, text))
    return [_folded(members) for members in groups.values()]


def renamed(text: str, device: str, name: str) -> str:
    """The text with another name for one device: ``GPU 1`` is no part of ``GPU 12``."""
    return re.sub(rf"{re.escape(device)}(?![0-9])", lambda _: name, text) if device else text


def _folded(members: Sequence[tuple[int, str, str]]) -> FoldedText:
    _, device, text = members[0]
    devices = device_range(each[1] for each in members)
    return FoldedText(text=renamed(text, device, devices), devices=devices, members=tuple(each[0] for each in members))


def _of_kind(title: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{title} {numbers[0]}"
    return f"{len(numbers)} {_MANY[title]} ({','.join(ranges(numbers))})"


def _listed(kind: DeviceKind, outcomes: Mapping[str, Outcome], names: Mapping[str, Component]) -> dict[str, Component]:
    """The devices that the last check run listed under a lasting name: a failed or old run listed none."""
    readings = outcomes[kind.listed_by].result.readings if kind.listed_by in outcomes else ()
    parts = (names.get(str(reading.component), reading.component) for reading in readings)
    return {str(part): part for part in parts if part.kind == kind.kind and _is_lasting(part)}


def _resolved(
    part: Component, names: Mapping[str, Component], known: Mapping[str, Component], listed: Mapping[str, Component]
) -> Component:
    """The device under its lasting name. A lost GPU may be known by its index alone: then it is the one that had this
    index and is no longer listed."""
    if _is_lasting(part):
        return names.get(str(part), part)
    unseen = (each for name, each in known.items() if name not in listed)
    return next((each for each in unseen if each.gpu_index == int(part.id)), part)


def _is_lasting(part: Component) -> bool:
    """Whether the name outlives the next driver load: an index alone may then name another GPU."""
    return not re.fullmatch(_NUMBER, part.id)


def _place(part: Component, *, is_listed: bool) -> tuple[int, int, bool, str]:
    """GPUs by their index, everything else by the first number in its name: ``rdmap79s0`` is on bus 79. Of two GPUs
    with one index the one that the last run listed comes first: the other one had it before a GPU was lost."""
    if (index := part.gpu_index) is not None:
        return 0, index, not is_listed, part.id
    numbers = re.findall(_NUMBER, part.id)
    return 1, int(numbers[0]) if numbers else 0, False, part.id


def _numbers(kind: DeviceKind, parts: Sequence[Component]) -> Iterator[str]:
    known = [part.gpu_index if kind.kind == "gpu" else place for place, part in enumerate(parts)]
    free = (number for number in range(2 * len(parts)) if number not in known)
    used: set[int] = set()
    for index in known:
        number = next(free) if index is None or index in used else index
        used.add(number)
        yield str(number)


def _own_names(component: Component | str) -> tuple[str, ...]:
    if isinstance(component, str):
        return (component.partition(":")[2],)
    return (component.id, *component.aliases)
