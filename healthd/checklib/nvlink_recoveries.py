"""NVLinks that are recovered far more often than the others of their node. Such a link may be about to fail.

Pure over NVML's answers; ``gpu.nvlink`` judges it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from healthd.checklib.gpus import GpuValues
from healthd.checklib.nvlink import recoveries_of
from healthd.core.model import Component

_LEAST, _TIMES_THE_USUAL = 100, 20
_SOURCE = (
    "field report: a link with 505 recoveries among 1,296, the others none, failed five days later; "
    "100, and 20 times the median of the node's links, are healthd's choice"
)


def recovered(gpus: Iterable[GpuValues], links: Sequence[int]) -> tuple[dict[Component, int], list[Component]]:
    """How often each link was recovered since the driver was loaded, and the links that do not report it."""
    counts = dict(each for gpu in gpus for each in recoveries_of(gpu, links))
    reported = {part: count for part, count in counts.items() if count is not None}
    return reported, [part for part in counts if part not in reported]


def outliers(counts: Mapping[Component, int]) -> Iterator[tuple[Component, str, dict[str, Any]]]:
    """The links that were recovered far more often than the others of the node, as text and in numbers.

    All counters began with the driver, so their differences grew over the same time."""
    if not counts:
        return
    usual = sorted(counts.values())[len(counts) // 2]
    for part, count in counts.items():
        if count >= max(_LEAST, _TIMES_THE_USUAL * usual):
            message = (
                f"recovered {count} times since the driver was loaded; the median of {len(counts)} links is {usual}"
            )
            yield part, message, {"recoveries": count, "median": usual, "limit_source": _SOURCE}
