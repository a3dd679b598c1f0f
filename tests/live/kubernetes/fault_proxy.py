"""A proxy in front of the API server that passes everything on, counts it, and does wrong what a test asks of it.

For what a healthy server never does on demand: 429 with and without Retry-After, 500, 503, 401, a request that hangs,
an answer that is lost after the request was applied, a watch that is cut in the middle. Semantics stay the server's.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct, field

# Those that concern one connection, and are the proxy's own.
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "te", "upgrade"})


class Fault(Struct, frozen=True, kw_only=True):
    """What goes wrong with one request.

    ``status``: that is the answer, and the server never sees the request; ``retry_after_s`` is its header.
    ``hangs``: the server never sees it, and nobody answers until the proxy heals or ends. ``lost``: the server applies
    it, and the connection is closed without an answer. ``cut_after_bytes``: of the answer's body, then it is closed.
    ``delay_s``: it takes that much longer.
    """

    status: int = 0
    retry_after_s: int | None = None
    hangs: bool = False
    lost: bool = False
    cut_after_bytes: int | None = None
    delay_s: float = 0.0


OVERLOADED = Fault(status=429, retry_after_s=1)
TOO_MANY = Fault(status=429)
BROKEN = Fault(status=500)
UNAVAILABLE = Fault(status=503)
UNAUTHORIZED = Fault(status=401)
HANGS = Fault(hangs=True)
LOST = Fault(lost=True)

_REASONS = {401: "Unauthorized", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


class Seen(Struct, frozen=True, kw_only=True):
    """A request that came. ``status`` is what was answered, 0 for nothing; ``at_s`` is monotonic.

    ``applied``: whether the server carried it out, with or without an answer to the client. ``number``: the order in
    which requests came, counted from 1; one that came before an outage may be applied in it.
    """

    method: str
    path: str
    status: int
    fault: Fault | None
    at_s: float
    body: str = ""
    applied: bool = False
    number: int = 0


class _Rule(Struct, kw_only=True):
    fault: Fault | None
    method: str
    path: re.Pattern[str]
    body: re.Pattern[str]
    left: int | None  # None: until the proxy heals
    then: Fault | None = None  # what all requests after it meet


_ANYTHING = re.compile("")


class FaultProxy(Struct):
    """``upstream``: the API server's address; ``certs``: the folder with its apiserver.crt and apiserver.key.
    ``shows``: the certificate and the key that clients meet, where these are not the server's own.
    """

    upstream: str
    certs: Path
    shows: tuple[Path, Path] | None = None
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    _rules: list[_Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _healed: threading.Event = field(default_factory=threading.Event)
    _open: set[socket.socket] = field(default_factory=set)
    _broken: threading.Event = field(default_factory=threading.Event)
    _came: int = 0
    _broken_at: int = 0

    def fail(self, fault: Fault, *, times: int | None = 1, method: str = "", path: str = "", body: str = "") -> None:
        """This goes wrong with the next requests of that method whose path and body match; None: with all."""
        self._add(_Rule(fault=fault, method=method, path=re.compile(path), body=re.compile(body), left=times))

    def break_at(self, first: Fault | None, then: Fault, *, method: str = "", path: str = "", body: str = "") -> None:
        """All is well until the next request that matches, and from there on nothing works: it meets ``first``, None
        for nothing, and whatever comes after it ``then``, until the proxy heals."""
        rule = _Rule(fault=first, method=method, path=re.compile(path), body=re.compile(body), left=1, then=then)
        with self._lock:
            self._broken.clear()
            self._rules = [rule]
            healed, self._healed = self._healed, threading.Event()
        healed.set()

    @property
    def is_broken(self) -> bool:
        """Whether that request has come, since it was asked for last."""
        return self._broken.is_set()

    def _add(self, rule: _Rule) -> None:
        with self._lock:
            self._healed.clear()
            self._rules.append(rule)

    def heal(self) -> None:
        """Nothing goes wrong any more; connections that hang are closed."""
        with self._lock:
            self._rules.clear()
            self._healed.set()

    def count(self, method: str = "", path: str = "") -> int:
        """How many requests came of that method whose path matches."""
        with self._lock:
            return sum(1 for each in self.seen if method in ("", each.method) and re.search(path, each.path))

    def applied(self) -> list[Seen]:
        """What was written by way of this proxy, in the order in which the server carried it out."""
        with self._lock:
            return [each for each in self.seen if each.method != "GET" and each.applied]

    def applied_in_outage(self) -> list[Seen]:
        """Those of them that came with the request at which it broke, or after it."""
        return [each for each in self.applied() if each.number >= self._broken_at]

    @contextlib.contextmanager
    def serving(self) -> Iterator[FaultProxy]:
        """Serve on a free port of loopback until the block ends, and no thread outlives it."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.shows or (self.certs / "apiserver.crt", self.certs / "apiserver.key"))
        # The handshake is the handler's: one slow client must not stop the others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="fault proxy")
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            self.heal()
            with self._lock:
                for each in self._open:
                    with contextlib.suppress(OSError):  # it has just been closed
                        each.shutdown(socket.SHUT_RDWR)
            server.server_close()

    def _due(self, method: str, path: str, body: str) -> tuple[int, Fault | None]:
        """The number of this request that came, and what goes wrong with it."""
        with self._lock:
            self._came += 1
            for rule in self._rules:
                if rule.method in ("", method) and rule.path.search(path) and rule.body.search(body):
                    if rule.left is not None:
                        rule.left -= 1
                        if rule.left == 0:
                            self._rules.remove(rule)
                    if rule.then is not None:
                        self._rules.insert(
                            0, _Rule(fault=rule.then, method="", path=_ANYTHING, body=_ANYTHING, left=None)
                        )
                        self._broken_at = self._came
                        self._broken.set()
                    return self._came, rule.fault
            return self._came, None

    def _note(self, seen: Seen) -> None:
        with self._lock:
            self.seen.append(seen)

    @contextlib.contextmanager
    def _held(self, sock: socket.socket) -> Iterator[None]:
        """Known as open, so that it can be shut down when the proxy ends."""
        with self._lock:
            self._open.add(sock)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(sock)


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    address = urlsplit(proxy.upstream)
    to_server = ssl.create_default_context(cafile=str(proxy.certs / "apiserver.crt"))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            # A client that goes away, or whose connection is shut down with the proxy, is no fault.
            with proxy._held(self.connection), contextlib.suppress(OSError):
                super().handle()

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._number, fault = proxy._due(self.command, self.path, body.decode(errors="replace"))
            healed = proxy._healed
            if fault and fault.delay_s:
                healed.wait(fault.delay_s)
            if fault and fault.hangs:
                self._note(body, 0, fault)
                healed.wait()
                self.close_connection = True
            elif fault and fault.status:
                self._note(body, fault.status, fault)
                self._refuse(fault)
            else:
                self._pass_on(body, fault)

        def _note(self, body: bytes, status: int, fault: Fault | None, *, applied: bool = False) -> None:
            proxy._note(
                Seen(
                    method=self.command,
                    path=self.path,
                    status=status,
                    fault=fault,
                    at_s=time.monotonic(),
                    body=body.decode(errors="replace"),
                    applied=applied,
                    number=self._number,
                )
            )

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815  the base class's names

        def _pass_on(self, body: bytes, fault: Fault | None) -> None:
            connection = http.client.HTTPSConnection(address.hostname or "", address.port, context=to_server)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
            try:
                connection.connect()
                with proxy._held(connection.sock):
                    connection.request(self.command, self.path, body=body or None, headers=headers)
                    response = connection.getresponse()
                    lost = fault is not None and fault.lost
                    status = 0 if lost else response.status
                    self._note(body, status, fault, applied=200 <= response.status < 300)
                    if lost:
                        response.read()
                        self.close_connection = True
                        return
                    self._relay(response, fault.cut_after_bytes if fault else None)
            except (OSError, http.client.HTTPException):
                # The server is down or was killed in between: to the client, a connection that ends.
                self.close_connection = True
            finally:
                connection.close()

        def _relay(self, response: http.client.HTTPResponse, cut_after: int | None) -> None:
            """Chunk by chunk, so that a watch is seen as it comes."""
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            sent = 0
            while chunk := response.read1(65536):
                if cut_after is not None and sent + len(chunk) > cut_after:
                    chunk = chunk[: cut_after - sent]
                    self.wfile.write(b"%x\r\n%b" % (max(len(chunk), 1) + 1, chunk))  # a promise that is not kept
                    self.wfile.flush()
                    self.close_connection = True
                    return
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                self.wfile.flush()
                sent += len(chunk)
            self.wfile.write(b"0\r\n\r\n")

        def _refuse(self, fault: Fault) -> None:
            """A Status object, as the API server's own filters answer; overload has no cause in its details."""
            reason = _REASONS.get(fault.status, "Unknown")
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
            text = json.dumps({**status, "message": "as the test wants it", "reason": reason, "code": fault.status})
            self.send_response(fault.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if fault.retry_after_s is not None:
                self.send_header("Retry-After", str(fault.retry_after_s))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
            """Say nothing."""

    return Handler
