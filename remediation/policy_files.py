"""Policies as they are written: the shipped ones, a file, the site's ``[[policy.rule]]``; read, checked, made rules.

It reports every mistake as the configuration does: where, the value, the expected value, and the next step. ``rules``
gives the rules their meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from healthd.config.key_lines import Key, key_lines, line_of
from healthd.config.schema.config import PolicySection
from healthd.config.schema.rule import PolicyRule
from healthd.config.table_lists import row_problems
from healthd.config.toml_text import Problem, parsed, read_text
from healthd.config.values import close_match, converted, did_you_mean, shortened
from healthd.core.check import discover
from healthd.core.errors import ConfigError
from healthd.core.model import Remedy
from healthd.core.shipped_text import shipped_text
from healthd.remediation.decide.on_job import parse
from healthd.remediation.decide.rules import Policy, Rule, layered

SHIPPED = ("nvidia", "replace-first")
_ROWS = tuple[PolicyRule, ...]
_KEYS = ("title", "rule")


def policy_of(section: PolicySection, instance_type: str | None, use: str = "") -> Policy:
    """The policy of a configuration, as it holds on this instance type.

    ``use``: another policy after the site's rules, a shipped name or a file. Raises ConfigError with every problem.
    """
    if problems := code_problems(section):
        raise ConfigError(tuple(str(problem) for problem in problems))
    name = use or section.use
    site = (as_rule(row, site=True) for row in section.rule)
    on_job = parse(section.on_job)
    return layered(name, site, rules_named(name), instance_type, on_job, notify_owner=section.notify_owner)


def code_problems(section: PolicySection, source: str = "configuration", text: str = "") -> tuple[Problem, ...]:
    """The codes in a configuration's rules that no check finds: a rule that never matches is a mistake.

    ``text``: that of the file where the rules stand, for the lines.
    """
    site = tuple(as_rule(row, site=True) for row in section.rule)
    return tuple(_unknown_codes(site, source, ("policy", "rule"), key_lines(text), known_codes())) if site else ()


def rules_named(name: str) -> tuple[Rule, ...]:
    """The rules of a shipped policy, or of a file. Raises ConfigError."""
    if name in SHIPPED:
        return _shipped(name)
    try:
        text = read_text(Path(name))
    except OSError as error:
        advice = did_you_mean(name, SHIPPED, f"expected {', '.join(SHIPPED)}, or a file")
        raise ConfigError((f"{name}: no such policy, and no file: {error.strerror}; {advice}",)) from error
    if isinstance(text, Problem):
        raise ConfigError((str(text),))
    return rules_in(text, name)


def rules_in(text: str, source: str, *, site: bool = True) -> tuple[Rule, ...]:
    """The rules in the text of a policy's file. Raises ConfigError with every problem."""
    tree = parsed(text, source)
    problems = (tree,) if isinstance(tree, Problem) else tuple(_problems(tree, text, source))
    if isinstance(tree, Problem) or problems:
        raise ConfigError(tuple(str(problem) for problem in problems))
    return tuple(as_rule(row, site=site) for row in converted(tree.get("rule", []), _ROWS))


def as_rule(row: PolicyRule, *, site: bool) -> Rule:
    """A rule as it was written, as the policy reads it."""
    return Rule(
        name=row.name,
        codes=row.codes,
        reason=row.reason,
        source=row.source,
        components=row.components,
        instance_types=tuple(each.removeprefix("ml.") for each in row.instance_types),
        together_with=row.together_with,
        ladder=None if row.ladder is None else tuple(Remedy(rung) for rung in row.ladder),
        on_job=None if row.on_job is None else parse(row.on_job),
        notify_owner=row.notify_owner,
        mode=row.mode,
        site=site,
    )


def known_codes() -> tuple[str, ...]:
    """Every code that a check can find; families end in ``.*``."""
    return tuple(code.code for check in discover().values() for code in check.codes)


# ---------------------------------------------------------------------------------------------------------------------


@cache
def _shipped(name: str) -> tuple[Rule, ...]:
    text = shipped_text("healthd.remediation", f"policies/{name}.toml")
    return rules_in(text, f"{name}.toml", site=False)


def _problems(tree: Mapping[str, Any], text: str, source: str) -> Iterator[Problem]:
    lines = key_lines(text)
    for key in tree.keys() - set(_KEYS):
        advice = did_you_mean(key, _KEYS, "expected title and [[rule]]")
        yield Problem(source=source, line=line_of(lines, (key,)), key=key, wrong="no such key", advice=advice)
    rows = tree.get("rule", [])
    if not isinstance(rows, list):
        yield Problem(
            source=source,
            line=line_of(lines, ("rule",)),
            key="rule",
            value=shortened(rows),
            wrong="expected a list of tables",
            advice="write [[rule]] and its keys below",
        )
        return
    wrong = tuple(row_problems(rows, _ROWS, from_environment=False))
    for row in wrong:
        at = line_of(lines, ("rule", *row.key.strip("[").replace("]", "").split(".")))
        yield replace(row, source=source, line=at, key=f"rule{row.key}")
    if not wrong:
        rules = tuple(as_rule(row, site=True) for row in converted(rows, _ROWS))
        yield from _names_twice(rules, source)
        yield from _unknown_codes(rules, source, ("rule",), lines, known_codes())


def _names_twice(rules: Iterable[Rule], source: str) -> Iterator[Problem]:
    names = [rule.name for rule in rules]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(source=source, key="rule", wrong=f"two rules have the name {name!r}", advice="rename one")


def _unknown_codes(
    rules: Iterable[Rule], source: str, key: Key, lines: Mapping[Key, int], known: Collection[str]
) -> Iterator[Problem]:
    """Globs that match no code of any check: a misspelt rule would never match, unnoticed."""
    for number, rule in enumerate(rules):
        for field, globs in (("codes", rule.codes), ("together_with", rule.together_with)):
            for glob in globs:
                if any(_may_fit(glob, code) for code in known):
                    continue
                guess = close_match(glob, known)
                yield Problem(
                    source=source,
                    line=line_of(lines, (*key, str(number), field)),
                    key=f"{'.'.join(key)}[{number}].{field}",
                    value=shortened(glob),
                    wrong="no check has such a code",
                    advice=f"did you mean {guess}?" if guess else "`healthd checks` lists every code",
                )


def _may_fit(glob: str, code: str) -> bool:
    """Whether a glob can fit a code, or a member of a family."""
    family = code.removesuffix("*")
    return fnmatchcase(code, glob) or (family != code and (glob.startswith(family) or fnmatchcase(f"{family}0", glob)))
