"""``healthd repair``: have the daemon mend this node, once no job runs there any more."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Answer
from healthd.cli.asking import only_the_daemon
from healthd.cli.output import confirmed
from healthd.errors import UsageError


def answer(options: Namespace) -> Answer:
    """The daemon's answer. Without --yes or --dry-run it is asked what it would do, and then the person is."""
    if options.yes or options.dry_run:
        return _asked(options)
    rehearsed = _asked(options, "--dry-run")
    if rehearsed.code != 0:
        return rehearsed
    said = confirmed(f"{rehearsed.out}Repair this node?")
    if said is None:
        raise UsageError("healthd repair: nothing was done: nobody is there to ask; add --yes or --dry-run")
    return _asked(options, "--yes") if said else Answer(code=0, err="healthd: nothing was done\n")


def _asked(options: Namespace, *more: str) -> Answer:
    return only_the_daemon(options, "and only it mends a node; start it with `healthd run`", *more)
