"""The device plugin's restart: asked for once per reset, done once, and only where it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healthd.agent.plugin_restart import FACT, PluginRestart
from healthd.core.errors import BackendBusy, BackendRefused, BackendUnknown, StoreError
from healthd.remediation.orchestrators.kubernetes.api import Disrupting, KubeApi, Missing
from healthd.remediation.orchestrators.kubernetes.device_plugin import (
    ASKED,
    AT_ONCE,
    WITHIN_S,
    Asked,
    KubePlugins,
    asked_of,
    asking_patch,
    the_plugin,
)
from healthd.remediation.orchestrators.kubernetes.objects.eviction import Pod
from healthd.remediation.orchestrators.kubernetes.objects.node import KubeNode, node_of
from healthd.state.store import Store
from healthd.testing import FakeClock
from tests.unit.remediation.kubernetes.test_kube_eviction import pod

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
OF_DAEMON_SET = [{"kind": "DaemonSet", "name": "plugin", "controller": True}]


def node(name: str = "n1", asked: str = "", *, healthy: int = 7, **labels: str) -> dict[str, Any]:
    notes = {ASKED: asked} if asked else {}
    status = {"capacity": {"cpu": "96", "nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": str(healthy)}}
    return {"metadata": {"name": name, "labels": labels, "annotations": notes}, "status": status}


def plugin(name: str = "plugin-x", where: str = "n1", *, made: datetime = NOW - timedelta(days=1), **meta: Any) -> Pod:
    meta = {"ownerReferences": OF_DAEMON_SET, "creationTimestamp": made.isoformat(), **meta}
    return pod(name, spec={"nodeName": where}, **meta)


# -- the node's side --------------------------------------------------------------------------------------------------


class Asks:
    """The cluster, which answers as it is told to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked: list[tuple[str, datetime]] = []

    def __call__(self, reset: str, at: datetime) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append((reset, at))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "healthd.db", now=NOW)
    yield made
    made.close()


def restart(facts: Any, asks: Asks, *, id_: str = "r1") -> PluginRestart:
    return PluginRestart(facts, asks, clock=lambda: NOW, new_id=lambda: id_)


def test_it_is_asked_once_per_reset(store: Store) -> None:
    """And never without one."""
    asks = Asks()
    one = restart(store, asks)
    assert one.due() == ""
    one.wanted()
    assert "asked healthd controller" in one.due()
    assert (one.due(), asks.asked) == ("", [("r1", NOW)])
    assert restart(store, asks).due() == "", "the next daemon has nothing to ask"


def test_what_was_not_answered_is_asked_again_by_the_next_daemon_too(store: Store) -> None:
    """Under the same name; said once, not every ten seconds."""
    asks = Asks()
    asks.error = BackendUnknown("no answer")
    one = restart(store, asks)
    one.wanted()
    assert "could not be asked for after reset r1, tried again: no answer" in one.due()
    assert one.due() == ""
    asks.error = None
    assert "after reset r1" in restart(store, asks, id_="r2").due()
    assert asks.asked == [("r1", NOW)]


def test_a_disk_that_takes_no_writes_keeps_nobody_from_asking() -> None:
    """The request is made by this process, and is repeated by the next one at worst."""

    class Full:
        def fact(self, key: str) -> str:
            assert key == FACT
            return ""

        def keep(self, key: str, value: str) -> None:
            raise StoreError("disk is full")

    asks = Asks()
    one = restart(Full(), asks)
    one.wanted()
    assert "asked" in one.due()
    assert one.due() == ""


# -- what a Node says -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "r1", "r1 soon", " 12", "r1 -3", f"r1 {'9' * 12}"])
def test_a_request_that_makes_no_sense_is_none(text: str) -> None:
    """Anybody who may write a Node's annotations may write this one."""
    assert asked_of(node_of(node(asked=text))) is None


def test_a_request_comes_back_as_it_was_left() -> None:
    """By way of the annotation."""
    text = asking_patch("r1", NOW)["metadata"]["annotations"][ASKED]
    assert asked_of(node_of(node(asked=text))) == Asked(reset="r1", at=NOW)


