"""Every service that Apprise knows, such as Opsgenie, Microsoft Teams, Amazon SNS and e-mail.

Apprise and its libraries are loaded in a child that delivers one message and ends; the service's URL, a secret, goes to
it by standard input. Source: Apprise, "Notification services" (appriseit.com/services).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from healthd.core.errors import SourceError
from healthd.core.model import Severity
from healthd.notify.delivery import (
    CHILD_TIMEOUT_S,
    Deliver,
    NotDeliveredError,
    RefusedError,
    quoted_forms,
    secret_of,
    without,
)
from healthd.notify.message import Message, Notification, Occasion
from healthd.sources.command import import_path, run_command

KEEPS_INCIDENTS = ("opsgenie",)
"""Apprise's services that open, comment and close an alert under an alias."""
_CHILD = "healthd.notify.apprise_child"
_SECRET = 6  # characters: a shorter part of a URL is a word
_SHOWN = 300


def to_apprise(url_file: str, state_dir: str, *, timeout_s: float = CHILD_TIMEOUT_S) -> Deliver:
    """``url_file``: the file whose first line is the URL by which Apprise names the service.

    ``state_dir``: where Apprise remembers the alerts of a service that keeps incidents. It writes no secret there.
    """

    def deliver(message: Message) -> str:
        url = secret_of(url_file)
        question = {
            "url": url,
            "title": message.about.title,
            "body": message.text,
            "kind": kind_of(message.about),
            "alias": message.about.id,
            "storage": str(Path(state_dir) / "apprise") if keeps_incidents(url) else "",
        }
        _ask(question, timeout_s)
        return ""

    return deliver


def kind_of(about: Notification) -> str:
    """Apprise's word. A service that keeps incidents opens an alert by ``failure`` and ``warning``, adds a note to it
    by ``info``, and closes it by ``success``."""
    if about.is_over or about.event is Occasion.DRILL:
        return "success" if about.event is not Occasion.DRILL else "info"
    if about.event in (Occasion.CHANGED, Occasion.STEP):
        return "info"
    return "failure" if about.severity is Severity.CRITICAL else "warning"


def keeps_incidents(url: str) -> bool:
    """Whether the service of this URL keeps incidents under an alias."""
    return url.partition("://")[0].lower() in KEEPS_INCIDENTS


def secrets_of(url: str) -> tuple[str, ...]:
    """The parts of a service's URL that no message may hold: all but its scheme, and short words."""
    try:
        parts = urlsplit(url)
        found = [url, parts.netloc, *parts.netloc.replace("@", ":").split(":"), *parts.path.split("/"), parts.query]
        found += [value for _, value in parse_qsl(parts.query)]
    except ValueError:
        found = [url, url.partition("://")[2]]
    return tuple(form for each in found if len(each) >= _SECRET for form in quoted_forms(each))


def _ask(question: dict[str, str], timeout_s: float) -> None:
    """Have a child deliver it. Raises NotDeliveredError; Apprise does not say whether the service refused it."""
    env = {**os.environ, "PYTHONPATH": import_path()}
    argv = (sys.executable, "-P", "-m", _CHILD)
    url = question["url"]
    scheme = url.partition("://")[0]
    try:
        done = run_command(argv, timeout_s=timeout_s, env=env, input=json.dumps(question))
    except SourceError as error:
        raise NotDeliveredError(without(f"Apprise ({scheme}): {error}", secrets_of(url))) from None
    if done.code != 0:
        reported = " ".join((done.stdout.strip() or done.stderr.strip()).split())[-_SHOWN:]
        message = f"Apprise ({scheme}): {reported or 'not delivered, without a reason'}"
        raise RefusedError(without(message, secrets_of(url)))
