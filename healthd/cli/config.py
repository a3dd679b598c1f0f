"""``healthd config``: every value and its origin, every mistake in them, or the JSON Schema for editors."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

from healthd.agent.node_facts import ThisNode
from healthd.api.exit_codes import ExitCode
from healthd.api.group import group_number, no_such_group
from healthd.api.wire import Reply
from healthd.checklib.tables import instance_types
from healthd.cli.settings import check_settings, loaded
from healthd.config.json_schema import config_schema_text
from healthd.config.load import Examined, examine
from healthd.config.report import annotated, as_data, shown
from healthd.config.schema.config import Config
from healthd.config.toml_text import Problem
from healthd.config.values import did_you_mean
from healthd.core.errors import ConfigError, UsageError
from healthd.core.json_documents import json_document
from healthd.core.strict_modes import others_may_write
from healthd.remediation.policy_files import code_problems

SCHEMA, VALIDATE_SCHEMA = "healthd.config/v1", "healthd.config_validate/v1"


def answer(options: Namespace) -> Reply:
    """``show`` fails like every verb does; ``validate`` prints the problems as marks on the user's own files.

    ``schema`` reads no configuration: it prints the JSON Schema with which editors check one. ``--here`` also reports
    what would keep the daemon from starting on this machine; without it no machine is read.
    """
    if options.here and options.what != "validate":
        raise UsageError(f"healthd config {options.what}: --here works only with `healthd config validate`")
    if options.what == "schema":
        return Reply(code=0, out=config_schema_text(check_settings()))
    if options.what == "show":
        values = loaded(options)
        text = json_document({"schema": SCHEMA, "values": as_data(values)}) if options.json else shown(values)
        return Reply(code=0, out=text)
    path = Path(options.config) if options.config else None
    who = (lambda config: ThisNode(config, os.environ)) if options.here else None
    examined = examine(path, checks=check_settings(), environ=os.environ, who=who)
    problems = examined.problems or (*_policy_problems(examined), *_provisioner_problems(examined))
    tried = examined.loaded.config if options.here and examined.loaded is not None and not problems else None
    found, warnings = ((), ()) if tried is None else (_found(tried), (*_groups_missing(tried), *_no_textfile(tried)))
    if examined.loaded is not None:
        config = examined.loaded.config
        warnings = (*warnings, *no_repair(config), *short_settle(config), *mistyped_type(config))
    code = ExitCode.CONFIG if problems or found else 0
    if options.json:
        data = {"schema": VALIDATE_SCHEMA, "problems": [*map(str, problems), *found], "warnings": warnings}
        return Reply(code=code, out=json_document(data))
    err = annotated(problems, examined.texts) if problems else "".join(f"healthd: {wrong}\n" for wrong in found)
    err += "".join(f"healthd: warning: {warning}\n" for warning in warnings)
    return Reply(code=code, out="" if code else "the configuration is valid\n", err=err)


def _found(config: Config) -> tuple[str, ...]:
    """The problems that would keep a daemon from starting on this machine."""
    from healthd.daemon.trial import try_out  # heavy: the whole agent

    try:
        try_out(config, os.environ)
    except ConfigError as error:
        return error.problems
    return ()


def no_repair(config: Config) -> tuple[str, ...]:
    """The repairs that a mode asks for, and that this configuration gives nothing for."""
    mode, section = config.remediation.mode, config.provisioner
    if not mode.repairs:
        return ()
    found = []
    if section.kind == "none" or (section.kind == "local" and not section.local.reboot_command):
        how = "local, without provisioner.local.reboot_command" if section.kind == "local" else section.kind
        found.append(
            f"remediation.mode = {mode}, and provisioner.kind = {how}: nothing can reboot or replace this machine, so "
            "healthd resets GPUs and keeps the node out for all else; name the platform, or set a reboot_command"
        )
    if config.orchestrator.kind == "local":
        found.append(
            f"remediation.mode = {mode}, and orchestrator.kind = local: no cluster keeps jobs off the node while it is "
            "repaired; set slurm or kubernetes, or mode = observe"
        )
    return tuple(found)


def short_settle(config: Config) -> tuple[str, ...]:
    """A settle time that ends before a call to Slurm may: nodes may then go out by a reading that is too old."""
    settle_s, deadline_s = config.budget.settle_s, config.orchestrator.slurm.timeout_s
    if config.orchestrator.kind not in ("slurm", "auto") or settle_s >= deadline_s:
        return ()
    warning = (
        f"budget.settle_s = {settle_s:g} is less than orchestrator.slurm.timeout_s = {deadline_s:g}: nodes that fail "
        f"together may go beyond budget.max_out, by readings of before the others' slots; expected {deadline_s:g} or "
        "more, or a shorter deadline"
    )
    return (warning,)


def mistyped_type(config: Config) -> tuple[str, ...]:
    """An instance type that no table has and that is spelt nearly as one that is there."""
    name, known = config.node.instance_type, instance_types()
    if not name or name in known or not (near := did_you_mean(name, known, "")):
        return ()
    return (f"node.instance_type = {name} is not in healthd's table: {near} Else healthd learns what this node has",)


def _groups_missing(config: Config) -> tuple[str, ...]:
    groups = {"group": config.daemon.group, "readers": config.daemon.readers}
    return tuple(no_such_group(each, name) for each, name in groups.items() if name and group_number(name) is None)


def _no_textfile(config: Config) -> tuple[str, ...]:
    """Why no file with the metrics will be written; none where it will, or none is asked for."""
    if not config.metrics.textfile:
        return ()
    folder = Path(config.metrics.textfile).parent
    try:
        why = others_may_write(folder)
    except OSError as error:
        why = f"{folder}: {error.strerror}"
    expected = "expected a folder that is there, and that root alone may write"
    return (f"metrics.textfile: no metrics will be written: {why}; {expected}",) if why else ()


def _policy_problems(examined: Examined) -> tuple[Problem, ...]:
    """Rules about codes that no check reports: the schema cannot find them."""
    if examined.loaded is None:
        return ()
    source = examined.loaded.origin(("policy", "rule")).rpartition(":")[0] or "configuration"
    return code_problems(examined.loaded.config.policy, source, examined.texts.get(source, ""))


def _provisioner_problems(examined: Examined) -> tuple[Problem, ...]:
    """A provisioner that no node of the configured orchestrator can have: its daemons would not start."""
    from healthd.remediation.provisioners.registry import KINDS  # every platform: only this verb asks without a node

    if examined.loaded is None:
        return ()
    config, origin = examined.loaded.config, examined.loaded.origin(("provisioner", "kind"))
    section, kind, given = config.provisioner, KINDS.get(config.provisioner.kind), config.orchestrator.kind
    needed = kind.orchestrator_of(section) if kind is not None else ""
    if not needed or given in ("auto", needed):
        return ()
    source, _, line = origin.rpartition(":")
    how = f' with hyperpod.how = "{section.hyperpod.how}"' if section.kind == "hyperpod" else ""
    problem = Problem(
        source=source or origin,
        line=int(line) if line.isdecimal() else 0,
        key="provisioner.kind",
        wrong=f"{section.kind}{how} asks by {needed.capitalize()}, and orchestrator.kind = {given}",
        advice=f"expected orchestrator.kind = {needed} or auto, or another provisioner",
    )
    return (problem,)
