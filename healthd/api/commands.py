"""The operator's commands to the daemon through its socket. The server has already decided that the user may act.

Every command has a dry run, and the audit trail keeps each with its user and reason.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from healthd.agent.agent import Agent
from healthd.api.exit_codes import ExitCode
from healthd.api.wire import Reply
from healthd.config.values import did_you_mean
from healthd.core.check import Learned
from healthd.core.errors import HealthdError, StoreError, UsageError
from healthd.core.json_documents import json_document
from healthd.judge.history import Fault, acknowledged_text, faults_named
from healthd.observe.text_lines import printable
from healthd.remediation.decide.commands import REMEDIES, Command, CommandOutcome, Verb

SCHEMA = "healthd.command/v1"


def relearn_answer(agent: Agent, options: Namespace, *, who: str) -> Reply:
    """Make checks forget what they have learned, and run them at once; or show what they would forget. Exit 0: done."""
    checks = _learning(options.names, agent)
    if not options.yes:
        learned = agent.monitor.learned(checks)
    else:
        learned = agent.monitor.relearn(checks, datetime.now(UTC), f"{options.reason} ({who})")
        for name in checks:
            if agent.checkup.checks[name].on == "interval":
                agent.checkup.start(name)
    if options.json:
        seen = [
            {"component": where, "reading": reading, "value": best.value, "since": best.since.isoformat()}
            for (where, reading), best in learned.items()
        ]
        return _json({**_head(agent, options, dry_run=not options.yes), "done": True, "learned": seen})
    word = "forgotten" if options.yes else "would be forgotten"
    names = agent.monitor.device_names()
    lines = [
        f"{word}: {reading} {best.value:g} of {names.of(where)}, since {best.since:%Y-%m-%d %H:%M:%S} UTC"
        for (where, reading), best in learned.items()
    ]
    return Reply(code=0, out="\n".join(lines or [f"nothing {word}: no check has learned anything yet"]) + "\n")


def ack_answer(agent: Agent, options: Namespace, *, who: str) -> Reply:
    """Acknowledge open faults for a time, so that the node stays in service, or end that; or only name them. Exit 0:
    done."""
    faults, now = _faults(options.fault, agent), datetime.now(UTC)
    if options.end and not (faults := tuple(each for each in faults if each.acknowledged)):
        raise UsageError(f"healthd ack --end: {options.fault} is not acknowledged here")
    until = now if options.end else now + options.length
    if not options.dry_run:
        agent.monitor.acknowledge_until([each.key for each in faults], until, now, f"{options.reason} ({who})")
    unwritten = "" if options.dry_run else agent.monitor.store_problem
    err = f"healthd: done, but a restart loses it until the disk can be written: {unwritten}\n"
    if options.json:
        seen = [
            {"code": each.code, "component": str(each.component), "was": acknowledged_text(each)} for each in faults
        ]
        data = {"done": True, "until": until.isoformat(), "faults": seen, "problem": unwritten}
        return replace(_json({**_head(agent, options, dry_run=options.dry_run), **data}), err=err if unwritten else "")
    done, would, end = "acknowledged", "would be acknowledged", f" until {until:%Y-%m-%d %H:%M:%S} UTC"
    if options.end:
        done, would, end = "counts again", "would count again", ""
    word = would if options.dry_run else done
    names = agent.monitor.device_names()
    lines = [f"{word}: {each.code} on {names.of(each.component)}{end}{_was(each)}" for each in faults]
    return Reply(code=0, out="\n".join(lines) + "\n", err=err if unwritten else "")


def command_answer(agent: Agent, options: Namespace, *, who: str) -> Reply:
    """Execute a command in the engine, or show its steps. Exit 0: done; 1: refused, and why.

    A repair without --yes is a dry run. Raises HealthdError for an agent that only observes, and StoreError for one
    whose state does not last: its remediation would be forgotten, with what it has done.
    """
    if agent.engine is None:
        raise HealthdError("this agent only observes and executes no command; start the daemon: `healthd run`")
    if agent.monitor.unkept:
        raise StoreError(agent.monitor.unkept)
    command = _command(options, who)
    name, now, names = f"healthd {command.verb}", datetime.now(UTC), agent.monitor.device_names()
    if options.dry_run or not getattr(options, "yes", True):
        done = agent.engine.rehearse(command, now)
        if options.json:
            return _as_json(agent, command, done, dry_run=True)
        lines = [f"would {command.verb}: {done.message}", *(f"  {line}" for line in done.lines)]
        if not done.lines:
            lines = [done.message] if done.done else []
        why = done.refusal if done.lines else printable(names.plain(done.message))
        against = "" if done.done else f"{name}: would be refused: {why}\n"
        out = "".join(f"{printable(names.plain(line))}\n" for line in lines)
        return Reply(code=0, out=out) if done.done else Reply(code=ExitCode.NOT_OK, out=out, err=against)
    done = agent.engine.execute(command, now)
    agent.changed()
    if options.json:
        return _as_json(agent, command, done, dry_run=False)
    if not done.done:
        return Reply(code=ExitCode.NOT_OK, err=f"{name}: refused: {printable(names.plain(done.message))}\n")
    return Reply(code=0, out=f"{printable(names.plain(done.message))}\n")


def _as_json(agent: Agent, command: Command, done: CommandOutcome, *, dry_run: bool) -> Reply:
    """The outcome for programs, refused or not. ``steps``: of a dry run, what each would do."""
    data = {
        "schema": SCHEMA,
        "node": agent.machine.name,
        "command": command.verb,
        "target": command.target,
        "dry_run": dry_run,
        "done": done.done,
        "refusal": done.refusal,
        "message": done.message,
        "steps": list(done.lines),
    }
    return _json(data, code=0 if done.done else ExitCode.NOT_OK)


def _head(agent: Agent, options: Namespace, *, dry_run: bool) -> dict[str, Any]:
    """The beginning of the outcome of a command to the judgement."""
    return {"schema": SCHEMA, "node": agent.machine.name, "command": options.verb, "dry_run": dry_run}


def _json(data: Mapping[str, Any], *, code: int = 0) -> Reply:
    return Reply(code=code, out=json_document(data))


def _command(options: Namespace, who: str) -> Command:
    step, forced = getattr(options, "step", None), getattr(options, "force", False)
    target, undoes = getattr(options, "target", ""), options.verb == Verb.UNDO
    if forced and not options.reason:
        message = "--force acknowledges all open faults; add --reason TEXT"
        raise UsageError(f"healthd release: {message}")
    remedy = REMEDIES[step] if step else None
    return Command(
        verb=Verb(options.verb),
        who=who,
        why=options.reason or "",
        remedy=remedy,
        forced=forced or undoes,
        target=target,
    )


def _was(fault: Fault) -> str:
    return f" (it was {acknowledged_text(fault)})" if fault.acknowledged else ""


def _faults(wanted: str, agent: Agent) -> Sequence[Fault]:
    """The open faults of that name; a device also by the name that operators use. Raises UsageError with the open
    faults, or the nearest code."""
    history, names = agent.monitor.history, agent.monitor.device_names()
    code, _, where = wanted.partition("@")
    of_the_code = faults_named(history, code)
    found = faults_named(history, wanted) or tuple(each for each in of_the_code if names.of(each.component) == where)
    if found:
        return found
    if places := [names.of(each.component) for each in of_the_code]:
        raise UsageError(f"healthd ack: {code} is open, but not on {where!r}; expected one of: {', '.join(places)}")
    now_open = sorted({each.code for each in history.faults.values()})
    listed = f"open here: {', '.join(now_open) or 'nothing'}"
    exists = {each.code for check in agent.checkup.checks.values() for each in check.codes}
    if code in exists:
        raise UsageError(f"healthd ack: {code} is not open here, so there is nothing to acknowledge; {listed}")
    hint = did_you_mean(code, [*now_open, *sorted(exists)], listed)
    raise UsageError(f"healthd ack: no open fault is named {code!r}; {hint}")


def _learning(names: Sequence[str], agent: Agent) -> Sequence[str]:
    """These checks, or all that learn. Raises UsageError for a check that does not learn."""
    checks = agent.checkup.checks.values()
    able = [check.name for check in checks if any(isinstance(limit, Learned) for limit in check.limits)]
    for name in names:
        if name not in able:
            hint = did_you_mean(name, able, f"checks that learn here: {', '.join(able) or 'none'}")
            raise UsageError(f"healthd relearn: {name!r} is not a check that learns here; {hint}")
    return names or able
