"""One call to AWS, over real HTTP with real boto3 in its child: what is sent, how often, and what an error becomes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from healthd.core.errors import BackendBusy, BackendDenied, BackendRefused, BackendUnknown, SourceUnreadable
from healthd.core.node import CommandResult
from healthd.remediation.provisioners.aws import Aws
from healthd.sources.command import run_command
from tests.live.aws.aws_endpoint import (
    BROKEN,
    DENIED,
    DENIED_JSON,
    REGION,
    THROTTLED,
    THROTTLED_JSON,
    AwsEndpoint,
    Fault,
)
from tests.live.aws.aws_forks import AwsForks
from tests.live.aws.fake_hyperpod import CLUSTER
from tests.support.limits import limit_s

INSTANCE = "i-00000000000000001"


@pytest.fixture
def aws(endpoint: AwsEndpoint) -> Aws:
    """As everywhere, but with the child that healthd itself starts."""
    return Aws(region=REGION, endpoint_url=endpoint.url, timeout_s=60.0)


def reboot(aws: Aws) -> None:
    aws.call("sagemaker", "BatchRebootClusterNodes", ClusterName=CLUSTER, NodeIds=[INSTANCE])


def look(aws: Aws) -> None:
    aws.call("sagemaker", "ListClusterNodes", ClusterName=CLUSTER)


def test_a_call_that_is_not_in_the_table_is_not_sent(aws: Aws, endpoint: AwsEndpoint) -> None:
    """The table is the only door: BatchDeleteClusterNodes never leaves the machine."""
    with pytest.raises(BackendRefused, match="sagemaker:BatchDeleteClusterNodes is not in healthd's table of calls"):
        aws.call("sagemaker", "BatchDeleteClusterNodes", ClusterName=CLUSTER, NodeIds=[INSTANCE])
    assert endpoint.requests == []


def test_all_pages_of_a_list_are_read(aws: Aws, endpoint: AwsEndpoint) -> None:
    """Seven nodes in pages of three are seven nodes."""
    endpoint.hyperpod.page = 3
    ids = [endpoint.hyperpod.add(f"ip-10-0-0-{number}") for number in range(7)]
    answer = aws.call("sagemaker", "ListClusterNodes", ClusterName=CLUSTER)
    assert [each["InstanceId"] for each in answer["ClusterNodeSummaries"]] == ids
    assert endpoint.count("ListClusterNodes") == 3


def test_a_throttled_act_is_sent_again_because_nothing_was_applied(aws: Aws, endpoint: AwsEndpoint) -> None:
    """Twice throttled, then done: three requests, one effect."""
    endpoint.hyperpod.add("ip-10-0-0-1")
    endpoint.fail("BatchRebootClusterNodes", THROTTLED_JSON, THROTTLED_JSON)
    reboot(aws)
    assert endpoint.count("BatchRebootClusterNodes") == 3


def test_an_act_that_stays_throttled_is_busy_not_refused(aws: Aws, endpoint: AwsEndpoint) -> None:
    """It can be asked again later; a refusal would be the end of the repair."""
    endpoint.fail("BatchRebootClusterNodes", *[THROTTLED_JSON] * 9)
    with pytest.raises(BackendBusy, match="ThrottlingException.*AWS applied nothing"):
        reboot(aws)
    assert endpoint.count("BatchRebootClusterNodes") == 3


@pytest.mark.parametrize("fault", [BROKEN, Fault(lost=True)], ids=["500", "connection lost"])
def test_an_act_without_an_answer_is_sent_once_and_unknown(aws: Aws, endpoint: AwsEndpoint, fault: Fault) -> None:
    """It may have been applied: a second one could replace a second machine."""
    endpoint.hyperpod.add("ip-10-0-0-1")
    endpoint.fail("BatchRebootClusterNodes", fault)
    with pytest.raises(BackendUnknown, match="AWS may have applied it"):
        reboot(aws)
    assert endpoint.count("BatchRebootClusterNodes") == 1


def test_an_act_that_hangs_is_sent_once_and_given_up_at_its_deadline(endpoint: AwsEndpoint, forks: AwsForks) -> None:
    """Applied, and no answer: unknown, after one request, within the deadline."""
    endpoint.hyperpod.add("ip-10-0-0-1")
    endpoint.fail("BatchRebootClusterNodes", Fault(hangs=True))
    started_s = time.monotonic()
    with pytest.raises(BackendUnknown, match="BatchRebootClusterNodes: ReadTimeoutError"):
        # forked: to load boto3 on a busy machine would take the deadline
        reboot(Aws(region=REGION, endpoint_url=endpoint.url, timeout_s=5.0, run=forks.run))
    assert time.monotonic() - started_s < 5.0 + limit_s(2)
    assert endpoint.count("BatchRebootClusterNodes") == 1


def test_a_question_is_asked_up_to_three_times(aws: Aws, endpoint: AwsEndpoint) -> None:
    """Looking twice harms nothing; what stays without an answer is unknown, throttled or broken."""
    endpoint.fail("ListClusterNodes", BROKEN, THROTTLED_JSON)
    look(aws)
    assert endpoint.count("ListClusterNodes") == 3
    endpoint.fail("ListClusterNodes", *[BROKEN] * 3)
    with pytest.raises(BackendUnknown, match="InternalFailure"):
        look(aws)


def test_a_missing_right_names_the_iam_action(aws: Aws, endpoint: AwsEndpoint) -> None:
    """A reader of the refusal knows which line of the policy is missing, and the tag that it wants."""
    endpoint.fail("BatchRebootClusterNodes", DENIED_JSON)
    with pytest.raises(BackendDenied, match="the role needs the IAM action sagemaker:BatchRebootClusterNodes"):
        reboot(aws)
    endpoint.fail("RebootInstances", DENIED)
    tagged = (
        "the role needs the IAM action ec2:RebootInstances, see packaging/iam, for instances tagged healthd:managed"
    )
    with pytest.raises(BackendDenied, match=tagged):
        aws.call("ec2", "RebootInstances", InstanceIds=[INSTANCE])


def test_what_is_not_there_is_named_with_the_region(aws: Aws, endpoint: AwsEndpoint) -> None:
    """In a wrong region AWS says of a good id or cluster that there is none, and does not name the region."""
    endpoint.fail("DescribeInstances", Fault(code="InvalidInstanceID.NotFound"))
    with pytest.raises(BackendRefused, match=rf"InvalidInstanceID.*\(region {REGION}\)$"):
        aws.call("ec2", "DescribeInstances", InstanceIds=[INSTANCE])


def test_no_credentials_are_a_missing_right(aws: Aws, endpoint: AwsEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node without a role is told so; nothing was sent."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(BackendDenied, match="NoCredentialsError.*give it a role"):
        reboot(aws)
    assert endpoint.requests == []


def test_credentials_that_were_there_a_moment_ago_say_nothing_of_a_right(
    aws: Aws, endpoint: AwsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata service was slow, the token is old, or the clock is wrong: unknown to whoever asks, and to be asked
    again by whoever acts. No right is missing, and none is named."""
    look(aws)
    for code in ("ExpiredToken", "SignatureDoesNotMatch"):
        endpoint.fail("ListClusterNodes", Fault(code=code, status=403))
        with pytest.raises(BackendUnknown, match=f"{code}.*no valid credentials now") as raised:
            look(aws)
        assert "IAM" not in str(raised.value)
        endpoint.fail("BatchRebootClusterNodes", Fault(code=code, status=403))
        with pytest.raises(BackendBusy, match=f"{code}.*AWS applied nothing"):
            reboot(aws)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(BackendUnknown, match="NoCredentialsError"):
        look(aws)


