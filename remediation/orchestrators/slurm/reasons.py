"""What Slurm itself writes into a node's reason: whole texts, and what it appends to a text that stands. Pure.

None of it is a person's order, although its user is root or SlurmUser (slurmstepd's ``Kill task failed`` is root's). A
text that is in no row of this table is a person's, or another program's, whoever signed it; so is one that another user
signed, which the orchestrator tells, since it knows SlurmUser.

slurmctld's ``set_node_reason`` writes its text where there is none, and appends it behind `` : `` where there is one
("message to be set/appended", slurmctld.h); 22.05 appends the words about reboots only. ``Kill task failed`` comes as
an update of slurmd's and takes the place of what stands. The words are those of the binaries that Debian ships
(slurmctld, libslurmfull.so of 22.05.8, 24.11.5, 26.05.5); tests/integration/slurm/test_live_reasons.py looks for each
row in the Slurm that runs, and makes Slurm write those that a test can bring about.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from healthd.remediation.ports import Hold

SEPARATOR = " : "


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmText:
    """One text of Slurm's own. ``pattern``: a regular expression for all of it. ``printed``: how it stands in the
    binaries. ``when``: what makes Slurm write it."""

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
    _fixed("Node unexpectedly rebooted", "a new boot time that nobody announced, ReturnToService below 2"),
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
"""The reasons of drains and downs that nobody ordered. Several at once stand in one reason, with ", " between them."""

REBOOTS = ("reboot requested", "reboot issued", "reboot complete", "reboot timed out")
"""What Slurm appends while it carries out ``scontrol reboot``: somebody's order, which a drain of ours does not
cover."""

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
    """A reason in two: what was written, and what Slurm appended to it, " : Not responding" for one. What it appends
    about a reboot stays with the text: a node that somebody has rebooted is not as it was left."""
    text = reason
    while (parts := text.rpartition(SEPARATOR))[0] and is_automatic(parts[2]):
        text = parts[0]
    return text, reason.removeprefix(text)


def as_written(reason: str) -> str:
    """A reason without all that Slurm appended to it, words about reboots too."""
    text = reason
    while (parts := text.rpartition(SEPARATOR))[0] and (parts[2] in REBOOTS or is_automatic(parts[2])):
        text = parts[0]
    return text
