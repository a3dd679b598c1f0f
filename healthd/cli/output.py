"""Messages of a verb while it runs. stdout is the result, stderr is for messages; ``core.streams`` prints both."""

from __future__ import annotations

import os
import re
import signal
import sys
from types import TracebackType
from typing import NoReturn

from healthd.api.wire import Reply
from healthd.core.errors import HealthdError, UsageError
from healthd.core.streams import unwritten, written

_COLOURED = r"((?:\x1b\[[0-9;]*m)?)(.*?)((?:\x1b\[0m)?)"
"""A line as ``healthd.observe.report.joined`` makes it."""


def talk(text: str) -> None:
    """A line about long work, on standard error: standard output is kept for the result."""
    written("stderr", f"healthd: {text}\n")


def progress(text: str) -> None:
    """A line of long work, as it happens; the result comes with the answer. A reader that went away (``| head``) ends
    the command as Ctrl-C does. Raises HealthdError where it cannot be written."""
    error = written("stdout", f"{text}\n")
    if isinstance(error, BrokenPipeError):
        raise KeyboardInterrupt from error
    if error is not None:
        raise HealthdError(unwritten(error)) from error


def progress_line(text: str) -> None:
    """Show the progress of long work in place of the last text; "" wipes it. Does nothing without a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def declined(verb: str, question: str) -> Reply | None:
    """The reply where the operator at the terminal does not say yes, else None. Raises UsageError without a
    terminal."""
    if not sys.stdin.isatty():
        raise UsageError(f"healthd {verb}: refusing to act without confirmation (no terminal); pass --yes or --dry-run")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    is_yes = sys.stdin.readline().strip().lower() in ("y", "yes")
    return None if is_yes else Reply(code=0, err="healthd: nothing was done\n")


def end_by_signal(number: int, _: object) -> NoReturn:
    """A signal handler: end as Ctrl-C does, in order."""
    raise SystemExit(128 + number)


def clipped(line: str, width: int) -> str:
    """The line, cut to so many columns; a colour takes none, and ends with the line."""
    begin, text, end = re.fullmatch(_COLOURED, line).groups()  # type: ignore[union-attr]  # it matches every line
    return line if len(text) <= width else f"{begin}{text[: max(width - 1, 0)]}…{end}"


class Screen:
    """A terminal that is drawn over in place, line by line: nothing is wiped first, so nothing flickers.

    It uses the alternate screen while it is open, and restores the terminal at the end, by SIGTERM too (xterm control
    sequences, 1049 and 25; 2026, where a terminal knows it, shows a frame at once).
    """

    @staticmethod
    def is_there() -> bool:
        """Whether standard output is a terminal that can be drawn over."""
        return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def __init__(self, command: str) -> None:
        self._command = command
        """Shows the whole text, where it does not fit."""

    def __enter__(self) -> Screen:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, end_by_signal)
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()

    def show(self, text: str) -> None:
        """Draw a text over the last one. The last line names the number of lines that do not fit."""
        import shutil  # loads every compression; most commands draw nothing

        width, height = shutil.get_terminal_size()
        lines = [clipped(line, width) for line in text.splitlines()]
        if len(lines) > height:
            lines[height - 1 :] = [f"… {len(lines) - height + 1} more lines: `{self._command}`"[:width]]
        body = "\n".join(f"{line}\x1b[K" for line in lines)
        sys.stdout.write(f"\x1b[?2026h\x1b[H{body}\x1b[J\x1b[?2026l")
        sys.stdout.flush()
