"""The forms in which kernel lines are kept: each is known by its content, dated, and read."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healthd.checks.kernel_xid import KernelXidSettings, kernel_xid
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.core.node import KernelRecord
from healthd.sources import pastlogs
from healthd.sources.pastlines import LogLine
from healthd.sources.pastlogs import PastLog, open_log
from healthd.testing import FakeNode

NEEDLES = (b"^NVRM: ", b" in libnccl.so", b"^Linux version ")
XID = "NVRM: Xid (PCI:0000:05:00): 95, pid=7062, name=python, Uncontained: LTC TAG (0x2, 0x0)"
NOISE = "usb 1-1: new high-speed USB device number 4 using xhci_hcd"
CRASH = "python[712]: segfault at 8 ip 00007f0a sp 00007ffc error 4 in libnccl.so.2[7f0a+1000]"
WRITTEN = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
AT = datetime(2026, 11, 21, 5, 18, 14, tzinfo=UTC)


def kept(folder: Path, text: str | bytes, name: str = "node-7.log", *, written: datetime = WRITTEN) -> PastLog:
    """A file with this content and date, opened."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(path, (written.timestamp(),) * 2)
    return open_log(path)


def read(log: PastLog) -> list[LogLine]:
    return list(log.read(NEEDLES))


def journal(message: object = XID, **fields: object) -> dict[str, object]:
    stamp = str(int(AT.timestamp() * 1e6))
    known = {"__CURSOR": "s=1", "__REALTIME_TIMESTAMP": stamp, "_TRANSPORT": "kernel", "_HOSTNAME": "n1"}
    return {**known, "_BOOT_ID": "b1", "SYSLOG_FACILITY": "0", "MESSAGE": message, **fields}


def exported(*records: dict[str, object]) -> str:
    return "".join("".join(f"{name}={value}\n" for name, value in record.items()) + "\n" for record in records)


FORMS = {
    "/dev/kmsg records": (f"6,1,1000000,-;{NOISE}\n SUBSYSTEM=usb\n3,2,2500000,-;{XID}\n", ""),
    "dmesg": (f"[    1.000000] {NOISE}\n[    2.500000] {XID}\n", ""),
    "dmesg -x": (f"kern  :info  : [    1.000000] {NOISE}\nkern  :err   : [    2.500000] {XID}\n", ""),
    "dmesg -r": (f"<6>[    1.000000] {NOISE}\n<3>[    2.500000] {XID}\n", ""),
    "dmesg with the caller": (f"[    1.000000][    T1] {NOISE}\n[    2.500000][ T1946] {XID}\n", ""),
    "short-monotonic": (f"[    1.000000] n1 kernel: {NOISE}\n[    2.500000] n1 kernel: {XID}\n", "n1"),
    "dmesg -T": (f"[Sat Nov 21 05:18:13 2026] {NOISE}\n[Sat Nov 21 05:18:14 2026] {XID}\n", ""),
    "iso": (f"2026-11-21T05:18:13,5+00:00 {NOISE}\n2026-11-21T06:18:14,000000+01:00 {XID}\n", ""),
    "syslog": (f"Nov 21 05:18:13 n1 systemd[1]: Started.\nNov 21 05:18:14 n1 kernel: [ 12.5] {XID}\n", "n1"),
    "syslog with priority": (f"<6>Nov 21 05:18:13 n1 kernel: {NOISE}\n<3>Nov 21 05:18:14 n1 kernel: {XID}\n", "n1"),
    "short-precise": (f"Nov 21 05:18:13.1 n1 kernel: {NOISE}\nNov 21 05:18:14.000000 n1 kernel: {XID}\n", "n1"),
    "rsyslog": (
        f"2026-11-21T05:18:13.5+00:00 n1 cron[3]: x\n2026-11-21T05:18:14.000000+00:00 n1 kernel: {XID}\n",
        "n1",
    ),
    "short-iso": (f"2026-11-21T05:18:13+0000 n1 kernel: {NOISE}\n2026-11-21T07:18:14+0200 n1 kernel: {XID}\n", "n1"),
    "RFC 5424": (f"<6>1 2026-11-21T05:18:14Z n1 kernel - - - {XID}\n", "n1"),
    "short-full": (f"Sat 2026-11-21 05:18:13 UTC n1 kernel: a\nSat 2026-11-21 05:18:14 UTC n1 kernel: {XID}\n", "n1"),
    "export": (exported(journal(NOISE), journal()), "n1"),
    "json": ("".join(json.dumps(journal(text), separators=(",", ":")) + "\n" for text in (NOISE, XID)), "n1"),
    "json of old": ("".join(json.dumps(journal(text), separators=(", ", " : ")) + "\n" for text in (NOISE, XID)), "n1"),
}
FROM_BOOT = ("/dev/kmsg records", "dmesg", "dmesg -x", "dmesg -r", "dmesg with the caller", "short-monotonic")


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_known_and_read(tmp_path: Path, name: str, zipped: bool) -> None:
    """The line is found with its time, its words and its host; nothing is unread; other lines are passed over."""
    text, host = FORMS[name]
    log = kept(tmp_path, gzip.compress(text.encode()) if zipped else text)
    (line,) = read(log)
    assert line.text.endswith(XID)
    assert line.time == (WRITTEN if name in FROM_BOOT else AT)
    assert line.host == (host or "node-7")
    assert line.trusted
    assert (log.unread, log.kernel_lines) == (0, 1)
    assert log.lines == len(text.split("\n\n" if name == "export" else "\n")) - 1


