"""AWS on loopback: moto's server in a process of its own, and before it an endpoint that counts and breaks requests."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.remediation.provisioners.aws import Aws
from tests.integration.aws.aws_endpoint import REGION, AwsEndpoint

MOTO_STARTS_WITHIN_S = 60.0


@pytest.fixture(scope="session")
def moto() -> Iterator[tuple[str, int]]:
    """moto's server, started here and ended by its pid; it listens on loopback alone."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_dummy_env()) as server:
        try:
            _await_port(server, port)
            yield "127.0.0.1", port
        finally:
            server.send_signal(signal.SIGKILL)


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials that are good for nothing, and no file or service that could give others."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in _dummy_env(str(tmp_path / "none")).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def endpoint(moto: tuple[str, int], aws_environment: None) -> Iterator[AwsEndpoint]:
    """An endpoint for one test; moto is empty at its start."""
    connection = http.client.HTTPConnection(*moto, timeout=20)
    connection.request("POST", "/moto-api/reset")
    assert connection.getresponse().status == 200
    connection.close()
    with AwsEndpoint(moto=moto).serving() as serving:
        yield serving


@pytest.fixture
def aws(endpoint: AwsEndpoint) -> Aws:
    """AWS by way of that endpoint."""
    return Aws(region=REGION, endpoint_url=endpoint.url, timeout_s=10.0)


def _dummy_env(nowhere: str = "/nonexistent") -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": nowhere,
        "AWS_SHARED_CREDENTIALS_FILE": nowhere,
        "NO_PROXY": "127.0.0.1,localhost",
    }


def _await_port(server: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + MOTO_STARTS_WITHIN_S
    while time.monotonic() < until and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"moto's server did not listen on 127.0.0.1:{port} within {MOTO_STARTS_WITHIN_S:g} s")
