"""The vocabulary: the messages between the stages of healthd.

Every message is a frozen struct, whose methods only derive values from its own fields. Nothing here reads a clock, a
file or a setting, and nothing here knows a source, a check or a back end. Times are aware UTC datetimes; units are in
the names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

# ---------------------------------------------------------------------------------------------------------------------
# words


class Severity(StrEnum):
    """How bad a finding is for a job that would start now."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Status(StrEnum):
    """The result of one run of one check. UNKNOWN is never healthy and never alone a reason to repair."""

    OK = "ok"
    FINDINGS = "findings"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not_applicable"


class Verdict(StrEnum):
    """The state of a node for a job. Worst first: critical, unknown, warning, ok."""

    CRITICAL = "critical"
    UNKNOWN = "unknown"
    WARNING = "warning"
    OK = "ok"


class Remedy(StrEnum):
    """The remedy that a fault calls for. The first six form a ladder; ASK_HUMAN stands beside it."""

    NONE = "none"
    WATCH = "watch"
    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    REPLACE_NODE = "replace_node"
    ASK_HUMAN = "ask_human"


class ClearsBy(StrEnum):
    """The evidence that closes a fault which came from a log line. Age never does.

    NOTHING: the line is news, not a state, and is never held open. LOG_LINE: a later line says that it is over.
    """

    NOTHING = "nothing"
    LOG_LINE = "log_line"
    JOB_END = "job_end"
    GPU_RESET = "gpu_reset"
    DRIVER_RELOAD = "driver_reload"
    REBOOT = "reboot"
    REPLACE = "replace"


