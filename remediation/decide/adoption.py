"""A daemon without a memory adopts what another left with the cluster under its node's name. Pure.

A replaced machine begins with an empty store, and so does one whose database was set aside. The budget slot is
kept under the node's name by the cluster, the reason names the remediation, the handoff record says what was replaced:
that is evidence, never permission. Adoption takes nothing further; it proves that the node is healthy, releases it and
gives the slot back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from healthd.core.model import NODE, ClearsBy, Mode, Remedy, Step
from healthd.remediation.decide.remediation import (
    ACTS,
    ORDERED,
    QUARANTINE_CODE,
    REPAIR_CODE,
    End,
    Remediation,
    begun,
    followed,
    parse_reason,
)
from healthd.remediation.decide.rules import QUARANTINE, REPLACE, kept_out, without_drain
from healthd.remediation.ports import NodeView, Slot
from healthd.remediation.records.handoff import CLOSE, HandoffRecord, instance_of, parse

_NO_ID = "without-an-id"


def repair_record(
    remediation: Remediation,
    now: datetime,
    *,
    before: str = "",
    following: Sequence[Remedy] = (),
    delegated: bool = False,
    revision: str = "",
) -> str:
    """The record that is left with the node before its GPUs are reset, it is rebooted, or its machine is given away.

    ``before``: the one that it has. ``following``: what can be tried after this. ``delegated``: the controller acts,
    and makes the entry in the history when it does. ``revision``: the one that decides about it, see ``canary``.
    """
    remedy, old = ACTS[remediation.step], parse(before) or HandoffRecord()
    is_reset = remedy is Remedy.RESET_GPU  # the machine stays, and no other daemon goes on from here
    is_same = is_reset or instance_of(old.became) == instance_of(remediation.machine)
    is_asked = delegated and not is_reset
    gives_away = remedy is Remedy.REPLACE_NODE and not delegated
    history = followed(old, remediation) if is_asked else begun(old, remediation, remedy, now, revision)
    return replace(
        old.lasting,
        remediation_id=remediation.id,
        machine="" if is_reset else instance_of(remediation.machine),
        remedy=remedy,
        attempt=remediation.attempts,
        asked=_not_as_before(now, old.asked),
        following=() if is_reset else tuple(following),
        became=old.became if is_same else "",
        evidence=remediation.evidence if remedy is Remedy.REPLACE_NODE else old.evidence,
        replaced=now if gives_away else old.replaced,
        given_up="",
        revision=revision if is_asked else "",
        history=history,
    ).text


def _not_as_before(now: datetime, before: datetime | None) -> datetime:
    """When a request was made, in whole seconds: what tells it from the one ``before``, also where the clock went back
    for a moment. Without this the controller would answer a command within the same second from its memory."""
    at = now.replace(microsecond=0)
    if before is None or not at <= before < at + CLOSE:
        return now
    return before + timedelta(seconds=1)


def found_remediation(
    view: NodeView,
    own: Sequence[Slot],
    record: str,
    *,
    platform_texts: Collection[str],
    mode: Mode,
    boot_id: str,
    now: datetime,
) -> Remediation | None:
    """The remediation to go on with, or None where nothing of ours is there.

    Without a place of ours nothing is: every user can write a text. With a slot and another's drain, or none,
    only the place is left, and is given back.
    """
    if not own:
        return None
    shown = parse(record) or HandoffRecord()
    named = _named(view, shown)
    if named is None:
        return _of_slot(view, shown, platform_texts, mode, now)
    return _of_drain(view, shown, named, mode=mode, boot_id=boot_id, now=now)


def _of_slot(
    view: NodeView, shown: HandoffRecord, platform_texts: Collection[str], mode: Mode, now: datetime
) -> Remediation:
    """By the slot and the record: no drain of ours is there, or the platform's text is in its place."""
    is_undrained = view.hold is None or view.hold.text in platform_texts
    if is_undrained and _follows_another(shown):
        follows = _follows(shown, without_drain(REPLACE), mode, now)
        return _by_command(replace(follows, code=shown.code), shown.code)
    if view.hold is None and shown.code == QUARANTINE_CODE:
        why, steps = "the slot of a command was left", without_drain(QUARANTINE)
        ordered = min(shown.since or now, now)
        return _by_command(replace(_remediation(_NO_ID, mode, now, why=why, steps=steps), opened=ordered), shown.code)
    if is_undrained and shown.remediation_id and (shown.machine or shown.remedy is Remedy.REBOOT_NODE):
        # Rebooted and not seen since: the platform may have put another machine in its place for that. A
        # reboot is also asked for where the platform did not say which machine it is.
        why = f"a repair of {shown.machine or 'a machine'}, under this name, was left unfinished"
        remediation = _remediation(shown.remediation_id, mode, now, why=why, steps=without_drain(QUARANTINE))
        return _by_command(replace(remediation, index=remediation.steps.index(Step.VERIFY)), shown.code)
    return _remediation(_NO_ID, mode, now, why="only a slot was left", steps=QUARANTINE, end=End.ABANDONED)


