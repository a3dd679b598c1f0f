"""One node as Slurm shows it, for provisioners: flags, reason, address, features. Text only.

``scontrol -o show node`` of Slurm 22.05.8; tests/live/aws repeats it with a real slurmctld.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from healthd.core.errors import BackendUnknown
from healthd.remediation.decide.remediation import is_our_text
from healthd.remediation.orchestrators.slurm.reasons import as_written
from healthd.remediation.records.handoff import epoch_time

ACTION_REBOOT, ACTION_REPLACE = "Action:Reboot", "Action:Replace"
"""The reasons that HyperPod acts upon, to the letter; it ignores any other reason (SageMaker AI Developer Guide,
"Replace a faulty instance", 2026)."""

REPLACE_TEXT, REBOOT_TEXT = "healthd: to be replaced", "healthd: to be rebooted"
"""The reasons of a drain that is a replacement, and of a reboot that Slurm carries out."""

OUR_TEXTS = frozenset({ACTION_REBOOT, ACTION_REPLACE, REPLACE_TEXT, REBOOT_TEXT})
"""Every reason that a provisioner may leave on a node which the engine holds."""

MANAGERS_TEXTS = frozenset({"Static node maintenance: unhealthy node is being replaced"})
"""The reason that clustermgtd sets instead of ours while it carries out the replacement, and under which the new
machine starts (aws-parallelcluster-node, clustermgtd.py, _handle_unhealthy_static_nodes)."""

_HELD = ("DRAIN", "DOWN", "FAIL", "REBOOT", "POWER", "INVALID")
_RECORD = re.compile(r"NodeName=(\S+) .*? State=(\S+)")
_REASON = re.compile(r" Reason=(.*?) \[[^\[\]@\s]+@[^\]\s]+\]")


class Scontrol(Protocol):
    """scontrol, with a deadline. Raises BackendRefused or BackendUnknown; returns its output."""

    def __call__(self, *args: str) -> str:
        """Run it with these arguments."""


class SlurmNode(Struct, frozen=True, kw_only=True):
    """``flags``: the state's words, upper case. ``reason``: without Slurm's own additions behind it; "" on a node
    that is in service, which shows its last one in Slurm 24.11.

    ``booted``: when the node last booted, as it reported to slurmctld; None where that is not known.
    """

    flags: frozenset[str]
    reason: str = ""
    address: str = ""
    features: frozenset[str] = frozenset()
    booted: datetime | None = None

    @property
    def rebooting(self) -> bool:
        """Whether a reboot was requested or is in progress."""
        return any(flag.startswith("REBOOT") for flag in self.flags)

    @property
    def state(self) -> str:
        """The flags, for a sentence."""
        return "/".join(sorted(self.flags))


def read_node(scontrol: Scontrol, node: str) -> SlurmNode:
    """This node now. Raises BackendRefused or BackendUnknown."""
    answer = scontrol("-o", "show", "node", node)
    record = _RECORD.match(answer)
    if record is None or record[1] != node:
        raise BackendUnknown(f"scontrol show node {node}: expected its record, got {answer[:200]!r}")
    fields = answer.partition(" Reason=")[0]
    reason = _REASON.search(answer)
    booted = _field(fields, "BootTime")  # with SLURM_TIME_FORMAT=%s; None where slurmctld has no report of it
    flags = frozenset(word.rstrip("*~#!%$@^-").upper() for word in record[2].split("+"))
    is_held = any(flag.startswith(_HELD) for flag in flags)
    return SlurmNode(
        flags=flags,
        reason=as_written(reason[1]) if reason and is_held else "",
        address=_field(fields, "NodeAddr"),
        features=frozenset(filter(None, _field(fields, "ActiveFeatures").split(","))),
        booted=epoch_time(booted),
    )


def is_ours(reason: str) -> bool:
    """Whether a reason is one that healthd writes. A hint: the caller holds the proof."""
    return reason in OUR_TEXTS or is_our_text(reason)


def our_slot(scontrol: Scontrol, node: str) -> str:
    """The reservation of ours that keeps jobs off this node, or "". Raises BackendRefused or BackendUnknown."""
    for line in scontrol("-o", "show", "reservation").splitlines():
        name = line.removeprefix("ReservationName=").partition(" ")[0]
        if name.startswith("healthd-") and f" Nodes={node} " in line:
            return name
    return ""


def _field(text: str, name: str) -> str:
    found = re.search(rf" {name}=(\S+)", text)
    return found[1] if found and found[1] != "(null)" else ""
