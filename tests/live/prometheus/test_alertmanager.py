"""The configuration for Alertmanager, by its own tool and by a real Alertmanager: one message for many nodes."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.live.prometheus.prometheus_server import tool
from tests.support.limits import limit_s
from tests.support.ports import free_ports
from tests.support.receiver import Receiver, receiving
from tests.support.running import ROOT

pytestmark = pytest.mark.process

CONFIG = ROOT / "packaging/prometheus/alertmanager.yaml"
NODES = 500
GROUP_WAIT_S = 8  # a busy Alertmanager takes some seconds for 1,500 alerts
Alert = dict[str, str]


def amtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What amtool says."""
    argv = [tool("amtool", "prometheus-alertmanager"), *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=limit_s(60), check=False)


def test_the_configuration_is_one_of_alertmanager() -> None:
    """`amtool check-config` reads it."""
    done = amtool("check-config", CONFIG)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_secret_is_in_the_configuration() -> None:
    """Each receiver reads its secret from a file."""
    for receiver in yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["receivers"]:
        for kind in (name for name in receiver if name != "name"):
            for each in receiver[kind]:
                assert [key for key in each if key.endswith("_file")], (receiver["name"], kind)
                assert not {"api_url", "routing_key", "service_key"} & set(each)


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["alertname=HealthdBudgetSpent", "severity=critical"], "pager"),
        (["alertname=HealthdCriticalFault", "severity=warning"], "chat"),
        (["alertname=HealthdNodeOfSharedFault", "severity=none"], "none"),
        (["alertname=SomebodyElsesAlert", "severity=critical"], "chat"),
    ],
)
def test_an_alert_goes_to_its_receiver(labels: list[str], receiver: str) -> None:
    """`amtool config routes test`: what needs an operator now pages, all else is written to the chat."""
    done = amtool("config", "routes", "test", f"--config.file={CONFIG}", f"--verify.receivers={receiver}", *labels)
    assert done.returncode == 0, done.stdout + done.stderr


def test_inhibitions_name_alerts_that_exist() -> None:
    """A name that rules.yaml does not have inhibits nothing."""
    rules = yaml.safe_load((CONFIG.parent / "rules.yaml").read_text(encoding="utf-8"))
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    for inhibition in yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["inhibit_rules"]:
        for matcher in (*inhibition["source_matchers"], *inhibition["target_matchers"]):
            assert set(matcher.split('"')[1].split("|")) <= names, matcher


class Alertmanager:
    """A real one on loopback, with the shipped routes and inhibitions, whose receivers are local webhooks."""

    def __init__(self, folder: Path, receivers: dict[str, str]) -> None:
        config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
        config["route"]["group_wait"] = f"{GROUP_WAIT_S}s"
        hooks = {name: [{"url": url}] for name, url in receivers.items()}
        config["receivers"] = [{"name": "none"}, *({"name": name, "webhook_configs": hooks[name]} for name in hooks)]
        (folder / "alertmanager.yaml").write_text(yaml.safe_dump(config))
        self._port, self._log = free_ports(1)[0], folder / "log"
        argv = [
            tool("prometheus-alertmanager", "prometheus-alertmanager"),
            f"--config.file={folder}/alertmanager.yaml",
            f"--storage.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--cluster.listen-address=",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)

    def tell(self, alerts: list[Alert]) -> None:
        """What Prometheus sends for alerts that fire; waits until Alertmanager has started."""
        notes = {"summary": "s", "description": "d"}
        now = datetime.now(UTC).isoformat()
        body = json.dumps([{"labels": each, "annotations": notes, "startsAt": now} for each in alerts]).encode()
        url = f"http://127.0.0.1:{self._port}/api/v2/alerts"
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        end = time.monotonic() + limit_s(30)
        while True:
            try:
                urllib.request.urlopen(request, timeout=limit_s(10)).close()  # noqa: S310  loopback
                return
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionError) or time.monotonic() > end:
                    raise AssertionError(self._log.read_text()[-2000:]) from error
                time.sleep(0.1)

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=limit_s(20))


@pytest.fixture
def pager() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def chat() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def alertmanager(tmp_path: Path, pager: Receiver, chat: Receiver) -> Iterator[Alertmanager]:
    made = Alertmanager(tmp_path, {"pager": pager.url, "chat": chat.url})
    yield made
    made.stop()


def alert(name: str, severity: str, **labels: str) -> Alert:
    return {"alertname": name, "severity": severity, "cluster": "train-a", **labels}


def fires(node: str, code: str) -> list[Alert]:
    """What the rules make of a critical fault that healthd leaves to an operator."""
    return [
        alert("HealthdCriticalFault", "warning", code=code, component="mount:/fsx", instance=node),
        alert("HealthdNodeCritical", "warning", verdict="critical", instance=node),
        alert("HealthdOperatorNeeded", "critical", action="page", instance=node),
    ]


def test_500_nodes_that_lose_one_file_system_are_two_pages(
    alertmanager: Alertmanager, pager: Receiver, chat: Receiver
) -> None:
    """The pager gets the alert of the fleet, and in one message the nodes that need an operator, for whatever fault;
    another fault of another node is written to the chat."""
    lost = "lustre.mount.missing"
    alerts = [each for number in range(NODES) for each in fires(f"gpu-{number:03d}", lost)]
    alerts += [
        alert("HealthdNodeOfSharedFault", "none", code=lost, instance=f"gpu-{number:03d}") for number in range(NODES)
    ]
    alerts += [alert("HealthdSameFaultOnManyNodes", "critical", code=lost)]
    alerts += [alert("HealthdCriticalFault", "warning", code="gpu.xid.79", component="gpu:GPU-3", instance="gpu-901")]
    alertmanager.tell(alerts)
    assert told(pager, 2) == [("HealthdOperatorNeeded", NODES), ("HealthdSameFaultOnManyNodes", 1)]
    assert told(chat, 1) == [("HealthdCriticalFault", 1)]
    time.sleep(GROUP_WAIT_S + 1)  # no further message is under way
    assert (len(pager.taken), len(chat.taken)) == (2, 1)


def test_one_node_that_needs_an_operator_is_one_page(
    alertmanager: Alertmanager, pager: Receiver, chat: Receiver
) -> None:
    """Its fault is written to the chat, and its state is silent beside the page."""
    alertmanager.tell(fires("gpu-007", "gpu.xid.79"))
    assert told(pager, 1) == [("HealthdOperatorNeeded", 1)]
    assert told(chat, 1) == [("HealthdCriticalFault", 1)]


def told(receiver: Receiver, messages: int) -> list[tuple[str, int]]:
    """The alert and the number of nodes of each message, once this many have come."""
    end = time.monotonic() + limit_s(30)
    while len(receiver.taken) < messages and time.monotonic() < end:
        time.sleep(0.1)
    return sorted((each["commonLabels"]["alertname"], len(each["alerts"])) for each in receiver.taken)
