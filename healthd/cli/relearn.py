"""``healthd relearn``: have the daemon forget what it learned about this instance. Nobody else has learned anything."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Reply
from healthd.cli.asking import once_confirmed


def answer(options: Namespace) -> Reply:
    """The daemon's answer, and before it the person's."""
    return once_confirmed(
        options, "has learned anything", question="Learn anew what is there now?", nothing="nothing was forgotten"
    )
