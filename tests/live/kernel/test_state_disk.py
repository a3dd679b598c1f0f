"""A state directory whose disk is full or read-only: healthd looks, says so, and acts as soon as it can write."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healthd.core.errors import StoreError
from healthd.core.model import Event
from healthd.remediation.controller.node_status import NodeStatus
from healthd.state.ballast import BALLAST, Ballast
from healthd.state.lock import is_usable, lock_state
from healthd.state.store import Store
from tests.support.judgement import a_remediation
from tests.support.kernel_objects import NotHere, command, tmpfs
from tests.support.leading import Leading, lead
from tests.support.running import RunningNode

pytestmark = pytest.mark.kernel

NOW = datetime(2026, 11, 1, tzinfo=UTC)
EVENT = Event(at=NOW, kind="step", text="x" * 10_000)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk in memory, with room for the ballast."""
    with ExitStack() as cleanup:
        try:
            point = cleanup.enter_context(tmpfs(tmp_path, size="40m"))
        except NotHere as error:
            pytest.skip(str(error))
        yield point


def fill(disk: Path) -> None:
    """To the last page."""
    with contextlib.suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_lets_healthd_act_once_more(disk: Path) -> None:
    """The write that finds it full gives the ballast up, and the next one has its room: for a remediation and its
    events."""
    store = Store(disk / "healthd.db", now=NOW)
    assert store.ballast.lay()
    fill(disk)
    refused = 0
    for _ in range(50):
        try:
            store.append(EVENT)
        except StoreError:
            refused += 1
    store.save_remediation(a_remediation(), EVENT)
    assert refused == 1
    assert not (disk / BALLAST).exists()
    assert not store.ballast.lay(), "the disk is as full as before"
    (disk / "fill").unlink()
    assert store.ballast.lay()
    store.close()


def test_a_disk_that_is_full_at_the_start_gives_the_ballast_up(disk: Path) -> None:
    """A daemon that starts again finds its database, and may write."""
    Store(disk / "healthd.db", now=NOW).close()
    Ballast(disk).lay()
    fill(disk)
    store = Store(disk / "healthd.db", now=NOW)
    store.append(EVENT)
    assert not (disk / BALLAST).exists()
    store.close()


class Recording:
    """The rounds of a controller that writes down what it does."""

    scopes = ()

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, now: datetime) -> Sequence[NodeStatus]:
        self._store.append(*[EVENT] * 20)
        return ()


def test_a_controller_acts_once_more_on_a_full_disk(disk: Path) -> None:
    """As the daemon does: the round that finds it full writes nothing, the one after it has the ballast's room, and
    ballast is laid again once there is room."""
    seen: list[bool] = []

    def look() -> None:
        seen.append((disk / BALLAST).exists())

    def full() -> None:
        look()
        fill(disk)

    work = Leading(disk, Recording, look, full, look, look, (disk / "fill").unlink, look)
    lead(work)
    assert [bool(problem) for problem in work.ended] == [False, True, False, False, False, False]
    assert seen == [False, True, False, False, True]


def test_ballast_is_laid_only_where_there_is_room(tmp_path: Path, disk: Path) -> None:
    """It must not be what fills a disk; and its lack raises nothing."""
    (disk / "much").write_bytes(bytes(12 << 20))
    assert not Ballast(disk).lay()
    assert not Ballast(tmp_path / "gone").lay()
    assert not Ballast(disk).give_up()


def test_a_folder_is_usable_when_a_store_could_be_kept_there(disk: Path) -> None:
    """Not while it is full, read-only or another's."""
    assert is_usable(disk)
    lock = lock_state(disk)
    assert not is_usable(disk)
    os.close(lock)
    fill(disk)
    assert not is_usable(disk)
    (disk / "fill").unlink()
    command("mount", "-o", "remount,ro", str(disk))
    assert not is_usable(disk)
    command("mount", "-o", "remount,rw", str(disk))
    assert is_usable(disk)


def test_a_daemon_on_a_read_only_disk_looks_and_says_so(tmp_path: Path, disk: Path) -> None:
    """It answers, in observe mode, with the reason; with the disk writable again it starts again by itself."""
    sections = '[orchestrator]\nkind = "local"\n[remediation]\nmode = "quarantine"\n'
    node = RunningNode(tmp_path / "node", "p5")
    node.state_dir = disk / "state"
    node.configure(sections)
    command("mount", "-o", "remount,ro", str(disk))
    try:
        node.start()
        status = node.status()
        assert status is not None
        assert status["mode"] == "observe"
        assert "observes, and acts on nothing" in status["store_problem"]
        command("mount", "-o", "remount,rw", str(disk))
        node.wait(lambda: (now := node.status()) and now["mode"] == "quarantine", 30.0, "the daemon to start again")
        assert (disk / "state" / "healthd.db").exists()
    finally:
        node.stop()


def test_a_wrong_configuration_is_reported_once_when_the_disk_can_be_written_again(tmp_path: Path, disk: Path) -> None:
    """Not every five seconds. Once it is right, `systemctl reload` takes it up at once."""
    node = RunningNode(tmp_path / "node", "p5")
    node.state_dir = disk / "state"
    node.configure('[orchestrator]\nkind = "local"\n[remediation]\nmode = "quarantine"\n')
    right = node.config.read_text()
    command("mount", "-o", "remount,ro", str(disk))
    try:
        node.start()
        assert node.process is not None
        node.config.write_text(right.replace("quarantine", "quarantin"))
        command("mount", "-o", "remount,rw", str(disk))
        node.wait(lambda: "reload.refused" in node.log.read_text(), 30.0, "the daemon to try it")
        time.sleep(6.0)
        logged = node.log.read_text()
        assert (logged.count("reload.refused"), logged.count("state.usable")) == (1, 1)
        node.config.write_text(right)
        node.process.send_signal(signal.SIGHUP)
        node.wait(lambda: (now := node.status()) and now["mode"] == "quarantine", 30.0, "the daemon to start again")
    finally:
        node.stop()
