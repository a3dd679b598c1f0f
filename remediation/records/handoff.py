"""The handoff record that healthd leaves with the cluster under a node's name: its one grammar. Pure.

    healthd case=ID machine=INSTANCE asks=replace_node attempt=1 asked=EPOCH next=… taken=EPOCH boot=…
        revision=… bundle=s3://… replaced=EPOCH slept=EPOCH awake=EPOCH watched=EPOCH gaveup=ID code=… since=EPOCH
        driver=… kernel=… image=… history=reboot:EPOCH:CODE:helped:EPOCH:REVISION,… said=…

``does=`` in the place of ``asks=``: the node repairs itself; ``withdrew=``: it needs no more what it asked for.
``code=`` and ``since=``: the finding for which the node wants to be out, for the others to see. A record outlives the
disk and is evidence, never permission (every user who may write a Slurm comment can forge one). Words that are not
known are left out, in whatever order they come; ``message`` is the last and takes the rest of the line. Each writer
carries on what the disk forgets: when the machine was last replaced, what was done to the node before, and what the
node shows of itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import Remedy

PREFIX = "healthd"
_EPOCH = re.compile(r"[0-9]{1,11}")
_MESSAGE_CHARACTERS = 200
_ASKED = (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)  # what a controller can do
_DOES = (Remedy.RESET_GPU, *_ASKED)
_PAST_ENTRY = re.compile(
    r"(reset|reboot|replace|return):([0-9]{1,11}):([^:,]*):(helped|failed|)(?::([0-9]{0,11})(?::([0-9a-f]{8}|)(?::.*)?)?)?"
)
CLOSE = timedelta(minutes=1)
"""So far apart the same moment may stand in two records: one has whole seconds, and no two clocks are alike."""
UNASKED_S = 60.0
"""After how many seconds without a word a request to the controller counts as never left, or as not begun before it was
withdrawn. A controller that has begun it says so in its next sync, some seconds later."""
UNTAKEN_S = 180.0
"""After how many seconds a request that no controller took pages."""
AHEAD = timedelta(minutes=5)
"""So far ahead, a time in a record is of no node: its clock was set, or the record is forged."""
PAST = 8
"""How many acts a history holds, and how many returns beside them: as many as the bounds of one node count, and short
enough for every cluster's field. Each kind has its own room: a node that comes and goes must not lose its repairs."""


class RequestAnswer(StrEnum):
    """The answer of ``healthd controller`` to a request. WAITS: not yet, and ``message`` tells why. DENIED: the
    controller has no right to it, which shows nothing about the machine."""

    TAKEN = "taken"
    WAITS = "waits"
    REFUSED = "refused"
    DENIED = "denied"

    @property
    def is_final(self) -> bool:
        """Whether it is never done: the node goes on from there, or an operator does."""
        return self in (RequestAnswer.REFUSED, RequestAnswer.DENIED)


class PastAct(StrEnum):
    """One act on a node. RETURN: it was taken out, and came back without a repair for that finding."""

    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"
    RETURN = "return"


class RepairResult(StrEnum):
    """The result of a repair. NOT_KNOWN: it is under way, or its end was not seen."""

    NOT_KNOWN = ""
    HELPED = "helped"
    FAILED = "failed"


class PastRepair(Struct, frozen=True, kw_only=True):
    """One entry of a node's history: what was begun, when, for which finding, and what came of it. ``back``: when the
    node was released after a repair that helped; of a return, ``at`` says it. ``revision``: the one that decided about
    it, see ``canary``; "" for one that is not known."""

    act: PastAct
    at: datetime
    code: str = ""
    outcome: RepairResult = RepairResult.NOT_KNOWN
    back: datetime | None = None
    revision: str = ""


