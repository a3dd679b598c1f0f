"""Delivers a message: by an HTTP POST of JSON, or to a command that reads it. Each has a deadline. Receivers with a
form of their own (``slack``, ``pagerduty``, ``apprise_services``) post by it.

A message is delivered when the receiver confirms it: by a status of 200 to 299, or exit code 0. A redirect is a
failure. A receiver that refuses one message gets the others all the same.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from msgspec import Struct

from healthd.core.errors import SourceError
from healthd.notify.message import Message
from healthd.sources.command import run_configured
from healthd.sources.deadline import Deadline

if TYPE_CHECKING:  # HTTP loads when a message is posted, not on a machine that posts none
    import urllib.error

TIMEOUT_S = 10.0
"""The deadline of a message, in seconds, with all requests that it takes, up to the end of the last answer."""
CHILD_TIMEOUT_S = 13.0
"""That of a message which a child delivers, with the start of Python. A daemon that stops waits for the message under
way, and so a little longer than this."""
_LONGEST_RETRY_S = 3_600.0
_NOT_NOW = frozenset({429, 502, 503, 504})  # too many, and no server behind this one (RFC 6585, 4; RFC 9110, 15.6)
_SECRET = 8  # characters: a shorter part of a path is a word, such as "hooks"
_SHOWN = 200  # characters of the receiver's answer
_ANSWER = 65_536  # bytes of it that are read


class NotDeliveredError(Exception):
    """The message was not delivered. ``retry_s``: the receiver's own pause before the next attempt; 0 for none."""

    def __init__(self, reason: str, *, retry_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_s = retry_s


class RefusedError(NotDeliveredError):
    """The receiver refused this message; it may accept another. Any other NotDeliveredError is about the receiver."""


Deliver = Callable[[Message], str | None]
"""Delivers a message. Returns what a later message of the same incident needs of it, such as the receiver's name for
it; None or "" for nothing. Raises NotDeliveredError."""


class Receiver(Struct, frozen=True, kw_only=True):
    """One receiver. ``each_incident``: it needs a message for each incident, whatever ``per_hour`` says, because it is
    a program or keeps incidents itself. ``steps``: it also gets each step of a repair, which updates what it has.
    ``service``: it gets the node's own state alone, and that also while an incident of many nodes reports it."""

    deliver: Deliver
    each_incident: bool = False
    steps: bool = False
    service: bool = False


def to_webhook(url: str, token_file: str = "", *, url_file: str = "", timeout_s: float = TIMEOUT_S) -> Deliver:
    """Any HTTP server that accepts JSON. ``token_file``: the file whose first line is sent as a Bearer token.

    ``url_file``: the file whose first line is the URL, instead of ``url``, if it is a secret.
    """

    def deliver(message: Message) -> None:
        token = {"Authorization": f"Bearer {secret_of(token_file)}"} if token_file else {}
        post(secret_of(url_file) if url_file else url, message.data, token, Deadline(timeout_s))

    return deliver


def to_command(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> Deliver:
    """A command, without a shell, that reads the JSON from its standard input."""

    def deliver(message: Message) -> None:
        run_with(argv, message.data, timeout_s=timeout_s)

    return deliver


def run_with(argv: Sequence[str], data: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S) -> None:
    """Run a command, without a shell, that reads the data as JSON from its standard input. Raises NotDeliveredError."""
    try:
        done = run_configured(argv, timeout_s=timeout_s, input=json.dumps(data) + "\n", leave_nothing=True)
    except SourceError as error:
        raise NotDeliveredError(str(error)) from error
    if done.code != 0:
        output = (done.stderr or done.stdout).strip()[:_SHOWN]
        raise RefusedError(f"{argv[0]} exited with {done.code}, expected 0: {output or 'no output'}")


def post(
    url: str, data: Mapping[str, Any], headers: Mapping[str, str], deadline: Deadline, *, secrets: Sequence[str] = ()
) -> str:
    """Send the data, and return the answer's first 64 KiB. The message of a failure holds no secret, even if the server
    or the library quotes one. ``secrets``: further ones, which stand in the data. A user in the URL is sent as RFC 7617
    has it, unless the headers have an Authorization of their own."""
    bare, user = _without_user(url)
    headers = {**user, **headers}
    try:
        return _sent(bare, data, headers, deadline)
    except NotDeliveredError as error:
        hidden = [*_secrets(url, headers), *(form for each in secrets for form in quoted_forms(each))]
        raise type(error)(without(str(error), hidden), retry_s=error.retry_s) from None


def _sent(url: str, data: Mapping[str, Any], headers: Mapping[str, str], deadline: Deadline) -> str:
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    from healthd.sources.open_url import NoRedirect, open_url

    server = _server(url)
    if not url.startswith(("https://", "http://")):
        raise NotDeliveredError(f"{server}: not a URL; expected https://…")
    body = json.dumps(data).encode()
    kind = {"Content-Type": "application/json", "User-Agent": "healthd"}
    try:
        request = urllib.request.Request(url, data=body, headers={**kind, **headers}, method="POST")  # noqa: S310
        with open_url(request, deadline, NoRedirect()) as answer:
            read: bytes = answer.read(_ANSWER)
            return read.decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            reply = _reply(error)
            wait_s = _retry_after_s(error.headers.get("Retry-After", ""))
        failure = NotDeliveredError if error.code in _NOT_NOW else RefusedError
        raise failure(f"{server} answered {error.code} {error.reason}: {reply}", retry_s=wait_s) from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NotDeliveredError(f"{server} cannot be reached: {reason}") from error


def _reply(error: urllib.error.HTTPError) -> str:
    from http.client import HTTPException

    try:
        return error.read(_SHOWN).decode(errors="replace").strip()
    except (OSError, HTTPException) as broken:
        return f"({broken})"


def _without_user(url: str) -> tuple[str, Mapping[str, str]]:
    """The URL without its user, which urllib takes for a part of the host, and the header that names the user."""
    scheme, slashes, rest = url.partition("//")
    authority, slash, path = rest.partition("/")
    user, is_there, host = authority.rpartition("@")
    if not is_there:
        return url, {}
    name, _, password = user.partition(":")
    both = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return f"{scheme}{slashes}{host}{slash}{path}", {"Authorization": f"Basic {both}"}


def _server(url: str) -> str:
    """The scheme and host of a URL, without its path, query and user: these are secrets."""
    scheme, there, rest = url.partition("//")
    return f"{scheme}//{re.split('[/?#]', rest)[0].rpartition('@')[2]}" if there else "the URL"


def _secrets(url: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """The texts that no message may hold, the longest first: the path of a URL, its parts, its user, and a token."""
    authority, *rest = re.split("[/?#]", url.partition("//")[2], maxsplit=1)
    parts = [*rest, *re.split("[/?#&=]", "".join(rest)), authority.rpartition("@")[0]]
    tokens = [value.partition(" ")[2] for name, value in headers.items() if name == "Authorization"]
    secrets = {*(each for each in parts if len(each) >= _SECRET), *filter(None, tokens)}
    return tuple(form for each in secrets for form in quoted_forms(each))


def quoted_forms(secret: str) -> tuple[str, ...]:
    """A secret as it is, and as errors of Python, URLs and JSON quote it."""
    forms = (secret, repr(secret)[1:-1], quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1])
    return tuple(dict.fromkeys(forms)) if secret else ()


def without(text: str, secrets: Iterable[str]) -> str:
    """The text without these, the longest first."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


def secret_of(path: str) -> str:
    """The first line of a file. Raises NotDeliveredError where there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n", 1)
    except (OSError, UnicodeDecodeError) as error:
        raise NotDeliveredError(f"{path}: cannot be read: {error}") from error
    if not lines[0].strip():
        raise NotDeliveredError(f"{path}: the first line is empty; expected a URL or a token")
    return lines[0].strip()


def _retry_after_s(text: str) -> float:
    """``Retry-After`` in seconds, from a number or a date (RFC 9110, 10.2.3); 0 for anything else."""
    try:
        seconds = float(text) if text.strip().isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):  # a date may have a year of twenty digits
        return 0.0
    return min(max(0.0, seconds), _LONGEST_RETRY_S)
