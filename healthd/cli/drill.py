"""``healthd drill``: have the daemon play a fault that is not there, and see what it would make of it."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.drill import kinds_text
from healthd.api.wire import Reply
from healthd.cli.asking import only_the_daemon


def answer(options: Namespace) -> Reply:
    """The daemon's report, or what can be played."""
    if options.list:
        return Reply(code=0, out=kinds_text())
    return only_the_daemon(options, "and only a daemon that runs can be drilled; start it with `healthd run`")
