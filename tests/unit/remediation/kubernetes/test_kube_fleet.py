"""The counting of a fleet, over an API server in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.core.model import CLUSTER, ClusterTrouble, Remedy
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, Missing, ResourceKind
from healthd.remediation.orchestrators.kubernetes.fleet import UNCOVERED_S, KubeFleet
from healthd.remediation.orchestrators.kubernetes.objects.budget import COUNTED, LEASE, key_of
from healthd.remediation.orchestrators.kubernetes.objects.node_health import health_of, record_of
from healthd.remediation.orchestrators.kubernetes.objects.stray_claims import IDLE_S
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair
from healthd.testing import FakeClock
from tests.support.work import steps_of


class Server(KubeApi):
    """A Lease, NodeHealths and the names of Nodes in memory. ``deaf``: how many countings get no answer; ``written``:
    how many were written."""

    def __init__(self, *nodes: str) -> None:
        self.nodes, self.deaf, self.written = set(nodes), 0, 0
        self.elsewhere = set[str]()
        self.notes: dict[str, dict[str, str]] = {LEASE: {}}
        self.healths: dict[str, dict[str, Any]] = {}

    def get(self, kind: ResourceKind, name: str, *, namespace: str | None = None, ahead: int = 0) -> dict[str, Any]:
        if kind is ResourceKind.NODE and name not in self.nodes:
            raise Missing(f"get node {name}: 404")
        if kind is ResourceKind.LEASE and name not in self.notes:
            raise Missing(f"get lease {name}: 404")
        there = self.notes[name] if kind is ResourceKind.LEASE else {}
        return {"metadata": {"name": name, "resourceVersion": "1", "annotations": dict(there)}}

    def pages(self, kind: ResourceKind, decode: Any, *, namespace: str | None = None, **params: str) -> Iterator[Any]:
        there = [{"metadata": {"name": name}} for name in sorted(self.nodes - self.elsewhere)]
        if kind is ResourceKind.NODE_HEALTH:
            there = [{"metadata": {"name": name}, **each} for name, each in self.healths.items()]
        yield decode(json.dumps({"items": there}).encode())

    def patch(self, kind: ResourceKind, name: str, body: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        if kind is ResourceKind.NODE_HEALTH:
            self.healths[name] = {part: body[part] for part in ("status", "record") if body[part] is not None}
            return {"metadata": {"name": name}, **self.healths[name]}
        notes = body["metadata"]["annotations"]
        if COUNTED in notes and self.deaf:
            self.deaf -= 1
            raise BackendUnknown(f"patch lease {name}: no answer within 5 s")
        self.written += COUNTED in notes
        merged = {**self.notes[name], **notes}
        self.notes[name] = {key: value for key, value in merged.items() if value is not None}
        return self.get(kind, name)

    def delete(
        self, kind: ResourceKind, name: str, *, uid: str = "", version: str = "", namespace: str | None = None
    ) -> None:
        del self.healths[name]


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
            raise BackendRefused("this controller is no longer the leader")

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
    asked = HandoffRecord(
        remediation_id="k3", machine="i-1", remedy=Remedy.REPLACE_NODE, asks=True, history=(given_away,)
    )
    server.healths["n2"] = {"status": {"state": "repairing"}, "record": record_of(asked)}
    server.healths["n3"] = {"status": {"state": "held"}}
    server.nodes.remove("n2")

    def kept() -> str:
        fleet.count()
        there = server.healths.get("n2")
        return health_of({"metadata": {"name": "n2"}, **there}).text if there is not None else ""

    assert kept() == asked.text, "one list proves nothing"
    assert kept() == kept() == HandoffRecord(history=(given_away,)).text
    assert (set(server.healths), "status" in server.healths["n2"]) == ({"n2"}, False), "nothing else is kept"
    assert [record.node for record in fleet.fleet().records] == ["n2"], "nodes and controller read it on"
    clock.advance(86_400.0)
    assert (kept() != "", kept()) == (True, ""), "again by two lists"
    assert server.healths == {}


def test_a_count_of_twice_as_many_records_is_twice_the_work() -> None:
    """After months most nodes have one, and a count of 500 took 23 s of a core, every 10 s."""

    def work(count: int) -> int:
        server, clock = Server(*(f"n{number}" for number in range(count))), FakeClock()
        fleet = fleet_of(server, clock)
        history = (PastRepair(act=PastAct.REBOOT, at=clock.now().replace(microsecond=0), code="gpu.xid.79"),)
        server.healths = {name: {"record": record_of(HandoffRecord(history=history))} for name in server.nodes}
        fleet.count()
        return steps_of(fleet.count)

    assert work(80) < 2.2 * work(40)


def test_a_record_of_a_node_that_does_not_count_is_another_controllers() -> None:
    """The Node is there and outside of the selector: nothing is read of it, and nothing pruned."""
    server, clock = Server("n1", "n2"), FakeClock()
    fleet = KubeFleet(
        server,
        namespace="healthd",
        quotas={CLUSTER: 1},
        leads=lambda: None,
        monotonic_s=clock,
        clock=clock.now,
        selector="pool=a",
    )
    server.healths = {name: {"record": record_of(HandoffRecord(remediation_id="k3"))} for name in ("n1", "n2")}
    server.elsewhere = {"n2"}
    for _ in range(3):
        fleet.count()
        assert [record.node for record in fleet.fleet().records] == ["n1"]
    assert server.healths.keys() == {"n1", "n2"}


class Labelled(Server):
    """The same with a scope p5, and labels of Nodes: as the server's cache has them, and as they are."""

    def __init__(self, cached: dict[str, dict[str, str]], labels: dict[str, dict[str, str]]) -> None:
        super().__init__(*labels)
        self.cached, self.labels, self.lists = cached, labels, 0
        self.notes["healthd-budget-p5"] = {}

    def get(self, kind: ResourceKind, name: str, *, namespace: str | None = None, ahead: int = 0) -> dict[str, Any]:
        there = super().get(kind, name, namespace=namespace)
        return {"metadata": {**there["metadata"], "labels": self.labels.get(name, {})}, "status": READY}

    def pages(self, kind: ResourceKind, decode: Any, *, namespace: str | None = None, **params: str) -> Iterator[Any]:
        if kind is ResourceKind.NODE_HEALTH:
            yield from super().pages(kind, decode)
            return
        selector = params.get("labelSelector", "")
        self.lists += not selector
        meant = {name: labels for name, labels in self.cached.items() if not selector or selector in labels}
        items = [{"metadata": {"name": name, "labels": labels}, "status": READY} for name, labels in meant.items()]
        yield decode(json.dumps({"items": items}).encode())


