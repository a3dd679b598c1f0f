"""A real HTTP server on loopback that takes messages, and answers as a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct, field


class Receiver(Struct):
    """What was sent here. ``answers``: status and headers of the next answers; then it is 200 again."""

    url: str = ""
    taken: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0
    headers: list[dict[str, str]] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """The server, for as long as it is wanted."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code, headers = receiver.answers.pop(0) if receiver.answers else (200, {})
            receiver.headers.append(dict(self.headers.items()))
            if code == 200:
                receiver.taken.append(body)
            else:
                receiver.refused += 1
            message = b"ok" if code == 200 else b"no_service"
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(message))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(message)

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/services/T0/B0/secret"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
