"""The queries of the dashboards in packaging/grafana, as Grafana sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from tests.support.running import ROOT

DASHBOARDS = ("node", "fleet")
SELECTED: Mapping[str, str] = {
    "$cluster": ".*",
    "$partition": ".*",
    "$instance": ".+",
    "$shown": "1",
    "$__rate_interval": "4m",
}
"""What the variables are where All is selected."""


class Query(Struct, frozen=True, kw_only=True):
    """A query of a panel (``kind``: Grafana's name of it) or of an annotation, with the variables filled in."""

    title: str
    kind: str
    promql: str


def dashboard(name: str) -> dict[str, Any]:
    """The JSON of a dashboard."""
    made: dict[str, Any] = json.loads((ROOT / f"packaging/grafana/{name}.json").read_text())
    return made


def panel_queries(name: str, **selected: str) -> Iterator[Query]:
    """The queries of all panels. ``selected``: variables with another value than All."""
    for panel in dashboard(name)["panels"]:
        for target in panel.get("targets", ()):
            yield Query(title=panel["title"], kind=panel["type"], promql=filled(target["expr"], **selected))


def annotation_queries(name: str) -> Iterator[Query]:
    """The queries of what is marked on the time axis."""
    for each in dashboard(name)["annotations"]["list"]:
        yield Query(title=each["name"], kind="annotation", promql=filled(each["expr"]))


def filled(promql: str, **selected: str) -> str:
    """The query with its variables filled in."""
    for variable, value in {**SELECTED, **{f"${name}": value for name, value in selected.items()}}.items():
        promql = promql.replace(variable, value)
    assert "$" not in promql, promql
    return promql
