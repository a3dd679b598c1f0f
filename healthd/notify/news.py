"""The news of a node for operators: a problem that lasts, a change of it, a daily reminder, and its end.

Pure: it takes the time as an argument and returns the news; ``notifier`` sends it. A topic is a state: it is open as
long as its cause. Only a topic that is no longer open is resolved. A node that another owner holds now, or a fault that
an operator acknowledged, is a state of its own.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import SEVERITY_RANK, Action, Decision, Diagnosis, Refusal, Remedy, Severity, Step, Verdict
from healthd.judge.clock import moved
from healthd.judge.devices import folded_texts
from healthd.judge.diagnose import reasons_of, roots_of
from healthd.judge.history import Fault, acknowledged_text
from healthd.remediation.decide.remediation import End, Phase, Remediation

LASTS_S = 15.0
"""How long a problem must last before a message is sent, in seconds, and how long it must be over before it is
resolved. A problem that comes and goes within it sends no message, and problems that begin together share one."""
UNKNOWN_LASTS_S = 600.0
"""The same for a node whose health is unknown: a driver that restarts takes minutes."""
UNREADABLE_LASTS_S = 300.0
"""The same for a cluster that does not answer while a fault is open: slurmctld restarts in minutes."""
AGAIN_S = 86_400.0
"""How often a page, and a critical fault without a remediation, is repeated while it is open, in seconds."""
COMES_AND_GOES_S = 3_600.0
"""How long at most a returning problem must be over, in seconds, before it is resolved: four times as long each time
within a day, so that one that comes and goes every few minutes sends a few messages a day."""
KNOWN_CHANGES_EVERY_S = 3_600.0
"""How soon an earlier cause is news again, in seconds: two causes that alternate are no stream of messages."""
PAGED = "page "
"""The beginning of the key of a page."""
ABSENT = f"{PAGED}absent "
"""The beginning of the key of a page for another node."""
NODE_KEY = "node"
"""The key of the node's own state: drained by healthd, or kept out by another owner."""
UNKNOWN_KEY = "unknown"
"""The key of a node whose health is unknown."""
DO = "  do: "
"""The beginning of the line of a next step."""
MOST_LINES = 20
"""The most pieces of news in one message, which gives the number of the others."""
_MOST_CAUSES = 8
_NOT_BACK = frozenset({End.LOST, End.ACKNOWLEDGED, End.ABANDONED})
"""Ends of a remediation by which healthd has not put its node back: its last note names the owner of the node."""
_OF_FAULT = frozenset(
    {
        None,
        Refusal.PERSON,
        Refusal.CORRELATED,
        Refusal.HELD_BACK,
        Refusal.BUDGET,
        Refusal.RATE,
        Refusal.MAINTENANCE,
        Refusal.FOREIGN_HOLD,
    }
)
"""Refusals of a page that are about the fault alone, None where the policy decides so, or about a node that is out
already. The others are about this node: a repair that failed, a node that is overdue, a question to an operator."""
_NUMBERS = re.compile(r"\d+")


class NewsKind(StrEnum):
    """The news of a topic. OVER and ENDED close it; an incident of its key is resolved."""

    WRONG = "wrong"
    NOW = "now"  # reported before, with another cause
    STILL = "still"  # repeated, because it is still open
    STEP = "step"  # its repair went on; for receivers that update what they showed
    OVER = "over"
    ENDED = "ended"  # healthd's part is over; the text names the owner


