"""Every call to AWS that healthd can make, a row each of ``aws_calls.csv``. The child refuses every other call.

packaging/iam/*.json and docs/reference/aws-calls.md are made from it (see ``iam``). A call that shrinks a group of
nodes has no row there, and must never get one: BatchDeleteClusterNodes, TerminateInstances.

Operations and their shapes: botocore's service models, which a test compares. The IAM resources of each call follow the
example policies in the user guides of HyperPod, EC2 and EC2 Auto Scaling (2026); none of it was tried on AWS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, StrEnum
from functools import cache

from msgspec import Struct

from healthd.checklib.tables import as_row, keyed_rows


class Caller(StrEnum):
    """The caller: the agent on the node itself, or ``healthd controller`` for all nodes."""

    NODE = "node"
    CONTROLLER = "controller"


class Platform(StrEnum):
    """The platforms of AWS, by the names that ``[provisioner] kind`` has for them."""

    HYPERPOD = "hyperpod"
    PARALLELCLUSTER = "parallelcluster"
    PCS = "pcs"
    AUTOSCALING = "autoscaling"
    EC2 = "ec2"


class Feature(StrEnum):
    """The features that call AWS on any platform, where the site wants them. Each has IAM policies of its own."""

    EVIDENCE = "evidence"
    TOPOLOGY = "topology"
    ULTRASERVERS = "ultraservers"
    EVENTS = "events"


class IamScope(Enum):
    """The resources that IAM can limit a call to."""

    CLUSTER = "the HyperPod cluster"
    INSTANCE = "instances tagged healthd:managed=true; on a node, itself alone"
    GROUP = "Auto Scaling groups tagged healthd:managed=true"
    NODE_GROUP = "EKS managed node groups"
    RESERVED_CAPACITY = "reserved capacities of training plans"
    BUS = "the site's event bus"
    BUCKET = "keys below the prefix in the site's bucket"
    ANY = "nothing: IAM knows no narrower resource for it"


class AwsCall(Struct, frozen=True, kw_only=True):
    """One operation. ``acts``: it changes something. ``dry_run``: EC2 can be asked whether it would do it.
    ``sends_file``: its Body is the path of a file, which is sent.

    ``whole``: its answer is wanted with all its pages; else the first page is enough. ``page``: the number of
    results per request, 0 for the service's default.
    """

    service: str
    operation: str
    why: str
    scope: IamScope
    uses: frozenset[tuple[Platform | Feature, Caller]]
    acts: bool = False
    dry_run: bool = False
    sends_file: bool = False
    whole: bool = False
    page: int = 0

    @property
    def action(self) -> str:
        """The IAM action that allows it. For all calls here it has the operation's own name."""
        return f"{self.service}:{self.operation}"


@cache
def calls() -> Mapping[tuple[str, str], AwsCall]:
    """``aws_calls.csv`` by service and operation. Raises ValueError naming the line that cannot be read."""
    return keyed_rows("aws_calls.csv", _call, lambda call: (call.service, call.operation), "healthd.remediation")


def find_call(service: str, operation: str) -> AwsCall | None:
    """The row of an operation, or None where healthd must not make that call."""
    return calls().get((service, operation))


def _call(cells: Mapping[str, str]) -> AwsCall:
    does, answer = cells["does"], cells["answer"]
    return as_row(
        cells,
        AwsCall,
        scope=IamScope[cells["limited_to"].upper()],
        uses=frozenset(use for pair in cells["used_by"].split() for use in _uses(pair)),
        acts={"asks": False, "acts": True, "acts, dry run": True, "acts, sends a file": True}[does],
        dry_run=does == "acts, dry run",
        sends_file=does == "acts, sends a file",
        whole=answer != "",
        page=int(answer.removeprefix("all pages").removeprefix(" of ") or 0),
    )


def _uses(pair: str) -> Iterator[tuple[Platform | Feature, Caller]]:
    """``ec2/node``, or ``ec2`` for every way."""
    name, _, way = pair.partition("/")
    user = Feature(name) if name in list(Feature) else Platform(name)
    return ((user, each) for each in Caller if way in ("", each))
