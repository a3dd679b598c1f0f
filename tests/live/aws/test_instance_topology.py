"""Where instances stand by EC2: real boto3 against an endpoint in the form of its API Reference; moto has none."""

from __future__ import annotations

import pytest

from healthd.core.errors import BackendDenied
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.instance_topology import InstancePlace, read_topology
from tests.live.aws.aws_endpoint import DENIED, AwsEndpoint


def test_every_page_is_read_in_one_call(aws: Aws, endpoint: AwsEndpoint) -> None:
    """A hundred instances a page, and no instance is named, so that one that has gone fails nothing."""
    endpoint.topology = {
        f"i-{number:017x}": (("nn-1", f"nn-2{number // 100}", f"nn-3{number // 10}"), "cb-7" if number < 18 else "")
        for number in range(250)
    }
    places = read_topology(aws)
    assert len(places) == 250
    assert places[f"i-{17:017x}"] == InstancePlace(network=("nn-1", "nn-20", "nn-31"), capacity_block="cb-7")
    assert places[f"i-{249:017x}"] == InstancePlace(network=("nn-1", "nn-22", "nn-324"))
    asked = endpoint.requests_for("DescribeInstanceTopology")
    assert [each.get("MaxResults") for each in asked] == ["100"] * 3
    assert not any("InstanceId.1" in each for each in asked)


def test_an_account_without_instances_of_these_types_is_no_error(aws: Aws) -> None:
    """EC2 describes none of them."""
    assert read_topology(aws) == {}


def test_a_missing_right_is_named(aws: Aws, endpoint: AwsEndpoint) -> None:
    """With the IAM action and where its policy is."""
    endpoint.fail("DescribeInstanceTopology", DENIED)
    with pytest.raises(BackendDenied, match=r"the role needs the IAM action ec2:DescribeInstanceTopology, see pack"):
        read_topology(aws)
