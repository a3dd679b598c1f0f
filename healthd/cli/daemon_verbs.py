"""The verbs that only the daemon can answer, one row each. A disruptive one asks for confirmation first."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from msgspec import Struct

from healthd.api.client import ask
from healthd.api.wire import Reply, Request
from healthd.cli.output import confirmed, talk
from healthd.cli.settings import socket_path
from healthd.cli.watch import watched
from healthd.core.errors import NoDaemon, UsageError

START = "start it with `systemctl start healthd`, or with `healthd run` where there is no unit"


class DaemonVerb(Struct, frozen=True, kw_only=True):
    """One verb. ``instead``: what works without a daemon, as the end of a message. ``question``: asked at the terminal
    after a dry run, unless --yes or --dry-run is given; "" for a verb that does not ask.
    """

    instead: str = ""
    question: str = ""


VERBS: Mapping[str, DaemonVerb] = {
    "ack": DaemonVerb(),
    "approve": DaemonVerb(),
    "drill": DaemonVerb(),
    "plan": DaemonVerb(instead=", or ask the policy alone with `healthd policy test CODE`"),
    "quarantine": DaemonVerb(),
    "release": DaemonVerb(),
    "relearn": DaemonVerb(question="Take what this node has now as its new baseline?"),
    "repair": DaemonVerb(question="Repair this node?"),
    "undo": DaemonVerb(),
}
"""By their names in the grammar, which has their options and help."""


def answer(options: Namespace) -> Reply:
    """The daemon's answer, after the operator's confirmation where the verb asks. Raises NoDaemon without a daemon,
    UsageError without a terminal.
    """
    verb = VERBS[options.verb]
    if options.watch:
        return watched(options, lambda: _asked(options, verb))
    if not verb.question or options.yes or options.dry_run:
        return _asked(options, verb)
    rehearsed = _asked(options, verb, "--dry-run", as_text=True)
    if rehearsed.code != 0:
        return _asked(options, verb, "--dry-run") if options.json else rehearsed
    is_confirmed = confirmed(f"{rehearsed.out}{verb.question}")
    if is_confirmed is None:
        raise UsageError(
            f"healthd {options.verb}: refusing to act without confirmation (no terminal); pass --yes or --dry-run"
        )
    return _asked(options, verb, "--yes") if is_confirmed else Reply(code=0, err="healthd: nothing was done\n")


def _asked(options: Namespace, verb: DaemonVerb, *more: str, as_text: bool = False) -> Reply:
    """The daemon's answer. ``as_text``: for the question, also where the result is JSON."""
    path = socket_path(options)
    given = (each for each in options.arguments if not (as_text and each == "--json"))
    answered = ask(path, Request(arguments=(*given, *more), colour=options.colour), talk)
    if answered is None:
        raise NoDaemon(f"no daemon answers at {path}, and healthd {options.verb} needs one; {START}{verb.instead}")
    return answered
