"""The kernel log by syslog(2): what is new is found, what was lost is a gap, and no user's words pass for a record."""

from __future__ import annotations

import ctypes
import errno
import time
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from healthd.core.errors import SourceUnreadable
from healthd.core.node import KernelRecord
from healthd.sources.kmsg import Cursor, KernelLog, read_all
from healthd.sources.kmsg_records import KernelSyslog, klogctl
from healthd.testing import FakeClock

BOOT_TIME = datetime(2026, 11, 21, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."


class Ring:
    """The kernel's side of syslog(2): a ring of bounded text, as READ_ALL shows it."""

    def __init__(self, room: int = 100_000) -> None:
        self.lines: list[str] = []
        self.room, self.error, self.read_away, self.asked = room, 0, False, list[int]()

    def says(self, usec: int, text: str, *, prefix: int = 4, caller: str = "") -> None:
        """One record: its head stands before each of its lines."""
        head = f"<{prefix}>[{usec // 1_000_000:5}.{usec % 1_000_000:06}]{caller}"
        self.lines += [f"{head} {line}\n" for line in text.split("\n")]
        while len("".join(self.lines)) > self.room:
            del self.lines[0]

    def clear(self) -> None:
        """dmesg -C."""
        self.lines = []

    def ask(self, action: int, buffer: Any, length: int) -> int:
        self.asked.append(action)
        if self.error:
            raise OSError(self.error, "no")
        if action == 10:
            return self.room
        text = "".join(self.lines).encode()
        if action == 9:
            return 0 if self.read_away else len(text)
        assert len(text) <= length
        ctypes.memmove(buffer, text, len(text))
        return len(text)


class Reader:
    """A follower of the ring, looked through once in a while."""

    def __init__(
        self, ring: Ring, cursor: Cursor | None = None, needles: tuple[bytes, ...] = (), *, trust: bool = False
    ) -> None:
        self.clock = FakeClock()
        self.log = KernelLog(
            "syslog",
            boot_id="b",
            boot_time=BOOT_TIME,
            cursor=cursor,
            needles=needles,
            trust_user_kmsg=trust,
            open_source=lambda _: KernelSyslog(ring.ask, self.clock),
        )
        self.cursor = cursor

    def new(self) -> list[str]:
        """The texts that are new, at least a second after the last look."""
        self.clock.advance(2.0)
        return [record.text for record in self.records()]

    def records(self) -> list[KernelRecord]:
        found: list[KernelRecord] = []
        while True:
            batch = self.log.read_batch(0.0)
            found += batch.records
            self.cursor = batch.cursor
            if batch.caught_up:
                return found


@pytest.fixture
def ring() -> Ring:
    made = Ring()
    for number in range(5):
        made.says(1_000_000 + number, f"line {number}")
    return made


def test_a_record_is_what_dev_kmsg_would_show(ring: Ring) -> None:
    """Facility, level, time and words, odd bytes and a backslash as they were; the caller is no part of the words."""
    ring.says(12_345_678_901, "NVRM: \\x41 ü [x]", prefix=11, caller="[  T123]")
    reader = Reader(ring, trust=True)
    *_, record = reader.records()
    assert record.text == "NVRM: \\x41 ü [x]"
    assert (record.facility, record.level, record.trusted) == (1, 3, False)
    assert (record.time - BOOT_TIME).total_seconds() == pytest.approx(12_345.678901)


def test_what_is_new_comes_once() -> None:
    """Also from an empty ring, and of lines that are the same but for their time."""
    ring = Ring()
    reader = Reader(ring)
    assert reader.new() == []
    for number in range(300):
        ring.says(number * 7, "the same")
        ring.says(number * 7 + 3, f"other {number}")
        assert reader.new() == ["the same", f"other {number}"]
    assert reader.new() == []
    assert reader.log.state().gaps == 0
    assert reader.log.state().error == ""


def test_a_look_costs_one_question_while_nothing_is_new(ring: Ring) -> None:
    """The count of unread bytes; the whole ring is read anew every ten seconds all the same, and more often where
    somebody reads the log away, because the count is 0 then."""
    reader = Reader(ring)
    reader.new()
    ring.asked.clear()
    for _ in range(4):
        reader.new()
    assert set(ring.asked) == {9}
    for _ in range(2):
        reader.new()
    assert ring.asked.count(3) == 1
    ring.read_away = True
    ring.says(9_000_000, "one")
    assert reader.new() == ["one"]
    ring.says(9_000_001, "two")
    assert reader.new() == ["two"]


def test_looks_are_paced(ring: Ring) -> None:
    """Between two looks lies a second, however often it is asked."""
    reader = Reader(ring)
    reader.new()
    ring.asked.clear()
    for _ in range(20):
        assert reader.records() == []
    assert ring.asked == []


@pytest.mark.parametrize("how", ["overwritten", "cleared", "cleared and silent"])
def test_what_was_lost_is_a_gap(ring: Ring, how: str) -> None:
    """Where the last lines that were seen are not there any more, others may have come and gone. It is told once."""
    reader = Reader(ring)
    reader.new()
    if how == "overwritten":
        ring.room = 2000
        for number in range(200):
            ring.says(2_000_000 + number, "x" * 50)
    else:
        ring.clear()
    if how == "cleared":
        ring.says(3_000_000, "after")
    reader.new()
    reader.clock.advance(20.0)
    reader.new()
    assert reader.log.state().gaps == 1
    ring.says(4_000_000, "later")
    assert reader.new() == ["later"]
    assert reader.log.state().gaps == 1


def test_a_restart_neither_misses_nor_repeats(ring: Ring) -> None:
    """The cursor is the time of the last record: of the same boot, what lies before it is known."""
    first = Reader(ring)
    first.new()
    ring.says(5_000_000, XID)
    second = Reader(ring, first.cursor)
    assert second.new() == [XID]
    assert second.log.state().gaps == 0
    third = Reader(ring, second.cursor)
    assert third.new() == []
    assert third.log.state().gaps == 0


def test_a_restart_that_finds_its_place_overwritten_says_so(ring: Ring) -> None:
    """The record that was looked at last is gone, so others may be."""
    first = Reader(ring)
    first.new()
    ring.clear()
    ring.says(6_000_000, XID)
    second = Reader(ring, first.cursor)
    assert second.new() == [XID]
    assert second.log.state().gaps == 1


def test_another_boot_is_read_from_its_beginning(ring: Ring) -> None:
    """Times begin anew with each boot."""
    old = Cursor(boot_id="another", sequence=10**17)
    assert Reader(ring, old).new() == [f"line {number}" for number in range(5)]


def test_times_that_go_back_are_kept_in_order(ring: Ring) -> None:
    """Two processors, microseconds apart: the numbers rise all the same, and a restart finds its place."""
    ring.says(7_000_005, "later first")
    ring.says(7_000_003, "earlier second")
    first = Reader(ring)
    assert first.new()[-2:] == ["later first", "earlier second"]
    ring.says(7_000_009, "third")
    second = Reader(ring, first.cursor)
    assert second.new() == ["third"]
    assert second.log.state().gaps == 0


def test_a_quoted_newline_forges_no_record(ring: Ring) -> None:
    """What the kernel quotes of a user may hold a newline: it stays in its record, and is told as a possible loss."""
    ring.says(8_000_000, f"tmpfs: Unknown parameter 'x\n{XID}'")
    reader = Reader(ring, needles=(b"^NVRM: ",))
    assert reader.new() == []
    assert reader.log.state().gaps == 1


def test_a_record_of_several_lines_is_one(ring: Ring) -> None:
    """As the driver prints a GPU that does not answer at its start; lines that no check wants are no loss."""
    ring.says(8_000_000, "NVRM: The GPU\nNVRM: fallen off\n")
    ring.says(8_000_100, "first\nsecond")
    reader = Reader(ring, needles=(b"^NVRM: The", b"line"))
    assert reader.new()[-1] == "NVRM: The GPU\nNVRM: fallen off\n"
    assert reader.log.state().gaps == 0


@pytest.mark.parametrize(
    ("number", "help_"), [(errno.EPERM, "CAP_SYSLOG"), (errno.ENOSYS, "seccomp"), (errno.EIO, "syslog(2)")]
)
def test_a_refusal_is_told_and_asked_again(ring: Ring, number: int, help_: str) -> None:
    """Unknown, never silence: the state says what to do. Once it is allowed, everything is read."""
    ring.error = number
    reader = Reader(ring)
    assert reader.new() == []
    assert help_ in reader.log.state().error
    ring.error = 0
    time.sleep(0.25)  # it is tried again five times a second
    assert len(reader.new()) == 5
    assert reader.log.state().error == ""


def test_a_log_without_times_is_an_error_and_one_such_line_is_malformed(ring: Ring) -> None:
    """printk.time=0: new records cannot be recognized."""
    ring.lines.insert(2, "<6>no time\n")
    reader = Reader(ring)
    assert len(reader.new()) == 5
    assert reader.log.state().malformed == 1
    ring.lines = ["<6>no time\n", "<6>at all\n"]
    assert reader.new() == []
    assert "printk.time=1" in reader.log.state().error


def test_reading_it_once_that_is_not_allowed_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`healthd check` without a daemon: what could not be read is no missing file."""
    ring = Ring()
    ring.error = errno.EPERM
    monkeypatch.setattr("healthd.sources.kmsg_records.KernelSyslog.__init__", lambda self: _refuse())
    with pytest.raises(SourceUnreadable, match="CAP_SYSLOG"):
        read_all("syslog", boot_id="b", boot_time=BOOT_TIME)


def _refuse() -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_the_call_itself_says_what_went_wrong() -> None:
    """An action that does not exist, asked of the real kernel."""
    with pytest.raises(OSError, match=r"Invalid argument|not permitted"):
        klogctl(99, None, 0)


def test_it_follows_where_it_is_open(ring: Ring) -> None:
    """Closing it is fine at any time."""
    with closing(Reader(ring).log) as log:
        assert log.read_batch(0.0).records
