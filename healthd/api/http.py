"""The read-only HTTP server of the daemon: the status page, /status, /metrics, /healthz, /verdict, and for
the fleet /history, /inventory and /readings; of the controller /metrics, /healthz and the page of the fleet. Loopback
by default; nothing here can act.

The pages and their JSON are for this machine, even where other machines may scrape: they show the findings and the
operator who acted. Another machine gets /verdict without its evidence, which may quote the log, and of /history no
notes and commands. A request under a
foreign host name is refused too: a web site may give its own name our address (DNS rebinding) and read the answer in
its visitor's browser.

/healthz says only that the process works; a faulty node is not a faulty daemon.

A client has one deadline for its whole request, and one to take its answer. With too many clients, the slowest is
closed: a client that asks slowly, or never, or does not take its answer, keeps neither a scraper nor the kubelet's
probe from its own. Nor do many that ask at once, and one machine's clients keep no other's from theirs.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import io
import ipaddress
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from healthd.agent.agent import Agent
from healthd.api.html_page import HEADERS, html_page
from healthd.api.inventory import NodeInventory
from healthd.api.plan_cache import PlanCache
from healthd.api.rate_limit import RateLimit
from healthd.api.readings import readings_json
from healthd.api.status import status_data
from healthd.core.capabilities import drop_capabilities
from healthd.core.errors import StoreError
from healthd.core.json_documents import json_document
from healthd.observe.report import as_json

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_REPORT_DEADLINE_S = 5.0
_OPEN = 32
"""Connections at once. Prometheus, the kubelet and an operator's browser have some five."""
_KEPT = 4
"""Those of them that only a probe can wait in: a restart by the kubelet helps against no crowd of clients."""
_EACH = (_OPEN - _KEPT) // 2
"""The most requests of one address that are answered at once, but for probes: half of what is left."""
_REQUEST_S = 5.0
"""For the whole of a request, in seconds, however its bytes come."""
_REQUEST_BYTES = 65536
_ANSWER_S = 10.0
"""For an answer to be taken, in seconds."""
_BUSY = "too many pages are asked for at once; ask again\n"
_AGAIN_S = 0.2
_TAKEN_S = 5.0
"""How often a taken address is tried again, in seconds."""
_LOG_EVERY_S = 60.0
_NOT_LOCAL = """this page is for this machine only; open a tunnel with `ssh -L {port}:127.0.0.1:{port} HOST` or
`kubectl port-forward` and request http://127.0.0.1:{port}/; open to all clients: {open}
"""
_NOT_HERE = """this page is closed, because [daemon] readers is set and HTTP does not identify the user; run
`healthd status` or `healthd fleet`; open to all clients: {open}
"""
_NOT_OURS = """unknown host name; use this machine's address or host name, or add the name to http_names of [daemon] or
[controller]
"""
_TEXT = "text/plain; charset=utf-8"


class HttpResponse(Struct, frozen=True, kw_only=True):
    """The answer for one path. ``packed``: gzip of the same text, for clients that accept it."""

    code: int = 200
    kind: str = _TEXT
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    packed: bytes = b""


class Route(Struct, frozen=True, kw_only=True):
    """One path. ``local``: for this machine only. ``remote``: the answer for other machines, where it differs.
    ``probe``: answered under any host name, and however many clients ask for other paths."""

    answer: Callable[[], HttpResponse]
    local: bool = False
    remote: Callable[[], HttpResponse] | None = None
    probe: bool = False


Routes = Mapping[str, Route]


def common_routes(*, metrics: Callable[[], tuple[str, str]], problem: Callable[[], str]) -> Routes:
    """The paths of both daemon and controller. ``metrics``: content type and text. ``problem``: why the process itself
    does not work, or ""."""

    def page() -> HttpResponse:
        kind, text = metrics()
        return HttpResponse(kind=kind, text=text)

    def health() -> HttpResponse:
        message = problem()
        return HttpResponse(code=503 if message else 200, text=f"{message or 'ok'}\n")

    return {"/metrics": Route(answer=page), "/healthz": Route(answer=health, probe=True)}


def page_route(package: str, name: str) -> Route:
    """A page for this machine only: a file of a package."""

    def front() -> HttpResponse:
        made = html_page(package, name)
        return HttpResponse(kind="text/html; charset=utf-8", text=made.html, headers=made.headers)

    return Route(answer=front, local=True)


