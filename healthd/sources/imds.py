"""The EC2 instance metadata service, version 2: a token first, one short deadline for all of it, no proxy, no retry.

It is asked only on a machine whose firmware says Amazon EC2, or where an endpoint is set; never when
``AWS_EC2_METADATA_DISABLED=true``. (EC2 User Guide, "Use IMDSv2", read 2026.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.sources.deadline import Deadline

if TYPE_CHECKING:  # HTTP and TLS load when the service is asked, not on a machine that has none
    import http.client

DEFAULT_ENDPOINT = "http://169.254.169.254"
_TIMEOUT_S = 1.0
"""The deadline for the token and the item together, in seconds, however their bytes come."""
_TIMES, _AGAIN_S = 3, 10.0
"""After so many items in a row without an answer healthd asks for none, for so many seconds: a start asks for several.
One alone may be a slow moment, and the next answers decide the platform."""
_HURRIED_S = 0.25
"""A start's deadline for an item, in seconds: the service is on the same host, and answers within some milliseconds."""
_TOKEN_TTL_S = 300
_TOKEN = "X-aws-ec2-metadata-token"  # noqa: S105 - the name of a header


class Token(Struct, kw_only=True):
    """The service's last token, and until when it is used for further items, in monotonic seconds: for less than its
    lifetime."""

    text: str = ""
    until_s: float = -math.inf


def read_metadata(
    endpoint: str,
    path: str,
    *,
    timeout_s: float = _TIMEOUT_S,
    token: Token | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """The text of ``/latest/meta-data/<path>``, by the given token while it lasts, else by a new one.

    Raises SourceMissing (404: there is no such item), SourceTimeout, SourceUnreadable (anything else).
    """
    import http.client

    asked, token = _connection(endpoint, Deadline(timeout_s)), token or Token()
    try:
        if is_new := token.until_s <= clock():
            _renew(token, asked, clock)
        status, text = _answer(asked, "GET", f"/latest/meta-data/{path}", {_TOKEN: token.text})
        if status == 401 and not is_new:  # the service forgot it: the instance was restored elsewhere
            _renew(token, asked, clock)
            status, text = _answer(asked, "GET", f"/latest/meta-data/{path}", {_TOKEN: token.text})
        return _checked(status, text, "GET", f"/latest/meta-data/{path}")
    except TimeoutError as error:
        raise SourceTimeout(f"IMDS at {endpoint} did not answer within {timeout_s:g} s") from error
    except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: a token that is no header
        raise SourceUnreadable(f"IMDS at {endpoint}: {error}; check hop limit and [sources] imds_endpoint") from error
    finally:
        asked.close()


class FastStart(Struct, kw_only=True):
    """A start, which must not wait: once the service kept silent, no caller in the same hurry asks it again.

    ``is_on``: until it ends. ``kept_silent``: whether an item had no answer, in a hurry or within its whole second.
    ``restarts``: how many starts in a row came before this one because the service had answered at last.
    """

    is_on: bool = False
    kept_silent: bool = False
    restarts: int = 0

    def end(self) -> bool:
        """End it, and forget that the service kept silent; whether it did."""
        silent, self.is_on, self.kept_silent = self.kept_silent, False, False
        return silent


class MetadataSource:
    """The service of one node. ``endpoint`` "": there is none to ask. A service that is cut off costs a second at most,
    and once in a while only; in a ``hurry`` a quarter of a second, once."""

    def __init__(
        self, endpoint: str, *, hurry: FastStart | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.endpoint, self.hurry, self._clock = endpoint, hurry or FastStart(), clock
        self._silent_s, self._silent_times, self._token = -math.inf, 0, Token()

    def answers(self) -> bool:
        """Whether the service answers for the instance id."""
        try:
            return bool(self.read("instance-id"))
        except SourceError:
            return False

    def read(self, path: str) -> str | None:
        """The item, or None where the service has none of that name.

        Raises SourceMissing (no service here, or no token from it), SourceTimeout, SourceUnreadable.
        """
        if not self.endpoint:
            raise SourceMissing("no instance metadata service: this is not EC2 by its DMI, or asking it is disabled")
        if self.hurry.is_on:
            return self._read_in_a_hurry(path)
        ago_s = self._clock() - self._silent_s
        if self._silent_times >= _TIMES and ago_s < _AGAIN_S:
            raise SourceTimeout(f"IMDS at {self.endpoint} did not answer {ago_s:.0f} s ago; healthd asks again soon")
        try:
            text = self._item(path, _TIMEOUT_S)
        except SourceTimeout:
            self._silent_s, self._silent_times = self._clock(), self._silent_times + 1
            self.hurry.kept_silent = True
            raise
        self._silent_times = 0
        return text

    def _read_in_a_hurry(self, path: str) -> str | None:
        if self.hurry.kept_silent:
            raise SourceTimeout(f"IMDS at {self.endpoint} has not answered yet; healthd asks again after the start")
        try:
            return self._item(path, _HURRIED_S)
        except SourceTimeout:
            self.hurry.kept_silent = True
            raise

    def _item(self, path: str, timeout_s: float) -> str | None:
        try:
            return read_metadata(self.endpoint, path, timeout_s=timeout_s, token=self._token, clock=self._clock)
        except SourceMissing as error:
            if path in str(error):
                return None
            raise SourceUnreadable(f"{error}, where every IMDSv2 has one; check [sources] imds_endpoint") from error


def _connection(endpoint: str, deadline: Deadline) -> http.client.HTTPConnection:
    try:
        where = urlsplit(endpoint)
        host, port = where.hostname, where.port
    except ValueError as error:
        raise SourceUnreadable(f"IMDS at {endpoint}: {error}; check [sources] imds_endpoint") from error
    if where.scheme != "http" or not host:
        raise SourceUnreadable(f"IMDS at {endpoint}: expected http://HOST[:PORT]; check [sources] imds_endpoint")
    from healthd.sources.exchange import connection

    return connection(host, port or 80, deadline)


def _renew(token: Token, asked: http.client.HTTPConnection, clock: Callable[[], float]) -> None:
    now_s, path = clock(), "/latest/api/token"
    token.text = _checked(*_answer(asked, "PUT", path, {f"{_TOKEN}-ttl-seconds": str(_TOKEN_TTL_S)}), "PUT", path)
    token.until_s = now_s + _TOKEN_TTL_S / 2


def _answer(asked: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """The status, and the text."""
    asked.request(method, path, headers=headers)
    response = asked.getresponse()
    return response.status, response.read(65536).decode("utf-8", "replace").strip()


def _checked(status: int, text: str, method: str, path: str) -> str:
    if status == 404:
        raise SourceMissing(f"IMDS has no {path}")
    if status != 200:
        raise SourceUnreadable(f"IMDS answered {status} to {method} {path}; expected 200")
    return text
