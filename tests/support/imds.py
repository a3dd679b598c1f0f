"""An instance metadata service on loopback, version 2, that gives out what a test put into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Imds(ThreadingHTTPServer):
    """IMDSv2: items are given out against a token that was asked for with PUT and a lifetime, and only so."""

    daemon_threads = True

    def __init__(self, items: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), Visitor)
        self.items, self.delay_s, self.token_status, self.given = dict(items), 0.0, 200, "s3cret"
        self.refuses = False
        self.requests: list[str] = []

    def handle_error(self, *_: Any) -> None:
        """A client that left before its answer is one of these tests."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving(instance_id: str) -> Iterator[Imds]:
    """The service of a p5.48xlarge while a test runs."""
    server = Imds({"instance-type": "p5.48xlarge", "instance-id": instance_id})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Visitor(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Imds

    def do_PUT(self) -> None:
        lifetime = int(self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "0"))
        known = self.path == "/latest/api/token" and 1 <= lifetime <= 21600
        self._answer(self.server.token_status if known else 400, self.server.given)

    def do_GET(self) -> None:
        if self.server.refuses or self.headers.get("X-aws-ec2-metadata-token") != self.server.given:
            self._answer(401, "")
            return
        item = self.server.items.get(self.path.removeprefix("/latest/meta-data/"))
        self._answer(404 if item is None else 200, item or "")

    def _answer(self, status: int, text: str) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        time.sleep(self.server.delay_s)
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing: the test reads ``requests``."""
