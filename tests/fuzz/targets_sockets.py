"""What anybody may send: the unix socket's protocol in both directions, and HTTP."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import socket
from typing import Any

from healthd.api import http, wire
from healthd.api.grammar import TextRequested, parse
from healthd.api.wire import Reply, Request
from healthd.core.errors import HealthdError
from tests.fuzz.target import Target

_VERBS = (
    *("check --json", "check --active", "status --json", "history --last 10", "plan", "hook prolog"),
    *("ack gpu.xid.79 --for 1h --reason x", "release --force --reason y", "repair --step reboot --yes"),
    *("drill xid 79", "relearn --yes --reason z", "quarantine --reason q", "replay x", "--help", "--version"),
)
_REQUESTS = tuple(
    wire.write_request(Request(arguments=tuple(verb.split()), environ={"SLURM_JOB_ID": "7"})) for verb in _VERBS
)
_ANSWERS = (
    wire.write_answer(Reply(code=0, out="ok\n", err="")),
    wire.write_progress("x") + wire.write_answer(Reply(code=1, out="a" * 50, err="b\n")),
)
_PATHS = (b"", b"status", b"metrics", b"healthz", b"verdict", b"x?y=1", b"%2e%2e/etc")
_HTTP = (
    *(b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1:9809\r\nUser-Agent: x\r\n\r\n" % path for path in _PATHS),
    b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nabcde",
    *(b"GET / HTTP/0.9\r\n", b"GET /\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    b"GET http://[::1]/ HTTP/1.1\r\nHost: [::1\r\nConnection: keep-alive\r\n\r\n",
)
_HOSTS = (
    *(b"127.0.0.1:9809", b"[::1]:9809", b"localhost", b"evil.example", b"[::ffff:127.0.0.1]:1", b"127.1", b"0x7f.1"),
    *(b"2130706433", b"[fe80::1%lo]", b"127.0.0.1.evil.example", b"localhost.evil"),
)


class _Silent:
    """A log of which nothing is kept."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


_ROUTES = {
    path: http.Route(answer=lambda: http.HttpResponse(text="x"), local=path in ("/", "/status"))
    for path in ("/", "/status", "/metrics", "/healthz", "/verdict")
}


class _Handler(http._Handler):
    routes = _ROUTES
    names = frozenset({"node-1"})
    local = True
    log = _Silent()


@functools.cache
def _listener() -> http._Listener:
    """The server of one process; no client comes to its socket."""
    made = http._Listener(socket.AF_INET, ("127.0.0.1", 0), _Handler)
    atexit.register(made.server_close)
    return made


def _asked(data: bytes) -> None:
    parse(wire.read_request(data).arguments)


def _answered(data: bytes) -> None:
    wire.read_answer(io.BytesIO(data), lambda _: None)


def _http(data: bytes) -> None:
    """One connection. Whatever came, there is one answer at most, or none."""
    theirs, ours = socket.socketpair()
    client, listener = ("127.0.0.1", 1), _listener()
    with theirs, ours:
        assert listener.verify_request(ours, client)
        theirs.settimeout(10.0)
        theirs.sendall(data[: 1 << 16])
        theirs.shutdown(socket.SHUT_WR)
        _Handler(ours, client, listener)
        listener.shutdown_request(ours)
        with contextlib.suppress(ConnectionResetError), theirs.makefile("rb") as answer:  # what came was not all read
            answer.read()


def _host(data: bytes) -> None:
    """A name that is taken for this machine is one of this machine's."""
    name = data.decode("latin-1")
    if http.is_local("127.0.0.1", name):
        host = name.partition("]")[0].strip("[") if name.startswith("[") else name.partition(":")[0]
        assert host == "localhost" or host.startswith("127.") or ":" in host, name


TARGETS = (
    Target(
        name="socket-requests",
        parse=_asked,
        seeds=_REQUESTS,
        units=(b"\0", b"a=b\0", b"healthd/1\09\0check\0--json\0"),
        refuses=(HealthdError, TextRequested),
    ),
    Target(name="socket-answers", parse=_answered, seeds=_ANSWERS, units=(b"healthd/1 progress x\n", b"healthd/1 ")),
    Target(
        name="http-requests", parse=_http, seeds=_HTTP, units=(b"GET / HTTP/1.1\r\nA: b\r\n", b"A: b\r\n", b"GET /")
    ),
    Target(name="http-hosts", parse=_host, seeds=_HOSTS, units=(b"127.0.0.1",), longest=1 << 13),
)
