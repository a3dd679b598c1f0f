"""One message: an incident as it stands now, as fields for programs and as text for operators. Pure.

An incident is what shares a code on one node, or one incident of a fleet. Each of its messages has the same ``id``, so
that a receiver can update what it showed; the last one has the state ``resolved`` or ``closed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from healthd.core.encodable import json_text
from healthd.core.model import SEVERITY_RANK, Severity, Step
from healthd.judge.devices import device_range, folded_texts
from healthd.notify.news import APPROVE, DO, FLEET, NODE_KEY, OUT, PAGED, NewsKind, Piece, Topic, TopicAbout, lines

SCHEMA: Final = "healthd.notification/v2"
LONGEST_ID = 255
"""Characters of an id at most: those of PagerDuty's ``dedup_key``."""
_LONGEST_TITLE, _LONGEST_WHAT = 240, 140
_ASKS = "an operator is needed: "
_STEPS: Mapping[str, str] = {
    OUT: "Its repair begins once its jobs have ended.",
    APPROVE: "Its repair waits for your approval.",
    Step.RESET: "Resetting its GPUs now.",
    Step.REBOOT: "Rebooting now.",
    Step.REPLACE: "Replacing the machine now.",
    Step.VERIFY: "It returns to service once it is healthy.",
    Step.STAY: "It stays out until you release it.",
}


class Occasion(StrEnum):
    """Why a message is sent now."""

    OPENED = "opened"
    CHANGED = "changed"
    STEP = "step"
    REMINDER = "reminder"
    RESOLVED = "resolved"
    CLOSED = "closed"
    SUMMARY = "summary"
    DRILL = "drill"


