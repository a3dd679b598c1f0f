"""The output of nccl-tests, NCCL's log and gdrcopy_sanity, read strictly and without I/O.

A text in which anything expected is absent is unreadable: half an output is never a good result.

Sources: nccl-tests src/common.cu and src/util.cu at 01d6761 (v2.13), d2d40cc and 0fdb00a (2025): the table, "Out of
bounds values", "Avg bus bandwidth", "Test NCCL failure", "Test CUDA failure"; NCCL src/init.cc and src/plugin/net.cc
("NCCL version", "Using network", "Assigned NET plugin"); gdrcopy tests (28 tests, "Total: 28, Passed: 28, …").
"""

from __future__ import annotations

import math
import re

from msgspec import Struct

from healthd.core.errors import SourceUnreadable

# Compiled on their first use: only an active test needs them.
# size, count, type, redop, root; then time, algbw, busbw and #wrong, out of place and in place
_ROW = (
    r"(?m)^[ \t]*(\d{1,18})[ \t]+\d+[ \t]+\w+[ \t]+\w+[ \t]+-?\d+"
    r"((?:[ \t]+[\d.e+]+){3}[ \t]+\S+)((?:[ \t]+[\d.e+]+){3}[ \t]+\S+)"
)
_BOUNDS = r"(?m)^# Out of bounds values : (\d{1,18}) (OK|FAILED)[ \t\r]*$"
_AVERAGE = r"(?m)^# Avg bus bandwidth[ \t]+: (\S+)"
_TEST_FAILED = r"(?m)^.*Test (?:NCCL|CUDA) failure .*$"
_NETWORK = r"(?m)NCCL INFO (?:Using network (.+)|Assigned NET plugin (.+?) to comm)[ \t]*$"
_VERSION = r"NCCL version (\S+)"
_WARNING = r"(?m)NCCL WARN (.+)$"
_SANITY = r"Total: *(\d{1,9}), Passed: *(\d{1,9}), Failed: *(\d{1,9}), Waived: *(\d{1,9})"


class PerfOutput(Struct, frozen=True, kw_only=True):
    """One run of ``all_reduce_perf`` over one size. ``busbw_gb_s``: the mean of both columns, as it prints it."""

    busbw_gb_s: float
    wrong: int


class SanityOutput(Struct, frozen=True, kw_only=True):
    """The last line of ``gdrcopy_sanity``."""

    total: int
    failed: int


def parse_perf(text: str, size_bytes: int) -> PerfOutput:
    """The table of ``all_reduce_perf -b SIZE -e SIZE -c 1``. Raises SourceUnreadable for less than a whole one."""
    rows, bounds, average = re.findall(_ROW, text), re.search(_BOUNDS, text), re.search(_AVERAGE, text)
    if len(rows) != 1 or bounds is None or average is None:
        raise _torn(
            text, f"expected one row of {size_bytes} bytes, then '# Out of bounds values', '# Avg bus bandwidth'"
        )
    size, *columns = rows[0]
    counts = [_count(column.split()[3]) for column in columns]
    if int(size) != size_bytes or None in counts:
        raise _torn(text, f"expected {size_bytes} bytes with checked elements, found {size} bytes, #wrong {counts}")
    wrong, failed = sum(count or 0 for count in counts), int(bounds[1])
    if (wrong > 0) != (failed > 0) or (bounds[2] == "FAILED") != (failed > 0):
        raise _torn(text, f"the table has {wrong} wrong elements, and the end says {bounds[0]!r}")
    return PerfOutput(busbw_gb_s=_bandwidth(average[1], text), wrong=wrong)


def failure_of(stdout: str, stderr: str) -> str:
    """The error of NCCL or CUDA, in nccl-tests' words and NCCL's own; "" where neither reported one."""
    found = re.search(_TEST_FAILED, stdout) or re.search(_TEST_FAILED, stderr)
    return f"{found[0].strip()}{warning_of(stderr)}" if found else ""


def warning_of(log: str) -> str:
    """The first warning in NCCL's log, to append to an error, which alone rarely names more than a class of errors."""
    found = re.search(_WARNING, log)
    return f"; NCCL's log: {found[1].strip()}" if found else ""


def network_of(log: str) -> str:
    """The network that NCCL chose last, by its own name (``Libfabric``, ``AWS Libfabric``, ``Socket``); "" for none."""
    names = [(one or other).strip() for one, other in re.findall(_NETWORK, log)]
    return names[-1] if names else ""


def version_of(log: str) -> str:
    """``2.27.5+cuda12.9`` from NCCL's log; "" where it does not say."""
    found = re.search(_VERSION, log)
    return found[1] if found else ""


def parse_sanity(text: str) -> SanityOutput:
    """The summary of ``gdrcopy_sanity``. Raises SourceUnreadable where there is none, or its numbers do not add up."""
    lines = re.findall(_SANITY, text)
    if len(lines) != 1:
        raise _torn(text, "expected one line 'Total: n, Passed: n, Failed: n, Waived: n'")
    total, passed, failed, waived = (int(number) for number in lines[0])
    if total != passed + failed + waived or total == 0:
        raise _torn(text, f"{total} tests are not {passed} passed, {failed} failed and {waived} waived ones")
    return SanityOutput(total=total, failed=failed)


def _count(text: str) -> int | None:
    """``0`` or ``1.2e+07``; None for ``N/A``, which nccl-tests prints where it did not check."""
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return None


def _bandwidth(text: str, output: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise _torn(output, f"the average bus bandwidth is {text!r}, expected a number")
    return value


def _torn(text: str, why: str) -> SourceUnreadable:
    end = " ".join(text.split())[-300:] or "nothing"
    return SourceUnreadable(f"the output cannot be read: {why}; it ends with: {end}")
