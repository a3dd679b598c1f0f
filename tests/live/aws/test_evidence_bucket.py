"""The bundle of a remediation in a bucket: real boto3 in its child, moto's S3, and an endpoint that refuses."""

from __future__ import annotations

import io
import os
import socket
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import pytest

from healthd.config.schema.config import Config
from healthd.config.schema.evidence import EvidenceSection
from healthd.core.errors import BackendBusy, BackendDenied, BackendRefused, BackendUnknown, StoreError
from healthd.remediation.provisioners.evidence_bucket import EvidenceBucket, open_bucket
from tests.live.aws.aws_endpoint import REGION, AwsEndpoint

ERROR = "<Error><Code>{}</Code><Message>said by the store</Message></Error>"


@pytest.fixture
def store(moto: tuple[str, int], endpoint: AwsEndpoint) -> str:
    """The address of moto's S3, emptied by ``endpoint``, with one bucket."""
    url = "http://{}:{}".format(*moto)
    boto3.client("s3", region_name=REGION, endpoint_url=url).create_bucket(Bucket="site-evidence")
    return url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle, with a link and a pipe that no command of ours would leave there."""
    folder = tmp_path / "bundles" / "k1"
    folder.mkdir(parents=True)
    (folder / "verdict.json").write_text("{}")
    (folder / "nvidia-smi.txt").write_bytes(os.urandom(3_000_000))
    (tmp_path / "token").write_text("a secret")
    (folder / "link").symlink_to(tmp_path / "token")
    os.mkfifo(folder / "pipe")
    return folder


def bucket(url: str, *, to: str = "s3://site-evidence/train-a", timeout_s: float = 60.0) -> EvidenceBucket:
    section = EvidenceSection(upload_to=to, region=REGION, endpoint_url=url, upload_timeout_s=timeout_s)
    opened = open_bucket(Config(evidence=section), lambda _: None)
    assert opened is not None
    return opened


def test_a_bundle_is_one_object_under_the_nodes_name(store: str, folder: Path) -> None:
    """Every regular file of it, whole; a link is not followed, and nothing stays beside the bundle."""
    address = bucket(store).upload(folder, node="gpu-43", remediation_id="k1")
    assert address == "s3://site-evidence/train-a/gpu-43/k1.tar.gz"
    client = boto3.client("s3", region_name=REGION, endpoint_url=store)
    body = client.get_object(Bucket="site-evidence", Key="train-a/gpu-43/k1.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        assert sorted(archive.getnames()) == ["k1", "k1/nvidia-smi.txt", "k1/verdict.json"]
        saved = archive.extractfile("k1/nvidia-smi.txt")
        assert saved is not None
        assert saved.read() == (folder / "nvidia-smi.txt").read_bytes()
    assert sorted(each.name for each in folder.parent.parent.iterdir()) == ["bundles", "token"]
    bucket(store).upload(folder, node="gpu-43", remediation_id="k1")
    assert client.list_objects_v2(Bucket="site-evidence")["KeyCount"] == 1


def test_a_prefix_may_be_left_out(store: str, folder: Path) -> None:
    """Then the node's name is the first part of the key."""
    address = bucket(store, to="s3://site-evidence").upload(folder, node="gpu-43", remediation_id="k1")
    assert address == "s3://site-evidence/gpu-43/k1.tar.gz"


def test_a_bucket_that_is_not_there_is_named(store: str, folder: Path) -> None:
    """By the store's own error."""
    with pytest.raises(BackendRefused, match="s3:PutObject: NoSuchBucket"):
        bucket(store, to="s3://no-such-bucket").upload(folder, node="gpu-43", remediation_id="k1")


def test_without_a_bucket_nothing_is_opened() -> None:
    """It is the site's choice."""
    assert open_bucket(Config(), lambda _: None) is None


def test_a_bundle_that_cannot_be_packed_is_named(aws_environment: None, tmp_path: Path) -> None:
    """And no call is made."""
    with pytest.raises(StoreError, match="not packed"):
        bucket("http://127.0.0.1:9").upload(tmp_path / "state" / "bundles" / "k2", node="n", remediation_id="k2")


@pytest.fixture
def refusing(aws_environment: None) -> Iterator[tuple[ThreadingHTTPServer, list[tuple[int, str]]]]:
    """A store that answers each request with the next of these errors, and keeps the last."""
    answers: list[tuple[int, str]] = []

    class Store(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, code = answers[0] if len(answers) == 1 else answers.pop(0)
            body = ERROR.format(code).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server, answers
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "raised"),
    [
        (403, "AccessDenied", BackendDenied),
        (503, "SlowDown", BackendBusy),
        (500, "InternalError", BackendUnknown),
        (400, "EntityTooLarge", BackendRefused),
    ],
)
def test_an_error_of_the_store_is_named(
    refusing: tuple[ThreadingHTTPServer, list[tuple[int, str]]],
    folder: Path,
    status: int,
    code: str,
    raised: type[Exception],
) -> None:
    """With its code and the call; what a right would change says which."""
    server, answers = refusing
    answers[:] = [(status, code)]
    url = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(raised, match=f"s3:PutObject: {code}: said by the store"):
        bucket(url).upload(folder, node="gpu-43", remediation_id="k1")


def test_a_store_that_hangs_costs_one_deadline(aws_environment: None, folder: Path) -> None:
    """The child is ended, and the replacement goes on."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(BackendUnknown, match="s3:PutObject"):
            bucket(url, timeout_s=3.0).upload(folder, node="gpu-43", remediation_id="k1")
