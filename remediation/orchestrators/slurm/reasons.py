"""The texts that Slurm itself writes into a node's reason, and those that it appends to a reason. Pure.

None of them is an operator's command, although its user is root or SlurmUser (slurmstepd's ``Kill task failed`` is
root's). A text that is in no row of this table is an operator's, or another program's, whichever user signed it; so is
a text of another user, which the orchestrator recognizes, since it knows SlurmUser.

slurmctld's ``set_node_reason`` writes its text where there is none, and appends it behind `` : `` where there is one
("message to be set/appended", slurmctld.h); 22.05 appends the texts about reboots only. ``Kill task failed`` comes as
an update of slurmd's and replaces the reason. The texts are those of the binaries that Debian ships (slurmctld,
libslurmfull.so of 22.05.8, 24.11.5, 26.05.5); tests/live/slurm/test_live_reasons.py looks for each row in the
Slurm that runs, and makes Slurm write those that a test can bring about.
"""

from __future__ import annotations

import re

from msgspec import Struct

from healthd.remediation.ports import Hold

SEPARATOR = " : "


class SlurmText(Struct, frozen=True, kw_only=True):
    """One text of Slurm's own. ``pattern``: a regular expression for all of it. ``printed``: the text in the binaries.
    ``when``: what makes Slurm write it."""

    pattern: str
    printed: str
    when: str


def _fixed(text: str, when: str) -> SlurmText:
    return SlurmText(pattern=re.escape(text), printed=text, when=when)


AUTOMATIC = (
    SlurmText(
        pattern=r"Kill task failed(?: \([^()]+\))?",  # 26.05 adds (JobId=7 StepId=batch)
        printed="Kill task failed",
        when="a process outlived UnkillableStepTimeout; overwrites any reason",
    ),
    _fixed("Prolog error", "the node's Prolog failed"),
    _fixed("Epilog error", "the node's Epilog failed"),
    _fixed("batch job complete failure", "slurmd could not end a batch job in order"),
    _fixed("Duplicate jobid", "slurmd has a job that slurmctld has given to other nodes"),
    _fixed("Not responding", "no answer within SlurmdTimeout"),
    _fixed("Node unexpectedly rebooted", "an unannounced new boot time, ReturnToService below 2"),
    _fixed("Low socket*core*thread count", "fewer than slurm.conf says"),
    _fixed("Low CPUs", "fewer than slurm.conf says"),
    _fixed("Low TmpDisk", "less than slurm.conf says"),
    SlurmText(
        pattern=r"Low RealMemory(?: \(reported:\d+ < [\d.]+% of configured:\d+\))?",
        printed="Low RealMemory",
        when="less than slurm.conf says",
    ),
    SlurmText(
        pattern=r"gres/\S+ count (?:reported lower than configured|too low) \(\d+ < \d+\)",
        printed="%s count reported lower than configured (%lu < %lu)",
        when="fewer devices than slurm.conf says",
    ),
    _fixed("ResumeTimeout reached", "power saving woke a node that did not come"),
)
"""The reasons of automatic drains and downs. One reason may hold several, with ", " between them."""

REBOOTS = ("reboot requested", "reboot issued", "reboot complete", "reboot timed out")
"""The texts that Slurm appends while it carries out ``scontrol reboot``, where that names no reason of its own."""

_ON_THE_WAY = tuple(text for text in REBOOTS if text != "reboot complete")
"""That text comes after a reboot with ``nextstate=DOWN`` alone: an operator or a program wants the node out, for
another cause than it was out for before."""

_ONE = "|".join(row.pattern for row in AUTOMATIC)
_AUTOMATIC = re.compile(f"(?:{_ONE})(?:, (?:{_ONE}))*")


def hold_of(reason: str, user: str, stamp: int) -> Hold:
    """The hold that a reason, its user and its stamp show."""
    text, remark = without_remarks(reason)
    return Hold(text=text, user=user, stamp=stamp, remark=remark, automatic=is_automatic(text))


def is_automatic(text: str) -> bool:
    """Whether Slurm wrote all of this by itself."""
    return _AUTOMATIC.fullmatch(text) is not None


def without_remarks(reason: str) -> tuple[str, str]:
    """A reason in two: the text that was written, and Slurm's additions, such as " : Not responding" or " : reboot
    issued": a drain outlives ``scontrol reboot``, also with ASAP from 24.11 on. The end of a reboot after which the
    node stays down stays with the text."""
    text = _before_additions(reason, _ON_THE_WAY)
    return text, reason.removeprefix(text)


def as_written(reason: str) -> str:
    """A reason without any addition of Slurm's."""
    return _before_additions(reason, REBOOTS)


def _before_additions(reason: str, reboots: tuple[str, ...]) -> str:
    text = reason
    while (parts := text.rpartition(SEPARATOR))[0] and (parts[2] in reboots or is_automatic(parts[2])):
        text = parts[0]
    return text
