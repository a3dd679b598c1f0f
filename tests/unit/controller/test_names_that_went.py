"""A controller leads for months, and nodes come and go under names that never come again: it remembers none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from healthd.core.model import CLUSTER, Remedy
from healthd.ledger.changes import NodeReading
from healthd.ledger.database import Ledger
from healthd.ledger.entries import SpanState
from healthd.ledger.feed import LedgerFeed
from healthd.remediation.orchestrators.kubernetes.event_writer import KubeDrainEvents
from healthd.remediation.orchestrators.kubernetes.fleet import KubeFleet
from healthd.remediation.orchestrators.kubernetes.objects.budget import LEASE, key_of
from healthd.remediation.orchestrators.kubernetes.objects.drain_record import DrainRecord
from healthd.remediation.orchestrators.kubernetes.objects.eviction import Drain
from healthd.testing import FakeClock
from tests.support.controller_rig import NODE, AskedWorld
from tests.support.remembered import texts_in
from tests.unit.remediation.kubernetes.test_kube_fleet import Server

T0 = datetime(2026, 1, 1, tzinfo=UTC)


class Machines(Server):
    """The Nodes with their machines."""

    def pages(self, kind: Any, decode: Any, *, namespace: str | None = None, **params: str) -> Iterator[Any]:
        there = [
            {"metadata": {"name": name}, "spec": {"providerID": f"aws:///us-west-2a/i-0{name:0>8}"}}
            for name in sorted(self.nodes)
        ]
        yield decode(json.dumps({"items": there}).encode())


def test_a_count_of_nodes_remembers_those_that_are_there() -> None:
    """Also where some had a claim when they went."""
    server, clock = Machines(), FakeClock()
    fleet = KubeFleet(
        server, namespace="healthd", quotas={CLUSTER: 1}, leads=lambda: None, monotonic_s=clock, clock=clock.now
    )
    names = [f"n{number}" for number in range(40)]
    for number, name in enumerate(names):
        server.nodes = {name}
        if number % 3 == 0:
            server.notes[LEASE][key_of(name)] = json.dumps({"node": name, "index": 0})
        for _ in range(3):
            fleet.count()
            clock.advance(60.0)
    assert set(names) & set(texts_in(fleet)) == {names[-1]}


def test_the_events_of_drains_are_of_drains_that_last() -> None:
    """A node that is back, or gone, has none."""
    events = KubeDrainEvents(Server(), leads=lambda: None, clock=lambda: T0)
    for number in range(5):
        record = DrainRecord(hold=f"hold-{number}", began=1)
        events.without_fault(Drain(node=f"n{number}", since=T0, record=record, taints=()), ())
        events.keep({f"n{number}"})
    assert {f"n{number}" for number in range(5)} & set(texts_in(events)) == {"n4"}


def test_a_ledger_asks_no_node_that_went(tmp_path: Path) -> None:
    """Nor knows when it would."""
    ledger = Ledger(tmp_path / "ledger.db", now=T0)
    feed = LedgerFeed(ledger, interval_s=60.0, keep_days=30.0)
    for number in range(20):
        name = f"n{number}"
        feed.read({name: NodeReading(node=name, state=SpanState.SERVING)}, T0 + timedelta(minutes=number))
    assert {f"n{number}" for number in range(20)} & set(texts_in(feed)) == {"n19"}
    ledger.close()


def test_a_request_goes_with_its_node(tmp_path: Path) -> None:
    """Its machine was replaced, and another name came: that it was done is on disk."""
    world = AskedWorld(tmp_path, Remedy.REPLACE_NODE)
    world.run(12)
    assert world.acts == 1
    assert NODE in set(texts_in(list(vars(world.controller).values())))
    del world.cluster.nodes[NODE]
    world.cluster.slots.clear()
    world.run(2)
    kept = [each for each in vars(world.controller).values() if isinstance(each, dict)]
    assert NODE not in {name for each in kept for name in each}
    world.close()
