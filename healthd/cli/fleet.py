"""``healthd fleet``: the whole cluster from one place, grouped by cause. It needs no daemon, and changes nothing."""

from __future__ import annotations

import os
import socket
import time
from argparse import Namespace
from datetime import UTC, datetime

from healthd.agent.node_facts import runs_slurm
from healthd.api.wire import Reply
from healthd.cli.fleet_memory import WORDS
from healthd.cli.fleet_memory import answer as remembered
from healthd.cli.output import Screen
from healthd.cli.settings import loaded
from healthd.config.schema.config import Config
from healthd.core.errors import BackendError, UsageError
from healthd.fleet.nodes import FleetPicture, in_states
from healthd.fleet.text import SCHEMA, fleet_data, fleet_json, fleet_text, node_data, node_text, why_text


def answer(options: Namespace) -> Reply:
    """Exit 0: every node is usable, or out by another's order; 1: one is not; 2: the cluster could not be read. With
    ``--watch`` 0, at Ctrl-C."""
    if options.node in WORDS:
        if options.watch or options.why or options.state or options.by != "cause":
            raise UsageError(
                f"healthd fleet {options.node}: --watch, --why, --state and --by show the fleet as it is now"
            )
        return remembered(options)
    if options.of_node or options.gpu or options.code or options.since or options.markdown:
        raise UsageError(
            "healthd fleet: --node, --gpu, --code, --since and --markdown need `healthd fleet history` or `report`"
        )
    if options.watch and options.json:
        raise UsageError(
            "healthd fleet: --watch does not work with --json; run `healthd fleet --json` as often as you like"
        )
    if options.node and (options.watch or options.why or options.state or options.by != "cause"):
        raise UsageError("healthd fleet NODE: of the other options only --json works with one node")
    config = loaded(options).config
    if not options.watch:
        return _reply(options, config)
    try:
        return _watched(options, config)
    except KeyboardInterrupt:
        return Reply(code=0)


def _reply(options: Namespace, config: Config) -> Reply:
    try:
        fleet = _read(config, racks=options.by == "rack" or options.json)
    except BackendError as error:
        return Reply(code=2, err=f"healthd: the fleet could not be read: {error}\n")
    if options.node:
        return _of_node(options, fleet)
    nodes = tuple(in_states(fleet.nodes, options.state))
    troubled = any(each.is_trouble for each in nodes)
    if options.json:
        out = fleet_json(fleet_data(fleet, nodes))
    else:
        out = why_text(fleet, nodes) if options.why else fleet_text(fleet, nodes, options.by)
    return Reply(code=int(troubled), out=out)


def _of_node(options: Namespace, fleet: FleetPicture) -> Reply:
    node = next((each for each in fleet.nodes if each.name == options.node), None)
    if node is None:
        import difflib  # only for a mistyped name

        near = difflib.get_close_matches(options.node, [each.name for each in fleet.nodes], n=3)
        meant = f"; did you mean {', '.join(near)}?" if near else "; `healthd fleet` lists all"
        return Reply(code=64, err=f"healthd: the cluster has no node {options.node!r}{meant}\n")
    out = fleet_json({"schema": SCHEMA, **node_data(node)}) if options.json else node_text(fleet, node)
    return Reply(code=int(node.is_trouble), out=out)


def _read(config: Config, *, racks: bool) -> FleetPicture:
    """The fleet of the cluster that this machine belongs to. Raises BackendError, UsageError."""
    if not runs_slurm(config, os.environ):
        raise UsageError("healthd fleet reads a Slurm cluster, and none is found here; set [orchestrator] kind = "
                         '"slurm" and [orchestrator.slurm] conf; on Kubernetes use `kubectl healthd`')  # fmt: skip
    from healthd.fleet.slurm import read_fleet

    host = socket.gethostname().partition(".")[0]
    return read_fleet(config, host, lambda: datetime.now(UTC), racks=racks)


def _watched(options: Namespace, config: Config) -> Reply:
    if not Screen.is_there():
        raise UsageError("healthd fleet --watch needs a terminal; use `healthd fleet` as often as you like")
    with Screen() as screen:
        while True:
            reply = _reply(options, config)
            screen.show(f"every {options.every:g} s; Ctrl-C ends\n{reply.err}{reply.out}")
            time.sleep(options.every)
