"""Asking the daemon on behalf of a verb that only it can answer."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.client import ask
from healthd.api.wire import Reply, Request
from healthd.cli.output import confirmed, talk
from healthd.cli.settings import socket_path
from healthd.core.errors import HealthdError, UsageError

START = "start it with `systemctl start healthd`, or `healthd run` where there is no unit"


def only_the_daemon(options: Namespace, what: str, *more: str, instead: str = "") -> Reply:
    """The daemon's answer to the command line and ``more``. A HealthdError where none listens: ``what`` only it does,
    how it is started, and what can be done ``instead``."""
    path = socket_path(options)
    answered = ask(path, Request(arguments=(*options.arguments, *more)), talk)
    if answered is None:
        raise HealthdError(f"no daemon answers at {path}, and only it {what}; {START}{instead}")
    return answered


def once_confirmed(options: Namespace, what: str, *, question: str, nothing: str) -> Reply:
    """The same. Without --yes or --dry-run the daemon is asked what it would do, and then the person is. ``nothing``
    says what was not done where the person says no."""
    if options.yes or options.dry_run:
        return only_the_daemon(options, what)
    rehearsed = only_the_daemon(options, what, "--dry-run")
    if rehearsed.code != 0:
        return rehearsed
    said = confirmed(f"{rehearsed.out}{question}")
    if said is None:
        raise UsageError(f"healthd {options.verb}: {nothing}: nobody is there to ask; add --yes or --dry-run")
    return only_the_daemon(options, what, "--yes") if said else Reply(code=0, err=f"healthd: {nothing}\n")
