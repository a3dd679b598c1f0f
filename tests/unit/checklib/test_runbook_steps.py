"""What an operator does about a code: looked up by code, by family, and by the remedy of its row."""

from __future__ import annotations

from healthd.checklib.runbooks import next_step, page_of, runbook_url, runbooks, steps
from healthd.core.model import Remedy

BASE = "https://docs.example.com/runbooks/"


def test_a_code_has_its_steps_and_the_first_is_the_next() -> None:
    """The next step of a code is the first of its row."""
    found = steps("efa.counters.keep_alive")
    assert len(found) == 5
    assert next_step("efa.counters.keep_alive") == found[0]
    assert "fi_info" in found[0]


def test_silence_of_a_device_is_no_matter_of_the_network() -> None:
    """The keep-alives of an EFA come from the device itself, a message to its driver: no security group stops them."""
    assert not any("security group" in step or "the fabric" in step for step in steps("efa.counters.keep_alive"))


def test_no_step_runs_a_tool_that_hangs_where_nvml_does() -> None:
    """NVIDIA's report asks NVML, but for its safe mode."""
    for code in ("gpu.xid.79", "gpu.xid.119", "gpu.xid.120", "gpu.gsp.silent", "gpu.gsp.crashed", "nvml.unresponsive"):
        assert not any("`nvidia-bug-report.sh`" in step for step in steps(code)), code


def test_an_xid_without_a_row_of_its_own_takes_the_steps_of_its_remedy() -> None:
    """XID 46 calls for a reset and has the steps of a reset; 79 has its own."""
    assert steps("gpu.xid.46") == runbooks()["gpu.xid.*", Remedy.RESET_GPU]
    assert steps("gpu.xid.79") == runbooks()["gpu.xid.79", None]


def test_the_text_of_a_line_decides_where_its_remedy_is_another() -> None:
    """An XID 64 without a spare row has the steps of a replacement; elsewhere a remedy changes nothing."""
    assert steps("gpu.xid.64", Remedy.REPLACE_NODE) == runbooks()["gpu.xid.64", Remedy.REPLACE_NODE]
    assert steps("gpu.xid.64", Remedy.RESET_GPU) == steps("gpu.xid.64")
    assert steps("gpu.xid.144", Remedy.RESET_GPU) == runbooks()["gpu.xid.*", Remedy.RESET_GPU]
    assert steps("gpu.xid.144") == runbooks()["gpu.xid.*", Remedy.WATCH]


def test_a_number_that_no_table_has_is_watched() -> None:
    """An XID that NVIDIA publishes tomorrow has a runbook today."""
    assert steps("gpu.xid.9999") == runbooks()["gpu.xid.*", Remedy.WATCH]
    assert steps("nvswitch.sxid.99999") == runbooks()["nvswitch.sxid.*", None]


def test_a_family_of_the_site_has_one_runbook() -> None:
    """The longest family counts, and a code of several words belongs to it."""
    assert steps("site.disk.slow") == runbooks()["site.*", None]
    assert steps("gpu.xid.repeated_across_jobs.31") == runbooks()["gpu.xid.repeated_across_jobs.*", None]


def test_a_code_without_a_runbook_has_no_step() -> None:
    """A misspelt code has neither steps nor a page."""
    assert (steps("gpu.xidd.79"), next_step("gpu.xidd.79"), runbook_url(BASE, "gpu.xidd.79")) == ((), "", "")


def test_the_page_is_below_the_base() -> None:
    """The code's own page, or that of its family; no base, no address."""
    assert runbook_url(BASE, "gpu.xid.46") == "https://docs.example.com/runbooks/gpu.xid.46.html"
    assert runbook_url(BASE.rstrip("/"), "efa.missing") == "https://docs.example.com/runbooks/efa.missing.html"
    assert runbook_url("", "efa.missing") == ""
    assert [page_of(code) for code in ("site.disk.slow", "site.*", "gpu.xid.9999", "nvswitch.sxid.20034")] == [
        "site",
        "site",
        "gpu.xid",
        "nvswitch.sxid",
    ]