_HEADS = {
    NewsKind.WRONG: "PROBLEM",
    NewsKind.NOW: "CHANGED",
    NewsKind.STILL: "STILL OPEN",
    NewsKind.STEP: "NEXT STEP",
    NewsKind.OVER: "RESOLVED",
    NewsKind.ENDED: "CLOSED",
}
"""The first word of each line of news."""
_GIVEN_UP = "Fix the node, then `healthd release`; or have healthd try once more: `healthd repair`"
_SHARED = (
    "Find what these nodes share: `healthd fleet incidents` on a head node."
    " `healthd repair --step reboot --reason TEXT` repairs one node all the same"
)
_STEPS: Mapping[Refusal | None, str] = {
    Refusal.STUCK: "`healthd doctor` names what does not answer; healthd goes on by itself once it does",
    Refusal.BUDGET: "`healthd fleet --why` on a head node lists what is out; put some back or raise `[budget] max_out`",
    Refusal.CORRELATED: _SHARED,
    Refusal.HELD_BACK: _SHARED,
}
"""By the refusal of a page: the operator's next step, where the fault alone has none that helps."""
_UNKEPT = "Free or repair the disk of the state directory; healthd goes on by itself once it can write there"
OUT, APPROVE = "drained", "approve"
"""Steps of a repair for operators, beside those that healthd itself takes: the node is out and its jobs may still run;
an approval is asked for."""


class TopicAbout(Struct, frozen=True, kw_only=True):
    """The head of a topic's message: incident, node, code and device.

    ``incident``: topics of one incident share a message; "" for the code. ``subject``: the node that it concerns, ""
    for the sender, ``fleet`` for all. ``device``: as operators name it, "" for the node as a whole; ``what``: what is
    wrong, in a few words; "" for the topic's own words. ``out``: the node is out of service.
    """

    incident: str = ""
    subject: str = ""
    code: str = ""
    device: str = ""
    what: str = ""
    severity: Severity = Severity.WARNING
    acknowledged: bool = False
    out: bool = False


_NO_FAULT = TopicAbout(incident="operator", severity=Severity.CRITICAL)
FLEET = "fleet"
"""The subject of what is wrong with many nodes."""


class Topic(Struct, frozen=True, kw_only=True):
    """A problem that is open now. ``key`` identifies it over time; ``lasts_s``: how long it must last.

    ``cause``: another cause under a known key is news. ``again_s``: the pause between two reminders; 0 for none.
    ``title``: the text of its end; "" for ``message``. ``last``: the problem is no longer open, and ``message`` is how
    it ended; with a ``cause`` only if that cause was reported last. ``stays_out``: the node stays out of service.

    ``code`` and ``component``: the one fault that it is about, where an incident of that fault says as much; else "".
    ``critical``: it is a page, or a critical fault that no operator acknowledged. ``next_step``: what an operator does
    about it, or ""; ``remedy``: what the fault calls for. ``reason``: the first message of the fault. ``step``: where
    its repair stands, "" without one; another one is news of its own.
    """

    key: str
    message: str
    lasts_s: float = LASTS_S
    cause: str = ""
    again_s: float = 0.0
    title: str = ""
    last: bool = False
    stays_out: bool = False
    code: str = ""
    component: str = ""
    critical: bool = False
    remedy: Remedy | None = None
    next_step: str = ""
    reason: str = ""
    step: str = ""
    about: TopicAbout = TopicAbout()


class TopicMemory(Struct, frozen=True, kw_only=True):
    """The memory of a topic. ``reported``: with this ``message``, at ``at``. ``gone``: since when it is
    over. ``causes``: the reported causes, newest last. ``changed``: since when it has another cause. ``title``: the
    text of its end. ``over``: when its end was reported last, which is remembered for a day; ``returns``: how often it
    came back within a day of that. ``waits``: it has lasted, and was not reported because an incident of it may come:
    its end is reported all the same. ``step``: the reported step of its repair."""

    message: str
    since: datetime
    reported: bool = False
    gone: datetime | None = None
    at: datetime | None = None
    causes: tuple[str, ...] = ()
    changed: datetime | None = None
    title: str = ""
    over: datetime | None = None
    returns: int = 0
    waits: bool = False
    step: str = ""
    about: TopicAbout = TopicAbout()


