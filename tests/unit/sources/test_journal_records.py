"""What is made of journalctl's JSON: whose lines are believed, and what is a line at all. Fields as systemd 252 has."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.sources.command import abandoned
from healthd.sources.journal import JournalLog, WantedLines, kernel_record_of, record_of
from tests.support.limits import limit_s

ENTRY: dict[str, Any] = {
    "__CURSOR": "s=8014;i=3;b=aabe;m=32;t=66;x=51",
    "__REALTIME_TIMESTAMP": "1795239486878614",
    "__MONOTONIC_TIMESTAMP": "13606544281",
    "_BOOT_ID": "aabe447cfc0c402f8d1218bdebebc3cb",
    "_TRANSPORT": "journal",
    "_UID": "0",
    "_PID": "812",
    "_SYSTEMD_UNIT": "probe.service",
    "PRIORITY": "3",
    "MESSAGE": "probe failed",
}


def text_of(**fields: Any) -> str | None:
    record = record_of({**ENTRY, **fields}, ["trusted.service"])
    return None if record is None else f"{record.unit}: {record.text}"


def test_an_entry_of_root() -> None:
    """Its words, time, unit and level; the boot id as the kernel writes it."""
    record = record_of(ENTRY)
    assert record is not None
    assert (record.text, record.unit, record.level, record.source) == ("probe failed", "probe.service", 3, "journal")
    assert record.boot_id == "aabe447c-fc0c-402f-8d12-18bdebebc3cb"
    assert record.time.isoformat() == "2026-11-21T05:38:06.878614+00:00"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"_UID": "1000"}, None),
        ({"_UID": "990", "_SYSTEMD_UNIT": "trusted.service"}, "trusted.service: probe failed"),
        ({"_UID": "61184", "_SYSTEMD_UNIT": "trusted.service"}, "trusted.service: probe failed"),
        ({"_UID": "1000", "_SYSTEMD_UNIT": "trusted.service"}, None),
        ({"_UID": "65534", "_SYSTEMD_UNIT": "trusted.service"}, None),
        ({"_UID": None, "_SYSTEMD_UNIT": "trusted.service"}, None),
        ({"_UID": "1000", "UNIT": "trusted.service"}, None),
        ({"_UID": "1000", "_TRANSPORT": "driver"}, "probe.service: probe failed"),
        ({"_TRANSPORT": "kernel"}, None),
        ({"_PID": "1", "_SYSTEMD_UNIT": "init.scope", "UNIT": "slurmd.service"}, "slurmd.service: probe failed"),
        ({"UNIT": "slurmd.service"}, "probe.service: probe failed"),
        ({"MESSAGE": [104, 105, 255]}, "probe.service: hi\ufffd"),
        ({"MESSAGE": None}, "probe.service: "),
        ({"MESSAGE": [1000]}, None),
        ({"_BOOT_ID": "x"}, None),
        ({"__REALTIME_TIMESTAMP": "soon"}, None),
        ({"__REALTIME_TIMESTAMP": "9" * 40}, None),
        ({"PRIORITY": "high"}, None),
    ],
)
def test_whose_line_it_is(fields: dict[str, Any], message: str | None) -> None:
    """Root's, the journal's own, and those of named units; never a plain user's, who may set UNIT and not _UID, and
    whose job runs in the unit of slurmd on cgroup v1."""
    assert text_of(**fields) == message


KERNEL: dict[str, Any] = {
    **ENTRY,
    "_TRANSPORT": "kernel",
    "SYSLOG_FACILITY": "0",
    "_SOURCE_MONOTONIC_TIMESTAMP": "13606000000",
}


def test_a_kernel_line_has_the_kernels_own_time() -> None:
    """When it was said, not when the journal took it in, half a second later here; without that, the latter."""
    message, taken = (
        kernel_record_of(KERNEL),
        kernel_record_of({**KERNEL, "_SOURCE_MONOTONIC_TIMESTAMP": "13606544281"}),
    )
    assert message is not None
    assert taken is not None
    assert (taken.time - message.time).total_seconds() == pytest.approx(0.544281)
    assert (message.source, message.facility, message.sequence) == ("kernel", 0, 13606000000)


@pytest.mark.parametrize("fields", [{"SYSLOG_FACILITY": "1"}, {"_TRANSPORT": "syslog"}, {"_BOOT_ID": ""}])
def test_what_user_space_wrote_is_not_the_kernels(fields: dict[str, Any]) -> None:
    """A program's line in the kernel log has another facility; one that only claims it has another transport."""
    assert kernel_record_of({**KERNEL, **fields}) is None


def test_needles_are_looked_for_as_json_writes_them() -> None:
    """Quotes and control characters are escaped there, other letters are not; where a line begins is not seen."""
    assert WantedLines(needles=("^probe", 'said "no"', "grün\t")).in_json == (
        b"probe",
        b'said \\"no\\"',
        "grün\\t".encode(),
    )


@given(st.dictionaries(st.sampled_from(sorted(ENTRY)), st.none() | st.integers() | st.text() | st.lists(st.integers())))
def test_no_entry_is_fatal(fields: dict[str, Any]) -> None:
    """Whatever the fields hold, it is a record or none."""
    record = record_of(json.loads(json.dumps({**ENTRY, **fields})))
    assert record is None or isinstance(record.text, str)


class Undying(subprocess.Popen[bytes]):
    """A process in uninterruptible sleep, as far as its parent sees: no signal ends it."""

    def poll(self) -> None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "it would wait for ever"
        time.sleep(timeout)
        raise subprocess.TimeoutExpired(self.args, timeout)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("journalctl") is None, reason="needs journalctl")
def test_no_user_can_stop_the_follower_by_filling_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """What journalctl writes of its errors is read without a temporary file, for which there may be no room."""
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    log = JournalLog(WantedLines(needles=("probe failed",)), options=["--no-such-option"])
    until_s = time.monotonic() + limit_s(10.0)
    while "journalctl" not in log.problem() and time.monotonic() < until_s:
        log.read_batch(1.0)
    log.close()
    assert "unrecognized option '--no-such-option'" in log.problem()


@pytest.mark.process
def test_a_follower_that_does_not_die_is_left_alone() -> None:
    """The read returns, ``problem`` names the process, and it stays among the children that are still to be reaped."""
    child = Undying(["sleep", "60"], stdout=subprocess.PIPE, start_new_session=True)
    log = JournalLog(WantedLines(needles=("probe failed",)))
    log._child = child
    try:
        began = time.monotonic()
        log._ended(child)
        assert time.monotonic() - began < limit_s(3.0)
        assert log.problem() == (
            f"journalctl was killed, but process {child.pid} does not die: no output; healthd starts it again"
        )
        assert child in abandoned()
    finally:
        subprocess.Popen.wait(child)
        child.poll = lambda: child.returncode  # type: ignore[method-assign,assignment]
        assert child not in abandoned()
