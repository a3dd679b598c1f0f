"""moto's server in a process of its own on loopback, and the credentials, good for nothing, with which it is asked."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.support.running import ROOT

STARTS_WITHIN_S = 600.0
# The images that moto knows. Of its own it makes 1,300, with a volume and a snapshot each, whenever it is emptied.
IMAGES = ROOT / "tests/live/aws/images.json"


@contextlib.contextmanager
def moto_serving() -> Iterator[tuple[str, int]]:
    """Start a server and yield its host and port; it is ended by its pid."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    argv = [sys.executable, "-m", "tests.live.aws.moto_in_turn", "-H", "127.0.0.1", "-p", str(port)]
    silent, env = subprocess.DEVNULL, {**dummy_env(), "MOTO_AMIS_PATH": str(IMAGES)}
    with subprocess.Popen(argv, stdout=silent, stderr=silent, env=env, cwd=ROOT) as server:
        try:
            _await_port(server, port)
            yield "127.0.0.1", port
        finally:
            server.send_signal(signal.SIGKILL)


def dummy_env(nowhere: str = "/nonexistent") -> dict[str, str]:
    """This process's environment with credentials for nothing, and no file or service that could give others."""
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
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"moto's server did not listen on 127.0.0.1:{port} within {STARTS_WITHIN_S:g} s")
