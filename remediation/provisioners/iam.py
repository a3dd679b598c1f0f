"""The least that IAM must allow, made from the table of calls: one policy for each platform, or feature, and way. Pure.

    python -m healthd.remediation.provisioners.iam FOLDER    write them (packaging/iam in a checkout)

Fill in PARTITION, REGION, ACCOUNT, CLUSTER_ID, BUS, BUCKET and PREFIX; unfilled they match nothing. On a node, the
instance that the credentials came from (``ec2:SourceInstanceARN``) must be the one that is acted upon
(``ec2:InstanceID``): the form that others report to work, where ``aws:ARN`` never matches and a bare variable is no
valid resource. None of this was tried on AWS: try it with ``--dry-run`` first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from healthd.core.json_documents import json_document
from healthd.remediation.provisioners.aws_calls import AwsCall, Caller, Feature, IamScope, Platform, calls

MANAGED_TAG = "healthd:managed"
"""Instances and groups that healthd may act on have this tag, with the value ``true``."""
EVENT_SOURCE = "healthd"
"""The source of healthd's events, the only one that its policy allows (``events:source``)."""

_ARNS: Mapping[IamScope, str] = {
    IamScope.CLUSTER: "arn:PARTITION:sagemaker:REGION:ACCOUNT:cluster/CLUSTER_ID",
    IamScope.INSTANCE: "arn:PARTITION:ec2:REGION:ACCOUNT:instance/*",
    IamScope.GROUP: "arn:PARTITION:autoscaling:REGION:ACCOUNT:autoScalingGroup:*:autoScalingGroupName/*",
    IamScope.NODE_GROUP: "arn:PARTITION:eks:REGION:ACCOUNT:nodegroup/*/*/*",
    IamScope.RESERVED_CAPACITY: "arn:PARTITION:sagemaker:REGION:ACCOUNT:reserved-capacity/*",
    IamScope.BUS: "arn:PARTITION:events:REGION:ACCOUNT:event-bus/BUS",
    IamScope.BUCKET: "arn:PARTITION:s3:::BUCKET/PREFIX/*",
    IamScope.ANY: "*",
}
_SELF = {"ec2:SourceInstanceARN": "arn:PARTITION:ec2:REGION:ACCOUNT:instance/${ec2:InstanceID}"}


def policies() -> Mapping[str, str]:
    """The text of every policy, by its file's name."""
    users = [(user, way) for user in (*Platform, *Feature) for way in Caller]
    return {f"{user}-{way}.json": text(user, way) for user, way in users if _used(user, way)}


def text(user: Platform | Feature, way: Caller) -> str:
    """One policy as JSON."""
    return json_document(policy(user, way))


def policy(user: Platform | Feature, way: Caller) -> dict[str, Any]:
    """One policy: a statement for each resource that IAM can limit calls to, reads apart from acts."""
    return {"Version": "2012-10-17", "Statement": list(_statements(user, way))}


def _used(user: Platform | Feature, way: Caller) -> list[AwsCall]:
    return [call for call in calls().values() if (user, way) in call.uses]


def _statements(user: Platform | Feature, way: Caller) -> Iterator[dict[str, Any]]:
    used = _used(user, way)
    for (acts, scope), alike in groupby(sorted(used, key=_order), key=lambda call: (call.acts, call.scope)):
        statement: dict[str, Any] = {
            "Sid": f"{'Act' if acts else 'Look'}{scope.name.title().replace('_', '')}",
            "Effect": "Allow",
            "Action": [call.action for call in alike],
            "Resource": _ARNS[scope],
        }
        if conditions := _conditions(scope, way):
            statement["Condition"] = conditions
        yield statement


def _order(call: AwsCall) -> tuple[bool, str, str]:
    return call.acts, call.scope.name, call.action


def _conditions(scope: IamScope, way: Caller) -> dict[str, dict[str, str]]:
    match scope:
        case IamScope.INSTANCE:
            tagged = {"StringEquals": {f"aws:ResourceTag/{MANAGED_TAG}": "true"}}
            return {**tagged, "ArnEquals": _SELF} if way is Caller.NODE else tagged
        case IamScope.GROUP:
            return {"StringEquals": {f"autoscaling:ResourceTag/{MANAGED_TAG}": "true"}}
        case IamScope.BUS:
            return {"StringEquals": {"events:source": EVENT_SOURCE}}
        case IamScope.CLUSTER | IamScope.NODE_GROUP | IamScope.RESERVED_CAPACITY | IamScope.BUCKET | IamScope.ANY:
            return {}


def main(folder: str) -> int:
    """Write every policy into a folder."""
    for name, body in policies().items():
        (Path(folder) / name).write_text(body, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
