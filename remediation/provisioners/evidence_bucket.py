"""Uploads the evidence of a remediation to the site's bucket, before the machine that it lies on is given away.

One object: the bundle's folder as a tar.gz, under a key that the node and the remediation make, so that a second upload
of the same evidence replaces the first. One call within one deadline; whether the repair goes on is for others to say.
"""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from healthd.config.schema.config import Config
from healthd.core.errors import StoreError
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.detect import Metadata, region_of
from healthd.remediation.records.handoff import word

_SCHEME = "s3://"


class EvidenceBucket:
    """A bucket and the prefix of its keys. ``url``: ``s3://BUCKET/PREFIX``."""

    def __init__(self, url: str, aws: Aws) -> None:
        self._bucket, _, self._prefix = url.removeprefix(_SCHEME).rstrip("/").partition("/")
        self._aws = aws

    def upload(self, folder: Path, *, node: str, remediation_id: str) -> str:
        """Upload a bundle; returns its address. Raises BackendError as ``Aws.call`` does, StoreError for a folder that
        cannot be packed."""
        key = "/".join(filter(None, (self._prefix, word(node), f"{word(remediation_id)}.tar.gz")))
        try:
            with tempfile.TemporaryDirectory(prefix="upload-", dir=folder.parent.parent) as beside:
                packed = _packed(folder, Path(beside) / "bundle.tar.gz")
                self._aws.call("s3", "PutObject", Bucket=self._bucket, Key=key, Body=str(packed))
        except (OSError, tarfile.TarError) as error:
            raise StoreError(f"{folder}: not packed: {error}; check [daemon] state_dir") from error
        return f"{_SCHEME}{self._bucket}/{key}"


def open_bucket(config: Config, metadata: Metadata) -> EvidenceBucket | None:
    """The bucket of ``[evidence]``; None where the site has none. ``metadata``: of this machine, for the region."""
    section = config.evidence
    if not section.upload_to:
        return None
    aws = Aws(
        region=section.region or config.provisioner.aws.region or region_of(metadata),
        endpoint_url=section.endpoint_url,
        timeout_s=section.upload_timeout_s,
    )
    return EvidenceBucket(section.upload_to, aws)


def _packed(folder: Path, into: Path) -> Path:
    """Pack the regular files of a folder. A link or a socket that a command left there is not followed."""
    with tarfile.open(into, "w:gz", compresslevel=6) as archive:
        archive.add(folder, arcname=folder.name, filter=_plain)
    return into


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return member if member.isreg() or member.isdir() else None
