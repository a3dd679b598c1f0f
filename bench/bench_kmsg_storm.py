"""How many kernel-log records a second one core gets through, in how much memory, with every XID among them found.

A storm of uninteresting lines, one XID in a thousand, written by another process into a FIFO: five million records,
unless told otherwise. What counts is the CPU time of the process that reads; its PSS is looked at all the while. A
tenth of that goes through a growing file, and this machine's own /dev/kmsg, where there is one, is read whole again and
again, opening included: that is the path with one read() per record. The reader looks for what every kernel check
needs, and every kernel check judges every batch. The last figures are storms of nothing but one line, judged by every
kernel check.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from bench.measure import pss_mb, write_down
from healthd.agent.agent import kernel_needles
from healthd.config.schema.config import CheckConfig
from healthd.core.check import discover
from healthd.core.model import Finding
from healthd.core.node import KernelRecord
from healthd.sources.kmsg import KernelLog
from healthd.testing import FakeNode

BOOT = datetime(2026, 1, 1, tzinfo=UTC)
EVERY, CHUNK = 1000, 100_000
LEAST_A_SECOND, AIM_GROWTH_MB = 250_000, 2.0
NOISE = "6,{0},{0},-;usb 1-1: new high-speed USB device number {0} using xhci_hcd\n"
XID = "3,{0},{0},-;NVRM: Xid (PCI:0000:01:00): {0}, pid=7062, name=python, Something\n"
CHECKS = {name: check for name, check in discover().items() if check.on == "kernel"}
NEEDLES = kernel_needles(CHECKS, {name: CheckConfig(settings=check.settings()) for name, check in CHECKS.items()})
STORMS = {
    "xid_95": "NVRM: Xid (PCI:0000:01:00): 95, pid=7062, name=python, Uncontained: LTC TAG (0x2, 0x1). RST: Yes",
    "sxid_20034": "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "io_error": "I/O error, dev nvme1n1, sector 895222784 op 0x1:(WRITE) flags 0x0 phys_seg 1 prio class 0",
}


class Storm(Struct, frozen=True, kw_only=True):
    """What one storm came to. ``growth_mb``: the most that PSS was above what it was after the first chunk."""

    records: int
    cpu_s: float
    xids: frozenset[int]
    growth_mb: float

    @property
    def a_second(self) -> int:
        """Records per second of CPU time."""
        return round(self.records / self.cpu_s)


def main() -> int:
    """Measure and write down. Exit 1 where an aim is missed or an XID was passed over."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=50, help=f"chunks of {CHUNK} records")
    options.add_argument("--write", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.write:
        return write(given.write, given.n)
    with tempfile.TemporaryDirectory(prefix="healthd-bench-") as folder:
        fifo = through(Path(folder) / "fifo", given.n, fifo=True)
        file = through(Path(folder) / "file", max(1, given.n // 10), fifo=False)
    figures: dict[str, object] = {
        "records": fifo.records,
        "records_a_second": fifo.a_second,
        "least_records_a_second": LEAST_A_SECOND,
        "xids": fifo.records // EVERY,
        "xids_missed": fifo.records // EVERY - len(fifo.xids),
        "aim_xids_missed": 0,
        "pss_growth_mb": round(fifo.growth_mb, 2),
        "aim_pss_growth_mb": AIM_GROWTH_MB,
        "file_records_a_second": file.a_second,
        **device_figures(),
        **{f"all_{name}_a_second": judged(text) for name, text in STORMS.items()},
    }
    write_down("kmsg_storm", figures)
    found_all = len(fifo.xids) == fifo.records // EVERY and len(file.xids) == file.records // EVERY
    return 0 if found_all and fifo.a_second >= LEAST_A_SECOND and fifo.growth_mb <= AIM_GROWTH_MB else 1


def write(path: str, chunks: int) -> int:
    """The other process: the storm, chunk by chunk."""
    with open(path, "wb", buffering=0) as out:
        for data in storm(chunks):
            written = 0
            while written < len(data):
                written += out.write(data[written:]) or 0
    return 0


def storm(chunks: int) -> Iterator[bytes]:
    """The records, numbered through; an XID's number is that of its record, so each is another."""
    for first in range(0, chunks * CHUNK, CHUNK):
        numbers = range(first, first + CHUNK)
        yield "".join((NOISE if number % EVERY else XID).format(number) for number in numbers).encode()


def through(path: Path, chunks: int, *, fifo: bool) -> Storm:
    """One storm by way of a FIFO, whose writer waits for us, or of a file that is there already."""
    if fifo:
        os.mkfifo(path)
    writer = subprocess.Popen([sys.executable, "-m", "bench.bench_kmsg_storm", "-n", str(chunks), "--write", str(path)])
    if not fifo:
        writer.wait()
    try:
        return follow(str(path), chunks * CHUNK)
    finally:
        writer.kill() if writer.poll() is None and not fifo else writer.wait()


def follow(path: str, total: int | None) -> Storm:
    """Read until ``total`` records went by, or to the end, and judge each batch by all kernel checks."""
    log = KernelLog(path, boot_id="b", boot_time=BOOT, needles=NEEDLES)
    found: set[int] = set()
    started, base_mb, most_mb, looked_at = time.process_time(), 0.0, 0.0, 0
    while True:
        batch = log.read_batch(1.0 if total else 0.0)
        found.update(finding.evidence["xid"] for finding in judge(batch.records) if "xid" in finding.evidence)
        seen = batch.cursor.sequence + 1 if batch.cursor else 0
        if total and seen - looked_at >= CHUNK:
            looked_at, now_mb = seen, pss_mb(os.getpid())
            base_mb, most_mb = base_mb or now_mb, max(most_mb, now_mb)
        if (total and seen >= total) or (not total and batch.caught_up):
            break
    cpu_s = time.process_time() - started
    log.close()
    return Storm(records=seen, cpu_s=cpu_s, xids=frozenset(found), growth_mb=most_mb - base_mb)


def judge(records: Sequence[KernelRecord]) -> list[Finding]:
    """What all kernel checks find, as the daemon runs them: one after the other on the same batch."""
    node = FakeNode(kernel_records=records)
    return [finding for check in CHECKS.values() for finding in check.run(node, check.settings()).findings]


def device_figures() -> dict[str, object]:
    """This machine's ring, read and judged whole, opening included; nothing where it cannot be read."""
    if not os.access("/dev/kmsg", os.R_OK):
        return {}
    with Path("/dev/kmsg").open("rb", buffering=0) as ring:
        first = int(ring.read(8192).split(b",")[1])
    rounds = [follow("/dev/kmsg", None) for _ in range(50)]
    median_ms = statistics.median(each.cpu_s for each in rounds) * 1000
    return {"dev_kmsg_records": rounds[-1].records - first, "dev_kmsg_whole_ms": round(median_ms, 2)}


def judged(text: str) -> int:
    """Records per second of CPU time where every one is worth a look."""
    records = [KernelRecord(boot_id="b", sequence=0, time=BOOT, text=text)] * (5 * CHUNK)
    started = time.process_time()
    findings = judge(records)
    if len(findings) != 1:
        raise SystemExit(f"a storm of one line gave {len(findings)} findings: {text}")
    return round(len(records) / (time.process_time() - started))


if __name__ == "__main__":
    sys.exit(main())
