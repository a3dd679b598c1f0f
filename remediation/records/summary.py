"""The summary that a node leaves with the cluster: its state, the cause, and the step. Pure.

    healthd state=draining at=EPOCH since=EPOCH mode=repair step=wait_idle code=gpu.xid.79 on=GPU_3 more=2
        type=p5.48xlarge job=8812:0 dom=9f86d081 driver=580.95.05 note=waits for 8813 of alice

    healthd state=ok at=EPOCH stopped=1 mode=repair

It is for the reader of a fleet and is evidence of nothing: no decision reads it. A node writes it when its state
changes, and as a heartbeat, so that silence shows; a daemon that is stopped on purpose writes it once more. Every word
of it has no blank; ``note`` is the last and takes the rest. Words that are not known are left out, in whatever order
they come.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import Mode
from healthd.remediation.records.handoff import PREFIX, epoch_text, epoch_time, line_of, plain, word, words_in

MOST_BYTES = 180
"""Of a whole summary. With the wrapper that a cluster needs around it, it is at most 200 bytes."""
COMPONENT_CHARACTERS = 50
"""Of a component in a summary: as long as the name of an NVLink, ``nvlink:GPU-`` with a UUID and ``/17``."""

SILENT_AFTER = 2.5
"""How many heartbeats old a summary may be before its node is silent: one may be lost, and the next one late."""


class NodeState(StrEnum):
    """The state of a node, as it says itself. The first four are its verdict where healthd does nothing about it.

    HELD: out, without a repair: until the fault is over, or by an operator's command. DRAINING: on its way out: waits
    for a slot, for the drain, or for its jobs. REPAIRING: evidence, reset, reboot or replacement, and the checks after
    it. NEEDS_OPERATOR: healthd pages for this node.
    """

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"
    HELD = "held"
    DRAINING = "draining"
    REPAIRING = "repairing"
    NEEDS_OPERATOR = "needs-operator"


class NodeSummary(Struct, frozen=True, kw_only=True):
    """A summary, read. A field that it does not have is empty, None or 0; times have whole seconds.

    ``code`` and ``component``: the worst fault, or the check that is unknown; ``more``: how many other faults are open.
    ``since``: when that began, or the step. ``at``: when the node wrote it. ``stopped``: its daemon then ended on
    purpose. ``note``: the thing that it waits for, or the reason. ``job``: the last run of a job that it is to blame
    for, as ``ID:RESTARTS``; ``domain``: the NVLink domain that its GPUs are in, a word that all of its nodes have;
    ``driver``: the NVIDIA driver's version. Each of these is left out where there is no room for it.
    """

    state: NodeState
    at: datetime | None = None
    stopped: bool = False
    code: str = ""
    component: str = ""
    more: int = 0
    mode: Mode | None = None
    since: datetime | None = None
    instance_type: str = ""
    step: str = ""
    job: str = ""
    domain: str = ""
    driver: str = ""
    note: str = ""

    def tells_the_same(self, before: NodeSummary | None) -> bool:
        """Whether only the time, the note and the number of further faults differ: not worth a write of its own."""
        return before is not None and self._news == before._news

    @property
    def _news(self) -> NodeSummary:
        return replace(self, at=None, note="", more=0)

    @property
    def text(self) -> str:
        """One line of at most ``MOST_BYTES``, for a field that has no room for more."""
        return self.line(MOST_BYTES)

    def line(self, most: int) -> str:
        """One line of at most ``most`` bytes, without ``|`` and quotes. The note is cut to what is left."""
        words = {  # what must not be cut comes first
            "state": self.state,
            "at": epoch_text(self.at),
            "stopped": "1" if self.stopped else "",
            "since": epoch_text(self.since),
            "mode": self.mode or "",
            "step": self.step,
            "code": _word(self.code, 48),
            "on": _word(self.component.replace(" ", "_"), COMPONENT_CHARACTERS),
            "more": str(self.more or ""),
            "type": _word(self.instance_type, 24),
        }
        text = line_of(words)
        for more in (
            f" job={word(self.job)}" * bool(self.job),
            f" dom={word(self.domain)}" * bool(self.domain),
            f" driver={word(self.driver)}" * bool(self.driver),
        ):
            text += more if len(text + more) <= most else ""
        left = most - len(text) - len(" note=")
        note = plain(self.note).replace("\\", "/")[: max(left, 0)].strip()
        return f"{text} note={note}" if note else text[:most]


def parse_summary(text: str) -> NodeSummary | None:
    """The summary in a text, or None where it is none of healthd's, or its state is of no version that is known."""
    head, _, rest = text.partition(" ")
    if head != PREFIX:
        return None
    listed, _, note = f" {rest}".partition(" note=")
    words = words_in(listed)
    if words.get("state") not in set(NodeState):
        return None
    return NodeSummary(
        state=NodeState(words["state"]),
        at=epoch_time(words.get("at", "")),
        stopped=words.get("stopped", "") == "1",
        code=words.get("code", ""),
        component=_component(words.get("on", "")),
        more=int(more) if (more := words.get("more", "")).isascii() and more.isdigit() and len(more) < 6 else 0,
        mode=Mode(words["mode"]) if words.get("mode") in set(Mode) else None,
        since=epoch_time(words.get("since", "")),
        instance_type=words.get("type", ""),
        step=words.get("step", ""),
        job=words.get("job", ""),
        domain=words.get("dom", ""),
        driver=words.get("driver", ""),
        note=note,
    )


def _component(written: str) -> str:
    """``GPU 3`` of ``GPU_3``. In a component's own name, such as ``mount:/fsx_shared``, an underscore is one."""
    return written if ":" in written else written.replace("_", " ")


def _word(text: str, most: int) -> str:
    """A text as one word of at most so many characters, which JSON takes as it is."""
    return word(text).replace("\\", "/")[:most]
