"""AWS on loopback: moto's server in a process of its own, and before it an endpoint that counts and breaks requests."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.remediation.provisioners.aws import Aws
from tests.live.aws.aws_endpoint import REGION, AwsEndpoint
from tests.live.aws.aws_forks import AwsForks, aws_forks
from tests.live.aws.moto_server import dummy_env, moto_serving
from tests.support.limits import limit_s


@pytest.fixture(scope="session")
def moto() -> Iterator[tuple[str, int]]:
    """moto's server, started here and ended by its pid; it listens on loopback alone."""
    with moto_serving() as address:
        yield address


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials that are good for nothing, and no file or service that could give others."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in dummy_env(str(tmp_path / "none")).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def endpoint(moto: tuple[str, int], aws_environment: None) -> Iterator[AwsEndpoint]:
    """An endpoint for one test; moto is empty at its start."""
    connection = http.client.HTTPConnection(*moto, timeout=limit_s(20))
    connection.request("POST", "/moto-api/reset")
    assert connection.getresponse().status == 200
    connection.close()
    with AwsEndpoint(moto=moto).serving() as serving:
        yield serving


@pytest.fixture(scope="session")
def forks() -> Iterator[AwsForks]:
    """The process that forks a child for each call, with boto3 loaded."""
    with aws_forks() as started:
        yield started


@pytest.fixture
def aws(endpoint: AwsEndpoint, forks: AwsForks) -> Aws:
    """AWS by way of that endpoint, which answers at once: only a busy machine needs some of these seconds."""
    return Aws(region=REGION, endpoint_url=endpoint.url, timeout_s=60.0, run=forks.run)
