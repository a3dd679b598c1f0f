"""Sends messages about problems of the node and their end: it collects the news, limits the rate, and retries.

``news`` decides about the news, ``message`` makes one message of each incident, a receiver delivers it. The memory of
reported news, and the queue of each receiver, are kept on disk: a restart neither repeats nor loses a message. A
receiver that does not answer delays only the thread that sends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from math import ceil
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from healthd.checklib.runbooks import runbook_url, steps
from healthd.core.backoff import pause_s
from healthd.core.encodable import NOT_JSON, json_text
from healthd.core.errors import StoreError
from healthd.judge.clock import ClockWatch, moved
from healthd.notify.delivery import NotDeliveredError, Receiver, RefusedError
from healthd.notify.message import Addresses, Message, Sender, composed, drill, summary
from healthd.notify.news import (
    AGAIN_S,
    LASTS_S,
    NODE_KEY,
    NewsKind,
    Piece,
    Topic,
    TopicMemory,
    incident_of,
    shifted,
    still_open,
    tell,
)

TICK_S = 5.0
"""How often a notifier sends what there is to send, in seconds."""
NEWS = "news"
"""The store's key of the reported and the waiting news."""
MOST_WAITING = 1_000
"""The most pieces of news that wait for one receiver: a controller of 10,000 nodes, 5 % of them out, can have 500 pages
at once. Beyond that the oldest are dropped, and the message says how many."""
MOST_IN_A_ROW = 10
"""The most messages that one receiver gets in a row, so that a slow one does not hold up the others."""
_MOST_SHOWN = 200
"""The most incidents of which a receiver's answer is remembered."""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 30.0, 600.0
_HOUR = timedelta(hours=1)


Hold = Callable[[Sequence[Topic], Mapping[str, TopicMemory], datetime], Mapping[str, str]]


class ReceiverQueue(Struct, frozen=True, kw_only=True):
    """The news that one receiver has not accepted yet. ``lost``: the number of older pieces that were dropped."""

    pieces: Mapping[str, Piece] = field(default_factory=dict)
    lost: int = 0


class NotifierState(Struct, frozen=True, kw_only=True):
    """The state that outlives the daemon. ``shown``: what each receiver answered to the last message of each open
    incident. ``service``: what the receivers of the node's own state alone know of it. ``receivers``: the names of
    those that know what was reported; None where an earlier version did not say."""

    receivers: tuple[str, ...] | None = None
    seen: Mapping[str, TopicMemory] = field(default_factory=dict)
    service: Mapping[str, TopicMemory] = field(default_factory=dict)
    waiting: Mapping[str, ReceiverQueue] = field(default_factory=dict)
    shown: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


_READS_STATE = msgspec.json.Decoder(NotifierState)

Make = Callable[[Sequence[Piece], int, bool], Message]
"""Makes the message of these pieces; with the number of dropped ones, and whether several incidents share it."""


class _Reports:
    """The reports to some of the receivers: the memory of them, and the open topics that their messages are about."""

    def __init__(self, seen: Mapping[str, TopicMemory]) -> None:
        self.seen: Mapping[str, TopicMemory] = seen
        self._standing: tuple[Topic, ...] = ()

    def news(
        self, wrong: Sequence[Topic], now: datetime, *, held: Mapping[str, str], of_service: bool = False
    ) -> tuple[Piece, ...]:
        """The news since the last call. ``held``: topics that are none now; ``of_service``: the node's state alone."""
        reported = [each for each in wrong if not of_service or each.key == NODE_KEY]
        self.seen, news = tell(self.seen, reported, now, held)
        self._standing = tuple(each for each in wrong if not each.last and each.key not in held)
        return news

    def known(self, news: Sequence[Piece]) -> tuple[Piece, ...]:
        """The open topics that were reported before these news, for a receiver that has not heard of them."""
        keys = {piece.key for piece in news}
        topics = (each for each in self._standing if each.key not in keys)
        return tuple(still_open(each, self.seen[each.key]) for each in topics if self.seen[each.key].reported)

    def standing(self, incident: str) -> list[Topic]:
        """The open topics of an incident."""
        return [each for each in self._standing if incident_of(each.key, each.about) == incident]

    def is_open(self, incident: str) -> bool:
        """Whether anything of an incident was reported and its end was not."""
        return any(seen.reported and incident_of(key, seen.about) == incident for key, seen in self.seen.items())

    def clock_was_set(self, by: timedelta, now: datetime) -> None:
        """Move all times with the clock."""
        self.seen = {key: shifted(seen, by, now) for key, seen in self.seen.items()}


