"""The read-only HTTP server of the daemon: the status page, /status, /metrics, /healthz, /verdict; of the controller
/metrics and /healthz alone. Loopback by default; nothing here can act.

The status page and its JSON are for this machine, even where the address lets a scraper on another one in: they tell
what was found and by whose order. Whoever comes under another name than this machine's own is refused as well, for a
web site may give its name our address (DNS rebinding) and read what its visitor's browser then gets.

/healthz says only that the process goes round; a sick node is not a sick daemon.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from healthd.agent import Agent
from healthd.api.board import Board
from healthd.api.page import HEADERS, page
from healthd.api.status import status_data, status_json
from healthd.report import as_json

_REPORT_DEADLINE_S = 5.0
_NOT_LOCAL = """the status is for this machine only: come by `ssh -L 9809:127.0.0.1:9809 NODE` or `kubectl
port-forward`, and ask for http://127.0.0.1:9809/; there are /metrics, /healthz and /verdict for everybody
"""
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What is sent for one path."""

    code: int = 200
    kind: str = _TEXT
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One path. ``local``: for this machine only."""

    answer: Callable[[], Answer]
    local: bool = False


Routes = Mapping[str, Route]


def common_routes(*, metrics: Callable[[], tuple[str, str]], problem: Callable[[], str]) -> Routes:
    """What daemon and controller both have. ``metrics``: content type and text. ``problem``: why the process itself is
    not going round, or ""."""

    def page() -> Answer:
        kind, text = metrics()
        return Answer(kind=kind, text=text)

    def health() -> Answer:
        said = problem()
        return Answer(code=503 if said else 200, text=f"{said or 'ok'}\n")

    return {"/metrics": Route(answer=page), "/healthz": Route(answer=health)}


def agent_routes(agent: Agent, *, metrics: Callable[[], tuple[str, str]], problem: Callable[[], str]) -> Routes:
    """The paths of a node's daemon."""
    board = Board.of(agent)

    def status() -> Answer:
        text = status_json(status_data(agent, board, problem=problem()))
        return Answer(kind="application/json", text=text, headers=HEADERS)

    def verdict() -> Answer:
        return Answer(kind="application/json", text=as_json(agent.checkup.report(deadline_s=_REPORT_DEADLINE_S)))

    def front() -> Answer:
        made = page()
        return Answer(kind="text/html; charset=utf-8", text=made.html, headers={**HEADERS, **made.headers})

    return {
        "/": Route(answer=front, local=True),
        "/status": Route(answer=status, local=True),
        **common_routes(metrics=metrics, problem=problem),
        "/verdict": Route(answer=verdict),
    }


def open_http(address: str, routes: Routes, log: Any) -> HttpServer | None:
    """The HTTP server, or None where none is configured. A taken address must not keep anybody from the work: it is
    said loudly."""
    if not address:
        return None
    try:
        return HttpServer(address, routes, say=log.debug)
    except OSError as error:
        log.error("no HTTP server", address=address, error=str(error))
        return None


class HttpServer:
    """Serves GET requests until closed. ``[::]`` is every address, those of IPv4 among them.

    Raises OSError where the address cannot be had.
    """

    def __init__(self, address: str, routes: Routes, *, say: Callable[..., None]) -> None:
        host, _, port = address.rpartition(":")
        handler = type("Handler", (_Handler,), {"routes": routes, "say": staticmethod(say)})
        self._server = listening(host.strip("[]"), int(port), handler)
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    @property
    def port(self) -> int:
        """The port it listens on, for an address that asked for port 0."""
        return self._server.server_address[1]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Listener(ThreadingHTTPServer):
    """A server of either family; which, its address says."""

    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: tuple[str, int], handler: type) -> None:
        self.address_family = family
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """As the base class, without asking a name server who we are; ``::`` takes IPv4 in as well."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, self.server_address[0] != "::")
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


def listening(host: str, port: int, handler: type, listen: Callable[..., _Listener] = _Listener) -> _Listener:
    """Listen where ``host`` is, a name or an address; of a name its address of IPv4, if it has one. ``::`` on a machine
    without IPv6 is every address that it has."""
    family, address = _resolved(host)
    try:
        return listen(family, (address, port), handler)
    except OSError as error:
        if host != "::" or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return listen(socket.AF_INET, ("0.0.0.0", port), handler)  # noqa: S104 - what was asked for


def _resolved(host: str) -> tuple[socket.AddressFamily, str]:
    if ":" in host:
        return socket.AF_INET6, host
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    family, *_, address = sorted(found, key=lambda each: each[0] != socket.AF_INET)[0]
    return family, str(address[0])


def is_local(client: str, host: str) -> bool:
    """Whether a request comes from this machine's loopback, and asks for it by a name or an address of loopback.

    ``host``: the header, with or without a port. A tunnel (ssh -L, kubectl port-forward) comes from loopback.
    """
    name = host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]
    return _is_loopback(client) and (name == "localhost" or _is_loopback(name))


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


class _Handler(BaseHTTPRequestHandler):
    """One request. What it answers from is set on the subclass that the server makes."""

    routes: Routes
    say: Callable[..., None]
    timeout = 10
    server_version = "healthd"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer the paths that there are; anything else is 404."""
        found = self.routes.get(self.path.partition("?")[0])
        if found is None:
            *more, last = self.routes
            self._send(Answer(code=404, text=f"there are {', '.join(more)} and {last}\n"))
        elif found.local and not is_local(self.client_address[0], self.headers.get("Host", "")):
            self._send(Answer(code=403, text=_NOT_LOCAL))
        else:
            self._send(found.answer())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class gives it
        """Requests go to the log at debug level."""
        self.say("http request", request=format % args)

    def _send(self, answer: Answer) -> None:
        body = answer.text.encode()
        self.send_response(answer.code)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
