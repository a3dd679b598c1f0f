"""``healthd status`` past the hot path: the message for a node without a daemon, and ``--watch``.

``--watch`` polls the daemon. A terminal is redrawn in place (watch.py); elsewhere each change is a line.
"""

from __future__ import annotations

import json
import re
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field

from healthd.api.client import ask
from healthd.api.wire import Reply, Request
from healthd.cli.daemon_verbs import START
from healthd.cli.output import Screen, progress, talk
from healthd.cli.settings import loaded, socket_path
from healthd.cli.watch import refuse_json, watched
from healthd.core.errors import HealthdError, NoDaemon
from healthd.judge.devices import device_range
from healthd.observe.text_lines import printable


def answer(options: Namespace) -> Reply:
    """The daemon's answer; with ``--watch`` 0, at Ctrl-C. Raises NoDaemon."""
    path, shown = _socket(options), Request(arguments=options.arguments, colour=options.colour)
    if not options.watch or Screen.is_there():
        return watched(options, lambda: _answer(path, shown))
    refuse_json(options)
    try:
        _line_by_line(path, options.every)
    except KeyboardInterrupt:
        return Reply(code=0)
    raise AssertionError("unreachable: it watches until Ctrl-C")


def _answer(path: str, request: Request) -> Reply:
    answered = ask(path, request, talk)
    if answered is not None:
        return answered
    raise NoDaemon(f"no daemon answers at {path}; {START}, or use `healthd check`")


def _socket(options: Namespace) -> str:
    """The socket: as given, or that of the daemon with the given configuration."""
    if options.config and not options.socket:
        return loaded(options, names=()).config.daemon.socket
    return socket_path(options)


_NUMBERS = re.compile(r"[0-9]+")


class PrintedStatus(Struct):
    """The part of the status that has been printed so far. ``news`` changes only this."""

    headline: tuple[object, ...] = ()
    """Without the numbers in its sentences, such as the seconds for which a source is still paused."""
    parts: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, bool] = field(default_factory=dict)
    last: str = ""
    """The time of the newest printed line of the timeline; ``printed_at_last``: how many lines with this time."""
    printed_at_last: int = 0

    def news(self, data: Mapping[str, Any]) -> Iterator[str]:
        """A line for each change since the last call, in the order of the status."""
        summary = data["headline"]
        why = [" ".join(filter(None, (each["code"], each["where"], each["message"]))) for each in summary["why"]]
        headline = (f"{data['verdict'].upper()}  {summary['message']}", *(f"  why     {each}" for each in why),
                    f"  next    {summary['next']}")  # fmt: skip
        causes = ((each["code"], each["where"], _NUMBERS.sub("#", each["message"])) for each in summary["why"])
        key = (data["verdict"], summary["message"], _NUMBERS.sub("#", summary["next"]), *causes)
        if key != self.headline:
            yield from headline
        parts = {
            f"{strip['title']} {part['label']}": part["state"] for strip in data["devices"] for part in strip["parts"]
        }
        unknown = {each["name"]: each["outcome"] == "unknown" for each in data["checks"]}
        yield from _changed(self.parts, parts)
        yield from _changed_checks(self.unknown, unknown)
        yield from self._happened(data["timeline"])
        self.headline, self.parts, self.unknown = key, parts, unknown

    def _happened(self, timeline: list[Mapping[str, str]]) -> Iterator[str]:
        fresh = [each for each in timeline if each["at"] >= self.last] if self.last else timeline[-1:]
        for each in fresh[self.printed_at_last :]:
            yield f"  {each['at'][:19].replace('T', ' ')} {each['kind']}: {each['text']}"
        if timeline:
            self.last = max(each["at"] for each in timeline)
            self.printed_at_last = sum(each["at"] == self.last for each in timeline)


def _changed(before: Mapping[str, str], parts: Mapping[str, str]) -> Iterator[str]:
    """``8 GPUs (0-7) are critical``: the devices that changed, those of one state in one line."""
    by_state: dict[str, list[str]] = {}
    for name, state in parts.items():
        if before.get(name, "ok") != state:
            by_state.setdefault(state, []).append(name)
    for state, names in by_state.items():
        yield f"  {device_range(names)} {'is' if len(names) == 1 else 'are'} {state}"


def _changed_checks(before: Mapping[str, bool], unknown: Mapping[str, bool]) -> Iterator[str]:
    """The checks that are unknown now, and those that no longer are. A finding has its line already."""
    for now, word in ((True, "unknown"), (False, "no longer unknown")):
        names = [
            name for name, is_unknown in unknown.items() if is_unknown is now and before.get(name, False) is not now
        ]
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 4 else ""
            shown = ", ".join(names[:3] if more else names)
            yield f"  check{'' if len(names) == 1 else 's'} {shown}{more} {'is' if len(names) == 1 else 'are'} {word}"


def _line_by_line(path: str, every_s: float) -> None:
    printed, silent, fields = PrintedStatus(), False, Request(arguments=("status", "--json"))
    while True:
        try:
            reply = _answer(path, fields)
            text, why = reply.out, reply.err.strip()
        except HealthdError as error:
            text, why = "", str(error)
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
