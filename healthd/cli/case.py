"""``healthd case NODE``: the text of a support case about a node, from the ledger, else from the node itself."""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime

from healthd.api.wire import Reply
from healthd.cli.fleet_memory import DEFAULT_SINCE, ledger_contents
from healthd.cli.settings import loaded
from healthd.core.errors import BackendUnknown, StoreError
from healthd.core.json_documents import json_document
from healthd.fleet.node_case import asked_contents
from healthd.ledger.entries import LedgerContents
from healthd.ledger.text import case_text, entry_data, selected

SCHEMA = "healthd.case/v1"


def answer(options: Namespace) -> Reply:
    """Exit 0: written; 1: neither the ledger nor the node has anything of that time; 2: there is no ledger that can be
    read, and the node does not answer."""
    now, node = datetime.now(UTC), options.node
    since = now - (options.since or DEFAULT_SINCE)
    try:
        contents, code = ledger_contents(options), 1
        missing = f"the ledger has nothing of {node} in that time"
    except StoreError as error:
        contents, code, missing = LedgerContents(), 2, str(error)
    note = ""
    if not selected(contents, node=node, since=since):
        try:
            contents = asked_contents(loaded(options, names=()).config, node, now)
        except BackendUnknown as error:
            return Reply(code=code, err=f"healthd: {missing}; {node} itself: {error}\n")
        note = f"healthd: {missing}; this is what {node} itself remembers\n"
    return _case(options, contents, since, note)


def _case(options: Namespace, contents: LedgerContents, since: datetime, note: str) -> Reply:
    entries = selected(contents, node=options.node, since=since)
    if not entries:
        message = f"healthd: neither the ledger nor {options.node} has anything of that time; try a longer --since\n"
        return Reply(code=1, err=message)
    text = case_text(options.node, contents, since)
    if options.json:
        data = {"schema": SCHEMA, "node": options.node, "since": since.isoformat(),
                "entries": [entry_data(each) for each in entries], "text": text}  # fmt: skip
        return Reply(code=0, out=json_document(data), err=note)
    return Reply(code=0, out=text, err=note)
