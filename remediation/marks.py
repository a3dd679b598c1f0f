"""What healthd leaves with the cluster under a node's name, and how it is read back: the one grammar of marks. Pure.

    healthd case=ID machine=INSTANCE asks=replace_node attempt=1 asked=EPOCH next=… taken=EPOCH boot=…
        replaced=EPOCH code=… since=EPOCH said=…

``does=`` in the place of ``asks=``: the node repairs itself. ``code=`` and ``since=``: the finding for which the node
wants to be out, for the others to see. A mark outlives the disk and is evidence, never permission (anybody who may
write a Slurm comment can forge one). Words that are not known are left out, in whatever order they come; ``said`` is
the last and takes the rest of the line. Whoever writes one carries on what is not his to forget: when the machine was
last replaced, and what the node shows of itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from healthd.model import Remedy

PREFIX = "healthd"
_EPOCH = re.compile(r"[0-9]{1,11}")
_SAID_CHARACTERS = 200


class Answer(StrEnum):
    """What ``healthd controller`` answered to a request. WAITS: not yet, and ``said`` tells why."""

    TAKEN = "taken"
    WAITS = "waits"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseMark:
    """A mark, read. What a mark does not say is empty, None or 0; times have whole seconds.

    ``remedy``: what is or was being done to ``machine``, the ``attempt``-th time, since ``asked``. ``asks``: the
    controller is to do it. ``following``: the remedies of the ladder that are left after it, as far as they can be
    carried out. ``answer`` was given at ``answered``. ``boot``: of a reboot that was taken, the boot that it is to end,
    as the controller knows it. ``became``: what the controller saw behind the name afterwards. ``replaced``: when a
    machine of this name was last given away. ``code``: the finding for which the node is, or wants to be, out; it was
    there ``since``.
    """

    case: str = ""
    machine: str = ""
    remedy: Remedy | None = None
    asks: bool = False
    attempt: int = 0
    asked: datetime | None = None
    following: tuple[Remedy, ...] = ()
    became: str = ""
    answer: Answer | None = None
    answered: datetime | None = None
    boot: str = ""
    replaced: datetime | None = None
    code: str = ""
    since: datetime | None = None
    said: str = ""

    @property
    def is_of_replacement(self) -> bool:
        """Whether this machine was to be given away. The marks of the first healthd said only when."""
        return self.remedy is Remedy.REPLACE_NODE or (self.remedy is None and self.replaced is not None)

    @property
    def text(self) -> str:
        """The mark as it is left: one line, without ``|``, without a quote or a space at its ends."""
        words = {
            "case": word(self.case),
            "machine": word(self.machine),
            "asks" if self.asks else "does": self.remedy or "",
            "attempt": str(self.attempt or ""),
            "asked": _epoch(self.asked),
            "next": ",".join(self.following),
            "became": word(self.became),
            self.answer or "": _epoch(self.answered) if self.answer else "",
            "boot": word(self.boot),
            "replaced": _epoch(self.replaced),
            "code": word(self.code),
            "since": _epoch(self.since),
            "said": plain(self.said),
        }
        return " ".join([PREFIX, *(f"{key}={value}" for key, value in words.items() if value)])


def parse(text: str) -> CaseMark | None:
    """The mark that a node shows, or None where it is none of healthd's."""
    head, *rest = text.split(" ", 1)
    if head != PREFIX:
        return None
    listed, _, said = (f" {rest[0]}" if rest else "").partition(" said=")
    words: dict[str, str] = {}
    for each in listed.split():
        key, _, value = each.partition("=")
        words.setdefault(key, value)
    answer = next((each for each in Answer if _time(words.get(each))), None)
    return CaseMark(
        case=words.get("case", ""),
        machine=words.get("machine", ""),
        remedy=_remedy(words.get("asks") or words.get("does", "")),
        asks=_remedy(words.get("asks", "")) is not None,
        attempt=int(number) if (number := words.get("attempt", "")) and _EPOCH.fullmatch(number) else 0,
        asked=_time(words.get("asked")),
        following=tuple(left for name in words.get("next", "").split(",") if (left := _remedy(name)) is not None),
        became=words.get("became", ""),
        answer=answer,
        answered=_time(words.get(answer)) if answer else None,
        boot=words.get("boot", ""),
        replaced=_time(words.get("replaced")),
        code=words.get("code", ""),
        since=_time(words.get("since")),
        said=said,
    )


def showing(before: str, code: str, since: datetime | None) -> str:
    """The mark ``before`` with this finding in it, or with none for ""; "" where nothing is left to say."""
    mark = replace(parse(before) or CaseMark(), code=code, since=since)
    return "" if mark == CaseMark() else mark.text


def word(text: str) -> str:
    """A text as one word of a mark."""
    return re.sub(r"[^!-~]|[|=\"']", "_", text)


def plain(text: str) -> str:
    """A sentence as the end of a mark: what Slurm, its readers or this grammar would trip over is written otherwise."""
    kept = re.sub(r"[^ -~]", "?", " ".join(text.split())).translate(str.maketrans('|="', "/:'"))
    return kept[:_SAID_CHARACTERS].strip()


def instance_of(machine: str) -> str:
    """The instance id in what a provisioner calls a machine: ``i-…``, or ``i-…@<launch time>`` where it can move."""
    return machine.partition("@")[0]


def launched_after(machine: str, at: datetime | None) -> bool:
    """Whether what a provisioner calls a machine says that it was launched after that moment."""
    try:
        launched = datetime.fromisoformat(machine.partition("@")[2])
    except ValueError:
        return False
    return at is not None and launched > at


def _remedy(name: str) -> Remedy | None:
    return Remedy(name) if name in (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE) else None


def _time(value: str | None) -> datetime | None:
    return datetime.fromtimestamp(int(value), UTC) if value and _EPOCH.fullmatch(value) else None


def _epoch(at: datetime | None) -> str:
    return str(int(at.timestamp())) if at is not None else ""
