"""A GPU's NVLinks by NVML: how many it must have, whether they are up, its counters, the calls (which differ from one
architecture to the next), and the readings.

Pure over NVML's answers. It judges nothing: ``gpu.nvlink`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from healthd.checklib.gpus import GpuValues, in_mig
from healthd.checklib.nvml_codes import field_key
from healthd.checklib.tables import filled, instance_profile, keyed_rows
from healthd.core.check import FindingCode
from healthd.core.model import Component, Reading, ReadingKind

OF_A_GPU = {38: "gpu_nvlink_crc_errors_total", 52: "gpu_nvlink_replays_total", 59: "gpu_nvlink_recoveries_total"}
OF_A_LINK = {208: "nvlink_receive_errors_total", 214: "nvlink_recovery_failures_total"}
"""Fields of nvml.h: totals of a GPU before Hopper; from Blackwell on (driver 560), for each link."""

RECOVERED = 213
"""Field of nvml.h, for each link: recoveries that succeeded. Blackwell reports it; Hopper counts them as an error."""

TRAFFIC = {138: "gpu_nvlink_transmitted_bytes_total", 139: "gpu_nvlink_received_bytes_total"}
"""Fields of nvml.h: the payload of a GPU's links in KiB. They judge nothing: the nodes of a job are compared."""
ALL_LINKS = 0xFFFFFFFF  # nvml.h: as the scope of these fields, the sum over all links
_KIB = 1024

_SLEEP_IN_MIG = "A100"  # NVIDIA MIG user guide: no NVLink between GPUs while MIG is on
TABLE = keyed_rows(
    "nvlinks.csv", lambda row: (row["model"], range(int(row["links"])), filled(row, "source")), lambda row: row[0]
)
"""Per GPU model: its links, and their source."""

_HOPPER = frozenset({"H100", "H200"})
_OF_HOPPER = {2: OF_A_GPU[38], 0: OF_A_GPU[52], 1: OF_A_GPU[59]}
"""nvmlNvLinkErrorCounter_t of nvml.h: 0 replay, 1 recovery, 2 CRC of flits. On Hopper the fields of a GPU succeed with
0 whatever happens, and nvidia-smi asks each link for these (Datadog agent, pull request 55966, 2026-09)."""

P2P = "nvmlDeviceGetP2PStatus(2)"
"""How a GPU reaches each sibling over NVLink (2: NVML_P2P_CAPS_INDEX_NVLINK)."""
# nvmlGpuP2PStatus_t (nvml.h), from 0 on
_P2P_WORDS = (
    *("OK", "CHIPSET_NOT_SUPPORTED", "GPU_NOT_SUPPORTED", "IOH_TOPOLOGY_NOT_SUPPORTED", "DISABLED_BY_REGKEY"),
    *("NOT_SUPPORTED", "UNKNOWN"),
)


def expected(instance_type: str | None) -> tuple[str, range, str] | None:
    """The GPU model of this instance type, the links that each GPU has, and their source; None where no NVLink joins
    its GPUs, or the table does not know the type."""
    profile = instance_profile(instance_type)
    return TABLE.get(profile.gpu_model) if profile and profile.nvlink in ("nvswitch", "nvl72") else None


def questions(model: str, links: Sequence[int]) -> tuple[list[str], list[tuple[int, int]]]:
    """The calls, and the fields with their scopes, by which a GPU of this model reports its counters."""
    of_links = [(field, link) for field in (*OF_A_LINK, RECOVERED) for link in links]
    of_links += [(field, ALL_LINKS) for field in TRAFFIC]
    if model in _HOPPER:
        return [_counter(link, kind) for kind in _OF_HOPPER for link in links], of_links
    return [], [*of_links, *((field, 0) for field in OF_A_GPU)]


def not_reported(
    gpu: GpuValues, counters: Sequence[str], links: Sequence[int], fed_by: Iterable[tuple[FindingCode, Set[str]]]
) -> Iterator[tuple[Component, str]]:
    """The codes that this GPU or a link of it cannot report: of three counters that it never had, two are enough.

    ``counters``: the calls of :func:`questions`; ``fed_by``: each code with the readings on which it depends."""
    missing: dict[Component, set[str]] = {}
    for part, reading in _missing(gpu, counters, links):
        missing.setdefault(part, set()).add(reading)
    for part, readings in missing.items():
        yield from ((part, code.code) for code, feeding in fed_by if feeding <= readings)


