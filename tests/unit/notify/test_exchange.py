"""The deadline of an exchange holds for the lookup of the host's name as well: by the real resolver."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.notify.delivery import to_webhook
from healthd.sources.deadline import Deadline
from healthd.sources.exchange import connection
from tests.support.limits import limit_s
from tests.support.notifications import a_message
from tests.support.receiver import receiving
from tests.support.running import ROOT

_MUTE = "127.42.42.42"
_RESOLVES_BY = """
mount --make-rprivate / && mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/nsswitch.conf || exit 77
shift 2
exec "$@"
"""
_ASKS = """
import os, sys, threading, time
from healthd.notify.delivery import NotDeliveredError, to_webhook
from tests.support.notifications import a_message
for _ in range(4):
    began = time.monotonic()
    try:
        to_webhook("http://hooks.example.test/secret-path", timeout_s=float(sys.argv[1]))(a_message())
    except NotDeliveredError as error:
        print(f"{time.monotonic() - began:.1f} {error}")
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(threading.active_count(), "thread, no child")
"""


@pytest.fixture
def mute_resolver(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """resolv.conf and nsswitch.conf of a name server that takes each question and answers none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        try:
            server.bind((_MUTE, 53))
        except OSError as error:
            pytest.skip(f"needs to be a name server on {_MUTE}: {error}")
        resolv, nsswitch = tmp_path / "resolv.conf", tmp_path / "nsswitch.conf"
        resolv.write_text(f"nameserver {_MUTE}\n")
        yield resolv, nsswitch


@pytest.mark.process
@pytest.mark.parametrize(
    ("asked", "timeout_s", "why"),
    [
        ("dns", 1.0, "the name hooks.example.test was not looked up in time"),
        ("files", limit_s(10), "hooks.example.test has no address"),
    ],
)
def test_a_name_that_is_not_found_delays_no_delivery(
    mute_resolver: tuple[Path, Path], asked: str, timeout_s: float, why: str
) -> None:
    """It takes the resolver ten seconds to give up a silent server. Each delivery ends at its own deadline, or with the
    resolver's answer, and names the host; neither a thread nor a process of a lookup is left."""
    mute_resolver[1].write_text(f"hosts: {asked}\n")
    argv = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        _RESOLVES_BY,
        "sh",
        *map(str, mute_resolver),
        sys.executable,
        "-c",
        _ASKS,
        str(timeout_s),
    ]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"needs a mount namespace of its own: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    *deliveries, left = done.stdout.splitlines()
    assert len(deliveries) == 4
    for message in deliveries:
        took_s, _, words = message.partition(" ")
        assert asked != "dns" or float(took_s) < 8, message
        assert words.startswith(f"http://hooks.example.test cannot be reached: {why}")
    assert left == "1 thread, no child"


@pytest.mark.process
def test_a_name_is_looked_up() -> None:
    """By which a message arrives, twice."""
    with receiving() as receiver:
        named = receiver.url.replace("127.0.0.1", "localhost")
        for count in (1, 2):
            to_webhook(named)(a_message(lost=count))
        assert [each["lost"] for each in receiver.taken] == [1, 2]


def test_an_address_needs_no_lookup() -> None:
    """Nor has a deadline that is over to be waited for."""
    with pytest.raises(TimeoutError, match="no whole answer within 0 s"):
        connection("127.0.0.1", 9, Deadline(0)).connect()
