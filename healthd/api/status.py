"""The status of a node: findings, decisions and steps of the daemon, as data and as text, in one order.

The order is that of an operator who was woken: is the node usable, why not, the next step; which device; the faults and
the plan for each; every check; the timeline. ``healthd status`` and the status page show the same facts. A request runs
no check, waits for no cluster, and changes nothing. The JSON is ``healthd.status/v1``; fields are added to it, never
renamed or removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from healthd import __version__
from healthd.agent.agent import Agent
from healthd.api.devices import strips
from healthd.api.headline import QUIET, STEP_TEXT, headline, steps_of
from healthd.api.plan import decisions, entry, paused_by, remediation_plan
from healthd.api.plan_cache import PlanCache
from healthd.checklib.runbooks import runbook_url
from healthd.checklib.tables import instance_profile
from healthd.core.errors import StoreError
from healthd.core.json_documents import json_fields
from healthd.core.model import Event, Status, Step
from healthd.judge.devices import DeviceNames, folded_texts
from healthd.observe.cause_text import cause_data, cause_lines, finding_lines, for_reading, head_line
from healthd.observe.report import VERDICT_LEVEL, CheckView, as_data, diagnosis_data, ok_line
from healthd.observe.text_lines import Level, TextLine, joined
from healthd.remediation.decide.remediation import Remediation

SCHEMA = "healthd.status/v1"
_TRAIL = 300
_TIMELINE = 100
_EVENTS = 20
_LINES = 8
_LEVEL: Mapping[str, Level] = {"critical": "critical", "missing": "critical", "warning": "warning",
                               "unknown": "unknown", "ok": "ok"}  # fmt: skip
"""Of a device's state, the worst first."""
_SIGN = {"ok": "o", "warning": "!", "critical": "X", "unknown": "?", "missing": "-"}


def status_data(agent: Agent, board: PlanCache, *, problem: str = "") -> dict[str, Any]:
    """The status in the shape of ``healthd.status/v1``. ``problem``: why the daemon itself does not work, or ""."""
    report = agent.checkup.report(look=False)
    remediation, message = _open_remediation(agent)
    store_problem = agent.monitor.store_problem or message
    history, outcomes = agent.monitor.history, {view.outcome.check: view.outcome for view in report.checks}
    parts = strips(outcomes, history.faults.values(), history.names, _expected(agent))
    considered, no_plan = board.plans(report.diagnoses)
    names, causes = report.names, [cause_data(each) for each in report.causes]
    diagnoses = [{**diagnosis_data(each), "where": names.of(each.component)} for each in report.diagnoses]
    checks = [
        {**data, **_more(agent, view)} for data, view in zip(as_data(report)["checks"], report.checks, strict=True)
    ]
    decision = agent.engine.decision.reason if agent.engine else "this agent only observes"
    remediation_data = _remediation_data(agent, remediation, names)
    trail = _events(agent)
    plans = [
        entry(each, remediation, paused=remediation_data["at_rest"] if remediation_data else "") for each in considered
    ]
    head = headline(
        report.verdict,
        remediation=None if remediation is None or remediation.has_ended else remediation_data,
        causes=causes,
        names=names,
        decision=decision,
        refusal=agent.engine.decision.refusal if agent.engine else None,
        trouble=[each for each in (problem, store_problem) if each],
    )
    for reason in head["why"]:
        reason["runbook"] = runbook_url(agent.config.notify.runbooks, reason["code"])
    return {
        "schema": SCHEMA,
        "node": agent.machine.name,
        "version": __version__,
        "instance_type": report.instance_type,
        "boot_id": report.boot_id,
        "generated_at": report.generated_at.isoformat(),
        "mode": agent.mode,
        "orchestrator": agent.orchestrator.kind if agent.orchestrator else None,
        "verdict": report.verdict,
        "headline": head,
        "notices": [
            *agent.checkup.notices,
            *(message for trouble in agent.troubles if (message := trouble())),
            *((*agent.notifier.problems(), *agent.notifier.held) if agent.notifier else ()),
        ],
        "problem": problem,
        "store_problem": store_problem,
        "opted_out": agent.engine.opted_out() if agent.engine else "",
        "decision": decision,
        "refusal": agent.engine.decision.refusal if agent.engine else None,
        "remediation": remediation_data,
        "steps": steps_of(remediation_data),
        "devices": parts,
        "causes": [{**each, "decisions": decisions(each, plans, names)} for each in causes],
        "diagnoses": diagnoses,
        "step_text": dict(STEP_TEXT),
        "plans": plans,
        "no_plan": no_plan,
        "checks": checks,
        "timeline": _timeline(_news(trail), names)[-_TIMELINE:],
        "events": [f"{_time(event.at)} {event.kind}: {event.text}" for event in trail[-_EVENTS:]],
    }


