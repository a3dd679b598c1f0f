"""UltraServers by SageMaker: real boto3 against an endpoint that botocore's own service model checks; moto has none."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.core.errors import BackendDenied
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.ultraservers import UltraServerHealth, read_ultraservers
from tests.live.aws.aws_endpoint import DENIED_JSON, AwsEndpoint


def listed(number: int, health: str = "OK", **more: Any) -> dict[str, Any]:
    """As the API Reference has it."""
    shape = {"UltraServerType": "ml.u-p6e-gb200x72", "AvailabilityZone": "us-east-1a", "TotalInstanceCount": 18}
    counts = {"ConfiguredSpareInstanceCount": 1, "AvailableInstanceCount": 0, "InUseInstanceCount": 17}
    left = {"AvailableSpareInstanceCount": 1, "UnhealthyInstanceCount": 0, "InstanceType": "ml.p6e-gb200.36xlarge"}
    return {"UltraServerId": f"us-{number:02}", "HealthStatus": health, **shape, **counts, **left, **more}


def test_every_page_of_every_active_capacity_is_read(aws: Aws, endpoint: AwsEndpoint) -> None:
    """A capacity of plain instances, and one that is over, are not asked for."""
    worn = listed(0, "Impaired", UnhealthyInstanceCount=1, AvailableSpareInstanceCount=0)
    endpoint.hyperpod.page = 2
    endpoint.hyperpod.plans = {
        "train": {"cap-1": [worn, *map(listed, range(1, 5))], "cap-2": [listed(5, "Insufficient-Data")]},
        "idle": {},
        "more": {"cap-3": [listed(6)]},
    }
    found = read_ultraservers(aws)
    assert [each.id for each in found] == [f"us-{number:02}" for number in range(7)]
    assert found[0].text == "impaired: 17 of 18 instances in use, 1 unhealthy, 0 of 1 spare left"
    assert found[5].health is UltraServerHealth.INSUFFICIENT_DATA
    assert endpoint.count("ListTrainingPlans") == 2
    asked = [each["ReservedCapacityArn"] for each in endpoint.requests_for("ListUltraServersByReservedCapacity")]
    assert sorted({each.rpartition("/")[2] for each in asked}) == ["cap-1", "cap-2", "cap-3"]


def test_an_account_without_training_plans_has_none(aws: Aws) -> None:
    """Which is no error."""
    assert read_ultraservers(aws) == ()


@pytest.mark.parametrize("operation", ["ListTrainingPlans", "ListUltraServersByReservedCapacity"])
def test_a_missing_right_is_named(aws: Aws, endpoint: AwsEndpoint, operation: str) -> None:
    """With the IAM action and where its policy is."""
    endpoint.hyperpod.plans = {"train": {"cap-1": [listed(1)]}}
    endpoint.fail(operation, DENIED_JSON)
    with pytest.raises(BackendDenied, match=f"the role needs the IAM action sagemaker:{operation}, see pack"):
        read_ultraservers(aws)
