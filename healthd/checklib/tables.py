"""The fact tables of ``checks/data``, as typed rows. Loaded once, pure afterwards.

A fact about hardware is a row of a table with its source. A row that cannot be read is refused with its line. It
decides nothing: a check knows the meaning of a row for the node.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import TypeVar, get_type_hints

from msgspec import Struct

from healthd.core.shipped_text import shipped_text

_CHECKS = "healthd.checks"
K = TypeVar("K")
R = TypeVar("R")


class InstanceProfile(Struct, frozen=True, kw_only=True):
    """The complete hardware of a GPU instance type.

    ``gpu_memory_mib`` is EC2's nominal figure, up to 3 % away from what a GPU has. ``memory_mib`` is EC2's figure for
    main memory; 0 where EC2 publishes none. ``efa_max`` is how many EFA
    interfaces the type can have and ``efa_usual`` how many AWS recommends: you choose the number of an instance at its
    launch. ``nvlink``: none, pcie, nvswitch (inside the node) or nvl72 (across nodes). ``nvswitches``: how many the PCI
    bus shows.
    """

    type: str
    gpus: int
    gpu_model: str
    gpu_memory_mib: int
    efa_max: int
    efa_usual: int
    nvme_count: int
    nvlink: str
    source: str
    memory_mib: int = 0
    nvswitches: int = 0


@cache
def instance_types() -> Mapping[str, InstanceProfile]:
    """``instance_types.toml`` by type name. Raises ValueError naming the type that cannot be read."""
    rows = tomllib.loads(shipped_text(_CHECKS, "data/instance_types.toml"))["instance_types"]
    return MappingProxyType({name: profile_of(name, row) for name, row in rows.items()})


def instance_profile(instance_type: str | None) -> InstanceProfile | None:
    """The profile of ``p5.48xlarge`` (or ``ml.p5.48xlarge``); None for a type that the table does not know."""
    if instance_type is None:
        return None
    return instance_types().get(instance_type.strip().removeprefix("ml."))


def is_ultraserver(instance_type: str) -> bool:
    """Whether it is one node of an NVLink domain that spans several, by its family: P6e, with or without ``ml.``, and
    also of a size that the table does not know yet."""
    return instance_type.removeprefix("ml.").startswith("p6e-")


def keyed_rows(
    name: str, parse: Callable[[Mapping[str, str]], R], key: Callable[[R], K], package: str = _CHECKS
) -> Mapping[K, R]:
    """A table of a package's ``data`` by key. Raises ValueError with the line for a row that cannot be read or whose
    key is taken."""
    table: dict[K, R] = {}
    for line, cells in _lines(name, package):
        try:
            row = parse(cells)
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{name}, line {line}: cannot read {dict(cells)}: {error!r}") from error
        if key(row) in table:
            raise ValueError(f"{name}, line {line}: {key(row)} appears twice")
        table[key(row)] = row
    return MappingProxyType(table)


def as_row(cells: Mapping[str, str], kind: Callable[..., R], **more: object) -> R:
    """A row as a struct whose fields are its columns: each cell is read by the type of its field, and none is empty.
    ``more``: the fields that the row says in another way. Raises ValueError."""
    read = {name: hint(filled(cells, name)) for name, hint in _fields(kind).items() if name not in more}
    return kind(**read, **more)


@cache
def _fields(kind: Callable[..., object]) -> Mapping[str, Callable[[str], object]]:
    return get_type_hints(kind)


def filled(cells: Mapping[str, str], column: str) -> str:
    """A cell that must not be empty. Raises ValueError."""
    if not cells[column]:
        raise ValueError(f"{column} is empty")
    return cells[column]


def profile_of(name: str, row: Mapping[str, object]) -> InstanceProfile:
    """One row of instance_types.toml. Raises ValueError for a column that is missing or unknown."""
    try:
        return InstanceProfile(type=name, **{"efa_usual": row["efa_max"], **row})  # type: ignore[arg-type]  # TOML's types, tested
    except (KeyError, TypeError) as error:
        raise ValueError(f"instance_types.toml, {name}: {error!r}; the columns are those of InstanceProfile") from error


def _lines(name: str, package: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    import csv  # most checks of the host read no such table

    reader = csv.DictReader(shipped_text(package, f"data/{name}").splitlines(), strict=True)
    for cells in reader:
        yield reader.line_num, cells