class Piece(Struct, frozen=True, kw_only=True):
    """One piece of news: a problem since a time, or the end of one. ``code``: the code that it is about, "" for none.
    ``next_step``: the operator's next step about it."""

    key: str
    message: str
    since: datetime
    over: datetime | None = None
    news: NewsKind = NewsKind.WRONG
    code: str = ""
    next_step: str = ""
    about: TopicAbout = TopicAbout()

    @property
    def incident(self) -> str:
        """The incident that it belongs to, among those of its sender."""
        return incident_of(self.key, self.about)

    @property
    def closes(self) -> bool:
        """Whether it resolves an incident of this key."""
        return self.news in (NewsKind.OVER, NewsKind.ENDED)

    @property
    def line(self) -> str:
        """The line of the message's text."""
        return f"{_HEADS[self.news]}: {self.message} (since {self.since:%Y-%m-%d %H:%M:%S} UTC)"


def topics(
    *,
    verdict: Verdict,
    diagnoses: Iterable[Diagnosis],
    acknowledged: Iterable[Diagnosis],
    decision: Decision | None,
    remediation: Remediation | None,
    least: Severity,
    ended: Remediation | None = None,
    faults: Iterable[Fault] = (),
) -> tuple[Topic, ...]:
    """The topics of a node: faults of ``least`` severity or worse, acknowledged or not; an unknown health; the node's
    own state where it is out; and the pages.

    ``remediation``: the open remediation; ``ended``: the last one, where none is open. ``faults``: the open faults,
    symptoms of others among them.
    """
    diagnoses, acknowledged, faults = tuple(diagnoses), tuple(acknowledged), tuple(faults)
    words = {_key(fault.code, fault.component): acknowledged_text(fault) for fault in faults}
    found = [
        topic
        for each in diagnoses
        for topic in _faults(each, least, acked=each in acknowledged, words=words, again=remediation is None)
    ]
    found += _symptoms(diagnoses, faults)
    found += _replaced(remediation, {topic.key for topic in found})
    if verdict is Verdict.UNKNOWN:
        unknown = "the health of the node is unknown; `healthd check` names the checks and the reasons"
        found.append(Topic(key=UNKNOWN_KEY, message=unknown, lasts_s=UNKNOWN_LASTS_S))
    found += _node(decision, remediation, ended)
    if decision is not None and decision.action is Action.PAGE:
        found.append(_page(decision, remediation))
    return tuple(found)


def of_absent(node: str, message: str) -> Topic:
    """The page for a node whose daemon sends no messages."""
    text = f"an operator is needed: {node}: {message}"
    about = TopicAbout(incident="absent", subject=node, severity=Severity.CRITICAL)
    return Topic(key=f"{ABSENT}{node}", message=text, again_s=AGAIN_S, about=about)


def unkept(problem: str) -> tuple[Topic, ...]:
    """The page for a state directory that cannot be written, for this reason; none without a reason."""
    message = f"an operator is needed: healthd cannot write its state, so it repairs nothing: {problem}"
    page = Topic(
        key=f"{PAGED}state",
        message=message,
        lasts_s=UNKNOWN_LASTS_S,
        again_s=AGAIN_S,
        critical=True,
        about=TopicAbout(incident="state", severity=Severity.CRITICAL),
        next_step=_UNKEPT,
    )
    return (page,) if problem else ()


def incident_of(key: str, about: TopicAbout) -> str:
    """The incident of a topic, among those of its sender: that of its code, by default."""
    return "/".join(filter(None, (about.subject, about.incident or about.code or key.strip())))


def _key(code: str, component: object) -> str:
    return f"{code} {component}"


