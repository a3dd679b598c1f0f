"""``healthd relearn``: have the daemon forget what it learned about this instance. Nobody else has learned anything."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Answer
from healthd.cli.asking import once_confirmed

_WORDS = "and only it has learned anything; start it with `healthd run`"


def answer(options: Namespace) -> Answer:
    """The daemon's answer, and before it the person's."""
    return once_confirmed(options, _WORDS, question="Learn anew what is there now?", nothing="nothing was forgotten")
