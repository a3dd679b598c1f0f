"""The AWS platform of this node, by its own files first, then its metadata, then one call to AWS.

It reads and must not act. A wrong guess would ask the wrong owner for a machine, so each answer names its evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from healthd.core.errors import BackendError, SourceError
from healthd.remediation.provisioners.aws_calls import Platform

RESOURCE_CONFIG = "/opt/ml/config/resource_config.json"
DNA = "etc/chef/dna.json"
_PARALLELCLUSTER = "etc/parallelcluster"
_PCS_LOGS = "var/log/amazon/pcs"
PCS_TAG, PARALLELCLUSTER_TAG = "aws:pcs:cluster-id", "parallelcluster:cluster-name"
_GROUP_TAG = "aws:autoscaling:groupName"
_COMPUTE = ("ComputeFleet", "")
_MAX_BYTES = 4 * 1024 * 1024


Metadata = Callable[[str], str | None]
"""The instance metadata service, as MetadataSource.read: an item by its path, or None. Raises SourceError."""


def region_of(metadata: Metadata) -> str:
    """The region by the instance metadata service; "" where it does not answer: boto3 then searches for it itself."""
    try:
        return metadata("placement/region") or ""
    except SourceError:
        return ""


class DetectedPlatform(Struct, frozen=True, kw_only=True):
    """``platform`` None: none of AWS's. ``why``: the evidence. ``cluster``: name or ARN, where it is known.

    ``fixed``: why no remedy is possible for this node (a head node), or "".
    """

    platform: Platform | None
    why: str
    cluster: str = ""
    region: str = ""
    group: str = ""
    fixed: str = ""


def detect(
    *,
    root: str = "/",
    resource_config: str = RESOURCE_CONFIG,
    metadata: Metadata,
    on_ec2: bool,
    group_of: Callable[[], str] = str,
) -> DetectedPlatform:
    """The platform. ``root``: the tree of the files. ``group_of`` calls DescribeAutoScalingInstances.

    Order: the files that AWS itself put on the node (HyperPod, ParallelCluster, PCS), then its Auto Scaling group.
    """
    base = Path(root)
    return (
        hyperpod(base / resource_config.lstrip("/"))
        or parallelcluster(base)
        or _pcs(base, metadata)
        or _alone_or_in_a_group(metadata, on_ec2, group_of)
    )


def replaces_what_is_drained(root: str, metadata: Metadata) -> bool:
    """Whether this is ParallelCluster or PCS, where any drain is a replacement, under every kind of provisioner."""
    base = Path(root)
    return (parallelcluster(base) or _pcs(base, metadata)) is not None


def hyperpod(path: Path) -> DetectedPlatform | None:
    """From resource_config.json: ``{"ClusterConfig": {"ClusterName", "ClusterArn"}, …}``; its region is in the ARN."""
    if not path.exists():
        return None
    cluster = _json(path).get("ClusterConfig") or {}
    arn = str(cluster.get("ClusterArn") or "")
    region = arn.split(":")[3] if arn.count(":") >= 5 else ""
    name = arn or str(cluster.get("ClusterName") or "")
    return DetectedPlatform(platform=Platform.HYPERPOD, why=f"{path} is there", cluster=name, region=region)


def parallelcluster(root: Path) -> DetectedPlatform | None:
    """From the folder and the file that its cookbook leaves. No service replaces a head or a login node."""
    dna, folder = root / DNA, root / _PARALLELCLUSTER
    if not folder.is_dir():
        return None
    cluster = _json(dna).get("cluster") or {} if dna.exists() else {}
    kind = str(cluster.get("node_type") or "")
    fixed = "" if kind in _COMPUTE else f"this is the {kind} of its ParallelCluster, which nothing replaces"
    return DetectedPlatform(
        platform=Platform.PARALLELCLUSTER,
        why=f"{folder} is there",
        cluster=str(cluster.get("cluster_name") or cluster.get("stack_name") or "").removeprefix("parallelcluster-"),
        region=str(cluster.get("region") or ""),
        fixed=fixed,
    )


def _pcs(root: Path, metadata: Metadata) -> DetectedPlatform | None:
    if cluster := _tag(metadata, PCS_TAG):
        return DetectedPlatform(platform=Platform.PCS, why=f"the tag {PCS_TAG} is {cluster}", cluster=cluster)
    if (root / _PCS_LOGS).is_dir():
        return DetectedPlatform(platform=Platform.PCS, why=f"{root / _PCS_LOGS} is there")
    return None


def _alone_or_in_a_group(metadata: Metadata, on_ec2: bool, group_of: Callable[[], str]) -> DetectedPlatform:
    if not on_ec2:
        return DetectedPlatform(platform=None, why="no sign that this machine is an EC2 instance")
    if group := _tag(metadata, _GROUP_TAG):
        return DetectedPlatform(platform=Platform.AUTOSCALING, why=f"the tag {_GROUP_TAG} is {group}", group=group)
    if state := _item(metadata, "autoscaling/target-lifecycle-state"):
        return DetectedPlatform(platform=Platform.AUTOSCALING, why=f"its Auto Scaling lifecycle state is to be {state}")
    try:
        group = group_of()
    except BackendError as error:
        why = f"an EC2 instance; unknown whether it is in an Auto Scaling group: {error}"
        return DetectedPlatform(platform=Platform.EC2, why=why)
    if group:
        return DetectedPlatform(
            platform=Platform.AUTOSCALING, why=f"an instance of the Auto Scaling group {group}", group=group
        )
    return DetectedPlatform(platform=Platform.EC2, why="an EC2 instance in no Auto Scaling group")


def _tag(metadata: Metadata, key: str) -> str:
    """An instance tag, where the instance shows its tags to itself (``InstanceMetadataTags``)."""
    return _item(metadata, f"tags/instance/{key}")


def _item(metadata: Metadata, path: str) -> str:
    try:
        return metadata(path) or ""
    except SourceError:
        return ""  # no answer is no evidence: the next source is asked


def _json(path: Path) -> Mapping[str, Any]:
    """The content of a platform's file, or {}: the file's existence alone names the platform."""
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