def _faults(
    diagnosis: Diagnosis, least: Severity, *, acked: bool, words: Mapping[str, str], again: bool
) -> Iterator[Topic]:
    """A topic for each fault that no other fault explains. A fault that is no longer the worst of its component stays
    open.

    ``words``: how long each open fault is acknowledged. ``again``: it has no remediation, so it is repeated each day.
    """
    roots = roots_of(diagnosis)
    for index, root in enumerate(roots):
        key, title = _key(root.code, diagnosis.component), f"{root.code} on {diagnosis.component}"
        if SEVERITY_RANK[root.severity] < SEVERITY_RANK[least]:
            yield Topic(key=key, message=f"{title}: still open, now only {root.severity}", last=True)
        elif acked or words.get(key):
            until = words.get(key) or "acknowledged"
            text = f"{title}: {until}, by an operator; the fault is still open"
            yield Topic(
                key=key,
                message=text,
                cause=f"acknowledged {root.severity}",
                again_s=AGAIN_S if root.severity is Severity.CRITICAL else 0.0,
                title=title,
                reason=next(iter(reasons_of(diagnosis, index)), ""),
                about=replace(_about(root.code, diagnosis.component, root.severity), acknowledged=True),
            )
        else:
            reasons = "; ".join(reasons_of(diagnosis, index))
            text = f"{title}: {root.severity}, calls for {root.remedy}: {reasons}"
            is_critical = root.severity is Severity.CRITICAL
            yield Topic(
                key=key,
                message=text,
                cause=f"{root.severity} {root.remedy}",
                again_s=AGAIN_S if again and is_critical else 0.0,
                title=title,
                code=root.code,
                component=str(diagnosis.component),
                critical=is_critical,
                remedy=root.remedy,
                reason=next(iter(reasons_of(diagnosis, index)), ""),
                about=_about(root.code, diagnosis.component, root.severity),
            )


def _about(code: str, component: object, severity: Severity = Severity.WARNING, *, out: bool = False) -> TopicAbout:
    return TopicAbout(code=code, device=str(component), severity=severity, out=out)


def _symptoms(diagnoses: Sequence[Diagnosis], faults: Iterable[Fault]) -> Iterator[Topic]:
    """Open faults that another fault explains by now: they are not resolved."""
    roots = {_key(root.code, each.component) for each in diagnoses for root in roots_of(each)}
    for fault in faults:
        if (key := _key(fault.code, fault.component)) not in roots:
            cause = next(
                (f"{each.code} on {each.component}" for each in diagnoses if fault.code in each.codes), "another fault"
            )
            message = f"{fault.code} on {fault.component}: still open, a symptom of {cause}"
            yield Topic(key=key, message=message, last=True)


def _replaced(remediation: Remediation | None, keys: Container[str]) -> Iterator[Topic]:
    """The fault for which a machine was replaced. The new machine has an empty disk, and must report the end."""
    if (
        remediation is None
        or Step.REPLACE not in remediation.steps
        or remediation.index <= remediation.steps.index(Step.REPLACE)
    ):
        return
    key, title = _key(remediation.code, remediation.component), f"{remediation.code} on {remediation.component}"
    if remediation.code and key not in keys:
        message = f"{title}: machine replaced, verifying the new one"
        about = _about(remediation.code, remediation.component)
        yield Topic(key=key, message=message, cause="replaced", title=title, reason=remediation.why, about=about)


def _node(decision: Decision | None, remediation: Remediation | None, ended: Remediation | None) -> Iterator[Topic]:
    """The node's own state: drained by healthd, kept out by another owner or by an orphaned drain, or the end of
    healthd's part."""
    refusal = decision.refusal if decision is not None else None
    if remediation is not None and _is_out(remediation):
        title = f"out of service for {remediation.code} on {remediation.component} [{remediation.id}]"
        yield Topic(
            key=NODE_KEY,
            message=f"{title}: {remediation.note}",
            lasts_s=0.0,
            cause=_story(remediation),
            title=title,
            code=remediation.code,
            component=remediation.component,
            reason=remediation.command or remediation.why,
            step=step_of(remediation),
            about=_about(remediation.code, remediation.component, out=True),
        )
    elif decision is not None and refusal is Refusal.FOREIGN_HOLD:
        about = decision.diagnosis
        still = f"; {about.code} on {about.component} is still open" if about is not None else ""
        again_s = AGAIN_S if about is not None and about.severity is Severity.CRITICAL else 0.0
        over = about or remediation
        title = f"{over.code} on {over.component}, on a node of another owner" if over is not None else ""
        yield Topic(
            key=NODE_KEY,
            message=f"{decision.reason}{still}",
            cause="foreign",
            again_s=again_s,
            title=title,
            code=over.code if over is not None else "",
            component=str(over.component) if over is not None else "",
            about=_about(over.code, over.component) if over is not None else TopicAbout(),
        )
    elif decision is not None and refusal is Refusal.ORPHAN:
        yield Topic(key=NODE_KEY, message=decision.reason, cause="orphan")
    elif decision is not None and refusal is Refusal.ACKNOWLEDGED:
        about = decision.diagnosis
        still = f", although {about.code} on {about.component} is still open" if about is not None else ""
        yield Topic(key=NODE_KEY, message=f"back in service by an operator{still}", last=True)
    elif ended is not None and ended.end in _NOT_BACK:
        message = f"remediation ended without a release [{ended.id}]: {ended.note}"
        stays_out = ended.adopted and ended.end is End.ABANDONED
        yield Topic(key=NODE_KEY, message=message, cause=_story(ended), last=True, stays_out=stays_out)


