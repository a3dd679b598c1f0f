"""``healthd ack``: have the daemon keep the node in service although a fault is open."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Reply
from healthd.cli.asking import only_the_daemon


def answer(options: Namespace) -> Reply:
    """The daemon's answer."""
    return only_the_daemon(options, "keeps what is open")
