"""The transport of requests to an API server: their rate, a deadline and a size limit for every answer, the token, and
the reading of refusals.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2

from healthd.core.errors import BackendBusy

TOKEN_AGE_S = 60.0
"""How long a token is used before its file is read again, as client-go does; kubelet renews it long before its end."""

ANSWER_LIMIT_BYTES = 8 * 1024 * 1024
"""The longest answer but for lists, which say their own: etcd's objects end at 1.5 MiB."""


class Pace:
    """At most ``rate_per_s`` requests a second over time, ``burst`` of them at once, and none while the server is
    overloaded. Used by several threads. By default as one process for the whole fleet needs it: the evictions of a
    controller's sync come at once."""

    def __init__(
        self, *, rate_per_s: float = 50.0, burst: int = 200, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate_per_s, self._burst, self._monotonic_s = rate_per_s, burst, monotonic_s
        self._lock = threading.Lock()
        self._tokens, self._at_s = float(burst), monotonic_s()
        self._not_before_s = self._at_s

    def wait_s(self, most_s: float, *, ahead: int = 0) -> float:
        """Count the next request; how long it has to wait, in seconds, so that ``ahead`` more may follow it at once.
        Raises BackendBusy where that is longer than both ``most_s`` and the time in which an empty bucket fills so far:
        a caller that is refused while it is next would find the bucket empty each time, and never succeed.
        """
        with self._lock:
            now_s = self._monotonic_s()
            self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate_per_s)
            self._at_s = now_s
            wanted = min(1 + ahead, self._burst)
            wait_s = max((wanted - self._tokens) / self._rate_per_s, self._not_before_s - now_s, 0.0)
            if wait_s > max(most_s, wanted / self._rate_per_s):
                raise BackendBusy(f"request not sent: healthd's own rate limit allows the next one in {wait_s:.1f} s")
            self._tokens -= 1
            return wait_s

    def hold_off(self, for_s: float) -> None:
        """The server asked for this pause, in seconds."""
        with self._lock:
            self._not_before_s = max(self._not_before_s, self._monotonic_s() + for_s)


class Transport(httpx2.HTTPTransport):
    """Ends an answer at its deadline and its size limit, however slowly it comes, and signs with the current token. The
    request's extension ``limit_bytes`` sets another size.

    lightkube reads a token file again only after a 401; httpx's timeouts begin again with every chunk.
    """

    def __init__(self, trust: Any, *, timeout_s: float, token_file: str) -> None:
        super().__init__(verify=trust, trust_env=False)
        self._timeout_s, self._token_file = timeout_s, token_file
        self._token, self._read_s = "", -TOKEN_AGE_S

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        until_s = time.monotonic() + self._timeout_s
        if self._token_file:
            request.headers["Authorization"] = f"Bearer {self._current_token()}"
        response = super().handle_request(request)
        if response.status_code == 401:
            self._read_s = -TOKEN_AGE_S  # the next request reads the file
        limit_bytes = request.extensions.get("limit_bytes", ANSWER_LIMIT_BYTES)
        response.stream = _Bounded(response.stream, until_s, limit_bytes)
        return response

    def _current_token(self) -> str:
        now_s = time.monotonic()
        if now_s - self._read_s >= TOKEN_AGE_S:
            try:
                self._token, self._read_s = Path(self._token_file).read_text(encoding="utf-8").strip(), now_s
            except OSError as error:
                if not self._token:
                    raise httpx2.ConnectError(f"{self._token_file}: {error.strerror}") from error
        return self._token


class _Bounded(httpx2.SyncByteStream):
    def __init__(self, stream: Any, until_s: float, limit_bytes: int) -> None:
        self._stream, self._until_s, self._limit_bytes = stream, until_s, limit_bytes

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for chunk in self._stream:
            size += len(chunk)
            if time.monotonic() > self._until_s:
                raise httpx2.ReadTimeout("the answer did not end in time")
            if size > self._limit_bytes:
                raise httpx2.ReadError(f"the answer is longer than {self._limit_bytes} bytes")
            yield chunk

    def close(self) -> None:
        self._stream.close()


def sentence_of(response: httpx2.Response) -> str:
    """The server's own sentence."""
    try:
        message = response.json()["message"]
    except (ValueError, KeyError, TypeError, httpx2.HTTPError):
        message = response.text[:300] or response.reason_phrase
    return " ".join(str(message).split())


def is_status(response: httpx2.Response) -> bool:
    """Whether a refusal is a Status of the API. For a resource that is not served it is the plain "404 page not found"
    of the HTTP server."""
    try:
        return bool(response.json()["kind"] == "Status")
    except (ValueError, KeyError, TypeError, httpx2.HTTPError):
        return False


def reasons_of(response: httpx2.Response) -> set[str]:
    """Why, as the server classifies it: reasons of ``details.causes``."""
    try:
        causes = response.json()["details"]["causes"]
        return {str(each.get("reason", "")) for each in causes}
    except (ValueError, KeyError, TypeError, AttributeError, httpx2.HTTPError):
        return set()


def retry_after_s(response: httpx2.Response) -> float:
    """The pause that the server asked for, in seconds, from 1 to 60; 1 where it did not say (API Priority and
    Fairness always does)."""
    asked = response.headers.get("Retry-After", "")
    return min(60.0, max(1.0, float(asked))) if asked.isdecimal() else 1.0
