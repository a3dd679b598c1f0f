"""``healthd policy``: the rules that choose ladder and mode for each fault, and the result for a given fault."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from healthd.api.wire import Reply
from healthd.checklib.xids import XidCase, XidRow, nvlink5_rules, sxid_rows, xid_cases, xid_number, xid_row
from healthd.cli.settings import loaded
from healthd.config.schema.config import Config
from healthd.config.values import close_match
from healthd.core.check import discover
from healthd.core.errors import UsageError
from healthd.core.model import Component, Mode, Remedy, Severity
from healthd.remediation.decide.rules import STANDING, Ladder, Policy, Rule
from healthd.remediation.policy_files import as_rule, policy_of, rules_named

_OPERATOR = "the operator"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One form of a code: an XID whose text decides has several, and a rule judges each."""

    code: str
    form: str
    meaning: str
    severity: Severity
    remedy: Remedy


def answer(options: Namespace) -> Reply:
    """``show`` prints the rules in their order; ``test`` names the rule that decides about a code, or about a log."""
    config = loaded(options).config
    if options.what == "show":
        if options.args:
            raise UsageError(
                f"healthd policy show: unexpected argument {options.args[0]!r}; did you mean `healthd policy test`?"
            )
        data = shown(config, options.policy or config.policy.use)
        return Reply(code=0, out=_as_json(data) if options.json else _shown_text(data))
    if not options.args:
        raise UsageError("healthd policy test: name codes, such as gpu.xid.79 or 79, or log files")
    instance_type = options.instance_type or config.node.instance_type or None
    policy = policy_of(config.policy, instance_type, options.policy)
    data = tested(options.args, policy, config, instance_type)
    return Reply(code=0, out=_as_json(data) if options.json else _tested_text(data))


# ---------------------------------------------------------------------------------------------------------------------
# show


def shown(config: Config, use: str) -> dict[str, Any]:
    """Every rule of a policy for any instance type, those of the configuration first."""
    policy_of(config.policy, None, use)  # raises ConfigError for its mistakes
    rules = [*(as_rule(row, site=True) for row in config.policy.rule), *rules_named(use), *STANDING]
    return {"policy": use, "rules": [_rule_data(rule) for rule in rules]}


def _rule_data(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name or "(the finding's own remedy)",
        "of": "site" if rule.site else "healthd" if rule in STANDING else "shipped",
        "codes": list(rule.codes),
        "components": list(rule.components),
        "instance_types": list(rule.instance_types),
        "together_with": list(rule.together_with),
        "ladder": None if rule.ladder is None else list(rule.ladder),
        "mode": rule.mode,
        "reason": rule.reason,
        "source": rule.source,
    }


def _shown_text(data: dict[str, Any]) -> str:
    lines = [f"policy {data['policy']}: the first rule that matches decides", ""]
    for number, rule in enumerate(data["rules"], 1):
        narrowed = [
            f"{word} {', '.join(rule[key])}"
            for key, word in (("components", "on"), ("instance_types", "of"), ("together_with", "together with"))
            if rule[key]
        ]
        ladder = "its own, then larger" if rule["ladder"] is None else ladder_text(rule["ladder"])
        cap = "" if rule["mode"] == Mode.REPAIR else f"; at most {rule['mode']}"
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
        if Path(name).is_file():
            verdicts += [{**each, "file": name} for each in _of_log(name, policy, config)]
        else:
            verdicts += [_verdict(variant, policy) for variant in variants(name)]
    return {"policy": policy.name, "instance_type": instance_type, "verdicts": verdicts}


def variants(name: str) -> tuple[Variant, ...]:
    """The forms of a code. Raises UsageError, with the nearest code, for one that does not exist."""
    number = xid_number(name)
    if number is not None:
        return tuple(_of_xid(number))
    if name.startswith("gpu.sxid.") and name[9:].isdigit() and (rows := sxid_rows(int(name[9:]))):
        return tuple(
            Variant(code=name, form=row.drivers, meaning=row.meaning, severity=row.severity, remedy=row.remedy)
            for row in rows
        )
    codes = {code.code: code for check in discover().values() for code in check.codes}
    numbered = ("gpu.xid.*", "gpu.sxid.*")
    families = [slug for slug in codes if slug.endswith(".*") and slug not in numbered and name.startswith(slug[:-1])]
    if (found := codes.get(name if name not in numbered else "", codes.get(max(families, default="")))) is None:
        guess = close_match(name, codes)
        hint = f"did you mean {guess}?" if guess and guess not in numbered else "see `healthd checks`"
        raise UsageError(f"healthd policy test: {name!r} is neither a code that a check reports nor a file; {hint}")
    return (Variant(code=name, form="", meaning=found.meaning, severity=found.severity, remedy=found.remedy),)


def _of_xid(number: int) -> Iterator[Variant]:
    """The row of the code, the cases by its text, and the results of its registers that differ from those."""
    code = f"gpu.xid.{number}"
    forms: list[tuple[str, XidRow | XidCase]] = [("", xid_row(number))]
    forms += [(case, found) for (xid, case), found in xid_cases().items() if xid == number]
    listed = {(found.severity, found.remedy) for _, found in forms}
    verdicts = [rule.verdict for rule in nvlink5_rules() if rule.xid == number]
    by_registers = {(found.severity, found.remedy): found for found in verdicts}
    forms += [("registers", found) for key, found in by_registers.items() if key not in listed]
    for form, found in forms:
        yield Variant(code=code, form=form, meaning=found.meaning, severity=found.severity, remedy=found.remedy)


def _verdict(variant: Variant, policy: Policy) -> dict[str, Any]:
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


def _result(rule: Rule, variant: Variant) -> dict[str, Any]:
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
        variant = Variant(
            code=finding.code,
            form="",
            meaning=finding.message,
            severity=finding.severity,
            remedy=finding.remedy,
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


def _as_json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"