def _of_drain(
    view: NodeView, shown: HandoffRecord, named: tuple[str, str, str], *, mode: Mode, boot_id: str, now: datetime
) -> Remediation:
    """By our drain, with what the record adds to it."""
    code, component, remediation_id = named
    is_recorded = shown.remediation_id == remediation_id
    if is_recorded and _follows_another(shown):
        remediation = _follows(shown, REPLACE, mode, now)
    else:
        why = "our drain was found, and no remediation of it in the store"
        remediation = _remediation(remediation_id, mode, now, why=why, steps=QUARANTINE)
        # A reboot that was asked for in this remediation explains why the node is DOWN behind our drain; else nothing
        # does.
        drained_in = "" if is_recorded and shown.remedy is Remedy.REBOOT_NODE else boot_id
        remediation = replace(remediation, index=QUARANTINE.index(Step.VERIFY), drain_boot_id=drained_in)
    if is_recorded and shown.code not in ("", code, *ORDERED):  # the remediation had turned to another fault
        code, component = shown.code, ""
    is_automatic = view.hold is not None and view.hold.automatic
    remediation = replace(
        remediation,
        code=code,
        component=component,
        hold=view.hold,
        text=view.hold.text if view.hold else "",
        controller=view.controller,
        adopted=is_automatic and not shown.remediation_id,
        overwritten_boot_id=remediation.drain_boot_id if is_automatic else "",
    )
    return _by_command(remediation, code)


def _follows_another(shown: HandoffRecord) -> bool:
    """Whether the record says that this machine took the place of another."""
    return bool(shown.remediation_id and shown.machine and shown.is_of_replacement)


def _named(view: NodeView, shown: HandoffRecord) -> tuple[str, str, str] | None:
    """Code, component and remediation id that the drain names; where the cluster's controller put a text of its own in
    the slot of ours, those of the record."""
    if view.hold is None:
        return None
    if view.drained_by_itself and (shown.remediation_id or shown.code):
        return shown.code, str(NODE), shown.remediation_id or _NO_ID
    return parse_reason(view.hold.text)


def orphaned(view: NodeView, remediation_id: str, *, mode: Mode, boot_id: str, now: datetime) -> Remediation | None:
    """The remediation by which an operator has a drain of ours undone that none is open for; None where none is there.

    ``remediation_id``: of the remediation that the text names, or a new one where that is known to have ended. It
    verifies first, as any other, and undoes the drain only as it was found: text, user and stamp.
    """
    named = parse_reason(view.hold.text) if view.hold is not None else None
    if view.hold is None or named is None:
        return None
    remediation = _remediation(
        remediation_id or named[2],
        mode,
        now,
        why="our drain was found, and no remediation of it is open",
        steps=QUARANTINE,
    )
    return replace(
        remediation,
        code=named[0],
        component=named[1],
        hold=view.hold,
        text=view.hold.text,
        controller=view.controller,
        index=QUARANTINE.index(Step.VERIFY),
        drain_boot_id=boot_id,
    )


def has_booted(remediation: Remediation, booted_at: datetime | None) -> bool:
    """Whether the machine has booted since the drain that was found, by its own clock and the drain's stamp."""
    return remediation.hold is not None and booted_at is not None and booted_at.timestamp() > remediation.hold.stamp


def must_be_shown(remediation: Remediation, ends_by: ClearsBy | None, booted_at: datetime | None) -> bool:
    """Whether a fault that is not seen may be there all the same: a drain names it, only an act ends it, and none is
    known to have been made since. A boot ends all but what another machine is needed for."""
    if ends_by is None or remediation.hold is None or remediation.attempts or remediation.end is not None:
        return False
    return ends_by is ClearsBy.REPLACE or not has_booted(remediation, booted_at)


def _by_command(remediation: Remediation, code: str) -> Remediation:
    """An operator's command is still one: no mode is too low for it, and a quarantine stays one."""
    if code not in ORDERED:
        return remediation
    remediation = replace(remediation, code=code, component=str(NODE), command="as it was found with the cluster")
    if code == REPAIR_CODE:
        return remediation
    steps = kept_out(remediation.steps)
    return replace(remediation, steps=steps, index=steps.index(Step.STAY))


def _follows(given: HandoffRecord, steps: tuple[Step, ...], mode: Mode, now: datetime) -> Remediation:
    why = f"this machine follows {given.machine} under the same name"
    remediation = _remediation(given.remediation_id, mode, now, why=why, steps=steps)
    at = steps.index(Step.VERIFY)
    return replace(remediation, index=at, machine=given.machine, attempts=1, evidence=given.evidence)


def _remediation(
    remediation_id: str, mode: Mode, now: datetime, *, why: str, steps: tuple[Step, ...], end: End | None = None
) -> Remediation:
    """A remediation of which nothing is known but that it was there."""
    return Remediation(
        id=remediation_id,
        opened=now,
        since=now,
        mode=mode,
        code="",
        component="",
        remedy=Remedy.NONE,
        why=why,
        text="",
        steps=steps,
        fenced=True,
        end=end,
        note=why,
    )
