"""One rule of a policy: a ``[[policy.rule]]`` of a configuration, or a ``[[rule]]`` of a policy's file.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta, Struct

from healthd.core.model import REMEDY_RANK, Mode, Remedy

RuleName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}\Z", description='lower-case letters, digits and "-"')]
Sentence = Annotated[str, Meta(pattern=r"\S", max_length=1000, description="a text that is not empty")]
CodeGlob = Annotated[str, Meta(pattern=r"^[^\s]+\Z", description="a finding code or a glob, such as gpu.remap.*")]
CodeGlobs = Annotated[
    tuple[CodeGlob, ...],
    Meta(
        min_length=1, max_length=256, description="a list of finding codes or globs, such as gpu.xid.79 or gpu.remap.*"
    ),
]
TypeGlob = Annotated[str, Meta(pattern=r"^[^\s]+\Z", description="an instance type or a glob, such as p5.*")]
Kind = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z", description="a kind of component, such as gpu")]
OnJobText = Annotated[
    str,
    Meta(
        pattern=r"^(wait|(signal:(B:)?(USR1|USR2|TERM|INT|HUP|XCPU) then )?requeue after [0-9]{1,6}[smh])\Z",
        description='wait, "requeue after 5m", or "signal:USR1 then requeue after 60s"',
    ),
]
Rung = Literal["ask_human", "reset_gpu", "reboot_node", "replace_node"]


class PolicyRule(Struct, frozen=True, kw_only=True):
    """One rule. The first that matches a fault decides about it."""

    name: RuleName
    """The name of the rule, for decisions, the audit trail and the metrics."""

    codes: CodeGlobs
    """The findings of the rule: codes, or globs such as ``gpu.xid.14?``."""

    reason: Sentence
    """The reason, for the operator who reads it at night."""

    source: Sentence
    """The source: a document, a ticket, a name."""

    components: tuple[Kind, ...] = ()
    """Only on components of these kinds: the first word of ``component`` in ``healthd status --json``, such as ``gpu``,
    ``nvlink``, ``nvswitch``, ``efa``, ``nvme``, ``mount``, ``driver`` or ``node``. Empty: any."""

    instance_types: tuple[TypeGlob, ...] = ()
    """Only on these instance types, such as ``p5.*``; ``ml.`` is stripped. Empty: any. On a machine of unknown type, a
    rule that names types does not hold."""

    together_with: tuple[CodeGlob, ...] = ()
    """Only while another of these codes is open on the same component, or on the node. Empty: always."""

    ladder: tuple[Rung, ...] | None = None
    """The remedies in the order in which they are tried: the next one each time the same fault comes back to the same
    component. ``["ask_human"]`` keeps the node out until an operator releases it; ``[]`` never takes it out. Left out:
    the finding's own remedy, and larger ones if it does not help."""
    on_job: OnJobText | None = None
    """The act on the Slurm job that ran on the node when the fault began, once the node is drained. Left out:
    ``policy.on_job``, which has the values. It holds only for a critical fault whose row says that the process is dead
    (column *ends process* of the findings), whatever else the rule is about."""

    notify_owner: bool | None = None
    """Whether the owner of a Slurm job hears of such a fault: when healthd drains the node under the job, and when the
    job has ended by it. Left out: ``policy.notify_owner``."""

    mode: Mode = Mode.REPAIR
    """The limit of this rule: ``observe`` puts it in shadow (it reports what it would do, and does nothing),
    ``quarantine`` takes the node out without repairing it, ``approve`` asks before each repair. ``repair``: as far as
    ``remediation.mode`` allows."""

    def __post_init__(self) -> None:
        """Refuse a ladder that goes down: a smaller remedy does not help after a larger one."""
        ladder = self.ladder or ()
        if any(REMEDY_RANK[Remedy(after)] < REMEDY_RANK[Remedy(before)] for before, after in pairwise(ladder)):
            raise ValueError(
                f"ladder: {', '.join(ladder)} goes down; expected each remedy at least as large as before it"
            )
        if "ask_human" in ladder and len(ladder) > 1:
            raise ValueError("ladder: ask_human must stand alone; healthd pages after the last remedy anyway")
