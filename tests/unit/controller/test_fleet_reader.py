"""One reading of the fleet serves all that look: how often it is read, and what a failure shows."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from healthd.controller.fleet_reader import EVERY_S, SHOWN_EVERY_S, SharedReading
from healthd.core.errors import BackendUnknown
from healthd.fleet.nodes import FleetPicture
from tests.support.limits import limit_s

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
PICTURE = FleetPicture(cluster="train-a", at=NOW, nodes=(), limit=3, taken=0)
LOG = structlog.get_logger()


class Cluster:
    """Counts how often it is read; ``wrong`` is raised, and a reading waits for ``gate``."""

    def __init__(self) -> None:
        self.reads, self.elapsed_s = 0, 1000.0
        self.gate = threading.Event()
        self.gate.set()
        self.wrong: Exception | None = None
        self.reader = SharedReading(self.read, clock=lambda: NOW, monotonic_s=lambda: self.elapsed_s)

    def read(self) -> FleetPicture:
        self.reads += 1
        assert self.gate.wait(limit_s(20))
        if self.wrong is not None:
            raise self.wrong
        return replace(PICTURE, taken=self.reads)

    def latest(self) -> Any:
        return self.reader.latest(LOG, wait_s=limit_s(20))


def join_threads(name: str) -> None:
    """Wait for those of this name to end."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(limit_s(20))


def test_it_is_read_once_for_all_that_look() -> None:
    """Ten requests within its time are one reading; none is made while no browser asks."""
    cluster = Cluster()
    assert cluster.reads == 0
    assert [cluster.latest().picture.taken for _ in range(10)] == [1] * 10
    cluster.elapsed_s += 10 * SHOWN_EVERY_S
    assert cluster.reads == 1
    assert cluster.latest().picture.taken == 2


def test_who_does_not_wait_gets_the_last_reading_at_once() -> None:
    """A slow cluster delays no answer, and is asked once at a time."""
    cluster = Cluster()
    cluster.latest()
    cluster.gate.clear()
    cluster.elapsed_s += SHOWN_EVERY_S
    early = [cluster.reader.latest(LOG) for _ in range(3)]
    assert {(each.picture.taken, each.under_way) for each in early if each.picture} == {(1, True)}
    cluster.elapsed_s += SHOWN_EVERY_S
    assert cluster.reader.latest(LOG).under_way
    cluster.gate.set()
    assert cluster.latest().picture.taken == 2
    assert cluster.reads == 2


def test_a_failure_is_shown_with_its_time_beside_the_last_reading() -> None:
    """It is not tried again before its time, and the next success ends it."""
    cluster = Cluster()
    cluster.latest()
    cluster.wrong = BackendUnknown("slurmctld does not answer")
    cluster.elapsed_s += SHOWN_EVERY_S
    failed = cluster.latest()
    assert (failed.picture.taken, failed.problem, failed.failed) == (1, "slurmctld does not answer", NOW)
    assert cluster.latest() == failed
    cluster.wrong = None
    cluster.elapsed_s += SHOWN_EVERY_S
    assert (cluster.latest().problem, cluster.reads) == ("", 3)


def test_a_defect_is_logged_and_shown() -> None:
    """A page that shows an old fleet for ever says why."""
    cluster = Cluster()
    cluster.wrong = ZeroDivisionError()
    with capture_logs() as logs:
        last = cluster.reader.latest(structlog.get_logger(), wait_s=limit_s(20))
        join_threads("fleet")  # it shows the failure first, and then logs it
    assert last.problem == "a defect of healthd; see the controller's log"
    assert [each["log_level"] for each in logs] == ["error"]
    cluster.elapsed_s += SHOWN_EVERY_S
    cluster.wrong = None
    assert cluster.latest().picture is not None


def test_the_page_shows_what_the_keepers_read_and_reads_nothing_beside_it() -> None:
    """One picture: a keeper's reading is the page's, and a page's reading is the keeper's next one."""
    cluster = Cluster()
    for turn in range(1, 4):
        kept = cluster.reader()
        assert cluster.latest().picture is kept
        assert cluster.reads == turn
        cluster.elapsed_s += EVERY_S
    cluster.elapsed_s += SHOWN_EVERY_S
    shown = cluster.latest().picture
    assert cluster.reader() is shown
    assert cluster.reads == 4


def test_a_page_that_comes_during_a_keepers_reading_waits_for_that_one() -> None:
    """And gets the last reading where it does not wait."""
    cluster = Cluster()
    cluster.reader()
    cluster.gate.clear()
    cluster.elapsed_s += SHOWN_EVERY_S
    keeper = threading.Thread(target=cluster.reader)
    keeper.start()
    while cluster.reads < 2:
        threading.Event().wait(0.01)
    early = cluster.reader.latest(LOG)
    assert (early.picture is not None and early.picture.taken, early.under_way) == (1, True)
    cluster.gate.set()
    assert cluster.latest().picture.taken == 2
    keeper.join(limit_s(20))
    assert cluster.reads == 2


def test_a_reading_that_is_not_due_ends_the_wait() -> None:
    """A cluster that is read once a minute: the page asks more often, and gets the last reading."""
    cluster = Cluster()
    cluster.reader.every_s = 60.0
    cluster.reader()
    cluster.elapsed_s += SHOWN_EVERY_S
    last = cluster.latest()
    assert (last.picture.taken, last.under_way, cluster.reads) == (1, False, 1)
