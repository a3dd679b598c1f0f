"""``healthd fleet NODE``: the cluster's part, then the node's own answer, read on demand, and its past.

A node that does not answer, or that has its HTTP off, hides nothing of the cluster's part and changes no exit code.
"""

from __future__ import annotations

import difflib
import os
from argparse import Namespace
from datetime import UTC, datetime

from healthd.agent.node_facts import ThisNode
from healthd.api.exit_codes import ExitCode
from healthd.api.wire import Reply
from healthd.config.schema.config import Config
from healthd.core.errors import StoreError
from healthd.core.json_documents import json_document
from healthd.fleet.asking import ask_here, ask_node
from healthd.fleet.node_detail import NodeDetail
from healthd.fleet.nodes import FleetPicture
from healthd.fleet.text import SCHEMA, node_data, node_text
from healthd.ledger.database import kept_ledger
from healthd.ledger.entries import LedgerEntry

_LINES = "10"


def of_node(options: Namespace, config: Config, fleet: FleetPicture) -> Reply:
    """Exit 0: the node is usable, or out by another's command; 1: it is not; 64: the cluster has no such node."""
    node = next((each for each in fleet.nodes if each.name == options.node), None)
    if node is None:
        near = difflib.get_close_matches(options.node, [each.name for each in fleet.nodes], n=3)
        meant = f"; did you mean {', '.join(near)}?" if near else "; `healthd fleet` lists all"
        return Reply(code=ExitCode.USAGE, err=f"healthd: the cluster has no node {options.node!r}{meant}\n")
    detail = _detail(config, node.name, is_there=not node.listed.asleep)
    if options.json:
        out = json_document({"schema": SCHEMA, **node_data(node), **detail.data})
    else:
        out = node_text(fleet, node, colour=options.colour) + detail.text
    return Reply(code=int(node.is_trouble), out=out)


def of_unlisted(options: Namespace, config: Config, problem: str) -> Reply:
    """The node's own answer while the cluster cannot be read. Exit 2: so its state is not known."""
    detail = _detail(config, options.node, is_there=True)
    out = json_document({"schema": SCHEMA, "name": options.node, "state": None, **detail.data})
    return Reply(code=2, out=out if options.json else f"{options.node}\n{detail.text}", err=problem)


def _detail(config: Config, node: str, *, is_there: bool) -> NodeDetail:
    """``is_there``: whether the name has a machine."""
    answer = history = None
    if is_there and (node,) == ThisNode(config, os.environ).host():
        socket = config.daemon.socket
        answer = ask_here(socket, node, "check", "--json")
        history = ask_here(socket, node, "history", "--json", "--last", _LINES)
    elif is_there:
        answer = ask_node(config, node, "/verdict")
        history = None if answer.problem else ask_node(config, node, "/history")
    return NodeDetail(now=datetime.now(UTC), answer=answer, history=history, past=_past(config, node))


def _past(config: Config, node: str) -> tuple[LedgerEntry, ...]:
    """The node's entries of the controller's ledger, where it is readable here."""
    try:
        with kept_ledger(config.controller.state_dir) as ledger:
            return ledger.entries_of(node)
    except StoreError:
        return ()  # as without a ledger; `healthd fleet history` names the reason