def test_a_role_that_does_not_trust_the_pod_is_no_missing_right_of_the_role(
    aws: Aws, endpoint: AwsEndpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """IRSA with a wrong role, or one whose trust policy names another ServiceAccount: STS says no, and not the service
    that was to be asked. The next step is the trust, not a policy with that service's action."""
    (tmp_path / "token").write_text("x.y.z")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/healthd-controller")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint.url)
    endpoint.always["AssumeRoleWithWebIdentity"] = Fault(code="AccessDenied", status=403)
    with pytest.raises(BackendUnknown, match="AssumeRoleWithWebIdentity: .*no valid credentials now.*trust") as raised:
        look(aws)
    assert "IAM action" not in str(raised.value)
    with pytest.raises(BackendBusy, match="AssumeRoleWithWebIdentity: .*AWS applied nothing"):
        reboot(aws)
    assert {operation for operation, _ in endpoint.requests} == {"AssumeRoleWithWebIdentity"}


def test_parameters_that_the_model_does_not_allow_are_refused(aws: Aws, endpoint: AwsEndpoint) -> None:
    """botocore finds a wrong type, AWS a wrong pattern; neither changes anything."""
    with pytest.raises(BackendRefused, match="ParamValidationError"):
        aws.call("sagemaker", "BatchRebootClusterNodes", ClusterName=CLUSTER, NodeIds=INSTANCE)
    with pytest.raises(BackendRefused, match="ValidationException.*does not match"):
        aws.call("sagemaker", "BatchRebootClusterNodes", ClusterName=CLUSTER, NodeIds=["n1"])


def test_an_endpoint_that_nobody_serves_applied_nothing(aws_environment: None) -> None:
    """A refused connection: an act may be asked for again, a question has no answer."""
    nowhere = Aws(region=REGION, endpoint_url="http://127.0.0.1:9", timeout_s=60.0)
    with pytest.raises(BackendBusy, match="EndpointConnectionError"):
        reboot(nowhere)
    with pytest.raises(BackendUnknown, match="EndpointConnectionError"):
        look(nowhere)


def test_without_a_region_it_is_refused_with_the_reason(endpoint: AwsEndpoint) -> None:
    """boto3's own words reach the operator."""
    with pytest.raises(BackendRefused, match="NoRegionError"):
        reboot(Aws(endpoint_url=endpoint.url))


def test_the_endpoint_of_the_environment_is_used(endpoint: AwsEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_ENDPOINT_URL works as with every other tool."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
    look(Aws(region=REGION))
    assert endpoint.count("ListClusterNodes") == 1


@pytest.mark.parametrize(
    ("names", "other"),
    [({}, True), ({"NO_PROXY": "own.example"}, True), ({"no_proxy": "own.example"}, True), ({"no_proxy": "*"}, False)],
)
def test_behind_a_proxy_the_metadata_service_is_asked_without_it(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, str], *, other: bool
) -> None:
    """It gives the credentials of the machine that asks, and by a proxy that is the proxy's. The rest is as it was."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", **names}.items():
        monkeypatch.setenv(name, value)
    found: dict[str, bool] = {}

    def child(argv: tuple[str, ...], *, env: Mapping[str, str], **_: object) -> CommandResult:
        shown = "import sys, botocore.utils as u; print([*map(len, map(u.get_environ_proxies, sys.argv[1:]))])"
        done = run_command((sys.executable, "-c", shown, *asked), timeout_s=limit_s(30), env=env)
        found.update(zip(asked, map(bool, json.loads(done.stdout)), strict=True))
        return CommandResult(argv=argv, code=0, stdout='{"answer": {}}', stderr="", duration_s=0.1)

    own = "https://own.example/"
    asked = (
        "http://169.254.169.254/latest/api/token",
        "http://[fd00:ec2::254]/latest/api/token",
        "https://a.example/",
        own,
    )
    look(Aws(region=REGION, run=child))
    assert list(found.values()) == [False, False, other, not names]


def test_a_child_that_cannot_start_applied_nothing_and_one_that_breaks_may_have() -> None:
    """Not started: busy. Ended without its answer: unknown."""

    def never(argv: tuple[str, ...], **_: object) -> object:
        raise SourceUnreadable("no memory for a process")

    with pytest.raises(BackendBusy, match="no memory for a process"):
        reboot(Aws(region=REGION, run=never))  # type: ignore[arg-type]  # never returns

    def broken(argv: tuple[str, ...], **_: object) -> object:
        return CommandResult(argv=argv, code=-9, stdout="", stderr="Killed", duration_s=0.1)

    with pytest.raises(BackendUnknown, match="the child ended with -9: Killed"):
        reboot(Aws(region=REGION, run=broken))  # type: ignore[arg-type]  # its result is a CommandResult


def test_boto3_is_never_loaded_into_healthd_itself(aws: Aws, endpoint: AwsEndpoint) -> None:
    """The daemon's memory and its threads are spared: what calls AWS is a child that ends."""
    before = {name for name in sys.modules if name.partition(".")[0] == "boto3"}
    look(aws)
    assert {name for name in sys.modules if name.partition(".")[0] == "boto3"} == before


def test_ec2s_throttling_is_told_from_its_refusals(aws: Aws, endpoint: AwsEndpoint) -> None:
    """RequestLimitExceeded with status 503 is throttling; an unknown instance is a refusal."""
    endpoint.fail("RebootInstances", *[THROTTLED] * 3)
    with pytest.raises(BackendBusy, match="RequestLimitExceeded"):
        aws.call("ec2", "RebootInstances", InstanceIds=[INSTANCE])
    with pytest.raises(BackendRefused, match="InvalidInstanceID.NotFound"):
        aws.call("ec2", "RebootInstances", InstanceIds=[INSTANCE])
