"""How a message leaves the node: an HTTP POST of JSON, or a command that reads it. Each has a deadline.

A message counts as delivered when the other side says so: a status of 200 to 299, exit code 0. A redirect is neither.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

from healthd.core.errors import SourceError
from healthd.core.strict_modes import not_run_by_root
from healthd.sources.command import run_command
from healthd.sources.exchange import Deadline, open_url

TIMEOUT_S = 10.0
"""For all of it, in seconds, up to the answer's end; a daemon that stops waits for no more than this."""
COMMAND_TIMEOUT_S = 10.0
_LONGEST_RETRY_S = 3_600.0
_SECRET = 8  # characters: a shorter part of a path is a word, such as "hooks"
_SHOWN = 200  # characters of what the other side said


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message: as text for people, and as data for programs."""

    text: str
    data: Mapping[str, Any]


class NotDeliveredError(Exception):
    """The message was not taken. ``retry_s``: when the other side wants to be asked again; 0 where it does not say."""

    def __init__(self, words: str, *, retry_s: float = 0.0) -> None:
        super().__init__(words)
        self.retry_s = retry_s


Deliver = Callable[[Message], None]


def to_slack(url_file: str) -> Deliver:
    """Slack's incoming webhook, and what takes the same (Mattermost, Rocket.Chat, Discord's ``/slack``).

    ``url_file``: the file whose first line is the webhook's URL, which is a secret; read for each message, so that it
    can be changed. Source: Slack, "Sending messages using incoming webhooks" and "Formatting text" (what is escaped).
    """

    def deliver(message: Message) -> None:
        text = message.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        _post(_secret(url_file), {"text": text}, {}, TIMEOUT_S)

    return deliver


def to_webhook(url: str, token_file: str = "", *, url_file: str = "", timeout_s: float = TIMEOUT_S) -> Deliver:
    """Any HTTP server that takes JSON. ``token_file``: the file whose first line goes along as a Bearer token.

    ``url_file``: the file whose first line is the URL, in the place of ``url``, where that is a secret.
    """

    def deliver(message: Message) -> None:
        token = {"Authorization": f"Bearer {_secret(token_file)}"} if token_file else {}
        _post(_secret(url_file) if url_file else url, message.data, token, timeout_s)

    return deliver


def to_command(argv: Sequence[str], *, timeout_s: float = COMMAND_TIMEOUT_S) -> Deliver:
    """A command, without a shell, that reads the JSON from its standard input."""

    def deliver(message: Message) -> None:
        if why := not_run_by_root(argv):
            raise NotDeliveredError(f"{argv[0]}: {why}")
        text = json.dumps(message.data) + "\n"
        try:
            done = run_command(argv, timeout_s=timeout_s, input=text, leave_nothing=True)
        except SourceError as error:
            raise NotDeliveredError(str(error)) from error
        if done.code != 0:
            said = (done.stderr or done.stdout).strip()[:_SHOWN]
            raise NotDeliveredError(f"{argv[0]} ended with {done.code}: {said or 'it said nothing'}; expected 0")

    return deliver


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """A redirected POST becomes a GET, which delivers nothing: it ends as the error that it is."""


def _post(url: str, data: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float) -> None:
    """Send it. What is said of a failure holds no secret, whoever quotes it: the server, or the library."""
    try:
        _sent(url, data, headers, timeout_s)
    except NotDeliveredError as error:
        raise NotDeliveredError(_without(str(error), _secrets(url, headers)), retry_s=error.retry_s) from None


def _sent(url: str, data: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float) -> None:
    place = _place(url)
    if not url.startswith(("https://", "http://")):
        raise NotDeliveredError(f"{place}: no URL; expected https://…")
    body = json.dumps(data).encode()
    kind = {"Content-Type": "application/json", "User-Agent": "healthd"}
    try:
        request = urllib.request.Request(url, data=body, headers={**kind, **headers}, method="POST")  # noqa: S310
        with open_url(request, Deadline(timeout_s), _NoRedirect()) as answer:
            answer.read(_SHOWN)
    except urllib.error.HTTPError as error:
        with error:
            said = _said(error)
            wait_s = _retry_after_s(error.headers.get("Retry-After", ""))
        raise NotDeliveredError(f"{place} answered {error.code} {error.reason}: {said}", retry_s=wait_s) from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NotDeliveredError(f"{place} cannot be reached: {reason}") from error


def _said(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(_SHOWN).decode(errors="replace").strip()
    except (OSError, HTTPException) as broken:
        return f"({broken})"


def _place(url: str) -> str:
    """Where a URL leads, without its path and its user: these are secrets."""
    scheme, there, rest = url.partition("//")
    return f"{scheme}//{rest.partition('/')[0].rpartition('@')[2]}" if there else "the URL"


def _secrets(url: str, headers: Mapping[str, str]) -> tuple[str, ...]:
    """What no message may hold, the longest first: the path of a URL, its parts, its user, and a token."""
    authority, _, path = url.partition("//")[2].partition("/")
    parts = [path, *re.split(r"[/?&=]", path), authority.rpartition("@")[0]]
    tokens = [value.removeprefix("Bearer ") for name, value in headers.items() if name == "Authorization"]
    secrets = {*(each for each in parts if len(each) >= _SECRET), *filter(None, tokens)}
    quoted = {repr(each)[1:-1] for each in secrets}  # as Python quotes what it refuses
    return tuple(sorted(secrets | quoted, key=len, reverse=True))


def _without(words: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        words = words.replace(secret, "…")
    return words


def _secret(path: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n", 1)
    except (OSError, UnicodeDecodeError) as error:
        raise NotDeliveredError(f"{path}: cannot be read: {error}") from error
    if not lines[0].strip():
        raise NotDeliveredError(f"{path}: its first line is empty; expected a URL or a token")
    return lines[0].strip()


def _retry_after_s(text: str) -> float:
    """``Retry-After`` as seconds or a date (RFC 9110, 10.2.3); 0 for anything else."""
    try:
        seconds = float(text) if text.strip().isdecimal() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError):
        return 0.0
    return min(max(0.0, seconds), _LONGEST_RETRY_S)
