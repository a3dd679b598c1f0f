"""How many kernel-log records per second one core gets through, with every XID among them found.

    python bench/kmsg_storm.py [records]

A storm of uninteresting lines, one XID in a thousand, is read from a growing file and from a FIFO in the record format
(1,000,000 records each) and, where there is one, from this machine's own /dev/kmsg, whose ring is read again and again:
that is the path with one read() per record. The reader looks for what every kernel check needs, and every kernel check
judges every batch. The last figures are storms of nothing but one line, judged by every kernel check.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from healthd.agent import kernel_needles
from healthd.check import discover
from healthd.config.schema import CheckConfig
from healthd.model import Finding
from healthd.node import KernelRecord
from healthd.sources.kmsg import KernelLog
from healthd.testing import FakeNode

BOOT = datetime(2026, 1, 1, tzinfo=UTC)
EVERY = 1000


CHECKS = {name: check for name, check in discover().items() if check.on == "kernel"}
NEEDLES = kernel_needles(CHECKS, {name: CheckConfig(settings=check.settings()) for name, check in CHECKS.items()})


def judge(records: Sequence[KernelRecord]) -> list[Finding]:
    """What all kernel checks find, as the daemon runs them: one after the other on the same batch."""
    node = FakeNode(kernel_records=records)
    return [finding for check in CHECKS.values() for finding in check.run(node, check.settings()).findings]


def storm(total: int) -> bytes:
    noise = "6,{0},{0},-;usb 1-1: new high-speed USB device number {0} using xhci_hcd"
    xid = "3,{0},{0},-;NVRM: Xid (PCI:0000:01:00): {0}, pid=7062, name=python, Something"
    return "".join((noise if number % EVERY else xid).format(number) + "\n" for number in range(total)).encode()


def follow(path: str, total: int | None) -> tuple[float, int, set[int]]:
    """Read until ``total`` records went by, or to the end: (seconds, records gone by, XIDs found)."""
    log = KernelLog(path, boot_id="b", boot_time=BOOT, needles=NEEDLES)
    found: set[int] = set()
    started = time.perf_counter()
    while True:
        batch = log.read_batch(1.0 if total else 0.0)
        found.update(f.evidence["xid"] for f in judge(batch.records) if "xid" in f.evidence)
        seen = batch.cursor.sequence + 1 if batch.cursor else 0
        if (total and seen >= total) or (not total and batch.caught_up):
            break
    elapsed = time.perf_counter() - started
    log.close()
    return elapsed, seen, found


def report(name: str, elapsed: float, records: int, note: str) -> None:
    print(f"{name:<28} {records / elapsed:>12,.0f} records/s   {note}")


def through_file(folder: Path, data: bytes, total: int) -> None:
    path = folder / "storm"
    path.write_bytes(data)
    elapsed, _, found = follow(str(path), total)
    report("growing file", elapsed, total, f"{len(found)} of {total // EVERY} XIDs found")


def through_fifo(folder: Path, data: bytes, total: int) -> None:
    path = folder / "fifo"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    elapsed, _, found = follow(str(path), total)
    writer.join()
    report("FIFO", elapsed, total, f"{len(found)} of {total // EVERY} XIDs found, writer in the same process")


def through_device() -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        print("/dev/kmsg                    not readable here")
        return
    elapsed = records = 0.0
    with Path("/dev/kmsg").open("rb", buffering=0) as ring:
        first = int(ring.read(8192).split(b",")[1])
    while elapsed < 1.0:
        took, seen, _ = follow("/dev/kmsg", None)
        elapsed, records = elapsed + took, records + seen - first
    report("/dev/kmsg", elapsed, int(records), "one read() per record, opening included")


STORMS = {
    "XID 95": "NVRM: Xid (PCI:0000:01:00): 95, pid=7062, name=python, Uncontained: LTC TAG (0x2, 0x1). RST: Yes",
    "SXid 20034": "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "I/O error": "I/O error, dev nvme1n1, sector 895222784 op 0x1:(WRITE) flags 0x0 phys_seg 1 prio class 0",
}


def judged(total: int) -> None:
    for name, text in STORMS.items():
        records = [KernelRecord(boot_id="b", sequence=0, time=BOOT, text=text)] * total
        started = time.perf_counter()
        findings = judge(records)
        report(f"all {name}", time.perf_counter() - started, total, f"{len(findings)} finding")


def main() -> None:
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    data = storm(total)
    with tempfile.TemporaryDirectory() as folder:
        through_file(Path(folder), data, total)
        through_fifo(Path(folder), data, total)
    through_device()
    judged(total)


if __name__ == "__main__":
    main()
