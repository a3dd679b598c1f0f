"""The one place that prints and ends a command. stdout is the result, stderr is talk."""

from __future__ import annotations

import sys

from healthd.api.wire import Answer


def deliver(answer: Answer) -> int:
    """Print an answer and return its exit code. A reader that went away (``| head``) is not an error."""
    try:
        sys.stdout.write(answer.out)
        sys.stdout.flush()
        sys.stderr.write(answer.err)
        sys.stderr.flush()
    except BrokenPipeError:
        sys.stdout = None  # nothing more can be written; keeps the exit silent
    return answer.code


def talk(text: str) -> None:
    """A line of long work for whoever waits; standard output is kept for the result."""
    sys.stderr.write(f"healthd: {text}\n")
    sys.stderr.flush()


def progress(text: str) -> None:
    """A line of long work, as it happens; the result comes with the answer."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def confirmed(question: str) -> bool | None:
    """Whether the person at the terminal says yes; None where there is no terminal."""
    if not sys.stdin.isatty():
        return None
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
