"""The answer to ``plan``: the decision about each fault, its rule, and what forbids its steps. It never acts."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from healthd.agent.agent import Agent
from healthd.api.wire import Reply
from healthd.core.errors import BackendError, HealthdError
from healthd.core.json_documents import json_document, json_fields
from healthd.core.model import Action, Diagnosis, Mode, Refusal, Step
from healthd.judge.causes import causes_of
from healthd.judge.devices import DeviceNames, device_range, renamed
from healthd.judge.history import acknowledged_text
from healthd.observe.cause_text import cause_data, cause_lines, for_reading
from healthd.observe.report import diagnosis_data
from healthd.observe.text_lines import TextLine, joined
from healthd.remediation.decide.approval import awaited, waiting_words
from healthd.remediation.decide.drive import only_out, planned_on_job
from healthd.remediation.decide.on_job import WAIT, OnJob, stands
from healthd.remediation.decide.policy import Considered, Rules
from healthd.remediation.decide.remediation import End, Remediation
from healthd.remediation.decide.rules import STEPS
from healthd.remediation.engine.engine import Engine

SCHEMA = "healthd.plan/v1"


def plan_answer(agent: Agent, options: Namespace) -> Reply:
    """The plan of an agent that may act. Exit 0: it answered. Raises HealthdError for an agent that only observes."""
    if agent.engine is None or agent.store is None:
        raise HealthdError("this agent only observes and has no plan; start the daemon: `healthd run`")
    remediation, rules = agent.store.open_remediation(), agent.engine.rules
    considered = agent.engine.considered()
    opted_out, unread = _opted_out_now(agent.engine)
    paused = paused_by(remediation, rules, opted_out) if remediation is not None else ""
    answers = rules.policy.answers([each.diagnosis for each in considered])
    plans = [
        entry(
            each,
            remediation,
            _acknowledged(agent, each.diagnosis),
            paused=paused,
            on_job=planned_on_job(answers, each.diagnosis),
        )
        for each in considered
    ]
    data = {
        "schema": SCHEMA,
        "node": agent.machine.name,
        "mode": rules.mode,
        "by_job": rules.by_job,
        "policy": rules.policy.name,
        "orchestrator": agent.orchestrator.kind if agent.orchestrator else None,
        "opted_out": opted_out,
        "opt_out_unread": unread,
        "remediation": None if remediation is None else remediation_plan(remediation, rules, opted_out),
        "operator": _operator(agent.engine),
        "plans": plans,
    }
    if options.json:
        return Reply(code=0, out=json_document(data))
    names, faults = agent.monitor.device_names(), agent.monitor.history.faults.values()
    causes = causes_of([each.diagnosis for each in considered], faults, names)
    shown = [{**cause_data(each), "decisions": decisions(cause_data(each), plans, names)} for each in causes]
    return Reply(
        code=0, out=as_text(data, shown, names, datetime.now(UTC), verbose=options.verbose, colour=options.colour)
    )


def _operator(engine: Engine) -> str:
    """Why an operator is needed, where no fault's plan says so, or ""."""
    decision = engine.decision
    is_wanted = decision.action is Action.PAGE or decision.refusal is Refusal.ORPHAN
    return decision.reason if is_wanted and decision.diagnosis is None else ""


def remediation_plan(remediation: Remediation, rules: Rules, opted_out: str = "") -> dict[str, Any]:
    """The step of an open remediation, and the steps that follow."""
    return {
        **json_fields(remediation, "id", "code", "component", "step", "phase", "since", "attempts"),
        "then": list(remediation.steps[remediation.index + 1 :]),
        **json_fields(remediation, "ladder", "end", "note", "command", "release_command"),
        "approval": _approval(remediation, rules),
        "job": stands(remediation.job) if remediation.job is not None else "",
        "message": _remediation_message(remediation, rules, opted_out),
    }


def _approval(remediation: Remediation, rules: Rules) -> dict[str, Any] | None:
    """The approval that the next act waits for: the act, since when, and what becomes of it without an answer."""
    if (approval := awaited(remediation)) is None:
        return None
    return {
        **json_fields(approval, "remedy", "code", "component", "asked"),
        "message": waiting_words(remediation, rules),
    }


