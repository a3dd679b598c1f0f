"""The evidence that is saved before a repair changes a node: ``[evidence]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from healthd.config.schema.provisioner import Region
from healthd.config.value_types import MaybeUrl

Command = Annotated[tuple[str, ...], Meta(min_length=1, description='a command such as ["nvidia-smi", "-q"]')]
Kept = Annotated[int, Meta(ge=1, le=1_000, description="a whole number from 1 to 1000")]
BucketUrl = Annotated[
    str,
    Meta(
        pattern=r"^(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]{1,64}){0,4}/?)?\Z",
        description='a bucket and a prefix, such as "s3://site-evidence/train-a", or ""',
    ),
]
Seconds = Annotated[float, Meta(gt=0, le=240, description="seconds, at most 240")]


class EvidenceSection(Struct, frozen=True, kw_only=True):
    """The bundle of a remediation, below ``bundles/`` of the state directory: verdict, audit trail, kernel log, and the
    output of the commands. A replaced machine takes its disk away: ``upload_to`` keeps the bundle."""

    commands: tuple[Command, ...] = (
        ("nvidia-smi", "-q"),
        ("nvidia-bug-report.sh", "--safe-mode", "--output-file", "{bundle}/nvidia-bug-report.log"),
    )
    """Commands whose output is kept, each a list of arguments, run without a shell, all at once; ``{bundle}`` is the
    folder. NVIDIA's support asks for its report first; the report's safe mode skips queries that can hang. If a tool is
    not installed, the audit trail names it and the repair goes on."""

    timeout_s: Seconds = 120.0
    """The deadline of all commands together, in seconds; healthd then kills those that still run. The report takes
    about a minute on eight GPUs, and a job that waits for the node waits as long."""
    keep: Kept = 20
    """How many bundles stay on the disk. Twenty: months of remediations, at a few megabytes each."""

    upload_to: BucketUrl = ""
    """The bucket, with a prefix, that gets the bundle as one tar.gz before the node asks for a replacement. The key is
    PREFIX/NODE/REMEDIATION.tar.gz: give each cluster its own prefix. Empty: bundles stay on the node. The node's role
    needs packaging/iam/evidence-node.json, and the bucket versions and a lifecycle rule, since a role that may write
    one node's evidence may overwrite another's. The address is in ``healthd status``, in ``healthd case`` and in the
    ledger. healthd's own files hold no setting and no secret; what your commands print is uploaded as it is."""

    upload_timeout_s: Seconds = 120.0
    """The deadline of the upload with its retries, in seconds. A bundle that is not uploaded by then, or is refused,
    does not hold the replacement back: a broken node that waits for a bucket runs no job. The audit trail and the log
    say why, once, and that the evidence goes with the machine."""

    region: Region = ""
    """The bucket's region. Empty: ``[provisioner.aws] region``, else that of the instance metadata service."""

    endpoint_url: MaybeUrl = ""
    """The address of a store that speaks S3 and is not AWS's, such as MinIO or Ceph, which is asked by path. Empty:
    AWS, or AWS_ENDPOINT_URL_S3."""
