"""The verbs that only the daemon can answer. A disruptive one asks for confirmation first."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.client import ask
from healthd.api.wire import Reply, Request
from healthd.cli.output import declined, talk
from healthd.cli.settings import socket_path
from healthd.cli.watch import watched
from healthd.core.errors import NoDaemon

START = "start it with `systemctl start healthd`, or with `healthd run` where there is no unit"

INSTEAD = {"plan": ", or ask the policy alone with `healthd policy test CODE`"}
"""The verb that works without a daemon, as the end of a message, by the name in the grammar."""
QUESTIONS = {
    "relearn": "Take what this node has now as its new baseline?",
    "repair": "Repair this node?",
}
"""Asked at the terminal after a dry run, unless --yes or --dry-run is given."""


def answer(options: Namespace) -> Reply:
    """The daemon's answer, after the operator's confirmation where the verb asks. Raises NoDaemon without a daemon,
    UsageError without a terminal.
    """
    question = QUESTIONS.get(options.verb)
    if question is None or options.yes or options.dry_run:
        return watched(options, lambda: _asked(options))
    rehearsed = _asked(options, "--dry-run", as_text=True)
    if rehearsed.code != 0:
        return _asked(options, "--dry-run") if options.json else rehearsed
    return declined(options.verb, f"{rehearsed.out}{question}") or _asked(options, "--yes")


def _asked(options: Namespace, *more: str, as_text: bool = False) -> Reply:
    """The daemon's answer. ``as_text``: for the question, also where the result is JSON."""
    path = socket_path(options)
    given = (each for each in options.arguments if not (as_text and each == "--json"))
    answered = ask(path, Request(arguments=(*given, *more), colour=options.colour), talk)
    if answered is None:
        instead = INSTEAD.get(options.verb, "")
        raise NoDaemon(f"no daemon answers at {path}, and healthd {options.verb} needs one; {START}{instead}")
    return answered