@pytest.mark.parametrize(
    ("capacity", "allocatable", "lacking"),
    [
        ({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "8"}, {}),
        ({"nvidia.com/gpu": "8", "cpu": "9"}, {"nvidia.com/gpu": "6", "cpu": "1"}, {"nvidia.com/gpu": 2}),
        ({"nvidia.com/mig-1g.10gb": "7"}, {}, {"nvidia.com/mig-1g.10gb": 7}),
        ({"nvidia.com/gpu": "8k"}, {"nvidia.com/gpu": "1"}, {}),
        ({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "x"}, {}),
        (None, None, {}),
    ],
)
def test_what_the_plugin_counts_as_unhealthy(capacity: Any, allocatable: Any, lacking: dict[str, int]) -> None:
    """GPUs that are in the capacity and not allocatable; what is no number is no count."""
    body = {"metadata": {"name": "n1"}, "status": {"capacity": capacity, "allocatable": allocatable}}
    assert node_of(body).lacking == lacking


def test_the_plugin_s_pod_is_the_one_of_a_daemon_set_on_this_node() -> None:
    """None, or more than one, is nobody: the selector is to be repaired by a person."""
    mine = plugin()
    others = [plugin("a", "n2"), plugin("b", phase="Failed"), plugin("c", ownerReferences=None)]
    assert the_plugin([*others, mine], "n1") is mine
    assert "no pod of a DaemonSet" in str(the_plugin(others, "n1"))
    assert "2 pods on the node match" in str(the_plugin([mine, plugin("d")], "n1"))


# -- the controller's side --------------------------------------------------------------------------------------------


class Server(KubeApi):
    """Nodes and pods in memory, and the evictions that were asked for."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.pods: list[Pod] = []
        self.evicted: list[str] = []
        self.error: Exception | None = None

    def get(self, kind: Any, name: str, *, namespace: str | None = None, ahead: int = 0) -> dict[str, Any]:
        return self.nodes[name]

    def pages(self, kind: Any, decode: Any, *, namespace: str | None = None, **params: str) -> Iterator[Any]:
        assert (namespace, params["labelSelector"]) == ("gpu-operator", "app=plugin")
        where = params["fieldSelector"].removeprefix("spec.nodeName=")
        yield tuple(each for each in self.pods if each.spec.nodeName == where)

    def evict(self, name: str, *, namespace: str, body: Any) -> None:
        assert body["deleteOptions"]["preconditions"] == {"uid": f"u-{name}"}
        if self.error is not None:
            raise self.error
        self.evicted.append(name)
        self.pods = [each for each in self.pods if each.metadata.name != name]


class Rig:
    """A controller that leads, a minute after ``n1`` asked."""

    def __init__(self) -> None:
        self.server, self.clock, self.leads = Server(), FakeClock(NOW), True
        self.clock.advance(60.0)
        self.plugins = KubePlugins(
            self.server,
            selector="app=plugin",
            namespace="gpu-operator",
            leads=self._check,
            clock=self.clock.now,
            monotonic_s=self.clock,
            opt_out_label="healthd.io/opt-out",
        )
        self.asks("n1")

    def asks(self, name: str, *, reset: str = "r1", at: datetime = NOW, **settings: Any) -> None:
        self.server.nodes[name] = node(name, f"{reset} {int(at.timestamp())}", **settings)
        self.server.pods = [each for each in self.server.pods if each.spec.nodeName != name]
        self.server.pods.append(plugin(f"plugin-{name}", name))

    def sync(self, **seen: KubeNode) -> dict[str, str]:
        """``seen``: Nodes as this round's list has them, where they are others by now."""
        listed = {name: node_of(body) for name, body in self.server.nodes.items()} | seen
        return dict(self.plugins.sync(listed))

    def _check(self) -> None:
        if not self.leads:
            raise BackendRefused("this controller is no longer the leader")


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_it_is_restarted_once_per_reset(rig: Rig) -> None:
    """However often it is looked at; another reset is another restart, after ten minutes."""
    assert rig.sync() == {"n1": "device plugin, after reset r1: team-a/plugin-n1 was evicted for its restart"}
    rig.server.pods = [plugin("plugin-new", made=rig.clock.now())]
    for _ in range(5):
        rig.clock.advance(10.0)
        assert "was evicted for its restart" in rig.sync()["n1"]
    assert rig.server.evicted == ["plugin-n1"]
    rig.asks("n1", reset="r2", at=rig.clock.now())
    rig.clock.advance(40.0)
    assert "not restarted yet: it was restarted less than 600 s ago" in rig.sync()["n1"]
    rig.clock.advance(WITHIN_S)
    rig.sync()
    assert rig.server.evicted == ["plugin-n1", "plugin-n1"]