def agent_routes(agent: Agent, *, metrics: Callable[[], tuple[str, str]], problem: Callable[[], str]) -> Routes:
    """The paths of a node's daemon."""
    board, inventory = PlanCache.of(agent), NodeInventory(agent)

    def machine() -> HttpResponse:
        return HttpResponse(kind="application/json", text=inventory.text(), headers=HEADERS)

    def readings() -> HttpResponse:
        return HttpResponse(kind="application/json", text=readings_json(agent), headers=HEADERS)

    def history() -> HttpResponse:
        from healthd.api.timeline import shared_data  # loads SQLite

        if agent.store is None:
            return HttpResponse(code=503, text="this agent only observes and keeps no history\n")
        try:
            data = shared_data(agent.store, agent.machine.name, agent.monitor.device_names())
        except StoreError as error:
            return HttpResponse(code=503, text=f"{error}\n")
        return HttpResponse(kind="application/json", text=json_document(data), headers=HEADERS)

    def status() -> HttpResponse:
        text = json_document(status_data(agent, board, problem=problem()))
        return HttpResponse(kind="application/json", text=text, headers=HEADERS)

    def verdict(*, evidence: bool) -> HttpResponse:
        report = agent.checkup.report(deadline_s=_REPORT_DEADLINE_S)
        return HttpResponse(kind="application/json", text=as_json(report, evidence=evidence))

    return {
        "/": page_route("healthd.api", "status.html"),
        "/status": Route(answer=status, local=True),
        **common_routes(metrics=metrics, problem=problem),
        "/history": Route(answer=history),
        "/inventory": Route(answer=machine),
        "/readings": Route(answer=readings),
        "/verdict": Route(answer=partial(verdict, evidence=True), remote=partial(verdict, evidence=False)),
    }


def open_http(
    address: str, routes: Routes, log: Any, names: Collection[str] = (), *, local: bool = True
) -> HttpDoor | None:
    """The HTTP server, or None where none is configured. ``names``, ``local``: as in ``HttpServer``."""
    if not address:
        return None
    return HttpDoor(address, lambda: HttpServer(address, routes, log, names, local=local), log)


class HttpDoor:
    """The server at an address, or the wait for it: a taken address stops nothing else. Any user of the machine can
    take the port while a daemon is down, and none is to keep it from the next one by that."""

    def __init__(self, address: str, listen: Callable[[], HttpServer], log: Any) -> None:
        self._address, self._listen, self._log = address, listen, log
        self._server: HttpServer | None = None
        self._missing, self._ending = "", threading.Event()
        self._waits = threading.Thread(target=self._await, name="http address", daemon=True)
        if not self._has_opened():
            self._waits.start()

    def missing(self) -> str:
        """Why there is no server yet, or ""."""
        return self._missing

    def problem(self) -> str:
        """Why the server answers no request, or ""."""
        return self._server.problem() if self._server is not None else ""

    def close(self) -> None:
        """Stop listening, or waiting."""
        self._ending.set()
        if self._waits.is_alive():
            self._waits.join(timeout=_AGAIN_S)  # longer only where it looks up a host name
        if self._server is not None:
            self._server.close()

    def _await(self) -> None:
        while not self._ending.wait(_TAKEN_S) and not self._has_opened():
            pass

    def _has_opened(self) -> bool:
        try:
            self._server = self._listen()
        except OSError as error:
            if not self._missing:
                self._log.error("no HTTP server", address=self._address, error=str(error))
            self._missing = f"no HTTP server at {self._address}, [daemon] http: {error}; trying again"
            return False
        if self._missing:
            self._log.info("HTTP server listens", address=self._address)
        self._missing = ""
        return True