def _story(remediation: Remediation) -> str:
    """The identity of an outage. On a node that the cluster drained by itself, a fault that comes and goes opens a
    remediation each time: that is one outage."""
    return f"the cluster's own drain, {remediation.code}" if remediation.adopted else f"remediation {remediation.id}"


def step_of(remediation: Remediation) -> str:
    """Where a repair stands, for operators: ``drained``, ``approve``, ``reset``, ``reboot``, ``replace``, ``verify`` or
    ``stay``. An act that was not begun is none."""
    approval = remediation.approval
    match remediation.step:
        case Step.RESET | Step.REBOOT | Step.REPLACE if remediation.phase is Phase.INTENDED:
            return str(remediation.step)
        case Step.RESET | Step.REBOOT | Step.REPLACE if approval is not None and approval.given is None:
            return APPROVE
        case Step.VERIFY | Step.RELEASE:
            return str(Step.VERIFY)
        case Step.STAY:
            return str(Step.STAY)
        case _:
            return OUT


def _is_out(remediation: Remediation) -> bool:
    """Whether healthd's drain keeps jobs off, or its slot where the platform owns the node's state."""
    return remediation.hold is not None or (Step.DRAIN not in remediation.steps and remediation.step is not Step.SLOT)


def _page(decision: Decision, remediation: Remediation | None) -> Topic:
    """The page. A fault has one key: it is resolved when the fault needs no operator any more, and until then another
    kind of cause is news."""
    about = decision.diagnosis or remediation
    key = PAGED + (_key(about.code, about.component) if about is not None else "")
    head = _about(about.code, about.component, Severity.CRITICAL) if about is not None else _NO_FAULT
    if about is not None and decision.refusal is Refusal.HELD_BACK:
        key = f"{PAGED}fleet {about.code}"  # the same on every node: one incident
        head = TopicAbout(subject=FLEET, code=about.code, severity=Severity.CRITICAL)
    says_so = "is needed" in decision.reason
    message = decision.reason if says_so else f"an operator is needed: {decision.reason}"
    lasts_s = UNREADABLE_LASTS_S if decision.refusal is Refusal.UNREADABLE else 0.0
    title = f"operator no longer needed for {about.code} on {about.component}" if about is not None else message
    is_named = decision.diagnosis is not None or decision.refusal is not None
    is_of_fault = is_named and decision.refusal in _OF_FAULT
    return Topic(
        key=key,
        message=message,
        lasts_s=lasts_s,
        cause=_kind(decision, remediation),
        again_s=AGAIN_S,
        title=title,
        code=about.code if about is not None and is_of_fault else "",
        component=str(about.component) if about is not None and is_of_fault else "",
        critical=True,
        about=head,
        next_step=_step(decision, remediation),
    )


def _step(decision: Decision, remediation: Remediation | None) -> str:
    """The first step of an operator about a page whose fault has none that helps, or ""."""
    is_given_up = remediation is not None and remediation.end is End.FAILED
    return _STEPS.get(decision.refusal) or (_GIVEN_UP if is_given_up else "")


