"""``healthd history``: from the daemon, or without one from the state database, if its permissions allow it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from healthd.api.client import ask
from healthd.api.timeline import read_trail, trail_json, trail_text
from healthd.api.wire import Reply, Request
from healthd.cli.output import talk
from healthd.cli.settings import loaded, socket_path
from healthd.core.errors import NoDaemon


def answer(options: Namespace) -> Reply:
    """The daemon's answer; with ``--config``, or without a daemon, the contents of its database. Raises NoDaemon
    where the socket was named."""
    if not options.config:
        answered = ask(socket_path(options), Request(arguments=options.arguments), talk)
        if answered is not None:
            return answered
        if options.socket:
            raise NoDaemon(f"no daemon answers at {options.socket}; leave --socket out to read the database")
    path = Path(loaded(options).config.daemon.state_dir) / "healthd.db"
    trail = read_trail(path, last=options.last)
    note = f"healthd: read from {path}, not from the daemon\n"
    return Reply(code=0, out=trail_json(trail) if options.json else trail_text(trail), err=note)
