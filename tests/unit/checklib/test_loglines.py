"""Lines of a table: the example of each row is recognised, folded, judged and explained by that row's code."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from healthd.checklib.loglines import (
    NOT_KERNEL,
    RowFold,
    codes_of,
    explain_row,
    judge_lines,
    line_rows,
    must_agree,
    place_of,
    split_line,
)
from healthd.checklib.loglines import recognises as fits
from healthd.core.model import NODE, Component, Finding
from healthd.core.node import KernelRecord

CHECKS = ("kernel.efa", "kernel.host", "kernel.lustre")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(text: str, *, trusted: bool = True) -> KernelRecord:
    return KernelRecord(boot_id="b", sequence=1, time=NOW, text=text, facility=0, level=3, trusted=trusted)


def found(check: str, *records: KernelRecord) -> tuple[Finding, ...]:
    return judge_lines(check, records, more=lambda _record, _groups: {"seen": "yes"}).findings


@pytest.mark.parametrize("check", CHECKS)
def test_the_example_of_each_row_is_its_code(check: str) -> None:
    """One that ends a fault is a clearance; another line fits no row; the rows' codes are the check's."""
    assert not fits(check, "all is quiet")
    assert explain_row(check, "no.such.code") == ()
    codes = {code.code for code in codes_of(check)}
    for row in line_rows(check):
        assert fits(check, row.example)
        result = judge_lines(check, [record(row.example), record("all is quiet")])
        seen = [over.code for over in result.clearances] if row.ends else [each.code for each in result.findings]
        assert row.code in seen
        assert row.code in codes
        assert [form.code for form in explain_row(check, row.code)] == [row.code]


def test_a_fault_that_comes_back_after_its_end_is_another_burst() -> None:
    """Lines are one finding with their number; a line after the end of the fault begins a new one."""
    ends = next(row for row in line_rows("kernel.lustre") if row.ends)
    begins = next(row for row in line_rows("kernel.lustre") if row.code == ends.code and not row.ends)
    one, other = record(begins.example), record(begins.example, trusted=False)
    (twice,) = found("kernel.lustre", one, one)
    assert (twice.evidence["count"], twice.evidence["seen"]) == (2, "yes")
    assert ", 2 times" in twice.message
    assert NOT_KERNEL in found("kernel.lustre", other)[0].message
    assert found("kernel.lustre", one, record(ends.example), one)


def test_past_the_bound_a_line_counts_for_the_node() -> None:
    """So a user who names parts cannot fill the memory; what is known already keeps its name."""
    row, fold = line_rows("kernel.host")[0], RowFold[str](most=1)
    for disk in ("a", "b", "c", "a"):
        fold.take(record(disk), "row", "code", Component(kind="disk", id=disk), {})
    assert [(str(each.component), each.count) for each in fold.bursts.values()] == [("disk:a", 2), (str(NODE), 2)]
    assert place_of(replace(row, component="disk:{disk}"), {"disk": None}) == NODE
    assert place_of(replace(row, component="disk:{disk}"), {"disk": "sda"}) == Component(kind="disk", id="sda")


def test_behind_a_head_of_the_kernels_own_no_name_is_looked_for() -> None:
    """What follows ``traps: `` is a name that a user chose, and no text in it is taken for the kernel's words."""
    words = split_line("traps: x[1]: segfault at 0")
    assert (words.at, words.task) == (0, None)


def test_what_is_longer_than_a_name_is_none() -> None:
    """A separator behind more bytes than the kernel keeps of a name ends no name."""
    words = split_line("a" * 40 + "[4711]: segfault at 0")
    assert (words.at, words.task) == (0, None)


def test_rows_of_one_code_agree_on_what_it_calls_for() -> None:
    """Two rows of a code with different meanings are refused, by the code's name; one that ends the fault has none."""
    begins = next(row for row in line_rows("kernel.lustre") if not row.ends)
    other = replace(begins, meaning="something else")
    must_agree([begins, replace(other, ends=True)])
    with pytest.raises(ValueError, match=f"the rows of {begins.code} do not agree"):
        must_agree([begins, other])
