"""What a controller writes to the log and the audit trail: what is new, once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from healthd.config.schema.notify import NotifySection
from healthd.controller.slurm import StoreTold
from healthd.core.encodable import json_text
from healthd.core.errors import BackendUnknown, StoreError
from healthd.notify.news import TopicMemory
from healthd.notify.notifier import NotifierState
from healthd.remediation.controller.node_status import NodeStatus
from healthd.state.store import Store
from tests.support.leading import Leading, lead
from tests.support.limits import limit_s

NO_POLICIES = NodeStatus(node="", message="the admission policies are missing", page=True)
WAITS = NodeStatus(node="n1", message="waits for its turn")
NO_FLEET = "incidents are as they were: the fleet could not be read: there is no cluster"


class Syncs:
    """Two troubles of the cluster stand, one of which the sync finds; the sixth sync fails."""

    scopes = ()

    def __init__(self, store: Store) -> None:
        self.count = 0

    def __call__(self, now: datetime) -> Sequence[NodeStatus]:
        self.count += 1
        if self.count == 6:
            raise BackendUnknown("no answer")
        return WAITS, NO_POLICIES


def test_what_stands_is_written_once(tmp_path: Path) -> None:
    """However many troubles the cluster has; a sync that fails has the nodes' messages not written again."""

    def fleet_was_read() -> None:
        began = time.monotonic()
        while not work.stats.fleet_problem:
            assert time.monotonic() - began < limit_s(10)
            time.sleep(0.01)

    work = Leading(tmp_path, Syncs, *[fleet_was_read] * 12)
    lead(work)
    store = Store(tmp_path / "controller.db", now=datetime.now(UTC))
    written = [event.text for event in store.events() if event.kind == "decision"]
    store.close()
    cluster = f"{NO_POLICIES.message}; {NO_FLEET}"
    failed = "sync failed, no node was changed: the cluster does not answer: no answer"
    assert written == [cluster, f"n1: {WAITS.message}", failed, cluster]


class SlowToTell(StoreTold):
    """The API server does not answer the first two questions of a new leader."""

    fails = 2

    def kept(self) -> str:
        self.fails -= 1
        if self.fails >= 0:
            raise StoreError("no answer")
        page = TopicMemory(message="n7 needs an operator", since=datetime.now(UTC), reported=True)
        return json_text(NotifierState(seen={"page n7": page}))


class Slow(Leading):
    """Keeps what was told where that answers late."""

    def told(self, store: Store) -> StoreTold:
        return SlowToTell(store)


def test_what_the_leader_before_has_reported_is_asked_for_again(tmp_path: Path) -> None:
    """Without it the page for a node that is back by now would stay open with its receivers for good."""
    known: list[str] = []

    def look() -> None:
        end_s = time.monotonic() + limit_s(30)
        while work.stats.notifier is None:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        known.extend(work.stats.notifier._reports.seen)

    work = Slow(tmp_path, Syncs, look)
    lead(work, NotifySection(webhook_url="http://127.0.0.1:9/"))
    assert known == ["page n7"]