class HandoffRecord(Struct, frozen=True, kw_only=True):
    """A handoff record, read. A field that it does not have is empty, None or 0; times have whole seconds.

    ``remedy``: what is or was being done to ``machine``, the ``attempt``-th time, since ``asked``. ``asks``: the
    controller is to do it. ``following``: the remedies of the ladder that are left after it, as far as they can be
    carried out. ``withdrawn``: what the node asked for and then withdrew, before it saw that the controller had taken
    it; it stays beside an answer that comes too late. ``answer`` was given at ``answered``. ``boot``: of a reboot that
    was taken, the boot that it is to end, as the controller knows it. ``revision``: the one that decided about the act,
    see ``canary``. ``became``: what the controller saw behind the name afterwards. ``evidence``: the address of the
    bundle that was uploaded before the last replacement, "" for none. ``replaced``: when a machine of this name was
    last given away. ``slept``: when the cluster had powered the node down while it was held, and another daemon
    released its drain and slots. ``awake``: since when the cluster's power saving leaves the node alone by our request.
    ``watched``: when the daemon of a node that is out last said that it watches over it; without that word others page.
    ``given_up``: the remediation that was given up, so that the node stays out until an operator says otherwise; "" for
    none. ``code``: the finding for which the node is, or wants to be, out; it was there ``since``. ``driver``,
    ``kernel`` and ``image``: which versions the node runs. ``history``: the last acts on this node, newest last,
    whichever machine was behind the name then.
    """

    remediation_id: str = ""
    machine: str = ""
    remedy: Remedy | None = None
    asks: bool = False
    withdrawn: Remedy | None = None
    attempt: int = 0
    asked: datetime | None = None
    following: tuple[Remedy, ...] = ()
    became: str = ""
    answer: RequestAnswer | None = None
    answered: datetime | None = None
    boot: str = ""
    evidence: str = ""
    revision: str = ""
    replaced: datetime | None = None
    slept: datetime | None = None
    awake: datetime | None = None
    watched: datetime | None = None
    given_up: str = ""
    code: str = ""
    since: datetime | None = None
    driver: str = ""
    kernel: str = ""
    image: str = ""
    history: tuple[PastRepair, ...] = ()
    message: str = ""

    @property
    def is_of_replacement(self) -> bool:
        """Whether this machine was to be given away. Records of the first healthd said only when."""
        return self.remedy is Remedy.REPLACE_NODE or (self.remedy is None and self.replaced is not None)

    @property
    def is_withdrawn(self) -> bool:
        """Whether the node has withdrawn its request, and no controller has said since that it may have begun it."""
        return self.withdrawn is not None and self.remedy is None

    @property
    def is_refused(self) -> bool:
        """Whether the controller has said no to the request, for good."""
        return self.answer is not None and self.answer.is_final

    @property
    def lasting(self) -> HandoffRecord:
        """The record without its request, and without the answer to it."""
        return replace(
            self,
            remediation_id="",
            machine="",
            remedy=None,
            asks=False,
            withdrawn=None,
            attempt=0,
            asked=None,
            following=(),
            answer=None,
            answered=None,
            boot="",
            revision="",
            became="",
            message="",
        )

    @property
    def text(self) -> str:
        """The record as it is left: one line, without ``|``, without a quote or a space at its ends."""
        words = {
            "case": word(self.remediation_id),
            "machine": word(self.machine),
            "asks" if self.asks else "does": self.remedy or "",
            "withdrew": self.withdrawn or "",
            "attempt": str(self.attempt or ""),
            "asked": epoch_text(self.asked),
            "next": ",".join(self.following),
            "became": word(self.became),
            self.answer or "": epoch_text(self.answered) if self.answer else "",
            "boot": word(self.boot),
            "bundle": word(self.evidence),
            "revision": word(self.revision),
            "replaced": epoch_text(self.replaced),
            "slept": epoch_text(self.slept),
            "awake": epoch_text(self.awake),
            "watched": epoch_text(self.watched),
            "gaveup": word(self.given_up),
            "code": word(self.code),
            "since": epoch_text(self.since),
            "driver": word(self.driver),
            "kernel": word(self.kernel),
            "image": word(self.image),
            "history": ",".join(_entry(each) for each in _kept(self.history)),
            "said": plain(self.message),
        }
        return line_of(words)


