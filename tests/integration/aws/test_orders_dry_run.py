"""``healthd repair --dry-run`` with a real daemon and EC2's own DryRun: it is asked, and nothing is done."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.imds import Imds
from tests.integration.aws.aws_endpoint import DENIED, REGION, AwsEndpoint
from tests.running import RunningNode

pytestmark = pytest.mark.process
SECTIONS = """
[sources]
kmsg = "{kmsg}"
imds_endpoint = "{imds}"
[orchestrator]
kind = "local"
[provisioner]
kind = "ec2"
[provisioner.aws]
region = "{region}"
endpoint_url = "{aws}"
"""


@pytest.fixture
def node(moto: tuple[str, int], endpoint: AwsEndpoint, tmp_path: Path) -> Iterator[RunningNode]:
    """A daemon on an instance that moto knows, in observe mode."""
    ec2 = boto3.client("ec2", region_name=REGION, endpoint_url=f"http://{moto[0]}:{moto[1]}")
    launched = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, InstanceType="m5.large")
    instance = str(launched["Instances"][0]["InstanceId"])
    ec2.close()
    imds = Imds({"instance-id": instance, "instance-type": "m5.large", "placement/region": REGION})
    threading.Thread(target=imds.serve_forever, daemon=True).start()
    made = RunningNode(tmp_path / "node", "n1", environ={"AWS_EC2_METADATA_DISABLED": "false"})
    made.configure(SECTIONS.format(kmsg=made.kmsg, imds=imds.endpoint, region=REGION, aws=endpoint.url))
    made.start()
    yield made
    made.stop()
    imds.shutdown()
    imds.server_close()


def rehearsed(node: RunningNode) -> subprocess.CompletedProcess[str]:
    return node.healthd("repair", "--step", "reboot", "--dry-run", "--socket", str(node.socket))


def test_a_rehearsed_reboot_asks_ec2_whether_it_would(node: RunningNode, endpoint: AwsEndpoint) -> None:
    """The line of the step is what EC2 says to a dry run; no other RebootInstances is ever sent."""
    told = rehearsed(node)
    assert told.returncode == 0, told.stdout + told.stderr
    (line,) = (line for line in told.stdout.splitlines() if line.split()[0] == "reboot")
    assert line.endswith("AWS says that it would be done")
    endpoint.fail("RebootInstances", DENIED)
    denied = rehearsed(node)
    assert (denied.returncode, "would be refused: cannot" in denied.stderr) == (1, True)
    assert "needs the IAM action ec2:RebootInstances" in denied.stdout
    assert [each["DryRun"] for each in endpoint.said("RebootInstances")] == ["true", "true"]
    assert node.status() is not None
