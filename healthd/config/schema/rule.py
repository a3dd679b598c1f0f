"""One rule of a policy as it is written: in ``[[policy.rule]]`` of a configuration, or ``[[rule]]`` of a policy's file.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta

from healthd.core.model import REMEDY_RANK, Mode, Remedy

RuleName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}\Z", description='lower-case letters, digits and "-"')]
Sentence = Annotated[str, Meta(pattern=r"\S", max_length=1000, description="a text that is not empty")]
CodeGlobs = Annotated[
    tuple[Annotated[str, Meta(pattern=r"^[^\s]+\Z")], ...],
    Meta(
        min_length=1, max_length=256, description="a list of finding codes or globs, such as gpu.xid.79 or gpu.remap.*"
    ),
]
TypeGlob = Annotated[str, Meta(pattern=r"^[^\s]+\Z", description="an instance type or a glob, such as p5.*")]
Kind = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z", description="a kind of component, such as gpu")]
Rung = Literal["ask_human", "reset_gpu", "reboot_node", "replace_node"]


@dataclass(frozen=True, kw_only=True)
class PolicyRule:
    """One rule. The first that matches a fault decides what is done about it."""

    name: RuleName
    """What the rule is called: decisions, the audit trail and the metrics name it."""

    codes: CodeGlobs
    """The findings that it is about: codes, or globs such as ``gpu.xid.14?``."""

    reason: Sentence
    """Why, for whoever reads it at night."""

    source: Sentence
    """Who says so: a document, a ticket, a name."""

    components: tuple[Kind, ...] = ()
    """Only on components of these kinds: ``gpu``, ``nvswitch``, ``efa``, ``disk``, ``mount``, ``node``. Empty: any."""

    instance_types: tuple[TypeGlob, ...] = ()
    """Only on these instance types, such as ``p5.*``. Empty: any. On a machine whose type is not known, a rule that
    names types does not hold."""

    together_with: tuple[TypeGlob, ...] = ()
    """Only while another of these codes is open on the same component, or on the node. Empty: always."""

    ladder: tuple[Rung, ...] | None = None
    """The remedies in the order in which they are tried: the next one each time that the same fault comes back to the
    same component. ``["ask_human"]`` keeps the node out until a person has seen to it; ``[]`` never takes it out. Left
    out: what the finding itself calls for, and what is larger where that did not help."""

    mode: Mode = Mode.REPAIR
    """How far this rule may go, at most: ``observe`` puts it in shadow (it says what it would do, and does nothing),
    ``quarantine`` takes the node out without repairing it. ``repair``: as far as ``remediation.mode`` goes."""

    def __post_init__(self) -> None:
        """Refuse a ladder that goes down: what is larger has been tried by then."""
        ladder = self.ladder or ()
        if any(REMEDY_RANK[Remedy(after)] < REMEDY_RANK[Remedy(before)] for before, after in pairwise(ladder)):
            raise ValueError(
                f"ladder: {', '.join(ladder)} goes down; expected each remedy at least as large as before it"
            )
        if "ask_human" in ladder and len(ladder) > 1:
            raise ValueError("ladder: ask_human stands alone; after the last remedy a person is asked anyway")
