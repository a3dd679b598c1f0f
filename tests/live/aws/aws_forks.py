"""AWS's child as the fork of a process that has boto3 loaded: loading it takes longer than all else that a call does.

As a program this is that process: it forks for each connection to its socket, in which one question comes with its
environment, and one answer goes back. What the fork runs is the child's own ``answer``. The child itself is started by
``test_aws_call`` and by one undisturbed life for each service of AWS in tests/live/platforms.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from healthd.core.errors import SourceTimeout
from healthd.core.node import CommandResult
from tests.live.aws.moto_server import dummy_env
from tests.support.running import ROOT

SERVICES = ("sagemaker", "ec2", "autoscaling")
PATH_NAME = "AWS_FORKS_SOCKET"
STARTS_WITHIN_S = 600.0


class AwsForks(Struct, frozen=True, kw_only=True):
    """``path``: the socket of the process that forks."""

    path: Path

    def environ(self) -> dict[str, str]:
        """For a daemon: its Python, when it starts as AWS's child, asks here instead (child_in_fork)."""
        return {PATH_NAME: str(self.path), "PYTHONPATH": str(Path(__file__).parent / "child_in_fork")}

    def run(
        self,
        argv: tuple[str, ...],
        *,
        timeout_s: float,
        env: Mapping[str, str],
        input: str,  # noqa: A002  as run_command has it
        limit_bytes: int,
    ) -> CommandResult:
        """As run_command, for ``Aws(run=…)``."""
        began_s = time.monotonic()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            try:
                connection.connect(str(self.path))
                connection.sendall(json.dumps({"environ": dict(env), "question": input}).encode())
                connection.shutdown(socket.SHUT_WR)
                told = b"".join(iter(lambda: connection.recv(65536), b""))
            except TimeoutError as error:
                raise SourceTimeout(f"{argv}: no answer within {timeout_s:g} s") from error
        assert len(told) <= limit_bytes
        return CommandResult(argv=argv, code=0, stdout=told.decode(), stderr="", duration_s=time.monotonic() - began_s)


@contextlib.contextmanager
def aws_forks() -> Iterator[AwsForks]:
    """Start the process, and end it with all that it has forked."""
    with TemporaryDirectory(prefix="aws-forks-") as folder:
        path = Path(folder) / "socket"
        argv = [sys.executable, "-m", "tests.live.aws.aws_forks", str(path)]
        environ = {**dummy_env(), "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(argv, cwd=ROOT, env=environ, start_new_session=True) as process:
            try:
                until_s = time.monotonic() + STARTS_WITHIN_S
                while not path.exists() and process.poll() is None and time.monotonic() < until_s:
                    time.sleep(0.05)
                assert path.exists(), "the process that forks AWS's children has not started"
                yield AwsForks(path=path)
            finally:
                os.killpg(process.pid, signal.SIGKILL)


def main(path: str) -> None:
    """Load what a child loads, and fork for each connection."""
    import boto3

    for service in SERVICES:  # their models stay in memory for every fork
        boto3.client(service, region_name="us-east-1").close()
    gc.disable()  # as the child itself; and what all share stays shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}.new")
        server.listen(64)
        os.rename(f"{path}.new", path)  # who sees it can connect
        while True:
            connection, _ = server.accept()
            with connection:
                if os.fork() == 0:
                    _answer_and_end(connection)


def _answer_and_end(connection: socket.socket) -> None:
    from healthd.remediation.provisioners import aws_child

    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        asked = json.loads(b"".join(iter(lambda: connection.recv(65536), b"")))
        os.environ.clear()
        os.environ.update(asked["environ"])
        question = json.loads(asked["question"])
        told = aws_child.answer(question, time.monotonic() + float(question["timeout_s"]))
        connection.sendall(json.dumps(told, default=str).encode())
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
