"""The status of a node: findings, decisions and steps of the daemon, as data and as text, in one order.

The order is that of an operator who was woken: is the node usable, why not, the next step; which device; the faults and
the plan for each; every check; the timeline. ``healthd status`` and the status page show the same facts. A request runs
no check, waits for no cluster, and changes nothing. The JSON is ``healthd.status/v1``; fields are added to it, never
renamed or removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from healthd import __version__
from healthd.agent.agent import Agent
from healthd.api.devices import label_of, strips
from healthd.api.headline import STEP_TEXT, headline, steps_of
from healthd.api.plan import entry, paused_by, remediation_plan
from healthd.api.plan_cache import PlanCache
from healthd.checklib.tables import instance_profile
from healthd.core.errors import StoreError
from healthd.core.model import Event, Status, Step
from healthd.observe.report import CheckView, as_data, diagnosis_data, printable
from healthd.remediation.decide.remediation import Remediation

SCHEMA = "healthd.status/v1"
_TRAIL = 300
_TIMELINE = 100
_EVENTS = 20
_LINES = 15
_SIGN = {"ok": "o", "warning": "!", "critical": "X", "unknown": "?", "missing": "-"}


def status_data(agent: Agent, board: PlanCache, *, problem: str = "") -> dict[str, Any]:
    """The status in the shape of ``healthd.status/v1``. ``problem``: why the daemon itself does not work, or ""."""
    report = agent.checkup.report(look=False)
    remediation, said = _open_remediation(agent)
    store_problem = agent.monitor.store_problem or said
    history, outcomes = agent.monitor.history, {view.outcome.check: view.outcome for view in report.checks}
    parts = strips(outcomes, history.faults.values(), history.names, _expected(agent))
    considered, no_plan = board.plans(report.diagnoses)
    diagnoses = [{**diagnosis_data(each), "where": label_of(str(each.component), parts)} for each in report.diagnoses]
    checks = [
        {**data, **_more(agent, view)} for data, view in zip(as_data(report)["checks"], report.checks, strict=True)
    ]
    decision = agent.engine.decision.reason if agent.engine else "this agent only observes"
    remediation_data = _remediation_data(agent, remediation, parts)
    trail = _events(agent)
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
        "headline": headline(
            report.verdict,
            remediation=None if remediation is None or remediation.has_ended else remediation_data,
            diagnoses=diagnoses,
            checks=checks,
            decision=decision,
            refusal=agent.engine.decision.refusal if agent.engine else None,
            trouble=[each for each in (problem, store_problem) if each],
        ),
        "notices": [
            *agent.checkup.notices,
            *(said for trouble in agent.troubles if (said := trouble())),
            *(agent.notifier.problems() if agent.notifier else ()),
        ],
        "problem": problem,
        "store_problem": store_problem,
        "opted_out": agent.engine.opted_out() if agent.engine else "",
        "decision": decision,
        "refusal": agent.engine.decision.refusal if agent.engine else None,
        "remediation": remediation_data,
        "steps": steps_of(remediation_data),
        "devices": parts,
        "diagnoses": diagnoses,
        "step_words": dict(STEP_TEXT),
        "plans": [
            entry(each, remediation, paused=remediation_data["at_rest"] if remediation_data else "")
            for each in considered
        ],
        "no_plan": no_plan,
        "checks": checks,
        "timeline": [_event_data(event) for event in _news(trail)[-_TIMELINE:]],
        "events": [f"{_time(event.at)} {event.kind}: {event.text}" for event in trail[-_EVENTS:]],
    }


def status_json(data: Mapping[str, Any]) -> str:
    """One JSON object, two-space indented, ending in a newline."""
    return json.dumps(data, indent=2, default=str) + "\n"


def status_text(data: Mapping[str, Any]) -> str:
    """The same facts for a terminal, in the same order."""
    return "\n".join(printable(line) for line in _lines(data)) + "\n"


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


def _remediation_data(
    agent: Agent, remediation: Remediation | None, parts: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    if remediation is None or agent.engine is None:
        return None
    opted_out, rules = agent.engine.opted_out(), agent.engine.rules
    return {
        "id": remediation.id,
        "opened": remediation.opened.isoformat(),
        "text": remediation.text,
        "step": remediation.step,
        "phase": remediation.phase,
        "steps": list(remediation.steps),
        "attempts": remediation.attempts,
        "why": remediation.why,
        "order": remediation.order,
        "release_order": remediation.release_order,
        "note": remediation.note,
        "code": remediation.code,
        "component": remediation.component,
        "where": label_of(remediation.component, parts),
        "since": remediation.since.isoformat(),
        "then": list(remediation.steps[remediation.index + 1 :]),
        "end": remediation.end,
        "is_out": remediation.hold is not None or remediation.fenced,
        "at_rest": paused_by(remediation, rules, opted_out),
        "words": remediation_plan(remediation, rules, opted_out)["words"],
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


def _event_data(event: Event) -> dict[str, str]:
    return {"at": event.at.isoformat(), "kind": event.kind, "text": event.text}


# ---------------------------------------------------------------------------------------------------------------------
# text


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    said = data["headline"]
    yield f"{data['verdict'].upper()}  {said['words']}"
    for reason in said["why"]:
        yield f"  why     {' '.join(each for each in (reason['code'], reason['where']) if each)}: {reason['words']}"
    yield f"  next    {said['next']}"
    kind, place = data["instance_type"] or "unknown type", data["orchestrator"]
    yield f"{data['node']}  {kind}  mode {data['mode']}  orchestrator {place}  boot {data['boot_id'][:8]}"
    yield from (f"! {notice}" for notice in (*data["notices"], data["problem"], data["store_problem"]) if notice)
    if data["opted_out"]:
        yield f"opted out {data['opted_out']}"
    yield f"decision  {data['decision']}"
    yield from _remediation_lines(data)
    for strip in data["devices"]:
        yield from _strip_lines(strip)
    yield from _plan_lines(data)
    yield from _check_lines(data["checks"])
    yield from (
        f"  {_time(datetime.fromisoformat(e['at']))} {e['kind']}: {e['text']}" for e in data["timeline"][-_LINES:]
    )


def _remediation_lines(data: Mapping[str, Any]) -> Iterator[str]:
    """The remediation, its last note, and its steps."""
    remediation = data["remediation"]
    if remediation is None:
        yield "remediation  none"
        return
    yield f"remediation  {remediation['text'] or remediation['id']} at {remediation['step']}"
    if remediation["note"]:
        yield f"             {remediation['note']}"
    marks = {"done": "[done] ", "now": "[now] ", "todo": ""}
    yield "steps     " + ", ".join(f"{marks[step['state']]}{step['step']}" for step in data["steps"])


def _strip_lines(strip: Mapping[str, Any]) -> Iterator[str]:
    """``GPU  o o o X o o o o``, and a line for each device that is not ok."""
    parts = strip["parts"]
    signs = " ".join(_SIGN[part["state"]] for part in parts)
    healthy = sum(part["state"] == "ok" for part in parts)
    yield f"{strip['title']:<9} {signs}   {healthy} of {len(parts)} healthy"
    for part in parts:
        if part["state"] != "ok":
            yield f"  {part['state']:<9} {strip['title']} {part['label']} {part['name']}: {'; '.join(part['words'])}"
    yield from (f"  node      {note}" for note in strip["notes"])


def _plan_lines(data: Mapping[str, Any]) -> Iterator[str]:
    for plan in data["plans"]:
        yield f"fault     {plan['code']}  {plan['component']}  {plan['severity']}, calls for {plan['remedy']}"
        yield f"  {plan['action']:<9} {plan['words']}"
        if plan["steps"]:
            yield f"  steps     {'; '.join(STEP_TEXT[Step(step)] for step in plan['steps'])}"
    if data["no_plan"]:
        yield f"fault     {data['no_plan']}"


def _check_lines(checks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each check that is not ok, with its age; one for those with the same message; one for the rest."""
    fine = [each for each in checks if each["outcome"] == Status.OK and not each["blind"]]
    absent = [each for each in checks if each["outcome"] == Status.NOT_APPLICABLE]
    by_message: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in checks:
        if each not in fine and each not in absent:
            message = "; ".join(filter(None, [*(found["message"] for found in each["findings"]), each["reason"]]))
            by_message.setdefault((each["outcome"], message), []).append(each)
    for (outcome, message), alike in by_message.items():
        names, age_s = ", ".join(each["name"] for each in alike), max(each["age_s"] for each in alike)
        yield f"check     {names} {'is' if len(alike) == 1 else 'are'} {outcome}, {age_s:.0f} s ago: {message}"
    oldest = max((each["age_s"] for each in fine), default=0.0)
    yield f"checks    {len(fine)} ok, the oldest {oldest:.0f} s ago; {len(absent)} not applicable"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
