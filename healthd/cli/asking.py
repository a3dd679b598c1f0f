"""Asking the daemon on behalf of a verb that only it can answer."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.client import ask
from healthd.api.wire import Answer, Request
from healthd.cli.output import confirmed, talk
from healthd.cli.settings import socket_path
from healthd.errors import HealthdError, UsageError


def only_the_daemon(options: Namespace, words: str, *more: str) -> Answer:
    """The daemon's answer to the command line and ``more``; a HealthdError with these words where none listens."""
    path = socket_path(options)
    answered = ask(path, Request(arguments=(*options.arguments, *more)), talk)
    if answered is None:
        raise HealthdError(f"no daemon answers at {path}, {words}")
    return answered


def once_confirmed(options: Namespace, words: str, *, question: str, nothing: str) -> Answer:
    """The same. Without --yes or --dry-run the daemon is asked what it would do, and then the person is. ``nothing``
    says what was not done where the person says no."""
    if options.yes or options.dry_run:
        return only_the_daemon(options, words)
    rehearsed = only_the_daemon(options, words, "--dry-run")
    if rehearsed.code != 0:
        return rehearsed
    said = confirmed(f"{rehearsed.out}{question}")
    if said is None:
        raise UsageError(f"healthd {options.verb}: {nothing}: nobody is there to ask; add --yes or --dry-run")
    return only_the_daemon(options, words, "--yes") if said else Answer(code=0, err=f"healthd: {nothing}\n")
