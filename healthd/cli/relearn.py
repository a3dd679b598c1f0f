"""``healthd relearn``: have the daemon forget what it learned about this instance. Nobody else has learned anything."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.client import ask
from healthd.api.wire import Answer, Request
from healthd.cli.output import confirmed, talk
from healthd.cli.settings import socket_path
from healthd.errors import HealthdError, UsageError


def answer(options: Namespace) -> Answer:
    """The daemon's answer. Without --yes or --dry-run it is asked what it would forget, and then the person is."""
    if options.yes or options.dry_run:
        return _asked(options)
    preview = _asked(options, "--dry-run")
    if preview.code != 0:
        return preview
    said = confirmed(f"{preview.out}Learn anew what is there now?")
    if said is None:
        raise UsageError("healthd relearn: nothing was forgotten: nobody is there to ask; add --yes or --dry-run")
    return _asked(options, "--yes") if said else Answer(code=0, err="healthd: nothing was forgotten\n")


def _asked(options: Namespace, *more: str) -> Answer:
    path = socket_path(options)
    answered = ask(path, Request(arguments=(*options.arguments, *more)), talk)
    if answered is None:
        raise HealthdError(
            f"no daemon answers at {path}, and only it has learned anything; start it with `healthd run`"
        )
    return answered
