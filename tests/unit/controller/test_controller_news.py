"""What a controller writes to the log and the audit trail: what is new, once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from healthd.core.errors import BackendUnknown
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
