"""The follower: cursors, gaps, counting, truncation, waking, and what it says about itself."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.sources.kmsg import Cursor, KernelBatch, KernelLog, read_all
from healthd.sources.kmsg_records import HOLE
from tests.support.limits import limit_s

BOOT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def line(sequence: int, text: str = "", prefix: int = 6) -> str:
    return f"{prefix},{sequence},{sequence * 1000},-;{text or f'line {sequence}'}\n"


def follow(path: Path | str, cursor: Cursor | None = None, **options: object) -> closing[KernelLog]:
    return closing(KernelLog(str(path), boot_id="boot", boot_time=BOOT, cursor=cursor, **options))  # type: ignore[arg-type]  # passed on as given


def sequences(batch: KernelBatch) -> list[int]:
    return [record.sequence for record in batch.records]


def collect(log: KernelLog, count: int, within_s: float = 5.0) -> list[int]:
    """The sequences of the next ``count`` records."""
    seen: list[int] = []
    deadline = time.monotonic() + limit_s(within_s)
    while len(seen) < count and time.monotonic() < deadline:
        seen += sequences(log.read_batch(0.2))
    return seen


class FakeDevice:
    """A /dev/kmsg in memory: the kernel's numbering, scripted bursts."""

    numbered, timed = True, False
    pollable: int | None = None

    def __init__(self, *bursts: Sequence[bytes]) -> None:
        self.bursts = list(bursts)

    def read(self, wanted: object) -> Sequence[bytes]:
        return self.bursts.pop(0) if self.bursts else []

    def close(self) -> None:
        self.bursts.clear()


def device(*sequence: int | None) -> FakeDevice:
    """Records with these sequences; None is an EPIPE."""
    return FakeDevice([HOLE if number is None else line(number).encode() for number in sequence])


def test_first_start_reads_everything_of_this_boot(tmp_path: Path) -> None:
    """Without a cursor, the records that are there already are read first."""
    path = tmp_path / "log"
    path.write_text(line(5) + line(6))
    with follow(path) as log:
        batch = log.read_batch(1.0)
    assert sequences(batch) == [5, 6]
    assert batch.cursor == Cursor(boot_id="boot", sequence=6)
    assert not batch.gap


def test_growing_file_is_followed(tmp_path: Path) -> None:
    """A record that is appended later arrives without waiting for the time-out."""
    path = tmp_path / "log"
    path.write_text(line(1))
    with follow(path) as log:
        assert collect(log, 1) == [1]
        with path.open("a") as out:
            out.write(line(2))
        started = time.monotonic()
        assert sequences(log.read_batch(60.0)) == [2]
        assert time.monotonic() - started < limit_s(3.0)


