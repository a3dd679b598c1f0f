"""The record format of the kernel log, and the places that speak it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from healthd.sources.kmsg import parse_record
from healthd.sources.kmsg_records import HOLE, TORN, Device, Lines, any_of, open_source

BOOT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NEEDLE = any_of((b"NVRM:",))


def test_record_fields() -> None:
    """Facility, level, sequence, time and text come from their places in the record."""
    record = parse_record(
        b"3,1234,5000001,-;NVRM: hello\n SUBSYSTEM=pci\n DEVICE=+pci:x\n", boot_id="b", boot_time=BOOT
    )
    assert record is not None
    assert (record.facility, record.level, record.sequence, record.text) == (0, 3, 1234, "NVRM: hello")
    assert record.time == BOOT + timedelta(microseconds=5000001)
    assert record.boot_id == "b"
    assert record.trusted


def test_user_record_is_not_trusted() -> None:
    """A record of any facility but the kernel's own is labelled as not trusted."""
    record = parse_record(b"11,9,1,-;x\n", boot_id="b", boot_time=BOOT)
    assert record is not None
    assert (record.facility, record.level, record.trusted) == (1, 3, False)


def test_caller_field_and_semicolons() -> None:
    """More fields before the first semicolon are skipped, and later semicolons belong to the text."""
    record = parse_record(b"6,1,2,-,caller=T1946;a;b\n", boot_id="b", boot_time=BOOT)
    assert record is not None
    assert record.text == "a;b"


def test_escapes_are_decoded() -> None:
    """The kernel's escapes become the characters they stand for, in UTF-8 where they are."""
    record = parse_record(rb"6,1,2,-;one\x0atwo \x5cx41 \xc3\xbc \xff" + b"\n", boot_id="b", boot_time=BOOT)
    assert record is not None
    assert record.text == "one\ntwo \\x41 ü \\xff"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"6,1",
        b"6,1,2",
        b"6,1,2,-no semicolon\n",
        b"NVRM: Xid (PCI:0000:05:00): 79, torn in front\n",
        b"x,1,2,-;text\n",
        b"6,-1,2,-;text\n",
        b"6,1,2,-;binary \x00\x01\x02\n",
        b"\x00\xff" * 40,
        b"6,1,999999999999999999,-;beyond the calendar\n",
        b"6,99999999999999999999,1,-;beyond the database\n",
    ],
)
def test_torn_and_binary_records_are_none(raw: bytes) -> None:
    """What is not a whole record is None, never an exception and never half a record."""
    assert parse_record(raw, boot_id="b", boot_time=BOOT) is None


def scripted(*answers: bytes | int) -> Callable[[int, int], bytes]:
    """The reads of a /dev/kmsg: a record, or the errno that the kernel answers; at the end, nothing for now."""
    left = list(answers)

    def read(fd: int, size: int) -> bytes:
        answer = left.pop(0) if left else errno.EAGAIN
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    return read


def test_device_reports_holes_and_torn_records_in_place() -> None:
    """EPIPE becomes a hole and EINVAL a torn record, between the records they were met between."""
    device = Device(-1, scripted(b"6,1,1,-;a\n", errno.EPIPE, b"6,9,1,-;NVRM: b\n", errno.EINVAL))
    assert device.read(NEEDLE) == [b"6,1,1,-;a\n", HOLE, b"6,9,1,-;NVRM: b\n", TORN]
    assert device.read(NEEDLE) == []


def test_device_keeps_what_moves_the_cursor() -> None:
    """Of a burst that no check wants, the first record (is there a gap?) and the last (the cursor) are kept."""
    device = Device(-1, scripted(*(b"6,%d,1,-;usb\n" % number for number in range(50))))
    assert device.read(NEEDLE) == [b"6,0,1,-;usb\n", b"6,49,1,-;usb\n"]


def test_device_error_does_not_swallow_records_before_it() -> None:
    """An error after records is left for the next read, where it is raised."""
    device = Device(-1, scripted(b"6,1,1,-;a\n", errno.EIO, errno.EIO))
    assert device.read(None) == [b"6,1,1,-;a\n"]
    with pytest.raises(OSError, match="Input/output error"):
        device.read(None)


def lines_of(path: Path) -> Lines:
    source = open_source(str(path))
    assert isinstance(source, Lines)
    return source


def test_lines_hold_back_an_unfinished_line(tmp_path: Path) -> None:
    """A last line without its newline is not handed over before it is whole."""
    path = tmp_path / "log"
    path.write_bytes(b"6,1,1,-;one\n6,2,2,-;tw")
    source = lines_of(path)
    assert source.read(None) == [b"6,1,1,-;one"]
    assert source.read(None) == []
    with path.open("ab") as log:
        log.write(b"o\n")
    assert source.read(None) == [b"6,2,2,-;two"]
    source.close()


def test_overlong_line_is_bounded(tmp_path: Path) -> None:
    """A line beyond 64 KiB is given up as torn, and the line after it is read."""
    path = tmp_path / "log"
    path.write_bytes(b"6,1,1,-;" + b"x" * 200_000 + b"\n6,2,2,-;two\n")
    source, seen = lines_of(path), list[bytes]()
    while got := source.read(None):
        seen += got
    assert seen == [TORN, b"6,2,2,-;two"]
    source.close()


def test_needles_find_their_lines_wherever_they_are(tmp_path: Path) -> None:
    """Lines with a needle come through, first, middle and last alike; of the others, only the last."""
    path = tmp_path / "log"
    path.write_bytes(b"6,1,1,-;NVRM: a\n KEY=NVRM:\n6,2,2,-;b\n6,3,3,-;c NVRM: NVRM:\n6,4,4,-;d\n6,5,5,-;e\n F=1\n")
    source = lines_of(path)
    assert source.read(NEEDLE) == [b"6,1,1,-;NVRM: a", b"6,3,3,-;c NVRM: NVRM:", b"6,5,5,-;e"]
    source.close()


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    """A folder holds no records, and the error says what would."""
    with pytest.raises(OSError, match="neither a device, a FIFO nor a regular file"):
        open_source(str(tmp_path))
