"""Sends messages about problems of the node and their end: it collects the news, limits the rate, and retries.

``news`` decides about the news, ``delivery`` delivers a message. The memory of reported news, and the queue of each
receiver, are kept on disk: a restart neither repeats nor loses a message. A receiver that does not answer delays only
the thread that sends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from healthd.checklib.runbooks import runbook_url
from healthd.config.schema.notify import NotifySection
from healthd.core.backoff import pause_s
from healthd.core.encodable import json_text
from healthd.core.errors import StoreError
from healthd.judge.clock import ClockWatch, moved
from healthd.notify.delivery import Deliver, Message, NotDeliveredError, to_command, to_slack, to_webhook
from healthd.notify.news import Piece, Topic, TopicMemory, lines, shifted, tell

SCHEMA = "healthd.notification/1"
TICK_S = 5.0
"""How often a notifier sends what there is to send, in seconds."""
NEWS = "news"
"""The store's key of the reported and the waiting news."""
MOST_WAITING = 200
"""The most pieces of news that wait for one receiver. Beyond that the oldest are dropped, and the message says how
many."""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 30.0, 600.0
_HOUR = timedelta(hours=1)


Hold = Callable[[Sequence[Topic], Mapping[str, TopicMemory], datetime], Mapping[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiverQueue:
    """The news that one receiver has not accepted yet. ``lost``: the number of older pieces that were dropped."""

    pieces: Mapping[str, Piece] = field(default_factory=dict)
    lost: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class NotifierState:
    """The state that outlives the daemon."""

    seen: Mapping[str, TopicMemory] = field(default_factory=dict)
    waiting: Mapping[str, ReceiverQueue] = field(default_factory=dict)


class Channel:
    """One receiver: its queue, its rate, and its next attempt."""

    def __init__(self, name: str, deliver: Deliver, *, per_hour: int, waiting: ReceiverQueue | None = None) -> None:
        self.name, self._deliver, self._per_hour = name, deliver, per_hour
        self.waiting = waiting or ReceiverQueue()
        self.delivered = self.failed = 0
        self.problem = ""
        self._sent: deque[datetime] = deque()
        self._failures = 0
        self._failing_since: datetime | None = None
        self._not_before: datetime | None = None

    @property
    def undelivered(self) -> int:
        """The number of pieces that it has not accepted yet, dropped ones included."""
        return len(self.waiting.pieces) + self.waiting.lost

    def clock_was_set(self, by: timedelta, now: datetime) -> None:
        """Move its times with the clock."""
        self._sent = deque(moved(at, by, now) for at in self._sent)
        self._failing_since = self._failing_since and moved(self._failing_since, by, now)
        self._not_before = self._not_before and self._not_before + by

    def add(self, news: Sequence[Piece]) -> None:
        """Put news into the queue. A problem that ends before it could be sent is sent once, as resolved."""
        pieces = dict(self.waiting.pieces)
        for piece in news:
            pieces.pop(piece.key, None)
            pieces[piece.key] = piece
        surplus = max(0, len(pieces) - MOST_WAITING)
        for key in list(pieces)[:surplus]:
            del pieces[key]
        self.waiting = ReceiverQueue(pieces=pieces, lost=self.waiting.lost + surplus)

    def send(self, make: Callable[[ReceiverQueue], Message], now: datetime) -> str:
        """Send the queue, if that is due. Returns the failure for the log, or ""."""
        while self._sent and now - self._sent[0] >= _HOUR:
            self._sent.popleft()
        too_early = self._not_before is not None and now < self._not_before
        if not self.undelivered or too_early or len(self._sent) >= self._per_hour:
            return ""
        try:
            self._deliver(make(self.waiting))
        except NotDeliveredError as error:
            return self._has_failed(error, now)
        self._sent.append(now)
        self.delivered += 1
        self.waiting, self.problem = ReceiverQueue(), ""
        self._failures, self._failing_since, self._not_before = 0, None, None
        return ""

    def try_out(self, message: Message) -> str:
        """Send a message past queue, rate and counts. Why it was not delivered, or ""; it is not sent again."""
        try:
            self._deliver(message)
        except NotDeliveredError as error:
            return str(error)
        return ""

    def _has_failed(self, error: NotDeliveredError, now: datetime) -> str:
        self.failed += 1
        self._failures += 1
        own_s = pause_s(self._failures, first_s=_FIRST_RETRY_S, longest_s=_LONGEST_RETRY_S)
        wait_s = max(error.retry_s, own_s)
        self._not_before = now + timedelta(seconds=wait_s)
        self._failing_since = self._failing_since or now
        since = f"since {self._failing_since:%Y-%m-%d %H:%M:%S} UTC"
        self.problem = f"notify: {self.name} accepts no messages {since}; {self.undelivered} wait: {error}"
        return f"{self.name}: not delivered, retrying in {wait_s:.0f} s: {error}"


class Notifier:
    """All receivers of one node, or of the controller. ``wrong``: the open topics. ``about``: the sender's fields, for
    each message; ``head`` makes its first line of them.

    ``keep`` writes the state that outlives the daemon, ``kept`` is the state that the daemon before this one wrote.
    ``hold``: which of the open topics are not to be reported now, as of ``tell``. ``runbooks``: the address of the
    codes' pages, "" for none.
    """

    def __init__(
        self,
        channels: Mapping[str, Deliver],
        *,
        per_hour: int,
        wrong: Callable[[], Sequence[Topic]],
        about: Callable[[], Mapping[str, Any]],
        keep: Callable[[str], None],
        kept: str = "",
        head: Callable[[Mapping[str, Any]], str] = lambda about: f"{about['node']}: {about['verdict']}",
        hold: Hold | None = None,
        runbooks: str = "",
    ) -> None:
        self._runbooks = runbooks
        self._wrong, self._about, self._keep, self._head, self._hold = wrong, about, keep, head, hold
        before = _kept(kept)
        self._seen = dict(before.seen)
        self.channels = tuple(
            Channel(name, deliver, per_hour=per_hour, waiting=before.waiting.get(name))
            for name, deliver in channels.items()
        )
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
        held = self._hold(wrong, self._seen, now) if self._hold is not None else {}
        self._seen, news = tell(self._seen, wrong, now, held)
        self.held = tuple(_held_words(each, held[each.key]) for each in wrong if each.key in held)
        for channel in self.channels:
            channel.add(news)
        failures = [
            channel.send(lambda waiting: self._message(waiting, now), now)
            for channel in self.channels
            if not stopping()
        ]
        undelivered = {key for channel in self.channels for key in channel.waiting.pieces}
        told = {key for key, seen in self._seen.items() if seen.told}
        self.accepted = (
            frozenset() if any(each.waiting.lost for each in self.channels) else frozenset(told - undelivered)
        )
        state = NotifierState(
            seen=self._seen, waiting={each.name: each.waiting for each in self.channels if each.undelivered}
        )
        return tuple(filter(None, [*failures, self._saved(json_text(state))]))

    def _saved(self, text: str) -> str:
        """Write the state, if it has changed. Why that failed, or ""."""
        if text == self._written:
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
        self._seen = {key: shifted(seen, by, now) for key, seen in self._seen.items()}
        for channel in self.channels:
            channel.clock_was_set(by, now)

    def drill(self, words: str, now: datetime) -> Mapping[str, str]:
        """Send one message that is marked as a drill. For each receiver, why it was not delivered, or ""."""
        about = {**self._about(), "notices": [words]}
        data = {"schema": SCHEMA, **about, "at": now.isoformat(), "news": [], "lost": 0, "drill": True}
        message = Message(text=f"{about['node']}: {words}", data=data)
        return {channel.name: channel.try_out(message) for channel in self.channels}

    def problems(self) -> tuple[str, ...]:
        """A sentence for each receiver that did not accept the last message."""
        return tuple(channel.problem for channel in self.channels if channel.problem)

    def _message(self, waiting: ReceiverQueue, now: datetime) -> Message:
        about, pieces = self._about(), list(waiting.pieces.values())
        lost = [f"{waiting.lost} older pieces of news were dropped"] if waiting.lost else []
        urls = {piece.key: runbook_url(self._runbooks, piece.code) for piece in pieces}
        read = [f"runbook: {url}" for url in dict.fromkeys(filter(None, urls.values()))]
        data = {
            "schema": SCHEMA,
            **about,
            "at": now.isoformat(),
            "news": [
                {
                    "key": piece.key,
                    "state": piece.news,
                    "words": piece.words,
                    "since": piece.since.isoformat(),
                    "over": piece.over.isoformat() if piece.over else None,
                    "runbook": urls[piece.key],
                }
                for piece in pieces
            ],
            "lost": waiting.lost,
        }
        return Message(text="\n".join([self._head(about), *about["notices"], *lines(pieces), *read, *lost]), data=data)


def _held_words(topic: Topic, incident: str) -> str:
    why = f"incident {incident} reports it" if incident else "an incident of many nodes may report it"
    return f"message held: {why}: {topic.words}"


def channels_of(config: NotifySection) -> dict[str, Deliver]:
    """The receivers that are configured, by name; none by default."""
    found: dict[str, Deliver] = {}
    if config.slack_url_file:
        found["slack"] = to_slack(config.slack_url_file)
    if config.webhook_url or config.webhook_url_file:
        found["webhook"] = to_webhook(config.webhook_url, config.webhook_token_file, url_file=config.webhook_url_file)
    if config.command:
        found["command"] = to_command(config.command)
    return found


def still_told(kept: str) -> tuple[Topic, ...]:
    """The reported topics whose end was not reported, as open topics: for a process that continues from another's state
    and has not read the cluster yet."""
    return tuple(
        Topic(key=key, words=seen.words, title=seen.title, cause="".join(seen.causes[-1:]))
        for key, seen in _kept(kept).seen.items()
        if seen.told
    )


def _kept(text: str) -> NotifierState:
    """The state of an earlier daemon. One of another form is ignored, which costs a repeated message at most."""
    try:
        return msgspec.json.decode(text, type=NotifierState) if text else NotifierState()
    except msgspec.MsgspecError:
        return NotifierState()


class NotifyDuty:
    """One notifier's duty, of which each call sends what there is to send. A failure is logged, and tried again by the
    next call. ``stopping``: whether nothing more is to be sent by this process."""

    def __init__(self, notifier: Notifier, log: Any, *, stopping: Callable[[], bool]) -> None:
        self._notifier, self._log, self._stopping = notifier, log, stopping
        self._clock = ClockWatch(datetime.now(UTC), time.monotonic())

    def __call__(self) -> None:
        now = datetime.now(UTC)
        if by := self._clock.look(now, time.monotonic()):
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
