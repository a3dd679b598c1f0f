"""kernel.sxid: every published shape, the severity word before the table, and numbers that changed hands at 550."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from healthd.checklib.xids import SxidRow, sxid_rows, sxid_table
from healthd.checks.kernel_sxid import explain, kernel_sxid
from healthd.core.check import NoSettings
from healthd.core.errors import SourceUnreadable
from healthd.core.model import ClearsBy, Remedy, Result, Severity, Status
from healthd.testing import Entry, FakeNode
from tests.support.judgement import START, at, kernel_says, only

HEAD = "nvidia-nvswitch2: SXid (PCI:0000:00:09.0): "
MULTICAST = f"{HEAD}28006, Non-fatal, Link 12 MC TS crumbstore MCTO"
LOADING = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U16)"


def judge(*texts: str, sys: Mapping[str, Entry] | None = None) -> Result:
    return kernel_sxid(FakeNode(kernel_records=kernel_says(*texts), sys=sys or {}), NoSettings())


def published() -> Iterator[tuple[str, str]]:
    for row in Path(__file__).with_name("sxid_lines.txt").read_text(encoding="utf-8").splitlines():
        if not row.startswith("#"):
            expected, _, line = row.partition(" | ")
            yield expected, line


@pytest.mark.parametrize(("expected", "line"), list(published()), ids=lambda value: value[:40])
def test_every_shape_is_judged(expected: str, line: str) -> None:
    """Every form is recognised, on its switch, and judged by its word, or by its number where it has none."""
    finding = only(judge(line))
    message = f"{finding.evidence['sxid']} {finding.component} {finding.severity} {finding.remedy} {finding.clears_by}"
    assert message == expected
    assert finding.code == f"nvswitch.sxid.{finding.evidence['sxid']}"
    assert finding.evidence["line"] == line
    assert (finding.time, finding.evidence["count"]) == (START, 1)


# As the driver's macros print them: NVSWITCH_REPORT_* in intr_nvswitch.h, NVSWITCH_PRINT_SXID in common_nvswitch.h.
MACROS = {
    "Fatal": ("Fatal, Link 09 {}", "Fatal, Link 09 {} (First)", "Fatal, {}, instance=2, chiplet=1"),
    "Non-fatal": ("Non-fatal, Link 09 {}", "Non-fatal, Link 09 {} (First)", "Non-fatal, {}, instance=2, chiplet=1"),
    "Correctable": ("Correctable, Link 09 {}", "Correctable, Link 09 {} (First)"),
    None: ("{}",),
}


@pytest.mark.parametrize("row", sxid_table().values(), ids=lambda row: f"{row.sxid}{row.drivers}")
def test_every_row_is_judged_in_every_form_of_the_driver(row: SxidRow) -> None:
    """Fatal keeps jobs off whatever the table says; Non-fatal never does, and is only news where the guide says so;
    what the switch corrected is news; without a word the row speaks."""
    sys: dict[str, Entry] = {"module/nvidia/version": "545.23.08" if row.drivers == "<550" else "580.95.05"}
    milder = row.severity if row.severity is Severity.INFO else Severity.WARNING
    watched = Remedy.NONE if milder is Severity.INFO else Remedy.WATCH
    judged_as = {
        "Fatal": (Severity.CRITICAL, Remedy.REBOOT_NODE),
        "Non-fatal": (milder, row.nonfatal_remedy or watched),
        "Correctable": (Severity.INFO, Remedy.NONE),
        None: (row.severity, row.remedy),
    }
    for word, forms in MACROS.items():
        for form in forms:
            line = f"nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): {row.sxid:05d}, {form.format('some text')}"
            finding = only(judge(line, sys=sys))
            assert (finding.severity, finding.remedy) == judged_as[word]
            assert str(finding.component) == "nvswitch:0000:a9:00"
            assert finding.evidence["severity_word"] == (word or "none")


def test_no_switch_is_ok() -> None:
    """A node whose log holds no SXid is fine, and so are the driver's other lines."""
    assert judge().status is Status.OK
    assert judge("nvidia-nvswitch0: using MSI", LOADING.format("580.95.05"), "usb 1-1: new").status is Status.OK


def test_continuation_lines_are_no_faults() -> None:
    """Registers below an error belong to it and are not counted; alone, as where a batch was cut, they are none."""
    more = (
        f"[ 8123.617798] {HEAD}11004, Severity 0 Engine instance 42 Sub-engine instance 00",
        f"{HEAD}11004, Data {{0x50610002, 0x10100030}}",
    )
    assert judge(*more).findings == ()
    finding = only(judge(f"{HEAD}11004, Non-fatal, Link 42 ingress invalid ACL", *more))
    assert finding.evidence["count"] == 1
    assert finding.evidence["registers"] == [line.partition("11004, ")[2] for line in more]


def test_a_burst_is_one_fault() -> None:
    """Lines of one error on one switch are one finding with the links they named; another switch is another."""
    lines = [f"{HEAD}20034, Fatal, Link {link:02} LTSSM Fault Up" for link in (30, 31, 30)]
    first, second = judge(*lines, lines[0].replace("00:09.0", "00:0a.0")).findings
    assert (first.evidence["count"], first.evidence["links"], first.evidence["last_sequence"]) == (3, [30, 31], 2)
    assert str(second.component) == "nvswitch:0000:00:0a"


def test_one_number_with_two_words_is_two_findings() -> None:
    """A harmless form in front does not hide the fatal one behind it."""
    result = judge(f"{HEAD}19048, Non-fatal, Link 01 x", f"{HEAD}19048, Fatal, Link 01 x")
    assert [finding.severity for finding in result.findings] == [Severity.WARNING, Severity.CRITICAL]