class ReadingKind(StrEnum):
    """GAUGE: a level. COUNTER: grows until its epoch ends; only differences inside one epoch mean anything."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Mode(StrEnum):
    """How far healthd may go: only read; take a node out and put it back; repair it too, after an operator's approval
    or without."""

    OBSERVE = "observe"
    QUARANTINE = "quarantine"
    APPROVE = "approve"
    REPAIR = "repair"

    @property
    def repairs(self) -> bool:
        """Whether nodes are repaired, with an approval or without."""
        return self in (Mode.APPROVE, Mode.REPAIR)


MODE_RANK = {Mode.OBSERVE: 0, Mode.QUARANTINE: 1, Mode.APPROVE: 2, Mode.REPAIR: 3}
"""How far each mode goes."""


class Action(StrEnum):
    """The action that a decision calls for now."""

    HOLD = "hold"
    QUARANTINE = "quarantine"
    REPAIR = "repair"
    RELEASE = "release"
    PAGE = "page"


class ClusterTrouble(StrEnum):
    """States of the cluster that page without a request of a node: each begins and ends with its cause."""

    DRAIN_STUCK = "drain_stuck"  # a pod that a rule evicts does not go
    AGENT_SILENT = "agent_silent"  # no heartbeat of healthd on a node that is Ready
    NODE_DOWN = "node_down"  # not Ready, and no repair of it is requested
    NO_POLICIES = "no_policies"  # the API server does not hold agents to their own nodes
    NO_CLAIM = "no_claim"  # healthd's taint without a claim on the budget
    LEFT_FENCE = "left_fence"  # healthd's fence alone, without a claim on the budget
    NO_TAINT = "no_taint"  # a claim without healthd's taint
    ODD_CLAIM = "odd_claim"  # a claim that is no claim of its node's agent
    STRAY_CLAIM = "stray_claim"  # a claim in a scope that the label of its node does not name
    ODD_RECORD = "odd_record"  # a handoff record that is none of its node's agent
    UNCOVERED = "uncovered"  # out by healthd, and outside the controller's selector


class RunningJob(Struct, frozen=True, kw_only=True):
    """A job on the node, as its cluster shows it; "" and 0 for what that does not tell. ``nodes``: how many it has."""

    id: str
    partition: str = ""
    qos: str = ""
    account: str = ""
    nodes: int = 0

    def __str__(self) -> str:
        reported = {"partition": self.partition, "qos": self.qos, "account": self.account, "nodes": self.nodes}
        return ", ".join([f"job {self.id}", *(f"{name} {value}" for name, value in reported.items() if value)])


class Refusal(StrEnum):
    """Why healthd does nothing, or less: one label beside the sentence, for a metric that cannot grow without bound."""

    OBSERVE = "observe"
    SHADOW = "shadow"  # the mode of its rule alone
    LOWERED = "lowered"  # the mode or its rule, since the remediation was opened
    OPTED_OUT = "opted_out"
    ACKNOWLEDGED = "acknowledged"
    FOREIGN_HOLD = "foreign_hold"
    MANAGED = "managed"  # the platform acts on this machine already, or is busy
    REMEDIATION_OPEN = "remediation_open"
    CORRELATED = "correlated"
    HELD_BACK = "held_back"  # many nodes had the same fault within days: held once, for the fleet
    BUDGET = "budget"
    RATE = "rate"  # of replacements
    LEMON = "lemon"
    EXHAUSTED = "exhausted"  # every remedy of the ladder was tried
    CANNOT = "cannot"  # no provisioner or driver here can carry out the remedy
    PERSON = "person"  # only an operator can settle it
    NOT_NEEDED = "not_needed"  # a command to repair a node that is not broken
    NOT_PERMITTED = "not_permitted"  # the caller may not run this command
    NOT_IDLE = "not_idle"
    APPROVAL = "approval"  # the act waits for `healthd approve`
    FROZEN = "frozen"  # a freeze of the fleet or of the configuration is on
    MAINTENANCE = "maintenance"  # an administrator's window is on the node: nothing irreversible inside it
    NOT_WELL = "not_well"
    LATE = "late"  # the command is so old that no caller waits for it
    DOWN = "down"
    UNREADABLE = "unreadable"  # no answer, so nothing is known
    REFUSED = "refused"  # the cluster or the provider refused
    OVERDUE = "overdue"  # out of service, or not moved, for longer than its bound
    STUCK = "stuck"  # no reconcile of the engine succeeds
    ORPHAN = "orphan"  # there is a drain of ours without an open remediation


class Step(StrEnum):
    """One act of the engine: recorded, done, then verified.

    STAY: out until an operator runs a command.
    """

    SLOT = "slot"
    DRAIN = "drain"
    WAIT_IDLE = "wait_idle"
    COLLECT = "collect"
    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"
    STAY = "stay"
    VERIFY = "verify"
    RELEASE = "release"


REPAIRS = frozenset({Step.RESET, Step.REBOOT, Step.REPLACE})
"""The steps that repair."""

# Ladders, as data: a larger number is worse (Severity), or goes further (Remedy).
SEVERITY_RANK: Mapping[Severity, int] = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}
REMEDY_RANK: Mapping[Remedy, int] = {
    Remedy.NONE: 0,
    Remedy.WATCH: 1,
    Remedy.RESTART_APP: 2,
    Remedy.ASK_HUMAN: 3,
    Remedy.RESET_GPU: 4,
    Remedy.REBOOT_NODE: 5,
    Remedy.REPLACE_NODE: 6,
}

# ---------------------------------------------------------------------------------------------------------------------
# messages


class Component(Struct, frozen=True, kw_only=True):
    """A part of the node with a stable identity: ``gpu:GPU-<uuid>``, ``efa:rdmap0s6``, ``mount:/fsx``, ``node``.

    ``aliases`` are other names of the same part (a PCI address, an index); they do not take part in equality.
    A GPU whose UUID is not known yet is named by its PCI address: ``gpu:0000:05:00``.
    """

    kind: str
    id: str = ""
    aliases: tuple[str, ...] = ()

    @classmethod
    def named(cls, text: str) -> Component:
        """The component of a text such as ``gpu:GPU-<uuid>`` or ``node``."""
        kind, _, name = text.partition(":")
        return cls(kind=kind, id=name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Component) and (self.kind, self.id) == (other.kind, other.id)

    def __hash__(self) -> int:
        return hash((self.kind, self.id))

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}" if self.id else self.kind

    @property
    def gpu_index(self) -> int | None:
        """NVML's index of a GPU, where one of its names is a number."""
        names = (self.id, *self.aliases) if self.kind == "gpu" else ()
        return next((int(name) for name in names if name.isascii() and name.isdigit()), None)

    def all_names(self) -> tuple[str, ...]:
        """Every name of this part, the stable one first: ``gpu:GPU-…``, ``gpu:0000:05:00``."""
        return (str(self), *(f"{self.kind}:{alias}" for alias in self.aliases))