@lru_cache(maxsize=4096)
def parse(text: str) -> HandoffRecord | None:
    """The record that a node shows, or None where it is none of healthd's. A reading of the fleet has one of each node,
    and nearly all of them were read before."""
    head, *rest = text.split(" ", 1)
    if head != PREFIX:
        return None
    listed, _, message = (f" {rest[0]}" if rest else "").partition(" said=")
    words = words_in(listed)
    answer = next((each for each in RequestAnswer if epoch_time(words.get(each))), None)
    return HandoffRecord(
        remediation_id=words.get("case", ""),
        machine=words.get("machine", ""),
        remedy=_remedy(words.get("asks", "")) or _remedy(words.get("does", ""), _DOES),
        asks=_remedy(words.get("asks", "")) is not None,
        withdrawn=_remedy(words.get("withdrew", "")),
        attempt=int(number) if (number := words.get("attempt", "")) and _EPOCH.fullmatch(number) else 0,
        asked=epoch_time(words.get("asked")),
        following=tuple(left for name in words.get("next", "").split(",") if (left := _remedy(name)) is not None),
        became=words.get("became", ""),
        answer=answer,
        answered=epoch_time(words.get(answer)) if answer else None,
        boot=words.get("boot", ""),
        evidence=words.get("bundle", ""),
        revision=words.get("revision", ""),
        replaced=epoch_time(words.get("replaced")),
        slept=epoch_time(words.get("slept")),
        awake=epoch_time(words.get("awake")),
        watched=epoch_time(words.get("watched")),
        given_up=words.get("gaveup", ""),
        code=words.get("code", ""),
        since=epoch_time(words.get("since")),
        driver=words.get("driver", ""),
        kernel=words.get("kernel", ""),
        image=words.get("image", ""),
        history=_history(words.get("history", "")),
        message=message,
    )


def is_ahead(at: datetime | None, now: datetime) -> bool:
    """Whether a record says of this moment what no node can know yet."""
    return at is not None and at > now + AHEAD


def by_now(record: HandoffRecord, now: datetime) -> HandoffRecord:
    """The record without what it says of a time that is still ahead: that would count, or not end, for ever."""

    def come(at: datetime | None) -> datetime | None:
        return None if is_ahead(at, now) else at

    times = (record.since, record.asked, record.replaced, record.slept, record.awake, record.watched)
    of_history = (at for each in record.history for at in (each.at, each.back))
    if not any(is_ahead(at, now) for at in chain(times, of_history)):
        return record
    return replace(
        record,
        code="" if is_ahead(record.since, now) else record.code,
        since=come(record.since),
        asked=come(record.asked),
        replaced=come(record.replaced),
        slept=come(record.slept),
        awake=come(record.awake),
        watched=come(record.watched),
        history=tuple(replace(each, back=come(each.back)) for each in record.history if come(each.at)),
    )


class Versions(Struct, frozen=True, kw_only=True):
    """The versions that a node runs: the GPU driver, the kernel, the image that it was launched from; "" for what is
    not known."""

    driver: str = ""
    kernel: str = ""
    image: str = ""


def showing(
    before: str,
    code: str,
    since: datetime | None,
    versions: Versions | None = None,
    *,
    watched: datetime | None = None,
) -> str:
    """The record ``before`` with this finding in it, or with none for ""; "" where nothing is left to say. A node that
    is out for it was not given up.

    ``versions``: what the node runs now; left out, they stay as they are. ``watched``: None where the node is not out.
    """
    record = replace(parse(before) or HandoffRecord(), code=code, since=since, given_up="", watched=watched)
    if versions is not None:
        record = replace(record, driver=versions.driver, kernel=versions.kernel, image=versions.image)
    return text_of_record(record)


def without_act(before: str, there: str) -> str:
    """The record from ``before`` an act that was not begun, with what the node shows of itself in the one that is
    ``there`` now: minutes may have passed."""
    now = parse(there) or HandoffRecord()
    return text_of_record(
        replace(
            parse(before) or HandoffRecord(),
            slept=now.slept,
            awake=now.awake,
            watched=now.watched,
            code=now.code,
            since=now.since,
            driver=now.driver,
            kernel=now.kernel,
            image=now.image,
        )
    )


def text_of_record(record: HandoffRecord) -> str:
    """The text of a record, or "" where it tells only which versions the node runs."""
    return "" if replace(record, driver="", kernel="", image="") == HandoffRecord() else record.text


def withdrawing(record: HandoffRecord) -> HandoffRecord:
    """A record whose request is withdrawn. The fields that tell this request from others stay: a controller that has
    begun it says so by that."""
    asked = record.remedy if record.remedy in _ASKED else None
    return replace(
        record, remedy=None, asks=False, withdrawn=asked, following=(), answer=None, answered=None, message=""
    )


