"""Logs that others wrote down: the journal, and every form of file that `healthd replay` reads."""

from __future__ import annotations

import json
import struct
from datetime import datetime

from healthd.sources.journal import WantedLines, kernel_record_of, record_of
from healthd.sources.journal import _batch as journal_batch
from healthd.sources.journal import _parsed as journal_line
from healthd.sources.pastlines import FORMATS, PLAIN, Dating
from healthd.sources.pastlogs import open_log
from tests.fuzz.target import Target, memory_file
from tests.fuzz.targets_kernel import BOOT, LINES, NEEDLES, RECORDS

_FIELDS = {
    "__CURSOR": "s=1;i=2",
    "__REALTIME_TIMESTAMP": "1700000000000000",
    "__MONOTONIC_TIMESTAMP": "17",
    "_BOOT_ID": "0" * 32,
    "_TRANSPORT": "kernel",
    "SYSLOG_FACILITY": "0",
    "PRIORITY": "3",
    "_UID": "0",
}
JOURNAL = (
    *(json.dumps({**_FIELDS, "MESSAGE": line}).encode() for line in LINES[::3]),
    json.dumps({**_FIELDS, "MESSAGE": [78, 86, 300]}).encode(),
    json.dumps({**_FIELDS, "_TRANSPORT": "stdout", "_SYSTEMD_UNIT": "slurmd.service", "MESSAGE": "slurmd: x"}).encode(),
    b'{"MESSAGE":null}',
)
_WANTED = WantedLines(needles=("^NVRM: ", "LBUG", "slurmd"), units=frozenset({"slurmd.service"}))
_EXPORT = (
    b"__CURSOR=a\n__REALTIME_TIMESTAMP=1700000000000000\nMESSAGE\n"
    + struct.pack("<Q", 5)
    + b"NVRM:\n_TRANSPORT=kernel\n_HOSTNAME=h\n_BOOT_ID=0\n"
)
_HEADS = (
    "Oct 11 22:14:15 host kernel: [ 12.345678] {}",
    "2026-10-11T22:14:15.123456+00:00 host kernel: {}",
    "[   12.345678] {}",
    "[Sun Oct 11 22:14:15 2026] {}",
    "kern  :warn  : [   12.345678] {}",
    "Sun 2026-10-11 22:14:15 UTC host kernel: {}",
    "2026-10-11T22:14:15,123456+00:00 {}",
)
PAST = (
    *(head.format(line).encode() for head in _HEADS for line in LINES[::9]),
    *RECORDS[::9],
    *JOURNAL[::9],
    _EXPORT,
)


def _journal(data: bytes) -> None:
    journal_batch(data.split(b"\n"), _WANTED)
    fields = journal_line(data)
    for record in (kernel_record_of(fields), record_of(fields, {"x.service"})):
        if record is not None:
            record.text.encode()


def _past_line(data: bytes) -> None:
    for form in (*FORMATS, PLAIN):
        dating = Dating(modified=BOOT, first=form.first_stamp(data), last=form.last_stamp(data))
        tuple(form.dated(dating))
        line = form.parse(data, dating)
        if line is not None:
            assert isinstance(line.time, datetime | None)
            f"{line.host} {line.text}".encode()


def _past_file(data: bytes) -> None:
    memory_file().write_bytes(data)
    for line in open_log(memory_file()).read(NEEDLES):
        line.text.encode()


TARGETS = (
    Target(
        name="journal",
        parse=_journal,
        seeds=JOURNAL,
        units=(b'{"MESSAGE":"', b'{"a":', b"NVRM: \n", b'{"MESSAGE":[1,2]}\n'),
        json=True,
    ),
    Target(name="past-lines", parse=_past_line, seeds=PAST, units=(b"<1>", b"a : b : ", b"[ 1.0] "), longest=1 << 14),
    Target(
        name="past-files",
        parse=_past_file,
        seeds=(*(b"\n".join(PAST[at : at + 6]) + b"\n" for at in range(0, len(PAST), 3)), b"\x1f\x8b\x08" + bytes(5)),
        units=(
            b"\nOct 11 22:14:15 h kernel: NVRM: Xid (PCI:0000:53:00): 79, x",
            b"\n[1.0] NVRM: Xid",
            b'\n{"MESSAGE":"NVRM: ',
            b"__REALTIME_TIMESTAMP=1\nMESSAGE=NVRM: \n",
        ),
    ),
)