@pytest.mark.parametrize("name", FORMS)
def test_a_crash_in_the_middle_of_a_line_is_found(tmp_path: Path, name: str) -> None:
    """A needle that may stand anywhere finds its line in every form."""
    text, _ = FORMS[name]
    (line,) = read(kept(tmp_path, text.replace(XID, CRASH)))
    assert line.text.endswith(CRASH)


@pytest.mark.parametrize(
    "text",
    [
        f"11,2,2500000,-;{XID}\n",
        f"[    1.000000] {NOISE}\nuser  :err   : [    2.500000] {XID}\n",
        f"<11>[    2.500000] {XID}\n",
        f"Nov 21 05:18:14 n1 python[7]: {XID}\n",
        f"2026-11-21T05:18:14+00:00 n1 python: {XID}\n",
        exported(journal(_TRANSPORT="syslog")),
        json.dumps(journal(_TRANSPORT="stdout")) + "\n",
    ],
)
def test_what_the_kernel_did_not_write_does_not_count(tmp_path: Path, text: str) -> None:
    """A program that prints the words of an XID is no GPU fault; the line is read all the same."""
    log = kept(tmp_path, text)
    assert [line for line in read(log) if line.trusted] == []
    assert log.unread == 0


def test_a_user_may_write_to_kmsg_with_facility_kern_only_by_the_journals_word(tmp_path: Path) -> None:
    """A journal entry with another facility than the kernel's is not trusted."""
    (line,) = read(kept(tmp_path, exported(journal(SYSLOG_FACILITY="1"))))
    assert not line.trusted


def test_binary_fields_of_an_export_are_read_by_their_length(tmp_path: Path) -> None:
    """A message with a control character comes with eight bytes of length, and may hold newlines."""
    message = (XID + "\x01\nmore").encode()
    head = exported(journal()).rstrip("\n").rpartition("\nMESSAGE=")[0].encode()
    record = head + b"\nMESSAGE\n" + len(message).to_bytes(8, "little") + message + b"\n_PID=7\n\n"
    (line,) = read(kept(tmp_path, record))
    assert line.text == message.decode()
    cut = head + b"\nMESSAGE\n" + (9999).to_bytes(8, "little") + message + b"\n\n"
    log = kept(tmp_path, cut)
    assert (read(log), log.unread) == ([], 1)


