"""The check ``efa.counters``: errors that each Elastic Fabric Adapter counts, its own and the fabric's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from healthd.checklib.pci import efa_functions, pci_children
from healthd.checklib.tables import filled, keyed_rows
from healthd.core.check import AnyLimit, FindingCode, Limit, Rate, Stall, check, judged, not_applicable
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.core.model import ClearsBy, Component, Reading, ReadingKind, Remedy, Result, Severity
from healthd.core.node import Node

_FOLDERS = {"device": "hw_counters", "port": "ports/1/hw_counters"}
_TOLERATED, _COUNTER = "(EINVAL)", ReadingKind.COUNTER

KEEP_ALIVE = FindingCode(
    code="efa.counters.keep_alive",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="An EFA device shows no sign of life",
)
NO_COMPLETION = FindingCode(
    code="efa.counters.no_completion",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="An EFA device left a command of its driver unanswered",
    clears_by=ClearsBy.REBOOT,
)
COMMAND_ERROR = FindingCode(
    code="efa.counters.command_error",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="An EFA device refuses many commands of its driver",
    symptom_of=(NO_COMPLETION.code,),
)
FABRIC = FindingCode(
    code="efa.counters.fabric",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="The fabric, or a remote node, loses packets that this EFA device sends",
)
_CODES = {code.code: code for code in (KEEP_ALIVE, NO_COMPLETION, COMMAND_ERROR, FABRIC)}


class Counter(Struct, frozen=True, kw_only=True):
    """A counter of the driver, its folder, and its limit; ``limit`` None: it is a reading only."""

    name: str
    place: str
    limit: AnyLimit | None
    source: str

    @property
    def reading(self) -> str:
        """The name of its reading."""
        return f"efa_{self.name}_total"


def _counter(cells: Mapping[str, str]) -> Counter:
    name, source = filled(cells, "counter"), filled(cells, "source")
    code, limit = _CODES.get(cells["code"]), None
    if code is not None:
        limit = _limit(f"efa_{name}_total", cells, code, source)
    return Counter(name=name, place=filled(cells, "place"), limit=limit, source=source)


def _limit(reading: str, cells: Mapping[str, str], code: FindingCode, source: str) -> AnyLimit:
    match cells["judgement"]:
        case "growth":
            return Limit(reading=reading, max_increase=float(cells["allowed"]), code=code, source=source)
        case "rate":
            allowed, window_s = float(cells["allowed"]), float(cells["window_s"])
            return Rate(reading=reading, max_increase=allowed, window_s=window_s, code=code, source=source, calm_s=600)
        case "stall":
            for_s = float(cells["window_s"])
            return Stall(reading=reading, for_s=for_s, code=code, source=source, among_siblings=True)
    raise ValueError(f"judgement {cells['judgement']!r}: expected growth, rate, stall, or reading without a code")


COUNTERS = keyed_rows("efa_counters.csv", _counter, lambda row: row.name)
_LIMITS = tuple(row.limit for row in COUNTERS.values() if row.limit)


@check("efa.counters", interval_s=60, codes=_CODES.values(), limits=_LIMITS)
def efa_counters(node: Node, _settings: object) -> Result:
    """No EFA device has stopped answering its driver, and few packets are lost.

    Two kinds of trouble: the device's own (no keep-alive, commands that it never answered or refused), and the fabric's
    (drops, retransmissions, remote ends that do not answer), which is mostly another node's. The first sample is a
    baseline, whatever its value. A device's keep-alives count as missing only while another device receives some: if
    all are silent, the driver failed or the machine was stopped, and the kernel log reports the first. p4d has no
    retransmission counters; a counter that its driver refuses to read is skipped. A device without any counter, or with
    one that cannot be read, is unknown, and hides no other. The check never reads the port state. Unproven on hardware,
    and a warning at most.

    Sources: rows of efa_counters.csv; amzn-drivers (hw_counters of device and port; reads may end with EINVAL or
    EOPNOTSUPP).
    """
    functions = efa_functions(node)
    paths = {
        device: f"bus/pci/devices/{name}/infiniband/{device}"
        for name in functions
        for device in pci_children(node, name, "infiniband")
    }
    if not paths:
        return not_applicable("no EFA device with a driver; see efa.devices")
    epoch = f"boot {node.boot_id}"
    read = [_read(node, device, path, epoch) for device, path in paths.items()]
    return judged([], [reading for found, _ in read for reading in found], undecided=[gap for _, gap in read if gap])


def _read(node: Node, device: str, path: str, epoch: str) -> tuple[Sequence[Reading], str]:
    """The counters of a device, and why some are missing, or "". One that cannot be read hides no other."""
    part, found, gap = Component(kind="efa", id=device), list[Reading](), ""
    for row in COUNTERS.values():
        try:
            value = _value(node, f"{path}/{_FOLDERS[row.place]}/{row.name}")
        except SourceUnreadable as error:
            value, gap = None, gap or f"{part}: {error}"
        if value is not None:
            found.append(Reading(component=part, name=row.reading, value=value, kind=_COUNTER, epoch=epoch))
    return found, gap or ("" if found else f"{part}: no readable counter below /sys/{path}")


def _value(node: Node, path: str) -> int | None:
    """The counter; None where this device does not have it, or refuses to read it. Raises SourceUnreadable."""
    try:
        text = node.sys.read(path)
    except SourceMissing:
        return None
    except SourceUnreadable as error:
        if str(error).endswith(_TOLERATED):
            return None
        raise
    if not text.isdecimal():
        raise SourceUnreadable(f"/sys/{path}: {text[:40]!r}; expected a number")
    return int(text)
