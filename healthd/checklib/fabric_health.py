"""The health mask of the NVLink fabric, as a GPU reports it, and the faults in its parts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from healthd.checklib.tables import as_row, keyed_rows

_PARTITION_SHIFT, _TWO_BITS, _NOT_ASSIGNED = 12, 0x3, 2
"""NVML_GPU_FABRIC_HEALTH_MASK_…_PARTITION_ASSIGNED (nvml.h): 1 true, 2 false, 0 not reported."""


class MaskPart(Struct, frozen=True, kw_only=True):
    """One part of the health mask: the place of its bits, and its values that are a fault. Zero: not reported."""

    part: str
    shift: int
    bits: int
    faults: frozenset[int]
    meaning: str
    source: str


def _mask_part(cells: Mapping[str, str]) -> MaskPart:
    return as_row(cells, MaskPart, faults=frozenset(map(int, cells["faults"].split())))


MASK = keyed_rows("fabric_health.csv", _mask_part, lambda row: row.part)


def lacks_partition(mask: int) -> bool:
    """Whether the mask says that no NVLink partition is assigned to the GPU: no job can use its links."""
    return mask >> _PARTITION_SHIFT & _TWO_BITS == _NOT_ASSIGNED


def faults_of(mask: int) -> Iterator[str]:
    """The faults in the parts of a health mask, as text."""
    for row in MASK.values():
        value = mask >> row.shift & (1 << row.bits) - 1
        if value in row.faults:
            yield row.meaning if len(row.faults) == 1 else f"{row.meaning} (reason {value})"