def _missing(gpu: GpuValues, counters: Sequence[str], links: Sequence[int]) -> Iterator[tuple[Component, str]]:
    """The readings that this GPU does not support, each at its component. Where it counts by link, one missing counter
    stands for all. A call that failed is a gap, and none of these."""
    if not gpu.unsupported:
        return
    for field, name in OF_A_GPU.items():
        if not gpu.unsupported.isdisjoint(counters or [field_key(field)]):
            yield gpu.gpu, name
    yield from ((part, name) for part, key, name in _of_links(gpu, links) if key in gpu.unsupported)


def counted(gpu: GpuValues, links: Sequence[int], epoch: str) -> Iterator[Reading]:
    """The readings that were reported. A sum of some links only is none: it would jump when the others answer again."""
    reported = []
    for kind, name in _OF_HOPPER.items():
        asked = [_counter(link, kind) for link in links]
        if all(each in gpu.values for each in asked):
            reported.append((gpu.gpu, name, sum(gpu.values[each] for each in asked)))
    moved = [(field_key(field, ALL_LINKS), name) for field, name in TRAFFIC.items()]
    reported += [(gpu.gpu, name, gpu.values[key] * _KIB) for key, name in moved if key in gpu.values]
    keys = [(gpu.gpu, field_key(field), name) for field, name in OF_A_GPU.items()]
    keys += _of_links(gpu, links)
    reported += [(part, name, gpu.values[key]) for part, key, name in keys if key in gpu.values]
    for part, name, value in reported:
        yield Reading(component=part, name=name, value=value, kind=ReadingKind.COUNTER, epoch=epoch)


def _of_links(gpu: GpuValues, links: Sequence[int]) -> Iterator[tuple[Component, str, str]]:
    for link in links:
        part = _link(gpu, link)
        for field, name in OF_A_LINK.items():
            yield part, field_key(field, link), name


def _link(gpu: GpuValues, link: int) -> Component:
    return Component(kind="nvlink", id=f"{gpu.gpu.id}/{link}")


def recoveries_of(gpu: GpuValues, links: Sequence[int]) -> Iterator[tuple[Component, int | None]]:
    """How often each link was recovered since the driver was loaded; None where that is not reported.

    Hopper may answer the field with 0 whatever happens, so the larger of both counters is taken."""
    for link in links:
        keys = (_counter(link, 1), field_key(RECOVERED, link))
        counts = [int(gpu.values[key]) for key in keys if key in gpu.values]
        yield _link(gpu, link), max(counts, default=None)


def _counter(link: int, kind: int) -> str:
    return f"nvmlDeviceGetNvLinkErrorCounter({link}, {kind})"


def state_of(link: int) -> str:
    """The call for the state of a link: 1 up, 0 down."""
    return f"nvmlDeviceGetNvLinkState({link})"


def sleeps(gpu: GpuValues, model: str) -> bool:
    """Whether the links of this GPU are down because MIG is on, which is no fault."""
    return in_mig(gpu) and model == _SLEEP_IN_MIG


def is_down(gpu: GpuValues, link: int) -> bool:
    """Whether NVML reports the link as down, or does not know it: a missing link that must exist is down as well."""
    return gpu.values.get(state_of(link)) == 0 or state_of(link) in gpu.unsupported


def none_is_up(gpu: GpuValues, links: Sequence[int]) -> bool:
    """Whether every link is down, and NVML itself reports that of one at least."""
    return any(state_of(link) in gpu.values for link in links) and all(is_down(gpu, link) for link in links)


def apart_by_index(gpus: Sequence[GpuValues]) -> Iterator[tuple[GpuValues, dict[str, str]]]:
    """The GPUs that cannot reach siblings, by the index of each, the most isolated first: a sibling's missing path to
    it is not repeated. The answers must hold :data:`P2P` and ``MIG``; a GPU with MIG on reaches none."""
    split = {index for index, gpu in enumerate(gpus) if in_mig(gpu)}
    alone = [() if index in split else gpu.values.get(P2P, ()) for index, gpu in enumerate(gpus)]
    seen = set[int]()
    for index in sorted(range(len(gpus)), key=lambda each: -sum(map(bool, alone[each]))):
        apart = {str(peer): _word(at) for peer, at in enumerate(alone[index]) if at and peer not in seen | split}
        if apart:
            seen.add(index)
            yield gpus[index], apart


def _word(status: int) -> str:
    return _P2P_WORDS[status] if status < len(_P2P_WORDS) else f"status {status}"