def paused_by(remediation: Remediation, rules: Rules, opted_out: str = "") -> str:
    """Why an open remediation is paused, or "". An operator's command is executed in any mode, but not on a node that
    is opted out."""
    if opted_out := opted_out or rules.opted_out:
        return f"opted out: {opted_out}"
    return "observe mode" if rules.mode is Mode.OBSERVE and not remediation.by_command else ""


def entry(
    each: Considered, remediation: Remediation | None, acknowledged: str = "", *, paused: str = "", on_job: OnJob = WAIT
) -> dict[str, Any]:
    """One diagnosis and the decision about it. During a remediation nothing new is decided.

    ``paused``: why the remediation is paused. ``on_job``: the act on a job that the fault ended.
    """
    decision, rule = each.decision, each.rule
    held = "" if remediation is None else _held_by_remediation(remediation, each.diagnosis, paused)
    return {
        **diagnosis_data(each.diagnosis),
        "action": "hold" if held else decision.action,
        "message": held or decision.reason,
        "steps": [] if held else list(decision.steps),
        "rule": {"name": rule.name, "reason": rule.reason, "source": rule.source, "mode": rule.mode},
        "ladder": list(each.ladder),
        "mode": each.mode,
        "cannot": {str(remedy): why for remedy, why in each.cannot},
        "acknowledged": acknowledged,
        "on_job": str(on_job),
    }


def decisions(cause: Mapping[str, Any], plans: Iterable[Mapping[str, Any]], names: DeviceNames) -> list[dict[str, Any]]:
    """The decisions about a cause: one for all of its devices about which it is the same. ``where``: these devices; ""
    where there is no other decision."""
    by_component = {plan["component"]: plan for plan in plans}
    groups: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for component in cause["components"]:
        if (plan := by_component.get(component)) is None:
            continue
        where, message = names.of(component), names.plain(plan["message"])
        if plan["code"] != cause["code"]:
            message = f"{message} (decided for {plan['code']} there)"
        shown = {
            key: plan[key] for key in ("action", "steps", "rule", "ladder", "mode", "cannot", "acknowledged", "on_job")
        }
        key = json.dumps([shown, renamed(message, where, "@")], default=str)
        groups.setdefault(key, ({**shown, "message": message, "of": where}, []))[1].append(where)
    found = []
    for decision, devices in groups.values():
        all_of_them = device_range(devices)
        message, first = decision.pop("message"), decision.pop("of")
        message = renamed(message, first, all_of_them) if len(devices) > 1 else message
        found.append({"where": all_of_them if len(groups) > 1 else "", "message": message, **decision})
    return found


def as_text(
    data: Mapping[str, Any],
    causes: Sequence[Mapping[str, Any]],
    names: DeviceNames,
    now: datetime,
    *,
    verbose: bool = False,
    colour: bool = False,
) -> str:
    """The plan as text: each cause once, with the decision about it. ``causes``: with their ``decisions``.

    ``verbose``: each component by its own name.
    """
    open_now = data["remediation"]
    remediation = for_reading(open_now["message"], causes, names) if open_now else "none"
    lines = [
        TextLine(f"{data['node']}  mode {data['mode']}  policy {data['policy']}  orchestrator {data['orchestrator']}"),
        TextLine(f"remediation  {remediation}"),
    ]
    if open_now and open_now["job"]:
        lines.append(TextLine(f"on_job       {open_now['job']}"))
    if data["by_job"]:
        lines.append(TextLine(f"by job: {data['by_job']}"))
    if data["opted_out"]:
        lines.append(TextLine(f"opted out: {data['opted_out']}; healthd only observes here", "info"))
    if data["opt_out_unread"]:
        lines.append(TextLine(f"opt-out unknown, the cluster does not answer: {data['opt_out_unread']}", "unknown"))
    if data["operator"]:
        lines.append(TextLine(f"an operator is needed: {for_reading(data['operator'], causes, names)}", "critical"))
    more = {each["code"]: [line for one in each["decisions"] for line in decision_lines(one)] for each in causes}
    if verbose:
        for each in causes:
            more[each["code"]] += each["components"]
    lines += cause_lines(causes, now, more)
    if not (causes or data["operator"]):
        lines.append(TextLine("no fault is open, so there is nothing to do", "ok"))
    return joined(lines, colour=colour)


