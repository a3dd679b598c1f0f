"""``healthd policy``: the rules that choose ladder and mode for each fault, and the result for a given fault."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

from healthd.api.wire import Reply
from healthd.cli.codes import NUMBERED, forms_of, unknown_code
from healthd.cli.settings import loaded
from healthd.config.schema.config import Config
from healthd.core.check import CodeForm
from healthd.core.errors import UsageError
from healthd.core.json_documents import json_document, json_fields
from healthd.core.model import Component, Mode, Remedy
from healthd.remediation.decide.on_job import WAIT, parse
from healthd.remediation.decide.rules import STANDING, Ladder, Policy, Rule
from healthd.remediation.policy_files import as_rule, policy_of, rules_named

SCHEMA, TEST_SCHEMA = "healthd.policy/v1", "healthd.policy_test/v1"
_OPERATOR = "the operator"


def answer(options: Namespace) -> Reply:
    """``show`` prints the rules in their order; ``test`` names the rule that decides about a code, or about a log."""
    config = loaded(options).config
    if options.what == "show":
        if options.args:
            raise UsageError(
                f"healthd policy show: unexpected argument {options.args[0]!r}; did you mean `healthd policy test`?"
            )
        data = shown(config, options.policy or config.policy.use)
        return Reply(code=0, out=json_document(data) if options.json else _shown_text(data))
    if not options.args:
        raise UsageError("healthd policy test: name codes, such as gpu.xid.79 or 79, or log files")
    instance_type = options.instance_type or config.node.instance_type or None
    policy = policy_of(config.policy, instance_type, options.policy)
    data = tested(options.args, policy, config, instance_type)
    return Reply(code=0, out=json_document(data) if options.json else _tested_text(data))


# ---------------------------------------------------------------------------------------------------------------------
# show


def shown(config: Config, use: str) -> dict[str, Any]:
    """Every rule of a policy for any instance type, those of the configuration first."""
    policy_of(config.policy, None, use)  # raises ConfigError for its mistakes
    rules = [*(as_rule(row, site=True) for row in config.policy.rule), *rules_named(use), *STANDING]
    on_job = str(parse(config.policy.on_job))
    return {"schema": SCHEMA, "policy": use, "on_job": on_job, "rules": [_rule_data(rule) for rule in rules]}


def _rule_data(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name or "(the finding's own remedy)",
        "of": "site" if rule.site else "healthd" if rule in STANDING else "shipped",
        **json_fields(rule, "codes", "components", "instance_types", "together_with", "ladder"),
        "on_job": None if rule.on_job is None else str(rule.on_job),
        **json_fields(rule, "notify_owner", "mode", "reason", "source"),
    }


def _shown_text(data: dict[str, Any]) -> str:
    of_jobs = f"; a job that cannot go on: {data['on_job']}" if data["on_job"] != str(WAIT) else ""
    lines = [f"policy {data['policy']}: the first rule that matches decides{of_jobs}", ""]
    for number, rule in enumerate(data["rules"], 1):
        narrowed = [
            f"{word} {', '.join(rule[key])}"
            for key, word in (("components", "on"), ("instance_types", "of"), ("together_with", "together with"))
            if rule[key]
        ]
        ladder = "its own, then larger" if rule["ladder"] is None else ladder_text(rule["ladder"])
        cap = "" if rule["mode"] == Mode.REPAIR else f"; at most {rule['mode']}"
        cap += "" if rule["on_job"] is None else f"; a job that cannot go on: {rule['on_job']}"
        cap += (
            "" if rule["notify_owner"] is None else f"; owners of jobs: {'' if rule['notify_owner'] else 'no '}notices"
        )
        lines += [
            f"{number}. {rule['name']} ({rule['of']})",
            *_wrapped(" ".join([", ".join(rule["codes"]), *narrowed])),
            f"    -> {ladder}{cap}",
            *_wrapped(rule["reason"]),
            *_wrapped(f"Source: {rule['source']}"),
            "",
        ]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------------------
# test


def tested(args: Iterable[str], policy: Policy, config: Config, instance_type: str | None) -> dict[str, Any]:
    """The policy's result for each code, or for each code in a log."""
    verdicts = []
    for name in args:
        if os.path.isfile(name):  # Path.is_file raises for a name that is too long
            verdicts += [{**each, "file": name} for each in _of_log(name, policy, config)]
        else:
            verdicts += [_verdict(variant, policy) for variant in variants(name)]
    return {"schema": TEST_SCHEMA, "policy": policy.name, "instance_type": instance_type, "verdicts": verdicts}


