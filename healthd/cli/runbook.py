"""The runbook of a code: whether the node can be used, what healthd does, what the operator does, when it ends.

The part of healthd in each mode is the decision of its own policy about a node in service that has this fault alone:
nothing here states it a second time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any

from msgspec import Struct

from healthd.api.headline import STEP_TEXT
from healthd.checklib.runbooks import runbook_url, steps
from healthd.core.check import Check, CodeForm
from healthd.core.json_documents import json_fields
from healthd.core.model import (
    Action,
    ClearsBy,
    Component,
    Decision,
    Diagnosis,
    Mode,
    Refusal,
    Remedy,
    Severity,
    Step,
    Verdict,
)
from healthd.judge.history import evidence_that_ends
from healthd.observe.report import EXIT_CODE
from healthd.remediation.decide.policy import Readings, Rules, Situation, decide, question
from healthd.remediation.decide.remediation import ACTS
from healthd.remediation.decide.rules import STEPS, Policy
from healthd.remediation.ports import FleetSnapshot, NodeView

SCHEMA = "healthd.explain/v1"
_NODE = "node"
_WIDTH = 110
_COMMAND = re.compile(r"`[^`]+`")
_NO_BREAK = "\u00a0"  # textwrap breaks at ASCII white space alone
_FLEET = 1_000
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_STEP_OF: Mapping[Remedy, Step] = {remedy: step for step, remedy in ACTS.items()}
_EVIDENCE: Mapping[ClearsBy, str] = {
    ClearsBy.LOG_LINE: "a later line of the kernel log that says so",
    ClearsBy.JOB_END: "the end of the job",
    ClearsBy.GPU_RESET: "a GPU reset",
    ClearsBy.DRIVER_RELOAD: "a driver reload",
    ClearsBy.REBOOT: "a reboot",
    ClearsBy.REPLACE: "another machine",
}


class FormRunbook(Struct, frozen=True, kw_only=True):
    """The runbook of one form of a code. ``modes``: what healthd does in each mode."""

    form: CodeForm
    usable: str
    modes: Mapping[Mode, str]
    do: tuple[str, ...]
    ends: str


class CodeRunbook(Struct, frozen=True, kw_only=True):
    """The runbook of a code. ``found_by``: its check, "" for an operator's command. ``url``: its page, or ""."""

    code: str
    found_by: str
    policy: str
    forms: tuple[FormRunbook, ...]
    url: str = ""


def runbook_of(check: Check, forms: tuple[CodeForm, ...], policy: Policy, base: str = "") -> CodeRunbook:
    """The runbook of a code that a check finds. ``base``: where the pages are, "" if nowhere."""
    code = forms[0].code
    return CodeRunbook(
        code=code,
        found_by=check.name,
        policy=policy.name,
        forms=tuple(_form(check, each, policy) for each in forms),
        url=runbook_url(base, code),
    )


def _form(check: Check, form: CodeForm, policy: Policy) -> FormRunbook:
    decisions = {mode: _decided(form, policy, mode) for mode in Mode}
    return FormRunbook(
        form=form,
        usable=_usable(form, takes_out=bool(decisions[Mode.REPAIR].steps)),
        modes={mode: _words(decision) for mode, decision in decisions.items()},
        do=steps(form.code, form.remedy),
        ends=_ends(check, form),
    )


def _decided(form: CodeForm, policy: Policy, mode: Mode) -> Decision:
    """The decision about a node in service, in a fleet that has room, that has this fault and no other, and on which
    every remedy can be carried out."""
    component = Component(kind=form.code.partition(".")[0], id=_NODE)
    diagnosis = Diagnosis(
        code=form.code,
        component=component,
        severity=form.severity,
        remedy=form.remedy,
        reasons=(form.meaning,),
        since=_EPOCH,
        codes=(form.code,),
    )
    asked = question([diagnosis], (), Rules(mode=mode, policy=policy), _EPOCH)
    if isinstance(asked, Decision):
        return asked
    view = NodeView(name=_NODE, in_service=True, flags=frozenset(), hold=None)
    situation = Situation(view=view, snapshot=FleetSnapshot(out=frozenset(), total=_FLEET))
    answer = decide(asked, Readings(situation=situation, repairs=(), cannot=dict.fromkeys(STEPS, "")))
    if not isinstance(answer, Decision):
        raise TypeError(f"the policy wants to know {answer} about a node of which everything is known")
    return answer


def _words(decision: Decision) -> str:
    """A decision as an operator reads it before there is one."""
    out, back = _before_and_after(decision.steps)
    kept = f"{out}; once the fault is over, {back}"
    match decision.action, decision.refusal:
        case Action.HOLD, Refusal.OBSERVE | Refusal.SHADOW:
            return "report it, and take no node out; `healthd plan` shows what it would do"
        case Action.PAGE, _ if decision.steps:
            return f"page an operator, because healthd cannot repair it; {kept}"
        case Action.PAGE, _:
            return "page an operator, and leave the node in service"
        case Action.QUARANTINE, _:
            return kept
        case Action.REPAIR, _:
            later = [STEP_TEXT[_STEP_OF[remedy]] for remedy in decision.ladder[1:]]
            approved = ", each act after `healthd approve`" if "after approval" in decision.reason else ""
            return f"{out}; {back}{approved}. If it comes back: {', then '.join([*later, 'page an operator'])}"
        case _:
            return "report it; no node is taken out for it"


