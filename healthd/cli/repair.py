"""``healthd repair``: have the daemon mend this node, once no job runs there any more."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Reply
from healthd.cli.asking import once_confirmed


def answer(options: Namespace) -> Reply:
    """The daemon's answer, and before it the person's."""
    return once_confirmed(options, "mends a node", question="Repair this node?", nothing="nothing was done")