NODE = Component(kind="node")
CLUSTER = "cluster"
"""The scope of the whole fleet. It comes first in the order in which scopes are taken."""


def gpu_component(*, uuid: str | None = None, pci: str | None = None, index: int | None = None) -> Component:
    """The component of one GPU, named by the most stable name that is known: UUID, else PCI address, else index."""
    names = [name for name in (uuid, pci, None if index is None else str(index)) if name]
    if not names:
        raise ValueError("a GPU component needs a UUID, a PCI address or an index")
    return Component(kind="gpu", id=names[0], aliases=tuple(names[1:]))


_PCI_ADDRESS = r"(?ai)(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-7])?"


def pci_address(text: str) -> str:
    """One form for the three in use: ``0000:10:1c`` from ``0000:10:1c``, ``00000000:10:1C.0`` or ``0000:10:1c.0``.

    XID lines carry no function digit, NVML pads the domain to eight digits and writes upper case (facts: NVIDIA
    open-gpu-kernel-modules kernel_rc.c; pynvml nvmlDeviceGetPciInfo). Raises ValueError for anything else.
    """
    parts = re.fullmatch(_PCI_ADDRESS, text.strip())
    if parts is None:
        raise ValueError(f"{text!r} is not a PCI address; expected one like 0000:10:1c or 00000000:10:1C.0")
    domain, bus, device = (int(part or "0", 16) for part in parts.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}"


class Reading(Struct, frozen=True, kw_only=True):
    """One number a check read. ``name`` ends in its unit; ``epoch``: the driver load, boot or reset it belongs to.

    ``limit``: how much it may grow, or the value that a test requires, where that differs from part to part; it
    replaces the declared number. ``limit_source``: the source of that limit.
    """

    component: Component
    name: str
    value: float
    kind: ReadingKind = ReadingKind.GAUGE
    epoch: str = ""
    limit: float | None = None
    limit_source: str = ""


class Repeats(Struct, frozen=True, kw_only=True):
    """How often something must be seen to count: ``times`` on one component within ``window_s``.

    ``distinct``: the key in a finding's evidence of which each value counts once: ``"pids"``, for as many processes.
    Without it each finding counts as often as its evidence's ``count`` says, else once.
    """

    times: int
    window_s: float
    distinct: str = ""


class Finding(Struct, frozen=True, kw_only=True):
    """Something wrong, in the vendor's words, at one place and time.

    ``time`` is when it happened (a log line) or was seen (a level); a check may leave it None and the runner stamps it.
    ``clears_by`` is None for a level, which closes when its check no longer reports it.
    ``symptom_of`` names codes that, open on the same component or on the node, explain this one.
    ``lasting_s`` and ``repeats``: it counts only once it was seen for so long, or so often.
    """

    code: str
    severity: Severity
    component: Component
    message: str
    remedy: Remedy = Remedy.NONE
    evidence: Mapping[str, Any] = field(default_factory=dict)
    time: datetime | None = None
    clears_by: ClearsBy | None = None
    symptom_of: tuple[str, ...] = ()
    lasting_s: float = 0.0
    repeats: Repeats | None = None


class Clearance(Struct, frozen=True, kw_only=True):
    """Evidence, seen by a check or by the daemon, that faults of a component are over. ``component`` NODE means all.

    ``code``: only the fault of this code is; empty, every fault that such evidence ends.
    """

    by: ClearsBy
    component: Component = NODE
    time: datetime | None = None
    note: str = ""
    code: str = ""