def test_binary_messages_of_a_json_journal_are_lists_of_numbers(tmp_path: Path) -> None:
    """journalctl writes what is no UTF-8 as numbers; what is none of either could not be read."""
    texts = [json.dumps(journal(value)) for value in ([*XID.encode(), 255], [1, 999], None)]
    log = kept(tmp_path, "\n".join(texts) + "\n")
    (line,) = read(log)
    assert line.text == XID + "\\xff"
    assert log.unread == 1


@pytest.mark.parametrize(
    "record",
    [
        journal(__REALTIME_TIMESTAMP="soon"),
        journal(__REALTIME_TIMESTAMP=str(10**30)),
        {name: value for name, value in journal().items() if name != "__REALTIME_TIMESTAMP"},
    ],
)
def test_a_journal_entry_without_a_time_could_not_be_read(tmp_path: Path, record: dict[str, object]) -> None:
    """Such an entry is counted, and the others are read."""
    log = kept(tmp_path, "".join(json.dumps(each) + "\n" for each in (journal(), record)))
    assert (len(read(log)), log.unread) == (1, 1)


def test_lines_of_another_form_are_counted(tmp_path: Path) -> None:
    """Half a line, a garbled one, and a last line without its end: what could not be read is told, the rest is read."""
    log = kept(tmp_path, f"[    1.000000] {NOISE}\n{XID}\n\x01\x02\n[    2.500000] {XID}\n[    3.0] half")
    assert len(read(log)) == 1
    assert (log.lines, log.unread) == (5, 2)


@pytest.mark.parametrize(
    "text",
    [
        f"[Sat Nov 31 05:18:14 2026] {XID}\n",
        f"[Sat Xyz 21 05:18:14 2026] {XID}\n",
        f"2026-13-21T05:18:14,5+00:00 {XID}\n",
        f"Feb 30 05:18:14 n1 kernel: {XID}\n",
        f"Xyz 30 05:18:14 n1 kernel: {XID}\n",
        f"2026-11-21T25:18:14+00:00 n1 kernel: {XID}\n",
        f"Sat 2026-11-31 05:18:14 UTC n1 kernel: {XID}\n",
        f"3,2,999999999999999999,-;{XID}\n",
        f"0001-01-01T00:00:00+14:00 n1 kernel: {XID}\n",
        f"0001-01-01T00:00:00+00:00 n1 kernel: {XID}\n",
        f"9999-12-31T23:59:59+00:00 n1 kernel: {XID}\n",
    ],
)
def test_a_time_that_cannot_be_is_unread(tmp_path: Path, text: str) -> None:
    """The 30th of February is counted as a line that could not be read, and stops nothing."""
    log = kept(tmp_path, text)
    assert (read(log), log.unread) == ([], 1)


# ---------------------------------------------------------------------------------------------------------------------
# what a form does not say


def test_a_year_is_told_by_the_date_of_the_file(tmp_path: Path) -> None:
    """A syslog has no year: the last line is not younger than the file, and the months go on across New Year."""
    days = ("Nov 30", "Dec 31", "Jan  1", "Mar  2")
    text = "".join(f"{day} 05:18:14 n1 kernel: {XID}\n" for day in days)
    log = kept(tmp_path, text, written=datetime(2026, 3, 2, 6, tzinfo=UTC))
    assert [(line.time.year, line.time.month) for line in read(log)] == [(2025, 11), (2025, 12), (2026, 1), (2026, 3)]
    assert any("taken to be of 2025" in note for note in log.notes)


def test_a_late_line_of_december_does_not_end_the_year_twice(tmp_path: Path) -> None:
    """Lines out of order around New Year stay in their years."""
    text = "".join(f"{day} 00:00:00 n1 kernel: {XID}\n" for day in ("Dec 31", "Jan  1", "Dec 31", "Jan  2"))
    log = kept(tmp_path, text, written=datetime(2026, 1, 2, 6, tzinfo=UTC))
    assert [line.time.year for line in read(log)] == [2025, 2026, 2025, 2026]