def test_the_end_of_heat_ends_its_fault_and_no_other() -> None:
    """10005 is evidence that 10004 of that switch is over; heat that comes back afterwards is a new fault."""
    start = f"{HEAD}10004, NVSWITCH thermal slowdown started"
    end = f"{HEAD}10005, NVSWITCH thermal slowdown ended"
    result = judge(start, end, start)
    (over,) = result.clearances
    assert (over.by, str(over.component), over.code) == (
        ClearsBy.LOG_LINE,
        "nvswitch:0000:00:09",
        "nvswitch.sxid.10004",
    )
    assert over.time == at(1)
    assert [finding.code[-5:] for finding in result.findings] == ["10004", "10005", "10004"]
    assert len(judge(start, end, start, end).clearances) == 2


@pytest.mark.parametrize(
    ("driver", "means"),
    [("545.23.08", "MULTICASTTSTATE_CRUMBSTORE_MCTO"), ("535.161.08", "number 29006 from driver 550 on")],
)
def test_renumbered_codes_before_550(driver: str, means: str) -> None:
    """Up to driver 545, 28006 is what 29006 is later; /sys tells the version."""
    finding = only(judge(MULTICAST, sys={"module/nvidia/version": driver}))
    assert means in finding.message
    assert finding.evidence["driver"] == int(driver[:3])


@pytest.mark.parametrize(
    ("number", "driver", "means"),
    [
        (28001, "545.23.08", "MULTICASTTSTATE_TAGPOOL"),
        (28001, "550.54.14", "OSFP_THERM_WARN_ACTIVATED"),
        (29006, "545.23.08", "REDUCTIONTSTATE_CRUMBSTORE_RTO"),
        (29006, "550.54.14", "MULTICASTTSTATE_CRUMBSTORE_MCTO"),
        (30006, "580.95.05", "REDUCTIONTSTATE_CRUMBSTORE_RTO"),
    ],
)
def test_one_number_two_meanings(number: int, driver: str, means: str) -> None:
    """28xxx and 29xxx were given to other errors at 550, and each is named as its driver means it."""
    finding = only(judge(f"{HEAD}{number}, Non-fatal, Link 12 x", sys={"module/nvidia/version": driver}))
    assert means in finding.message


def test_the_log_knows_its_driver_better_than_sys() -> None:
    """A driver that the log says was loaded before the line counts, whatever is loaded now."""
    finding = only(judge(LOADING.format("545.23.08"), MULTICAST, sys={"module/nvidia/version": "580.95.05"}))
    assert finding.evidence["driver"] == 545


@pytest.mark.parametrize("text", ["Non-fatal, Link 12 x", "no severity word"])
def test_a_number_of_an_unknown_driver_is_ambiguous(text: str) -> None:
    """Without the version both meanings are named, none is chosen, and nothing more than a warning comes of it."""
    for sys in ({}, {"module/nvidia/version": SourceUnreadable("x")}, {"module/nvidia/version": "?"}):
        finding = only(judge(f"{HEAD}28001, {text}", sys=sys))
        assert "ambiguous" in finding.message
        assert "MULTICASTTSTATE_TAGPOOL" in finding.message
        assert "OSFP_THERM_WARN_ACTIVATED" in finding.message
        assert (finding.severity, finding.remedy) == (Severity.WARNING, "watch")


def test_a_driver_loaded_after_the_line_did_not_write_it() -> None:
    """A line before a load in the same batch is of an earlier driver, which nobody knows: ambiguous, not guessed."""
    sys = {"module/nvidia/version": "580.95.05"}
    result = judge(f"{HEAD}28001, Non-fatal, Link 12 x", LOADING.format("580.95.05"), sys=sys)
    assert "ambiguous" in only(result).message


def test_other_numbers_need_no_version() -> None:
    """Every number outside the renumbered ranges has one meaning."""
    twice = {number for number, drivers in sxid_table() if drivers}
    assert {number // 1000 for number in twice} == {28, 29, 30}
    assert all(len(sxid_rows(number)) == 1 for number, _ in sxid_table() if number not in twice)


def test_a_fatal_word_takes_the_node_out_whoever_means_what() -> None:
    """The word holds for an ambiguous number too."""
    assert only(judge(f"{HEAD}28002, Fatal, Link 12 x")).severity is Severity.CRITICAL


def test_words_of_a_user_that_the_kernel_echoes_are_no_sxid() -> None:
    """A line must begin as the driver's do."""
    assert judge(f"tmpfs: Unknown parameter '{HEAD}20034, Fatal, Link 30 LTSSM Fault Up'").findings == ()


def test_the_table_holds_what_is_published() -> None:
    """256 numbers as of driver 595, and the twelve that drivers before 550 used otherwise; every row sourced."""
    assert len(sxid_table()) == 268
    assert {10004, 11004, 20034, 23017, 30006} <= {number for number, _ in sxid_table()}
    assert all(row.reason.endswith(".") and row.source for row in sxid_table().values())


def test_explain_knows_codes_in_any_spelling() -> None:
    """The forms of a code come from the table, by the severity word of a line, and by driver where that matters."""
    plain, fatal, *_ = explain("nvswitch.sxid.20034")
    assert explain("nvswitch.sxid.20034") == explain("sxid 20034")
    assert "LTSSM" in plain.meaning
    assert (fatal.form, fatal.severity, fatal.remedy) == ("Fatal", Severity.CRITICAL, Remedy.REBOOT_NODE)
    assert "drivers <550" in {form.form for form in explain("sxid 28001")}
    unknown = explain("nvswitch.sxid.31999")[0]
    assert ("not in healthd's table" in unknown.meaning, unknown.remedy) == (True, Remedy.WATCH)
    assert explain("gpu.xid.79") == ()