def decision_lines(decision: Mapping[str, Any]) -> Iterator[str]:
    """A decision: the act, the steps, the rule behind it and what forbids a remedy."""
    rule = decision["rule"]
    where = f"{decision['where']}: " if decision["where"] else ""
    yield f"{decision['action']:<10}  {where}{decision['message']}"
    if decision["steps"]:
        yield f"steps       {', '.join(decision['steps'])}"
    yield f"rule        {rule['name'] or 'its own remedy'}: {rule['reason']}"
    if decision["ladder"]:
        yield f"ladder      {', then '.join(decision['ladder'])}; as far as {decision['mode']}"
    for remedy, why in decision["cannot"].items():
        yield f"cannot      {remedy}: {why}"
    if decision["on_job"] != str(WAIT):
        yield f"on_job      {decision['on_job']}, for the Slurm job that the fault ended, once the node is drained"
    if decision["acknowledged"]:
        yield f"seen        {decision['acknowledged']}"


def _remediation_message(remediation: Remediation, rules: Rules, opted_out: str) -> str:
    """``[c1] gpu.xid.79 on gpu:… at wait_idle since …; then collect, reboot, verify, release``."""
    about = f"{remediation.code} on {remediation.component}"
    message = f"[{remediation.id}] {about} at {remediation.step} since {_time(remediation.since)}"
    if remediation.end is End.FAILED:
        return f"{message}; given up, an operator is needed: {remediation.note}"
    if why := paused_by(remediation, rules, opted_out):
        return f"{message}; paused: {why}"
    if remediation.command:
        message = f"{message}, by command: {remediation.command}"
    if remediation.step is Step.STAY:
        return f"{message}; until `healthd release`"
    if awaited(remediation) is not None:
        message = f"{message}; {waiting_words(remediation, rules)}"
    then: Sequence[str] = remediation.steps[remediation.index + 1 :]
    return f"{message}; then {', '.join(then) if then else 'nothing more'}{_if_it_does_not_help(remediation)}"


def _opted_out_now(engine: Engine) -> tuple[str, str]:
    """(why healthd only observes here, or ""; why the cluster's opt-out is not known, or "")."""
    try:
        return engine.opted_out_now(), ""
    except BackendError as error:
        return engine.opted_out(), str(error)


def _if_it_does_not_help(remediation: Remediation) -> str:
    larger = [remedy for remedy in remediation.ladder[1:] if remedy in STEPS]
    return f"; if that does not help {', then '.join(larger)}" if larger else ""


def _held_by_remediation(remediation: Remediation, diagnosis: Diagnosis, paused: str) -> str:
    if (
        remediation.code in (diagnosis.code, *diagnosis.codes)
        and remediation.component in diagnosis.component.all_names()
    ):
        if remediation.end is End.FAILED:
            return f"remediation {remediation.id} of this fault was given up: {remediation.note}"
        stands = f"is paused at {remediation.step}: {paused}" if paused else f"goes on with {remediation.step}"
        return f"remediation {remediation.id} of this fault {stands}"
    about = f"remediation {remediation.id} is open for {remediation.code} on {remediation.component}"
    if not only_out(remediation):
        return f"{about}; healthd decides about other faults after its end"
    if paused:
        return f"{about}, paused at {remediation.step}: {paused}"
    return f"{about} and only keeps the node out; healthd decides about the open faults next"


def _acknowledged(agent: Agent, diagnosis: Diagnosis) -> str:
    faults = agent.monitor.history.faults.values()
    seen = [each for each in faults if each.component == diagnosis.component and each.acknowledged]
    return "; ".join(f"{each.code} {acknowledged_text(each)}" for each in seen)


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
