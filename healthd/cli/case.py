"""``healthd case NODE``: the text of a support case about a node, from the fleet's ledger."""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime

from healthd.api.wire import Reply
from healthd.cli.fleet_memory import DEFAULT_SINCE, ledger_contents
from healthd.core.errors import StoreError
from healthd.ledger.text import case_text, selected


def answer(options: Namespace) -> Reply:
    """Exit 0: written; 1: the ledger has nothing of this node; 2: there is no ledger that can be read."""
    now = datetime.now(UTC)
    try:
        contents = ledger_contents(options, now)
    except StoreError as error:
        return Reply(code=2, err=f"healthd: {error}\n")
    since = now - (options.since or DEFAULT_SINCE)
    if not selected(contents, node=options.node, since=since):
        message = f"healthd: the ledger has nothing of {options.node} in that time; try a longer --since\n"
        return Reply(code=1, err=message)
    return Reply(code=0, out=case_text(options.node, contents, since))
