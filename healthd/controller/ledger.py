"""Keeps the fleet's ledger beside the syncs of the controller that leads, from a thread of its own.

A ledger that cannot be written, or a fleet that cannot be read, is logged once and stops no sync.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.core.errors import BackendError, StoreError
from healthd.ledger.database import LEDGER, Ledger
from healthd.ledger.feed import FleetSource, LedgerFeed
from healthd.ledger.report import fleet_report

REPORT_S = 600.0
REPORT_DAYS = 30.0


def ledger_path(config: Config) -> Path:
    """Where the ledger lies."""
    return Path(config.controller.state_dir) / LEDGER


class LedgerKeeper:
    """One ledger, for as long as this controller leads."""

    def __init__(self, config: Config, source: FleetSource, stats: ControllerStats, log: Any) -> None:
        self._config, self._source, self._stats, self._log = config, source, stats, log
        self._problem, self._report_at = "", datetime.min.replace(tzinfo=UTC)

    def keep(self, stop: threading.Event) -> None:
        """Read the fleet again and again until ``stop``."""
        ledger: Ledger | None = None
        feed: LedgerFeed | None = None
        try:
            while not stop.is_set():
                now = datetime.now(UTC)
                try:
                    if ledger is None or feed is None:
                        ledger = Ledger(ledger_path(self._config), now=now)
                        feed = self._feed(ledger)
                    feed.read(now)
                    self._show(ledger, now)
                    self._tell("")
                except (BackendError, StoreError) as error:
                    self._tell(str(error))
                stop.wait(self._config.ledger.interval_s)
        finally:
            self._stats.ledger = None
            if ledger is not None:
                ledger.close()

    def _feed(self, ledger: Ledger) -> LedgerFeed:
        if ledger.set_aside:
            self._log.error("ledger set aside", said=ledger.set_aside)
        section = self._config.ledger
        return LedgerFeed(ledger, self._source, interval_s=section.interval_s, keep_days=section.retention_days)

    def _show(self, ledger: Ledger, now: datetime) -> None:
        """Have the metrics show the report of the last thirty days, made every ten minutes."""
        if (now - self._report_at).total_seconds() >= REPORT_S:
            self._stats.ledger = fleet_report(ledger.contents(), now - timedelta(days=REPORT_DAYS), now)
            self._report_at = now

    def _tell(self, problem: str) -> None:
        if problem and problem != self._problem:
            self._log.error("the ledger has a gap: the fleet was not read, or not written down", said=problem)
        self._stats.ledger_failing, self._problem = bool(problem), problem
