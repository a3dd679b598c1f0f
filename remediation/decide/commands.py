"""The commands of an operator to the engine, and the remediation that each begins or changes. Pure.

A command is carried out by the same steps as a decision, but needs neither a fault nor a mode that allows it. It
must not make a remediation that undoes what is not ours: whether it may is asked before, and by every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import NODE, Action, Diagnosis, Mode, Refusal, Refused, Remedy, Step
from healthd.remediation.decide.remediation import QUARANTINE_CODE, REPAIR_CODE, End, Phase, Remediation, visible_text
from healthd.remediation.decide.rules import QUARANTINE, STEPS, kept_out, without_drain

REMEDIES: Mapping[str, Remedy] = {
    "reset": Remedy.RESET_GPU,
    "reboot": Remedy.REBOOT_NODE,
    "replace": Remedy.REPLACE_NODE,
}
"""The words of the command line for what the engine can do to a machine."""


class Verb(StrEnum):
    """The verb of a command."""

    QUARANTINE = "quarantine"
    RELEASE = "release"
    REPAIR = "repair"
    APPROVE = "approve"
    UNDO = "undo"


_ACTIONS: Mapping[Verb, Action] = {
    Verb.QUARANTINE: Action.QUARANTINE,
    Verb.REPAIR: Action.REPAIR,
    Verb.APPROVE: Action.REPAIR,
    Verb.RELEASE: Action.RELEASE,
    Verb.UNDO: Action.RELEASE,
}


class Command(Struct, frozen=True, kw_only=True):
    """A command of an operator about this node.

    ``who``: as the kernel names the caller. ``why``: in their own words. ``remedy``: of a repair, None for what the
    policy says, and of an approval the act that was shown. ``forced``: of a release, whatever is still open.
    ``target``: the remediation that is meant, by its id, or the node by its name; "" where the verb names none.
    """

    verb: Verb
    who: str
    why: str = ""
    remedy: Remedy | None = None
    forced: bool = False
    target: str = ""

    @property
    def action(self) -> Action:
        """The action that it begins, allows or ends."""
        return _ACTIONS[self.verb]

    @property
    def reason(self) -> str:
        """``psu looks odd (uid 0)``."""
        return f"{self.why or 'no reason given'} ({self.who})"

    @property
    def title(self) -> str:
        """``quarantine by command: psu looks odd (uid 0)``."""
        return f"{self.verb} by command: {self.reason}"


class CommandOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a command. ``done``: it is so, or has begun; else ``refusal`` says why not, and ``message`` in
    words.

    ``lines``: of a rehearsal, what each step would do.
    """

    done: bool
    message: str
    lines: tuple[str, ...] = ()
    refusal: Refusal | None = None


def quarantined(command: Command, remediation_id: str, now: datetime, *, drains: bool) -> Remediation:
    """A node that is out until an operator says otherwise. ``drains``: where that is not a replacement."""
    return _remediation(command, remediation_id, now, steps=kept_out(QUARANTINE), drains=drains)


def repaired(
    command: Command,
    remediation_id: str,
    now: datetime,
    *,
    ladder: Sequence[Remedy],
    about: Diagnosis | None,
    drains: bool,
) -> Remediation:
    """A node that is repaired by the first of these remedies; ``about``: for what, None for no fault in particular."""
    remediation = _remediation(command, remediation_id, now, steps=STEPS[ladder[0]], drains=drains, about=about)
    return replace(remediation, ladder=tuple(ladder), remedy=ladder[0])


def repaired_meanwhile(remediation: Remediation, command: Command, remedy: Remedy, now: datetime) -> Remediation:
    """The same of a node that is out by command already: it is repaired, and stays out all the same."""
    steps = kept_out(STEPS[remedy])
    steps = steps if Step.DRAIN in remediation.steps else without_drain(steps)
    return replace(
        remediation,
        command=f"{remediation.command}; then repair, {command.reason}",
        steps=steps,
        index=steps.index(Step.WAIT_IDLE),
        phase=Phase.PLANNED,
        ladder=(remedy,),
        remedy=remedy,
        attempts=0,
        denied=False,
        since=now,
        end=None,
    )


def may_be_repaired(remediation: Remediation, command: Command) -> bool:
    """Whether a command to repair takes this remediation over: its node is out, and nothing is being done to it, or not
    any more. One that is out by command is repaired only by name."""
    given_up = remediation.end is End.FAILED
    if remediation.code == QUARANTINE_CODE:
        return command.remedy is not None and (given_up or stays(remediation))
    is_verified = remediation.step is Step.VERIFY and remediation.end is None
    return given_up or is_verified or _waits_to_replace(remediation)


def _waits_to_replace(remediation: Remediation) -> bool:
    """Whether another machine is next and was not asked for: its platform has no time, or too many were replaced. A
    operator's command passes the bound of a day."""
    is_next = remediation.step is Step.REPLACE and remediation.phase is Phase.PLANNED
    return is_next and not (remediation.attempts or remediation.by_command or remediation.end)


def stays(remediation: Remediation) -> bool:
    """Whether it is out by command and nothing is being done to it."""
    return remediation.code == QUARANTINE_CODE and remediation.step is Step.STAY and not remediation.release_command


def release_by_command(
    remediation: Remediation, command: Command, trouble: str, now: datetime
) -> Remediation | Refused:
    """The remediation with the command to release the node, or why not. ``trouble``: what is wrong with the node now,
    or ""."""
    if trouble and not command.forced:
        help_ = "to release it all the same, and acknowledge what is open: `healthd release --force --reason TEXT`"
        return Refused(kind=Refusal.NOT_WELL, reason=f"{trouble}; {help_}")
    forced_at = now if command.forced else remediation.forced_at
    remediation = replace(remediation, release_command=command.reason, forced_at=forced_at)
    if remediation.end is not End.FAILED:
        return remediation
    return replace(remediation, end=None, phase=Phase.PLANNED)  # what it had asked of the machine was given up as well


def _remediation(
    command: Command,
    remediation_id: str,
    now: datetime,
    *,
    steps: tuple[Step, ...],
    drains: bool,
    about: Diagnosis | None = None,
) -> Remediation:
    own = QUARANTINE_CODE if command.verb is Verb.QUARANTINE else REPAIR_CODE
    code, component = (about.code, about.component) if about else (own, NODE)
    return Remediation(
        id=remediation_id,
        opened=now,
        since=now,
        mode=Mode.REPAIR if command.verb is Verb.REPAIR else Mode.QUARANTINE,
        code=code,
        component=str(component),
        remedy=about.remedy if about else Remedy.NONE,
        why=f"by command: {command.reason}",
        text=visible_text(code, str(component), remediation_id),
        steps=steps if drains else without_drain(steps),
        fenced=True,
        command=command.reason,
    )
