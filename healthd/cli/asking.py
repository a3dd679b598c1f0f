"""The verbs that only the daemon can answer, one row each. Where a question is due, the person is asked first."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass

from healthd.api.client import ask
from healthd.api.wire import Reply, Request
from healthd.cli.output import confirmed, talk
from healthd.cli.settings import socket_path
from healthd.core.errors import HealthdError, UsageError

START = "start it with `systemctl start healthd`, or `healthd run` where there is no unit"


@dataclass(frozen=True, kw_only=True, slots=True)
class DaemonVerb:
    """One verb. ``only``: what no process but the daemon does; ``instead``: what can be done without one.

    ``question``: what the person is asked after a dry run, unless --yes or --dry-run is given; "" for a verb that does
    not ask. ``nothing``: what was not done where the person says no.
    """

    only: str
    instead: str = ""
    question: str = ""
    nothing: str = "nothing was done"


VERBS: Mapping[str, DaemonVerb] = {
    "ack": DaemonVerb(only="keeps what is open"),
    "drill": DaemonVerb(only="can be drilled"),
    "plan": DaemonVerb(only="has a plan", instead=", or ask the policy alone with `healthd policy test CODE`"),
    "quarantine": DaemonVerb(only="takes a node out"),
    "release": DaemonVerb(only="lets a node in that it took out"),
    "relearn": DaemonVerb(
        only="has learned anything", question="Learn anew what is there now?", nothing="nothing was forgotten"
    ),
    "repair": DaemonVerb(only="mends a node", question="Repair this node?"),
}
"""By their names in the grammar, which has their options and help."""


def answer(options: Namespace) -> Reply:
    """The daemon's answer, and before it the person's. A HealthdError where no daemon listens."""
    verb = VERBS[options.verb]
    if not verb.question or options.yes or options.dry_run:
        return _asked(options, verb)
    rehearsed = _asked(options, verb, "--dry-run")
    if rehearsed.code != 0:
        return rehearsed
    said = confirmed(f"{rehearsed.out}{verb.question}")
    if said is None:
        raise UsageError(f"healthd {options.verb}: {verb.nothing}: nobody is there to ask; add --yes or --dry-run")
    return _asked(options, verb, "--yes") if said else Reply(code=0, err=f"healthd: {verb.nothing}\n")


def _asked(options: Namespace, verb: DaemonVerb, *more: str) -> Reply:
    path = socket_path(options)
    answered = ask(path, Request(arguments=(*options.arguments, *more)), talk)
    if answered is None:
        raise HealthdError(f"no daemon answers at {path}, and only it {verb.only}; {START}{verb.instead}")
    return answered
