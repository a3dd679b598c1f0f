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


def progress(text: str) -> None:
    """A line of long work, as it happens; the result comes with the answer."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