def status_text(data: Mapping[str, Any], *, verbose: bool = False, colour: bool = False) -> str:
    """The same facts for a terminal, in the same order. ``verbose``: each finding by itself, and every check."""
    return joined(_lines(data, verbose=verbose), colour=colour)


# ---------------------------------------------------------------------------------------------------------------------
# data


def _expected(agent: Agent) -> dict[str, int | None]:
    """The expected number of each kind of device: as configured, as learned on this instance, or by its type."""
    profile = instance_profile(agent.machine.instance_type)
    usual = {"gpu": profile.gpus, "efa": profile.efa_usual} if profile else {}
    expected: dict[str, int | None] = {}
    for kind, check, reading in (("gpu", "gpu.count", "gpu_pci_count"), ("efa", "efa.devices", "efa_device_count")):
        configured = getattr(agent.config.checks[check].settings, "expected", None)
        learned = agent.monitor.history.learned.get(("node", reading))
        expected[kind] = usual.get(kind) if learned is None else int(learned.value)
        if configured is not None:
            expected[kind] = configured
    return expected


def _more(agent: Agent, view: CheckView) -> dict[str, Any]:
    """The fields of a check beside those of ``healthd.verdict/v1``. ``blind``: an unknown that counts."""
    check = agent.checkup.checks[view.outcome.check]
    return {
        "title": check.title,
        "interval_s": agent.checkup.interval_s(view.outcome.check) if check.on == "interval" else None,
        "optional": view.outcome.optional,
        "blind": view.outcome.counts_as_unknown,
    }


def _remediation_data(agent: Agent, remediation: Remediation | None, names: DeviceNames) -> dict[str, Any] | None:
    if remediation is None or agent.engine is None:
        return None
    opted_out, rules = agent.engine.opted_out(), agent.engine.rules
    planned = remediation_plan(remediation, rules, opted_out)
    return {
        **json_fields(remediation, "id", "opened", "text", "step", "phase", "steps", "attempts", "why", "command"),
        **json_fields(remediation, "release_command", "note", "evidence", "code", "component"),
        "where": names.of(remediation.component),
        **{name: planned[name] for name in ("since", "then", "end", "approval", "message")},
        "is_out": remediation.hold is not None or remediation.fenced,
        "at_rest": paused_by(remediation, rules, opted_out),
    }


def _open_remediation(agent: Agent) -> tuple[Remediation | None, str]:
    try:
        return (agent.store.open_remediation() if agent.store else None), ""
    except StoreError as error:
        return None, str(error)


def _events(agent: Agent) -> tuple[Event, ...]:
    try:
        return agent.store.events(last=_TRAIL) if agent.store else ()
    except StoreError:
        return ()  # store_problem has the error


def _news(events: Sequence[Event]) -> list[Event]:
    """The events for the timeline: without those of a check that is ok and was ok before."""
    news, troubled = [], set[str]()
    for event in events:
        name, _, state = event.text.partition(" is ")
        if event.kind == "check" and state.split(":")[0] in (Status.OK, Status.NOT_APPLICABLE):
            if name not in troubled:
                continue
            troubled.discard(name)
        elif event.kind == "check":
            troubled.add(name)
        news.append(event)
    return news


def _timeline(events: Sequence[Event], names: DeviceNames) -> list[dict[str, str]]:
    """The events in their order; neighbours that differ in their device alone are one, at the time of the last."""
    found: list[dict[str, str]] = []
    for kind, group in groupby(events, key=lambda event: event.kind):
        alike = list(group)
        reported = [(each.text, max(each.members)) for each in folded_texts(names.plain(event.text) for event in alike)]
        found += [
            {"at": alike[last].at.isoformat(), "kind": kind, "text": text}
            for text, last in sorted(reported, key=lambda each: each[1])
        ]
    return found


# ---------------------------------------------------------------------------------------------------------------------
# text


