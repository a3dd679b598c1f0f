"""Replays past logs: the daemon's own checks, history and policy find, decide and act on old lines.

The time is that of the lines. A replay neither reads nor changes this machine. Facts that no log has (how long a job
ran on after the drain, whether a repair would have worked) are assumed, by settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from healthd.agent.agent import enabled_checks, kernel_needles
from healthd.config.schema.config import Config
from healthd.config.schema.replay import ReplaySection
from healthd.core.check import Check
from healthd.core.errors import SourceUnreadable
from healthd.core.model import Finding, Mode, Outcome
from healthd.remediation.policy_files import policy_of
from healthd.replay.event_store import PastStore, is_store, open_store
from healthd.replay.fleet import PastFleet
from healthd.replay.node import BOOTED, PastNode, ReplayBatch, outcomes_of
from healthd.replay.story import Story
from healthd.sources.pastlines import EMPTY, LogLine
from healthd.sources.pastlogs import PastLog, open_log


class ReplayedFile(Struct, frozen=True, kw_only=True):
    """One file: its format, and how much of it could be read."""

    path: str
    form: str
    lines: int
    unread: int
    kernel_lines: int
    notes: tuple[str, ...]


class Replayed(Struct, frozen=True, kw_only=True):
    """Everything."""

    policy: str
    mode: Mode
    sources: tuple[ReplayedFile, ...]
    stories: tuple[Story, ...]
    assumed: ReplaySection


class Trial(Struct, frozen=True, kw_only=True):
    """The trial: a policy (a shipped name or a file; "": the configured one), an instance type, and the ``nodes`` of
    the fleet (0: without a budget, because no log has their number)."""

    policy: str = ""
    instance_type: str | None = None
    mode: Mode = Mode.REPAIR
    nodes: int = 0


def replay(
    paths: Iterable[Path], config: Config, trial: Trial, read: Callable[[int], None] = lambda _lines: None
) -> Replayed:
    """Judge these files together, line after line in the order of time, each host by itself. ``read`` is called
    repeatedly with the number of new lines.

    Raises ConfigError for an invalid policy, SourceMissing and SourceUnreadable for a file.
    """
    policy = policy_of(config.policy, trial.instance_type, trial.policy)
    fleet = PastFleet(config, policy, mode=trial.mode, nodes=trial.nodes, instance_type=trial.instance_type)
    logs, stores = _sorted_out(paths)
    needles = _needles(fleet.world.kernel_checks, config)
    streams: list[Iterator[LogLine | _Found]] = [*(log.read(needles, read) for log in logs), *map(_found, stores)]
    for item in merge(*streams, key=attrgetter("time")):  # each in its own order already, as far as its clock was
        if isinstance(item, LogLine):
            fleet.take(item)
        else:
            fleet.absorb(item.host, item.outcome)
    stories = fleet.stories(max((log.ended for log in logs if log.ended is not None), default=None))
    return Replayed(
        policy=policy.name,
        mode=trial.mode,
        sources=(*map(_source, logs), *map(_store_source, stores)),
        stories=stories,
        assumed=config.replay,
    )


def findings_in(path: Path, config: Config) -> Iterator[Finding]:
    """The findings of the kernel checks in one file, batch by batch; of an event store, its own findings."""
    checks = _kernel_checks(config)
    logs, stores = _sorted_out([path])
    for log in logs:
        node, batch = PastNode(name=log.host), ReplayBatch()
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
    logs = [open_log(path) for path in paths if not is_store(path)]
    if not stores and all(log.format is EMPTY for log in logs):
        raise SourceUnreadable(f"{', '.join(map(str, paths))}: empty; expected a kernel log with at least one line")
    return logs, stores


class _Found(NamedTuple):
    """An outcome from an event store, with its node."""

    time: datetime
    host: str
    outcome: Outcome


def _found(store: PastStore) -> Iterator[_Found]:
    for outcome in store.outcomes():
        yield _Found(time=outcome.at, host=store.host, outcome=outcome)


def _needles(checks: Mapping[str, Check], config: Config) -> tuple[bytes, ...]:
    return (*kernel_needles(checks, config.checks), f"^{BOOTED}".encode())


def _source(log: PastLog) -> ReplayedFile:
    return ReplayedFile(
        path=str(log.path),
        form=log.format.name,
        lines=log.lines,
        unread=log.unread,
        kernel_lines=log.kernel_lines,
        notes=log.notes,
    )


def _store_source(store: PastStore) -> ReplayedFile:
    return ReplayedFile(
        path=str(store.path),
        form="event store of healthd",
        lines=store.events,
        unread=store.unread,
        kernel_lines=store.faults,
        notes=("its findings are judged by the checks of this version",),
    )


# ---------------------------------------------------------------------------------------------------------------------
# judging


def _findings(checks: Mapping[str, Check], config: Config, node: PastNode, batch: ReplayBatch) -> Iterator[Finding]:
    if records := batch.taken():
        for outcome in outcomes_of(checks, config.checks, node, records):
            yield from outcome.result.findings


def _kernel_checks(config: Config) -> dict[str, Check]:
    return {name: check for name, check in enabled_checks(config).items() if check.on == "kernel"}
