"""A controller that leads for a few syncs, in this process and without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import structlog
import structlog.testing

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.config.schema.controller import ControllerSection
from healthd.config.schema.ledger import LedgerSection
from healthd.config.schema.notify import NotifySection
from healthd.controller.fleet_reader import SharedReading
from healthd.controller.progress import Progress
from healthd.controller.run import ControllerService, ControllerSync
from healthd.controller.slurm import StoreTold
from healthd.controller.status import StatusFile
from healthd.core.errors import BackendUnknown
from healthd.core.model import Mode
from healthd.daemon.service_manager import Signals
from healthd.fleet.nodes import FleetPicture
from healthd.state.store import Store


def _no_fleet() -> FleetPicture:
    raise BackendUnknown("there is no cluster")


class Leading:
    """A controller's work that leads for so many syncs, before each of which something may happen. Its fleet cannot be
    read."""

    about, leader = "one node", "this one"

    def __init__(self, folder: Path, sync: Callable[[Store], ControllerSync], *before: Callable[[], object]) -> None:
        self.folder, self.sync, self._before = folder, sync, list(before)
        self.stats = ControllerStats(orchestrator="slurm", provisioner="ec2", mode=Mode.OBSERVE)
        self.ended: list[str] = []
        self.reading, self.incident_backend, self.fence_backend = SharedReading(_no_fleet), None, None
        self.jobs = None

    def take_lead(self, held: ExitStack, progress: Progress) -> bool:
        return True

    def leads(self) -> bool:
        self.ended += [self.stats.problem] if self.stats.syncs else []
        if not self._before:
            return False
        self._before.pop(0)()
        return True

    def status(self) -> StatusFile:
        return StatusFile(self.folder)

    def told(self, store: Store) -> StoreTold:
        return StoreTold(store)


def lead(work: Leading, notify: NotifySection | None = None) -> None:
    """Run the controller until it leads no more."""
    controller, ledger = ControllerSection(state_dir=str(work.folder), interval_s=0.01), LedgerSection(enabled=False)
    log = structlog.wrap_logger(structlog.testing.CapturingLogger())
    config = Config(controller=controller, ledger=ledger, notify=notify or NotifySection())
    service = ControllerService(config, log, work, once=False, manager="", signals=Signals("", log, lambda: None))
    with ExitStack() as held:
        service._lead(held)
