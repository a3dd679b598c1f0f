"""What people are told about a node: what is wrong and lasts, once, and that it is over.

Pure: it takes the time as an argument and returns what there is to say. Who is told, and how, is ``notifier``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from healthd.clockwatch import moved
from healthd.model import SEVERITY_RANK, Action, Decision, Diagnosis, Severity, Step, Verdict
from healthd.remediation.case import Case, End

LASTS_S = 15.0
"""How long something must be wrong before anybody is told, in seconds, and over before that is said: what comes and
goes within it is nobody's business at night, and what breaks together is told together."""
UNKNOWN_LASTS_S = 600.0
"""The same for a node that cannot be told to be well: a driver that restarts takes minutes."""
PAGED = "page "
"""How the key of what asks for a person begins."""
MOST_LINES = 20
"""So many pieces of news stand in one message; of the others it says how many there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Topic:
    """Something that is wrong now. ``key`` makes it the same as before; ``lasts_s``: how long it must last."""

    key: str
    words: str
    lasts_s: float = LASTS_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What is remembered of a topic. ``told``: people know of it. ``gone``: since when it is over."""

    words: str
    since: datetime
    told: bool = False
    gone: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One piece of news: what is wrong since when, or what is over."""

    key: str
    words: str
    since: datetime
    over: datetime | None = None

    @property
    def line(self) -> str:
        """For a person."""
        since = f"since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        return f"{'over' if self.over else 'WRONG'}: {self.words} ({since})"


def topics(
    *,
    verdict: Verdict,
    diagnoses: Iterable[Diagnosis],
    acknowledged: Iterable[Diagnosis],
    decision: Decision | None,
    case: Case | None,
    least: Severity,
) -> tuple[Topic, ...]:
    """What is worth telling: diagnoses of ``least`` severity or worse that nobody has acknowledged, a node that cannot
    be told to be well, a node that is out by our own act, and what asks for a person."""
    acknowledged = tuple(acknowledged)
    found = [
        Topic(
            key=f"{each.code} {each.component}",
            words=f"{each.code} on {each.component}: {each.severity}, calls for {each.remedy}: "
            + "; ".join(each.reasons),
        )
        for each in diagnoses
        if SEVERITY_RANK[each.severity] >= SEVERITY_RANK[least] and each not in acknowledged
    ]
    if verdict is Verdict.UNKNOWN:
        words = "it cannot be told whether the node is fit for a job; `healthd check` says why"
        found.append(Topic(key="unknown", words=words, lasts_s=UNKNOWN_LASTS_S))
    if case is not None and case.hold is not None:
        words = f"out of service [{case.id}] for {case.code} on {case.component}; at {_step(case)}"
        found.append(Topic(key=f"case {case.id}", words=words, lasts_s=0.0))
    if decision is not None and decision.action is Action.PAGE:
        about = decision.diagnosis
        key = f"{PAGED}{about.code} {about.component}" if about is not None else f"{PAGED}{case.id if case else ''}"
        found.append(Topic(key=key, words=f"a person is needed: {decision.reason}", lasts_s=0.0))
    return tuple(found)


def _step(case: Case) -> str:
    if case.end is End.FAILED:
        return f"{case.step}, given up"
    return str(case.step) if case.step is not Step.STAY else "stay, until `healthd release`"


def tell(
    memory: Mapping[str, Seen], wrong: Sequence[Topic], now: datetime
) -> tuple[dict[str, Seen], tuple[Piece, ...]]:
    """What is remembered from now on, and what is news: each topic once when it has lasted, and once when it is over.

    A topic that is back before it was said to be over is no news.
    """
    after: dict[str, Seen] = {}
    news: list[Piece] = []
    for topic in wrong:
        seen = replace(memory.get(topic.key, Seen(words=topic.words, since=now)), gone=None)
        if not seen.told and now - seen.since >= timedelta(seconds=topic.lasts_s):
            seen = replace(seen, told=True, words=topic.words)
            news.append(Piece(key=topic.key, words=seen.words, since=seen.since))
        after[topic.key] = seen
    for key, seen in memory.items():
        if key in after or not seen.told:
            continue
        gone = seen.gone or now
        if now - gone >= timedelta(seconds=LASTS_S):
            news.append(Piece(key=key, words=seen.words, since=seen.since, over=gone))
        else:
            after[key] = replace(seen, gone=gone)
    return after, tuple(news)


def shifted(seen: Seen, by: timedelta, now: datetime) -> Seen:
    """What is remembered of a topic, after the clock was set by ``by``."""
    return replace(seen, since=moved(seen.since, by, now), gone=seen.gone and moved(seen.gone, by, now))


def lines(pieces: Sequence[Piece]) -> list[str]:
    """One line for each piece, what is wrong first, and how many did not fit."""
    ordered = sorted(pieces, key=lambda piece: (piece.over is not None, piece.since))
    left = len(ordered) - MOST_LINES
    return [piece.line for piece in ordered[:MOST_LINES]] + ([f"and {left} more"] if left > 0 else [])
