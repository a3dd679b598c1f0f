"""What people are told about a node: what is wrong and lasts, what changed about it, daily what stands, and its end.

Pure: it takes the time as an argument and returns what there is to say. Who is told, and how, is ``notifier``'s. A
topic is a state: it stands while its cause does. "over" is said only of a topic that stands no more. A node that
another owner holds now, or a fault that an operator acknowledged, is a state of its own.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from healthd.core.model import SEVERITY_RANK, Action, Decision, Diagnosis, Refusal, Severity, Step, Verdict
from healthd.judge.acknowledge import in_words
from healthd.judge.clock import moved
from healthd.judge.history import Fault
from healthd.remediation.decide.remediation import End, Remediation
from healthd.remediation.decide.rules import roots_of

LASTS_S = 15.0
"""How long something must be wrong before anybody is told, in seconds, and over before that is said: what comes and
goes within it is nobody's business at night, and what breaks together is told together."""
UNKNOWN_LASTS_S = 600.0
"""The same for a node that cannot be told to be well: a driver that restarts takes minutes."""
UNREADABLE_LASTS_S = 300.0
"""The same for a cluster that does not answer while a fault is open: slurmctld restarts in minutes."""
AGAIN_S = 86_400.0
"""How often a page, and a critical fault that nothing is done about, is told again while it stands, in seconds."""
COMES_AND_GOES_S = 3_600.0
"""How long at most it must be over, in seconds, before that is said of what came back: four times as long each time
within a day, so that what comes and goes every few minutes is told of a few times a day."""
KNOWN_CHANGES_EVERY_S = 3_600.0
"""How soon a cause that was told before is news again, in seconds: two that take turns are no stream of messages."""
PAGED = "page "
"""How the key of what asks for a person begins."""
NODE_KEY = "node"
"""The key of the node's own state: out by our act, or kept out by another owner."""
MOST_LINES = 20
"""So many pieces of news stand in one message; of the others it says how many there are."""
_MOST_CAUSES = 8
_NOT_BACK = frozenset({End.LOST, End.ACKNOWLEDGED, End.ABANDONED})
"""Ends of a case by which healthd has not put its node back: its last words say whose the node is."""
_NUMBERS = re.compile(r"\d+")


class NewsKind(StrEnum):
    """What a piece of news says of its topic. OVER and ENDED close it; an incident that they name is resolved."""

    WRONG = "wrong"
    NOW = "now"  # people know of it, and its cause is another one
    STILL = "still"  # told again, because it stands
    OVER = "over"
    ENDED = "ended"  # healthd's part in it is over; its words say whose it is now


