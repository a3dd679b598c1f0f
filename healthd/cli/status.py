"""``healthd status`` past the hot path: the message for a node without a daemon, and ``--watch``.

``--watch`` polls the daemon. A terminal is redrawn in place; elsewhere each change is a line. When the daemon stops
answering, the first line says so, with the time since when: the status below it is old.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from healthd.api.client import ask
from healthd.api.wire import Reply, Request
from healthd.cli.daemon_verbs import START
from healthd.cli.output import Screen, progress, talk
from healthd.cli.settings import loaded, socket_path
from healthd.core.errors import HealthdError, UsageError
from healthd.observe.report import printable


def answer(options: Namespace) -> Reply:
    """Exit 2: unknown. With ``--watch`` 0, at Ctrl-C."""
    path = _socket(options)
    if options.watch:
        return _watched(path, options)
    answered = ask(path, Request(arguments=options.arguments), talk)
    if answered is not None:
        return answered
    return Reply(code=2, err=f"healthd: no daemon answers at {path}; {START}, or use `healthd check`\n")


def _socket(options: Namespace) -> str:
    """The socket: as given, or that of the daemon with the given configuration."""
    if options.config and not options.socket:
        return loaded(options).config.daemon.socket
    return socket_path(options)


def _watched(path: str, options: Namespace) -> Reply:
    if options.json:
        raise UsageError(
            "healthd status: --watch does not work with --json; run `healthd status --json` as often as you like"
        )
    try:
        if Screen.is_there():
            _on_a_screen(path, options.every)
        else:
            _line_by_line(path, options.every)
    except KeyboardInterrupt:
        return Reply(code=0)
    raise AssertionError("unreachable: it watches until Ctrl-C")


# -- a terminal -------------------------------------------------------------------------------------------------------


def _on_a_screen(path: str, every_s: float) -> None:
    last, answered = "", datetime.now(UTC)
    with Screen() as screen:
        while True:
            text, why = _asked(path)
            if text:
                last, answered = text, datetime.now(UTC)
                head = f"healthd status, {answered:%H:%M:%S} UTC, every {every_s:g} s; Ctrl-C ends"
            else:
                head = f"UNKNOWN  NO ANSWER since {answered:%H:%M:%S} UTC: {why}"
                head += f"\nStatus of {answered:%H:%M:%S} UTC, perhaps out of date:" if last else ""
            screen.show(f"{head}\n{last}")
            time.sleep(every_s)


# -- a pipe, a log ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PrintedStatus:
    """The part of the status that has been printed so far. ``news`` changes only this."""

    headline: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, str] = field(default_factory=dict)
    last: str = ""
    """The time of the newest printed line of the timeline; ``printed_at_last``: how many lines with this time."""
    printed_at_last: int = 0

    def news(self, data: Mapping[str, Any]) -> Iterator[str]:
        """A line for each change since the last call, in the order of the status."""
        said = data["headline"]
        why = [" ".join(filter(None, (each["code"], each["where"], each["words"]))) for each in said["why"]]
        headline = (f"{data['verdict'].upper()}  {said['words']}", *(f"  why     {each}" for each in why),
                    f"  next    {said['next']}")  # fmt: skip
        if headline != self.headline:
            yield from headline
        parts = {
            f"{strip['title']} {part['label']}": part["state"] for strip in data["devices"] for part in strip["parts"]
        }
        checks = {each["name"]: each["outcome"] for each in data["checks"]}
        yield from (f"  {name} is {state}" for name, state in parts.items() if self.parts.get(name, "ok") != state)
        yield from (
            f"  check {name} is {state}"
            for name, state in checks.items()
            if self.checks.get(name, state if state in ("ok", "not_applicable") else "") != state
        )
        yield from self._happened(data["timeline"])
        self.headline, self.parts, self.checks = headline, parts, checks

    def _happened(self, timeline: list[Mapping[str, str]]) -> Iterator[str]:
        fresh = [each for each in timeline if each["at"] >= self.last] if self.last else timeline[-1:]
        for each in fresh[self.printed_at_last :]:
            yield f"  {each['at'][:19].replace('T', ' ')} {each['kind']}: {each['text']}"
        if timeline:
            self.last = max(each["at"] for each in timeline)
            self.printed_at_last = sum(each["at"] == self.last for each in timeline)


def _line_by_line(path: str, every_s: float) -> None:
    printed, silent = PrintedStatus(), False
    while True:
        text, why = _asked(path, "--json")
        stamp = f"{datetime.now(UTC):%H:%M:%S}"
        if not text and not silent:
            progress(f"{stamp}  UNKNOWN  NO ANSWER: {printable(why)}")
        if text and silent:
            progress(f"{stamp}  the daemon answers again")
        silent = not text
        if text:
            for line in printed.news(json.loads(text)):
                progress(f"{stamp}  {printable(line)}")
        time.sleep(every_s)


def _asked(path: str, *more: str) -> tuple[str, str]:
    """(the daemon's answer, reason): the answer is "" without one, and the reason says why."""
    try:
        answered = ask(path, Request(arguments=("status", *more)), talk)
    except HealthdError as error:
        return "", str(error)
    if answered is None:
        return "", f"no daemon answers at {path}; see `systemctl status healthd`"
    return answered.out, answered.err.strip()
