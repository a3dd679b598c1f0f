"""The check ``kernel.rules``: the site's own rules on kernel and journal lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from healthd.checklib.loglines import RowBurst, RowFold, after_lead, label, split_line
from healthd.checklib.patterns import safe_pattern
from healthd.core.check import FindingCode, check, judged, not_applicable
from healthd.core.model import NODE, REMEDY_RANK, ClearsBy, Component, Finding, Remedy, Repeats, Result, Severity
from healthd.core.node import KernelRecord, Node
from healthd.core.setting_types import AtLeastOne, WindowSeconds

FAMILY = FindingCode(
    code="site.*",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="A log line matches a rule of this site; the rule sets severity and remedy",
)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CODE = re.compile(r"site(\.[a-z0-9_]{1,64})+")
_COMPONENT = re.compile(r"node|[a-z][a-z0-9_]{0,31}:\S{1,128}")
_UNIT = re.compile(r"[\w:.@\\-]{1,200}\.(service|socket|mount|timer|scope|slice|target|path|device|swap|automount)")
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_MAX_RULES = 64
_PARTS = 256


class SiteRule(Struct, frozen=True, kw_only=True):
    """One rule of the site."""

    name: str
    """The name of the rule: lower-case letters, digits and ``_``."""

    pattern: str
    """A regular expression (Python's), matched from the start of a record's message, behind time stamps, tags and the
    name of a process or network device, which a user may choose (begin with ``.*`` for lines of crashed programs). Its
    named groups become evidence. It must hold a few fixed characters, and must not be able to take long."""

    code: str = ""
    """The finding's code, below ``site.``; empty: ``site.<name>``."""

    severity: Severity = Severity.WARNING
    """``critical`` keeps jobs off the node."""

    remedy: Remedy = Remedy.WATCH
    """The remedy of the finding. ``reboot_node`` and ``replace_node`` need severity ``critical``."""

    component: str = "node"
    """The component of the finding: ``node``, or ``disk:{disk}`` with the text of a named group."""

    count: AtLeastOne = 1
    """How many such lines on one component, within ``window_s``, make a finding."""

    window_s: WindowSeconds = 600.0
    """The window of ``count``, in seconds."""

    source: Literal["kernel", "journal"] = "kernel"
    """The log of the line. ``journal``: lines of services, written by root or, with ``unit``, by that service as a
    system user (a uid below 1000, or of ``DynamicUser``); lines of a plain user do not count. journalctl reads it,
    which costs a process."""

    unit: str = ""
    """Only lines of this systemd unit, such as ``slurmd.service``, and of the service manager about it. Journal
    only."""

    clears: str = ""
    """A pattern, as above, of the line that ends the fault. Empty: a reboot ends critical ones; others are news, listed
    for a day. With or without a pattern, a fault ends when its rule leaves the configuration."""

    def __post_init__(self) -> None:
        """Refuse a rule that cannot be applied, by the name of the key."""
        for problem in _problems(self):
            raise ValueError(problem)

    @property
    def slug(self) -> str:
        """The finding's code."""
        return self.code or f"site.{self.name}"


class KernelRulesSettings(Struct, frozen=True, kw_only=True):
    """The rules of ``kernel.rules``."""

    rules: tuple[SiteRule, ...] = ()
    """The rules, each a table: ``[[checks."kernel.rules".rules]]`` with ``name`` and ``pattern``, and if you like
    ``code`` (below ``site.``), ``severity``, ``remedy``, ``component`` (``disk:{disk}`` takes a named group), ``count``
    within ``window_s`` seconds, ``source`` (``journal``) and ``unit`` of the line, and ``clears``, the pattern of the
    line that ends the fault. At most 64. The check reads the first 512 characters of a line. healthd refuses at start a
    pattern that could take long on any line. The journal needs journalctl of systemd 236 or newer; without it every
    rule is unknown, because a rule that is not applied proves no health."""

    def __post_init__(self) -> None:
        """Refuse duplicate names and codes, and more rules than the check can try on every line."""
        for what in ("name", "slug"):
            twice = [name for name, times in Counter(getattr(rule, what) for rule in self.rules).items() if times > 1]
            if twice:
                raise ValueError(
                    f"rules: two rules have the {'name' if what == 'name' else 'code'} {twice[0]!r}; rename one"
                )
        if len(self.rules) > _MAX_RULES:
            raise ValueError(
                f"rules: {len(self.rules)} rules; expected at most {_MAX_RULES}. Join some patterns with |"
            )

    @property
    def own_codes(self) -> frozenset[str]:
        """The codes of the rules: a fault of another one ends, because its rule was taken away."""
        return frozenset(rule.slug for rule in self.rules)

    @property
    def needles(self) -> tuple[str, ...]:
        """The fixed texts that the reader of the kernel log searches for."""
        return self._needles_in("kernel")

    @property
    def journal_needles(self) -> tuple[str, ...]:
        """The fixed texts that the reader of the journal searches for; empty: the journal is not read."""
        return self._needles_in("journal")

    @property
    def journal_units(self) -> frozenset[str]:
        """The units that rules name: their lines count, whatever system user they run as."""
        return frozenset(rule.unit for rule in self.rules if rule.unit)

    def _needles_in(self, source: str) -> tuple[str, ...]:
        rules = [rule for rule in self.rules if rule.source == source]
        patterns = [text for rule in rules for text in (rule.pattern, rule.clears) if text]
        return tuple(sorted({safe_pattern(text).needle for text in patterns}))


def _wants(text: str, settings: KernelRulesSettings) -> bool:
    at = split_line(text).at if settings.rules else 0
    return any(
        safe_pattern(pattern).match(text, at) is not None
        for rule in settings.rules
        for pattern in (rule.pattern, rule.clears)
        if pattern
    )


@check("kernel.rules", on="kernel", wants=_wants, settings=KernelRulesSettings, codes=(FAMILY,))
def kernel_rules(node: Node, settings: KernelRulesSettings) -> Result:
    """The site's own rules on kernel and journal lines.

    The check compares each rule with a record from the start of its message on, so that a text that a user makes the
    kernel echo matches no rule by accident; a pattern that begins with ``.*`` matches anywhere, at the site's own risk.
    Records of user space do not count, nor journal lines of a plain user. A rule with a count finds something once so
    many lines came within its window. Sources: the site's own; the idea is node-problem-detector's
    (kernel-monitor.json); systemd.journal-fields(7).
    """
    if not settings.rules:
        return not_applicable("no rules are configured")
    fold = RowFold[SiteRule](most=_PARTS)  # a pattern may name any number of components
    for record in node.kernel_records:
        at = split_line(record.text).at if record.source == "kernel" else after_lead(record.text)
        for rule in settings.rules:
            if rule.source == record.source and rule.unit in ("", record.unit):
                _compare(fold, record, at, rule)
    return judged(map(_finding, fold.bursts.values()), clearances=fold.clearances)


def _compare(fold: RowFold[SiteRule], record: KernelRecord, at: int, rule: SiteRule) -> None:
    """Compare one record with one rule. ``at``: where its message begins."""
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
    """The component that the rule names; the whole node where a line does not name it."""
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
    if REMEDY_RANK[rule.remedy] >= REMEDY_RANK[Remedy.REBOOT_NODE] and rule.severity is not Severity.CRITICAL:
        yield f'remedy = "{rule.remedy}": it needs severity = "critical", because it keeps jobs off the node'
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
