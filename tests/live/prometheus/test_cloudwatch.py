"""What a CloudWatch agent makes of a node's metrics by the shipped configurations, scraped by a real Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from healthd.agent.agent import reading_agent
from healthd.api.metrics import MetricsPage
from healthd.config.load import load
from healthd.core.check import discover, judged
from healthd.core.model import Component, Finding, Outcome, Severity, Verdict
from healthd.sim.machine import SimulatedMachine
from tests.live.prometheus.prometheus_server import Prometheus
from tests.support.engine_rig import XID_95, World
from tests.support.running import ROOT

pytestmark = pytest.mark.process

FOLDER = ROOT / "packaging/prometheus"
PAGE = ROOT / "docs/how-to/cloudwatch.md"
Series = Mapping[str, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cloudwatch")


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[str]:
    """The address of a node's metrics: all of a p5.48xlarge in a cluster, and one open fault."""
    settings = {name: check.settings for name, check in discover().items()}
    agent = reading_agent(load(SimulatedMachine(folder / "machine").config, checks=settings, environ={}).config)
    finding = Finding(
        code="gpu.xid.79", severity=Severity.CRITICAL, component=Component(kind="gpu", id="GPU-3"), message="fell off"
    )
    now = datetime.now(UTC)
    agent.monitor.absorb(Outcome(check="kernel.xid", result=judged([finding]), at=now, duration_s=0.1))
    world = World(folder / "world")
    world.log_line(XID_95)  # for which it reads the fleet, and so knows the budget
    world.run(2)
    agent.engine = world.engine
    text = MetricsPage(agent).render().encode()
    agent.engine = None
    agent.close()
    world.close()

    class Serves(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Serves)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def scraped(folder: Path, page: str) -> list[Series]:
    """The series that the shipped scrape configuration keeps of that page."""
    text = (FOLDER / "cloudwatch-scrape.yaml").read_text(encoding="utf-8")
    for place, value in {"CLUSTER": "train-a", "NODE": "gpu-1", "127.0.0.1:9809": page, "60s": "1s"}.items():
        assert place in text
        text = text.replace(place, value)
    server = Prometheus(folder / "prometheus", {}, None, config=yaml.safe_load(text))
    try:
        server.wait(lambda: server.query("healthd_verdict"), 30, "the page was scraped")
        return [each["metric"] for each in server.query('{job="healthd", __name__=~"healthd_.*"}')]
    finally:
        server.stop()


def declarations() -> list[Any]:
    agent = json.loads((FOLDER / "cloudwatch-agent.json").read_text(encoding="utf-8"))
    found: list[Any] = agent["logs"]["metrics_collected"]["prometheus"]["emf_processor"]["metric_declaration"]
    return found


def metrics_of(declaration: Any, scraped: list[Series]) -> set[tuple[str, ...]]:
    """The metrics of CloudWatch that it makes: name, and the values of the dimensions. As the CloudWatch user guide
    has it: a selector matches the name, the matcher the labels joined by ";", and each dimension is a label."""
    made = set()
    for series in scraped:
        joined = ";".join(series.get(label, "") for label in declaration["source_labels"])
        if not re.search(declaration["label_matcher"], joined):
            continue
        if any(re.search(selector, series["__name__"]) for selector in declaration["metric_selectors"]):
            for dimensions in declaration["dimensions"]:
                assert set(dimensions) <= set(series), f"{series}: no label for a dimension"
                made.add((series["__name__"], *(series[label] for label in dimensions)))
    return made


def test_each_declaration_makes_metrics_of_the_cluster_and_few_of_them(scraped: list[Series]) -> None:
    """None counts by node: as many metrics for 500 nodes as for one. Each series that is written to the log is used."""
    made = [metrics_of(each, scraped) for each in declarations()]
    assert all(made)
    metrics = set().union(*made)
    assert {("healthd_verdict", "train-a", verdict) for verdict in Verdict} <= metrics
    assert ("healthd_fault_occurrences", "train-a", "gpu.xid.79") in metrics
    assert {each["__name__"] for each in scraped} == {name for name, *_ in metrics}
    assert {each["node_name"] for each in scraped} == {"gpu-1"}
    assert (len(scraped) < 30, len(metrics) < 30) == (True, True), (len(scraped), len(metrics))


def test_the_page_names_what_the_agent_makes(scraped: list[Series]) -> None:
    """Each metric, with its dimensions and how to read it, has a row; each alarm is about one of them."""
    text = PAGE.read_text(encoding="utf-8")
    made = set().union(*(metrics_of(each, scraped) for each in declarations()))
    rows = set(re.findall(r"^\| `(healthd_\w+)`", text, re.MULTILINE))
    assert rows == {name for name, *_ in made}
    alarms = re.findall(r"--metric-name (\S+) --dimensions Name=cluster,Value=CLUSTER Name=\w+,Value=(\S+)", text)
    assert alarms
    assert {(name, "train-a", value) for name, value in alarms} <= made