def _kind(decision: Decision, remediation: Remediation | None) -> str:
    """The kind of a page, without the error of the moment, numbers, and the names of other nodes."""
    match decision.refusal:
        case Refusal.STUCK | Refusal.UNREADABLE | Refusal.HELD_BACK | Refusal.CORRELATED | Refusal.BUDGET:
            return str(decision.refusal)
        case Refusal.OVERDUE:
            return f"{decision.refusal} {remediation.step if remediation is not None else ''}"
        case _:
            return _NUMBERS.sub("#", f"{decision.refusal or ''} {decision.reason}")


def tell(
    memory: Mapping[str, TopicMemory], wrong: Sequence[Topic], now: datetime, held: Mapping[str, str] | None = None
) -> tuple[dict[str, TopicMemory], tuple[Piece, ...]]:
    """The new memory, and the news: each topic once it has lasted, when its cause changes, as often as its reminder is
    due, and once when it is over.

    ``held``: the keys of topics that are no news now, each with the incident that reports it, or "" where it waits for
    one. A topic that ended while it waited is reported with its end.

    A topic that returns before its end was reported is no news; one that returns after that, within a day, must be over
    for longer each time.
    """
    after: dict[str, TopicMemory] = {}
    news: list[Piece] = []
    held = held or {}
    for topic in (each for each in wrong if not each.last):
        seen = _remembered(memory.get(topic.key), topic, now)
        incident = held.get(topic.key)
        after[topic.key], what = (
            _heard(seen, topic, now) if incident is None else (_held(seen, topic, incident, now), None)
        )
        if what is not None:
            news.append(_piece(topic, seen.since, what))
    endings = {topic.key: topic for topic in wrong if topic.last}
    for key, seen in memory.items():
        if key in after:
            continue
        gone = seen.gone or now
        ending = endings.get(key)
        stays_out = ending is not None and ending.stays_out
        is_over = seen.reported and now - gone >= _over_after(key, seen, gone, stays_out=stays_out)
        if seen.waits or is_over:
            news.append(_ending(key, seen, ending, gone))
            after[key] = TopicMemory(message="", since=gone, gone=gone, over=now, returns=seen.returns)
        elif seen.reported or _is_within_a_day(seen.over, now):
            after[key] = replace(seen, gone=gone)
    return after, tuple(news)


def _piece(topic: Topic, since: datetime, what: NewsKind) -> Piece:
    return Piece(
        key=topic.key,
        message=topic.message,
        since=since,
        news=what,
        code=topic.about.code or topic.key.removeprefix(PAGED).partition(" ")[0],
        next_step=topic.next_step,
        about=topic.about,
    )


def still_open(topic: Topic, seen: TopicMemory) -> Piece:
    """The piece that reports an open topic once more."""
    return _piece(topic, seen.since, NewsKind.STILL)


def _remembered(seen: TopicMemory | None, topic: Topic, now: datetime) -> TopicMemory:
    """The memory of a topic that is open now."""
    if seen is None:
        return TopicMemory(message=topic.message, since=now)
    is_back = seen.gone is not None and not seen.reported
    return replace(seen, gone=None, since=now if is_back else seen.since)


def _held(seen: TopicMemory, topic: Topic, incident: str, now: datetime) -> TopicMemory:
    """The memory of an open topic that is not reported now."""
    has_lasted = now - seen.since >= timedelta(seconds=topic.lasts_s)
    return replace(seen, message=topic.message, title=topic.title, waits=has_lasted and not incident, about=topic.about)


def _over_after(key: str, seen: TopicMemory, gone: datetime, *, stays_out: bool) -> timedelta:
    """How long a topic must be over before its end is reported. A topic that was open for a day does not come and go.
    The node's return to service is reported at once: another owner may take it out within the hour."""
    if (key == NODE_KEY and not stays_out) or not _is_within_a_day(seen.since, gone):
        return timedelta(seconds=LASTS_S)
    return timedelta(seconds=min(COMES_AND_GOES_S, LASTS_S * 4.0 ** min(seen.returns, 9)))


