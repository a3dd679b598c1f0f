"""The words of cases in which one fault is seen by several checks at once, each from its side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from healthd.checklib.loglines import line_rows
from tests.faults.case import Case
from tests.faults.cases_gpu import case
from tests.faults.rig import Rig


def example(code: str, number: int = 0) -> str:
    """The published line of a code."""
    checks = ("kernel.host", "kernel.efa", "kernel.lustre")
    return [row.example for check in checks for row in line_rows(check) if row.code == code and not row.ends][number]


def together(*parts: Callable[[Rig], Any]) -> Callable[[Rig], Any]:
    """All of it happens at once."""

    def arrange(rig: Rig) -> None:
        for part in parts:
            part(rig)

    return arrange


def says(*lines: str) -> Callable[[Rig], None]:
    """The kernel writes this."""
    return lambda rig: rig.says(*lines)


def lines(*changed: str) -> Callable[[Rig], None]:
    """Lines of the simulated library."""
    return lambda rig: rig.state(*changed)


def fold(check: str, state: str, arrange: Callable[[Rig], Any], diagnosis: str, *symptoms: str, **more: Any) -> Case:
    """One fault, seen from several sides."""
    return case(check, state, arrange, diagnosis, symptoms=symptoms, **more)


def failed(unit: str) -> Callable[[Rig], None]:
    """This service has failed."""
    return lambda rig: rig.unit(unit, ActiveState="failed", Result="exit-code")