@dataclass(frozen=True, kw_only=True, slots=True)
class Topic:
    """Something that is wrong now. ``key`` makes it the same as before; ``lasts_s``: how long it must last.

    ``cause``: another one under a known key is news. ``again_s``: how often it is told while it stands; 0 for once.
    ``title``: what is said to be over; "" for the words. ``last``: nothing stands any more, and these words say how it
    ended; with a ``cause`` only where that was told last. ``stays_out``: the node is out of service all the same.
    """

    key: str
    words: str
    lasts_s: float = LASTS_S
    cause: str = ""
    again_s: float = 0.0
    title: str = ""
    last: bool = False
    stays_out: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicMemory:
    """What is remembered of a topic. ``told``: people know of it, by these ``words`` since ``at``. ``gone``: since when
    it is over. ``causes``: those that were told, newest last. ``changed``: since when its cause is another one.
    ``title``: what will be said to be over. ``over``: when that was said last, which is remembered for a day;
    ``returns``: how often it was back within a day of that."""

    words: str
    since: datetime
    told: bool = False
    gone: datetime | None = None
    at: datetime | None = None
    causes: tuple[str, ...] = ()
    changed: datetime | None = None
    title: str = ""
    over: datetime | None = None
    returns: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One piece of news: what is wrong since when, or what is over."""

    key: str
    words: str
    since: datetime
    over: datetime | None = None
    news: NewsKind = NewsKind.WRONG

    @property
    def closes(self) -> bool:
        """Whether an incident of this key is resolved by it."""
        return self.news in (NewsKind.OVER, NewsKind.ENDED)

    @property
    def line(self) -> str:
        """For a person."""
        since = f"since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.news if self.closes else self.news.upper()}: {self.words} ({since})"


def topics(
    *,
    verdict: Verdict,
    diagnoses: Iterable[Diagnosis],
    acknowledged: Iterable[Diagnosis],
    decision: Decision | None,
    case: Remediation | None,
    least: Severity,
    ended: Remediation | None = None,
    faults: Iterable[Fault] = (),
) -> tuple[Topic, ...]:
    """What is worth telling: faults of ``least`` severity or worse, acknowledged ones as that; a node that cannot be
    told to be healthy; the node's own state where it is out; and what an operator is wanted for.

    ``case``: the open one; ``ended``: the one that ended last, where none is open. ``faults``: those that are open, the
    symptoms of others among them.
    """
    diagnoses, acknowledged, faults = tuple(diagnoses), tuple(acknowledged), tuple(faults)
    words = {_key(fault.code, fault.component): in_words(fault) for fault in faults}
    found = [
        topic
        for each in diagnoses
        for topic in _faults(each, least, acked=each in acknowledged, words=words, again=case is None)
    ]
    found += _symptoms(diagnoses, faults)
    found += _replaced(case, {topic.key for topic in found})
    if verdict is Verdict.UNKNOWN:
        unknown = "it cannot be told whether the node is fit for a job; `healthd check` says why"
        found.append(Topic(key="unknown", words=unknown, lasts_s=UNKNOWN_LASTS_S))
    found += _node(decision, case, ended)
    if decision is not None and decision.action is Action.PAGE:
        found.append(_page(decision, case))
    return tuple(found)


def of_absent(node: str, message: str) -> Topic:
    """The page for a node whose daemon cannot speak."""
    words = f"an operator is needed: {node}: {message}"
    return Topic(key=f"{PAGED}absent {node}", words=words, again_s=AGAIN_S)


def unkept(problem: str) -> tuple[Topic, ...]:
    """The page for a state directory that takes no writes, for this reason; nothing without one."""
    words = f"an operator is needed: nothing can be repaired while the state cannot be written: {problem}"
    page = Topic(key=f"{PAGED}state", words=words, lasts_s=UNKNOWN_LASTS_S, again_s=AGAIN_S)
    return (page,) if problem else ()


def _key(code: str, component: object) -> str:
    return f"{code} {component}"


def _faults(
    diagnosis: Diagnosis, least: Severity, *, acked: bool, words: Mapping[str, str], again: bool
) -> Iterator[Topic]:
    """A topic for each fault that nothing else explains: one that is no longer the worst of its component is not over.

    ``words``: how long each open fault is acknowledged. ``again``: nothing is done about it, so it is told each day.
    """
    roots = roots_of(diagnosis)
    for index, root in enumerate(roots):
        key, title = _key(root.code, diagnosis.component), f"{root.code} on {diagnosis.component}"
        if SEVERITY_RANK[root.severity] < SEVERITY_RANK[least]:
            yield Topic(key=key, words=f"{title}: still open, and only {root.severity} now", last=True)
        elif acked or words.get(key):
            until = words.get(key) or "acknowledged"
            said = f"{title}: {until}, by an operator; the fault is still open"
            again_s = AGAIN_S if root.severity is Severity.CRITICAL else 0.0
            yield Topic(key=key, words=said, cause=f"acknowledged {root.severity}", again_s=again_s, title=title)
        else:
            reasons = "; ".join(_reasons(diagnosis, index, len(roots)))
            said = f"{title}: {root.severity}, calls for {root.remedy}: {reasons}"
            again_s = AGAIN_S if again and root.severity is Severity.CRITICAL else 0.0
            yield Topic(key=key, words=said, cause=f"{root.severity} {root.remedy}", again_s=again_s, title=title)


def _reasons(diagnosis: Diagnosis, index: int, roots: int) -> Sequence[str]:
    """The messages behind one root: ``diagnose`` puts those of the roots first, in their order, then the symptoms'."""
    if not diagnosis.roots:
        return diagnosis.reasons
    own = diagnosis.reasons[index : index + 1]
    return own if index else (*own, *diagnosis.reasons[roots:])


def _symptoms(diagnoses: Sequence[Diagnosis], faults: Iterable[Fault]) -> Iterator[Topic]:
    """Faults that are open and that another one explains by now: what was told of them is not over."""
    roots = {_key(root.code, each.component) for each in diagnoses for root in roots_of(each)}
    for fault in faults:
        if (key := _key(fault.code, fault.component)) not in roots:
            cause = next(
                (f"{each.code} on {each.component}" for each in diagnoses if fault.code in each.codes), "another"
            )
            words = f"{fault.code} on {fault.component}: still open, and explained by {cause}"
            yield Topic(key=key, words=words, last=True)