READY = {"conditions": [{"type": "Ready", "status": "True"}]}
P5 = "healthd-budget-p5"


def scoped(server: Server, clock: FakeClock, selector: str = "") -> KubeFleet:
    return KubeFleet(
        server,
        namespace="healthd",
        quotas={CLUSTER: 1, "p5": 1},
        leads=lambda: None,
        monotonic_s=clock,
        clock=clock.now,
        scope_label="pool",
        selector=selector,
    )


def claims_of(server: Server, lease: str) -> set[str]:
    return {key.partition("/")[2] for key in server.notes[lease] if key.startswith("claim.")}


def test_what_the_cache_has_late_is_asked_for_anew_before_a_claim_is_taken_away() -> None:
    """n1 is in p5 by now, n2 is not: whoever has just claimed by a new label keeps its place."""
    cached = {"n1": {"pool": "g6"}, "n2": {"pool": "g6"}}
    server, clock = Labelled(cached, {"n1": {"pool": "p5"}, "n2": {"pool": "g6"}}), FakeClock()
    fleet = scoped(server, clock)
    for name in ("n1", "n2"):
        server.notes[P5][key_of(name)] = json.dumps({"node": name, "index": 0})
    assert fleet.count().oddities == ()
    assert {(each.node, each.kind) for each in fleet.count().oddities} == {
        ("n1", ClusterTrouble.STRAY_CLAIM),
        ("n2", ClusterTrouble.STRAY_CLAIM),
    }
    assert claims_of(server, P5) == {"n1"}


def test_an_idle_claim_goes_unless_its_node_is_fenced_by_now() -> None:
    """The list says that both are well; n2's agent says no more so, when it is asked for by itself."""
    ok = {"healthd.io/state": "ok"}
    server, clock = Labelled({"n1": ok, "n2": ok}, {"n1": ok, "n2": {}}), FakeClock()
    fleet = scoped(server, clock)
    for name in ("n1", "n2"):
        server.notes[LEASE][key_of(name)] = json.dumps({"node": name, "index": 0})
    assert fleet.count().remarks == {}
    clock.advance(IDLE_S)
    assert fleet.count().remarks.keys() == {"n1"}
    assert claims_of(server, LEASE) == {"n2"}


def test_whom_the_selector_leaves_out_is_looked_for_once_a_minute() -> None:
    """Of those only who holds a claim; without a selector there are none, and nothing more is read."""
    cached = {"n1": {"gpu": "yes"}, "n2": {}, "n3": {}}
    server, clock = Labelled(cached, cached), FakeClock()
    server.notes[LEASE][key_of("n2")] = json.dumps({"node": "n2", "index": 0})
    fleet = scoped(server, clock, "gpu")
    assert fleet.count().uncovered.keys() == fleet.count().uncovered.keys() == {"n2"}
    assert server.lists == 1
    cached["n2"] = {"gpu": "yes"}
    assert fleet.count().uncovered == {}, "it is covered again"
    clock.advance(UNCOVERED_S)
    assert (fleet.count().uncovered, server.lists) == ({}, 2)
    assert scoped(server, clock).count().uncovered == {}
