"""`healthd doctor` and EC2's own DryRun: what the role may, what it may not, and an AWS that does not answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.aws.aws_endpoint import DENIED, AwsEndpoint
from tests.live.aws.instance_node import on_an_instance
from tests.support.limits import limit_s
from tests.support.running import RunningNode

pytestmark = pytest.mark.process


@pytest.fixture
def node(moto: tuple[str, int], endpoint: AwsEndpoint, tmp_path: Path) -> Iterator[RunningNode]:
    """The configuration of an instance that moto knows; no daemon."""
    with on_an_instance(moto, endpoint, tmp_path / "node") as made:
        yield made


def looked(node: RunningNode) -> dict[str, dict[str, Any]]:
    """The doctor's lines; on a busy machine it is asked again until the metadata service answered it in time."""
    found: dict[str, dict[str, Any]] = {}

    def answered() -> bool:
        done = node.healthd("doctor", "--json", "--config", str(node.config), timeout_s=120.0)
        found.update({line["about"]: line for line in json.loads(done.stdout)["lines"]})
        return bool(found["metadata"]["status"] == "ok")

    node.wait(answered, limit_s(30.0), "the metadata service to answer in time")
    return found


def test_a_right_that_is_there_and_one_that_is_not(node: RunningNode, endpoint: AwsEndpoint) -> None:
    """EC2 is asked whether it would, and never to do it; a denial names the IAM action and where its policy is."""
    lines = looked(node)
    assert lines["metadata"]["status"] == "ok"
    assert lines["repair: reboot_node"]["status"] == "ok"
    assert lines["repair: reboot_node"]["why"].endswith("AWS would carry it out (DryRun)")
    assert (lines["repair: replace_node"]["status"], lines["repair: replace_node"]["optional"]) == ("missing", True)
    endpoint.always["RebootInstances"] = DENIED  # however often it is asked again
    denied = looked(node)["repair: reboot_node"]
    assert denied["status"] == "missing"
    assert "needs the IAM action ec2:RebootInstances" in denied["why"]
    assert "packaging/iam" in denied["fix"]
    assert {each["DryRun"] for each in endpoint.requests_for("RebootInstances")} == {"true"}


def test_an_aws_that_is_not_there_could_not_be_told(node: RunningNode, endpoint: AwsEndpoint) -> None:
    """A closed port says nothing of rights."""
    text = node.config.read_text().replace(endpoint.url, "http://127.0.0.1:9")
    node.config.write_text(text.replace("[provisioner.aws]", "[provisioner.aws]\ntimeout_s = 5"))
    line = looked(node)["repair: reboot_node"]
    assert line["status"] == "could not tell"
    assert "network to AWS" in line["fix"]


def test_a_group_without_this_instance_is_found_before_a_fault(node: RunningNode, endpoint: AwsEndpoint) -> None:
    """Auto Scaling has no dry run: what healthd reads before each act finds the wrong kind, and the missing right."""
    node.config.write_text(node.config.read_text().replace('kind = "ec2"', 'kind = "autoscaling"'))
    line = looked(node)["repair: replace_node"]
    assert line["status"] == "could not tell"
    assert line["why"].endswith("is in no Auto Scaling group: check [provisioner] kind")
    endpoint.always["DescribeAutoScalingInstances"] = DENIED
    denied = looked(node)["repair: replace_node"]
    assert denied["status"] == "could not tell"
    assert "needs the IAM action autoscaling:DescribeAutoScalingInstances" in denied["why"]
    assert "packaging/iam" in denied["fix"]
    assert endpoint.count("TerminateInstanceInAutoScalingGroup") == 0
