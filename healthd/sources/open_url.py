"""``urllib.request.urlopen`` with one deadline for the whole exchange.

Apart from ``exchange``, so that a node that sends nothing to a URL does not load urllib's handlers.
"""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Callable
from typing import Any

from healthd.sources.deadline import Deadline
from healthd.sources.exchange import bound


def open_url(request: urllib.request.Request, deadline: Deadline, *handlers: urllib.request.BaseHandler) -> Any:
    """``urllib.request.urlopen`` with further handlers, and with an end by the deadline."""
    return urllib.request.build_opener(_Http(deadline), _Https(deadline), *handlers).open(request)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler for `open_url`: a redirect is an HTTPError, and no other server gets the request."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


class _Http(urllib.request.HTTPHandler):
    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_made(http.client.HTTPConnection, self._deadline), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_made(http.client.HTTPSConnection, self._deadline), req)


def _made(kind: type[http.client.HTTPConnection], deadline: Deadline) -> Callable[..., http.client.HTTPConnection]:
    def make(host: str, **more: Any) -> http.client.HTTPConnection:
        more.pop("timeout", None)  # urllib's own, which holds for each read by itself
        return bound(kind(host, **more), deadline)

    return make
