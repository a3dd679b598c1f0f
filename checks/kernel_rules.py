"""The check ``kernel.rules``: the site's own rules on kernel and journal lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from healthd.checklib.loglines import RowBurst, RowFold, label
from healthd.checklib.patterns import safe_pattern
from healthd.checklib.record_text import after_lead, words_of
from healthd.core.check import FindingCode, check, judged, not_applicable
from healthd.core.model import (
    NODE,
    REMEDY_RANK,
    ClearsBy,
    Component,
    Finding,
    Remedy,
    Repeats,
    Result,
    Severity,
)
from healthd.core.node import KernelRecord, Node

FAMILY = FindingCode(
    code="site.*",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="A kernel line fits a rule that this site has written; the rule says how bad it is and what it calls for",
)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CODE = re.compile(r"site(\.[a-z0-9_]{1,64})+")
_COMPONENT = re.compile(r"[a-z][a-z0-9_]{0,31}(:\S{1,128})?")
_UNIT = re.compile(r"[\w:.@\\-]{1,200}\.(service|socket|mount|timer|scope|slice|target|path|device|swap|automount)")
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_MAX_RULES = 64
_PARTS = 256


@dataclass(frozen=True, kw_only=True)
class SiteRule:
    """One rule of the site."""

    name: str
    """What the rule is called: lower-case letters, digits and ``_``."""

    pattern: str
    """A regular expression (Python's), matched from the start of a record's words, behind time stamps, tags and the
    name of a process or network device, which a user may choose (begin with ``.*`` for lines of crashed programs). Its
    named groups become evidence. It must hold a few fixed characters, and must not be able to take long."""

    code: str = ""
    """The finding's code, below ``site.``; empty: ``site.<name>``."""

    severity: Severity = Severity.WARNING
    """``critical`` keeps jobs off the node."""

    remedy: Remedy = Remedy.WATCH
    """What it calls for. ``reboot_node`` and ``replace_node`` need severity ``critical``."""

    component: str = "node"
    """Where it is: ``node``, or ``disk:{disk}`` with the text of a named group."""

    count: int = 1
    """How many such lines on one component, within ``window_s``, make a finding."""

    window_s: float = 600.0
    """The window of ``count``, in seconds."""

    source: Literal["kernel", "journal"] = "kernel"
    """Which log the line is in. ``journal``: lines of services, written by root or, with ``unit``, by that service; a
    plain user's are not looked at. It is read through journalctl, which costs a process."""

    unit: str = ""
    """Only lines of this systemd unit, such as ``slurmd.service``, and what the service manager says of it. Journal
    only."""

    clears: str = ""
    """A pattern, as above, of the line that says it is over. Empty: critical ones end by a reboot, others are news and
    listed for a day."""

    def __post_init__(self) -> None:
        """Refuse what could not be judged, by the name of the key."""
        for problem in _problems(self):
            raise ValueError(problem)

    @property
    def slug(self) -> str:
        """The finding's code."""
        return self.code or f"site.{self.name}"


@dataclass(frozen=True, kw_only=True)
class KernelRulesSettings:
    """The rules of ``kernel.rules``."""

    rules: tuple[SiteRule, ...] = ()
    """The rules, each a table: ``[[checks."kernel.rules".rules]]`` with ``name`` and ``pattern``, and where wanted
    ``code`` (below ``site.``), ``severity``, ``remedy``, ``component`` (``disk:{disk}`` takes a named group), ``count``
    within ``window_s`` seconds, ``source`` (``journal``) and ``unit`` of the line, and ``clears``, the pattern of the
    line that says it is over. At most 64. Of a line the first 512 characters are looked at, and a pattern that could
    take long on any line is refused at start. The journal needs journalctl of systemd 236 or newer; without it every
    rule is unknown, so that a rule that is not looked at is no health."""

    def __post_init__(self) -> None:
        """Refuse names and codes that are given twice, and more rules than can be tried on every line."""
        for what in ("name", "slug"):
            twice = [name for name, times in Counter(getattr(rule, what) for rule in self.rules).items() if times > 1]
            if twice:
                raise ValueError(f"rules: two have the {'name' if what == 'name' else 'code'} {twice[0]!r}; rename one")
        if len(self.rules) > _MAX_RULES:
            raise ValueError(
                f"rules: {len(self.rules)} of them, expected at most {_MAX_RULES}; join some patterns with |"
            )

    @property
    def needles(self) -> tuple[str, ...]:
        """What the reader of the kernel log must look for."""
        return self._needles_in("kernel")

    @property
    def journal_needles(self) -> tuple[str, ...]:
        """What the reader of the journal must look for; where there is nothing, it is not read."""
        return self._needles_in("journal")

    @property
    def journal_units(self) -> frozenset[str]:
        """The units that rules name: their lines are believed, whoever they run as."""
        return frozenset(rule.unit for rule in self.rules if rule.unit)

    def _needles_in(self, source: str) -> tuple[str, ...]:
        rules = [rule for rule in self.rules if rule.source == source]
        patterns = [text for rule in rules for text in (rule.pattern, rule.clears) if text]
        return tuple(sorted({safe_pattern(text).needle for text in patterns}))


def _wants(text: str, settings: KernelRulesSettings) -> bool:
    at = words_of(text).at if settings.rules else 0
    return any(
        safe_pattern(pattern).match(text, at) is not None
        for rule in settings.rules
        for pattern in (rule.pattern, rule.clears)
        if pattern
    )


@check("kernel.rules", on="kernel", wants=_wants, settings=KernelRulesSettings, codes=(FAMILY,))
def kernel_rules(node: Node, settings: KernelRulesSettings) -> Result:
    """The site's own rules on kernel and journal lines.

    A record is compared with each rule from the start of its words on, so that a text that a user makes the kernel echo
    fits no rule by accident; a pattern that begins with ``.*`` looks everywhere, at the site's own risk. Records of
    user space are not looked at, as everywhere, and of the journal none that a plain user wrote. A rule with a count
    finds something once so many lines came within its window. Sources: the site's own; the idea is
    node-problem-detector's (kernel-monitor.json); systemd.journal-fields(7).
    """
    if not settings.rules:
        return not_applicable("no rules are configured")
    fold = RowFold[SiteRule](most=_PARTS)  # a pattern may name endless parts
    for record in node.kernel_records:
        at = words_of(record.text).at if record.source == "kernel" else after_lead(record.text)
        for rule in settings.rules:
            if rule.source == record.source and rule.unit in ("", record.unit):
                _compare(fold, record, at, rule)
    return judged(map(_finding, fold.bursts.values()), clearances=fold.clearances)


def _compare(fold: RowFold[SiteRule], record: KernelRecord, at: int, rule: SiteRule) -> None:
    """One record with one rule. ``at``: where its words begin."""
    if rule.clears and (groups := safe_pattern(rule.clears).match(record.text, at)) is not None:
        fold.take_end(record, rule.slug, _component(rule, groups))
    elif (groups := safe_pattern(rule.pattern).match(record.text, at)) is not None:
        fold.take(record, rule, rule.slug, _component(rule, groups), groups)


def _finding(group: RowBurst[SiteRule]) -> Finding:
    rule, record = group.row, group.first
    evidence = {
        **group.seen(),
        **{name: value for name, value in group.groups.items() if value},
        "rule": rule.name,
        "pattern": rule.pattern,
        "limit": rule.count,
        "limit_source": f'[checks."kernel.rules"] rule {rule.name}',
    }
    return Finding(
        code=rule.slug,
        severity=rule.severity,
        component=group.component,
        message=f"rule {rule.name}{group.times}: {record.text[:200]}{label(record)}",
        remedy=rule.remedy,
        evidence=evidence,
        time=record.time,
        clears_by=_clears_by(rule),
        repeats=Repeats(times=rule.count, window_s=rule.window_s) if rule.count > 1 else None,
    )


def _clears_by(rule: SiteRule) -> ClearsBy:
    if rule.clears:
        return ClearsBy.LOG_LINE
    return ClearsBy.REBOOT if rule.severity is Severity.CRITICAL else ClearsBy.NOTHING


def _component(rule: SiteRule, groups: Mapping[str, str | None]) -> Component:
    """Where the rule says it is; the whole node where a line does not name the part."""
    kind, _, name = rule.component.partition(":")
    named = _PLACEHOLDER.sub(lambda match: groups.get(match[1]) or "", name)
    return Component(kind=kind, id=named[:128]) if named else NODE


def _problems(rule: SiteRule) -> Iterator[str]:
    if not _NAME.fullmatch(rule.name):
        yield f"name = {rule.name!r}: expected lower-case letters, digits and _, such as nic_hang"
    if rule.code and not _CODE.fullmatch(rule.code):
        yield f"code = {rule.code!r}: expected site. and lower-case words, such as site.nic.hang"
    if not _COMPONENT.fullmatch(rule.component):
        yield f"component = {rule.component!r}: expected node, or a kind and a name such as disk:{{disk}}"
    if rule.component.partition(":")[0] != "node" and ":" not in rule.component:
        yield f"component = {rule.component!r}: expected node, or a kind and a name such as disk:{{disk}}"
    if REMEDY_RANK[rule.remedy] >= REMEDY_RANK[Remedy.REBOOT_NODE] and rule.severity is not Severity.CRITICAL:
        yield f"remedy = {rule.remedy}: it needs severity = critical, as it keeps jobs off the node"
    if rule.unit and (rule.source != "journal" or not _UNIT.fullmatch(rule.unit)):
        yield f"unit = {rule.unit!r}: expected a unit with its type, such as slurmd.service, and source = journal"
    if not 1 <= rule.count <= 10_000 or not 1 <= rule.window_s <= 86_400:
        yield f"count = {rule.count}, window_s = {rule.window_s:g}: expected 1 to 10000 lines within 1 to 86400 s"
    for key, text in (("pattern", rule.pattern), ("clears", rule.clears)):
        yield from _pattern_problems(rule, key, text)


def _pattern_problems(rule: SiteRule, key: str, text: str) -> Iterator[str]:
    if key == "clears" and not text:
        return
    try:
        groups = safe_pattern(text).groups
    except ValueError as error:
        yield f"{key} = {text[:60]!r}: {error}"
        return
    for name in _PLACEHOLDER.findall(rule.component):
        if name not in groups:
            yield f"component = {rule.component!r}: {key} has no group (?P<{name}>…)"