def remembering(history: Sequence[PastRepair], entry: PastRepair) -> tuple[PastRepair, ...]:
    """A history with one more entry. Where it holds too many of a kind, the oldest is dropped."""
    return _kept((*history, entry))


def with_outcome(
    history: Sequence[PastRepair], outcome: RepairResult, back: datetime | None = None
) -> tuple[PastRepair, ...]:
    """A history whose newest repair came to this, unless it is known what that came to, or there is none."""
    newest = max((number for number, each in enumerate(history) if each.act is not PastAct.RETURN), default=None)
    if newest is None or history[newest].outcome is not RepairResult.NOT_KNOWN:
        return tuple(history)
    return (*history[:newest], replace(history[newest], outcome=outcome, back=back), *history[newest + 1 :])


def line_of(words: Mapping[str, str]) -> str:
    """A record or a summary of these words, without those that are ""."""
    return " ".join([PREFIX, *(f"{key}={value}" for key, value in words.items() if value)])


def words_in(text: str) -> dict[str, str]:
    """The words of a record or a summary; where two have one key, the first."""
    words: dict[str, str] = {}
    for each in text.split():
        key, _, value = each.partition("=")
        words.setdefault(key, value)
    return words


def word(text: str) -> str:
    """A text as one word of a record."""
    return re.sub(r"[^!-~]|[|=\"']", "_", text)


def plain(text: str) -> str:
    """A sentence as the end of a record: what Slurm, its readers or this grammar would trip over is written
    otherwise."""
    kept = re.sub(r"[^ -~]", "?", " ".join(text.split())).translate(str.maketrans('|="', "/:'"))
    return kept[:_MESSAGE_CHARACTERS].strip()


def epoch_time(text: str | None) -> datetime | None:
    """The time of whole seconds since the epoch; None for a text that is none."""
    return datetime.fromtimestamp(int(text), UTC) if text and _EPOCH.fullmatch(text) else None


def epoch_text(at: datetime | None) -> str:
    """A time as whole seconds since the epoch; "" for None."""
    return str(int(at.timestamp())) if at is not None else ""


def instance_of(machine: str) -> str:
    """The instance id in what a provisioner calls a machine: ``i-…``, or ``i-…@<launch time>`` where it can move."""
    return machine.partition("@")[0]


def launched_after(machine: str, at: datetime | None) -> bool:
    """Whether what a provisioner calls a machine says that it was launched after that moment."""
    try:
        launched = datetime.fromisoformat(machine.partition("@")[2])
    except ValueError:
        return False
    return at is not None and launched.tzinfo is not None and launched > at


def _remedy(name: str, among: Sequence[Remedy] = _ASKED) -> Remedy | None:
    return Remedy(name) if name in among else None


def _entry(past: PastRepair) -> str:
    last = [epoch_text(past.back), past.revision] if past.revision else [epoch_text(past.back)] if past.back else []
    return ":".join([past.act, epoch_text(past.at), re.sub("[:,]", "_", word(past.code)), past.outcome, *last])


def _history(text: str) -> tuple[PastRepair, ...]:
    """The entries that can be read: an odd one, of a later version or an operator's, hides no other."""
    read = (_past(each) for each in text.split(","))
    return _kept([each for each in read if each is not None])


def _kept(history: Sequence[PastRepair]) -> tuple[PastRepair, ...]:
    """As much of a history as a record has room for: the newest acts, and the newest returns, in their order."""
    numbered = list(enumerate(history))
    returns = [number for number, each in numbered if each.act is PastAct.RETURN][-PAST:]
    acts = [number for number, each in numbered if each.act is not PastAct.RETURN][-PAST:]
    return tuple(history[number] for number in sorted((*returns, *acts)))


def _past(text: str) -> PastRepair | None:
    found = _PAST_ENTRY.fullmatch(text)
    at = epoch_time(found[2]) if found else None
    if found is None or at is None:
        return None
    outcome, back, revision = RepairResult(found[4]), epoch_time(found[5]), found[6] or ""
    return PastRepair(act=PastAct(found[1]), at=at, code=found[3], outcome=outcome, back=back, revision=revision)