def test_another_controller_does_not_restart_it_again(rig: Rig) -> None:
    """A plugin that began after the reset has been restarted, whoever did it; that it did not help is for a person."""
    rig.server.pods = [plugin("plugin-new", made=NOW + timedelta(seconds=5))]
    assert "was restarted and still counts 1 of nvidia.com/gpu as unhealthy: an operator" in rig.sync()["n1"]
    assert rig.server.evicted == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rig: rig.asks("n1", healthy=8), ""),
        (lambda rig: rig.asks("n1", at=NOW + timedelta(seconds=45)), ""),
        (lambda rig: rig.clock.advance(3600.0), ""),
        (lambda rig: rig.server.nodes.update(n1=node("n1")), ""),
        (lambda rig: rig.asks("n1", **{"healthd.io/opt-out": ""}), "the node opted out"),
        (lambda rig: rig.server.pods.clear(), "no pod of a DaemonSet"),
        (lambda rig: rig.server.pods.append(plugin("other")), "2 pods on the node match"),
        (lambda rig: setattr(rig, "leads", False), "no longer the leader"),
        (lambda rig: setattr(rig.server, "error", Disrupting("no room")), "no room"),
        (lambda rig: setattr(rig.server, "error", BackendBusy("429")), "429"),
        (lambda rig: setattr(rig.server, "error", BackendUnknown("no answer")), "no answer"),
        (lambda rig: setattr(rig.server, "error", Missing("404")), "is gone already"),
    ],
)
def test_what_keeps_it_from_being_restarted(rig: Rig, change: Callable[[Rig], object], words: str) -> None:
    """All GPUs allocatable; asked a moment or an hour ago, or not at all; an opt-out; nobody to be meant; a lost lead;
    what the server says."""
    change(rig)
    message = rig.sync().get("n1", "")
    assert words in message if words else not message
    assert rig.server.evicted == []


@pytest.mark.parametrize("error", [Disrupting("no room"), BackendBusy("429"), Missing("404")])
def test_an_eviction_that_was_refused_is_no_restart(rig: Rig, error: Exception) -> None:
    """It uses up no turn of the fleet's, and the next sync asks again. One without an answer may have been made."""
    rig.server.error = error
    rig.sync()
    rig.server.error = None
    rig.clock.advance(10.0)
    assert "was evicted for its restart" in rig.sync()["n1"]
    rig.asks("n1", reset="r2", at=rig.clock.now())
    rig.clock.advance(WITHIN_S)
    rig.server.error = BackendUnknown("no answer")
    rig.sync()
    rig.server.error = None
    assert "it was restarted less than 600 s ago" in rig.sync()["n1"]


def test_a_plugin_that_is_going_is_left_to_go(rig: Rig) -> None:
    """It was asked already."""
    rig.server.pods = [plugin("plugin-n1", deletionTimestamp="2026-11-21T10:00:00Z")]
    assert "team-a/plugin-n1 is being deleted" in rig.sync()["n1"]
    assert rig.server.evicted == []


def test_the_node_is_read_anew_before_the_act(rig: Rig) -> None:
    """What a list of a minute ago said is no reason any more."""
    before = node_of(rig.server.nodes["n1"])
    rig.asks("n1", healthy=8)
    assert rig.sync(n1=before) == {}
    rig.asks("n1", reset="r9")
    assert rig.sync(n1=before) == {}
    assert rig.server.evicted == []


def test_a_fleet_that_asks_at_once_is_served_ten_at_a_time(rig: Rig) -> None:
    """Agents that lie, or a driver that resets every node: ten in ten minutes."""
    for number in range(30):
        rig.asks(f"m{number:02}")
    message = rig.sync()
    assert len(rig.server.evicted) == AT_ONCE
    assert (
        sum("not restarted yet: 10 device plugins were restarted within 600 s" in each for each in message.values())
        == 31 - AT_ONCE
    )
    rig.clock.advance(WITHIN_S)
    rig.sync()
    assert len(rig.server.evicted) == 2 * AT_ONCE
