"""Probes tell of a module what coverage.py's own trace function tells."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from itertools import combinations
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from coverage import Coverage

from tests.support.branch_probes import RAN, Probes, arcs_of, probed
from tests.support.pure_modules import ROOT
from tests.support.sampling import of_this_run

INPUTS = range(-1, 5)
SOURCES = {
    "if": """
        if x > 1:
            x -= 1
        elif (
            x == 1
            and abs(x)
        ):
            "why"
        else:
            x += 1
        if x:
            return x
        if x is None:
            return 3
        """,
    "for": """
        for each in range(x):
            if each == 1:
                continue
            if each == 2:
                break
            x += 1
        else:
            x += 2
        for each in range(x):
            return each
        """,
    "while": """
        while x > 2:
            x -= 1
            if x == 3:
                break
        while True:
            x += 1
            if x > 4:
                return x
        """,
    "match": """
        match x:
            case 0 | 1:
                y = 1
            case 2 if x > 3:
                y = 2
            case int() as z if z > 2:
                y = 3
        match x:
            case 1:
                y = 1
            case 2:
                y = 2
            case _:
                y = 3
        match [x]:
            case [0 | 1 | 2 | 3]:
                return 1
            case never:
                assert_never(never)
        """,
    "try": """
        try:
            y = [1, 2][x]
            x = 1 // x
        except ZeroDivisionError:
            x = 7
        except IndexError as why:
            raise ValueError from why
        else:
            x += 1
        finally:
            x += 2
        try:
            x = 1 // (x - 3)
        except ArithmeticError:
            return 1
        return x
        """,
    "raised": """
        y = 2
        z = 3 // x
        z = 4
        """,
    "with": """
        with suppress(ZeroDivisionError):
            x = 1 // x
            if x > 1:
                return 2
        x += 1
        """,
    "inside": """
        class Within:
            '''A text.'''

            y: int = 1
            '''Another one.'''

            @property
            @staticmethod
            def never():
                return 3

            def one(self, y):
                if y:
                    return self.y
                return [each for each in range(y) if each]

        @wraps(f)
        def two(y):
            yield y
            if y > 2:
                yield 4

        if x > 1:
            return Within().one(x - 2), list(two(x))
        return sorted([x], key=lambda each: each if x else 0)
        """,
    "left out": """
        if TYPE_CHECKING:
            x += 1
        elif x > 1:
            return x
        class Port(Protocol):
            def f(self):
                return 1
        """,
}
STRICTER: dict[str, tuple[str, object]] = {
    "a branch on one line": (
        """
        if x > 1: return x
        return 2
        """,
        ([], {8: (2, 0)}),
    ),
    "an except that catches nothing": (
        """
        try:
            return 1 // x
        except ValueError as why:
            raise KeyError from why
        """,
        ([10, 11], {}),
    ),
}
HEAD = """'''A module.'''
from __future__ import annotations
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Protocol, assert_never
def f(x):
"""


def inputs() -> Iterator[tuple[int, ...]]:
    """None, one, any two of them, of which `make test` takes some, and all."""
    for size in (0, 1, len(INPUTS)):
        yield from combinations(INPUTS, size)
    yield from of_this_run().some("pairs", list(combinations(INPUTS, 2)), 3)


def told(coverage: Coverage, path: Path) -> object:
    """Statements that did not run, and of each branch how many ways it has and went."""
    return coverage.analysis2(str(path))[3], coverage.branch_stats(str(path))


def reader(path: Path) -> Coverage:
    return Coverage(data_file=None, config_file=str(ROOT / "pyproject.toml"), include=[str(path)], branch=True)


def run(code: CodeType, given: Iterable[int], **names: Any) -> None:
    exec(code, names)  # noqa: S102  # code of this file
    for each in given:
        with suppress(ArithmeticError, AssertionError, ValueError):
            names["f"](each)


def counted(path: Path, source: str, given: Iterable[int]) -> object:
    """What the probes tell, where it is called with these."""
    coverage, ran = reader(path), bytearray(len(source))
    run(compile(probed(source)[0], str(path), "exec", dont_inherit=True), given, **{RAN: ran})
    coverage.get_data().add_arcs({str(path): arcs_of(source, [number for number, each in enumerate(ran) if each])})
    return told(coverage, path)


def traced(path: Path, source: str, given: Iterable[int]) -> object:
    """What coverage.py's trace function tells."""
    coverage = reader(path)
    with coverage.collect():
        run(compile(source, str(path), "exec", dont_inherit=True), given)
    return told(coverage, path)


@pytest.mark.parametrize("name", SOURCES)
def test_probes_tell_what_the_trace_function_tells(tmp_path: Path, name: str) -> None:
    """Of each statement that has branches, with whatever it is called."""
    path, source = tmp_path / "source.py", HEAD + SOURCES[name]
    path.write_text(source, encoding="utf-8")
    for given in inputs():
        assert counted(path, source, given) == traced(path, source, given), given


@pytest.mark.parametrize("name", STRICTER)
def test_what_probes_cannot_tell_did_not_happen(tmp_path: Path, name: str) -> None:
    """It ends a run red, until it is written in another way."""
    source, left = STRICTER[name]
    path = tmp_path / "source.py"
    path.write_text(HEAD + source, encoding="utf-8")
    assert counted(path, HEAD + source, (0, 1, 2)) == left != traced(path, HEAD + source, (0, 1, 2))


def test_what_ran_while_nothing_counts_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import counts, and what is kept; its bytecode is not left where a run without probes finds it."""
    (tmp_path / "probed_module.py").write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    probes = Probes(["probed_module"])
    probes.install()
    module = import_module("probed_module")
    monkeypatch.delitem(sys.modules, "probed_module")
    at_import = probes.kept()
    probes.keep()
    module.f(0)
    probes.forget()
    module.f(1)
    probes.keep()
    assert (at_import, probes.kept()) == ({"probed_module": []}, {"probed_module": [0, 1, 2]})
    assert list(tmp_path.iterdir()) == [tmp_path / "probed_module.py"]
    with pytest.raises(RuntimeError, match=r"imported before its probes were there: tests\.support\.branch_probes"):
        Probes(["tests.support.branch_probes"]).install()