def variants(name: str) -> tuple[CodeForm, ...]:
    """The forms of a code. Raises UsageError, with the nearest code, for one that does not exist."""
    found = forms_of(name) if name not in NUMBERED else None
    if found is None:
        raise unknown_code("healthd policy test", name, "expected a file, or a code that a check reports, got")
    return found[1]


def _verdict(variant: CodeForm, policy: Policy) -> dict[str, Any]:
    """The result for a form of a code that is open alone, and the rules that apply when others are open beside it."""
    component = Component(kind=variant.code.partition(".")[0])
    alone = policy.rule_for(variant.code, component, ())
    beside = [
        {"with": list(rule.together_with), **_result(rule, variant)}
        for rule in policy.rules[: policy.rules.index(alone)]
        if rule.together_with and rule.matches(variant.code, component.kind, rule.together_with)
    ]
    return {
        "code": variant.code,
        "form": variant.form,
        "meaning": variant.meaning,
        "severity": variant.severity,
        "calls_for": variant.remedy,
        **_result(alone, variant),
        "beside": beside,
    }


def _result(rule: Rule, variant: CodeForm) -> dict[str, Any]:
    return {
        "takes_node_out": rule.takes_out(variant),
        "ladder": list(rule.ladder_for(variant)),
        "mode": rule.mode,
        "rule": rule.name,
        "reason": rule.reason,
        "source": rule.source,
    }


def _of_log(name: str, policy: Policy, config: Config) -> list[dict[str, Any]]:
    """One verdict for each form of each code in a log, as the kernel checks judge its lines."""
    from healthd.replay.replay import findings_in

    seen: dict[tuple[str, str, str], dict[str, Any]] = {}
    for finding in findings_in(Path(name), config):
        variant = CodeForm(
            code=finding.code,
            meaning=finding.message,
            severity=finding.severity,
            remedy=finding.remedy,
            clears_by=finding.clears_by,
        )
        verdict = _verdict(variant, policy)
        seen.setdefault((finding.code, finding.severity, finding.remedy), verdict)
    return list(seen.values())


def _tested_text(data: dict[str, Any]) -> str:
    kind = data["instance_type"] or "of unknown type: rules for one instance type do not apply (set --instance-type)"
    lines = [f"policy {data['policy']}, instance {kind}", ""]
    for each in data["verdicts"]:
        form = f", {each['form']}" if each["form"] else ""
        where = f"{each['file']}: " if "file" in each else ""
        lines += [
            f"{where}{each['code']}{form} ({each['severity']}, calls for {each['calls_for']})",
            f"    {each['meaning']}",
            f"    -> {_outcome(each)}",
            *(line for other in each["beside"] for line in _beside_lines(other)),
            "",
        ]
    if not data["verdicts"]:
        lines.append("no finding in these logs")
    return "\n".join(lines).rstrip() + "\n"


def _beside_lines(other: dict[str, Any]) -> Iterator[str]:
    yield f"    with {' or '.join(other['with'])}:"
    yield f"    -> {_outcome(other)}"


def _outcome(verdict: dict[str, Any]) -> str:
    rule = f" [rule {verdict['rule']}]" if verdict["rule"] else ""
    if not verdict["takes_node_out"]:
        return f"stays in service{rule}"
    if not verdict["ladder"]:
        return f"kept out until the fault is over; healthd repairs nothing{rule}"
    cap = "" if verdict["mode"] == Mode.REPAIR else f", at most {verdict['mode']}"
    return f"{ladder_text(verdict['ladder'])}{cap}{rule}"


def ladder_text(ladder: Ladder | list[Remedy]) -> str:
    """``reset_gpu, then reboot_node, then the operator``."""
    if not ladder:
        return "never taken out"
    if Remedy.ASK_HUMAN in ladder:
        return f"kept out for {_OPERATOR}"
    return ", then ".join([*ladder, _OPERATOR])


def _wrapped(text: str) -> list[str]:
    return wrap(text, width=110, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
