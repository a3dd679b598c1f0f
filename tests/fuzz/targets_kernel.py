"""The kernel's own log as it arrives: /dev/kmsg, syslog(2), the drivers' sentences, and the checks that judge them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from healthd.checklib import xids
from healthd.checklib.loglines import line_rows
from healthd.core.check import discover
from healthd.core.node import KernelRecord
from healthd.sources.kmsg import KernelLog, parse_record
from healthd.sources.kmsg_records import KernelSyslog, any_of, sequence_of
from healthd.testing import FakeNode
from tests.fuzz.target import Target

BOOT = datetime(2026, 11, 1, tzinfo=UTC)
_RECORDED = Path(__file__).parents[1] / "checks"


def _lines(name: str) -> tuple[str, ...]:
    return tuple(filter(None, (_RECORDED / name).read_text(encoding="utf-8").splitlines()))


_ROWS = tuple(row.example for check in ("kernel.host", "kernel.lustre", "kernel.efa") for row in line_rows(check))
LINES = (*_lines("xid_lines.txt"), *_lines("sxid_lines.txt"), *_ROWS)
"""Real lines: each XID and SXid that was recorded, and the example of each row of the tables."""

_CHECKS = {name: check for name, check in discover().items() if check.on == "kernel" and name != "kernel.rules"}
NEEDLES = tuple(sorted({needle.encode() for check in _CHECKS.values() for needle in check.needles}))
_WANTED = any_of(NEEDLES)
assert _WANTED is not None

RECORDS = (
    *(f"6,{number},{1000 * number},-;{line}".encode() for number, line in enumerate(LINES)),
    *(b" SUBSYSTEM=pci", b" DEVICE=+pci:0000:53:00.0", b"12,5,6,-;user", b"6,7,8,c,caller=T1;x"),
)


def _kmsg(data: bytes) -> None:
    sequence_of(data)
    record = parse_record(data, boot_id="b", boot_time=BOOT)
    assert _WANTED is not None
    _WANTED.holds(data)
    if record is not None:
        record.text.encode()


def _followed(data: bytes) -> None:
    """A log file that ends so, as the follower reads it: twice, since a restart looks again."""
    file = os.memfd_create("kmsg")
    try:
        os.write(file, data)
        log = KernelLog(f"/proc/self/fd/{file}", boot_id="b", boot_time=BOOT, needles=NEEDLES)
        for _ in range(2):
            log.read_batch(0.0)
        log.close()
    finally:
        os.close(file)


def _syslog(data: bytes) -> None:
    source = KernelSyslog(ask=lambda action, buffer, length: 1 << 16)
    for record in source._records(data):
        parse_record(record, boot_id="b", boot_time=BOOT)


def _nvrm(data: bytes) -> None:
    line = data.decode("utf-8", "backslashreplace")
    message = xids.parse_line(line)
    xids.parse_sxid(line)
    if isinstance(message, xids.XidLine):
        xids.case_of(message)
        for read in (xids.caused_by, xids.link_registers, xids.nvlink5, xids.recovery_action):
            read(message.text)


def _judged(data: bytes) -> None:
    lines = data.decode("utf-8", "backslashreplace").split("\n")
    records = [
        KernelRecord(boot_id="b", sequence=number, time=BOOT, text=line, level=3) for number, line in enumerate(lines)
    ]
    node = FakeNode(kernel_records=tuple(records))
    for check in _CHECKS.values():
        for finding in check.run(node, check.settings()).findings:
            f"{finding.component} {finding.message}".encode()


_ENDLESS = tuple(
    each.encode()
    for each in (
        "Lustre: 1-a: ", "Lustre: 1:2:(a) ", "XFS (a): ", "nvme nvme1: I/O 1 ", "(a) ", "LNetError: ", "ASSERTION( ",
        "oom-kill:constraint=CONSTRAINT_MEMCG,", "task=,pid=1,uid=", "BUG: soft lockup - CPU#1 stuck for 1s! [", "[a] ",
        "NVRM: Xid (PCI:0000:53:00): 145, ", ", ", "pid=1, name=", " 0x1", "md/raid",
    )
)  # fmt: skip

_SYSLOG = tuple(f"<6>[  {number}.{number:06d}] {line}".encode() for number, line in enumerate(LINES))

TARGETS = (
    Target(name="kmsg", parse=_kmsg, seeds=RECORDS, units=(b"\\x0a", b"6,1,1,-;[a] ", *_ENDLESS), longest=1 << 13),
    Target(
        name="kmsg-file",
        parse=_followed,
        seeds=tuple(b"\n".join(RECORDS[at : at + 5]) for at in range(0, len(RECORDS), 5)),
        units=(b"6,1,1,-;NVRM: \n", b"NVRM: Xid", b"\n "),
    ),
    Target(
        name="syslog",
        parse=_syslog,
        refuses=(OSError,),
        seeds=tuple(b"\n".join(_SYSLOG[at : at + 4]) + b"\n" for at in range(0, len(_SYSLOG), 4)),
        units=(b"<6>[ 1.000000] x\n", b"<6>[ 1.000000] \\"),
    ),
    Target(name="nvrm", parse=_nvrm, seeds=tuple(map(str.encode, LINES)), units=_ENDLESS, longest=1 << 13),
    Target(name="kernel-checks", parse=_judged, seeds=tuple(map(str.encode, LINES)), units=_ENDLESS, longest=1 << 13),
)