def _is_within_a_day(then: datetime | None, now: datetime) -> bool:
    return then is not None and now - then < timedelta(seconds=AGAIN_S)


def _heard(seen: TopicMemory, topic: Topic, now: datetime) -> tuple[TopicMemory, NewsKind | None]:
    """The memory of an open topic, and its news."""
    reported = replace(
        seen,
        message=topic.message,
        title=topic.title or topic.message,
        reported=True,
        waits=False,
        at=now,
        changed=None,
        causes=(*(cause for cause in seen.causes if cause != topic.cause), topic.cause)[-_MOST_CAUSES:],
        step=topic.step,
        about=topic.about,
    )
    if not seen.reported:
        lasts = now - seen.since >= timedelta(seconds=topic.lasts_s)
        returns = seen.returns + 1 if _is_within_a_day(seen.over, now) else 0
        return (replace(reported, returns=returns), NewsKind.WRONG) if lasts else (seen, None)
    quiet_s = (now - (seen.at or seen.since)).total_seconds()
    is_same = seen.causes[-1:] == (topic.cause,)
    if 0 < topic.again_s <= quiet_s:
        return reported, NewsKind.STILL if is_same else NewsKind.NOW
    if is_same:
        goes_on = NewsKind.STEP if topic.step != seen.step else None
        return replace(seen, changed=None, step=topic.step, about=topic.about), goes_on
    changed = seen.changed or now
    known = topic.cause in seen.causes and quiet_s < KNOWN_CHANGES_EVERY_S
    if known or now - changed < timedelta(seconds=LASTS_S):
        return replace(seen, changed=changed), None
    return reported, NewsKind.NOW


def _ending(key: str, seen: TopicMemory, ending: Topic | None, gone: datetime) -> Piece:
    """The news of a topic's end: how it ended, if that is known; else that it is over."""
    over = Piece(
        key=key, message=seen.title or seen.message, since=seen.since, over=gone, news=NewsKind.OVER, about=seen.about
    )
    if ending is not None and (not ending.cause or seen.causes[-1:] == (ending.cause,)):
        return replace(over, message=ending.message, news=NewsKind.ENDED)
    return over


def shifted(seen: TopicMemory, by: timedelta, now: datetime) -> TopicMemory:
    """The memory of a topic, after the clock was set by ``by``."""
    return replace(
        seen,
        since=moved(seen.since, by, now),
        gone=seen.gone and moved(seen.gone, by, now),
        at=seen.at and moved(seen.at, by, now),
        changed=seen.changed and moved(seen.changed, by, now),
        over=seen.over and moved(seen.over, by, now),
    )


def lines(pieces: Sequence[Piece]) -> list[str]:
    """One line for each cause, open problems first, with what to do about it, and the number of lines that did not fit.

    Pieces that differ in their device alone are one line, with the devices as a range and since the first of them.
    """
    ordered = sorted(pieces, key=lambda piece: (piece.closes, piece.since))
    found: list[list[str]] = []
    for _, group in groupby(ordered, key=lambda piece: piece.closes):
        alike: dict[NewsKind, list[Piece]] = {}
        for piece in group:
            alike.setdefault(piece.news, []).append(piece)
        found += [line for members in alike.values() for line in _folded_lines(members)]
    left = len(found) - MOST_LINES
    shown = [line for each in found[:MOST_LINES] for line in each]
    return shown + ([f"and {left} more"] if left > 0 else [])


def _folded_lines(pieces: Sequence[Piece]) -> Iterator[list[str]]:
    """The lines for news of one kind: what it is, and what to do."""
    for each in folded_texts(piece.message for piece in pieces):
        first = pieces[each.members[0]]
        yield [replace(first, message=each.text).line, *([f"{DO}{first.next_step}"] if first.next_step else [])]
