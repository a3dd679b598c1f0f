"""``healthd case NODE``: the text of a support case about a node, from the fleet's ledger."""

from __future__ import annotations

import json
from argparse import Namespace
from datetime import UTC, datetime

from healthd.api.wire import Reply
from healthd.cli.fleet_memory import DEFAULT_SINCE, ledger_contents
from healthd.core.errors import StoreError
from healthd.ledger.text import case_text, entry_data, selected

SCHEMA = "healthd.case/v1"


def answer(options: Namespace) -> Reply:
    """Exit 0: written; 1: the ledger has nothing of this node; 2: there is no ledger that can be read."""
    now = datetime.now(UTC)
    try:
        contents = ledger_contents(options, now)
    except StoreError as error:
        return Reply(code=2, err=f"healthd: {error}\n")
    since = now - (options.since or DEFAULT_SINCE)
    entries = selected(contents, node=options.node, since=since)
    if not entries:
        message = f"healthd: the ledger has nothing of {options.node} in that time; try a longer --since\n"
        return Reply(code=1, err=message)
    text = case_text(options.node, contents, since)
    if options.json:
        data = {"schema": SCHEMA, "node": options.node, "since": since.isoformat(),
                "entries": [entry_data(each) for each in entries], "text": text}  # fmt: skip
        return Reply(code=0, out=json.dumps(data, indent=2) + "\n")
    return Reply(code=0, out=text)
