"""Asking the daemon on behalf of a verb that only it can answer."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.client import ask
from healthd.api.wire import Answer, Request
from healthd.cli.output import talk
from healthd.cli.settings import socket_path
from healthd.errors import HealthdError


def only_the_daemon(options: Namespace, words: str, *more: str) -> Answer:
    """The daemon's answer to the command line and ``more``; a HealthdError with these words where none listens."""
    path = socket_path(options)
    answered = ask(path, Request(arguments=(*options.arguments, *more)), talk)
    if answered is None:
        raise HealthdError(f"no daemon answers at {path}, {words}")
    return answered
