"""A client of the Kubernetes API that hides nothing: the patch type is said, a status is data, nothing is tried again.

For tests that ask what the server itself does. Connections are kept, one per thread.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct

PatchKind = Literal["strategic", "merge", "json", "apply"]
_CONTENT_TYPES: Mapping[PatchKind, str] = {
    "strategic": "application/strategic-merge-patch+json",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Answer(Struct, frozen=True, kw_only=True):
    """What the server said. ``message`` is that of a Status object, empty for any other."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """Why not, in the server's words."""
        return str(self.body.get("message", "")) if self.body.get("kind") == "Status" else ""

    def must(self) -> dict[str, Any]:
        """The body of what had to succeed."""
        assert self.ok, f"the API server answered {self.status}: {self.message or self.body}"
        return self.body


class ApiClient:
    """One identity. ``headers`` go with every request, such as those of impersonation.

    Raises OSError where no whole answer comes.
    """

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, url
        self._address = (parts.hostname, parts.port or 443)
        self._context = ssl.create_default_context(cafile=str(ca_file))
        self._headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        self._timeout_s = timeout_s
        self._threads = threading.local()
        self._all: set[http.client.HTTPSConnection] = set()  # a thread may end before its connection is closed

    def get(self, path: str) -> Answer:
        """GET; ``path`` begins with /api or /apis and may hold a query."""
        return self.request("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """POST, which creates."""
        return self.request("POST", path, body)

    def put(self, path: str, body: Mapping[str, Any]) -> Answer:
        """PUT, which replaces."""
        return self.request("PUT", path, body)

    def patch(self, path: str, body: Any, *, kind: PatchKind = "strategic") -> Answer:
        """PATCH of this type."""
        return self.request("PATCH", path, body, content_type=_CONTENT_TYPES[kind])

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """DELETE; ``body`` is a DeleteOptions."""
        return self.request("DELETE", path, body)

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Answer:
        """One request, one answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", **self._headers}
        if data is not None:
            headers["Content-Type"] = content_type
        try:
            connection = self._connection()
            connection.request(method, path, body=data, headers=headers)
            response = connection.getresponse()
            text = response.read()
        except OSError:
            self._drop()
            raise
        except http.client.HTTPException as error:
            self._drop()
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        kept = {name.lower(): value for name, value in response.getheaders()}
        if kept.get("connection") == "close":
            self._drop()
        found = json.loads(text) if kept.get("content-type", "").startswith("application/json") else {"text": text}
        return Answer(status=response.status, body=found, headers=kept)

    def watch(self, path: str) -> Generator[dict[str, Any], None, None]:
        """The events of a watch as they come, until the server or the caller ends it."""
        connection = http.client.HTTPSConnection(*self._address, timeout=self._timeout_s, context=self._context)
        try:
            connection.request("GET", path, headers={"Accept": "application/json", **self._headers})
            response = connection.getresponse()
            assert response.status == 200, f"{path}: {response.status} {response.read()!r}"
            while line := response.readline():
                yield json.loads(line)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{path}: {error!r}") from error
        finally:
            connection.close()

    def close(self) -> None:
        """Close every connection; for when no thread asks any more. Another request opens another."""
        for connection in tuple(self._all):
            connection.close()
        self._all.clear()
        self._threads = threading.local()

    def _drop(self) -> None:
        """Close this thread's connection."""
        if connection := getattr(self._threads, "connection", None):
            connection.close()
            self._all.discard(connection)
            self._threads.connection = None

    def _connection(self) -> http.client.HTTPSConnection:
        connection: http.client.HTTPSConnection | None = getattr(self._threads, "connection", None)
        # A kept connection may have been closed by a server that ended; nothing is sent twice to find that out.
        if connection is not None and connection.sock is not None and _is_closed(connection.sock):
            self._drop()
            connection = None
        if connection is None:
            connection = http.client.HTTPSConnection(*self._address, timeout=self._timeout_s, context=self._context)
            self._threads.connection = connection
            self._all.add(connection)
        return connection


def _is_closed(sock: socket.socket) -> bool:
    # Readable without having asked for anything: the server said goodbye, or is gone.
    return bool(select.select([sock], [], [], 0)[0])
