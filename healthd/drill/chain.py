"""The pure part of a drill: the faults that can be played, the links of a whole chain, its time limit, and the report.

A drill plays a fault where the real one would enter, and follows it to the steps that would be taken. It has a memory
of its own: nothing of it reaches the faults, the verdict or the remediations of the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from healthd.core.errors import UsageError

TITLE = "DRILL"
"""The first word of every message about a drill."""

IN_THE_LINE = "healthd drill, no error happened"
"""The label inside a kernel line of a drill, so that every quote of the line has it too."""

KERNEL_LIMIT_S = 15.0
"""A line of the kernel log is judged as it arrives, and the engine reconciles at once: more than this is broken."""
SPARE_S = 15.0
_JITTER = 1.1  # the daemon's own, of an interval


class DrillStage(StrEnum):
    """The links of the chain, in their order."""

    INJECTED = "injected"
    READ = "read"
    FINDING = "finding"
    FAULT = "fault"
    DIAGNOSIS = "diagnosis"
    DECISION = "decision"
    PLAN = "plan"


class Ended(StrEnum):
    """How a drill ended."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"


EXIT_CODE: Mapping[Ended, int] = {Ended.COMPLETE: 0, Ended.INCOMPLETE: 1, Ended.INTERRUPTED: 1, Ended.REFUSED: 2}


class DrillFault(Struct, frozen=True, kw_only=True):
    """A fault that can be played.

    ``check``: the check that must find it. ``codes``: the codes that it may report; ``{number}`` stands for the
    requested number. ``number``: the usual one; None where there is none to choose. ``silence``: the setting of the
    check, in seconds, that says how long a silence lasts before it is a finding. ``runs``: the least number of check
    runs. ``on``: the option that names the component.
    """

    name: str
    title: str
    enters: str
    check: str
    codes: tuple[str, ...]
    number: int | None = None
    silence: str = ""
    runs: int = 1
    on: str = ""

    @property
    def of_kernel(self) -> bool:
        """Whether it is a line of the kernel log."""
        return self.check.startswith("kernel.")

    def codes_of(self, number: int | None) -> tuple[str, ...]:
        """The codes, with the requested number."""
        return tuple(code.format(number=number) for code in self.codes)


_KINDS = (
    DrillFault(
        name="xid",
        title="an NVIDIA driver error in the kernel log",
        enters="a record is handed to the reader of the kernel log",
        check="kernel.xid",
        codes=("gpu.xid.{number}",),
        number=79,
        on="gpu",
    ),
    DrillFault(
        name="sxid",
        title="an NVSwitch error that the driver calls fatal, in the kernel log",
        enters="a record is handed to the reader of the kernel log",
        check="kernel.sxid",
        codes=("nvswitch.sxid.{number}",),
        number=20034,
    ),
    DrillFault(
        name="efa-loss",
        title="an EFA device disappears from the PCI bus",
        enters="/sys, as the check reads it, lacks the last EFA device",
        check="efa.devices",
        codes=("efa.missing", "efa.below_usual"),
    ),
    DrillFault(
        name="lustre-hang",
        title="a network file system does not answer",
        enters="a worker of the drill, which never answers, replaces the worker of the mount",
        check="lustre.io",
        codes=("lustre.io.hung",),
        silence="hung_after_s",
        runs=2,
        on="mount",
    ),
    DrillFault(
        name="nvml-hang",
        title="NVML, the GPU driver's library, does not answer",
        enters="a worker of the drill, which never answers, replaces the worker of NVML",
        check="nvml.probe",
        codes=("nvml.unresponsive",),
        silence="unresponsive_after_s",
        runs=2,
    ),
    DrillFault(
        name="remap-pending",
        title="a row remap of GPU memory waits for a reset",
        enters="one number in the answer of the NVML worker changes",
        check="gpu.remap",
        codes=("gpu.remap.pending",),
        on="gpu",
    ),
    DrillFault(
        name="read-only",
        title="a local disk takes no writes after an error",
        enters="one line of the mount table, as the check reads it, says so",
        check="host.filesystems",
        codes=("host.filesystem.read_only",),
        on="mount",
    ),
)
KINDS: Mapping[str, DrillFault] = {kind.name: kind for kind in _KINDS}


class DrillRequest(Struct, frozen=True, kw_only=True):
    """The request. ``who``: the operator. ``timeout_s``: replaces the limit. ``forced``: also on a busy node."""

    kind: DrillFault
    who: str
    number: int | None = None
    gpu: str = ""
    mount: str = ""
    timeout_s: float | None = None
    forced: bool = False


