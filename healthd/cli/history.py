"""``healthd history``: from the daemon, or without one from the state database, if its permissions allow it.

``--follow`` polls: each request asks for the lines after the last one it got, so none is lost or printed twice.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from healthd.api.client import ask
from healthd.api.exit_codes import ExitCode
from healthd.api.grammar import MAX_LINES
from healthd.api.timeline import read_trail, trail_data, trail_text, wanted
from healthd.api.wire import Reply, Request
from healthd.cli.output import progress, talk
from healthd.cli.settings import loaded, socket_path
from healthd.core.errors import HealthdError, NoDaemon, UsageError
from healthd.core.json_documents import json_document

_EVERY_S = 1.0


def answer(options: Namespace) -> Reply:
    """The daemon's answer; with ``--config``, or without a daemon, the contents of its database. With ``--follow`` 0,
    at Ctrl-C. Raises NoDaemon where the socket was named."""
    if options.follow:
        try:
            return _followed(options)
        except KeyboardInterrupt:
            return Reply(code=0)
    if not options.config:
        answered = ask(socket_path(options), Request(arguments=options.arguments, colour=options.colour), talk)
        if answered is not None:
            return answered
        if options.socket:
            raise NoDaemon(f"no daemon answers at {options.socket}; leave --socket out to read the database")
    path = _database(options)
    data = _stored(options, path)
    out = json_document(data) if options.json else trail_text(data, verbose=options.verbose, colour=options.colour)
    return Reply(code=0, out=out, err=f"healthd: read from {path}, not from the daemon\n")


def _database(options: Namespace) -> Path:
    return Path(loaded(options, names=()).config.daemon.state_dir) / "healthd.db"


def _stored(options: Namespace, path: Path) -> Mapping[str, Any]:
    return trail_data(read_trail(path, wanted(options, datetime.now(UTC)), last=options.last))


# -- following --------------------------------------------------------------------------------------------------------


def _followed(options: Namespace) -> Reply:
    """Print the lines, then each new one. A daemon that stops answering is waited for: it may only be restarted."""
    if options.after:
        raise UsageError("healthd history: --after is not for --follow, which sets it itself")
    path = socket_path(options)
    first = None if options.config else _by_daemon(path, options)
    if first is None and options.socket:
        raise NoDaemon(f"no daemon answers at {path}; leave --socket out to follow the database")
    database = _database(options) if first is None else None
    data = _read(options, path, database) if first is None else first
    if database is not None:
        talk(f"reading {database}, not the daemon")
    _show(data, options)
    asked, is_silent = copy(options), False
    while True:
        time.sleep(_EVERY_S)
        asked.after, asked.last, asked.since = data["newest"], MAX_LINES, None
        try:
            fresh = _read(asked, path, database)
        except NoDaemon as error:
            if not is_silent:
                talk(f"{error}; it goes on when the daemon answers again")
            is_silent = True
            continue
        is_silent = False
        if fresh["newest"] < data["newest"]:  # another database: its lines have begun again at one
            fresh = {**fresh, "newest": 0}
        elif fresh["events"]:
            _show(fresh, options)
        data = fresh


def _read(options: Namespace, path: str, database: Path | None) -> Mapping[str, Any]:
    """The lines as data, from the daemon or from a database. Raises NoDaemon, and HealthdError with the daemon's own
    words where it refuses."""
    if database is not None:
        return _stored(options, database)
    data = _by_daemon(path, options)
    if data is None:
        raise NoDaemon(f"no daemon answers at {path}")
    return data


def _by_daemon(path: str, options: Namespace) -> dict[str, Any] | None:
    arguments = ["history", "--json", "--last", str(options.last), "--after", str(options.after)]
    arguments += ["--since", f"{max(int(options.since.total_seconds() // 60), 1)}m"] if options.since else []
    arguments += [word for kind in options.kind for word in ("--kind", kind)]
    arguments += [f"--case={options.case}"] if options.case else []
    arguments += ["--verbose"] if options.verbose else []
    answered = ask(path, Request(arguments=tuple(arguments)), talk)
    if answered is None:
        return None
    if answered.code != ExitCode.OK:
        error = UsageError if answered.code == ExitCode.USAGE else HealthdError
        raise error(answered.err.strip().removeprefix("healthd: "))
    data: dict[str, Any] = json.loads(answered.out)
    return data


def _show(data: Mapping[str, Any], options: Namespace) -> None:
    if options.json:
        for event in data["events"]:
            progress(json.dumps(event, default=str))
    else:
        progress(trail_text(data, verbose=options.verbose, colour=options.colour).rstrip("\n"))