def _lines(data: Mapping[str, Any], *, verbose: bool) -> Iterator[TextLine]:
    message, level = data["headline"], VERDICT_LEVEL[data["verdict"]]
    facts = (data["instance_type"] or "unknown type", data["orchestrator"], data["mode"], f"healthd {data['version']}")
    yield head_line(data["node"], data["verdict"], message["message"], facts, level)
    yield TextLine(f"  next  {message['next']}")
    if message["why"] and not message["why"][0]["severity"]:
        why = message["why"][0]
        yield TextLine(f"  why   {' '.join(filter(None, (why['code'], why['where'])))}: {why['message']}")
    more = {each["code"]: list(_decision_lines(each)) for each in data["causes"]}
    if verbose:
        for code, shown in more.items():
            shown.extend(finding_lines(code, data["checks"]))
    yield from cause_lines(data["causes"], datetime.fromisoformat(data["generated_at"]), more)
    yield from (
        TextLine(f"! {notice}", "warning")
        for notice in (*data["notices"], data["problem"], data["store_problem"], data["no_plan"])
        if notice
    )
    if data["opted_out"]:
        yield TextLine(f"opted out {data['opted_out']}")
    yield from (TextLine(_named(line, data)) for line in _remediation_lines(data))
    for strip in data["devices"]:
        yield from _strip_lines(strip)
    yield from _check_lines(data["checks"], verbose=verbose)
    yield from (
        TextLine(f"  {_time(datetime.fromisoformat(e['at']))} {e['kind']}: {e['text']}")
        for e in data["timeline"][-_LINES:]
    )


def _remediation_lines(data: Mapping[str, Any]) -> Iterator[str]:
    """The remediation, its last note, and its steps; without one, the decision."""
    remediation = data["remediation"]
    if remediation is None:
        following = data["headline"]["next"]
        if following != QUIET and _named(data["decision"], data)[1:] not in following:
            yield f"decision  {data['decision']}"
        return
    yield f"remediation  {remediation['text'] or remediation['id']} at {remediation['step']}"
    if remediation["note"]:
        yield f"             {remediation['note']}"
    if remediation["evidence"]:
        yield f"             evidence {remediation['evidence']}"
    marks = {"done": "[done] ", "now": "[now] ", "todo": ""}
    yield "steps     " + ", ".join(f"{marks[step['state']]}{step['step']}" for step in data["steps"])


def _named(text: str, data: Mapping[str, Any]) -> str:
    """The text with the operator's names of the components that have a fault, or a remediation."""
    parts = [*data["diagnoses"], *([data["remediation"]] if data["remediation"] else [])]
    return for_reading(text, data["causes"], DeviceNames({each["component"]: each["where"] for each in parts}))


def _strip_lines(strip: Mapping[str, Any]) -> Iterator[TextLine]:
    """``GPU  o o o X o o o o``, and a line for those without a finding that are not ok."""
    parts = strip["parts"]
    signs = " ".join(_SIGN[part["state"]] for part in parts)
    yield TextLine(f"{strip['title']:<9} {signs}   {strip['summary']}", _worst(parts))
    for gap in strip["undecided"]:
        yield TextLine(f"  {gap['state']:<9} {gap['where']}: {gap['message']}", _LEVEL[gap["state"]])
    if strip["as_of"]:
        yield TextLine(f"  {strip['as_of']}")


def _worst(parts: Sequence[Mapping[str, Any]]) -> Level:
    states = {part["state"] for part in parts}
    return next((level for state, level in _LEVEL.items() if state in states), "")


def _decision_lines(cause: Mapping[str, Any]) -> Iterator[str]:
    """The decisions about a cause, and their steps. The rules behind them are in ``healthd plan``."""
    for each in cause["decisions"]:
        where = f"{each['where']}: " if each["where"] else ""
        yield f"{each['action']}: {where}{each['message']}"
        if each["steps"]:
            yield f"steps: {'; '.join(STEP_TEXT[Step(step)] for step in each['steps'])}"


def _check_lines(checks: Sequence[Mapping[str, Any]], *, verbose: bool) -> Iterator[TextLine]:
    """How many checks are ok and how many do not apply; each of them, where that is wanted."""
    fine = [each for each in checks if each["outcome"] == Status.OK and not each["blind"]]
    absent = [each for each in checks if each["outcome"] == Status.NOT_APPLICABLE]
    oldest = max((each["age_s"] for each in fine), default=0.0)
    yield ok_line(len(fine), len(absent), *([f"the oldest {oldest:.0f} s ago"] if fine else []))
    if verbose:
        yield from (TextLine(f"     {each['name']}, {each['age_s']:.0f} s ago", "ok") for each in fine)
        yield from (TextLine(f"  -- {each['name']}: {each['reason']}") for each in absent)


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
