"""The real syslog(2): the same records as /dev/kmsg, with CAP_SYSLOG alone, and what it costs to look."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from healthd.sources.kmsg import KernelLog, read_all
from healthd.sources.kmsg_records import klogctl
from tests.live.kernel.test_dev_kmsg import BOOT_ID, BOOT_TIME
from tests.support.kernel_objects import KMSG, write_kmsg
from tests.support.limits import limit_s
from tests.support.running import ROOT

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.root,
    pytest.mark.skipif(not os.access(KMSG, os.R_OK | os.W_OK), reason="needs a /dev/kmsg that can be read and written"),
]
ONLY_SYSLOG = ("--inh-caps=-all,+syslog", "--bounding-set=-all,+syslog")
NONE = ("--inh-caps=-all", "--bounding-set=-all")
READ = """
from datetime import UTC, datetime
from healthd.sources.kmsg import read_all
print(len(read_all("syslog", boot_id="b", boot_time=datetime.now(UTC), trust_user_kmsg=True).records))
"""


def texts(path: str) -> list[tuple[int, str]]:
    """Level and words of every line of the ring, whoever wrote it."""
    batch = read_all(path, boot_id=BOOT_ID, boot_time=BOOT_TIME, trust_user_kmsg=True)
    return [(record.level, line) for record in batch.records for line in record.text.split("\n")]


def test_a_line_written_to_the_device_is_found_within_seconds() -> None:
    """It is labelled as a user's, and only let through where that is allowed; nothing is lost meanwhile."""
    tag = f"healthd-test {uuid.uuid4()}"
    log = KernelLog("syslog", boot_id=BOOT_ID, boot_time=BOOT_TIME, needles=(tag.encode(),), trust_user_kmsg=True)
    with closing(log):
        assert log.read_batch(0.0).records == ()
        write_kmsg(f"NVRM: {tag} \\ ü")
        began = time.monotonic()
        (record,) = log.read_batch(10.0).records
        took_s = time.monotonic() - began
        assert log.state().gaps == log.state().malformed == 0
    assert record.text == f"NVRM: {tag} \\ ü"
    assert (record.facility, record.level, record.trusted) == (1, 3, False)
    assert took_s < limit_s(1.0)


def test_a_restart_reads_on_from_its_cursor() -> None:
    """What was written while the reader was down is read once, and nothing twice."""
    tag = f"healthd-test {uuid.uuid4()}"
    of_this_boot = {"boot_id": BOOT_ID, "boot_time": BOOT_TIME}
    settings: dict[str, Any] = {**of_this_boot, "needles": (tag.encode(),), "trust_user_kmsg": True}
    write_kmsg(f"{tag} one")
    with closing(KernelLog("syslog", **settings)) as log:
        first = log.read_batch(5.0)
    write_kmsg(f"{tag} two")
    with closing(KernelLog("syslog", cursor=first.cursor, **settings)) as log:
        second = log.read_batch(5.0)
        assert log.state().gaps == 0
    assert [each.text for each in (*first.records, *second.records)] == [f"{tag} one", f"{tag} two"]


def test_it_shows_what_the_device_shows() -> None:
    """Every line that both hold, in the same order, with the same level. (syslog(2) begins later after `dmesg -C`.)"""
    by_syslog, by_device = texts("syslog"), texts(KMSG)
    assert by_syslog
    at = next(number for number, line in enumerate(by_device) if line == by_syslog[0])
    assert by_syslog[: len(by_device) - at] == by_device[at : at + len(by_syslog)]


def with_rights(rights: tuple[str, ...], *argv: str) -> subprocess.CompletedProcess[str]:
    """What Python says with no other capabilities than these."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv of util-linux")
    with open("/proc/sys/kernel/dmesg_restrict") as file:
        if rights == NONE and file.read().strip() == "0":
            pytest.skip("this kernel lets everybody read its log (kernel.dmesg_restrict = 0)")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    whole = [setpriv, *rights, sys.executable, *argv]
    return subprocess.run(whole, env=environ, capture_output=True, text=True, timeout=limit_s(60), check=False, cwd="/")


@pytest.mark.parametrize(("rights", "may"), [(ONLY_SYSLOG, True), (NONE, False)], ids=["cap_syslog", "none"])
def test_the_doctor_says_that_the_capability_is_missing(rights: tuple[str, ...], may: bool, tmp_path: Path) -> None:
    """In a pod of the profile `restricted` the first thing to go wrong: it is missing, and the fix names it."""
    (tmp_path / "c.toml").write_text('[sources]\nkmsg = "syslog"\n[orchestrator]\nkind = "local"\n')
    done = with_rights(rights, "-m", "healthd", "doctor", "--json", "--config", str(tmp_path / "c.toml"))
    (line,) = (each for each in json.loads(done.stdout)["lines"] if each["about"] == "kernel log")
    assert line["status"] == ("ok" if may else "missing")
    assert may or "CAP_SYSLOG" in line["fix"]


@pytest.mark.parametrize(("rights", "may"), [(ONLY_SYSLOG, True), (NONE, False)], ids=["cap_syslog", "none"])
def test_cap_syslog_is_enough_and_needed(rights: tuple[str, ...], may: bool) -> None:
    """As the profile `restricted` of the chart has it: no other capability. Without it the error names it."""
    done = with_rights(rights, "-c", READ)
    if may:
        assert int(done.stdout) > 0, done.stderr
    else:
        assert done.returncode != 0
        assert "CAP_SYSLOG" in done.stderr


def test_looking_costs_little() -> None:
    """What a quiet second costs: one count of what is unread, a small part of the second."""
    log = KernelLog("syslog", boot_id=BOOT_ID, boot_time=BOOT_TIME, needles=(b"no such line",))
    with closing(log):
        log.read_batch(0.0)
        began_s = time.process_time()
        until_s = time.monotonic() + 4.0
        while time.monotonic() < until_s:
            log.read_batch(1.0)
        spent_s = time.process_time() - began_s
    sys.stdout.write(f"\n{spent_s / 4 * 1e3:.2f} ms of CPU a second, ring of {klogctl(10, None, 0)} bytes\n")
    assert spent_s / 4 < 0.02
