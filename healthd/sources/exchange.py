"""HTTP with one deadline for the whole exchange: the host's name, connecting, TLS, the request and each byte of the
answer.

A timeout of http.client holds for each read by itself, so a server that sends a byte at a time keeps its client for as
long as it likes. The resolver has timeouts of its own (resolv.conf(5): some 30 s for two silent servers) and cannot be
interrupted, so a child looks a name up (getent(1), the same resolver), and is killed at the deadline.
"""

from __future__ import annotations

import http.client
import io
import socket
from typing import TYPE_CHECKING, Any

from healthd.core.errors import SourceError, SourceTimeout
from healthd.sources.command import run_command
from healthd.sources.deadline import Deadline

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def connection(host: str, port: int, deadline: Deadline) -> http.client.HTTPConnection:
    """A connection of plain HTTP on which everything ends by the deadline, with a TimeoutError."""
    return bound(http.client.HTTPConnection(host, port), deadline)


def bound(made: http.client.HTTPConnection, deadline: Deadline) -> http.client.HTTPConnection:
    """The connection, whose every wait ends by the deadline: TLS's handshake and sendall() keep to it as a whole."""

    def connect(address: tuple[str, int], *_: object, **__: object) -> socket.socket:
        return _connected(address, deadline)

    def answer(connected: socket.socket, *arguments: Any, **more: Any) -> http.client.HTTPResponse:
        return _Answer(connected, deadline, *arguments, **more)

    made._create_connection = connect  # type: ignore[attr-defined]
    made.response_class = answer  # type: ignore[assignment]
    return made


def _connected(address: tuple[str, int], deadline: Deadline) -> socket.socket:
    """A connection to the first address of a host that accepts: within the deadline, with an even share for each."""
    found = _addresses(address, deadline)
    for index, (family, kind, protocol, _, where) in enumerate(found):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(deadline.left_s() / (len(found) - index))
            made.connect(where)
            made.settimeout(deadline.left_s())
        except OSError:
            made.close()
            if index == len(found) - 1:
                raise
        else:
            return made
    raise OSError(f"{address[0]} has no address")


def _addresses(address: tuple[str, int], deadline: Deadline) -> list[tuple[Any, ...]]:
    """The addresses of a host, as ``getaddrinfo`` has them, within the deadline. Raises OSError; TimeoutError without
    an answer yet."""
    host, port = address
    try:
        return _numeric(host, port)
    except socket.gaierror:
        pass  # a name, and no address
    try:
        answer = run_command(("getent", "ahosts", host), timeout_s=deadline.left_s())
    except SourceTimeout:
        raise TimeoutError(f"the name {host} was not looked up in time: check this machine's resolver") from None
    except SourceError as error:
        raise OSError(f"{host} could not be looked up: {error}") from error
    lines = [line.split() for line in answer.stdout.splitlines()]
    return [found for where, kind, *_ in lines if kind == "STREAM" for found in _numeric(where, port)]


def _numeric(host: str, port: int) -> list[tuple[Any, ...]]:
    # For a host that is text, an address too, Python loads its codec for international names: 0.3 MB.
    return socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)


class _Answer(http.client.HTTPResponse):
    """An answer that is read up to the deadline."""

    def __init__(self, connected: socket.socket, deadline: Deadline, *arguments: Any, **more: Any) -> None:
        super().__init__(connected, *arguments, **more)
        self.fp = io.BufferedReader(_Timed(self.fp.detach(), connected, deadline))


class _Timed(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, connected: socket.socket, deadline: Deadline) -> None:
        self._raw, self._connected, self._deadline = raw, connected, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        self._connected.settimeout(self._deadline.left_s())
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
