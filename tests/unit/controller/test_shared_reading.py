"""A controller reads its fleet once for all that need it, beside its syncs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
import structlog
from msgspec.structs import replace

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.config.schema.controller import ControllerSection
from healthd.config.schema.ledger import LedgerSection
from healthd.controller.fleet import FleetKeeper, reading_every_s
from healthd.controller.fleet_reader import EVERY_S, SharedReading
from healthd.controller.kubernetes import READING_S, KubernetesWork
from healthd.controller.ledger import LedgerFile, ledger_path
from healthd.core.errors import BackendUnknown
from healthd.core.model import Mode
from healthd.fleet.incident_memory import kept_memory
from healthd.fleet.nodes import FleetPicture
from healthd.ledger.database import Ledger
from healthd.remediation.orchestrators.kubernetes.api import KubeApi
from tests.support.fleet_readings import NOW, rack
from tests.support.limits import limit_s


def picture(at: datetime = NOW) -> FleetPicture:
    nodes = tuple(rack("rack-7", 1, "gpu.imex.not_up", now=at))
    return FleetPicture(cluster="a", at=at, nodes=nodes, limit=None, taken=0)


class Listing:
    """A cluster that counts how often it is listed."""

    def __init__(self, answer: Callable[[], FleetPicture] = picture) -> None:
        self.answer, self.times, self.now_s = answer, 0, 0.0

    def read(self) -> FleetPicture:
        self.times += 1
        return self.answer()

    def shared(self) -> SharedReading:
        return SharedReading(self.read, monotonic_s=lambda: self.now_s)


def test_two_that_ask_get_one_listing() -> None:
    """Also from two threads at once; the next one comes after EVERY_S."""
    listing = Listing()
    shared = listing.shared()
    first = shared()
    threads = [threading.Thread(target=shared) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert shared() is first
    assert listing.times == 1
    listing.now_s = EVERY_S
    assert shared() is not first
    assert listing.times == 2


def test_a_cluster_that_does_not_answer_is_not_asked_more_often() -> None:
    """All get its error, and the last reading stays to be shown with its time."""
    listing = Listing()
    shared = listing.shared()
    first = shared()

    def fails() -> FleetPicture:
        raise BackendUnknown("slurmctld does not answer")

    listing.answer, listing.now_s = fails, EVERY_S
    for _ in range(3):
        with pytest.raises(BackendUnknown, match="does not answer"):
            shared()
    assert listing.times == 2
    assert shared.latest(structlog.get_logger()).picture is first
    listing.answer, listing.now_s = picture, 2 * EVERY_S
    assert shared() == first


def test_a_ledger_that_asks_more_often_gets_it() -> None:
    """And one that is off, or asks less often, changes nothing."""
    assert reading_every_s(Config(ledger=LedgerSection(interval_s=10.0))) == 10.0
    assert reading_every_s(Config(ledger=LedgerSection(interval_s=10.0, enabled=False))) == EVERY_S
    assert reading_every_s(Config()) == EVERY_S


def test_a_ledger_that_asks_rarely_keeps_no_incident_waiting_on_kubernetes() -> None:
    """The fleet is read there once a minute, for incidents as well."""

    def opened(*_: object, **__: object) -> KubeApi:
        return cast("KubeApi", None)

    for interval_s in (10.0, 3600.0):
        work = KubernetesWork(Config(ledger=LedgerSection(interval_s=interval_s)), {}, opened=opened)
        assert work.reading.every_s == READING_S == 60.0


class NoWait(threading.Event):
    """An event for which no time passes."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def test_a_fleet_that_is_read_more_rarely_than_its_ledger_asks_is_watched_all_the_same(folder: Path) -> None:
    """Each reading comes later than three intervals of the ledger: an hour of them is an hour of exposure, no gap."""
    config = Config(controller=ControllerSection(state_dir=str(folder)), ledger=LedgerSection(interval_s=10.0))
    stats = ControllerStats(orchestrator="kubernetes", provisioner="none", mode=Mode.OBSERVE)
    log = structlog.wrap_logger(structlog.testing.CapturingLogger(), processors=[])
    file, stop = LedgerFile(ledger_path(config), log), NoWait()

    def read() -> FleetPicture:
        if listing.times > 60:
            stop.set()
        return picture(NOW + timedelta(minutes=listing.times - 1))

    listing = Listing(read)
    shared = SharedReading(listing.read, every_s=READING_S, monotonic_s=lambda: READING_S * listing.times)
    FleetKeeper(config, shared, None, stats, log, ledger=file).keep(stop)
    (watched,) = file.opened().contents().watched
    assert watched.until - watched.start == timedelta(minutes=60)
    file.close()


def kept(
    folder: Path, listing: Listing, stops: Callable[[], bool], *, enabled: bool = True, every_s: float = EVERY_S
) -> ControllerStats:
    """The stats after a keeper has run until ``stops`` says so at a reading."""
    stop = threading.Event()
    stats = ControllerStats(orchestrator="slurm", provisioner="none", mode=Mode.OBSERVE)
    config = Config(controller=ControllerSection(state_dir=str(folder)), ledger=LedgerSection(enabled=enabled))
    answer = listing.answer

    def read() -> FleetPicture:
        if stops():
            stop.set()
        return answer()

    listing.answer = read
    log = structlog.wrap_logger(structlog.testing.CapturingLogger(), processors=[])
    shared = SharedReading(listing.read, every_s=every_s)
    ledger = LedgerFile(ledger_path(config), log) if enabled else None
    thread = threading.Thread(target=FleetKeeper(config, shared, None, stats, log, ledger=ledger).keep, args=(stop,))
    thread.start()
    thread.join(timeout=limit_s(30))
    assert not thread.is_alive()
    if ledger is not None:
        ledger.close()
    return stats


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def test_incidents_and_ledger_are_kept_from_one_reading(folder: Path) -> None:
    """One listing gives both; a ledger that is off writes no file."""
    listing = Listing()
    stats = kept(folder, listing, lambda: True)
    assert listing.times == 1
    memory = kept_memory(folder)
    assert memory is not None
    assert [each.nodes for each in memory.open] == [each.nodes for each in memory.incidents] != []
    ledger = Ledger(ledger_path(Config(controller=ControllerSection(state_dir=str(folder)))), now=NOW)
    assert ledger.watched_until(NOW) == NOW
    assert len(ledger.contents().entries) == 18
    ledger.close()
    assert stats.incidents
    (folder / "off").mkdir(mode=0o755)
    kept(folder / "off", Listing(), lambda: True, enabled=False)
    assert not list((folder / "off").glob("ledger.db"))


def test_a_defect_of_the_ledger_stops_no_incident(folder: Path) -> None:
    """It loses statistics alone, and the metric and the log say so."""
    nodes = tuple(replace(each, listed=replace(each.listed, record=cast("str", 7))) for each in picture().nodes)
    listing = Listing(lambda: replace(picture(NOW + timedelta(hours=listing.times)), nodes=nodes))
    stats = kept(folder, listing, lambda: listing.times >= 3, every_s=0.001)
    assert stats.ledger_failing
    assert stats.incidents
