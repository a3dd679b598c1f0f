"""``healthd relearn``: have the daemon forget what it learned about this instance. Nobody else has learned anything."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Answer
from healthd.cli.asking import only_the_daemon
from healthd.cli.output import confirmed
from healthd.errors import UsageError


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
    return only_the_daemon(options, "and only it has learned anything; start it with `healthd run`", *more)
