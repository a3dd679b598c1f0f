"""``healthd repair``: have the daemon mend this node, once no job runs there any more."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Answer
from healthd.cli.asking import once_confirmed

_WORDS = "and only it mends a node; start it with `healthd run`"


def answer(options: Namespace) -> Answer:
    """The daemon's answer, and before it the person's."""
    return once_confirmed(options, _WORDS, question="Repair this node?", nothing="nothing was done")
