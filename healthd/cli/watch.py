"""``--watch``: a verb's answer, asked for again and again and drawn in place on a terminal, until Ctrl-C.

When nothing answers, the first line says so, with the time since when: what is below it is old.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime

from healthd.api.wire import Reply
from healthd.cli.output import Screen
from healthd.core.errors import ConfigError, HealthdError, UsageError
from healthd.observe.text_lines import printable


def watched(options: Namespace, answer: Callable[[], Reply]) -> Reply:
    """The answer; with --watch exit 0, at Ctrl-C, and ``answer`` gives each frame. Then raises UsageError with --json
    and without a terminal, and those of the first answer about arguments and settings."""
    if not options.watch:
        return answer()
    refuse_json(options)
    command = _command(options)
    if not Screen.is_there():
        raise UsageError(f"{command} --watch needs a terminal; use `{command}` as often as you like")
    try:
        with Screen(command) as screen:
            last, answered = "", datetime.now(UTC)
            while True:
                try:
                    text, why = _asked(answer)
                except HealthdError as error:
                    if not last and isinstance(error, ConfigError | UsageError):
                        raise  # wrong from the first; later it is an answer that was cut off, or a new configuration
                    text, why = "", str(error)
                if text:
                    last, answered = text, datetime.now(UTC)
                    head = f"{command}, {answered:%H:%M:%S} UTC, every {options.every:g} s; Ctrl-C ends"
                else:
                    head = f"UNKNOWN  NO ANSWER since {answered:%H:%M:%S} UTC: {printable(why)}"
                    head += f"\nAnswer of {answered:%H:%M:%S} UTC, perhaps out of date:" if last else ""
                screen.show(f"{head}\n{last}")
                time.sleep(options.every)
    except KeyboardInterrupt:
        return Reply(code=0)


def refuse_json(options: Namespace) -> None:
    """Raises UsageError for --watch with --json."""
    if options.json:
        command = _command(options)
        raise UsageError(f"{command}: --watch does not work with --json; run `{command} --json` as often as you like")


def _command(options: Namespace) -> str:
    return f"healthd {options.verb}{' --status' if options.verb == 'controller' else ''}"


def _asked(answer: Callable[[], Reply]) -> tuple[str, str]:
    """(the answer, reason): the answer is "" without one, and the reason says why. Raises HealthdError."""
    reply = answer()
    return (reply.err + reply.out, "") if reply.out else ("", reply.err.strip())
