"""``healthd run``: the daemon."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Answer
from healthd.cli.settings import loaded


def answer(options: Namespace) -> Answer:
    """Run until a signal ends it. Exit 0 after SIGTERM or SIGINT; SIGHUP takes the configuration anew."""
    values = loaded(options)
    from healthd.daemon import serve  # heavy: structlog, APScheduler

    return Answer(code=serve(values.config, values.notices, load=lambda: loaded(options)))