def _before_and_after(steps: Sequence[Step]) -> tuple[str, str]:
    """The steps up to the verification, and those from it on, in words."""
    at = steps.index(Step.VERIFY) if steps else 0
    before, after = ([STEP_TEXT[step] for step in part] for part in (steps[:at], steps[at:]))
    return "; ".join(before), "; ".join(after)


def _usable(form: CodeForm, *, takes_out: bool) -> str:
    """Whether a job may start on the node."""
    match form.severity:
        case Severity.CRITICAL:
            return f"No: `healthd check` exits with {EXIT_CODE[Verdict.CRITICAL]}. A job that runs may fail."
        case Severity.WARNING if takes_out:
            return "Yes, until healthd takes it out; a job that runs goes on."
        case Severity.WARNING:
            return f"Yes, with a warning: `healthd check` exits with {EXIT_CODE[Verdict.WARNING]}."
        case Severity.INFO:
            return "Yes: it is for your information."


def _ends(check: Check, form: CodeForm) -> str:
    """The end of the fault, in a sentence."""
    if form.clears_by is None:
        return f"When {check.name} no longer finds it: `healthd check {check.name}`."
    if form.clears_by is ClearsBy.NOTHING:
        return "At once: it is news, which healthd lists for a day, and not a state."
    evidence = [_EVIDENCE[by] for by in evidence_that_ends(form.clears_by)]
    return f"By evidence, never by age: {', '.join(evidence[:-1])}{' or ' if evidence[1:] else ''}{evidence[-1]}."


# ---------------------------------------------------------------------------------------------------------------------
# as data, and as text


def runbook_data(runbook: CodeRunbook) -> dict[str, Any]:
    """The fields of ``explain --json``."""
    return {
        "schema": SCHEMA,
        **json_fields(runbook, "code", "found_by", "policy", "url"),
        "forms": [
            {
                **json_fields(each.form, "form", "meaning", "severity"),
                "calls_for": each.form.remedy,
                **json_fields(each, "usable", "modes", "do"),
                "clears_by": each.form.clears_by or "",
                "ends": each.ends,
                **json_fields(each.form, "reason", "notes", "source"),
            }
            for each in runbook.forms
        ],
    }


def runbook_text(runbook: CodeRunbook) -> str:
    """The text of ``healthd explain``."""
    plain, *others = runbook.forms
    form = plain.form
    lines = [
        f"{runbook.code}: {form.meaning}",
        f"  {form.severity}, calls for {form.remedy}; found by {runbook.found_by}",
        *(line for text in form.notes for line in _wrapped(text)),
        "",
        "Can I use the node?",
        *_wrapped(plain.usable),
        "",
        f"What healthd does in each mode (policy {runbook.policy})",
        *(line for mode, message in plain.modes.items() for line in _wrapped(message, head=f"{mode:<11} ")),
        "",
        "What you can do",
        *_numbered(plain.do),
        "",
        "When it ends",
        *_wrapped(plain.ends),
        "",
        *(["Why", *_wrapped(form.reason), ""] if form.reason else []),
        "Source",
        *_wrapped(form.source or f"healthd: docs/reference/checks/{runbook.found_by}.md"),
        *(["", "Other forms"] if others else []),
        *(line for each in others for line in _other(each, plain)),
        *(["", f"Page: {runbook.url}"] if runbook.url else []),
    ]
    return "\n".join(lines) + "\n"


def _other(other: FormRunbook, plain: FormRunbook) -> Iterator[str]:
    """A further form, with what differs from the plain one."""
    form = other.form
    yield from _wrapped(f"{form.form}: {form.meaning}. {form.severity}, calls for {form.remedy}")
    if other.modes[Mode.REPAIR] != plain.modes[Mode.REPAIR]:
        yield from _wrapped(f"In mode repair: {other.modes[Mode.REPAIR]}", head="  ")
    if other.do != plain.do:
        yield from (f"  {line}" for line in _numbered(other.do))


def _numbered(steps_: Sequence[str]) -> Iterator[str]:
    if not steps_:
        yield "  No runbook is written for this code: add its row to checks/data/runbooks.csv."
    for number, step in enumerate(steps_, 1):
        yield from _wrapped(step, head=f"{number}. ")


def _wrapped(text: str, head: str = "") -> list[str]:
    """Lines of a paragraph; ``head`` stands before the first, and the others below the text. A command in backquotes
    stays on one line."""
    begin = f"  {head}"
    whole = _COMMAND.sub(lambda found: found[0].replace(" ", _NO_BREAK), text)
    lines = wrap(whole, _WIDTH, initial_indent=begin, subsequent_indent=" " * len(begin), break_on_hyphens=False)
    return [line.replace(_NO_BREAK, " ") for line in lines]