def _replaced(case: Remediation | None, keys: Container[str]) -> Iterator[Topic]:
    """The fault for which a machine was replaced: the new one has an empty disk, and is to say that it is over."""
    if case is None or Step.REPLACE not in case.steps or case.index <= case.steps.index(Step.REPLACE):
        return
    key, title = _key(case.code, case.component), f"{case.code} on {case.component}"
    if case.code and key not in keys:
        yield Topic(
            key=key, words=f"{title}: its machine was replaced; this one is verified", cause="replaced", title=title
        )


def _node(decision: Decision | None, case: Remediation | None, ended: Remediation | None) -> Iterator[Topic]:
    """The node's own state: out by our act, kept out by another owner or a drain of ours without a case, or how our
    part in it ended."""
    refusal = decision.refusal if decision is not None else None
    if case is not None and _is_out(case):
        title = f"out of service for {case.code} on {case.component} [{case.id}]"
        yield Topic(key=NODE_KEY, words=f"{title}: {case.note}", lasts_s=0.0, cause=_story(case), title=title)
    elif decision is not None and refusal is Refusal.FOREIGN_HOLD:
        about = decision.diagnosis
        still = f"; {about.code} on {about.component} is still open" if about is not None else ""
        again_s = AGAIN_S if about is not None and about.severity is Severity.CRITICAL else 0.0
        over = about or case
        title = f"{over.code} on {over.component}, on a node that another owner holds" if over is not None else ""
        words = f"{decision.reason}{still}"
        yield Topic(key=NODE_KEY, words=words, cause="foreign", again_s=again_s, title=title)
    elif decision is not None and refusal is Refusal.ORPHAN:
        yield Topic(key=NODE_KEY, words=decision.reason, cause="orphan")
    elif decision is not None and refusal is Refusal.ACKNOWLEDGED:
        about = decision.diagnosis
        still = f", although {about.code} on {about.component} is still open" if about is not None else ""
        yield Topic(key=NODE_KEY, words=f"in service by an operator's order{still}", last=True)
    elif ended is not None and ended.end in _NOT_BACK:
        words, stays_out = f"ours no more [{ended.id}]: {ended.note}", ended.adopted and ended.end is End.ABANDONED
        yield Topic(key=NODE_KEY, words=words, cause=_story(ended), last=True, stays_out=stays_out)


def _story(case: Remediation) -> str:
    """What makes an outage another one. On a node that the cluster drained by itself, a fault that comes and goes opens
    a case each time: that is one story."""
    return f"the cluster's own drain, {case.code}" if case.adopted else f"case {case.id}"


def _is_out(case: Remediation) -> bool:
    """Whether jobs are kept off by our drain, or where the platform owns the node's state by our slot."""
    return case.hold is not None or (Step.DRAIN not in case.steps and case.step is not Step.SLOT)


def _page(decision: Decision, case: Remediation | None) -> Topic:
    """What an operator is wanted for. One key for a fault: it is over when nobody is wanted for it any more, and until
    then another kind of cause is news."""
    about = decision.diagnosis or case
    key = PAGED + (_key(about.code, about.component) if about is not None else "")
    if about is not None and decision.refusal is Refusal.HELD_BACK:
        key = f"{PAGED}fleet {about.code}"  # the same on every node: it is one story
    says_so = "person is needed" in decision.reason
    words = decision.reason if says_so else f"an operator is needed: {decision.reason}"
    lasts_s = UNREADABLE_LASTS_S if decision.refusal is Refusal.UNREADABLE else 0.0
    title = f"no operator is needed any more for {about.code} on {about.component}" if about is not None else words
    return Topic(key=key, words=words, lasts_s=lasts_s, cause=_kind(decision, case), again_s=AGAIN_S, title=title)


def _kind(decision: Decision, case: Remediation | None) -> str:
    """What makes a page another one: not the error of the moment, nor what only counts."""
    match decision.refusal:
        case Refusal.STUCK | Refusal.UNREADABLE | Refusal.HELD_BACK | Refusal.BUDGET:
            return str(decision.refusal)
        case Refusal.OVERDUE:
            return f"{decision.refusal} {case.step if case is not None else ''}"
        case _:
            return _NUMBERS.sub("#", f"{decision.refusal or ''} {decision.reason}")