def test_fifo_is_followed_across_writers(tmp_path: Path) -> None:
    """A FIFO that its writer closed is not at its end: the next writer is read too."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with follow(path) as log:
        assert log.read_batch(0.0).records == ()
        for number in (1, 2):
            path.write_text(line(number))
            assert collect(log, 1) == [number]
        assert log.state().error == ""


def test_cursor_of_this_boot_skips_what_was_seen(tmp_path: Path) -> None:
    """A restart begins behind the cursor."""
    path = tmp_path / "log"
    path.write_text("".join(map(line, range(10))))
    with follow(path, Cursor(boot_id="boot", sequence=6)) as log:
        assert sequences(log.read_batch(1.0)) == [7, 8, 9]


def test_cursor_of_another_boot_skips_nothing(tmp_path: Path) -> None:
    """After a reboot the numbers begin again, and so does the reader."""
    path = tmp_path / "log"
    path.write_text(line(0) + line(1))
    with follow(path, Cursor(boot_id="the boot before", sequence=6)) as log:
        assert sequences(log.read_batch(1.0)) == [0, 1]


def test_reused_numbers_within_one_run_are_not_dropped(tmp_path: Path) -> None:
    """On a file the cursor counts until it is passed; a writer that numbers anew later is read."""
    path = tmp_path / "log"
    path.write_text(line(3) + line(4) + line(1) + line(2))
    with follow(path, Cursor(boot_id="boot", sequence=3)) as log:
        assert sequences(log.read_batch(1.0)) == [4, 1, 2]


def test_uninteresting_records_only_move_the_cursor(tmp_path: Path) -> None:
    """With needles, records without one are not handed over and are not read again."""
    path = tmp_path / "log"
    path.write_text(line(1) + line(2, "NVRM: x") + line(3))
    with follow(path, needles=(b"NVRM:", b"Lustre")) as log:
        batch = log.read_batch(1.0)
    assert sequences(batch) == [2]
    assert batch.cursor == Cursor(boot_id="boot", sequence=3)


def test_batches_are_bounded_and_the_cursor_matches_them(tmp_path: Path) -> None:
    """A batch holds at most so many records, and its cursor is that of its own last one."""
    path = tmp_path / "log"
    path.write_text("".join(map(line, range(10))))
    with follow(path, batch_records=4) as log:
        batches = [log.read_batch(1.0) for _ in range(3)]
    assert [sequences(batch) for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [batch.cursor.sequence for batch in batches if batch.cursor] == [3, 7, 9]


def test_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    """A file that was cut is read again from its first byte, and nothing written after the cut is lost."""
    path = tmp_path / "log"
    path.write_text("".join(map(line, range(5))))
    with follow(path) as log:
        assert collect(log, 5) == [0, 1, 2, 3, 4]
        path.write_text(line(9))
        assert collect(log, 1) == [9]


def test_replaced_file_is_read_after_the_rest_of_the_old_one(tmp_path: Path) -> None:
    """What was written to a file before it was moved away is read before its successor."""
    path = tmp_path / "log"
    path.write_text(line(0))
    with follow(path) as log:
        assert collect(log, 1) == [0]
        with path.open("a") as out:
            out.write(line(1))
        path.rename(tmp_path / "log.1")
        path.write_text(line(2))
        assert collect(log, 2) == [1, 2]


def test_half_a_line_lost_with_its_file_is_counted(tmp_path: Path) -> None:
    """An unfinished line whose file is replaced is a malformed record, not silence."""
    path = tmp_path / "log"
    path.write_text(line(0) + "6,1,1,-;NVRM: Xi")
    with follow(path) as log:
        assert collect(log, 1) == [0]
        path.unlink()
        path.write_text(line(2))
        assert collect(log, 1) == [2]
        assert log.state().malformed == 1


def test_missing_file_is_waited_for(tmp_path: Path) -> None:
    """A source that is not there is an error in the state, with the next step, until it is there."""
    path = tmp_path / "later"
    with follow(path) as log:
        assert log.read_batch(0.0).records == ()
        state = log.state()
        assert state.alive
        assert "No such file" in state.error
        assert "[sources] kmsg" in state.error
        path.write_text(line(1))
        assert collect(log, 1) == [1]
        assert log.state().error == ""


def test_torn_records_are_counted(tmp_path: Path) -> None:
    """A torn or binary record is counted, not raised, and its neighbours are read."""
    path = tmp_path / "log"
    path.write_bytes(line(1).encode() + b"6,2,NVRM: torn\n\x00\x01\xff\n" + line(3).encode())
    with follow(path) as log:
        assert sequences(log.read_batch(1.0)) == [1, 3]
        assert log.state().malformed == 2


def test_user_records_are_dropped_and_counted(tmp_path: Path) -> None:
    """A record that is not the kernel's is dropped, counted, and passed by the cursor."""
    path = tmp_path / "log"
    path.write_text(line(1) + line(2, "NVRM: forged", prefix=11))
    with follow(path) as log:
        batch = log.read_batch(1.0)
        assert sequences(batch) == [1]
        assert batch.cursor == Cursor(boot_id="boot", sequence=2)
        assert log.state().untrusted == 1