def test_a_month_without_news_is_no_new_year(tmp_path: Path) -> None:
    """From January to November is ten months, not a month back."""
    text = "".join(f"{day} 05:18:14 n1 kernel: {XID}\n" for day in ("Jan  3", "Nov 20"))
    assert [line.time.year for line in read(kept(tmp_path, text))] == [2026, 2026]


def test_times_from_boot_are_reckoned_from_the_end(tmp_path: Path) -> None:
    """The last line is as old as the file, the others as much older as their stamps say; and that is told."""
    log = kept(tmp_path, f"[  100.000000] {XID}\n[ 3700.000000] {NOISE}\n")
    (line,) = read(log)
    assert (WRITTEN - line.time).total_seconds() == 3600
    assert any("count from boot" in note for note in log.notes)


@pytest.mark.parametrize("pack", [bytes, lambda text: gzip.compress(text, mtime=0)], ids=["plain", "gzipped"])
def test_times_from_boot_of_a_long_log_are_reckoned_from_its_own_end(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    """Not from where its form was recognized."""
    lines = "".join(f"[{number:>12}.000000] {NOISE}\n" for number in range(20_000))
    (line,) = read(kept(tmp_path, pack(f"{lines}[20000.000000] {XID}\n".encode())))
    assert line.time == WRITTEN


def test_lines_without_times_are_told_so(tmp_path: Path) -> None:
    """``dmesg -t`` is read, at the date of the file, and is said to have no times."""
    log = kept(tmp_path, f"{NOISE}\n{XID}\n")
    assert [line.time for line in read(log)] == [WRITTEN]
    assert "no times" in log.notes[0]


@pytest.mark.parametrize(
    "text", [b"", gzip.compress(b"", mtime=0), b"-- No entries --\n"], ids=["plain", "gzipped", "of journalctl"]
)
def test_a_log_that_was_just_rotated_is_empty(tmp_path: Path, text: bytes) -> None:
    """One of many, by a glob: it has no line, says so, and keeps none of the others from being read."""
    log = kept(tmp_path, text)
    assert (list(read(log)), log.kernel_lines, log.unread) == ([], 0, 0)
    assert (log.format.name, log.notes) == ("empty", ("it has no line: nothing is known of its node",))


@pytest.mark.parametrize("text", ["2026/11/21 05:18:14 something else\n", b"\x00\x01\x02 binary", "\n\n"])
def test_what_is_no_log_is_refused(tmp_path: Path, text: str | bytes) -> None:
    """A form that is not known is not read as if it were another: the forms that are known are named."""
    with pytest.raises(SourceUnreadable, match="expected one of /dev/kmsg records, journalctl -o export"):
        kept(tmp_path, text)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    """With what was expected; a folder is refused as well."""
    with pytest.raises(SourceMissing, match="no such file; expected a kernel log"):
        open_log(tmp_path / "gone")
    with pytest.raises(SourceUnreadable, match="cannot be read: a folder; name its files"):
        open_log(tmp_path)


def test_a_torn_archive_is_told(tmp_path: Path) -> None:
    """A gzip file that was cut off is an error with its name, before or while it is read."""
    long = gzip.compress(
        "".join(f"[{number:>12}.000000] {NOISE}{os.urandom(40).hex()}\n" for number in range(9999)).encode()
    )
    with pytest.raises(SourceUnreadable, match=r"node-7.log: cannot be read"):
        read(kept(tmp_path, long[: len(long) // 2]))
    with pytest.raises(SourceUnreadable, match=r"node-7.log: cannot be read"):
        kept(tmp_path, long[:30])


def test_a_line_without_end_is_dropped(tmp_path: Path) -> None:
    """Megabytes without a newline take no memory, count as one line that could not be read, and hide nothing after."""
    log = kept(tmp_path, f"[    1.000000] {XID}\n[    2.000000] {'x' * 3_500_000}\n[    3.000000] {XID}\n")
    assert len(read(log)) == 2
    assert log.unread == 1


def test_a_log_larger_than_a_block_is_read_whole(tmp_path: Path) -> None:
    """No line is lost or torn where one block of the file ends."""
    total = 30_000
    text = "".join(f"[{number:>12}.000000] {XID if number % 7 == 0 else NOISE}\n" for number in range(total))
    log = kept(tmp_path, text)
    assert len(read(log)) == len(range(0, total, 7))
    assert (log.lines, log.unread) == (total, 0)


def test_logs_read_side_by_side_take_little_memory_each(tmp_path: Path) -> None:
    """A fleet's logs are thousands of files, and a replay merges their lines: each has one block in memory."""
    kept(tmp_path, "".join(f"[{number:>12}.000000] {XID}\n" for number in range(30_000)))
    logs = [open_log(tmp_path / "node-7.log") for _ in range(8)]
    tracemalloc.start()
    streams = [log.read(NEEDLES) for log in logs]
    assert len([next(stream) for stream in streams]) == 8
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * (1 << 20)


# A record of several lines, as each form keeps it: dmesg and journalctl indent what follows the first line, syslog
# writes the newline as #012, and who reads /proc/kmsg line by line gives each a head of its own.
LOST = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0\n"
    "NVRM: (PCI ID: 10de:2330) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)


def indented(head: str) -> str:
    first, *further = LOST.split("\n")
    return f"{head}{first}\n" + "".join(f"{' ' * len(head)}{line}\n" for line in further)


SEVERAL: dict[str, str | bytes] = {
    "/dev/kmsg records": "3,2,2500000,-;" + LOST.replace("\n", "\\x0a") + "\n SUBSYSTEM=pci\n",
    "dmesg": indented("[    2.500000] "),
    "dmesg -T": indented("[Sat Nov 21 05:18:14 2026] "),
    "iso": indented("2026-11-21T05:18:14,000000+00:00 "),
    "journalctl -o short": indented("Nov 21 05:18:14 n1 kernel: "),
    "journalctl -o short-iso": indented("2026-11-21T05:18:14+0000 n1 kernel: "),
    "journalctl -o short-full": indented("Sat 2026-11-21 05:18:14 UTC n1 kernel: "),
    "syslog": f"Nov 21 05:18:14 n1 kernel: {LOST}\n".replace("\nNVRM", "#012NVRM"),
    "line by line": "".join(f"Nov 21 05:18:14 n1 kernel: [ 12.5] {line}\n" for line in LOST.split("\n")),
    "export": exported(journal(""))
    .encode()
    .replace(b"MESSAGE=\n", b"MESSAGE\n" + len(LOST).to_bytes(8, "little") + LOST.encode() + b"\n"),
    "json": json.dumps(journal(LOST), separators=(",", ":")) + "\n",
}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_record_of_several_lines_is_found_as_it_is_live(tmp_path: Path, name: str) -> None:
    """A GPU that does not answer when the driver probes it carries no XID number, and three lines."""
    log = kept(tmp_path, SEVERAL[name])
    records = [KernelRecord(boot_id="b", sequence=0, time=line.time, text=line.text) for line in read(log)]
    (finding,) = kernel_xid(FakeNode(kernel_records=records), KernelXidSettings()).findings
    assert (finding.code, str(finding.component)) == ("gpu.xid.79", "gpu:0000:b3:00")
    assert log.unread == 0


@pytest.mark.parametrize("size", [*range(1, 40), 1 << 20])
def test_no_block_cuts_a_record_of_several_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """However the file is read, its records are whole, in order, and counted once."""
    monkeypatch.setattr(pastlogs, "_BLOCK_BYTES", size)
    text = f"[    1.000000] {NOISE}\n{indented('[    2.500000] ')}[    3.500000] {XID}\n{indented('[    4.500000] ')}"
    log = kept(tmp_path, text)
    assert [line.text for line in read(log)] == [LOST, XID, LOST]
    assert (log.lines, log.unread) == (8, 0)