def tell(
    memory: Mapping[str, TopicMemory], wrong: Sequence[Topic], now: datetime
) -> tuple[dict[str, TopicMemory], tuple[Piece, ...]]:
    """What is remembered from now on, and what is news: each topic when it has lasted, when its cause is another one,
    as often as it is to be told again, and once when it is over.

    A topic that is back before it was said to be over is no news; one that is back after that, within a day, must be
    over for longer each time.
    """
    after: dict[str, TopicMemory] = {}
    news: list[Piece] = []
    for topic in (each for each in wrong if not each.last):
        seen = _standing(memory.get(topic.key), topic, now)
        after[topic.key], what = _heard(seen, topic, now)
        if what is not None:
            news.append(Piece(key=topic.key, words=topic.words, since=seen.since, news=what))
    endings = {topic.key: topic for topic in wrong if topic.last}
    for key, seen in memory.items():
        if key in after:
            continue
        gone = seen.gone or now
        ending = endings.get(key)
        if seen.told and now - gone >= _over_after(key, seen, gone, stays_out=ending is not None and ending.stays_out):
            news.append(_ending(key, seen, ending, gone))
            after[key] = TopicMemory(words="", since=gone, gone=gone, over=now, returns=seen.returns)
        elif seen.told or _is_within_a_day(seen.over, now):
            after[key] = replace(seen, gone=gone)
    return after, tuple(news)


def _standing(seen: TopicMemory | None, topic: Topic, now: datetime) -> TopicMemory:
    """What is remembered of a topic that stands now."""
    if seen is None:
        return TopicMemory(words=topic.words, since=now)
    is_back = seen.gone is not None and not seen.told
    return replace(seen, gone=None, since=now if is_back else seen.since)


def _over_after(key: str, seen: TopicMemory, gone: datetime, *, stays_out: bool) -> timedelta:
    """How long it must be over before that is said: what stood for a day is none that comes and goes. That the node is
    in service again is said at once: another may take it out within the hour, and it would be untrue."""
    if (key == NODE_KEY and not stays_out) or not _is_within_a_day(seen.since, gone):
        return timedelta(seconds=LASTS_S)
    return timedelta(seconds=min(COMES_AND_GOES_S, LASTS_S * 4.0 ** min(seen.returns, 9)))


def _is_within_a_day(then: datetime | None, now: datetime) -> bool:
    return then is not None and now - then < timedelta(seconds=AGAIN_S)


def _heard(seen: TopicMemory, topic: Topic, now: datetime) -> tuple[TopicMemory, NewsKind | None]:
    """What is remembered of a topic that stands, and what of it is news."""
    told = replace(
        seen,
        words=topic.words,
        title=topic.title or topic.words,
        told=True,
        at=now,
        changed=None,
        causes=(*(cause for cause in seen.causes if cause != topic.cause), topic.cause)[-_MOST_CAUSES:],
    )
    if not seen.told:
        lasts = now - seen.since >= timedelta(seconds=topic.lasts_s)
        returns = seen.returns + 1 if _is_within_a_day(seen.over, now) else 0
        return (replace(told, returns=returns), NewsKind.WRONG) if lasts else (seen, None)
    quiet_s = (now - (seen.at or seen.since)).total_seconds()
    is_same = seen.causes[-1:] == (topic.cause,)
    if 0 < topic.again_s <= quiet_s:
        return told, NewsKind.STILL if is_same else NewsKind.NOW
    if is_same:
        return replace(seen, changed=None), None
    changed = seen.changed or now
    known = topic.cause in seen.causes and quiet_s < KNOWN_CHANGES_EVERY_S
    if known or now - changed < timedelta(seconds=LASTS_S):
        return replace(seen, changed=changed), None
    return told, NewsKind.NOW


def _ending(key: str, seen: TopicMemory, ending: Topic | None, gone: datetime) -> Piece:
    """How it ended, where that is known and is not that it is over."""
    if ending is not None and (not ending.cause or seen.causes[-1:] == (ending.cause,)):
        return Piece(key=key, words=ending.words, since=seen.since, over=gone, news=NewsKind.ENDED)
    return Piece(key=key, words=seen.title or seen.words, since=seen.since, over=gone, news=NewsKind.OVER)


def shifted(seen: TopicMemory, by: timedelta, now: datetime) -> TopicMemory:
    """What is remembered of a topic, after the clock was set by ``by``."""
    return replace(
        seen,
        since=moved(seen.since, by, now),
        gone=seen.gone and moved(seen.gone, by, now),
        at=seen.at and moved(seen.at, by, now),
        changed=seen.changed and moved(seen.changed, by, now),
        over=seen.over and moved(seen.over, by, now),
    )


def lines(pieces: Sequence[Piece]) -> list[str]:
    """One line for each piece, what is wrong first, and how many did not fit."""
    ordered = sorted(pieces, key=lambda piece: (piece.closes, piece.since))
    left = len(ordered) - MOST_LINES
    return [piece.line for piece in ordered[:MOST_LINES]] + ([f"and {left} more"] if left > 0 else [])
