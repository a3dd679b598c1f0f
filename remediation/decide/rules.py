"""Policy as data: rules, which of them matches a fault, and what it then says. Pure.

A policy is a list of rules; the first that matches decides. The site's own come before the shipped ones, and behind
all stand :data:`STANDING`, whose last lets the finding's own remedy decide, so every fault has an answer. A rule is
needed only where that answer is to be another one. Nothing here knows a file, a cluster, or what happened before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import MODE_RANK, NODE, REMEDY_RANK, Component, Diagnosis, Mode, Remedy, Root, Severity, Step
from healthd.judge.diagnose import roots_of
from healthd.remediation.decide.on_job import WAIT, OnJob

Ladder = tuple[Remedy, ...]

# What a remedy begins: a repair that did not help is followed by the next larger one.
_OWN: dict[Remedy, Ladder] = {
    Remedy.RESET_GPU: (Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE),
    Remedy.REBOOT_NODE: (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE),
    Remedy.REPLACE_NODE: (Remedy.REPLACE_NODE,),
}


class RuleSubject(Protocol):
    """A fault, or a root of a diagnosis, as far as a rule looks at it."""

    @property
    def code(self) -> str:
        """The code of the fault."""

    @property
    def severity(self) -> Severity:
        """Whether a job may start now."""

    @property
    def remedy(self) -> Remedy:
        """The remedy that the fault calls for by itself."""


class Rule(Struct, frozen=True, kw_only=True):
    """The remedies for some faults, why, and who says so.

    ``codes``: globs over the codes of findings. ``components`` (kinds, such as ``gpu``), ``instance_types`` (globs) and
    ``together_with`` (globs: a code of which must be open on the same component or on the node as well) narrow it down;
    empty means any. ``ladder``: the remedies in the order in which they are tried, one for each time that the fault
    comes back; empty: the node is never taken out for it; None: what the finding itself calls for. A ladder of
    ``ask_human`` keeps the node out until an operator has seen to it. ``on_job``: what becomes of a job that cannot go
    on, ``notify_owner``: whether the owner of a job hears of it; None: as the policy says. ``mode`` is a cap:
    ``observe`` puts this rule alone in shadow. ``site``: the site wrote it.
    """

    name: str
    codes: tuple[str, ...]
    reason: str
    source: str
    components: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    together_with: tuple[str, ...] = ()
    ladder: Ladder | None = None
    on_job: OnJob | None = None
    notify_owner: bool | None = None
    mode: Mode = Mode.REPAIR
    site: bool = False

    def matches(self, code: str, kind: str, beside: Collection[str]) -> bool:
        """Whether it speaks of this code on a component of this kind, with these other codes open beside it."""
        return (
            _fits(code, self.codes)
            and (not self.components or kind in self.components)
            and (not self.together_with or any(_fits(other, self.together_with) for other in beside if other != code))
        )

    def ladder_for(self, judged: RuleSubject) -> Ladder:
        """The remedies in turn; empty where none of ours repairs it."""
        return _OWN.get(judged.remedy, ()) if self.ladder is None else self.ladder

    def takes_out(self, judged: RuleSubject) -> bool:
        """Whether new jobs are to be kept off. A critical fault does, whatever it calls for, unless the rule says
        never."""
        return bool(self.ladder_for(judged)) or (self.ladder is None and judged.severity is Severity.CRITICAL)


USERS_OWN = Rule(
    name="users-bring-it-about",
    codes=("host.filesystem.full",),
    ladder=(),
    reason="Any user of the node can bring it about and take it away: it costs the node's verdict, and no slot",
    source="A user without rights filled a disk, and the node was taken out within the minute",
)
"""The codes that no user may take nodes out with, so the shipped rules do not either. A site's own rule goes before
it."""

OWN_REMEDY = Rule(
    name="",
    codes=("*",),
    reason="What the finding itself calls for, and what is larger where that did not help",
    source="healthd: each check's own table, whose rows have their sources",
)


STANDING = (USERS_OWN, OWN_REMEDY)
"""The rules behind those of every policy."""


class RuleAnswer(Struct, frozen=True, kw_only=True):
    """The answer of a policy to one root of one diagnosis, where that takes the node out. ``on_job``: what it says
    about a job that cannot go on."""

    diagnosis: Diagnosis
    root: Root
    rule: Rule
    ladder: Ladder
    on_job: OnJob = WAIT

    @property
    def about(self) -> Diagnosis:
        """The diagnosis, told by this root: the one that decides is not always the one that stands first."""
        return replace(self.diagnosis, code=self.root.code, remedy=self.root.remedy)

    def mode(self, allowed: Mode) -> Mode:
        """How far it may go: what is allowed at all, or less where the rule says so."""
        return min(allowed, self.rule.mode, key=MODE_RANK.__getitem__)


class Policy(Struct, frozen=True, kw_only=True):
    """Rules in their order, as they hold on one instance type. ``on_job``, ``notify_owner``: where a rule leaves it
    out."""

    name: str = "by remedy"
    rules: tuple[Rule, ...] = STANDING
    on_job: OnJob = WAIT
    notify_owner: bool = True

    def rule_for(self, code: str, component: Component, beside: Collection[str]) -> Rule:
        """The first rule that matches."""
        return next((rule for rule in self.rules if rule.matches(code, component.kind, beside)), OWN_REMEDY)

    def notifies_owner(self, code: str, component: Component, beside: Collection[str] = ()) -> bool:
        """Whether the owner of a job hears of this fault."""
        by_rule = self.rule_for(code, component, beside).notify_owner
        return self.notify_owner if by_rule is None else by_rule

    def answers(self, diagnoses: Sequence[Diagnosis]) -> tuple[RuleAnswer, ...]:
        """The answers that take the node out, or would if their rule were not in shadow; the largest remedy first.

        Each root of a diagnosis is judged by itself: a rule that says never, or that is in shadow, hides no other.
        """
        if not diagnoses:
            return ()
        found = []
        open_codes = OpenCodes((each.component, each.codes) for each in diagnoses)
        rules: dict[tuple[str, str, frozenset[str]], Rule] = {}  # many parts with one code: a storm of faults
        for diagnosis in diagnoses:
            beside = open_codes.beside(diagnosis.component)
            for root in roots_of(diagnosis):
                asked = (root.code, diagnosis.component.kind, beside)
                if asked not in rules:
                    rules[asked] = self.rule_for(root.code, diagnosis.component, beside)
                rule = rules[asked]
                if rule.takes_out(root):
                    ladder, on_job = rule.ladder_for(root), self.on_job if rule.on_job is None else rule.on_job
                    found.append(RuleAnswer(diagnosis=diagnosis, root=root, rule=rule, ladder=ladder, on_job=on_job))
        return tuple(sorted(found, key=_reach, reverse=True))

    def calling(self, diagnoses: Sequence[Diagnosis]) -> tuple[Diagnosis, ...]:
        """The diagnoses that keep jobs off the node, in their order. A diagnosis that is only in shadow does not."""
        live = {id(each.diagnosis) for each in self.answers(diagnoses) if each.rule.mode is not Mode.OBSERVE}
        return tuple(diagnosis for diagnosis in diagnoses if id(diagnosis) in live)

    def matters(self, judged: RuleSubject, component: Component, beside: Collection[str]) -> bool:
        """Whether one fault keeps jobs off the node."""
        rule = self.rule_for(judged.code, component, beside)
        return rule.mode is not Mode.OBSERVE and rule.takes_out(judged)


BY_REMEDY = Policy()


def layered(
    name: str,
    site: Iterable[Rule],
    shipped: Iterable[Rule],
    instance_type: str | None,
    on_job: OnJob = WAIT,
    *,
    notify_owner: bool = True,
) -> Policy:
    """The site's rules before the shipped ones, as far as they speak of this instance type, and STANDING behind all.

    A rule that names instance types does not hold on a machine whose type is not known.
    """
    rules = (*site, *shipped, *STANDING)
    bare = (instance_type or "").removeprefix("ml.")
    holding = (rule for rule in rules if not rule.instance_types or _fits(bare, rule.instance_types))
    return Policy(name=name, rules=tuple(holding), on_job=on_job, notify_owner=notify_owner)


class OpenCodes:
    """The codes that are open, by where they are."""

    def __init__(self, open_codes: Iterable[tuple[Component, Iterable[str]]]) -> None:
        found: dict[Component, set[str]] = {}
        for where, codes in open_codes:
            found.setdefault(where, set()).update(codes)
        self._at = {where: frozenset(codes) for where, codes in found.items()}
        self._on_node = self._at.get(NODE, frozenset())

    def beside(self, component: Component) -> frozenset[str]:
        """Those that are open on a component or on the node as a whole."""
        return self._at.get(component, frozenset()) | self._on_node


def _reach(answer: RuleAnswer) -> int:
    return REMEDY_RANK[answer.ladder[0] if answer.ladder else answer.root.remedy]


@lru_cache(maxsize=4096)
def _fits(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


_OUT = (Step.SLOT, Step.DRAIN)
_BACK = (Step.VERIFY, Step.RELEASE)

QUARANTINE: tuple[Step, ...] = (*_OUT, *_BACK)
"""A budget slot, out, until the fault is gone for a reason that others brought about; then back."""

REBOOT: tuple[Step, ...] = (*_OUT, Step.WAIT_IDLE, Step.COLLECT, Step.REBOOT, *_BACK)
"""A place, drain, let the job end, save the evidence, reboot, prove it, back."""

RESET: tuple[Step, ...] = (*_OUT, Step.WAIT_IDLE, Step.COLLECT, Step.RESET, *_BACK)
"""The same with a reset of all GPUs in the place of the reboot: a board joined by NVSwitch is reset as one."""

REPLACE: tuple[Step, ...] = (*_OUT, Step.WAIT_IDLE, Step.COLLECT, Step.REPLACE, *_BACK)
"""The same with another machine behind the name; it proves itself and is released."""

STEPS: Mapping[Remedy, tuple[Step, ...]] = {
    Remedy.RESET_GPU: RESET,
    Remedy.REBOOT_NODE: REBOOT,
    Remedy.REPLACE_NODE: REPLACE,
}


def kept_out(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same, but the node stays out where it would be verified, until an operator says otherwise."""
    verify = steps.index(Step.VERIFY)
    return (*steps[:verify], Step.STAY, *steps[verify:])


def without_drain(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same where a drain would be a replacement, or the platform has the node's state: the slot alone fences it."""
    return tuple(step for step in steps if step is not Step.DRAIN)


FEATURE, LABEL = "feature", "label or annotation"
"""The name of the cluster's word on a node: on Slurm, and on Kubernetes, where either will do."""


def by_label(labels: Iterable[str], key: str) -> str:
    """The ``key=value`` that opts the node out, in words, or "". Any value does but ``false``."""
    for label in labels:
        name, _, value = label.partition("=")
        if key and name == key and value.lower() != "false":
            return f"[node] labels has {label}"
    return ""


def by_feature(features: Collection[str], feature: str, called: str = FEATURE) -> str:
    """The same of a feature that the cluster shows at the node. ``called``: its name there."""
    return f"the node has the {called} {feature}" if feature and feature in features else ""
