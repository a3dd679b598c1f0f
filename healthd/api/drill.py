"""The answer to ``drill``: the report of a drill, as text or as ``healthd.drill/v1``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from healthd.agent.agent import Agent
from healthd.api.wire import Reply
from healthd.core.errors import HealthdError, UsageError
from healthd.core.json_documents import json_document, json_fields
from healthd.drill.chain import (
    EXIT_CODE,
    KINDS,
    TITLE,
    DrillReport,
    DrillRequest,
    Ended,
    Level,
    check_options,
    number_of,
)
from healthd.judge.devices import DeviceNames
from healthd.observe.text_lines import printable

SCHEMA = "healthd.drill/v1"


def drill_answer(agent: Agent, options: Namespace, tick: Callable[[str], None], *, who: str) -> Reply:
    """Play a fault and report. Exit 0: the chain is complete; 1: a link is missing, or the requested message was not
    delivered; 2: refused.

    Raises UsageError, and HealthdError for an agent that only observes.
    """
    if agent.drills is None:
        raise HealthdError("this agent only observes and plays no drill; start the daemon: `healthd run`")
    request, notifier = _request(options, who), agent.notifier if options.notify else None
    if options.notify and notifier is None:
        raise UsageError("healthd drill: --notify has no receiver; configure one in [notify]")
    report = agent.drills.run(request, tick)
    delivered: Mapping[str, str] = {}
    if notifier is not None and report.ended is not Ended.REFUSED:
        tick(f"{TITLE}: sending a message")
        delivered = notifier.drill(_message(report), datetime.now(UTC))
    data = {
        **as_data(report),
        "messages": [{"to": to, "delivered": not why, "why": why} for to, why in delivered.items()],
    }
    shown = as_text(report, agent.monitor.device_names()) + _delivered_text(delivered)
    text = json_document(data) if options.json else shown
    return Reply(code=EXIT_CODE[report.ended] or int(any(delivered.values())), out=text)


def as_data(report: DrillReport) -> dict[str, Any]:
    """The report in the shape of ``healthd.drill/v1``. Fields are added to it, never renamed or removed."""
    return {
        "schema": SCHEMA,
        "drill": True,
        **json_fields(report, "id", "node", "kind", "what"),
        "asked_by": report.who,
        **json_fields(report, "forced", "began"),
        "limit_s": round(report.limit_s, 3),
        "result": report.ended,
        "took_s": round(report.took_s, 4),
        "links": [{"link": each.link, "at_s": round(each.at_s, 4), "message": each.message} for each in report.marks],
        "missing": {"link": report.missing, "why": report.why} if report.why else None,
        "check_runs": [{"at_s": round(at_s, 4), "message": message} for at_s, message in report.check_runs],
        "levels": [_level_data(each) for each in report.levels],
        "plan": {"mode": report.plan_mode, "steps": list(report.plan)},
        "budget": dict(zip(("out", "limit", "nodes"), report.budget, strict=True)) if report.budget else None,
        **json_fields(report, "ends_by", "real", "notes"),
    }


def as_text(report: DrillReport, names: DeviceNames) -> str:
    """The report as text."""
    return "\n".join(printable(names.plain(line)) for line in _lines(report)) + "\n"


# ---------------------------------------------------------------------------------------------------------------------


def _request(options: Namespace, who: str) -> DrillRequest:
    kind, gpu, mount = KINDS[options.kind], options.gpu or "", options.mount or ""
    check_options(kind, gpu=gpu, mount=mount)
    return DrillRequest(
        kind=kind,
        who=who,
        number=number_of(kind, options.number),
        gpu=gpu,
        mount=mount,
        timeout_s=options.timeout,
        forced=options.force,
    )


def _message(report: DrillReport) -> str:
    here = next((f"decision would be: {level.reason}" for level in report.levels if level.is_here), "no decision")
    return f"{TITLE} {report.id}, no real fault and no action: {report.what}; {report.ended}, {here}"


def _delivered_text(delivered: Mapping[str, str]) -> str:
    return "".join(printable(f"message  {to}: {why or 'delivered'}") + "\n" for to, why in delivered.items())


def _lines(report: DrillReport) -> Iterator[str]:
    yield f"{TITLE} {report.id} on {report.node}: {report.what}"
    yield _result(report)
    yield from (f"REAL, not part of this drill: {each}" for each in report.real)
    yield from (f"  {mark.at_s:9.3f} s  {mark.link:<9}  {mark.message}" for mark in report.marks)
    if report.missing is not None:
        yield f"  {'never':>11}  {report.missing:<9}  {report.why}"
    if len(report.check_runs) > 1:
        yield "each check run"
        yield from (f"  {at_s:9.3f} s  {message}" for at_s, message in report.check_runs)
    if report.levels:
        yield "decision by mode (* is the mode of this node)"
    for level in report.levels:
        yield f"{'*' if level.is_here else ' '} {level.mode:<10}  {level.action}: {level.reason}"
        if level.steps:
            yield f"  {'':<10}  steps: {', '.join(level.steps)}"
    yield from _policy_lines(report)
    if report.plan:
        yield f"each step, as it would run now in mode {report.plan_mode}"
        yield from (f"  {line}" for line in report.plan)
    yield from (f"note: {note}" for note in report.notes)


def _result(report: DrillReport) -> str:
    heads = {
        Ended.REFUSED: f"REFUSED, no fault was played: {report.why}",
        Ended.COMPLETE: f"COMPLETE in {report.took_s:.3f} s",
        Ended.INCOMPLETE: f"INCOMPLETE: no {report.missing}",
        Ended.INTERRUPTED: f"INTERRUPTED before the {report.missing}",
    }
    done = (
        ""
        if report.ended is Ended.REFUSED
        else "; healthd drained and repaired nothing, and the node has no fault by it"
    )
    return f"{heads[report.ended]}{done}"


def _policy_lines(report: DrillReport) -> Iterator[str]:
    if not report.levels:
        return
    last = report.levels[-1]
    yield f"rule     {last.rule or 'its own remedy'}: {last.rule_reason}"
    if last.ladder:
        yield f"ladder   {', then '.join(last.ladder)}"
    yield from (f"cannot   {remedy}: {why}" for remedy, why in last.cannot.items())
    if report.budget is not None:
        out, limit, nodes = report.budget
        yield f"budget   {out} of {nodes} nodes are out, at most {limit} may be"
    yield f"ends by  {report.ends_by}"


def _level_data(level: Level) -> dict[str, Any]:
    return {
        "mode": level.mode,
        "here": level.is_here,
        "action": level.action,
        "message": level.reason,
        "steps": list(level.steps),
        "rule": {"name": level.rule, "reason": level.rule_reason},
        **json_fields(level, "ladder", "cannot"),
    }
