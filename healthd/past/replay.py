"""What would have been found, decided and done on past logs: the daemon's own checks, history and policy, on old lines.

The time is that of the lines. Nothing is asked of this machine and nothing is done; what no log tells (how long a job
ran on after the drain, whether a repair would have worked) is assumed, and the assumptions are settings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import merge
from pathlib import Path

from healthd.agent import enabled_checks, kernel_needles
from healthd.check import Check
from healthd.config.replay_schema import ReplaySection
from healthd.config.schema import Config
from healthd.model import Finding, Mode, Outcome
from healthd.monitor import Monitor
from healthd.past.host import PastHost, Story
from healthd.past.node import BOOTED, Batch, PastNode, outcomes_of
from healthd.past.store import PastStore, is_store, open_store
from healthd.remediation.policy import Rules, SeenElsewhere, Situation
from healthd.remediation.policy_files import bounds_of, policy_of
from healthd.remediation.ports import FleetLevel, NodeView
from healthd.sources.pastlines import Line
from healthd.sources.pastlogs import PastLog, open_log


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file: what it was taken for, and how much of it could be read."""

    path: str
    form: str
    lines: int
    unread: int
    kernel_lines: int
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Everything."""

    policy: str
    mode: Mode
    sources: tuple[Source, ...]
    stories: tuple[Story, ...]
    assumed: ReplaySection


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is tried: a policy (a shipped name or a file; "": the configured one), as on which instance type, and in a
    fleet of how many ``nodes`` (0: the budget is not applied, as no log tells how many there are)."""

    policy: str = ""
    instance_type: str | None = None
    mode: Mode = Mode.REPAIR
    nodes: int = 0


def replay(paths: Iterable[Path], config: Config, trial: Trial) -> Replayed:
    """Judge these files together, line after line in the order of time, each host by itself.

    Raises ConfigError for a policy that cannot be used, SourceMissing and SourceUnreadable for a file.
    """
    policy = policy_of(config.policy, trial.instance_type, trial.policy)
    rules = Rules(mode=trial.mode, max_out=config.budget.max_out, policy=policy, bounds=bounds_of(config.policy))
    fleet = _Fleet(config=config, rules=rules, nodes=trial.nodes, instance_type=trial.instance_type)
    logs, stores = _sorted_out(paths)
    needles = _needles(fleet.checks, config)
    for line in _in_order([log.read(needles) for log in logs]):
        fleet.take(line)
    for store in stores:
        for outcome in store.outcomes():
            fleet.absorb(store.host, outcome)
    fleet.finish()
    return Replayed(
        policy=policy.name,
        mode=trial.mode,
        sources=(*map(_source, logs), *map(_store_source, stores)),
        stories=tuple(host.story() for _, host in sorted(fleet.hosts.items())),
        assumed=config.replay,
    )


def findings_in(path: Path, config: Config) -> Iterator[Finding]:
    """What the kernel checks find in one file, batch by batch; of an event store, what was found then."""
    checks = _kernel_checks(config)
    logs, stores = _sorted_out([path])
    for log in logs:
        node, batch = PastNode(name=log.host), Batch()
        for line in log.read(_needles(checks, config)):
            if batch.is_over(line):
                yield from _findings(checks, config, node, batch)
            batch.add(line)
        yield from _findings(checks, config, node, batch)
    for store in stores:
        yield from (finding for outcome in store.outcomes() for finding in outcome.result.findings)


# ---------------------------------------------------------------------------------------------------------------------
# reading


def _sorted_out(paths: Iterable[Path]) -> tuple[list[PastLog], list[PastStore]]:
    paths = tuple(paths)
    stores = [open_store(path) for path in paths if is_store(path)]
    return [open_log(path) for path in paths if not is_store(path)], stores


def _in_order(streams: Sequence[Iterator[Line]]) -> Iterator[Line]:
    """One stream by time. Each file is in its own order already, as far as its clock was."""
    return merge(*streams, key=lambda line: line.time) if len(streams) > 1 else streams[0] if streams else iter(())


def _needles(checks: Mapping[str, Check], config: Config) -> tuple[bytes, ...]:
    return (*kernel_needles(checks, config.checks), f"^{BOOTED}".encode())


def _source(log: PastLog) -> Source:
    return Source(
        path=str(log.path),
        form=log.format.name,
        lines=log.lines,
        unread=log.unread,
        kernel_lines=log.kernel_lines,
        notes=log.notes,
    )


def _store_source(store: PastStore) -> Source:
    return Source(
        path=str(store.path),
        form="event store of healthd",
        lines=store.events,
        unread=store.unread,
        kernel_lines=store.faults,
        notes=("what it found then is judged by the checks of now",),
    )


# ---------------------------------------------------------------------------------------------------------------------
# judging


def _findings(checks: Mapping[str, Check], config: Config, node: PastNode, batch: Batch) -> Iterator[Finding]:
    if records := batch.taken():
        for outcome in outcomes_of(checks, config.checks, node, records):
            yield from outcome.result.findings


def _kernel_checks(config: Config) -> dict[str, Check]:
    return {name: check for name, check in enabled_checks(config).items() if check.on == "kernel"}


@dataclass(kw_only=True)
class _Fleet:
    """All nodes that the logs name."""

    config: Config
    rules: Rules
    nodes: int
    instance_type: str | None
    hosts: dict[str, PastHost] = field(default_factory=dict)
    waiting: deque[PastHost] = field(default_factory=deque)
    checks: Mapping[str, Check] = field(init=False)

    def __post_init__(self) -> None:
        self.checks = _kernel_checks(self.config)

    def take(self, line: Line) -> None:
        """File a line under its host. Batches that are over by its time are judged first, whosever they are."""
        if not line.trusted and not self.config.sources.trust_user_kmsg:
            return
        waiting = self.waiting
        while waiting and waiting[0].batch.until < line.time:
            waiting.popleft().judge()
        host = self.hosts.get(line.host) or self._host(line.host)
        if host.batch.is_over(line):
            host.judge()
        if not host.batch.records:
            waiting.append(host)
        host.batch.add(line)

    def absorb(self, name: str, outcome: Outcome) -> None:
        """Fold in what a check came to then, as an event store tells it."""
        host = self.hosts.get(name) or self._host(name)
        host.absorb(outcome)
        host.go_on(outcome.at)

    def finish(self) -> None:
        """Judge what is left, and let every repair come to its end."""
        for host in self.hosts.values():
            host.judge()
        for host in self.hosts.values():
            host.end_outage()

    def situation(self, host: PastHost, now: datetime) -> Situation:
        """A node in service, and what the other nodes show at this moment."""
        others = [other for other in self.hosts.values() if other is not host]
        for other in others:
            other.end_if_over(now)
        elsewhere = [
            SeenElsewhere(node=other.name, code=fault.code, at=fault.first)
            for other in others
            for fault in other.monitor.history.faults.values()
        ]
        out = frozenset(other.name for other in others if other.until) if self.nodes else frozenset[str]()
        return Situation(
            view=NodeView(name=host.name, in_service=True, flags=frozenset(), hold=None),
            level=FleetLevel(out=out, total=max(1, self.nodes)),
            fleet_findings=tuple(elsewhere),
        )

    def _host(self, name: str) -> PastHost:
        node = PastNode(name=name, instance_type=self.instance_type)
        checks = enabled_checks(self.config)
        monitor = Monitor(checks, None, policy=self.rules.policy)
        self.hosts[name] = host = PastHost(name=name, fleet=self, node=node, monitor=monitor)
        return host