class StageReached(Struct, frozen=True, kw_only=True):
    """A link of the chain that was reached: seconds since the injection, and the evidence."""

    link: DrillStage
    at_s: float
    message: str


class Level(Struct, frozen=True, kw_only=True):
    """The decision in one mode. ``is_here``: the mode that holds on this node.

    ``action`` and ``reason`` as the policy returns them; ``cannot``: the remedies that this node cannot carry out, and
    why.
    """

    mode: str
    is_here: bool
    action: str
    reason: str
    steps: tuple[str, ...] = ()
    rule: str = ""
    rule_reason: str = ""
    ladder: tuple[str, ...] = ()
    cannot: Mapping[str, str] = field(default_factory=dict)


class DrillReport(Struct, frozen=True, kw_only=True):
    """The result of a drill.

    ``what``: the fault and its component, as text. ``check_runs``: the result of each check run, with the seconds.
    ``missing``: the link that never came; ``why``: the reason. ``plan``: the effect of each step now, as text, in
    ``plan_mode``. ``budget``: how many nodes are out, may be out, and exist. ``real``: faults that really opened
    meanwhile. ``notes``: what else the reader of the report must know.
    """

    id: str
    node: str
    kind: str
    what: str
    who: str
    began: datetime
    limit_s: float
    ended: Ended
    forced: bool = False
    marks: tuple[StageReached, ...] = ()
    check_runs: tuple[tuple[float, str], ...] = ()
    missing: DrillStage | None = None
    why: str = ""
    levels: tuple[Level, ...] = ()
    plan: tuple[str, ...] = ()
    plan_mode: str = ""
    budget: tuple[int, int, int] | None = None
    ends_by: str = ""
    real: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def took_s(self) -> float:
        """From the injection to the last link that was reached."""
        return self.marks[-1].at_s if self.marks else 0.0


def limit_s(kind: DrillFault, *, interval_s: float, timeout_s: float, silence_s: float) -> float:
    """How long the whole chain may take: the check runs at their interval, and the silence.

    ``timeout_s``: for one check run. ``silence_s``: see ``DrillFault.silence``.
    """
    if kind.of_kernel:
        return KERNEL_LIMIT_S
    extra = int(silence_s // (interval_s * _JITTER)) if kind.silence else 0
    return (kind.runs + extra) * interval_s * _JITTER + timeout_s + SPARE_S


def next_link(marks: Sequence[StageReached]) -> DrillStage | None:
    """The first link that was not reached; None where all were."""
    reached = {mark.link for mark in marks}
    return next((link for link in DrillStage if link not in reached), None)


def ended(marks: Sequence[StageReached], interrupted: str) -> Ended:
    """How a drill that began has ended. ``interrupted``: the reason for an early end, or ""."""
    if next_link(marks) is None:
        return Ended.COMPLETE
    return Ended.INTERRUPTED if interrupted else Ended.INCOMPLETE


def number_of(kind: DrillFault, asked: int | None) -> int | None:
    """The number to play. Raises UsageError for one that the kind does not take."""
    if kind.number is None and asked is not None:
        numbered = " and ".join(each.name for each in _KINDS if each.number is not None)
        raise UsageError(f"healthd drill: {kind.name} takes no number, got {asked}; only {numbered} do")
    return kind.number if asked is None else asked


def check_options(kind: DrillFault, *, gpu: str, mount: str) -> None:
    """Raises UsageError for an option that this kind does not take."""
    for option, value in (("gpu", gpu), ("mount", mount)):
        if value and kind.on != option:
            takers = ", ".join(each.name for each in _KINDS if each.on == option)
            raise UsageError(f"healthd drill: {kind.name} takes no --{option}, got {value!r}; only {takers} do")


def xid_line(pci: str, xid: int) -> str:
    """The driver's own form of an XID line, with the label of a drill."""
    return f"NVRM: Xid (PCI:{pci}): {xid}, pid='<unknown>', name=<unknown>, {IN_THE_LINE}"


def sxid_line(pci: str, sxid: int) -> str:
    """The driver's own form of an SXid line with the word Fatal, which beats any table; with the label of a drill."""
    return f"nvidia-nvswitch0: SXid (PCI:{pci}): {sxid}, Fatal, Link 00 {IN_THE_LINE}"


def banner(drill_id: str, what: str, began: datetime, who: str) -> str:
    """The notice at the top of every answer while a drill runs."""
    return (
        f"{TITLE} {drill_id} runs since {began:%H:%M:%S} UTC: {what}, started by {who}."
        " healthd does nothing about it; everything below is real and not part of the drill"
    )