def test_user_records_can_be_admitted_and_are_labelled(tmp_path: Path) -> None:
    """With trust_user_kmsg they come through, and say that they are not trusted."""
    path = tmp_path / "log"
    path.write_text(line(1) + line(2, prefix=11))
    with follow(path, trust_user_kmsg=True) as log:
        batch = log.read_batch(1.0)
    assert [record.trusted for record in batch.records] == [True, False]


def test_overwritten_records_are_one_visible_gap() -> None:
    """EPIPE, with the jump in the numbers that follows it, is one gap, and reading goes on."""
    with follow("kmsg", Cursor(boot_id="boot", sequence=1), open_source=lambda _: device(None, 50, 51)) as log:
        batch = log.read_batch(1.0)
        assert sequences(batch) == [50, 51]
        assert batch.gap
        assert log.state().gaps == 1


def test_gap_without_a_record_is_told_at_once() -> None:
    """A gap ends the wait for records even where no check wants the next ones."""
    with follow("kmsg", needles=(b"NVRM:",), open_source=lambda _: device(4, None, 9)) as log:
        batch = log.read_batch(5.0)
    assert batch.gap
    assert batch.records == ()


def test_records_missing_behind_the_cursor_are_a_gap() -> None:
    """A ring that begins beyond the cursor has lost what healthd had not read while it was down."""
    with follow("kmsg", Cursor(boot_id="boot", sequence=6), open_source=lambda _: device(9, 10)) as log:
        batch = log.read_batch(1.0)
    assert sequences(batch) == [9, 10]
    assert batch.gap


@pytest.mark.parametrize("cursor", [None, Cursor(boot_id="another", sequence=3)])
def test_ring_that_begins_late_is_no_gap_at_first_start(cursor: Cursor | None) -> None:
    """Without a cursor of this boot, a ring that begins at a later number has lost nothing that we owned."""
    with follow("kmsg", cursor, open_source=lambda _: device(900, 901)) as log:
        assert not log.read_batch(1.0).gap


def test_contiguous_restart_is_no_gap() -> None:
    """The record right behind the cursor proves that nothing is missing."""
    with follow("kmsg", Cursor(boot_id="boot", sequence=6), open_source=lambda _: device(5, 6, 7)) as log:
        batch = log.read_batch(1.0)
    assert sequences(batch) == [7]
    assert not batch.gap


class BreaksOnce:
    """A device that fails on its second read; opened again, it replays its ring."""

    def __init__(self) -> None:
        self.opened = 0

    def __call__(self, path: str) -> FakeDevice:
        self.opened += 1
        return FailingDevice(device(1, 2).bursts[0]) if self.opened == 1 else device(1, 2, 3)


class FailingDevice(FakeDevice):
    def read(self, wanted: object) -> Sequence[bytes]:
        if not self.bursts:
            raise OSError(5, "Input/output error")
        return super().read(wanted)


def test_device_that_breaks_is_opened_again_without_repeats() -> None:
    """After a read error the device is opened anew, and what was read before is not read twice."""
    with follow("kmsg", open_source=BreaksOnce()) as log:
        first = log.read_batch(1.0)
        assert "Input/output error" in log.state().error
        assert sequences(first) + collect(log, 1) == [1, 2, 3]
        assert log.state().error == ""
        assert log.state().gaps == 0


def forbidden(path: str) -> FakeDevice:
    raise PermissionError(13, "Permission denied", path)


def test_permission_denied_is_told_with_the_next_step() -> None:
    """A log that may not be read is an error that says what is needed, and reading it raises nothing."""
    with follow("kmsg", open_source=forbidden) as log:
        assert log.read_batch(0.3).records == ()
        assert "run healthd as root or with CAP_SYSLOG" in log.state().error
        assert log.state().alive


def test_until_when_every_record_was_read(tmp_path: Path) -> None:
    """The time just before nothing more was there; unknown in a storm, and where the log cannot be read."""
    path = tmp_path / "log"
    path.write_text("".join(map(line, range(9))))
    with follow(path, batch_records=8) as log:
        storm = log.read_batch(0.0)
        before = datetime.now(UTC)
        rest = log.read_batch(0.0)
        assert (len(storm.records), storm.until, len(rest.records)) == (8, None, 1)
        assert rest.until is not None
        assert before <= rest.until <= datetime.now(UTC)
    with follow(tmp_path / "none") as blind:
        assert (blind.read_batch(0.0).caught_up, blind.read_batch(0.0).until) == (True, None)


