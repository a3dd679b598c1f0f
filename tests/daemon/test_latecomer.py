"""A daemon whose metadata service accepts and does not answer: it starts, and takes up later what it is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.compiled import CLOCK_SIM, compiled
from tests.support.imds import Imds, serving
from tests.support.running import RunningNode
from tests.support.wall_clock import WallClock

pytestmark = pytest.mark.process
SILENT_S = 60.0
SLOW_S = 0.13
"""For each of two requests: slower than a start waits, and faster than an item is waited for."""
WAITS = "the metadata service has not answered yet"


@pytest.fixture
def imds() -> Iterator[Imds]:
    with serving("i-0123456789abcdef0") as server:
        server.delay_s = SILENT_S
        yield server


def late_node(tmp_path: Path, imds: Imds, environ: Mapping[str, str]) -> RunningNode:
    sys_root = tmp_path / "sys"  # without firmware tables
    sys_root.mkdir()
    sections = f'''[sources]
kmsg = "{tmp_path}/node/kmsg"
sys_root = "{sys_root}"
imds_endpoint = "{imds.endpoint}"
[orchestrator]
kind = "local"
[[match]]
instance_type = ["p5.*"]
[match.remediation]
max_attempts = 3
'''
    environ = {"AWS_EC2_METADATA_DISABLED": "false", **environ}
    return RunningNode(tmp_path / "node", "n1", sections=sections, environ=environ)


@pytest.fixture
def node(tmp_path: Path, imds: Imds) -> Iterator[RunningNode]:
    made = late_node(tmp_path, imds, {})
    yield made
    made.stop()


def type_of(node: RunningNode) -> str | None:
    status = node.status()
    return None if status is None else status["instance_type"]


def test_what_was_not_told_at_the_start_is_taken_up_later(node: RunningNode, imds: Imds) -> None:
    """The daemon answers while nobody has answered it, and acts on nothing until the service had its second. A service
    that answers then, however slowly, is told of by one start anew: with the type, and what the configuration says of
    it."""
    node.start()
    assert node.process is not None
    pid, unanswered = node.process.pid, list(imds.requests)
    assert type_of(node) is None
    assert set(unanswered) == {"PUT /latest/api/token"}
    assert f"instance_type is not known: IMDS at {imds.endpoint}" in node.log.read_text()
    node.wait(lambda: WAITS in node.log.read_text(), 20, "it says so")
    imds.delay_s = SLOW_S
    node.wait(lambda: type_of(node) == "p5.48xlarge", 60, "the type is known")
    assert (node.process.pid, node.process.poll()) == (pid, None)
    assert sum("started" in event.text for event in node.events()) == 2
    assert node.log.read_text().count(WAITS) == 1
    assert node.log.read_text().count("is not known") == 1


def test_a_match_that_could_not_be_decided_is_asked_about_again(tmp_path: Path, imds: Imds) -> None:
    """The service answers, and does not tell the type yet. The duty comes every five minutes, and at once where the
    clock was set: the daemon starts again once the match can be decided, and no sooner."""
    imds.delay_s, instance_type = 0.0, imds.items.pop("instance-type")
    clock = WallClock(compiled(CLOCK_SIM, tmp_path / "clock_sim.so"), tmp_path / "clock")
    node = late_node(tmp_path, imds, clock.environ)
    try:
        node.start()
        assert type_of(node) is None
        assert "instance_type is not known" in node.log.read_text()
        imds.requests.clear()
        clock.is_off_by(3600)
        node.wait(lambda: "GET /latest/meta-data/instance-type" in imds.requests, 40, "it is asked about")
        assert "matches.decided" not in node.log.read_text()
        imds.items["instance-type"] = instance_type
        clock.is_off_by(7200)
        node.wait(lambda: "matches.decided" in node.log.read_text(), 40, "it can be decided")
        node.wait(lambda: type_of(node) == instance_type, 30, "the daemon has started again")
        decided = node.log.read_text().count("matches.decided")  # twice, if its second start had no answer
        assert sum("started" in event.text for event in node.events()) == 1 + decided
    finally:
        node.stop()


def test_a_service_that_answers_is_asked_by_the_start(node: RunningNode, imds: Imds) -> None:
    """As ever: the type is known from the first answer on, and nothing is started again."""
    imds.delay_s = 0.0
    node.start()
    assert type_of(node) == "p5.48xlarge"
    assert WAITS not in node.log.read_text()
    assert sum("started" in event.text for event in node.events()) == 1
