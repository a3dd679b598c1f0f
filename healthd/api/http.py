"""The read-only HTTP server: the status page, /status, /metrics, /healthz, /verdict. Loopback by default; nothing here
can act.

The status page and its JSON are for this machine, even where the address lets a scraper on another one in: they tell
what was found and by whose order. Whoever comes under another name than this machine's own is refused as well, for a
web site may give its name our address (DNS rebinding) and read what its visitor's browser then gets.

/healthz says only that the daemon goes round; a sick node is not a sick daemon.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from healthd.agent import Agent
from healthd.api.board import Board
from healthd.api.page import HEADERS, page
from healthd.api.status import status_data, status_json
from healthd.report import as_json

_REPORT_DEADLINE_S = 5.0
_NOT_LOCAL = """the status is for this machine only: come by `ssh -L 9809:127.0.0.1:9809 NODE` or `kubectl
port-forward`, and ask for http://127.0.0.1:9809/; there are /metrics, /healthz and /verdict for everybody
"""
NO_MORE: Mapping[str, str] = {}


class HttpServer:
    """Serves GET requests until closed. ``[::]`` is every address, those of IPv4 among them.

    Raises OSError where the address cannot be had.
    """

    def __init__(
        self,
        address: str,
        agent: Agent,
        *,
        metrics: Callable[[], tuple[str, str]],
        problem: Callable[[], str],
        say: Callable[..., None],
    ) -> None:
        host, _, port = address.rpartition(":")
        handler = type(
            "Handler",
            (_Handler,),
            {
                "agent": agent,
                "metrics": staticmethod(metrics),
                "board": Board.of(agent),
                "problem": staticmethod(problem),
                "say": staticmethod(say),
            },
        )
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

    agent: Agent
    board: Board
    metrics: Callable[[], tuple[str, str]]
    problem: Callable[[], str]
    say: Callable[..., None]
    timeout = 10
    server_version = "healthd"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer the five paths; anything else is 404."""
        match self.path.partition("?")[0]:
            case "/" | "/status" if not is_local(self.client_address[0], self.headers.get("Host", "")):
                self._send(403, "text/plain; charset=utf-8", _NOT_LOCAL)
            case "/":
                self._send(200, "text/html; charset=utf-8", page().html, {**HEADERS, **page().headers})
            case "/status":
                data = status_data(self.agent, self.board, problem=self.problem())
                self._send(200, "application/json", status_json(data), HEADERS)
            case "/metrics":
                kind, text = self.metrics()
                self._send(200, kind, text)
            case "/healthz":
                problem = self.problem()
                self._send(503 if problem else 200, "text/plain; charset=utf-8", (problem or "ok") + "\n")
            case "/verdict":
                self._send(200, "application/json", as_json(self.agent.checkup.report(deadline_s=_REPORT_DEADLINE_S)))
            case _:
                self._send(404, "text/plain; charset=utf-8", "there are /, /status, /metrics, /healthz and /verdict\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class gives it
        """Requests go to the log at debug level."""
        self.say("http request", request=format % args)

    def _send(self, code: int, kind: str, text: str, headers: Mapping[str, str] = NO_MORE) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
