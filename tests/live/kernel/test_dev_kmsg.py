"""The real /dev/kmsg: what the kernel lets a user write, and what the follower makes of it.

Writes a handful of records that name this test; never fills the ring, which would destroy the machine's own log.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from healthd.checklib import xids
from healthd.core.check import discover
from healthd.core.node import KernelRecord
from healthd.sources.kmsg import Cursor, KernelLog, read_all
from healthd.testing import FakeNode
from tests.support.judgement import LUSTRE_IS_LOADED
from tests.support.kernel_objects import KMSG, write_kmsg
from tests.support.limits import limit_s

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
BOOT_TIME = datetime.now(UTC) - timedelta(seconds=float(Path("/proc/uptime").read_text().split()[0]))

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.root,
    pytest.mark.skipif(not os.access(KMSG, os.R_OK | os.W_OK), reason="needs a /dev/kmsg that can be read and written"),
]


@contextmanager
def following(*needles: str, trust: bool = False, cursor: Cursor | None = None) -> Iterator[KernelLog]:
    log = KernelLog(
        KMSG,
        boot_id=BOOT_ID,
        boot_time=BOOT_TIME,
        cursor=cursor,
        needles=tuple(needle.encode() for needle in needles),
        trust_user_kmsg=trust,
    )
    with closing(log):
        yield log


def drain(log: KernelLog) -> list[KernelRecord]:
    """All that is there now."""
    records: list[KernelRecord] = []
    while True:
        batch = log.read_batch(0.0)
        records += batch.records
        if batch.caught_up:
            return records


def test_boot_log_parses() -> None:
    """Every record of the real ring that the kernel itself wrote is whole, in order, and of this boot."""
    batch = read_all(KMSG, boot_id=BOOT_ID, boot_time=BOOT_TIME)
    assert batch.records
    assert all(record.facility == 0 and record.trusted for record in batch.records)
    sequences = [record.sequence for record in batch.records]
    assert sequences == sorted(set(sequences))
    assert all(
        BOOT_TIME - timedelta(minutes=1) < r.time < datetime.now(UTC) + timedelta(minutes=1) for r in batch.records
    )


def test_nothing_of_the_ring_is_malformed() -> None:
    """The parser accepts every record that the kernel holds, whoever wrote it."""
    with following(trust=True) as log:
        drain(log)
        assert log.state().malformed == 0
        assert log.state().gaps == 0


def test_user_record_is_dropped_by_default() -> None:
    """A user-space writer cannot forge a kernel record: it is dropped, counted, and the cursor passes it."""
    tag = f"healthd-test {uuid.uuid4()}"
    with following(tag) as log:
        drain(log)
        write_kmsg(f"NVRM: {tag}")
        batch = log.read_batch(0.5)
        assert batch.records == ()
        assert log.state().untrusted == 1


def test_user_record_is_admitted_and_labelled_for_drills() -> None:
    """With trust_user_kmsg the same record arrives at once, with its level and without trust."""
    tag = f"healthd-test {uuid.uuid4()}"
    with following(tag, trust=True) as log:
        drain(log)
        write_kmsg(f"NVRM: {tag} \\ ü")
        (record,) = log.read_batch(5.0).records
    assert record.text == f"NVRM: {tag} \\ ü"
    assert (record.facility, record.level, record.trusted) == (1, 3, False)


def test_restart_neither_misses_nor_repeats() -> None:
    """What is written while the reader is down is read once when it is back, and nothing twice."""
    tag = f"healthd-test {uuid.uuid4()}"
    with following(tag, trust=True) as log:
        drain(log)
        write_kmsg(f"{tag} one")
        first = log.read_batch(5.0)
    write_kmsg(f"{tag} two")
    with following(tag, trust=True, cursor=first.cursor) as log:
        second = drain(log)
        assert log.state().gaps == 0
    assert [record.text for record in (*first.records, *second)] == [f"{tag} one", f"{tag} two"]


def test_echoed_text_has_facility_zero_and_is_still_no_xid() -> None:
    """A user can have the kernel write his words in its own name; they do not stand where the driver's stand."""
    unshare, mount = shutil.which("unshare"), shutil.which("mount")
    if unshare is None or mount is None:
        pytest.skip("needs unshare and mount")
    tag = uuid.uuid4().hex[:8]
    option = f"NVRM: Xid (PCI:0000:01:00): 79: {tag}"
    with following(tag) as log:
        drain(log)
        command = [unshare, "-Urm", mount, "-t", "tmpfs", "-o", option, "none", "/mnt"]
        subprocess.run(command, check=False, capture_output=True, timeout=limit_s(30))
        records = log.read_batch(5.0).records
    if not records:
        pytest.skip("this kernel does not log unknown mount options, or forbids user namespaces")
    assert all(record.trusted for record in records)
    assert all(xids.parse_line(record.text) is None for record in records)


CRASH = "import ctypes, os; os.setuid(65534); ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0); ctypes.string_at(0)"


@pytest.mark.parametrize("name", ["Lustre: LBUG", "EDAC MC0: 1 UE ", "Oops: 0000 [#1]"])
def test_a_users_crash_is_no_fault_whatever_its_name(name: str) -> None:
    """The record of a segfault, as this kernel prints it, begins with the name that the program gave itself."""
    with following("]: segfault at 0 ip") as log:
        drain(log)
        subprocess.run([sys.executable, "-c", CRASH.format(name=name.encode())], check=False, capture_output=True)
        records = [record for record in drain(log) if record.text.startswith(name)]
    if not records:
        pytest.skip("this kernel prints no segfaults (debug.exception-trace), or printed too many of late")
    node = FakeNode(kernel_records=records, sys=LUSTRE_IS_LOADED)
    for check in discover().values():
        if check.on == "kernel":
            assert check.run(node, check.settings()).findings == ()