def test_wake_ends_a_blocked_read(tmp_path: Path) -> None:
    """A read that waits returns empty-handed as soon as another thread wakes it."""
    path = tmp_path / "log"
    path.write_text("")
    with follow(path) as log, background(log) as done:
        time.sleep(0.05)
        assert not done.is_set()
        log.wake()
        assert done.wait(limit_s(5))


def test_close_ends_a_blocked_read_for_good(tmp_path: Path) -> None:
    """Closing from another thread ends the wait, and reading afterwards is empty, not an error."""
    path = tmp_path / "log"
    path.write_text(line(1))
    with follow(path) as log:
        assert collect(log, 1) == [1]
        with background(log) as done:
            time.sleep(0.05)
            log.close()
            assert done.wait(limit_s(5))
        assert log.read_batch(5.0) == KernelBatch(records=(), cursor=Cursor(boot_id="boot", sequence=1))
        assert not log.state().alive
        log.wake()


@contextmanager
def background(log: KernelLog) -> Iterator[threading.Event]:
    done = threading.Event()

    def read() -> None:
        log.read_batch(60.0)
        done.set()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield done
    finally:
        log.wake()
        thread.join(limit_s(10))


def test_idle_time_counts_since_the_loop_came_round(tmp_path: Path) -> None:
    """A quiet log is not an idle reader; a reader that nobody calls is."""
    now = [100.0]
    path = tmp_path / "log"
    path.write_text("")
    with follow(path, clock=lambda: now[0]) as log:
        now[0] = 160.0
        assert log.state().idle_s == 60.0
        log.read_batch(0.0)
        assert log.state().idle_s == 0.0


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    """Whatever happened to the source, closing leaves no descriptor open."""
    before = len(os.listdir("/proc/self/fd"))
    path = tmp_path / "log"
    path.write_text(line(1))
    with follow(path) as log:
        collect(log, 1)
        path.unlink()
        log.read_batch(0.1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_device_without_end_is_not_spun_on() -> None:
    """/dev/null is always readable and always empty: the reader sleeps all the same."""
    with follow("/dev/null") as log:
        busy = time.process_time()
        log.read_batch(0.3)
        assert time.process_time() - busy < 0.1


def test_read_all_reads_what_is_there(tmp_path: Path) -> None:
    """Without following, all records that are there now come back, and the call ends."""
    path = tmp_path / "log"
    path.write_text("".join(map(line, range(3000))))
    batch = read_all(str(path), boot_id="boot", boot_time=BOOT)
    assert sequences(batch) == list(range(3000))
    assert batch.caught_up
    assert not batch.gap


def test_read_all_keeps_the_newest_and_says_so(tmp_path: Path) -> None:
    """More records than fit are cut at the old end, and the cut is a gap."""
    path = tmp_path / "log"
    path.write_text("".join(map(line, range(50))))
    batch = read_all(str(path), boot_id="boot", boot_time=BOOT, max_records=10)
    assert sequences(batch) == list(range(40, 50))
    assert batch.gap


def test_read_all_raises_what_makes_the_check_unknown(tmp_path: Path) -> None:
    """A log that cannot be read is a SourceError, never an empty log; a FIFO belongs to the daemon."""
    with pytest.raises(SourceMissing, match="No such file"):
        read_all(str(tmp_path / "none"), boot_id="boot", boot_time=BOOT)
    with pytest.raises(SourceUnreadable, match="neither a device"):
        read_all(str(tmp_path), boot_id="boot", boot_time=BOOT)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SourceUnreadable, match="steal"):
        read_all(str(tmp_path / "fifo"), boot_id="boot", boot_time=BOOT)


