"""What real GPUs have answered, and what the checks cost there: records that tests/gpu makes on a machine with GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from healthd.core.node import GpuAnswer, NvmlFailure

FOLDER = Path(__file__).with_name("recorded_gpus")


class Recorded(Struct, kw_only=True):
    """One machine: the answers of its GPUs, without what would identify them.

    ``costs_ms``: of each NVML call or field, the median over all GPUs. ``kernel_us``: by what ran beside it, the time
    from the start of a kernel that does nothing to its end, as percentiles (``p50``). ``at_rest``: the figures of
    bench_idle, of a daemon on this machine.
    """

    model: str
    driver: str
    date: date
    gpus: tuple[GpuAnswer, ...]
    costs_ms: dict[str, float] = field(default_factory=dict)
    kernel_us: dict[str, dict[str, float]] = field(default_factory=dict)
    at_rest: dict[str, float] = field(default_factory=dict)


def keep(record: Recorded) -> None:
    """Write a record, in the place of an earlier one of the same model."""
    FOLDER.mkdir(exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    (FOLDER / f"{record.model.replace(' ', '_')}.json").write_bytes(text + b"\n")


def recorded() -> Mapping[str, Recorded]:
    """Every record, by the model of its GPUs."""
    return {record.model: record for record in map(_read, sorted(FOLDER.glob("*.json")))}


def _read(path: Path) -> Recorded:
    """A failure is written as any object is, so it is told by its members."""
    record = msgspec.json.decode(path.read_bytes(), type=Recorded)
    gpus = (replace(gpu, values={call: _value(value) for call, value in gpu.values.items()}) for gpu in record.gpus)
    return replace(record, gpus=tuple(gpus))


def _value(value: Any) -> Any:
    is_failure = isinstance(value, dict) and value.keys() == {"code", "name"}
    return NvmlFailure(code=value["code"], name=value["name"]) if is_failure else value
