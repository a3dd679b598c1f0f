"""``healthd controller`` on a head node of Slurm: a lock elects the leader, node comments hold the handoff records.

The lock lies in the state directory. Other controllers with the same folder wait for it; when the leader ends, one of
them continues from the files there. This module decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from healthd.api.controller_stats import ControllerStats
from healthd.config.schema.config import Config
from healthd.controller.dependencies import controller_rules, controller_timeouts, make_controller, metadata_of
from healthd.controller.fleet import reading_every_s
from healthd.controller.fleet_reader import SharedReading
from healthd.controller.incidents import FenceBackend, IncidentBackend
from healthd.controller.jobs import JobList
from healthd.controller.progress import Progress
from healthd.controller.status import StatusFile
from healthd.core.model import CLUSTER
from healthd.fleet.nodes import FleetPicture
from healthd.fleet.slurm import read_fleet
from healthd.notify.notifier import NEWS
from healthd.remediation.controller.controller import Controller
from healthd.remediation.controller.node_status import NodeStatus
from healthd.remediation.decide.fleet import Scope
from healthd.remediation.engine.absent import AbsentNodes
from healthd.remediation.orchestrators.slurm.job_list import SlurmJobList
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.provisioners.from_config import found_by_controller, open_elsewhere
from healthd.remediation.provisioners.slurm_node import OUR_TEXTS, read_node
from healthd.sources.command import run_command
from healthd.state.lock import LOCK, try_lock
from healthd.state.store import Store


class SlurmWork:
    """Nodes of Slurm, from a head node: a lock on a folder, and the handoff records in the nodes' comments."""

    def __init__(self, config: Config) -> None:
        self._config, self._folder = config, Path(config.controller.state_dir)
        self._metadata = metadata_of(config)
        self._found = found_by_controller(config.provisioner, self._metadata)
        kind, mode = config.provisioner.kind, config.remediation.mode
        self.stats = ControllerStats(orchestrator="slurm", provisioner=kind, mode=mode)
        self._host = socket.gethostname().partition(".")[0]
        self._fleet = self._slurm(self._host)
        self.reading = SharedReading(self._read_fleet, every_s=reading_every_s(config))
        cluster = self._slurm(self._host)  # not the sync's: another thread has it
        self.incident_backend: IncidentBackend = cluster
        self.fence_backend: FenceBackend = cluster
        self.jobs: JobList = SlurmJobList(self._slurm(self._host))

    @property
    def about(self) -> str:
        """The platform of the nodes, and how it was found."""
        return f"{self._found.platform}, {self._found.why}"

    @property
    def leader(self) -> str:
        """The host and process that hold the lock."""
        return _leader(self._folder)

    def take_lead(self, held: contextlib.ExitStack, progress: Progress) -> bool:
        """Try the lock."""
        lock = take_lead(self._folder)
        if lock is not None:
            held.callback(os.close, lock)
        return lock is not None

    def leads(self) -> bool:
        """A lock is held until its process ends."""
        return True

    def status(self) -> StatusFile:
        """A file in the folder."""
        return StatusFile(self._folder)

    def told(self, store: Store) -> StoreTold:
        """In the store, which the next leader opens as well."""
        return StoreTold(store)

    def sync(self, store: Store) -> SlurmSync:
        """The controller's own."""
        config, scontrol, calls = self._config, self._fleet.scontrol, self.stats.calls
        controller = make_controller(
            config,
            store,
            fleet=self._fleet,
            node=self._slurm,
            booted=lambda name: read_node(scontrol, name).booted,
            opt_out=config.remediation.opt_out_feature,
            provisioner=lambda name, instance: open_elsewhere(
                config, name, instance, self._metadata, scontrol, calls=calls
            ),
            platform_texts=OUR_TEXTS,
            stats=self.stats.repair_stats,
        )
        absent = AbsentNodes(
            node=self._slurm,
            rules=lambda: controller_rules(config, config.remediation.opt_out_feature, now=datetime.now(UTC)),
            timeouts=controller_timeouts(config),
            monotonic_s=time.monotonic,
        )
        return SlurmSync(controller, absent)

    def _read_fleet(self) -> FleetPicture:
        return read_fleet(self._config, self._host, lambda: datetime.now(UTC), racks=True)

    def _slurm(self, node: str) -> SlurmOrchestrator:
        return SlurmOrchestrator.of(self._config, node, run=self.stats.calls.of_commands("slurm", run_command))


class SlurmSync:
    """One sync, as often as it is called."""

    def __init__(self, controller: Controller, absent: AbsentNodes) -> None:
        self._controller, self._absent = controller, absent

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """All nodes. How many may be out is in the configuration of each node, and not known here."""
        snapshot = self._controller.snapshot
        return () if snapshot is None else (Scope(name=CLUSTER, out=snapshot.out, total=snapshot.total, limit=0),)

    def __call__(self, now: datetime) -> Sequence[NodeStatus]:
        """The controller's own statuses, and the orphans of nodes that Slurm powered down. Raises BackendError,
        StoreError."""
        statuses = self._controller.sync(now)
        snapshot = self._controller.snapshot
        found = () if snapshot is None else self._absent.release(snapshot, self._controller.slots, now)
        return _joined(statuses, [NodeStatus(node=each.node, message=each.message, page=each.page) for each in found])


def _joined(statuses: Sequence[NodeStatus], found: Sequence[NodeStatus]) -> tuple[NodeStatus, ...]:
    """One status for each node: the controller's own, unless only the other one pages."""
    pages = {each.node for each in found if each.page} - {each.node for each in statuses if each.page}
    kept = [each for each in statuses if each.node not in pages]
    known = {each.node for each in kept}
    return (*kept, *(each for each in found if each.node not in known))


class StoreTold:
    """The notifier's state, in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def kept(self) -> str:
        return self._store.fact(NEWS)

    def keep(self, text: str) -> None:
        self._store.keep(NEWS, text)


def take_lead(folder: Path) -> int | None:
    """The lock of the folder, which names its holder; None while another controller has it. Raises StoreError."""
    descriptor = try_lock(folder, "[controller] state_dir")
    if descriptor is not None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{socket.gethostname()} process {os.getpid()}\n".encode(), 0)
    return descriptor


def _leader(folder: Path) -> str:
    try:
        return (folder / LOCK).read_text(errors="replace").strip() or "name not written yet"
    except OSError as error:
        return f"{folder / LOCK} cannot be read: {error.strerror}"
