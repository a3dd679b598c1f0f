"""A node on an EC2 instance that moto knows: its metadata service, and a configuration that asks a test's endpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3

from tests.live.aws.aws_endpoint import REGION, AwsEndpoint
from tests.support.imds import Imds
from tests.support.running import RunningNode

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


@contextmanager
def on_an_instance(moto: tuple[str, int], endpoint: AwsEndpoint, folder: Path) -> Iterator[RunningNode]:
    """A node in ``folder`` that is configured and not started."""
    ec2 = boto3.client("ec2", region_name=REGION, endpoint_url=f"http://{moto[0]}:{moto[1]}")
    launched = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, InstanceType="m5.large")
    instance = str(launched["Instances"][0]["InstanceId"])
    ec2.close()
    imds = Imds({"instance-id": instance, "instance-type": "m5.large", "placement/region": REGION})
    threading.Thread(target=imds.serve_forever, daemon=True).start()
    made = RunningNode(folder, "n1", environ={"AWS_EC2_METADATA_DISABLED": "false"})
    made.configure(SECTIONS.format(kmsg=made.kmsg, imds=imds.endpoint, region=REGION, aws=endpoint.url))
    yield made
    imds.shutdown()
    imds.server_close()
