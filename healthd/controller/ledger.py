"""Keeps the fleet's ledger beside the syncs of the controller that leads: it writes down what is new in a reading.

A ledger that cannot be written, or a fleet that cannot be read, is logged once and stops nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from healthd.api.controller_stats import ControllerStats
from healthd.checklib.tables import is_ultraserver
from healthd.config.schema.config import Config
from healthd.core.errors import BackendError, ConfigError, StoreError
from healthd.fleet.inventories import completed_readings
from healthd.fleet.nodes import FleetPicture
from healthd.fleet.readings import readings_of
from healthd.ledger.database import LEDGER, Ledger
from healthd.ledger.entries import MachineIdentity
from healthd.ledger.feed import LedgerFeed
from healthd.ledger.report import fleet_report
from healthd.remediation.provisioners.instance_topology import InstancePlace

REPORT_S = 600.0
REPORT_DAYS = 30.0
TOPOLOGY_S, TOPOLOGY_AGAIN_S = 3_600.0, 86_400.0
"""EC2 is asked at most so often where there is a new instance, and so often for those that it does not describe."""


def ledger_path(config: Config) -> Path:
    """Where the ledger lies."""
    return Path(config.controller.state_dir) / LEDGER


class LedgerFile:
    """The ledger of a controller that leads: its keepers have one file, which the first of them opens. A file that was
    set aside is logged."""

    def __init__(self, path: Path, log: Any) -> None:
        self._path, self._log, self._lock = path, log, threading.Lock()
        self._ledger: Ledger | None = None

    def opened(self) -> Ledger:
        """The ledger, open. Raises StoreError."""
        with self._lock:
            if self._ledger is None:
                self._ledger = Ledger(self._path, now=datetime.now(UTC))
                if self._ledger.set_aside:
                    self._log.error("ledger set aside", message=self._ledger.set_aside)
            return self._ledger

    def close(self) -> None:
        """Close it."""
        with self._lock:
            if self._ledger is not None:
                self._ledger.close()
            self._ledger = None


class LedgerKeeper:
    """Keeps the ledger for as long as this controller leads. ``reading``: the fleet as it was read last; raises
    BackendError, ConfigError. ``every_s``: the least time between two of them. ``topology``: where EC2 says that
    instances stand; raises BackendError. ``racks``: by node, what of that is known."""

    def __init__(
        self,
        config: Config,
        file: LedgerFile,
        reading: Callable[[], FleetPicture],
        stats: ControllerStats,
        log: Any,
        *,
        every_s: float = 0.0,
        topology: Callable[[], Mapping[str, InstancePlace]] | None = None,
    ) -> None:
        self._interval_s = max(config.ledger.interval_s, every_s)
        self._config, self._file, self._reading, self._stats, self._log = config, file, reading, stats, log
        self._problem, self._report_at = "", datetime.min.replace(tzinfo=UTC)
        self._feed: LedgerFeed | None = None
        self._fed_at = self._report_at
        self._topology, self._wanted = topology, frozenset[str]()
        self._asked_at, self._unplaced = self._report_at, ""
        self.racks: Mapping[str, str] = {}

    def __call__(self) -> None:
        """Write down what is new in the fleet, where a reading is due."""
        try:
            fleet = self._reading()
            if abs((fleet.at - self._fed_at).total_seconds()) < self._config.ledger.interval_s:
                return
            feed = self._begun()
            feed.read(readings_of(fleet.nodes), fleet.at)
            self._fed_at = fleet.at
            self._place(feed, fleet.at)
            self._show(self._file.opened(), fleet.at)
            self._tell("")
        except (BackendError, ConfigError, StoreError) as error:
            self._tell(str(error))

    def close(self) -> None:
        """Show its report no longer, and begin again with the next reading."""
        self._stats.ledger = self._feed = None

    def _place(self, feed: LedgerFeed, now: datetime) -> None:
        """Have the next reading know where new instances stand."""
        machines = feed.machines
        self.racks = {name: each.place for name, each in machines.items() if each.place}
        wanted = frozenset(each.instance for each in machines.values() if each.instance and not _is_placed(each))
        pause_s = TOPOLOGY_S if wanted - self._wanted else TOPOLOGY_AGAIN_S
        if self._topology is None or not wanted or abs((now - self._asked_at).total_seconds()) < pause_s:
            return
        self._asked_at, self._wanted, problem = now, wanted, ""
        try:
            there = {each.instance for each in machines.values()}
            feed.places = {**{each: place for each, place in feed.places.items() if each in there}, **self._topology()}
        except BackendError as error:
            problem, self._wanted = str(error), frozenset()
        if problem and problem != self._unplaced:
            self._log.error("racks of EC2 are not known", message=problem)
        self._unplaced = problem

    def _begun(self) -> LedgerFeed:
        if self._feed is None:
            section = self._config.ledger
            self._feed = LedgerFeed(
                self._file.opened(),
                partial(completed_readings, section.inventory_url),
                interval_s=self._interval_s,
                keep_days=section.retention_days,
            )
        return self._feed

    def _show(self, ledger: Ledger, now: datetime) -> None:
        """Have the metrics show the report of the last thirty days, made every ten minutes."""
        if abs((now - self._report_at).total_seconds()) >= REPORT_S:
            since = now - timedelta(days=REPORT_DAYS)
            self._stats.ledger = fleet_report(ledger.contents(since), since, now)
            self._report_at = now

    def _tell(self, problem: str) -> None:
        if problem and problem != self._problem:
            self._log.error("the ledger has a gap: the fleet was not read, or not written down", message=problem)
        self._stats.ledger_failing, self._problem = bool(problem), problem


def _is_placed(machine: MachineIdentity) -> bool:
    """Whether its place is known whole: EC2 tells the Capacity Block of an UltraServer some time after its launch."""
    return bool(machine.network) and (bool(machine.capacity_block) or not is_ultraserver(machine.instance_type))
