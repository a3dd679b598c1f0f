"""The dashboards over 500 nodes, asked of a real Prometheus: every query answers, none with a line for each node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.prometheus.dashboards import Query, annotation_queries, dashboard, filled, panel_queries
from tests.live.prometheus.metrics_fleet import END, Fleet, serving, stored
from tests.live.prometheus.prometheus_server import Prometheus

pytestmark = [pytest.mark.process, pytest.mark.slow]

FLEET = Fleet(nodes=500)
MOST = {"table": 100, "timeseries": 20, "state-timeline": 10, "stat": 40}
"""How many rows, lines or tiles of a kind of panel stay readable."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("fleet")
    server = serving(folder / "server", stored(FLEET, folder / "stored"))
    try:
        server.wait(lambda: server.query("up", at=END), 30, "the data of the fleet are loaded")
        yield server
    finally:
        server.stop()


def rows(prometheus: Prometheus, query: Query) -> int:
    """How many series the answer has."""
    return len(prometheus.query(query.promql, at=END))


def test_every_panel_of_the_fleet_has_data_and_stays_readable(prometheus: Prometheus) -> None:
    """No panel is empty; none shows a line, a row or a tile for each of 500 nodes."""
    found = {(query.title, query.promql): (rows(prometheus, query), query.kind) for query in panel_queries("fleet")}
    assert len(found) > 25
    assert {each: got for each, got in found.items() if not 0 < got[0] <= MOST[got[1]]} == {}


def test_the_figures_are_those_of_the_fleet(prometheus: Prometheus) -> None:
    """12 critical, 3 unknown, 21 warning: as sums, and one tile for each; with all nodes shown, 500 tiles."""
    by_title = {query.title: query for query in panel_queries("fleet")}
    verdicts = prometheus.query(by_title["Nodes by verdict"].promql, at=END)
    counted = {each["metric"]["verdict"]: int(each["value"][1]) for each in verdicts}
    assert counted == {"ok": 464, "warning": 21, "unknown": 3, "critical": 12}
    tiles = prometheus.query(by_title["Each node"].promql, at=END)
    assert sorted(int(each["value"][1]) for each in tiles) == [1] * 21 + [2] * 3 + [3] * 12
    (every,) = [query for query in panel_queries("fleet", shown="0") if query.title == "Each node"]
    assert rows(prometheus, every) == 500


def test_one_partition_or_cluster_is_selected(prometheus: Prometheus) -> None:
    """Half of the nodes are in partition p5, and none in another cluster."""
    asked = "sum(" + dashboard("fleet")["panels"][1]["targets"][0]["expr"] + ")"
    half = prometheus.query(filled(asked, partition="p5"), at=END)
    assert [each["value"][1] for each in half] == ["250"]
    assert prometheus.query(filled(asked, cluster="other"), at=END) == []


def test_drains_and_repairs_are_marked_on_the_time_axis(prometheus: Prometheus) -> None:
    """Each node that is drained now is an annotation; nothing is being repaired."""
    assert {query.title: rows(prometheus, query) for query in annotation_queries("fleet")} == {
        "Drains": 12,
        "Repairs": 0,
    }


def test_every_name_of_a_node_leads_to_its_dashboard() -> None:
    """A series or a row with the label instance has a link, and the link names a dashboard that is shipped."""
    uid = dashboard("node")["uid"]
    for panel in dashboard("fleet")["panels"]:
        named = "instance" in " ".join(target["expr"] for target in panel.get("targets", ()))
        per_node = any("{{instance}}" in target["legendFormat"] for target in panel.get("targets", ()))
        if per_node and "controller" not in panel["targets"][0]["expr"] and len(panel["targets"]) == 1:
            assert panel["fieldConfig"]["defaults"]["links"][0]["url"].startswith(f"/d/{uid}?"), panel["title"]
        if named and panel["type"] == "table" and "by (code" not in panel["targets"][0]["expr"]:
            (linked,) = [each for each in panel["fieldConfig"]["overrides"] if each["matcher"]["options"] == "instance"]
            assert linked["properties"][0]["value"][0]["url"].startswith(f"/d/{uid}?"), panel["title"]
