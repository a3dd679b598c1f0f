"""The tables behind kernel lines: every row readable, sourced, and within the rules that keep a cluster alive."""

from __future__ import annotations

import re

import pytest

from healthd.agent.agent import kernel_needles
from healthd.checklib.loglines import LineRow, explain_row, line_rows, split_line
from healthd.checklib.xids import SxidRow, _bits, nvlink5_rule, nvlink5_rules, sxid_table, xid74_bits
from healthd.checks.kernel_rules import KernelRulesSettings, SiteRule
from healthd.config.schema.config import CheckConfig
from healthd.core.check import discover
from healthd.core.model import REMEDY_RANK, ClearsBy, Remedy, Severity

LINES = [row for name in ("kernel.efa", "kernel.host", "kernel.lustre") for row in line_rows(name)]


@pytest.mark.parametrize("row", LINES, ids=lambda row: row.example[:40])
def test_every_line_can_be_read_by_a_person(row: LineRow) -> None:
    """A row fits its own example, says what it means, why this remedy, and where that was read."""
    assert row.pattern.match(row.example, split_line(row.example).at)
    assert len(row.meaning) > 10
    assert row.reason.endswith(".")
    assert re.search(r"Linux|lustre-release|amzn-drivers|open-gpu-kernel-modules", row.source)
    (form,) = explain_row(row.check, row.code)
    assert row.ends or row.source in form.source
    assert any(row.example in note for note in form.notes)


def test_a_line_that_ends_a_fault_ends_one_that_waits_for_it() -> None:
    """Each ending row has rows of its code that a line ends, and the other way round."""
    ends = {row.code for row in LINES if row.ends}
    waiting = {row.code for row in LINES if row.clears_by is ClearsBy.LOG_LINE}
    assert waiting == {"lustre.connection_lost"}
    assert ends == {*waiting, "kernel.nfs_not_responding"}


def test_what_goes_far_keeps_jobs_off_and_stays() -> None:
    """A reboot or replacement is asked for only by what is critical, and what is critical is never mere news."""
    rows: list[LineRow | SxidRow] = [*LINES, *sxid_table().values()]
    far = [row for row in rows if REMEDY_RANK[row.remedy] >= REMEDY_RANK[Remedy.REBOOT_NODE]]
    assert [row for row in far if row.severity is not Severity.CRITICAL] == []
    critical = [row for row in rows if row.severity is Severity.CRITICAL]
    assert [row for row in critical if row.clears_by is ClearsBy.NOTHING] == []


def test_switch_errors_that_end_others_name_them() -> None:
    """10005 ends 10004, and the optical modules' two pairs; each ended one waits for its line."""
    ends = {row.sxid: row.ends for row in sxid_table().values() if row.ends}
    assert ends == {10005: 10004, 28002: 28001, 28004: 28003}
    waiting = {row.sxid for row in sxid_table().values() if row.clears_by is ClearsBy.LOG_LINE}
    assert waiting == set(ends.values())


def test_link_rules_cover_the_codes() -> None:
    """XID 144 to 150 have rules; the four published bits of XID 74 are of its first register."""
    assert {rule.xid for rule in nvlink5_rules()} == set(range(144, 151))
    assert set(xid74_bits()) == {(0, 4), (0, 5), (0, 21), (0, 22)}


def test_a_live_sample_is_decoded() -> None:
    """The published line of a GB200 fits the layout before 575, sub-code 4."""
    rule = nvlink5_rule(149, "NETIR_LINK_EVT", (0x004505C6, 0, 0, 0, 0, 0))
    assert rule is not None
    assert (rule.subcode, rule.immediate, rule.verdict.remedy) == (4, "RESET_GPU", "replace_node")
    assert nvlink5_rule(149, "NETIR_LINK_EVT", (0x004505C6,)) is None


@pytest.mark.parametrize("pattern", ["", "01", "-" * 31, "-" * 31 + "x", "-" * 33])
def test_a_bit_pattern_of_another_length_is_refused(pattern: str) -> None:
    """32 of three characters, or the table is refused."""
    with pytest.raises(ValueError, match="expected 32"):
        _bits(pattern)


def test_the_reader_gets_the_needles_of_checks_and_of_settings() -> None:
    """What a site's rules look for reaches the reader of the log beside what the checks declare."""
    checks = {name: check for name, check in discover().items() if check.on == "kernel"}
    settings = {name: CheckConfig(settings=check.settings()) for name, check in checks.items()}
    plain = kernel_needles(checks, settings)
    assert {b"^NVRM: ", b"^nvidia-nvswitch", b"^efa ", b"^Lustre"} <= set(plain)
    settings["kernel.rules"] = CheckConfig(
        settings=KernelRulesSettings(rules=(SiteRule(name="a", pattern="some words"),))
    )
    assert set(kernel_needles(checks, settings)) - set(plain) == {b"^some words"}


def test_every_row_needle_is_a_plain_text() -> None:
    """The kernel escapes everything else, so a needle of another kind would never be found."""
    for row in LINES:
        assert row.needle.isascii()
        assert "\\" not in row.needle
