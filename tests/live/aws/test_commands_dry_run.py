"""``healthd repair --dry-run`` with a real daemon and EC2's own DryRun: it is asked, and nothing is done."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.aws.aws_endpoint import DENIED, AwsEndpoint
from tests.live.aws.instance_node import on_an_instance
from tests.support.running import RunningNode

pytestmark = pytest.mark.process


@pytest.fixture
def node(moto: tuple[str, int], endpoint: AwsEndpoint, tmp_path: Path) -> Iterator[RunningNode]:
    """A daemon on an instance that moto knows, in observe mode."""
    with on_an_instance(moto, endpoint, tmp_path / "node") as made:
        made.start()
        yield made
        made.stop()


def rehearsed(node: RunningNode) -> subprocess.CompletedProcess[str]:
    return node.healthd("repair", "--step", "reboot", "--dry-run", "--socket", str(node.socket))


def test_a_rehearsed_reboot_asks_ec2_whether_it_would(node: RunningNode, endpoint: AwsEndpoint) -> None:
    """The line of the step is what EC2 says to a dry run; no other RebootInstances is ever sent."""
    told = rehearsed(node)
    assert told.returncode == 0, told.stdout + told.stderr
    (line,) = (line for line in told.stdout.splitlines() if line.split()[0] == "reboot")
    assert line.endswith("AWS would carry it out (DryRun)")
    endpoint.fail("RebootInstances", DENIED)
    denied = rehearsed(node)
    assert (denied.returncode, "would be refused: cannot" in denied.stderr) == (1, True)
    assert "needs the IAM action ec2:RebootInstances" in denied.stdout
    assert [each["DryRun"] for each in endpoint.requests_for("RebootInstances")] == ["true", "true"]
    assert node.status() is not None
