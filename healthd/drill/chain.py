"""The drill, as far as it can be decided without a machine: which faults can be played, what a whole chain is, how long
it may take, and what the report of one comes to. Pure.

A drill plays a fault that is not there, and follows it from the place where the real one would enter to the steps that
would be taken. It has a memory of its own: nothing of it reaches the faults, the verdict or the cases of the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from healthd.core.errors import UsageError

TITLE = "DRILL"
"""How every sentence about a drill begins, wherever it is said."""

IN_THE_LINE = "healthd drill, no error happened"
"""What a kernel line of a drill says of itself, so that whoever quotes it quotes that too."""

KERNEL_LIMIT_S = 15.0
"""A line of the kernel log is judged as it arrives, and the engine turns at once: more than this is broken."""
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
    """What became of a drill."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"


EXIT_CODE: Mapping[Ended, int] = {Ended.COMPLETE: 0, Ended.INCOMPLETE: 1, Ended.INTERRUPTED: 1, Ended.REFUSED: 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillFault:
    """A fault that can be played.

    ``check``: the one that must find it. ``codes``: what it may call it; ``{number}`` stands for the number that was
    asked for. ``number``: the usual one; None where there is none to choose. ``patience``: the setting of the check
    that says how long a silence lasts before it is a finding, in seconds. ``looks``: how often the check must look, at
    least. ``on``: the option that names the part.
    """

    name: str
    title: str
    enters: str
    check: str
    codes: tuple[str, ...]
    number: int | None = None
    patience: str = ""
    looks: int = 1
    on: str = ""

    @property
    def of_kernel(self) -> bool:
        """Whether it is a line of the kernel log."""
        return self.check.startswith("kernel.")

    def codes_of(self, number: int | None) -> tuple[str, ...]:
        """The codes, with the number that was asked for."""
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
        title="an EFA device is gone from the PCI bus",
        enters="the last EFA device is left out of what is read from /sys",
        check="efa.devices",
        codes=("efa.missing", "efa.below_usual"),
    ),
    DrillFault(
        name="lustre-hang",
        title="a network file system answers nothing",
        enters="a worker of the drill's own, which never answers, stands for the worker of the mount",
        check="lustre.io",
        codes=("lustre.io.hung",),
        patience="hung_after_s",
        looks=2,
        on="mount",
    ),
    DrillFault(
        name="nvml-hang",
        title="the GPU driver's library answers nothing",
        enters="a worker of the drill's own, which never answers, stands for the worker of NVML",
        check="nvml.probe",
        codes=("nvml.unresponsive",),
        patience="unresponsive_after_s",
        looks=2,
    ),
    DrillFault(
        name="remap-pending",
        title="a row remap of GPU memory waits for a reset",
        enters="one number of what the NVML worker answers is changed",
        check="gpu.remap",
        codes=("gpu.remap.pending",),
        on="gpu",
    ),
    DrillFault(
        name="read-only",
        title="a local disk takes no writes after an error",
        enters="one line of the mount table that is read says so",
        check="host.filesystems",
        codes=("host.filesystem.read_only",),
        on="mount",
    ),
)
KINDS: Mapping[str, DrillFault] = {kind.name: kind for kind in _KINDS}


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillOrder:
    """What was asked for, and by whom. ``timeout_s``: instead of the drill's own limit. ``forced``: whatever runs."""

    kind: DrillFault
    who: str
    number: int | None = None
    gpu: str = ""
    mount: str = ""
    timeout_s: float | None = None
    forced: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StageReached:
    """A link of the chain that was reached: seconds since the injection, and what was seen there."""

    link: DrillStage
    at_s: float
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """What would be decided at one level (``mode``). ``is_here``: the level that holds on this node.

    ``action`` and ``words`` as the policy says them; ``cannot``: the remedies that nobody here can carry out, and why.
    """

    mode: str
    is_here: bool
    action: str
    words: str
    steps: tuple[str, ...] = ()
    rule: str = ""
    rule_reason: str = ""
    ladder: tuple[str, ...] = ()
    cannot: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillReport:
    """What a drill came to.

    ``what``: the fault and its part, in words. ``looks``: what the check said look after look, with the seconds.
    ``missing``: the link that never came, and why it did not. ``plan``: what each step would do now, in words, at
    ``plan_mode``. ``budget``: how many nodes are out, may be, and are there. ``real``: faults that really opened
    meanwhile. ``notes``: what stands beside it and matters to whoever reads it.
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
    looks: tuple[tuple[float, str], ...] = ()
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


def limit_s(kind: DrillFault, *, interval_s: float, timeout_s: float, patience_s: float) -> float:
    """How long the whole chain may take: as often as the check must look at its interval, with what it waits for.

    ``timeout_s``: what one look of the check may take. ``patience_s``: see ``Kind.patience``.
    """
    if kind.of_kernel:
        return KERNEL_LIMIT_S
    extra = int(patience_s // (interval_s * _JITTER)) if kind.patience else 0
    return (kind.looks + extra) * interval_s * _JITTER + timeout_s + SPARE_S


def next_link(marks: Sequence[StageReached]) -> DrillStage | None:
    """The first link that was not reached; None where all were."""
    reached = {mark.link for mark in marks}
    return next((link for link in DrillStage if link not in reached), None)


def ended(marks: Sequence[StageReached], interrupted: str) -> Ended:
    """What a drill came to that was begun. ``interrupted``: why it was ended before its time, or ""."""
    if next_link(marks) is None:
        return Ended.COMPLETE
    return Ended.INTERRUPTED if interrupted else Ended.INCOMPLETE


def number_of(kind: DrillFault, asked: int | None) -> int | None:
    """The number to play. Raises UsageError for one that the kind does not take."""
    if kind.number is None and asked is not None:
        numbered = " and ".join(each.name for each in _KINDS if each.number is not None)
        raise UsageError(f"healthd drill: {kind.name} takes no number, {asked} was given; {numbered} do")
    return kind.number if asked is None else asked


def check_options(kind: DrillFault, *, gpu: str, mount: str) -> None:
    """Raises UsageError for an option that says nothing about this kind."""
    for option, value in (("gpu", gpu), ("mount", mount)):
        if value and kind.on != option:
            takers = ", ".join(each.name for each in _KINDS if each.on == option)
            raise UsageError(f"healthd drill: {kind.name} has no --{option}, {value!r} was given; it is for {takers}")


def xid_line(pci: str, xid: int) -> str:
    """The driver's own form of an XID line, labelled in its words."""
    return f"NVRM: Xid (PCI:{pci}): {xid}, pid='<unknown>', name=<unknown>, {IN_THE_LINE}"


def sxid_line(pci: str, sxid: int) -> str:
    """The driver's own form of an SXid line with the word Fatal, which beats any table; labelled in its words."""
    return f"nvidia-nvswitch0: SXid (PCI:{pci}): {sxid}, Fatal, Link 00 {IN_THE_LINE}"


def banner(drill_id: str, what: str, began: datetime, who: str) -> str:
    """What stands at the top of every answer while a drill runs."""
    return (
        f"{TITLE} {drill_id} runs since {began:%H:%M:%S} UTC: {what}, asked for by {who}."
        " Nothing of it is in what follows, and nothing of it is acted on: what follows is real"
    )
