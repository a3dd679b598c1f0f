"""What a real daemon says on its own: messages to a real HTTP server, and the metrics as a file."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.sim.machine import SimulatedMachine
from tests.support.limits import limit_s
from tests.support.ports import free_ports
from tests.support.receiver import Receiver, receiving
from tests.support.running import RunningNode

pytestmark = pytest.mark.process

SECTIONS = """
[orchestrator]
kind = "local"
[metrics]
textfile = "{folder}/healthd.prom"
every_s = 5
[notify]
slack_url_file = "{folder}/slack-url"
webhook_url = "{url}"
"""
XID = "gpu.xid.79 gpu:GPU-51a1a7ed-0000-4000-8000-000000000003"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def machine(tmp_path: Path) -> SimulatedMachine:
    return SimulatedMachine(tmp_path / "machine")


@pytest.fixture
def node(tmp_path: Path, machine: SimulatedMachine, receiver: Receiver) -> Iterator[RunningNode]:
    folder, (port,) = tmp_path / "node", free_ports(1)
    sections = SECTIONS.format(folder=folder, url=receiver.url) + machine.sections()
    environ = {"HEALTHD_DAEMON_HTTP": f"127.0.0.1:{port}"}
    made = RunningNode(folder, "p5", sections=sections, kmsg=str(machine.kmsg), environ=environ)
    (folder / "port").write_text(str(port))
    made.start()
    yield made
    made.stop()


def page_of(node: RunningNode) -> str:
    """The metrics page, by HTTP."""
    port = (node.folder / "port").read_text()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=limit_s(10)) as answer:
        text: str = answer.read().decode()
        return text


def news(receiver: Receiver, key: str) -> list[str]:
    """The states in which the webhook heard of this key."""
    pieces = [piece for message in receiver.taken if "news" in message for piece in message["news"]]
    return [piece["state"] for piece in pieces if piece["key"] == key]


def test_people_are_told_of_a_fault_and_of_its_end_and_of_nothing_twice(
    node: RunningNode, machine: SimulatedMachine, receiver: Receiver, tmp_path: Path
) -> None:
    """A receiver that is down is named by status, log and metrics; when it is back the news arrives; a daemon that was
    killed says that it is over, and not that it was; Slack, whose URL was missing, gets it with the others' end."""
    node.well()
    machine.gpu_falls_off_the_bus(3)
    node.wait(lambda: news(receiver, XID) == ["wrong"], 45, "the webhook hears of it")
    node.wait(
        lambda: "notify: deliveries to slack fail" in str((node.status() or {})["notices"]),
        20,
        "status says what is not delivered",
    )
    assert "slack-url: cannot be read" in node.log.read_text()
    delivered = 'healthd_notifications_total{channel="webhook",result="delivered"} 1.0'
    node.wait(lambda: delivered in page_of(node), 20, "what the webhook has taken is counted")
    page = page_of(node)
    assert 'healthd_notifications_total{channel="slack",result="delivered"} 0.0' in page
    assert 'healthd_notifications_undelivered{channel="slack"} 0.0' not in page

    node.kill()
    (node.folder / "slack-url").write_text(f"{receiver.url}\n")
    (machine.folder / "reboot-is-wanted").touch()
    machine.reboot()
    node.start()
    node.wait(lambda: news(receiver, XID) == ["wrong", "over"], 60, "the webhook hears that it is over")
    node.wait(lambda: any("gpu.xid.79" in message.get("text", "") for message in receiver.taken), 20, "Slack does, too")
    time.sleep(6)  # a further turn of the notifier
    assert news(receiver, XID) == ["wrong", "over"]


def test_the_file_is_the_page_and_goes_with_the_daemon(node: RunningNode) -> None:
    """node_exporter finds the same metrics in the file as a scraper does at the port; a stopped daemon leaves none."""
    path = node.folder / "healthd.prom"
    node.wait(path.exists, 20, "the file is there")
    names = {line.split(" ")[2] for line in path.read_text().splitlines() if line.startswith("# TYPE")}
    assert names >= {
        line.split(" ")[2] for line in page_of(node).splitlines() if line.startswith("# TYPE healthd_check")
    }
    assert node.stop() == 0
    assert not path.exists()


def test_a_file_that_cannot_be_removed_is_left_and_the_daemon_ends_in_order(node: RunningNode) -> None:
    """As on a file system that has turned read-only: the log says so, and the audit trail has the daemon's end."""
    path = node.folder / "healthd.prom"
    node.wait(path.exists, 20, "the file is there")
    path.unlink()
    path.mkdir()
    assert node.stop() == 0
    assert f"the metrics stay in {path}" in node.log.read_text()
    assert node.events()[-1].text == "healthd stopped"