class HttpServer:
    """Serves GET requests until closed. ``[::]`` is every address, those of IPv4 among them. ``names``: further host
    names that this machine answers to. ``local``: whether this machine's own users see more than others.

    Raises OSError where the address cannot be had.
    """

    def __init__(
        self, address: str, routes: Routes, log: Any, names: Collection[str] = (), *, local: bool = True
    ) -> None:
        host, _, port = address.rpartition(":")
        ours = frozenset(each.lower() for each in (socket.gethostname(), *names))
        handler = type("Handler", (_Handler,), {"routes": routes, "log": log, "names": ours, "local": local})
        self._address = address
        self._server = listening(host.strip("[]"), int(port), handler, partial(_Listener, log=log))
        self._log = log
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Serve without capabilities, as does each thread that answers a request: nothing here can act."""
        try:
            drop_capabilities()
        except OSError as error:
            self._log.error("HTTP is served with the daemon's capabilities", error=str(error))
        while not self._server.closing:
            self._server.handle_request()  # waits for one; serve_forever would look twice a second whether to end

    @property
    def port(self) -> int:
        """The port it listens on, for an address that asked for port 0."""
        return self._server.server_address[1]

    def problem(self) -> str:
        """Why the server answers no request, or ""."""
        return "" if self._thread.is_alive() else f"HTTP at {self._address} answers no request: its thread has ended"

    def close(self) -> None:
        """Stop listening. The thread that waits for a client is woken by the end of its socket."""
        self._server.closing = True
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.server_close()


class _Stage(enum.IntEnum):
    """How far a connection is: it sends its request, takes its answer, or healthd itself keeps it waiting."""

    ASKS = enum.auto()
    TAKES = enum.auto()
    WAITS = enum.auto()


class _Connection(Struct):
    """One connection of ``host``."""

    host: str
    stage: _Stage = _Stage.ASKS


class _Listener(ThreadingHTTPServer):
    """A server of IPv4 or IPv6, by its address. ``log`` gets its failures."""

    daemon_threads = True
    closing = False
    request_queue_size = 128  # the base class has 5; a client that finds no free one retries a second later

    def __init__(
        self, family: socket.AddressFamily, address: tuple[str, int], handler: type, *, log: Any = None
    ) -> None:
        self.address_family = family
        self._log, self._troubles = log, RateLimit(_LOG_EVERY_S)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Connection] = {}  # the oldest first
        self._placed: Counter[str] = Counter()  # by host: the requests that are being answered
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection. Pauses after a failure: the base class would retry at once, for ever."""
        try:
            return super().get_request()
        except OSError as error:
            if not self.closing:
                self._say(f"cannot accept a client: {error}")
                time.sleep(_AGAIN_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for a connection, or could be made."""
        with self._lock:
            if len(self._open) >= _OPEN and not self._has_made_room():
                self._say("too many clients: one was closed")
                return False
            self._open[request] = _Connection(host=client_address[0])
            return True

    def _has_made_room(self) -> bool:
        """Close a connection that healthd waits for: of the host with the most, one that asks before one that takes its
        answer, the oldest first. No host takes the room of others by that."""
        of_host = Counter(each.host for each in self._open.values())
        slow = [request for request, each in self._open.items() if each.stage is not _Stage.WAITS]
        if not slow:
            return False
        closed = min(slow, key=lambda each: (-of_host[self._open[each].host], self._open[each].stage))
        del self._open[closed]
        with contextlib.suppress(OSError):
            closed.shutdown(socket.SHUT_RDWR)
        return True

    @contextlib.contextmanager
    def place(self, host: str, *, probe: bool) -> Iterator[bool]:
        """Whether there is room to answer a request of this host now, which is kept until the block ends."""
        is_there = probe or self._has_place(host)
        if not is_there:
            self._say("too many clients: one was refused")
        try:
            yield is_there
        finally:
            if is_there and not probe:
                with self._lock:
                    self._placed[host] -= 1
                    self._placed += Counter()  # forget hosts that have none

    def _has_place(self, host: str) -> bool:
        with self._lock:
            if self._placed.total() >= _OPEN - _KEPT or self._placed[host] >= _EACH:
                return False
            self._placed[host] += 1
            return True

    def reaches(self, request: socket.socket, stage: _Stage) -> bool:
        """Note how far the request is. Whether its connection is still open."""
        with self._lock:
            if request not in self._open:
                return False
            self._open[request].stage = stage
            return True

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log that no thread could be started for a client. The handler logs its own errors."""
        self._say("a client was not answered", exc_info=True)

    def _say(self, message: str, *, exc_info: bool = False) -> None:
        if self._log is not None and (more := self._troubles.due(message)) is not None:
            self._log.error(message, http=self.server_address, suppressed=more, exc_info=exc_info)

    def server_bind(self) -> None:
        """Bind as the base class does, without asking a name server for our name; ``::`` includes IPv4."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, self.server_address[0] != "::")
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


def listening(host: str, port: int, handler: type, listen: Callable[..., _Listener] = _Listener) -> _Listener:
    """Listen at ``host``, an address or a name; of a name its IPv4 address, if it has one. On a machine without IPv6
    ``::`` means every address."""
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
    found = socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)  # bytes: see sources.exchange
    family, *_, address = sorted(found, key=lambda each: each[0] != socket.AF_INET)[0]
    return family, str(address[0])


def is_local(client: str, host: str) -> bool:
    """Whether a request comes from this machine's loopback, and names it by a name or an address of loopback.

    ``host``: the header, with or without a port. A tunnel (ssh -L, kubectl port-forward) comes from loopback.
    """
    name = _name_in(host)
    return _is_loopback(client) and (name == "localhost" or _is_loopback(name))


def is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a request asks for this machine: by an address, by one of its names in lower case, or by the first label
    of one, whatever its domain. Without the header it comes from no browser.

    ``host``: the header, with or without a port.
    """
    name = _name_in(host).lower().rstrip(".")
    if name in ("", "localhost") or name in names or _address(name) is not None:
        return True
    return name.partition(".")[0] in {each.partition(".")[0] for each in names}


def _name_in(host: str) -> str:
    return host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_loopback(address: str) -> bool:
    if (found := _address(address)) is None:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


class _RequestLimit(TimeoutError):
    """A request takes too long or has too many bytes. The base class ends a connection at a TimeoutError."""


class _Request(io.RawIOBase):
    """The bytes that a client sends until ``until_s``, monotonic, up to a limit. Raises _Enough."""

    def __init__(self, connection: socket.socket, until_s: float) -> None:
        self._connection, self._until_s = connection, until_s
        self._left_bytes = _REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise _RequestLimit(f"request not complete within {_REQUEST_S:g} s")
        if self._left_bytes <= 0:
            raise _RequestLimit(f"a request of {_REQUEST_BYTES} bytes or more")
        self._connection.settimeout(left_s)
        size = self._connection.recv_into(buffer)
        self._left_bytes -= size
        return size


class _Handler(BaseHTTPRequestHandler):
    """One request. The server makes a subclass with the routes."""

    routes: Routes
    log: Any
    names: frozenset[str]
    local: bool
    server: _Listener
    server_version = "healthd"
    sys_version = ""

    def setup(self) -> None:
        """As the base class, with one deadline for the whole request."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection, time.monotonic() + _REQUEST_S))

    def handle(self) -> None:
        """Answer. A client that closes the connection is logged at debug level only."""
        try:
            super().handle()
        except OSError as error:
            self.log.debug("a client went away", error=str(error))

    def do_GET(self) -> None:
        """Answer a known path; any other is 404."""
        if not self.server.reaches(self.connection, _Stage.WAITS):
            return
        self.connection.settimeout(_ANSWER_S)
        answer = self._answer(self.routes.get(self.path.partition("?")[0]))
        if self.server.reaches(self.connection, _Stage.TAKES):
            self._send(answer)

    def _answer(self, found: Route | None) -> HttpResponse:
        if found is None:
            *more, last = self.routes
            return HttpResponse(code=404, text=f"not found; the paths are {', '.join(more)} and {last}\n")
        with self.server.place(self.client_address[0], probe=found.probe) as is_there:
            return self._allowed(found) if is_there else HttpResponse(code=503, text=_BUSY)

    def _allowed(self, route: Route) -> HttpResponse:
        """The answer, or the part of it that this client may read."""
        host = self.headers.get("Host", "")
        local = self.local and is_local(self.client_address[0], host)
        if route.local and not local:
            return HttpResponse(code=403, text=self._closed())
        if not (route.probe or is_ours(host, self.names)):
            return HttpResponse(code=403, text=_NOT_OURS)
        return self._answered(route.answer if local or route.remote is None else route.remote)

    def _closed(self) -> str:
        """Why a page is not for this client, and what is."""
        free = ", ".join(path for path, each in self.routes.items() if not each.local)
        return (_NOT_LOCAL if self.local else _NOT_HERE).format(port=self.server.server_address[1], open=free)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class gives it
        """Requests go to the log at debug level."""
        self.log.debug("http request", request=format % args)

    def _answered(self, answer: Callable[[], HttpResponse]) -> HttpResponse:
        try:
            return answer()
        except Exception:  # a defect in one page must not look like a daemon that is gone; the log has it as an error
            self.log.error("a page failed; please report this defect of healthd", path=self.path, exc_info=True)
            return HttpResponse(code=500, text="the daemon failed to answer; see its log\n")

    def _send(self, answer: HttpResponse) -> None:
        packed = bool(answer.packed) and "gzip" in self.headers.get("Accept-Encoding", "")
        body = answer.packed if packed else answer.text.encode(errors="replace")
        self.send_response(answer.code)
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in {"X-Content-Type-Options": "nosniff", **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
