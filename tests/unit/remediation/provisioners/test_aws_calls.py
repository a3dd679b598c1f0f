"""The table of calls to AWS: what botocore knows of them, what the code makes of them, what IAM is asked for."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import pytest

from healthd.remediation.provisioners.aws_calls import AwsCall, Caller, Feature, IamScope, Platform, calls, find_call
from healthd.remediation.provisioners.aws_errors import CallTrouble, trouble_of
from healthd.remediation.provisioners.iam import policies

ROOT = Path(__file__).parents[4]
SHIPPED = ROOT / "packaging" / "iam"
CALLERS = (ROOT / "remediation" / "provisioners", ROOT / "healthd" / "notify")
CALLS = tuple(calls().values())
NEVER = {"BatchDeleteClusterNodes", "TerminateInstances", "DeleteCluster", "UpdateCluster", "DeleteAutoScalingGroup"}


def calls_in_the_code() -> Iterator[tuple[str, str]]:
    """Service and operation of every ``….call("ec2", "X", …)`` and ``….would(…)`` that stands in our sources.

    Operations that are chosen at run time stand as plain texts in the same module, which counts as well.
    """
    operations = {call.operation: call.service for call in CALLS}
    for path in (path for folder in CALLERS for path in folder.glob("*.py")):
        if path.name in ("aws_calls.py", "iam.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in operations:
                yield operations[node.value], node.value
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("call", "would")
            ):
                texts = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
                if len(texts) == 2:
                    yield texts[0], texts[1]


def test_what_the_code_calls_and_the_table_are_the_same() -> None:
    """No call without a row, and no row, and so no right, without a call."""
    assert set(calls_in_the_code()) == {(call.service, call.operation) for call in CALLS}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.operation)
def test_a_row_is_what_botocore_has(call: AwsCall) -> None:
    """The operation is there; a dry run is said of exactly those that take DryRun and act; a whole list has pages."""
    session = botocore.session.get_session()
    shape = session.get_service_model(call.service).operation_model(call.operation).input_shape
    assert call.dry_run == (call.acts and "DryRun" in shape.members)
    pages = session.get_component("data_loader").load_service_model(call.service, "paginators-1")["pagination"]
    if call.whole:
        assert call.operation in pages
    if call.page:
        assert call.page <= shape.members[pages[call.operation]["limit_key"]].metadata["max"]


def test_rows_are_unique_and_what_shrinks_a_cluster_has_none() -> None:
    """BatchDeleteClusterNodes above all."""
    assert len({(call.service, call.operation) for call in CALLS}) == len(CALLS)
    assert {call.operation for call in CALLS} & NEVER == set()
    assert find_call("sagemaker", "BatchDeleteClusterNodes") is None


def shipped() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in SHIPPED.glob("*.json")}


def test_the_shipped_policies_are_what_the_table_needs() -> None:
    """packaging/iam holds a policy for each platform and way, each made from the table, and no other file."""
    assert shipped() == policies(), "run: python -m healthd.remediation.provisioners.iam packaging/iam"


def test_policies_allow_every_call_of_their_platform_and_way_and_nothing_else() -> None:
    """Read back as JSON, in both directions; no action has a wildcard."""
    for user in (*Platform, *Feature):
        for way in Caller:
            wanted = sorted(call.action for call in CALLS if (user, way) in call.uses)
            assert (f"{user}-{way}.json" in shipped()) == bool(wanted)
            if not wanted:
                continue
            statements = json.loads(shipped()[f"{user}-{way}.json"])["Statement"]
            allowed = [action for statement in statements for action in statement["Action"]]
            assert sorted(allowed) == wanted
            assert not any("*" in action for action in allowed)
            assert {statement["Effect"] for statement in statements} == {"Allow"}


def test_what_acts_is_limited_as_far_as_iam_can() -> None:
    """On a node, EC2 acts on that node alone; elsewhere on what is tagged; HyperPod on the one cluster."""
    for name, text in shipped().items():
        for statement in json.loads(text)["Statement"]:
            if not any(call.acts for call in CALLS if call.action in statement["Action"]):
                continue
            assert statement["Resource"] != "*"
            if any(action.startswith("ec2:") for action in statement["Action"]):
                assert ("ArnEquals" in statement["Condition"]) == name.endswith("-node.json")
                assert statement["Condition"]["StringEquals"] == {"aws:ResourceTag/healthd:managed": "true"}
    assert all(call.scope is not IamScope.ANY for call in CALLS if call.acts)


@pytest.mark.parametrize(
    ("code", "status", "trouble"),
    [
        ("RequestLimitExceeded", 503, CallTrouble.THROTTLED),
        ("Throttling", 400, CallTrouble.THROTTLED),
        ("ThrottlingException", 400, CallTrouble.THROTTLED),
        ("Whatever", 429, CallTrouble.THROTTLED),
        ("InsufficientInstanceCapacity", 500, CallTrouble.BUSY),
        ("IncorrectInstanceState", 400, CallTrouble.BUSY),
        ("ResourceContention", 500, CallTrouble.BUSY),
        ("ScalingActivityInProgress", 400, CallTrouble.BUSY),
        ("UnauthorizedOperation", 403, CallTrouble.DENIED),
        ("AccessDeniedException", 400, CallTrouble.DENIED),
        ("ExpiredToken", 400, CallTrouble.CREDENTIALS),
        ("SignatureDoesNotMatch", 403, CallTrouble.CREDENTIALS),
        ("DryRunOperation", 412, CallTrouble.WOULD_DO),
        ("ValidationException", 400, CallTrouble.REFUSED),
        ("OperationNotPermitted", 400, CallTrouble.REFUSED),
        ("InternalFailure", 500, CallTrouble.UNKNOWN),
        ("ServiceUnavailable", 503, CallTrouble.UNKNOWN),
        ("", 0, CallTrouble.UNKNOWN),
    ],
)
def test_a_code_says_whether_anything_was_applied(code: str, status: int, trouble: CallTrouble) -> None:
    """Throttled, busy, denied and refused: nothing was. What AWS's own fault is may have been."""
    assert trouble_of(code, status) is trouble


def test_what_botocore_calls_throttling_is_throttling_here() -> None:
    """The list is botocore's own: a newer one that knows more shows here."""
    from botocore.retries.standard import ThrottledRetryableChecker

    codes = ThrottledRetryableChecker._THROTTLED_ERROR_CODES
    assert {code for code in codes if trouble_of(code, 400) is not CallTrouble.THROTTLED} == set()


def test_what_sts_says_of_a_token_proves_no_missing_right() -> None:
    """With IRSA each call has STS take the pod's token first: an issuer that does not answer, or a token that is too
    old, refuses nothing for good. The codes are those of botocore's own model."""
    sts = botocore.session.get_session().get_service_model("sts")
    shapes = sts.operation_model("AssumeRoleWithWebIdentity").error_shapes
    codes = {(each.metadata["error"]["code"], each.metadata["error"]["httpStatusCode"]) for each in shapes}
    of_token = {each for each in codes if "Token" in each[0] or each[0].startswith("IDP")}
    assert len(of_token) == 4
    assert {trouble_of(*each) for each in of_token} == {CallTrouble.CREDENTIALS}
