"""``healthd fleet``: the whole cluster from one place, grouped by cause. It needs no daemon, and changes nothing."""

from __future__ import annotations

import os
import socket
from argparse import Namespace
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from healthd.agent.node_facts import is_in_pod, runs_slurm
from healthd.api.wire import Reply
from healthd.cli.settings import loaded
from healthd.cli.watch import watched
from healthd.config.schema.config import Config
from healthd.core.errors import BackendError, ExtraMissing, StoreError, UsageError
from healthd.core.json_documents import json_document
from healthd.fleet.nodes import FleetPicture, in_states
from healthd.fleet.text import fleet_data, fleet_text, why_text

INCIDENTS, REMEMBERED = "incidents", ("history", "report")
"""In the place of a node's name: a node of this name is shown by --json without a name."""


def answer(options: Namespace) -> Reply:
    """Exit 0: every node is usable, or out by another's command; 1: one is not; 2: the cluster could not be read. With
    ``--watch`` 0, at Ctrl-C."""
    if options.node in REMEMBERED:
        if options.watch or options.why or options.state or options.by != "cause":
            raise UsageError(
                f"healthd fleet {options.node}: --watch, --why, --state and --by show the fleet as it is now"
            )
        from healthd.cli.fleet_memory import answer as remembered  # heavy: SQLite and the report

        return remembered(options)
    if options.of_node or options.gpu or options.code or options.since or options.markdown:
        raise UsageError(
            "healthd fleet: --node, --gpu, --code, --since and --markdown need `healthd fleet history` or `report`"
        )
    if options.node and (options.watch or options.why or options.state or options.by != "cause"):
        raise UsageError(f"healthd fleet {options.node}: of the other options only --json works with one node")
    config = loaded(options, names=()).config
    return watched(options, lambda: _reply(options, config))


def _reply(options: Namespace, config: Config) -> Reply:
    racks = options.by == "rack" or options.json or options.node == INCIDENTS
    try:
        fleet = _read(config, racks=racks)
    except BackendError as error:
        problem = f"healthd: the fleet could not be read: {error}\n"
        if options.node in ("", INCIDENTS):
            return Reply(code=2, err=problem)
        from healthd.cli.fleet_node import of_unlisted

        return of_unlisted(options, config, problem)
    fleet = _with_known_racks(config, fleet) if racks else fleet
    if options.node == INCIDENTS:
        return _incidents(options, config, fleet)
    if options.node:
        from healthd.cli.fleet_node import of_node

        return of_node(options, config, fleet)
    nodes = tuple(in_states(fleet.nodes, options.state))
    troubled = any(each.is_trouble for each in nodes)
    if options.json:
        out = json_document(fleet_data(fleet, nodes))
    else:
        colour = options.colour
        out = (
            why_text(fleet, nodes, colour=colour)
            if options.why
            else fleet_text(fleet, nodes, options.by, colour=colour)
        )
    return Reply(code=int(troubled), out=out)


def _incidents(options: Namespace, config: Config, fleet: FleetPicture) -> Reply:
    """The incidents that the controller remembers, as they are now; without one, those of what nodes have now. Exit 1
    while one is open."""
    from healthd.controller.dependencies import fence_rules
    from healthd.fleet.fences import planned, with_fences
    from healthd.fleet.incident_memory import kept_memory, rules_of
    from healthd.fleet.incident_text import incidents_data, incidents_text
    from healthd.fleet.incidents import IncidentMemory, observed

    kept = kept_memory(config.controller.state_dir)
    before = kept or IncidentMemory()
    after = with_fences(observed(before, fleet.nodes, fleet.at, rules_of(config.policy)), fleet.fences)
    found = after.incidents
    if options.json:
        out = json_document(incidents_data(found, fleet.at, remembered=kept is not None, fences=fleet.fences))
    else:
        by = (
            "remembered by the controller"
            if kept is not None
            else "of this reading alone: no memory of a controller is readable here"
        )
        plan = planned(after, before, fleet.nodes, fleet.fences, fence_rules(config, fleet.at))
        out = incidents_text(found, fleet.at, by, fleet.fences, plan.held, colour=options.colour)
    return Reply(code=int(any(each.is_open for each in found)), out=out)


def _read(config: Config, *, racks: bool) -> FleetPicture:
    """The fleet of the cluster that this machine belongs to, or that its kubeconfig names. Raises BackendError,
    ConfigError, UsageError."""
    if runs_slurm(config, os.environ):
        from healthd.fleet.slurm import read_fleet

        host = socket.gethostname().partition(".")[0]
        return read_fleet(config, host, _now, racks=racks)
    kubeconfig = _kubeconfig(config, os.environ)
    if kubeconfig is None:
        missing = "healthd fleet reads a Slurm or Kubernetes cluster, and none is found here"
        settings = "[orchestrator.slurm] conf or [orchestrator.kubernetes] kubeconfig"
        raise UsageError(f"{missing}; set [orchestrator] kind, and {settings}")
    try:
        from healthd.fleet.kubernetes import read_fleet as read_kubernetes
    except ImportError as error:
        raise ExtraMissing("healthd fleet of a Kubernetes cluster", error) from error

    return read_kubernetes(config, os.environ, _now, kubeconfig=kubeconfig)


def _with_known_racks(config: Config, fleet: FleetPicture) -> FleetPicture:
    """With the racks of the controller's ledger, where it is readable here, for nodes without one of the cluster's."""
    if not config.ledger.aws_topology:
        return fleet
    from healthd.ledger.database import kept_ledger  # SQLite

    try:
        with kept_ledger(config.controller.state_dir) as ledger:
            return fleet.with_racks({name: each.place for name, each in ledger.machines().items()})
    except StoreError:
        return fleet  # they are missing in the answer, as without a ledger; `healthd fleet history` names the reason


def _kubeconfig(config: Config, environ: Mapping[str, str]) -> str | None:
    """The kubeconfig of the cluster: the configured one, "" for a pod's own credentials, or the operator's, as kubectl
    finds it; None where this is no matter of Kubernetes. Raises UsageError."""
    if config.orchestrator.kind not in ("auto", "kubernetes"):
        return None
    if config.orchestrator.kubernetes.kubeconfig or is_in_pod(environ):
        return config.orchestrator.kubernetes.kubeconfig
    named = environ.get("KUBECONFIG", "")
    if os.pathsep in named:
        found = f"KUBECONFIG={named!r} names several files"
        raise UsageError(f"healthd fleet: {found}, expected one; merge them with `kubectl config view --flatten`")
    path = Path(named) if named else Path(environ.get("HOME", "/"), ".kube", "config")
    return str(path) if named or path.exists() else None


def _now() -> datetime:
    return datetime.now(UTC)
