"""The journal, written by a real systemd-journald in a namespace of its own and followed by a real journalctl."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.judge.history import Fault
from healthd.observe.journal import _judged_text
from healthd.sources.journal import JournalBatch, JournalLog, WantedLines, read_journal, read_past_kernel
from healthd.state.store import Store
from tests.support.limits import limit_s
from tests.support.running import RunningNode

JOURNALD = Path("/lib/systemd/systemd-journald")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        os.geteuid() != 0 or not JOURNALD.exists() or not shutil.which("journalctl"),
        reason="needs root, systemd-journald and journalctl",
    ),
]
WANTED = WantedLines(needles=("probe failed",))
NOBODY = 65534


class Journal:
    """A journald that only this test writes to."""

    def __init__(self, name: str) -> None:
        self.options = (f"--namespace={name}",)
        self._run = Path(f"/run/systemd/journal.{name}")
        self._name, self._logs = name, list[JournalLog]()
        self._daemon = subprocess.Popen([JOURNALD, name], stderr=subprocess.DEVNULL)
        # Of a namespace journalctl sees no folder that came after it was started.
        wait(lambda: list(self._files()))

    def say(self, message: bytes, **fields: str) -> None:
        """One entry, as a service's log library sends it."""
        lines = [f"{name}={value}\n".encode() for name, value in fields.items()]
        length = len(message).to_bytes(8, "little")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.connect(str(self._run / "socket"))
            connection.send(b"".join([b"MESSAGE\n", length, message, b"\n", *lines]))

    def follow(self, *, cursor: str = "") -> JournalLog:
        """A follower of it, which ends with it at the latest."""
        self._logs.append(JournalLog(WANTED, cursor=cursor, options=self.options))
        return self._logs[-1]

    def close(self) -> None:
        for log in self._logs:
            log.close()
            log.read_batch(1.0)
        self._daemon.terminate()
        self._daemon.wait(timeout=limit_s(10))
        shutil.rmtree(self._run, ignore_errors=True)
        for folder in {file.parent for file in self._files()}:
            shutil.rmtree(folder)

    def _files(self) -> Iterator[Path]:
        for root in ("/var/log/journal", "/run/log/journal"):
            yield from Path(root).glob(f"*.{self._name}/*.journal")


def wait(condition: object, within_s: float = 10.0) -> None:
    until = time.monotonic() + limit_s(within_s)
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = Journal(f"healthd-test-{os.getpid()}")
    yield made
    made.close()


def texts(batch: JournalBatch) -> list[str]:
    return [record.text for record in batch.records]


def read_until(log: JournalLog, count: int) -> tuple[list[str], str]:
    """The first lines and the cursor behind them, within 15 s: a journalctl that has ended is started again after
    10."""
    found: list[str] = []
    cursor, until = "", time.monotonic() + limit_s(15.0)
    while len(found) < count:
        assert time.monotonic() < until, log.problem() or "no line came"
        batch = log.read_batch(0.5)
        found += texts(batch)
        cursor = batch.cursor or cursor
    return found, cursor


def test_it_is_followed_and_goes_on_where_it_left_off(journal: Journal) -> None:
    """From the boot's first line on, then as lines come; another reader begins after the cursor. Nothing is left."""
    journal.say(b"probe failed: 1")
    log = journal.follow()
    assert log.problem() == "the journal has not been read yet"
    assert read_until(log, 1)[0] == ["probe failed: 1"]
    journal.say(b"all is well")
    journal.say('probe failed: grün "2"\nsecond line'.encode())
    journal.say(b"probe failed: \xff 3")
    found, cursor = read_until(log, 2)
    assert found == ['probe failed: grün "2"\nsecond line', "probe failed: \ufffd 3"]
    assert (log.problem(), bool(cursor)) == ("", True)
    log.close()
    log.read_batch(0.5)
    journal.say(b"probe failed: 4")
    again = journal.follow(cursor=cursor)
    assert read_until(again, 1)[0] == ["probe failed: 4"]
    assert texts(read_journal(WANTED, cursor=cursor, options=journal.options)) == ["probe failed: 4"]
    assert len(texts(read_journal(WANTED, options=journal.options))) == 4
    again.close()
    wait(lambda: not follower_of(journal))


def follower_of(journal: Journal) -> list[str]:
    """The journalctl processes that follow this journal."""
    option = journal.options[0].encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # the process has ended
            continue
        if option in words and b"--follow" in words:
            found.append(path.parent.name)
    return found


def test_a_user_writes_nothing_that_counts(journal: Journal) -> None:
    """What an unprivileged process sends, whatever it claims to be, is left out."""
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY)
        journal.say(b"probe failed: forged", _UID="0", UNIT="probe.service", _SYSTEMD_UNIT="probe.service")
        os._exit(0)
    os.waitpid(child, 0)
    journal.say(b"probe failed: true")
    wanted = WantedLines(needles=WANTED.needles, units=frozenset({"probe.service"}))
    wait(lambda: texts(read_journal(wanted, options=journal.options)) == ["probe failed: true"])


