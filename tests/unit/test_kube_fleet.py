"""The counting of a fleet, over an API server in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from healthd.errors import BackendRefused, BackendUnknown
from healthd.model import Remedy
from healthd.remediation.fleet import CLUSTER
from healthd.remediation.marks import CaseMark, PastAct, PastRepair
from healthd.remediation.orchestrators.kube_api import Kind, KubeApi, Missing
from healthd.remediation.orchestrators.kube_budget import COUNTED, LEASE, MARK, MARKS, key_of, marks_in
from healthd.remediation.orchestrators.kube_fleet import KubeFleet
from healthd.testing import FakeClock


class Server(KubeApi):
    """Two Leases and the names of Nodes in memory. ``deaf``: how many countings get no answer; ``written``: how many
    were written."""

    def __init__(self, *nodes: str) -> None:
        self.nodes, self.deaf, self.written = set(nodes), 0, 0
        self.notes: dict[str, dict[str, str]] = {LEASE: {}, MARKS: {}}

    def get(self, kind: Kind, name: str, *, namespace: str | None = None, ahead: int = 0) -> dict[str, Any]:
        if kind is Kind.NODE and name not in self.nodes:
            raise Missing(f"get node {name}: 404")
        there = self.notes[name] if kind is Kind.LEASE else {}
        return {"metadata": {"name": name, "resourceVersion": "1", "annotations": dict(there)}}

    def pages(self, kind: Kind, decode: Any, *, namespace: str | None = None, **params: str) -> Iterator[Any]:
        yield decode(json.dumps({"items": [{"metadata": {"name": name}} for name in sorted(self.nodes)]}).encode())

    def patch(self, kind: Kind, name: str, body: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        notes = body["metadata"]["annotations"]
        if COUNTED in notes and self.deaf:
            self.deaf -= 1
            raise BackendUnknown(f"patch lease {name}: no answer within 5 s")
        self.written += COUNTED in notes
        merged = {**self.notes[name], **notes}
        self.notes[name] = {key: value for key, value in merged.items() if value is not None}
        return self.get(kind, name)


def fleet_of(server: Server, clock: FakeClock, leads: Callable[[], None] = lambda: None) -> KubeFleet:
    """The fleet as a controller counts it, of which one node may be out."""
    return KubeFleet(server, namespace="healthd", quotas={CLUSTER: 1}, leads=leads, monotonic_s=clock, clock=clock.now)


def test_a_gone_node_is_told_although_the_counting_after_it_failed() -> None:
    """Its claim is taken away before that: whoever follows its repair would never hear that it has come to its end."""
    server, clock = Server("n1", "n2"), FakeClock()
    fleet = fleet_of(server, clock)
    server.notes[LEASE][key_of("n2")] = json.dumps({"node": "n2", "index": 0})
    assert fleet.count().gone == {}
    server.nodes.remove("n2")
    assert fleet.count().gone == {}, "one list proves nothing"
    server.deaf = 1
    clock.advance(60.0)  # the numbers are as they were, and due all the same
    with pytest.raises(BackendUnknown):
        fleet.count()
    assert key_of("n2") not in server.notes[LEASE]
    assert fleet.count().gone.keys() == {"n2"}
    assert fleet.count().gone == {}, "told once"


def test_what_has_not_changed_is_written_once_a_minute() -> None:
    """A round that finds nothing new writes nothing; whoever goes out is written at once."""
    server, clock = Server("n1", "n2"), FakeClock()
    fleet = fleet_of(server, clock)
    for _ in range(12):
        fleet.count()
        clock.advance(5.0)
    assert server.written == 1
    clock.advance(5.0)
    fleet.count()
    assert server.written == 2
    server.nodes.add("n3")
    assert fleet.count().budget.total == 3
    assert server.written == 3


def test_whoever_does_not_lead_any_more_is_told_so_where_nothing_is_to_be_written() -> None:
    """The round ends there, as it does where something is."""
    server, clock, may = Server("n1"), FakeClock(), [True]

    def leads() -> None:
        if not may[0]:
            raise BackendRefused("this controller does not lead any more")

    fleet = fleet_of(server, clock, leads)
    fleet.count()
    may[0] = False
    with pytest.raises(BackendRefused):
        fleet.count()


def test_of_a_gone_node_stays_what_the_bounds_of_a_day_count() -> None:
    """Its successor has another name. Its request and its claim go at once, and the rest when a day is over."""
    server, clock = Server("n1", "n2"), FakeClock()
    fleet = fleet_of(server, clock)
    given_away = PastRepair(act=PastAct.REPLACE, at=clock.now().replace(microsecond=0), code="gpu.xid.79")
    asked = CaseMark(case="k3", machine="i-1", remedy=Remedy.REPLACE_NODE, asks=True, history=(given_away,))
    server.notes[MARKS][key_of("n2", MARK)] = json.dumps({"node": "n2", "text": asked.text})
    server.nodes.remove("n2")

    def kept() -> str:
        fleet.count()
        return marks_in(server.notes[MARKS]).get("n2", "")

    assert kept() == asked.text, "one list proves nothing"
    assert kept() == kept() == CaseMark(history=(given_away,)).text
    assert [mark.node for mark in fleet.fleet().marks] == ["n2"], "nodes and controller read it on"
    clock.advance(86_400.0)
    assert (kept() != "", kept()) == (True, ""), "again by two lists"
