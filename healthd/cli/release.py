"""``healthd release``: have the daemon let this node in again."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Reply
from healthd.cli.asking import only_the_daemon


def answer(options: Namespace) -> Reply:
    """The daemon's answer."""
    return only_the_daemon(options, "lets a node in that it took out")