def test_a_follower_that_is_killed_is_started_again(journal: Journal) -> None:
    """It says so meanwhile, tries again after a while, and misses and repeats nothing."""
    log = journal.follow()
    journal.say(b"probe failed: 1")
    assert read_until(log, 1)[0] == ["probe failed: 1"]
    (pid,) = follower_of(journal)
    os.kill(int(pid), 9)
    log.read_batch(1.0)
    assert log.problem() == "journalctl ended with -9: no output; healthd starts it again"
    journal.say(b"probe failed: 2")
    assert read_until(log, 1)[0] == ["probe failed: 2"]
    assert log.problem() == ""
    log.close()


def test_it_ends_with_its_reader(journal: Journal) -> None:
    """When nobody holds the other end of its pipe any more, as after kill -9 of the daemon, journalctl ends."""
    log = journal.follow()
    log.read_batch(0.5)
    assert len(follower_of(journal)) == 1
    child = log._child
    assert child is not None
    assert child.stdout is not None
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), child.stdout.fileno())
    wait(lambda: child.poll() is not None)


def test_without_journalctl(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unknown, and the advice says what to do; a namespace without files is said in journalctl's words."""
    with pytest.raises(SourceUnreadable, match="journalctl: exit status"):
        read_journal(WANTED, cursor="not a cursor", options=journal.options)
    monkeypatch.setattr("healthd.sources.command.SEARCH_DIRS", ())
    monkeypatch.setenv("PATH", "/nonexistent")
    log = journal.follow()
    assert log.read_batch(0.1) == JournalBatch()
    assert "remove the rules with source = journal" in log.problem()
    with pytest.raises(SourceMissing, match="remove the rules"):
        read_journal(WANTED)


def test_a_process_with_many_descriptors_reads_on(journal: Journal) -> None:
    """The pipe's number may lie above 1023, where select(2) ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        journal.say(b"probe failed: 1")
        log = journal.follow()
        assert read_until(log, 1)[0] == ["probe failed: 1"]
        child = log._child
        assert child is not None
        assert child.stdout is not None
        assert child.stdout.fileno() > 1023
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# ---------------------------------------------------------------------------------------------------------------------
# the last words of a boot

_AS_KERNEL = """#!/bin/sh
for each; do
    shift
    case $each in _TRANSPORT=kernel) each=SYSLOG_FACILITY=0 ;; esac
    set -- "$@" "$each"
done
{tool} {option} "$@" | sed 's/"_TRANSPORT":"journal"/"_TRANSPORT":"kernel"/'
"""
OTHER_BOOT = "22222222-2222-2222-2222-222222222222"


@pytest.fixture
def as_kernel(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """What the test says with facility 0 stands in the journal as the kernel's: nobody but the kernel can say it so."""
    tool = tmp_path / "bin/journalctl"
    tool.parent.mkdir()
    tool.write_text(_AS_KERNEL.format(tool=shutil.which("journalctl"), option=journal.options[0]))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    return journal


def test_of_a_storm_before_the_boot_the_end_is_read(as_kernel: Journal) -> None:
    """What fits is read whole and in its order, but for this boot's lines and what was known before. Of more the newest
    are, and it is said that older ones were left out."""
    before = datetime.now(UTC)
    messages = [f"NVRM: Xid (PCI:0000:05:00): 95, line {number}" for number in range(300)]
    as_kernel.say(b"a service's line", SYSLOG_FACILITY="3")
    for text in messages:
        as_kernel.say(text.encode(), SYSLOG_FACILITY="0", PRIORITY="3")
    wait(lambda: len(read_past_kernel(before, OTHER_BOOT).records) == len(messages))
    whole = read_past_kernel(before, OTHER_BOOT)
    assert (texts(whole), whole.cut) == (messages, False)
    assert texts(read_past_kernel(whole.records[9].time, OTHER_BOOT)) == messages[10:]
    end = read_past_kernel(before, OTHER_BOOT, most=100)
    assert (texts(end), end.cut) == (messages[-100:], True)
    this_boot = read_past_kernel(before, whole.records[0].boot_id, most=100)
    assert (this_boot.records, this_boot.cut) == ((), True)