class Result(Struct, frozen=True, kw_only=True):
    """A check's return value. Build it with ``check.ok``, ``check.judged``, ``check.unknown``,
    ``check.not_applicable``, ``check.nothing_expected``.

    ``undecided`` are parts that could not be read while others could: each counts as unknown, none hides the rest.
    ``clearances`` are evidence, seen on the way, that earlier faults are over.
    ``not_reported`` are codes, each at its component, that were not reported although the rest was read: a tool that is
    not installed, a call that a GPU does not answer. None of them is over because no finding has it. The code "" is
    every code, at the component, its parts (``nvlink:GPU-…/3``) and the node.
    ``do``: the operator's next step about an unknown; "" where `healthd doctor` names it.
    ``is_expected`` False: a run that is not applicable because nothing asks for what it would find; it ends earlier
    faults as a run that found nothing does.
    """

    status: Status
    reason: str = ""
    do: str = ""
    findings: tuple[Finding, ...] = ()
    readings: tuple[Reading, ...] = ()
    clearances: tuple[Clearance, ...] = ()
    undecided: tuple[str, ...] = ()
    not_reported: tuple[tuple[Component, str], ...] = ()
    is_expected: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether the check could read everything: it is not unknown and has no gap."""
        return self.status is not Status.UNKNOWN and not self.undecided

    def with_findings(self, findings: tuple[Finding, ...]) -> Result:
        """The result of the same run with these findings alone."""
        return replace(self, findings=findings, status=status_of(findings, self.undecided))


def status_of(findings: Collection[Finding], undecided: Collection[str]) -> Status:
    """The status of a run that could read: findings if there are any, else unknown if a part could not be read, else
    ok."""
    return Status.FINDINGS if findings else Status.UNKNOWN if undecided else Status.OK


class Outcome(Struct, frozen=True, kw_only=True):
    """One run of one check: its result, when it began and how long it took.

    ``read_at``: when its readings were read, where it keeps those of an earlier run because its source was paused.
    """

    check: str
    result: Result
    at: datetime
    duration_s: float
    optional: bool = False
    read_at: datetime | None = None

    def keeping(self, before: Outcome) -> Outcome:
        """This run, with the readings of an earlier one that it has not read again."""
        own = {(str(each.component), each.name) for each in self.result.readings}
        kept = [each for each in before.result.readings if (str(each.component), each.name) not in own]
        if not kept:
            return self
        result = replace(self.result, readings=(*self.result.readings, *kept))
        return replace(self, result=result, read_at=before.read_at or before.at)

    @property
    def counts_as_unknown(self) -> bool:
        """Whether it keeps the node from being called healthy: it could not read everything, and is not optional."""
        return not self.optional and not self.result.is_whole


class Root(Struct, frozen=True, kw_only=True):
    """One fault behind a diagnosis that no other open fault explains."""

    code: str
    severity: Severity
    remedy: Remedy
    since: datetime


class Diagnosis(Struct, frozen=True, kw_only=True):
    """The fault of a component, folded from findings over time, and the remedy that it calls for.

    ``roots``: the open faults there that no other explains, most far-reaching first, its own among them.
    """

    code: str
    component: Component
    severity: Severity
    remedy: Remedy
    reasons: tuple[str, ...]
    since: datetime
    codes: tuple[str, ...] = ()
    roots: tuple[Root, ...] = ()


class Decision(Struct, frozen=True, kw_only=True):
    """The policy's decision for now, or why it holds: the log, the audit and tests show its ``reason``.

    ``steps`` carry out the first remedy of ``ladder``; the others follow where it does not help. ``rule``: the policy's
    rule that decides. ``refusal``: the kind of refusal, of everything or of the repair; None for none.
    """

    action: Action
    reason: str
    diagnosis: Diagnosis | None = None
    steps: tuple[Step, ...] = ()
    ladder: tuple[Remedy, ...] = ()
    rule: str = ""
    refusal: Refusal | None = None


class Refused(Struct, frozen=True, kw_only=True):
    """Why healthd does not do something now: the kind, and the sentence."""

    kind: Refusal
    reason: str


class Event(Struct, frozen=True, kw_only=True):
    """One line of the audit. ``kind``: check, fault, decision, step, command, hook, job, daemon, drill,
    sim. ``text``: a sentence.
    """

    at: datetime
    kind: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