class _Pause(Struct, frozen=True, kw_only=True):
    """The pause after a number of failures in a row; 0 for none, behind the others."""

    failures: int
    until: datetime


class Channel:
    """One receiver: its queue, its rate, and its next attempts."""

    def __init__(
        self,
        name: str,
        receiver: Receiver,
        *,
        per_hour: int,
        waiting: ReceiverQueue | None = None,
        shown: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self._receiver, self._per_hour = name, receiver, per_hour
        self.waiting = waiting or ReceiverQueue()
        self.shown = dict(shown or {})
        """By incident, the receiver's answer to the last message, by which the next one updates it."""
        self.delivered = self.failed = 0
        self.problem = ""
        self._sent: deque[datetime] = deque()
        self._failing_since: datetime | None = None
        self._away: _Pause | None = None
        self._failed: dict[str, _Pause] = {}
        """By incident, the pause of those whose last message was not delivered."""

    @property
    def is_of_service(self) -> bool:
        """Whether it gets the node's own state alone."""
        return self._receiver.service

    @property
    def undelivered(self) -> int:
        """The number of pieces that it has not accepted yet, dropped ones included."""
        return len(self.waiting.pieces) + self.waiting.lost

    def clock_was_set(self, by: timedelta, now: datetime) -> None:
        """Move its times with the clock."""
        self._sent = deque(moved(at, by, now) for at in self._sent)
        self._failing_since = self._failing_since and moved(self._failing_since, by, now)
        self._away = self._away and replace(self._away, until=self._away.until + by)
        self._failed = {each: replace(pause, until=pause.until + by) for each, pause in self._failed.items()}

    def add(self, news: Sequence[Piece]) -> None:
        """Put news into the queue. A problem that ends before it could be sent is sent once, as resolved; a step of a
        repair that was not reported yet is sent with it."""
        pieces = dict(self.waiting.pieces)
        for piece in news:
            waits = pieces.pop(piece.key, None)
            if piece.news is NewsKind.STEP and waits is not None:
                pieces[piece.key] = replace(piece, news=waits.news)
            elif piece.news is not NewsKind.STEP or self._receiver.steps:
                pieces[piece.key] = piece
            self._failed.pop(piece.incident, None)  # its message is another one now
        surplus = max(0, len(pieces) - MOST_WAITING)
        for key in list(pieces)[:surplus]:
            del pieces[key]
        self.waiting = ReceiverQueue(pieces=pieces, lost=self.waiting.lost + surplus)

    def send(self, make: Make, now: datetime, stopping: Callable[[], bool] = lambda: False) -> tuple[str, ...]:
        """Send what is due, a message for each incident. Returns the failures, for the log."""
        while self._sent and now - self._sent[0] >= _HOUR:
            self._sent.popleft()
        failures: list[str] = []
        for _ in range(MOST_IN_A_ROW):
            incidents = self._due(now)
            room = MOST_IN_A_ROW if self._receiver.each_incident else self._room(now)
            if not incidents or room <= 0 or stopping():
                break
            was_refused = (pause := self._failed.get(incidents[0])) is not None and pause.failures > 0
            together = not self._receiver.each_incident and len(incidents) > room and not was_refused
            if failure := self._send(incidents if together else incidents[:1], make, now, together=together):
                failures.append(failure)
        return tuple(failures)

    def _room(self, now: datetime) -> int:
        """How many messages may be sent now. The second half of an hour's messages is spread over it: a page that comes
        behind many messages waits for minutes, not for most of an hour."""
        at_once = ceil(self._per_hour / 2)
        if len(self._sent) < at_once:
            return at_once - len(self._sent)
        if len(self._sent) == self._per_hour:
            return 0
        return int(now - self._sent[-1] >= _HOUR / (self._per_hour - at_once + 1))

    def _due(self, now: datetime) -> list[str]:
        """The incidents whose message may be sent now: those that have not failed before the others."""
        waiting = _by_incident(self.waiting.pieces.values())
        self._failed = {each: pause for each, pause in self._failed.items() if each in waiting}
        if self._away is not None and now < self._away.until:
            return []
        again = [each for each in waiting if each in self._failed and self._failed[each].until <= now]
        again.sort(key=lambda each: self._failed[each].until)
        return [*(each for each in waiting if each not in self._failed), *again]

    def _send(self, incidents: Sequence[str], make: Make, now: datetime, *, together: bool) -> str:
        """Send one message about these incidents. Returns the failure for the log, or ""."""
        pieces = tuple(piece for piece in self.waiting.pieces.values() if piece.incident in incidents)
        message = make(pieces, self.waiting.lost, together)
        try:
            answer = self._receiver.deliver(replace(message, before=self.shown.get(message.about.id, "")))
        except NotDeliveredError as error:
            return self._has_failed(error, incidents, now)
        self._remember(message, answer or "")
        self._sent.append(now)
        self.delivered += 1
        sent = {piece.key for piece in pieces}
        left = {key: piece for key, piece in self.waiting.pieces.items() if key not in sent}
        self.waiting, self._away = ReceiverQueue(pieces=left), None
        for each in incidents:
            self._failed.pop(each, None)
        if not self._failed:
            self.problem, self._failing_since = "", None
        return ""

    def _remember(self, message: Message, answer: str) -> None:
        self.shown.pop(message.about.id, None)
        if answer and not message.about.is_over:
            self.shown[message.about.id] = answer
        for id_ in tuple(islice(self.shown, max(0, len(self.shown) - _MOST_SHOWN))):
            del self.shown[id_]

    def try_out(self, message: Message) -> str:
        """Send a message past queue, rate and counts. Why it was not delivered, or ""; it is not sent again."""
        try:
            self._receiver.deliver(message)
        except NotDeliveredError as error:
            return str(error)
        return ""

    def _has_failed(self, error: NotDeliveredError, incidents: Sequence[str], now: datetime) -> str:
        """Have these incidents wait: for their own pause if the receiver refused their message, else all for its."""
        self.failed += 1
        before = {each: self._failed.get(each, _Pause(failures=0, until=now)) for each in incidents}
        if isinstance(error, RefusedError):
            self._failed |= {each: _longer(pause, now) for each, pause in before.items()}
            until = self._failed[incidents[0]].until
        else:
            self._failed |= {each: replace(pause, until=now) for each, pause in before.items()}
            self._away = _longer(self._away or _Pause(failures=0, until=now), now, error.retry_s)
            until = self._away.until
        self._failing_since = self._failing_since or now
        since = f"since {self._failing_since:%Y-%m-%d %H:%M:%S} UTC"
        self.problem = f"notify: deliveries to {self.name} fail {since}; {self.undelivered} wait: {error}"
        return f"{self.name}: not delivered, retrying in {(until - now).total_seconds():.0f} s: {error}"


def _longer(pause: _Pause, now: datetime, least_s: float = 0.0) -> _Pause:
    """The pause after one more failure."""
    wait_s = max(least_s, pause_s(pause.failures + 1, first_s=_FIRST_RETRY_S, longest_s=_LONGEST_RETRY_S))
    return _Pause(failures=pause.failures + 1, until=now + timedelta(seconds=wait_s))


class Notifier:
    """All receivers of one node, or of the controller. ``wrong``: the open topics. ``about``: the sender, for each
    message.

    ``keep`` writes the state that outlives the daemon, ``kept`` is the state that the daemon before this one wrote.
    ``hold``: which of the open topics are not to be reported now, as of ``tell``. ``cluster``: its name, "" for none.
    ``runbooks``: the address of the codes' pages, ``page``: of a node's status page, each "" for none.
    """

    def __init__(
        self,
        channels: Mapping[str, Receiver],
        *,
        per_hour: int,
        wrong: Callable[[], Sequence[Topic]],
        about: Callable[[], Sender],
        keep: Callable[[str], None],
        kept: str = "",
        hold: Hold | None = None,
        cluster: str = "",
        runbooks: str = "",
        page: str = "",
    ) -> None:
        self._cluster, self._runbooks, self._page = cluster, runbooks, page
        self._wrong, self._about, self._keep, self._hold = wrong, about, keep, hold
        before = _kept(kept)
        self._reports, self._service = _Reports(before.seen), _Reports(before.service)
        self.channels = tuple(
            Channel(name, receiver, per_hour=per_hour, waiting=before.waiting.get(name), shown=before.shown.get(name))
            for name, receiver in channels.items()
        )
        self._new = {each for each in channels if before.receivers is not None and each not in before.receivers}
        self._has_service = any(each.is_of_service for each in self.channels)
        self._written, self._unsaved = kept, ""
        self.held: tuple[str, ...] = ()
        """A sentence for each message that is held for an incident."""
        self.accepted: frozenset[str] | None = None
        """The keys of the open topics that every receiver has accepted; None before the first ``tick``."""

    def tick(self, now: datetime, *, stopping: Callable[[], bool] = lambda: False) -> tuple[str, ...]:
        """Collect the news, and send the queues. Returns the failures, for the log.

        ``stopping``: once true, no further receiver gets a message; the next daemon sends the queues. If the state
        cannot be written the messages are still sent, and the failure is returned once.
        """
        wrong = self._wrong()
        held = self._hold(wrong, self._reports.seen, now) if self._hold is not None else {}
        news = self._reports.news(wrong, now, held=held)
        of_service = self._service.news(wrong, now, held={}, of_service=True) if self._has_service else ()
        self.held = tuple(_held_words(each, held[each.key]) for each in wrong if each.key in held)
        for channel in self.channels:
            reports, pieces = (self._service, of_service) if channel.is_of_service else (self._reports, news)
            channel.add((*(reports.known(pieces) if channel.name in self._new else ()), *pieces))
        self._new.clear()
        unsaved = self._saved() if news or of_service else ""  # a process that is killed while it sends has it on disk
        sender = self._about()

        def make(reports: _Reports, pieces: Sequence[Piece], lost: int, together: bool) -> Message:
            return self._message(reports, pieces, lost, sender, now, together=together)

        failures = [
            failure
            for channel in self.channels
            for failure in channel.send(
                partial(make, self._service if channel.is_of_service else self._reports), now, stopping
            )
        ]
        undelivered = {key for channel in self.channels for key in channel.waiting.pieces}
        reported = {key for key, seen in self._reports.seen.items() if seen.reported}
        self.accepted = (
            frozenset() if any(each.waiting.lost for each in self.channels) else frozenset(reported - undelivered)
        )
        return tuple(filter(None, [unsaved, *failures, self._saved()]))

    def _saved(self) -> str:
        """Write the state, if it has changed. Why that failed, or ""."""
        state = NotifierState(
            receivers=tuple(each.name for each in self.channels),
            seen=self._reports.seen,
            service=self._service.seen if self._has_service else {},
            waiting={each.name: each.waiting for each in self.channels if each.undelivered},
            shown={each.name: each.shown for each in self.channels if each.shown},
        )
        if (text := json_text(state)) == self._written:
            return ""
        before, self._unsaved = self._unsaved, ""
        try:
            self._keep(text)
        except StoreError as error:
            self._unsaved = f"the state of messages cannot be written; some may be sent twice: {error}"
            return self._unsaved if self._unsaved != before else ""
        self._written = text
        return ""

    def clock_was_set(self, by: timedelta, now: datetime) -> None:
        """Move all times with the wall clock, so that no problem seems older and no receiver waits longer."""
        self._reports.clock_was_set(by, now)
        self._service.clock_was_set(by, now)
        for channel in self.channels:
            channel.clock_was_set(by, now)

    def drill(self, text: str, now: datetime) -> Mapping[str, str]:
        """Send one message that is marked as a drill. For each receiver, why it was not delivered, or ""."""
        message = drill(text, sender=self._about(), addresses=self._addresses(()), now=now)
        return {channel.name: channel.try_out(message) for channel in self.channels}

    def problems(self) -> tuple[str, ...]:
        """A sentence for each receiver that did not accept the last message."""
        return tuple(channel.problem for channel in self.channels if channel.problem)

    def _message(
        self, reports: _Reports, pieces: Sequence[Piece], lost: int, sender: Sender, now: datetime, *, together: bool
    ) -> Message:
        addresses = self._addresses(pieces)
        if together:
            incidents = len(_by_incident(pieces))
            return summary(pieces, incidents, sender=sender, addresses=addresses, now=now, lost=lost)
        incident = pieces[0].incident
        return composed(
            pieces,
            reports.standing(incident),
            open_now=reports.is_open(incident),
            sender=sender,
            addresses=addresses,
            now=now,
            lost=lost,
        )

    def _addresses(self, pieces: Sequence[Piece]) -> Addresses:
        codes = {piece.about.code or piece.code for piece in pieces}
        runbooks = {code: runbook_url(self._runbooks, code) for code in codes if steps(code)}
        return Addresses(cluster=self._cluster, runbooks=runbooks, page=self._page)


def _by_incident(pieces: Iterable[Piece]) -> dict[str, list[Piece]]:
    """The pieces of each incident, in the order of the first."""
    found: dict[str, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.incident, []).append(piece)
    return found


def _held_words(topic: Topic, incident: str) -> str:
    why = f"incident {incident} reports it" if incident else "an incident of many nodes may report it"
    return f"message held: {why}: {topic.message}"


def still_told(kept: str) -> tuple[Topic, ...]:
    """The reported topics whose end was not reported, as open topics: for a process that continues from another's state
    and has not read the cluster yet."""
    state = _kept(kept)
    reported = {key: seen for key, seen in state.seen.items() if seen.reported}
    of_service = {key: seen for key, seen in state.service.items() if seen.reported}
    return tuple(
        Topic(
            key=key,
            message=seen.message,
            title=seen.title,
            lasts_s=LASTS_S if key in reported else AGAIN_S,  # what only the receivers of the node's state know
            cause="".join(seen.causes[-1:]),
            step=seen.step,
            about=seen.about,
        )
        for key, seen in {**of_service, **reported}.items()
    )


def _kept(text: str) -> NotifierState:
    """The state of an earlier daemon. One of another form is ignored: what stands is reported again, and what
    waited to be sent, or ended meanwhile, is not."""
    try:
        return _READS_STATE.decode(text) if text else NotifierState()
    except NOT_JSON:
        return NotifierState()


class NotifyDuty:
    """One notifier's duty, of which each call sends what there is to send. A failure is logged, and tried again by the
    next call. ``stopping``: whether nothing more is to be sent by this process."""

    def __init__(self, notifier: Notifier, log: Any, *, stopping: Callable[[], bool]) -> None:
        self._notifier, self._log, self._stopping = notifier, log, stopping
        self._clock = ClockWatch(datetime.now(UTC), time.monotonic())

    def __call__(self) -> None:
        now = datetime.now(UTC)
        if by := self._clock.was_set_by(now, time.monotonic()):
            self._notifier.clock_was_set(by, now)
        if self._stopping():
            return
        for failure in self._notifier.tick(now, stopping=self._stopping):
            self._log.error("notification", message=failure)


def keep_notifying(notifier: Notifier, stop: threading.Event, log: Any, *, speaks: Callable[[], bool]) -> None:
    """The work of a thread of the controller, until ``stop``. ``speaks``: whether this process is the one to send."""
    tell = NotifyDuty(notifier, log, stopping=lambda: stop.is_set() or not speaks())
    while not stop.wait(TICK_S):
        tell()
