"""Ports on loopback for the servers that tests start."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
from collections.abc import Iterator

_FIRST, _BEYOND = 10_000, 32_000  # Linux gives outgoing connections ports from 32768 on


def of_this_process() -> Iterator[int]:
    """The ports of its share, from a random one on, over and over. Where processes share a run, each has its own: a
    server that a test stops for seconds finds its port free when it starts again."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = range(_FIRST + place, _BEYOND, count)
    start = secrets.randbelow(len(mine))
    return itertools.cycle([*mine[start:], *mine[:start]])


_ports = of_this_process()


def free_ports(count: int) -> list[int]:
    """Ports that are free on loopback now. Raises RuntimeError if there are not so many."""
    ports: list[int] = []
    for port in itertools.islice(_ports, 2_000):
        with socket.socket() as probe, contextlib.suppress(OSError):  # taken: try the next
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError(f"no {count} free ports between {_FIRST} and {_BEYOND} on 127.0.0.1")
