"""Dashboards and alert rules speak of what /metrics has, and the JSON is what its table says."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from healthd.core.check import discover
from healthd.core.model import Action, Mode, Refusal, Status, Step, Verdict
from healthd.remediation.request_stats import RESULTS
from tests.support.running import ROOT
from tests.support.scripts import load_script

MAKER = ROOT / "packaging/grafana/make.py"
SPEAKING = ("packaging/grafana/node.json", "packaging/grafana/fleet.json", "packaging/prometheus/rules.yaml")
NOT_ON_THE_SIMULATED_NODE = re.compile(r"healthd_(file_|nccl_|nvme_|findings|metrics_left)")


def test_the_dashboards_are_what_their_table_says() -> None:
    """Each file as `python packaging/grafana/make.py` writes it."""
    made = load_script("grafana_make", MAKER).dashboards()
    stale = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run: python packaging/grafana/make.py"
    assert {path.name for path in made} == {path.name for path in MAKER.parent.glob("*.json")}


@pytest.mark.parametrize("name", ["node", "fleet"])
def test_a_rate_spans_several_scrapes(name: str) -> None:
    """Its query has the interval at which the chart and the shipped Prometheus scrape: Grafana makes its range of four
    of them. Of a data source with Grafana's default of 15 s every such panel would be empty."""
    panels = json.loads((ROOT / f"packaging/grafana/{name}.json").read_text(encoding="utf-8"))["panels"]
    rates = [each for panel in panels for each in panel.get("targets", ()) if "$__rate_interval" in each["expr"]]
    scraped = yaml.safe_load((ROOT / "packaging/prometheus/prometheus.yaml").read_text(encoding="utf-8"))["global"]
    chart = yaml.safe_load((ROOT / "packaging/helm/healthd/values.yaml").read_text(encoding="utf-8"))["metrics"]
    assert rates
    assert {each.get("interval") for each in rates} == {scraped["scrape_interval"]} == {chart["interval"]}


@pytest.mark.parametrize("name", ["node", "fleet"])
def test_a_panel_without_data_calls_nothing_healthy(name: str) -> None:
    """Its own words for an empty answer are of what is reported, on a query of what is not ok alone: they hold as well
    where nothing is scraped. Grafana says "No data" of the others."""
    panels = json.loads((ROOT / f"packaging/grafana/{name}.json").read_text(encoding="utf-8"))["panels"]
    empty = {panel["title"]: panel for panel in panels if "noValue" in panel.get("fieldConfig", {}).get("defaults", {})}
    assert empty
    for title, panel in empty.items():
        assert re.fullmatch(r"no \w+ (is reported|reports) .*", panel["fieldConfig"]["defaults"]["noValue"]), title
        assert all(re.search(r"> 0\b|>= \$shown", each["expr"]) for each in panel["targets"]), title


@pytest.mark.parametrize("name", SPEAKING)
def test_every_metric_that_is_asked_for_exists(name: str) -> None:
    """Each name stands in docs/reference/metrics.md, or is a reading that only some machines have."""
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bhealthd_[a-z_0-9]+", (ROOT / name).read_text(encoding="utf-8")))
    known = {re.sub(r"_(sum|count)$", "", each) for each in named if not NOT_ON_THE_SIMULATED_NODE.match(each)}
    assert len(named) > 8
    assert {each for each in known if f"| `{each}` |" not in page} == set()


def test_what_a_fleet_keeps_for_its_alerts_is_all_that_they_read() -> None:
    """The expression of docs/how-to/prometheus.md: an alert whose metric is dropped never fires, in silence."""
    page = (ROOT / "docs/how-to/prometheus.md").read_text(encoding="utf-8")
    (kept,) = re.findall(r"only wants alerts keeps, with an action `keep`,\n`(\S+)`", page)
    groups = yaml.safe_load((ROOT / "packaging/prometheus/rules.yaml").read_text(encoding="utf-8"))["groups"]
    alerts = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"] if "alert" in rule}
    read = {each for expression in alerts.values() for each in re.findall(r"\bhealthd_\w+", expression)}
    assert {each for each in read if not re.fullmatch(kept, each)} == set()


def test_no_metric_has_a_label_that_prometheus_sets_itself() -> None:
    """`job` and `instance` are of the scrape: as labels of a metric they would become exported_job, unfound."""
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(healthd_\w+)` \| \w+ \| ([^|]*) \|", page, re.MULTILINE)
    assert len(rows) > 50
    assert [name for name, labels in rows if {"`job`", "`instance`"} & set(labels.replace(",", " ").split())] == []


def test_every_recording_is_asked_for_and_every_one_that_is_asked_for_is_made() -> None:
    """Each healthd:… is one of rules.yaml, and each of those is read by an alert or by a dashboard."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in SPEAKING]
    made = {each for text in texts for each in re.findall(r"record: (\S+)", text)}
    asked = {each for text in texts for each in re.findall(r"(?<!record: )\bhealthd:[a-z_0-9:]+", text)}
    assert made == asked


@pytest.mark.parametrize("name", SPEAKING)
def test_every_label_value_that_is_asked_for_exists(name: str) -> None:
    """A verdict, an action, a step or a status in a query is one that healthd has; a misspelt one never fires."""
    words: dict[str, set[str]] = {
        "verdict": set(Verdict),
        "action": set(Action),
        "step": set(Step),
        "status": set(Status),
        "mode": set(Mode),
        "reason": set(Refusal),
        "check": set(discover()),
        "severity": {"info", "warning", "critical"},
        "result": {*RESULTS},
    }
    text = (ROOT / name).read_text(encoding="utf-8").replace('\\"', '"')
    asked = re.findall(r'\b(\w+)(?:=|!=|=~|!~)"([a-z_|.]+)"', text)
    assert asked
    for label, value in asked:
        assert set(value.split("|")) <= words.get(label, {value}), (label, value)


def test_a_link_to_a_dashboard_that_the_docs_show_leads_to_its_node() -> None:
    """The uid is that of a shipped dashboard, and what it selects is a variable that the dashboard has."""
    pages = [*ROOT.glob("docs/how-to/*.md"), *ROOT.glob("docs/reference/config/*.md")]
    shown = {
        each for page in pages for each in re.findall(r"/d/([\w-]+)\?var-(\w+)=", page.read_text(encoding="utf-8"))
    }
    made = [json.loads(path.read_text(encoding="utf-8")) for path in MAKER.parent.glob("*.json")]
    assert shown
    assert shown <= {(each["uid"], one["name"]) for each in made for one in each["templating"]["list"]}