def test_the_drift_of_the_kernels_clock_loses_no_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After weeks the kernel's own times are seconds behind the clock, as NTP does not correct sched_clock: a line that
    came in after all that was judged is new, though by its own time it is older."""
    since = datetime(2026, 11, 21, 5, 38, 4, tzinfo=UTC)
    entry = {
        "__REALTIME_TIMESTAMP": "1795239486000000",
        "__MONOTONIC_TIMESTAMP": "2592000000000",
        "_SOURCE_MONOTONIC_TIMESTAMP": "2591990000000",
        "_BOOT_ID": OTHER_BOOT.replace("2", "3").replace("-", ""),
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": "0",
        "MESSAGE": "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.",
    }
    tool = tmp_path / "journalctl"
    tool.write_text(f"#!/bin/sh\ncat <<'.'\n{json.dumps(entry)}\n.\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (record,) = read_past_kernel(since, OTHER_BOOT).records
    assert record.time < since


def test_a_journal_that_a_crash_has_damaged_was_not_read(as_kernel: Journal, tmp_path: Path) -> None:
    """Journalctl leaves out a file that is truncated and ends with 0. What the kernel said last may have been in it."""
    before = datetime.now(UTC)
    as_kernel.say(b"NVRM: Xid (PCI:0000:05:00): 79, off the bus", SYSLOG_FACILITY="0")
    wait(lambda: len(read_past_kernel(before, OTHER_BOOT).records) == 1)
    assert read_past_kernel(before, OTHER_BOOT).unread == ""
    (file,) = as_kernel._files()
    os.truncate(shutil.copy(file, tmp_path / "system.journal"), 100_000)
    tool = tmp_path / "bin/journalctl"
    tool.write_text(tool.read_text().replace(as_kernel.options[0], f"--directory={tmp_path}"))
    past = read_past_kernel(before, OTHER_BOOT)
    assert past.records == ()
    assert "system.journal is truncated, ignoring file" in past.unread
    assert past.unread in _judged_text(past, before)


@pytest.mark.parametrize("colon", [":", " : "])
def test_a_message_with_odd_bytes_is_found_as_each_systemd_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colon: str
) -> None:
    """As a list of numbers, which shows no needle: before systemd 240 with blanks around the colon (RHEL 8 has 239)."""
    fields = {"_UID": "0", "_BOOT_ID": OTHER_BOOT, "MESSAGE": list(b"probe failed: \xff")}
    times = {"__REALTIME_TIMESTAMP": "1795239486000000", "__MONOTONIC_TIMESTAMP": "2592000000000"}
    tool = tmp_path / "journalctl"
    tool.write_text(f"#!/bin/sh\ncat <<'.'\n{json.dumps({**fields, **times}, separators=(',', colon))}\n.\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert texts(read_journal(WANTED)) == ["probe failed: \ufffd"]


def test_without_journalctl_there_are_no_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said what to install."""
    monkeypatch.setattr("healthd.sources.command.SEARCH_DIRS", ())
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SourceMissing, match="install systemd's journalctl$"):
        read_past_kernel(datetime.now(UTC), OTHER_BOOT)


RULES = """
[orchestrator]
kind = "local"
[[checks."kernel.rules".rules]]
name = "probe"
pattern = "probe failed: (?P<disk>\\\\w+)"
component = "disk:{disk}"
source = "journal"
clears = "probe is well: (?P<disk>\\\\w+)"
"""


def test_the_daemon_judges_the_journal(journal: Journal, tmp_path: Path) -> None:
    """A site's rule finds a service's line as it comes; a restart counts nothing twice; a later line ends it. Without
    a daemon the same lines are read once."""
    tool = tmp_path / "bin/journalctl"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {shutil.which("journalctl")} {journal.options[0]} "$@"\n')
    tool.chmod(0o755)
    path = f"{tool.parent}:{os.environ['PATH']}"
    node = RunningNode(tmp_path / "node", "n1", sections=RULES, environ={"PATH": path})

    def codes(*more: str) -> list[str]:
        return [each["code"] for each in node.check("kernel.rules", *more)["diagnoses"]]

    def fault() -> Fault:
        store = Store(node.state_dir / "healthd.db", now=datetime.now(UTC))
        try:
            return store.history().faults["disk:sda", "site.probe"]
        finally:
            store.close()

    try:
        journal.say(b"probe failed: sda")
        node.start()
        node.wait(lambda: codes() == ["site.probe"], 15, "the line from before the start")
        journal.say(b"probe failed: sda")
        node.wait(lambda: fault().count == 2, 15, "a line as it comes")
        node.stop()
        node.start()
        assert codes() == ["site.probe"]
        local = node.healthd("check", "kernel.rules", "--json", "--no-daemon", "--config", str(node.config))
        assert [each["code"] for each in json.loads(local.stdout)["diagnoses"]] == ["site.probe"]
        journal.say(b"all is well, and this line moves the cursor")
        assert fault().count == 2
        journal.say(b"probe is well: sda")
        node.wait(lambda: codes() == [], 15, "it is over")
    finally:
        node.stop()
    wait(lambda: not follower_of(journal))
