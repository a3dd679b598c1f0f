"""The controller that leads keeps its fleet in a thread of its own: incidents and ledger, from one reading.

No sync waits for it, and a fleet that cannot be read stops none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.controller.dependencies import fence_rules, metadata_of
from healthd.controller.fleet_reader import EVERY_S, SharedReading
from healthd.controller.incidents import FenceBackend, IncidentBackend, IncidentKeeper
from healthd.controller.ledger import LedgerFile, LedgerKeeper
from healthd.controller.ultraservers import UltraServerWatch
from healthd.fleet.fences import NO_FENCES
from healthd.fleet.incident_memory import rules_of
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.detect import region_of
from healthd.remediation.provisioners.instance_topology import InstancePlace, read_topology
from healthd.remediation.provisioners.ultraservers import read_ultraservers

_NOTICES_S = 10.0  # an incident that the receivers have accepted does not wait for the next reading


def reading_every_s(config: Config) -> float:
    """How often the fleet of this configuration is read, in seconds."""
    return min(EVERY_S, config.ledger.interval_s) if config.ledger.enabled else EVERY_S


def topology_of(config: Config) -> Callable[[], Mapping[str, InstancePlace]] | None:
    """How EC2 is asked where instances stand; None where the site does not want that."""
    if not config.ledger.aws_topology:
        return None
    aws = _aws(config)
    return lambda: read_topology(aws)


def ultraservers_of(config: Config, stats: ControllerStats, log: Any) -> UltraServerWatch | None:
    """The watch of UltraServers; None where the site does not want that."""
    if not config.controller.ultraservers:
        return None
    aws = _aws(config)
    return UltraServerWatch(lambda: read_ultraservers(aws), stats, log)


def _aws(config: Config) -> Aws:
    section = config.provisioner.aws
    region = section.region or region_of(metadata_of(config))
    return Aws(region=region, endpoint_url=section.endpoint_url, timeout_s=section.timeout_s)


class FleetKeeper:
    """The keepers of one fleet, for as long as this controller leads. A defect of the ledger loses statistics alone,
    and the incidents go on. ``cluster``, ``fencer``: its acts in the cluster for incidents; None: none. ``ledger``:
    None where none is kept."""

    def __init__(
        self,
        config: Config,
        reading: SharedReading,
        cluster: IncidentBackend | None,
        stats: ControllerStats,
        log: Any,
        *,
        ledger: LedgerFile | None = None,
        fencer: FenceBackend | None = None,
    ) -> None:
        self._reading, self._stats, self._log = reading, stats, log
        self._incidents = IncidentKeeper(
            reading,
            folder=Path(config.controller.state_dir),
            rules=rules_of(config.policy),
            stats=stats,
            cluster=cluster,
            fencer=fencer,
            shows_notices=bool(config.notify.incident_wait_s),
            fence_rules=partial(fence_rules, config) if fencer is not None else lambda _: NO_FENCES,
        )
        self._ledger = (
            None
            if ledger is None
            else LedgerKeeper(
                config, ledger, reading, stats, log, every_s=reading.every_s, topology=topology_of(config)
            )
        )
        self._ultraservers = ultraservers_of(config, stats, log)

    def keep(self, stop: threading.Event) -> None:
        """Read the fleet again and again until ``stop``."""
        try:
            while not stop.is_set():
                self._stats.fleet_problem = self._incidents()
                self._keep_ledger()
                if self._ultraservers is not None:
                    self._ultraservers()
                stop.wait(min(self._reading.every_s, _NOTICES_S))
        finally:
            self._stats.fleet_problem = ""
            if self._ledger is not None:
                self._ledger.close()
            if self._ultraservers is not None:
                self._ultraservers.close()

    def _keep_ledger(self) -> None:
        if self._ledger is None:
            return
        try:
            self._ledger()
            self._reading.racks = self._ledger.racks
        except Exception:  # noqa: BLE001 - statistics alone are lost, and the rest goes on; the log and the metric say so
            self._log.critical("the ledger failed; please report this defect of healthd", exc_info=True)
            self._ledger.close()
            self._ledger, self._stats.ledger_failing = None, True
