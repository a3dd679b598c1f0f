"""The HTTP server listens where it is told to, with either family of addresses."""

from __future__ import annotations

import errno
import http.client
import socket
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
import structlog

from healthd.api.http import HttpResponse, HttpServer, Route, is_local, is_ours, listening
from tests.support.limits import limit_s


class Answers(BaseHTTPRequestHandler):
    """Says where it was reached."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"here")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class gives it
        """Nothing."""


def can_listen(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def is_reached(host: str, url_host: str) -> bool:
    """Whether a server that listens on ``host`` answers at ``url_host``."""
    server = listening(host, 0, Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        port = server.server_address[1]
        with urllib.request.urlopen(f"http://{url_host}:{port}/", timeout=limit_s(5)) as answer:
            return bool(answer.read() == b"here")
    except OSError:
        return False
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("host", "reached", "not_reached"),
    [
        ("127.0.0.1", ["127.0.0.1"], ["[::1]"]),
        ("::1", ["[::1]"], ["127.0.0.1"]),
        ("localhost", ["127.0.0.1"], []),
    ],
)
def test_it_is_reached_where_it_listens(host: str, reached: list[str], not_reached: list[str]) -> None:
    """An address of IPv6 as well as one of IPv4, and no other; of a name, its address of IPv4."""
    if "[::1]" in reached and not can_listen("::1"):
        pytest.skip("this machine has no IPv6")
    assert all(is_reached(host, each) for each in reached)
    assert not any(is_reached(host, each) for each in not_reached)


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_machine_without_ipv6_listens_everywhere_all_the_same(code: int) -> None:
    """``ipv6.disable=1``: what ``::`` means there is every address of IPv4. Any other refusal is told."""
    asked: list[Any] = []

    def listen(family: int, address: tuple[str, int], handler: type) -> Any:
        asked.append((family, address))
        if family == socket.AF_INET6:
            raise OSError(code, "no")
        return "listens"

    listening("::", 9809, Answers, listen)
    assert asked == [(socket.AF_INET6, ("::", 9809)), (socket.AF_INET, ("0.0.0.0", 9809))]  # noqa: S104 - the claim
    with pytest.raises(OSError, match="no"):
        listening("::1", 9809, Answers, listen)


def test_an_address_that_is_taken_is_told() -> None:
    """The caller says it loudly, and goes on watching the node."""
    taken = listening("127.0.0.1", 0, Answers)
    try:
        with pytest.raises(OSError, match="in use"):
            listening("127.0.0.1", taken.server_address[1], Answers)
    finally:
        taken.server_close()


@pytest.mark.parametrize(
    ("client", "host", "local"),
    [
        ("127.0.0.1", "127.0.0.1:9809", True),
        ("127.0.0.1", "localhost", True),
        ("::1", "[::1]:9809", True),
        ("::ffff:127.0.0.1", "localhost:8080", True),
        ("10.0.0.7", "127.0.0.1:9809", False),
        ("::ffff:10.0.0.7", "localhost", False),
        ("127.0.0.1", "rebound.example:9809", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "10.0.0.7:9809", False),
    ],
)
def test_the_status_is_for_this_machine_under_its_own_name(client: str, host: str, local: bool) -> None:
    """Another machine is refused, and so is a browser that a web site's own name has led here."""
    assert is_local(client, host) is local


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("", True),
        ("10.0.0.7:9809", True),
        ("[fe80::1]:9809", True),
        ("localhost:9809", True),
        ("N1:9809", True),
        ("n1.ec2.internal.", True),
        ("scrape-me.example:9809", True),
        ("rebound.example:9809", False),
        ("10.0.0.7.rebound.example", False),
        ("n10.example", False),
        ("[rebound.example]", False),
    ],
)
def test_a_machine_answers_by_its_addresses_and_its_own_names(host: str, ours: bool) -> None:
    """A name that somebody else has given our address is none of them."""
    assert is_ours(host, frozenset({"n1", "scrape-me.example"})) is ours


@pytest.mark.parametrize(
    ("path", "host", "code", "text"),
    [
        ("/verdict", "127.0.0.1", 200, "all of it"),
        ("/verdict", "n1.example", 200, "less"),
        ("/verdict", "rebound.example", 403, "unknown host name"),
        ("/metrics", "n1", 200, "numbers"),
        ("/metrics", "rebound.example", 403, "unknown host name"),
        ("/status", "n1", 403, "for this machine only"),
        ("/healthz", "rebound.example", 200, "ok"),
    ],
)
def test_who_asks_under_which_name_gets_what(path: str, host: str, code: int, text: str) -> None:
    """Evidence for this machine alone, nothing under a strange name, and a probe under any."""
    routes = {
        "/verdict": Route(answer=lambda: HttpResponse(text="all of it"), remote=lambda: HttpResponse(text="less")),
        "/metrics": Route(answer=lambda: HttpResponse(text="numbers")),
        "/status": Route(answer=lambda: HttpResponse(text="secret"), local=True),
        "/healthz": Route(answer=lambda: HttpResponse(text="ok"), probe=True),
    }
    server = HttpServer("127.0.0.1:0", routes, structlog.get_logger(), ("n1",))
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=limit_s(10))
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        assert (answer.status, text in answer.read().decode()) == (code, True)
        connection.close()
    finally:
        server.close()
