"""The first lines of the status: whether the node is fit for a job, why not, and the next step. Pure: data in,
sentences out.

The status page and ``healthd status`` show the same sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from healthd.core.model import REPAIRS, Refusal, Step, Verdict
from healthd.judge.devices import DeviceNames
from healthd.observe.cause_text import for_reading

STEP_TEXT: Mapping[Step, str] = {
    Step.SLOT: "take a budget slot",
    Step.DRAIN: "take the node out of service",
    Step.WAIT_IDLE: "wait until no job runs here",
    Step.COLLECT: "save the evidence",
    Step.RESET: "reset the GPUs",
    Step.REBOOT: "reboot the node",
    Step.REPLACE: "replace the machine",
    Step.STAY: "keep the node out until an operator releases it",
    Step.VERIFY: "verify that the node is healthy",
    Step.RELEASE: "put the node back in service",
}

_BY_VERDICT: Mapping[Verdict, tuple[str, str, str]] = {
    Verdict.OK: ("healthy", "yes", "Yes, this node is fit for jobs."),
    Verdict.WARNING: ("warning", "yes", "Yes, this node is fit for jobs, with a warning."),
    Verdict.CRITICAL: ("critical", "no", "No, this node is not fit for jobs."),
    Verdict.UNKNOWN: ("unknown", "unknown", "Cannot tell whether this node is fit for jobs."),
}
_UNDECIDED = "An unknown takes no node out by itself; each check runs again at its interval."
QUIET = "Nothing: no fault is open; the checks go on."


def headline(
    verdict: Verdict,
    *,
    remediation: Mapping[str, Any] | None,
    causes: Sequence[Mapping[str, Any]],
    names: DeviceNames,
    decision: str,
    refusal: Refusal | None = None,
    trouble: Sequence[str],
) -> dict[str, Any]:
    """``state``: healthy, warning, critical, unknown, repairing or out. ``usable``: yes, no or unknown.

    ``remediation``: the open remediation, as the status has it.
    ``causes``: as ``cause_data`` has them. ``names``: of the node's devices.
    ``trouble``: the problems of healthd itself; they come first in the next step.
    """
    state, usable, message = _BY_VERDICT[verdict]
    if remediation is not None:
        state, message = _of_remediation(remediation)
        usable = "no"
    elif refusal is Refusal.ORPHAN:
        state, usable, message = "out", "no", "No, this node is out by a drain that healthd left without a remediation."
    is_wrong = any(each["severity"] != "unknown" for each in causes)
    following = _next(verdict, remediation, decision, refusal, is_wrong=is_wrong)
    return {
        "state": state,
        "usable": usable,
        "message": message,
        "why": _why(remediation, causes, names),
        "next": for_reading(f"{' '.join(map(_sentence, trouble))} {following}".strip(), causes, names),
    }


def steps_of(remediation: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """The steps of a remediation in their order, each done, now or todo."""
    if remediation is None:
        return []
    names = list(remediation["steps"])
    at = names.index(remediation["step"])
    states = ["done" if place < at else "now" if place == at else "todo" for place in range(len(names))]
    return [
        {"step": name, "message": STEP_TEXT[Step(name)], "state": state}
        for name, state in zip(names, states, strict=True)
    ]


def _of_remediation(remediation: Mapping[str, Any]) -> tuple[str, str]:
    if remediation["end"] == "failed":
        return "out", "No, this node is out: healthd gave up its repair, and an operator is needed."
    if remediation["step"] == Step.STAY:
        return "out", "No, this node is out until an operator releases it."
    if remediation["at_rest"]:
        return "out", f"No, this node is out, and healthd is paused: {remediation['at_rest']}."
    if remediation["approval"]:
        return "out", "No, this node is out, and its repair waits for your approval."
    repairs = any(step in REPAIRS for step in remediation["steps"])
    state = "repairing" if repairs else "out"
    if not remediation["is_out"]:
        return state, "No, healthd is taking this node out."
    return state, f"No, this node is out {'while healthd repairs it' if repairs else 'until its fault is over'}."


def _why(
    remediation: Mapping[str, Any] | None, causes: Sequence[Mapping[str, Any]], names: DeviceNames
) -> list[dict[str, str]]:
    """The causes, the worst first; before them the cause of an open remediation where that is over."""
    reasons = [
        _reason(each["code"], each["where"], "; ".join(each["messages"]), each["next_step"], each["severity"])
        for each in causes
        if not each["optional"]
    ]
    if remediation is not None and not any(each["code"] == remediation["code"] for each in reasons):
        message = f"{names.plain(remediation['command'] or remediation['why'])} (the cause of the drain)"
        reasons.insert(0, _reason(remediation["code"], remediation["where"], message))
    return reasons


def _reason(code: str, where: str, message: str, step: str = "", severity: str = "") -> dict[str, str]:
    return {"code": code, "where": where, "message": message, "next_step": step, "severity": severity}


def _next(
    verdict: Verdict, remediation: Mapping[str, Any] | None, decision: str, refusal: Refusal | None, *, is_wrong: bool
) -> str:
    if remediation is None:
        if refusal is Refusal.OBSERVE:
            out = "To take it out: `healthd quarantine --reason TEXT`."
            return f"healthd does nothing by itself. {_sentence(decision)} {out}"
        if refusal is Refusal.OPTED_OUT:
            return f"Nothing until the opt-out ends. {_sentence(decision)}"
        if verdict is Verdict.OK and refusal not in (Refusal.ORPHAN, Refusal.STUCK):
            return QUIET
        if verdict is Verdict.UNKNOWN:
            return f"{_sentence(decision)} {_UNDECIDED}" if refusal or is_wrong else f"Nothing. {_UNDECIDED}"
        return _sentence(decision)
    if remediation["end"] == "failed":
        return (
            f"{_sentence(remediation['note'] or 'healthd tries no further step')} Fix the node, then `healthd release`."
        )
    if remediation["step"] == Step.STAY:
        return "Nothing until `healthd release`."
    if remediation["at_rest"]:
        return f"Nothing until that changes. Paused at: {STEP_TEXT[Step(remediation['step'])]}."
    now = STEP_TEXT[Step(remediation["step"])] + (f" ({remediation['note']})" if remediation["note"] else "")
    then = [STEP_TEXT[Step(step)] for step in remediation["then"]]
    return _sentence(f"now: {now}") + (" " + _sentence(f"then: {'; '.join(then)}") if then else "")


def _sentence(words: str) -> str:
    """The text with a capital and a full stop."""
    words = words.strip()
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")