def test_an_injected_record_comes_apart_and_moves_no_cursor(tmp_path: Path) -> None:
    """For a drill: it is read by the same thread and parsed by the same code, and whoever takes ``records`` never
    meets it."""
    path = tmp_path / "log"
    path.write_text(line(5, "NVRM: Xid real"))
    with follow(path, needles=(b"^NVRM: ",)) as log:
        log.inject("NVRM: Xid played")
        log.inject("nothing that a check wants")
        batch = log.read_batch(1.0)
        again = log.read_batch(0.0)
    assert [record.text for record in batch.records] == ["NVRM: Xid real"]
    assert [record.text for record in batch.drilled] == ["NVRM: Xid played"]
    assert batch.cursor == Cursor(boot_id="boot", sequence=5)
    assert (again.drilled, again.records) == ((), ())


def test_an_injected_record_does_not_wait(tmp_path: Path) -> None:
    """A reader that sleeps is woken for it, and tells the time of its arrival."""
    path = tmp_path / "log"
    path.touch()
    with follow(path) as log:
        timer = threading.Timer(0.1, log.inject, args=("played",))
        timer.start()
        began = time.monotonic()
        batch = log.read_batch(60.0)
        timer.join()
    assert time.monotonic() - began < limit_s(3.0)
    (record,) = batch.drilled
    assert abs((record.time - datetime.now(UTC)).total_seconds()) < 5.0


# ---------------------------------------------------------------------------------------------------------------------
# the clock


def test_after_the_clock_was_set_records_are_dated_by_the_boot_time_that_the_kernel_says_now(tmp_path: Path) -> None:
    """A daemon that began before chronyd's first step must not date every record wrongly for life."""
    path = tmp_path / "kmsg"
    path.write_text(line(1))
    with follow(path) as log:
        (early,) = log.read_batch(1.0).records
        log.dates_from(BOOT + timedelta(hours=2))
        with path.open("a") as writer:
            writer.write(line(2))
        (late,) = log.read_batch(1.0).records
    assert early.time == BOOT + timedelta(milliseconds=1)
    assert late.time == BOOT + timedelta(hours=2, milliseconds=2)


def test_no_record_is_of_earlier_than_the_device_was_empty() -> None:
    """That clock may as well run behind, by a minute in a month: the XID that ended a job would be of the job before.
    What was there when the reader began keeps its time, and later records keep their order."""
    began, behind = datetime.now(UTC), timedelta(seconds=100)
    boot_time = began - timedelta(days=90)

    def at(seconds: float) -> bytes:
        shown = began - behind + timedelta(seconds=seconds) - boot_time
        return f"4,{next(numbers)},{int(shown.total_seconds() * 1e6)},-;line".encode()

    numbers = itertools.count()
    known, late, later, dated = at(-50), at(0), at(0.001), at(0)
    source = FakeDevice([known], [], [late, later], [], [dated])
    with closing(KernelLog("kmsg", boot_id="boot", boot_time=boot_time, open_source=lambda _: source)) as log:
        (old,) = log.read_batch(0.0).records
        first, second = log.read_batch(0.0).records
        log.dates_from(boot_time + behind)
        (now,) = log.read_batch(0.0).records
    rounded = timedelta(microseconds=1)  # a record has whole ones
    assert abs(old.time - (began - behind - timedelta(seconds=50))) <= rounded
    assert began <= first.time <= second.time <= datetime.now(UTC)
    assert abs(now.time - began) <= rounded


def test_no_record_is_of_later_than_it_is_read(tmp_path: Path) -> None:
    """The clock of the kernel log runs ahead after weeks, and a fault of a job would be dated after the job's end."""
    path, began = tmp_path / "kmsg", datetime.now(UTC)
    path.write_text("4,1,1000000,-;in time\n4,2,600000000,-;ahead\n")
    boot_time = began - timedelta(seconds=5)
    with closing(KernelLog(str(path), boot_id="boot", boot_time=boot_time)) as log:
        in_time, ahead = log.read_batch(1.0).records
    assert in_time.time == boot_time + timedelta(seconds=1)
    assert began <= ahead.time <= datetime.now(UTC)
