"""What nccl-tests, NCCL and gdrcopy_sanity print. The texts are constructed in the form of their sources."""

from __future__ import annotations

import pytest

from healthd.core.errors import SourceUnreadable
from healthd.sources.nccl_text import (
    PerfOutput,
    SanityOutput,
    failure_of,
    network_of,
    parse_perf,
    parse_sanity,
    version_of,
    warning_of,
)

SIZE = 17_179_869_184
HEAD = """\
# nThread 1 nGpus 8 minBytes 17179869184 maxBytes 17179869184 step: 1048576(bytes) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  12345 on      ip-10 device  0 [0x53] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
COLUMNS = ("    62870  273.26  478.21      0", "    62880  273.22  478.13      0")
ROW = f" 17179869184    4294967296     float     sum      -1{''.join(COLUMNS)}\n"
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 478.17 \n#\n"
WHOLE = f"{HEAD}{ROW}{END}"


def test_a_whole_output() -> None:
    """Size, average bandwidth and wrong elements come from the places that nccl-tests has for them."""
    assert parse_perf(WHOLE, SIZE) == PerfOutput(busbw_gb_s=478.17, wrong=0)


def test_a_newer_output() -> None:
    """Newer versions print large times with an exponent, counts as %6g, and lines of their own before and after."""
    row = ROW.replace("62870", "6.2e+04").replace("62880", "6.2e+04")
    end = END.replace("#\n", "# \n# Collective test concluded: all_reduce_perf\n#\n")
    text = f"# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n{HEAD}{row}{end}"
    assert parse_perf(text, SIZE).busbw_gb_s == 478.17


def test_wrong_elements() -> None:
    """The wrong elements of both columns add up, and the end agrees that there are some."""
    row = ROW.replace("478.21      0", "478.21      7").replace("478.13      0", "478.13  2e+06")
    assert parse_perf(f"{HEAD}{row}{END.replace('0 OK', '2 FAILED')}", SIZE).wrong == 2_000_007


@pytest.mark.parametrize("cut", range(1, len(WHOLE) - 8, 7))
def test_half_an_output_is_never_good(cut: int) -> None:
    """Wherever the text breaks off before the average, it is unreadable."""
    with pytest.raises(SourceUnreadable, match="cannot be read"):
        parse_perf(WHOLE[:cut].rsplit("# Avg bus bandwidth", 1)[0], SIZE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ROW, ROW + ROW),
        (ROW, ""),
        ("478.21      0", "478.21    N/A"),
        ("0 OK", "1 FAILED"),
        ("0 OK", "0 FAILED"),
        ("478.21      0", "478.21      5"),
        (" 17179869184    4", "  8589934592    2"),
        ("478.17", "nan"),
        ("478.17", "-1"),
        ("478.17", "fast"),
    ],
)
def test_an_output_that_contradicts_itself_is_unreadable(old: str, new: str) -> None:
    """Two rows, no row, elements that were not checked, another size, or an end that the table does not bear out."""
    with pytest.raises(SourceUnreadable):
        parse_perf(WHOLE.replace(old, new, 1), SIZE)


@pytest.mark.parametrize(
    ("log", "network"),
    [
        ("host:1:2 [0] NCCL INFO Using network AWS Libfabric\n", "AWS Libfabric"),
        ("host:1:2 [0] NCCL INFO Assigned NET plugin Libfabric to comm\n", "Libfabric"),
        ("host:1:2 [0] NCCL INFO Using network Libfabric\nhost:1:9 [1] NCCL INFO Using network Socket\n", "Socket"),
        ("host:1:2 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so\n", ""),
        ("", ""),
    ],
)
def test_the_network_is_the_one_that_nccl_names(log: str, network: str) -> None:
    """Old and new wording; where the ranks differ, the last; nothing where NCCL says nothing."""
    assert network_of(log) == network


def test_versions_warnings_and_failures() -> None:
    """The version, the first warning, and nccl-tests' line of failure; nothing where there is none."""
    log = (
        "NCCL version 2.27.5+cuda12.9\nhost:1:2 [0] misc/socket.cc:9 NCCL WARN one\nhost:1:2 [0] x.cc:1 NCCL WARN two\n"
    )
    assert version_of(log) == "2.27.5+cuda12.9"
    assert warning_of(log) == "; NCCL's log: one"
    assert failure_of("host: Test CUDA failure common.cu:892 'out of memory'\n", log).endswith(
        "memory'; NCCL's log: one"
    )
    assert (version_of(""), warning_of(""), failure_of(WHOLE, log)) == ("", "", "")


def test_the_summary_of_gdrcopy_sanity() -> None:
    """Its one line of numbers, among whatever else is printed."""
    text = "&&&& PASSED data_validation\nTotal: 28, Passed: 26, Failed: 1, Waived: 1\nList of failed tests:\n"
    assert parse_sanity(text) == SanityOutput(total=28, failed=1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Total: 28, Passed: 28, Failed: 0",
        "Total: 28, Passed: 27, Failed: 0, Waived: 0",
        "Total: 0, Passed: 0, Failed: 0, Waived: 0",
        "Total: 1, Passed: 1, Failed: 0, Waived: 0\nTotal: 1, Passed: 1, Failed: 0, Waived: 0",
    ],
)
def test_a_summary_that_does_not_add_up_is_unreadable(text: str) -> None:
    """No summary, half of one, one that lost a test, one without tests, or two."""
    with pytest.raises(SourceUnreadable):
        parse_sanity(text)
