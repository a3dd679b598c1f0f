"""``healthd plan``: ask the daemon what it would do. Nobody else knows the cases, the budget and what was tried."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Reply
from healthd.cli.asking import only_the_daemon

_INSTEAD = ", or ask the policy alone with `healthd policy test CODE`"


def answer(options: Namespace) -> Reply:
    """The daemon's answer."""
    return only_the_daemon(options, "has a plan", instead=_INSTEAD)
