"""How many lines per second ``healthd replay`` judges, in each form of a log, on one core.

    python -m bench.bench_replay [-n lines]

A log of a million lines in each form: noise of the kernel and the system, and one XID in a thousand lines (twelve
codes, eight GPUs), of four nodes where the form names hosts. In one more log every third line begins as one that some
check wants, and is harmless: what disks, file systems, Lustre and the NVIDIA driver say on healthy nodes. All of it is
measured, in CPU time: telling the form, reading, finding, judging with every kernel check, deciding. The storm is the
worst case: every line is an XID 95.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.measure import write_down
from healthd.config.schema.config import CheckConfig, Config
from healthd.core.check import discover
from healthd.replay.replay import Replayed, Trial, replay

EVERY = 1000
XIDS = (13, 31, 43, 45, 48, 63, 74, 79, 94, 95, 119, 154)
BEGIN = datetime(2026, 10, 1, tzinfo=UTC)
NOISE = (
    "usb 1-1: new high-speed USB device number {0} using xhci_hcd",
    'audit: type=1400 audit(1790812800.{0}): apparmor="ALLOWED" operation="open" profile="snap" pid={0}',
    "EFA Infiniband driver probed {0} descriptors in queue pair {0}",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{0}: link becomes ready",
)
HARMLESS = (
    "XFS (nvme{1}n1): Mounting V5 Filesystem 1f2d-{0}",
    "EXT4-fs (nvme{1}n1p1): mounted filesystem with ordered data mode. Quota mode: none. {0}",
    "nvme nvme{1}: {0}/0/0 default/read/poll queues",
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: {0} (0x{1}) returned",
    "Lustre: DEBUG MARKER: {0}",
    "pcieport 0000:00:1{1}.0: pciehp: Slot({0}): Card present",
)
LEAST_A_SECOND = 250_000


def text(number: int, *, storm: bool = False) -> str:
    """What the kernel said in line ``number``."""
    if storm or number % EVERY == 0:
        xid = 95 if storm else XIDS[number // EVERY % len(XIDS)]
        gpu = number // EVERY % 8
        return f"NVRM: Xid (PCI:0000:{gpu:02x}:00): {xid}, pid={number % 16 + 7000}, name=python, Ch 00000008"
    return NOISE[number % len(NOISE)].format(number)


def third(number: int) -> str:
    if number % 3 or number % EVERY == 0:
        return kmsg(number)
    words = HARMLESS[number // 3 % len(HARMLESS)].format(number, number % 4)
    return f"6,{number},{number * 2_000_000},-;{words}\n"


def at(number: int) -> datetime:
    """A month, however many lines."""
    return BEGIN + timedelta(seconds=number * 2)


def host(number: int) -> str:
    return f"ip-10-0-0-{number // EVERY % 4}"


def dmesg(number: int) -> str:
    return f"[{number * 2:>12}.123456] {text(number)}\n"


def dmesg_t(number: int) -> str:
    return f"[{at(number):%a %b %e %H:%M:%S %Y}] {text(number)}\n"


def syslog(number: int) -> str:
    tag = "kernel" if number % 2 == 0 else "systemd[1]"
    return f"{at(number):%b %e %H:%M:%S} {host(number)} {tag}: {text(number)}\n"


def iso(number: int) -> str:
    return f"{at(number).isoformat()} {host(number)} kernel: {text(number)}\n"


def kmsg(number: int) -> str:
    return f"6,{number},{number * 2_000_000},-;{text(number)}\n"


def storm(number: int) -> str:
    return f"3,{number},{number * 100},-;{text(number, storm=True)}\n"


def journal(number: int) -> dict[str, str]:
    return {
        "__CURSOR": f"s=0123456789abcdef0123456789abcdef;i={number:x};b=fedcba9876543210fedcba9876543210",
        "__REALTIME_TIMESTAMP": str(int(at(number).timestamp() * 1e6)),
        "__MONOTONIC_TIMESTAMP": str(number * 2_000_000),
        "_BOOT_ID": "fedcba9876543210fedcba9876543210",
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": "0",
        "SYSLOG_IDENTIFIER": "kernel",
        "PRIORITY": "6",
        "_MACHINE_ID": "0123456789abcdef0123456789abcdef",
        "_HOSTNAME": host(number),
        "MESSAGE": text(number),
    }


def export(number: int) -> str:
    return "".join(f"{name}={value}\n" for name, value in journal(number).items()) + "\n"


def json_line(number: int) -> str:
    return json.dumps(journal(number), separators=(",", ":")) + "\n"


FORMS: dict[str, tuple[Callable[[int], str], bool]] = {
    "kmsg": (kmsg, False),
    "kmsg_a_third_harmless": (third, False),
    "dmesg": (dmesg, False),
    "dmesg_gzipped": (dmesg, True),
    "dmesg_t": (dmesg_t, False),
    "syslog": (syslog, False),
    "syslog_iso": (iso, False),
    "journal_export": (export, False),
    "journal_json": (json_line, False),
}


def write(path: Path, lines: Iterator[str], *, zipped: bool) -> None:
    with gzip.open(path, "wt", compresslevel=6) if zipped else path.open("w") as out:
        out.writelines(lines)
    os.utime(path, (at(2_000_000).timestamp(),) * 2)


def measured(path: Path) -> tuple[float, Replayed]:
    """CPU seconds, and what came of it."""
    config = Config(checks={name: CheckConfig(settings=check.settings()) for name, check in discover().items()})
    started = time.process_time()
    done = replay([path], config, Trial(instance_type="p5.48xlarge"))
    return time.process_time() - started, done


def rate(folder: Path, form: Callable[[int], str], total: int, *, zipped: bool) -> tuple[int, int]:
    """(Lines a second, lines with a needle that were not found)."""
    path = folder / "log"
    write(path, (form(number) for number in range(total)), zipped=zipped)
    cpu_s, done = measured(path)
    (source,) = done.sources
    path.unlink()
    own = range(0, total, EVERY)
    expected = total if form is storm else len({*own, *range(0, total, 3)} if form is third else own)
    return round(source.lines / cpu_s), expected - source.kernel_lines + source.unread + total - source.lines


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=1_000_000, help="lines of each log")
    total = options.parse_args().n
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    figures: dict[str, object] = {"lines": total}
    missed, slowest = 0, sys.maxsize
    with tempfile.TemporaryDirectory(prefix="healthd-bench-") as folder:
        for name, (form, zipped) in FORMS.items():
            a_second, lost = rate(Path(folder), form, total, zipped=zipped)
            figures |= {f"{name}_lines_a_second": a_second, f"least_{name}_lines_a_second": LEAST_A_SECOND}
            missed, slowest = missed + lost, min(slowest, a_second)
        figures["all_xid_95_a_second"], lost = rate(Path(folder), storm, total, zipped=False)
    figures |= {"xids_missed": missed + lost, "aim_xids_missed": 0}
    write_down("replay", figures)
    return 0 if slowest >= LEAST_A_SECOND and not missed + lost else 1


if __name__ == "__main__":
    raise SystemExit(main())