class IncidentState(StrEnum):
    """Where an incident stands. RESOLVED: it is over. CLOSED: healthd's part in it is over, and it is not."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"
    CLOSED = "closed"


_OCCASIONS = {
    NewsKind.WRONG: Occasion.OPENED,
    NewsKind.NOW: Occasion.CHANGED,
    NewsKind.STILL: Occasion.REMINDER,
    NewsKind.STEP: Occasion.STEP,
}


class Sender(Struct, frozen=True, kw_only=True):
    """The sender: a node, or the controller."""

    node: Annotated[str, Meta(description="The node that sends; empty for the controller.")] = ""
    controller: Annotated[str, Meta(description="The controller that sends; empty for a node.")] = ""
    verdict: Annotated[str, Meta(description="The state of the sending node for a job: healthd.verdict/v1.")] = ""
    instance_id: Annotated[str, Meta(description="The EC2 instance of the sending node.")] = ""
    instance_type: Annotated[str, Meta(description="Its instance type.")] = ""
    mode: Annotated[str, Meta(description="How far healthd may go: observe, quarantine, approve or repair.")] = ""
    orchestrator: Annotated[str, Meta(description="Of a controller: slurm or kubernetes.")] = ""
    provisioner: Annotated[str, Meta(description="Of a controller: what reboots and replaces nodes.")] = ""
    nodes_that_need_an_operator: Annotated[int, Meta(description="Of a controller: how many nodes.")] = 0
    notices: Annotated[
        tuple[str, ...], Meta(description="Parts of the sender that are simulated, and a drill that goes on.")
    ] = ()

    @property
    def name(self) -> str:
        """Its name in an id."""
        return self.node or "controller"


class NewsItem(Struct, frozen=True, kw_only=True):
    """One state of an incident that this message reports."""

    key: Annotated[str, Meta(description="The same for each report of this state, until its end.")]
    state: Annotated[
        NewsKind,
        Meta(
            description="wrong: it is new. now: it has another cause. still: a daily reminder. step: its repair goes "
            "on. over: it is over. ended: healthd's part is over, and message says whose it is now."
        ),
    ]
    message: Annotated[str, Meta(description="The state, as a sentence.")]
    since: Annotated[datetime, Meta(description="Since when it is so.")]
    over: Annotated[datetime | None, Meta(description="Since when it is over; null while it is open.")]
    next_step: Annotated[str, Meta(description="The first step of an operator.")]
    out: Annotated[
        bool, Meta(description="Of the state node: whether healthd has the node out of service, or had it until now.")
    ] = False


class Notification(Struct, frozen=True, kw_only=True):
    """A message of healthd about one incident."""

    schema: Annotated[Literal["healthd.notification/v2"], Meta(description="The version of this document.")] = SCHEMA
    id: Annotated[
        str,
        Meta(
            description="The deduplication key: the same in every message about this incident, also from another "
            "daemon or controller of the cluster. CLUSTER/NODE/CODE, without the cluster where none is set.",
            max_length=LONGEST_ID,
        ),
    ]
    event: Annotated[Occasion, Meta(description="Why this message is sent. summary: several incidents in one message.")]
    state: Annotated[IncidentState, Meta(description="Where the incident stands.")]
    title: Annotated[str, Meta(description="One sentence or two for an operator.")]
    severity: Annotated[Severity, Meta(description="Of the worst fault of the incident.")]
    needs_operator: Annotated[bool, Meta(description="Whether healthd asks for an operator.")]
    cluster: Annotated[str, Meta(description="[notify] cluster.")]
    node: Annotated[str, Meta(description="The node that it is about; empty for an incident of a fleet.")]
    code: Annotated[
        str, Meta(description="The code of the fault, as in docs/reference/findings.md; empty for none.")
    ] = ""
    devices: Annotated[str, Meta(description="The devices as a range, such as GPU 3; empty for the whole node.")] = ""
    step: Annotated[
        str,
        Meta(
            description="Where the repair stands: drained, approve (it waits for an approval), reset, reboot, replace, "
            "verify, stay (out until a release); empty while the node is in service."
        ),
    ] = ""
    next_step: Annotated[str, Meta(description="The first step of an operator; empty for none.")] = ""
    runbook: Annotated[str, Meta(description="The page of the code below [notify] runbooks.")] = ""
    page: Annotated[str, Meta(description="The status page of the node by [notify] page.")] = ""
    since: Annotated[datetime, Meta(description="Since when the oldest state in this message is so.")]
    at: Annotated[datetime, Meta(description="When this message was made.")]
    sender: Annotated[Sender, Meta(description="The node or controller that sends it.")]
    news: Annotated[tuple[NewsItem, ...], Meta(description="The states that this message reports.")] = ()
    lost: Annotated[int, Meta(description="Older reports that were dropped while this receiver was away.")] = 0
    cut: Annotated[
        int,
        Meta(description="Characters cut from this document, which was too long for its receiver; 0 if it is whole."),
    ] = 0
    drill: Annotated[bool, Meta(description="Whether it is an exercise: nothing is wrong.")] = False

    @property
    def is_over(self) -> bool:
        """Whether it is the last message of its incident."""
        return self.state in (IncidentState.RESOLVED, IncidentState.CLOSED)


class Message(Struct, frozen=True, kw_only=True):
    """One message: as text for operators, and as fields for programs. ``before``: what the receiver answered to the
    last message of the same incident, "" for none."""

    text: str
    about: Notification
    before: str = ""

    @property
    def data(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        made: dict[str, Any] = msgspec.json.decode(json_text(self.about))
        return made


class Addresses(Struct, frozen=True, kw_only=True):
    """The cluster's name; for each code that has a runbook its address, "" where none is set; the address of status
    pages, with ``{node}``."""

    cluster: str = ""
    runbooks: Mapping[str, str] = field(default_factory=dict)
    page: str = ""

    def page_of(self, node: str) -> str:
        """The status page of a node; "" without an address, and for what is no node."""
        return self.page.replace("{node}", node) if node else ""


def composed(
    pieces: Sequence[Piece],
    standing: Sequence[Topic],
    *,
    open_now: bool,
    sender: Sender,
    addresses: Addresses,
    now: datetime,
    lost: int = 0,
) -> Message:
    """The message of one incident: ``pieces`` are its news. ``standing``: its topics that are open. ``open_now``:
    whether any of it was reported and its end was not."""
    abouts = [each.about for each in standing] or [each.about for each in pieces]
    subject = abouts[0].subject or sender.name
    node = "" if subject in (FLEET, "controller") else subject
    code = next((each.about.code or each.code for each in pieces if each.about.code or each.code), "")
    runbook = addresses.runbooks.get(code, "")
    state = _state(pieces, standing, open_now=open_now)
    title = _title(subject, state, standing, pieces)
    about = Notification(
        id=_id(addresses.cluster, sender, pieces[0]),
        event=_occasion(pieces, state),
        state=state,
        title=title,
        severity=max((each.severity for each in abouts), key=SEVERITY_RANK.__getitem__),
        needs_operator=any(each.key.startswith(PAGED) for each in standing),
        cluster=addresses.cluster,
        node=node,
        code=code if code in addresses.runbooks else "",
        devices=device_range(each.device for each in abouts if each.device),
        step=next((each.step for each in standing if each.step), ""),
        next_step=next((each.next_step for each in standing if each.next_step), ""),
        runbook=runbook,
        page=addresses.page_of(node),
        since=min(each.since for each in pieces),
        at=now,
        sender=sender,
        news=_items(pieces),
        lost=lost,
    )
    return Message(text=_text(about, lines(pieces)), about=about)


def summary(
    pieces: Sequence[Piece], incidents: int, *, sender: Sender, addresses: Addresses, now: datetime, lost: int
) -> Message:
    """One message for several incidents, for a receiver that gets no more messages within this hour."""
    is_open = any(not each.closes for each in pieces)
    about = Notification(
        id=_joined(addresses.cluster, sender.name, "summary"),
        event=Occasion.SUMMARY,
        state=IncidentState.OPEN if is_open else IncidentState.RESOLVED,
        title=f"{sender.name}: news of {incidents} incidents",
        severity=max((each.about.severity for each in pieces), key=SEVERITY_RANK.__getitem__, default=Severity.WARNING),
        needs_operator=any(each.key.startswith(PAGED) and not each.closes for each in pieces),
        cluster=addresses.cluster,
        node=sender.node,
        page=addresses.page_of(sender.node),
        since=min((each.since for each in pieces), default=now),
        at=now,
        sender=sender,
        news=_items(pieces),
        lost=lost,
    )
    runbooks = dict.fromkeys(filter(None, (addresses.runbooks.get(each.code, "") for each in pieces)))
    return Message(text=_text(about, [*lines(pieces), *(f"runbook: {each}" for each in runbooks)]), about=about)


def drill(message: str, *, sender: Sender, addresses: Addresses, now: datetime) -> Message:
    """A message that is marked as a drill."""
    about = Notification(
        id=_joined(addresses.cluster, sender.name, "drill"),
        event=Occasion.DRILL,
        state=IncidentState.RESOLVED,
        title=f"{sender.name}: {message}",
        severity=Severity.INFO,
        needs_operator=False,
        cluster=addresses.cluster,
        node=sender.node,
        page=addresses.page_of(sender.node),
        since=now,
        at=now,
        sender=replace(sender, notices=(message,)),
        drill=True,
    )
    return Message(text=about.title, about=about)


# ---------------------------------------------------------------------------------------------------------------------


def _id(cluster: str, sender: Sender, piece: Piece) -> str:
    return _joined(cluster, "" if piece.about.subject else sender.name, piece.incident)


def _joined(*parts: str) -> str:
    return "/".join(filter(None, parts))[:LONGEST_ID]


def _items(pieces: Iterable[Piece]) -> tuple[NewsItem, ...]:
    return tuple(
        NewsItem(
            key=each.key,
            state=each.news,
            message=each.message,
            since=each.since,
            over=each.over,
            next_step=each.next_step,
            out=each.about.out,
        )
        for each in pieces
    )


def _state(pieces: Sequence[Piece], standing: Sequence[Topic], *, open_now: bool) -> IncidentState:
    if standing or open_now:
        is_known = bool(standing) and all(each.about.acknowledged for each in standing)
        return IncidentState.ACKNOWLEDGED if is_known else IncidentState.OPEN
    has_ended = any(each.news is NewsKind.ENDED for each in pieces)
    return IncidentState.CLOSED if has_ended else IncidentState.RESOLVED


def _occasion(pieces: Sequence[Piece], state: IncidentState) -> Occasion:
    """That of the end, else of the first kind of news that any piece has."""
    if state in (IncidentState.RESOLVED, IncidentState.CLOSED):
        return Occasion(state.value)
    kinds = {each.news for each in pieces}
    return next((occasion for kind, occasion in _OCCASIONS.items() if kind in kinds), Occasion.CHANGED)


def _title(subject: str, state: IncidentState, standing: Sequence[Topic], pieces: Sequence[Piece]) -> str:
    what = _what([each.about for each in standing] or [each.about for each in pieces])
    if standing:
        return _cut(_open_title(subject, state, standing, what), _LONGEST_TITLE)
    message = pieces[0].message
    if state is IncidentState.CLOSED:
        ended = next(each.message for each in pieces if each.news is NewsKind.ENDED)
        return _cut(f"{subject} handed over: {_sentences(what, ended)}", _LONGEST_TITLE)
    is_back = any(each.about.out for each in pieces)
    if state is IncidentState.OPEN:
        head, watched = "back in service" if is_back else "better", " Watching whether it comes back."
        return _cut(f"{subject} {head}: {_sentences(what or message)}{watched}", _LONGEST_TITLE)
    head = "back in service. Resolved" if is_back else "resolved"
    return _cut(f"{subject} {head}: {_sentences(what or message)}", _LONGEST_TITLE)


def _open_title(subject: str, state: IncidentState, standing: Sequence[Topic], what: str) -> str:
    page = next((each for each in standing if each.key.startswith(PAGED)), None)
    out = next((each for each in standing if each.key == NODE_KEY and each.about.out), None)
    if page is not None:
        head = f"{subject} drained, and" if out is not None else subject
        return f"{head} needs an operator: {_sentences(what, page.message.partition(_ASKS)[2] or page.message)}"
    if out is not None:
        return f"{subject} drained: {_sentences(what or out.message)} {_STEPS.get(out.step, '')}".rstrip()
    if not what:
        return f"{subject}: {_sentences(standing[0].message)}"
    worst = max((each.about.severity for each in standing), key=SEVERITY_RANK.__getitem__)
    known = ", acknowledged" if state is IncidentState.ACKNOWLEDGED else ""
    return f"{subject} {worst}{known}: {_sentences(what)}"


def _what(abouts: Iterable[TopicAbout]) -> str:
    """The fault with all its devices: by its own topic first, then by that of its remediation."""
    texts = dict.fromkeys(each.what for each in abouts if each.what)
    return next((each.text for each in folded_texts(texts)), "")


def _sentences(*texts: str) -> str:
    """Each text, cut where it is long, with a full stop."""
    cut = (_cut(text.strip().rstrip("."), _LONGEST_WHAT) for text in texts if text.strip())
    return " ".join(text if text.endswith(("…", "!", "?")) else f"{text}." for text in cut)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _text(about: Notification, reported: Sequence[str]) -> str:
    lost = [f"{about.lost} older pieces of news were dropped"] if about.lost else []
    has_step = any(line.startswith(DO) for line in reported)
    step = [] if has_step or not about.next_step else [f"{DO}{about.next_step}"]
    links = [f"{name}: {url}" for name, url in (("runbook", about.runbook), ("page", about.page)) if url]
    head = f"[{about.cluster}] {about.title}" if about.cluster else about.title
    return "\n".join([head, *about.sender.notices, *reported, *step, *links, *lost])
