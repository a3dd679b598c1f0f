"""Asks a node for its own knowledge, on demand: over the read-only HTTP of its daemon, and on this machine over the
daemon's socket. The one way from a head node to its nodes.

An answer is shown, or counted among many, and permits nothing: while a daemon is down, any user of its node may listen
at its port.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import TypeVar

import msgspec
from msgspec import Struct

from healthd.api.client import ask
from healthd.api.wire import Request
from healthd.config.schema.config import Config
from healthd.core.encodable import NOT_JSON
from healthd.core.errors import BackendUnknown, UsageError
from healthd.sources.deadline import Deadline
from healthd.sources.open_url import NoRedirect, open_url

TIMEOUT_S = 8.0
"""The deadline of an answer, in seconds, from the lookup of the name on. A daemon takes 5 s at most for a verdict."""
_AT_ONCE = 32
_MOST_BYTES = 1_048_576
_QUOTED = 160  # characters of an answer that is an error
_INVENTORY = "/inventory"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class NodeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The part that each JSON document of a node has. ``schema``: such as ``healthd.verdict/v1``."""

    schema: str
    node: str


_Document = TypeVar("_Document", bound=NodeDocument)


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """The answer of one node. ``asked``: the URL or the socket. ``problem``: why there is no ``body``, or ""."""

    node: str
    asked: str
    body: bytes = b""
    problem: str = ""

    def document(self, reads: msgspec.json.Decoder[_Document], schema: str) -> _Document:
        """The answer as this document of this node. ``reads``: made at import, since threads may read at once. Raises
        BackendUnknown with the reason where it is none."""
        if self.problem:
            raise BackendUnknown(self.problem)
        expected = f"expected {schema} of {self.node}"
        try:
            found = reads.decode(self.body)
        except NOT_JSON as error:
            raise BackendUnknown(f"{self.asked} answered with something else ({error}); {expected}") from error
        if (found.schema, found.node) != (schema, self.node):
            raise BackendUnknown(f"{self.asked} answered with {found.schema} of {found.node}; {expected}")
        return found


def url_of(config: Config, path: str) -> str:
    """A path of the HTTP server of each node, with ``{node}`` for its name: beside ``[ledger] inventory_url`` where
    that is set, else at the port of ``[daemon] http``; "" without either."""
    if inventory := config.ledger.inventory_url:
        return inventory.removesuffix(_INVENTORY) + path
    port = config.daemon.http.rpartition(":")[2]
    return f"http://{{node}}:{port}{path}" if port else ""


def ask_nodes(url: str, nodes: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> dict[str, NodeAnswer]:
    """The answers of these nodes, side by side, each within the deadline. ``url``: with ``{node}``; "": HTTP is off,
    and each answer says so."""
    if not nodes:
        return {}
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(nodes))) as pool:
        answers = pool.map(lambda node: _asked(url.replace("{node}", node), node, timeout_s), nodes)
        return {answer.node: answer for answer in answers}


def ask_node(config: Config, node: str, path: str) -> NodeAnswer:
    """The answer of one node at a path of ``url_of``."""
    return ask_nodes(url_of(config, path), [node])[node]


def ask_here(socket: str, node: str, *arguments: str) -> NodeAnswer:
    """The answer of the daemon on this machine, the node, to a command line."""
    try:
        reply = ask(socket, Request(arguments=arguments), lambda _: None)
    except UsageError as error:
        return NodeAnswer(node=node, asked=socket, problem=str(error))
    if reply is None:
        return NodeAnswer(node=node, asked=socket, problem=f"no daemon answers at {socket}")
    if not reply.out:
        return NodeAnswer(node=node, asked=socket, problem=f"{socket} answered: {_shortened(reply.err)}")
    return NodeAnswer(node=node, asked=socket, body=reply.out.encode(errors="replace"))


def _asked(url: str, node: str, timeout_s: float) -> NodeAnswer:
    if not url:
        problem = 'HTTP of the nodes is off: [daemon] http is "" in the configuration here'
        return NodeAnswer(node=node, asked="", problem=problem)
    if not _NAME.fullmatch(node):
        return NodeAnswer(node=node, asked=url, problem=f"{node!r} is no host name, so no URL has it")
    try:
        return NodeAnswer(node=node, asked=url, body=_read(url, timeout_s))
    except (OSError, ValueError, HTTPException) as error:
        return NodeAnswer(node=node, asked=url, problem=f"{url} {_why(error, timeout_s)}")


def _read(url: str, timeout_s: float) -> bytes:
    no_proxy = urllib.request.ProxyHandler({})
    request = urllib.request.Request(url, headers={"User-Agent": "healthd"})  # noqa: S310 - http:// by its setting
    with open_url(request, Deadline(timeout_s), no_proxy, NoRedirect()) as answer:
        body: bytes = answer.read(_MOST_BYTES + 1)
    if len(body) > _MOST_BYTES:
        raise ValueError(f"has sent more than {_MOST_BYTES} bytes")
    return body


def _why(error: Exception, timeout_s: float) -> str:
    """The end of a sentence that begins with the URL."""
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"answered {error.code} {error.reason}: {_quoted(error)}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    match cause:
        case ConnectionRefusedError():
            return "refuses connections: the daemon is down, or its [daemon] http is off or on loopback"
        case TimeoutError():
            return f"did not answer within {timeout_s:g} s: {cause}"
        case OSError():
            return f"cannot be reached: {cause}"
        case _:
            return f"gave no answer that can be read: {cause}"


def _quoted(error: urllib.error.HTTPError) -> str:
    try:
        return _shortened(error.read(_QUOTED).decode(errors="replace"))
    except (OSError, HTTPException) as broken:
        return f"({broken})"


def _shortened(text: str) -> str:
    return " ".join(text.split())[:_QUOTED]
