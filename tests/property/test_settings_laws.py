"""No check takes a number that no node can have, an empty name, or a path that begins nowhere."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields

from healthd.config.load import examine
from healthd.config.values import default_of, row_class, toml_value
from healthd.core.check import discover
from tests.support.sampling import examples

CHECKS = {name: check.settings for name, check in discover().items()}
NEGATIVE = {int: st.integers(-(2**63), -2), float: st.floats(max_value=-1e-3, allow_infinity=True)}
ENDLESS = float("inf")
ROWS = {"rules": 'name = "a"\npattern = "disk failure"', "plugins": 'name = "a"\ncommand = ["/bin/true"]'}
"""What a row of a list of tables must have, beside the setting that is tried."""


class Place:
    """One setting: of a check, or of a row in a list of tables of one."""

    def __init__(self, check: str, cls: type, name: str, *, table: str = "") -> None:
        self.check, self.name, self.table = check, name, table
        self.type = bare(get_type_hints(cls)[name])
        self.default = default_of(next(item for item in fields(cls) if item.name == name))

    def __str__(self) -> str:
        return ".".join(filter(None, (self.check, self.table, self.name)))

    def refuses(self, value: Any) -> bool:
        """Whether a configuration with this value is refused, and the mistake names the setting."""
        table = f'[checks."{self.check}"]'
        if self.table:
            table = f'[[checks."{self.check}".{self.table}]]\n{ROWS[self.table]}'
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.toml"
            path.write_text(f"{table}\n{self.name} = {toml_value(value)}\n")
            examined = examine(path, checks=CHECKS, environ={})
        return examined.loaded is None and any(self.name in f"{each.key} {each.wrong}" for each in examined.problems)


def bare(hint: Any) -> Any:
    """A type without its limits and without None."""
    if get_origin(hint) is Annotated:
        return bare(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return bare(next(each for each in get_args(hint) if each is not NoneType))
    return hint


def every_place() -> Iterator[Place]:
    """Every setting of every check, those of the rows of a list of tables with them."""
    for check, cls in CHECKS.items():
        for item in fields(cls):
            yield Place(check, cls, item.name)
            if (row := row_class(get_type_hints(cls, include_extras=True)[item.name])) is not None:
                yield from (Place(check, row, each.name, table=item.name) for each in fields(row))


ALL = tuple(every_place())
NUMBERS = [each for each in ALL if each.type in (int, float)]
LISTS = [each for each in ALL if get_origin(each.type) is tuple and get_args(each.type)[0] is str and not each.table]
TABLES = [each for each in ALL if get_origin(each.type) is Mapping]
EMPTY_PATHS = ("host.reach.certificates", "lustre.mount.mounts", "lustre.mount.read_only")
"""Lists of paths that are empty by default; the others show it by their default."""
PATHS = [each for each in LISTS if str(each) in EMPTY_PATHS or any(str(path).startswith("/") for path in each.default)]


@pytest.mark.parametrize("place", NUMBERS, ids=str)
@settings(max_examples=examples(20))
@given(data=st.data())
def test_a_number_that_no_node_can_have_is_refused(place: Place, data: st.DataObject) -> None:
    """Negative, or endless. -1 stands for the number of the instance type where a setting says so, and for no other."""
    assert place.refuses(data.draw(NEGATIVE[place.type]))
    assert place.refuses(ENDLESS)
    assert place.refuses(-1) or place.default == -1


@pytest.mark.parametrize("place", [each for each in NUMBERS if each.name.endswith("_ratio")], ids=str)
@settings(max_examples=examples(20))
@given(value=st.floats(1.001, 1e6))
def test_a_share_is_at_most_all(place: Place, value: float) -> None:
    """80 is no share: 0.8 is meant."""
    assert place.refuses(value)


@pytest.mark.parametrize("place", LISTS, ids=str)
@settings(max_examples=examples(20))
@given(blank=st.text(" \t", max_size=3))
def test_a_list_has_no_empty_text(place: Place, blank: str) -> None:
    """It would be the beginning of every name, or the name of nothing."""
    assert place.refuses([blank])


@pytest.mark.parametrize("place", PATHS, ids=str)
@settings(max_examples=examples(20))
@given(path=st.from_regex(r"[a-z.][a-z./]{0,8}", fullmatch=True))
def test_a_relative_path_is_refused(place: Place, path: str) -> None:
    """healthd has no working directory that an operator knows."""
    assert place.refuses([path])


@pytest.mark.parametrize("place", TABLES, ids=str)
@pytest.mark.parametrize("value", [{"": ""}, {"nonsense": "1"}, {"/fsx": "relative"}], ids=str)
def test_a_table_has_no_key_that_is_nothing(place: Place, value: Mapping[str, str]) -> None:
    """A part of the stack that does not exist, and a folder that is none."""
    assert place.refuses(value)


def test_each_kind_of_setting_is_among_these() -> None:
    """A changed type leaves no law without a setting to hold for."""
    assert min(map(len, (NUMBERS, LISTS, TABLES))) >= 2
    assert len(PATHS) > len(EMPTY_PATHS)
    assert {"efa.devices.expected", "storage.nvme.count", "kernel.rules.rules.count"} <= {str(each) for each in NUMBERS}
