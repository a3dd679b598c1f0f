"""What a GPU counts of its NVLinks: how it is asked, which differs from one architecture to the next, and the readings.

Pure over what NVML answered. It judges nothing: ``gpu.nvlink`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from healthd.check import FindingCode
from healthd.gpus import GpuValues
from healthd.model import Component, Reading, ReadingKind

OF_A_GPU = {38: "gpu_nvlink_crc_errors_total", 52: "gpu_nvlink_replays_total", 59: "gpu_nvlink_recoveries_total"}
OF_A_LINK = {208: "nvlink_receive_errors_total", 214: "nvlink_recovery_failures_total"}
"""Fields of nvml.h: totals of a GPU before Hopper; from Blackwell on (driver 560), for each link."""

_HOPPER = frozenset({"H100", "H200"})
_OF_HOPPER = {2: OF_A_GPU[38], 0: OF_A_GPU[52], 1: OF_A_GPU[59]}
"""nvmlNvLinkErrorCounter_t of nvml.h: 0 replay, 1 recovery, 2 CRC of flits. On Hopper the fields of a GPU succeed with
0 whatever happens, and nvidia-smi asks each link for these (Datadog agent, pull request 55966, 2026-09)."""


def questions(model: str, links: Sequence[int]) -> tuple[list[str], list[tuple[int, int]]]:
    """The calls, and the fields with their scopes, by which a GPU of this model tells its counters."""
    of_links = [(field, link) for field in OF_A_LINK for link in links]
    if model in _HOPPER:
        return [_counter(link, kind) for kind in _OF_HOPPER for link in links], of_links
    return [], [*of_links, *((field, 0) for field in OF_A_GPU)]


def untold(
    gpu: GpuValues, counters: Sequence[str], links: Sequence[int], fed_by: Iterable[tuple[FindingCode, Set[str]]]
) -> Iterator[tuple[Component, str]]:
    """The codes that this GPU or a link of it does not tell about: of three counters that it never had, two are enough.

    ``counters``: the calls of :func:`questions`; ``fed_by``: each code with the readings by which a component tells of
    it."""
    missing: dict[Component, set[str]] = {}
    for part, reading in _missing(gpu, counters, links):
        missing.setdefault(part, set()).add(reading)
    for part, readings in missing.items():
        yield from ((part, code.code) for code, feeding in fed_by if feeding <= readings)


def _missing(gpu: GpuValues, counters: Sequence[str], links: Sequence[int]) -> Iterator[tuple[Component, str]]:
    """The readings that this GPU says it does not have, each at its component. Where it counts by link, one counter
    that is missing stands for all. A question that it failed to answer is a gap, and none of these."""
    for field, name in OF_A_GPU.items():
        if not gpu.unsupported.isdisjoint(counters or [f"field:{field}"]):
            yield gpu.gpu, name
    yield from ((part, name) for part, key, name in _of_links(gpu, links) if key in gpu.unsupported)


def counted(gpu: GpuValues, links: Sequence[int], epoch: str) -> Iterator[Reading]:
    """What was told. A sum of some links only is none: it would jump when the others answer again."""
    told = []
    for kind, name in _OF_HOPPER.items():
        asked = [_counter(link, kind) for link in links]
        if all(each in gpu.values for each in asked):
            told.append((gpu.gpu, name, sum(gpu.values[each] for each in asked)))
    keys = [(gpu.gpu, f"field:{field}", name) for field, name in OF_A_GPU.items()]
    keys += _of_links(gpu, links)
    told += [(part, name, gpu.values[key]) for part, key, name in keys if key in gpu.values]
    for part, name, value in told:
        yield Reading(component=part, name=name, value=value, kind=ReadingKind.COUNTER, epoch=epoch)


def _of_links(gpu: GpuValues, links: Sequence[int]) -> Iterator[tuple[Component, str, str]]:
    for link in links:
        part = Component(kind="nvlink", id=f"{gpu.gpu.id}/{link}")
        for field, name in OF_A_LINK.items():
            yield part, f"field:{field}/{link}" if link else f"field:{field}", name


def _counter(link: int, kind: int) -> str:
    return f"nvmlDeviceGetNvLinkErrorCounter({link}, {kind})"
